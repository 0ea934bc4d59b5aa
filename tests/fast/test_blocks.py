"""The activations that a fused kernel replaces, with the kernel's formula in its place."""

from __future__ import annotations

import pytest
import torch
from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import nn
from torch.nn import functional as F

from cots.fast import blocks


@pytest.mark.parametrize(
    ("make", "fused"),
    [(nn.GELU, True), (QuickGELU, True), (lambda: nn.GELU(approximate="tanh"), False), (nn.SiLU, False)],
)
def test_a_fused_activation_is_that_of_the_model(make, fused, monkeypatch):
    """Another one would silently compute another model."""
    called = []

    def activate(u, quick):
        called.append(quick)
        return u * torch.sigmoid(1.702 * u) if quick else F.gelu(u)

    monkeypatch.setattr(blocks.kernels, "activate", activate)
    monkeypatch.setattr(blocks.FusedBlocks, "_fused", lambda self, tensor: True)
    torch.manual_seed(0)
    block = ResidualAttentionBlock(8, 2, act_layer=make).double()
    own = blocks.FusedBlocks(nn.ModuleList([block]), nn.LayerNorm(8).double(), torch.float64)
    h = 3 * torch.randn(2, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(own.mlp(own.blocks[0], h), block.mlp(h))
    assert len(called) == fused
