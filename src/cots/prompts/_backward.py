"""Hand-written gradients of a packed causal tower at one context: many gradients of one forward pass at once.

The forward pass at the initial context is the same for every sample, so its activations are stored once and every
gradient takes a few products with them. Autograd under vmap would copy them and process many steps per gradient.

Shape letters: C copies of the context, each followed by the same number of classes; G gradients; M context tokens;
D width of the text features; the others as in _packed. A gradient dx is (C,N,G,W), so its product with an activation
x (C,N,W) is one matrix product without copies of x. f' is the derivative of f, W_f the weights of a linear map f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._kernels import HALF, card_bytes, scale_to_memory
from ..backbones._blocks import Norm
from ._half import HalfBackward
from ._packed import AttentionGradients, Packed

if TYPE_CHECKING:
    from ._towers import CausalText

_ROWS = {"cpu": 4096, "cuda": 131072}  # padded cells times gradients held at a time
_GRADIENTS = {"cpu": 8, "cuda": 64}  # gradients per pass that the groups are sized for
_KEPT_BYTES, _KEPT_SHARE = 2**31, 0.1  # limit of stored activations: bytes, or a share of a GPU if that is more
_SLICES = 16  # of a Jacobian in half precision


class PullBack:
    """Pulls gradients with respect to the text features, `(B,K,D)`, back to a context shared by all samples, `(B,M,W)`.

    The classes run in groups of similar length that depend only on the task and the device. The activations of the
    groups are stored if they all fit; otherwise they are recomputed for every batch.
    """

    def __init__(self, text: CausalText, context_MW: Tensor) -> None:
        self.text, self.context_MW = text, context_MW
        self.rows = _rows(context_MW.device)
        room = self.rows // _GRADIENTS.get(context_MW.device.type, 8) - text.tokens.prefix
        self.groups = [(classes, text.packed(classes)) for classes in text.group_by_length(cells=room)]
        kept_bytes = sum(packed.cells for _, packed in self.groups) * text.bytes_per_token
        device = context_MW.device
        share = _KEPT_SHARE * card_bytes(device) if device.type == "cuda" else 0
        fits = kept_bytes <= max(scale_to_memory(_KEPT_BYTES, device), share)
        self.kept = [self._backward(*group) for group in self.groups] if fits else []

    def _backward(self, classes: Tensor, packed: Packed) -> Backward | HalfBackward:
        return _linearised(self.text, self.context_MW[None], self.text.suffix(classes), packed)

    def __call__(self, cotangent_BKD: Tensor) -> Tensor:
        total_BMW = cotangent_BKD.new_zeros(len(cotangent_BKD), *self.context_MW.shape)
        for i, (classes, packed) in enumerate(self.groups):
            backward = self.kept[i] if self.kept else self._backward(classes, packed)
            parts = cotangent_BKD[:, classes].split(max(1, self.rows // packed.cells))
            found = [backward(part.transpose(0, 1)[None])[0, self.text.tokens.start :] for part in parts]
            total_BMW += torch.cat(found, dim=1).transpose(0, 1)
        return total_BMW


class Jacobian:
    """Like `PullBack`, from the stored derivatives of the text features: each call is one matrix product."""

    def __init__(self, text: CausalText, context_MW: Tensor) -> None:
        self.shape = context_MW.shape
        J_KDX = jacobian(text, context_MW).flatten(2)
        D = J_KDX.shape[1]
        # Short sums in half precision: slices of the features are summed separately, then added in full precision.
        self.slices = math.gcd(D, _SLICES) if J_KDX.dtype in HALF else 1
        self.J_SRX = J_KDX.unflatten(1, (self.slices, -1)).transpose(0, 1).flatten(1, 2)

    def __call__(self, cotangent_BKD: Tensor) -> Tensor:
        scale_B11 = 1.0
        if self.J_SRX.dtype != cotangent_BKD.dtype:
            tiny = torch.finfo(cotangent_BKD.dtype).tiny
            scale_B11 = cotangent_BKD.flatten(1).norm(dim=1).clamp(min=tiny)[:, None, None]
        g_SBR = (cotangent_BKD / scale_B11).unflatten(2, (self.slices, -1)).permute(2, 0, 1, 3).flatten(2)
        found_BX = (g_SBR.to(self.J_SRX.dtype) @ self.J_SRX).sum(0, dtype=cotangent_BKD.dtype)
        return found_BX.unflatten(1, self.shape) * scale_B11


def jacobian(text: CausalText, context_MW: Tensor) -> Tensor:
    """Derivatives `(K,D,M,W)` of the text features with respect to their shared context."""
    K, D = text.features(context_MW[None]).shape[1:]
    dtype = torch.float16 if text.half_gradients else context_MW.dtype
    out = torch.empty(K, D, *context_MW.shape, dtype=dtype, device=context_MW.device)
    eye_DD = torch.eye(D, device=out.device, dtype=context_MW.dtype)
    for same_length in text.group_by_length(stretch=1):
        alone = text.packed(same_length[:1])
        for classes in same_length.split(max(1, _rows(out.device) // (D * alone.tokens))):
            # Each class is a sample of its own, with its own copy of the context.
            suffixes = text.suffix(classes).unflatten(0, (len(classes), -1))
            backward = _linearised(text, context_MW.expand(len(classes), -1, -1), suffixes, alone)
            found = backward(eye_DD.expand(len(classes), 1, -1, -1))[:, text.tokens.start :]
            out[classes] = found.transpose(1, 2).to(dtype)
    return out


def _linearised(text: CausalText, context_CMW: Tensor, suffix: Tensor, packed: Packed) -> Backward | HalfBackward:
    return (HalfBackward if text.half_gradients else Backward)(text, context_CMW, suffix, packed)


class Backward:
    """`(dy (C,K,G,D)) -> (C,P,G,W)`: from gradients at the text features y of packed classes to the prefix."""

    def __init__(self, text: CausalText, context_CMW: Tensor, suffix: Tensor, packed: Packed) -> None:
        blocks, self.packed, self.blocks = text.exact.blocks, packed, []
        with torch.no_grad():
            x = text.embedded(context_CMW, suffix)
            for block in blocks:
                gradients, x = _linearise(block, packed, x, packed.ends if block is blocks[-1] else slice(None))
                self.blocks.append(gradients)
            self.final = _NormGradients(x, text.exact.final)
            z = text.project(text.exact.final(x, x.dtype))
            projection = text.tower.text_projection  # a matrix, a linear layer or None
            self.W_project = projection.weight if isinstance(projection, nn.Linear) else getattr(projection, "mT", None)
            self.length = z.norm(dim=-1, keepdim=True)[:, :, None].clamp(min=1e-12)
            self.y = F.normalize(z, dim=-1)[:, :, None]

    def __call__(self, dy: Tensor) -> Tensor:
        with torch.no_grad():
            # y = z / |z|:  dz = (dy - y (y . dy)) / |z|
            radial = (dy * self.y).sum(dim=-1, keepdim=True)
            dz = (dy - self.y * radial) / self.length
            dx = self.final(dz if self.W_project is None else dz @ self.W_project)
            for block in reversed(self.blocks):
                dx = block(dx)
            return dx[:, : self.packed.prefix]


class _NormGradients:
    """Gradients through a layer norm, y = w n + b with n = s (x - mean x) and s = 1 / sqrt(var x + eps)."""

    def __init__(self, x: Tensor, norm: Norm) -> None:
        n, s = norm.standardised(x)
        self.n, self.s, self.w = n[:, :, None], s[:, :, None], norm.weight

    def __call__(self, dy: Tensor) -> Tensor:
        # dn = w dy,  dx = s (dn - mean dn - n mean(n dn))
        dn = dy * self.w
        along = (dn * self.n).mean(dim=-1, keepdim=True)
        dn -= dn.mean(dim=-1, keepdim=True)
        return torch.addcmul(dn, self.n, along, value=-1).mul_(self.s)


def _linearise(block: Any, packed: Packed, x: Tensor, rows: slice | Tensor) -> tuple[_BlockGradients, Tensor]:
    """The gradients of a pre-norm block at x, whose MLP is evaluated at `rows` only, and its output there."""
    C, N, _ = x.shape
    norm1 = _NormGradients(x, block.norm1)
    heads = block.qkv(block.norm1(x, x.dtype)).view(C, N, 3, block.heads, -1)
    attention = AttentionGradients(packed, *heads.unbind(dim=2))
    a = (x + block.out(attention.output()))[:, rows]
    norm2 = _NormGradients(a, block.norm2)
    y, slope = block.mlp_with_slope(a)
    weights = (block.qkv.weight, block.out.weight, block.up.weight, block.down.weight)
    return _BlockGradients(norm1, attention, norm2, slope[:, :, None], weights, rows, N), y


@dataclass(frozen=True)
class _BlockGradients:
    """Gradients through a = x + out(attention(qkv(norm1(x)))), then y = a + down(gelu(up(norm2(a)))) at `rows`."""

    norm1: _NormGradients
    attention: AttentionGradients
    norm2: _NormGradients
    slope: Tensor  # gelu'(up(norm2(a)))
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    rows: slice | Tensor
    tokens: int

    def __call__(self, dy: Tensor) -> Tensor:
        W_qkv, W_out, W_up, W_down = self.weights
        # da = dy + norm2'(((dy W_down) * gelu') W_up)
        da = dy + self.norm2((dy @ W_down).mul_(self.slope) @ W_up)
        # dx = da + norm1'(attention'(da W_out) W_qkv)
        mixed = da @ W_out
        if da.shape[1] < self.tokens:
            da, mixed = self._scatter(da), self._scatter(mixed)
        return da.add_(self.norm1(self.attention(mixed) @ W_qkv))

    def _scatter(self, g: Tensor) -> Tensor:
        """Gradients at `rows` -> gradients at all tokens, zero elsewhere."""
        whole = g.new_zeros(len(g), self.tokens, *g.shape[2:])
        whole[:, self.rows] = g
        return whole


def _rows(device: torch.device) -> int:
    return scale_to_memory(_ROWS.get(device.type, _ROWS["cpu"]), device)
