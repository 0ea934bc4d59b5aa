"""OpenAI-style vision transformers with less overhead than the model's own forward."""

from typing import Any

import torch
from torch import Tensor, nn

from ..backbones import Blocks, Linear, full_attention, same_values, with_child
from . import kernels
from .blocks import FusedBlocks

_PARTS = (
    "conv1", "class_embedding", "positional_embedding", "ln_pre", "transformer", "ln_post", "proj", "patch_size",
    "image_size",
)  # fmt: skip


class ImageTower:
    """`features(pixels (B,3,H,W)) -> (B,D)`: the tower's own forward with less overhead.

    One copy cuts the patches, one matrix product embeds them, and the last block computes only the class token.
    """

    def __init__(self, tower: Any, dtype: torch.dtype) -> None:
        self.tower, self.dtype = tower, dtype
        self.embed = Linear(tower.conv1.weight.flatten(1), None, dtype)
        self.table = tower.positional_embedding.clone()
        self.table[0] += tower.class_embedding
        self.blocks = FusedBlocks(tower.transformer.resblocks, tower.ln_post, dtype)

    @staticmethod
    def supports(tower: Any) -> bool:
        """Whether this class reproduces the tower's own forward: by its parts, then tried with one of its blocks."""
        return (
            all(hasattr(tower, name) for name in _PARTS)
            and getattr(tower, "attn_pool", None) is None
            and getattr(tower, "pool_type", "tok") == "tok"
            and not getattr(tower, "output_tokens", False)
            and isinstance(tower.ln_post, nn.LayerNorm)
            and Blocks.supports(getattr(tower.transformer, "resblocks", None))
            and _is_reproduced(tower)
        )

    def features(self, pixels: Tensor) -> Tensor:
        """Image features, not normalised, in the precision of the weights."""
        x = self.blocks.run(self._embedded(pixels), full_attention, slice(0, 1))[:, 0]
        return x if self.tower.proj is None else x @ self.tower.proj

    def _embedded(self, pixels: Tensor) -> Tensor:
        """The residual stream before the first block, (B,1+patches,W)."""
        tower = self.tower
        B, _, height, width = pixels.shape
        p, q = tower.patch_size
        grid = pixels[:, :, : height // p * p, : width // q * q].unflatten(3, (-1, q)).unflatten(2, (-1, p))
        # A row of zeros for the class token, so the product writes the whole stream.
        patches = torch.empty(B, 1 + grid.shape[2] * grid.shape[4], 3 * p * q, dtype=self.dtype, device=pixels.device)
        patches[:, 0].zero_()
        rows = patches[:, 1:].unflatten(2, (3, p, q)).unflatten(1, (height // p, width // q))
        rows.copy_(grid.permute(0, 2, 4, 1, 3, 5))
        tokens = self.embed(patches)
        if self.dtype in kernels.HALF and kernels.usable(tokens) and isinstance(tower.ln_pre, nn.LayerNorm):
            # float16 halves the time to read and write the stream.
            norm = tower.ln_pre
            return kernels.embed_norm(tokens, self.table, norm.weight, norm.bias, norm.eps, torch.float16)
        return tower.ln_pre(tokens + self.table)


@torch.no_grad()
def _is_reproduced(tower: Any) -> bool:
    weight, (height, width) = tower.conv1.weight, tower.image_size
    pixels = torch.arange(3 * height * width, dtype=weight.dtype, device=weight.device).sin()
    pixels = pixels.reshape(1, 3, height, width)
    short = with_child(tower, "transformer.resblocks", tower.transformer.resblocks[:1])  # all would take seconds
    try:
        return same_values(ImageTower(short, weight.dtype).features(pixels), short(pixels))
    except (RuntimeError, TypeError, ValueError):  # parts of other shapes
        return False
