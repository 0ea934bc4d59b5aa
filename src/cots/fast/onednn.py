"""Convolutions by oneDNN with weights packed once, for CPUs: `mini` encodes images in half the time."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Of `mini`'s trunk: stages with large activations, and images per pass of these.
_EARLY_STAGES, _EARLY_IMAGES = 2, 4
_FUSED: dict[type, tuple[str, list[float]]] = {nn.ReLU: ("relu", []), nn.ReLU6: ("hardtanh", [0.0, 6.0])}
Sizes = dict[nn.Module, list[tuple[torch.Size, torch.Size]]]


def pack_convolutions(tower: nn.Module, sizes: Sizes, following: Mapping[nn.Module, str]) -> None:
    """Let convolutions call oneDNN themselves, with the activation after them.

    sizes: of each one's inputs and outputs; following: the name of the module after it, if that is known.
    """
    for name, conv in list(tower.named_modules()):
        if not isinstance(conv, nn.Conv2d) or len(sizes.get(conv, ())) != 1:
            continue
        if conv.padding_mode != "zeros" or {*conv.dilation} != {1}:
            continue
        fused = ("none", [])
        if conv in following and (activation := _only_activation(tower.get_submodule(following[conv]))):
            tower.set_submodule(following[conv], nn.Identity())
            fused = _FUSED[type(activation)]
        tower.set_submodule(name, PackedConv(conv, *sizes[conv][0], *fused))


def _only_activation(rest: nn.Module) -> nn.Module | None:
    parts = [part for part in rest.children() if type(part) is not nn.Identity]
    return parts[0] if len(parts) == 1 and type(parts[0]) in _FUSED else None


class PackedConv(nn.Module):
    """A convolution of images of one size by oneDNN, with weights in its own order and the activation built in.

    Images in channels-last format stay in it. Opaque mkldnn tensors stay in the layout that oneDNN prefers, in which
    filters of single channels take half the time on AVX2.
    """

    def __init__(
        self, conv: nn.Conv2d, before: torch.Size, after: torch.Size, activation: str, limits: list[float]
    ) -> None:
        super().__init__()
        weight, padding = conv.weight.detach(), []
        for axis in (0, 1):
            n, m, k, s = before[2 + axis], after[2 + axis], conv.kernel_size[axis], conv.stride[axis]
            side = 0 if isinstance(conv.padding, str) else int(conv.padding[axis])
            if m != (n + 2 * side - k) // s + 1:  # "same" padding; zeros in the kernel make both sides equal
                total = (m - 1) * s + k - n
                side = total - total // 2
                weight = F.pad(weight, (0, 0, side - total // 2, 0) if axis == 0 else (side - total // 2, 0))
            padding.append(side)
        self.weight, self.bias = weight.contiguous(), conv.bias
        self.layout = padding, list(conv.stride), [1, 1], conv.groups
        self.before, self.activation = list(before), (activation, limits, "")

    @cached_property
    def _channels_last(self) -> Tensor:
        return torch.ops.aten.mkldnn_reorder_conv2d_weight(self.weight.to_mkldnn(), *self.layout, self.before)

    @cached_property
    def _opaque(self) -> tuple[Tensor, Tensor | None]:
        weight = torch.ops.aten.mkldnn_reorder_conv2d_weight(self.weight.to_mkldnn(), *self.layout)
        return weight, None if self.bias is None else self.bias.to_mkldnn()

    def forward(self, x: Tensor) -> Tensor:
        if x.is_mkldnn and self.activation[0] == "none":
            return torch.mkldnn_convolution(x, *self._opaque, *self.layout)
        # With an activation, torch takes packed weights for channels-last images only.
        weight = self.weight if x.is_mkldnn else self._channels_last
        run = torch.ops.mkldnn._convolution_pointwise.default
        return run(x, weight, self.bias, *self.layout, *self.activation)


class OpaqueTrunk(nn.Module):
    """`mini`'s trunk of packed convolutions, with activations in oneDNN's own layout.

    The first stages have large activations, of which those of a few images fit in the cache; the others have large
    weights, which more images share.
    """

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        stages = [nn.Sequential(*map(OpaqueBlock, stage)) for stage in trunk.blocks]
        self.early, self.late = (
            nn.Sequential(trunk.conv_stem, *stages[:_EARLY_STAGES]),
            nn.Sequential(*stages[_EARLY_STAGES:]),
        )
        self.head = nn.Sequential(trunk.conv_head, trunk.bn2)

    def forward(self, pixels: Tensor) -> Tensor:
        early = [self.early(some.to_mkldnn()).to_dense() for some in pixels.split(_EARLY_IMAGES)]
        x = self.late(torch.cat(early).to_mkldnn()).to_dense()
        return self.head(x).mean((2, 3))


class OpaqueBlock(nn.Module):
    """A block of `mini` whose norms and activations are in its convolutions."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        parts = [block.conv_pw, block.conv_dw, block.conv_pwl] if block.expands else [block.conv_dw, block.conv_pw]
        self.parts, self.skips = nn.Sequential(*parts), block.skips and block.expands

    def forward(self, x: Tensor) -> Tensor:
        y = self.parts(x)
        return y.add_(x) if self.skips else y
