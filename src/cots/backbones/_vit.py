"""The image tower of open_clip's vision transformers in a chosen precision."""

from __future__ import annotations

from typing import Any

import torch
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from ._blocks import Blocks, Linear


class ImageTower:
    """`features(pixels (B,3,H,W)) -> (B,D)`: what the tower's own forward computes, with less work around it.

    Patches are cut by one copy and embedded by one matrix product; the last block computes the class token alone.
    """

    def __init__(self, tower: Any, dtype: torch.dtype) -> None:
        self.tower, self.dtype = tower, dtype
        self.patch: tuple[int, int] = tower.patch_size
        self.embed = Linear(tower.conv1.weight.flatten(1), None, dtype)
        self.blocks = Blocks(tower.transformer.resblocks, tower.ln_post, dtype)

    @staticmethod
    def supports(tower: Any) -> bool:
        """Whether this forward reproduces the tower's own."""
        return (
            type(tower) is VisionTransformer
            and tower.attn_pool is None
            and tower.pool_type == "tok"
            and not tower.output_tokens
            and isinstance(tower.ln_post, nn.LayerNorm)
            and Blocks.support(getattr(tower.transformer, "resblocks", None))
        )

    def features(self, pixels: Tensor) -> Tensor:
        """Image features, not normalised, in the model's own precision."""
        tower = self.tower
        B, _, height, width = pixels.shape
        p, q = self.patch
        grid = pixels[:, :, : height // p * p, : width // q * q].unflatten(3, (-1, q)).unflatten(2, (-1, p))
        patches = torch.empty(B, height // p, width // q, 3, p, q, dtype=self.dtype, device=pixels.device)
        patches.copy_(grid.permute(0, 2, 4, 1, 3, 5))
        tokens = self.embed(patches.view(B, -1, 3 * p * q))
        kept = tower.positional_embedding
        x = torch.cat([(tower.class_embedding + kept[0]).expand(B, 1, -1), tokens + kept[1:]], dim=1)
        x = self.blocks.run(tower.ln_pre(x), _attention, slice(0, 1))[:, 0]
        return x if tower.proj is None else x @ tower.proj


def _attention(q: Tensor, k: Tensor, v: Tensor, at_rows: bool) -> Tensor:
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).flatten(2)
