"""Hand-written gradients of a packed causal tower at one context: many gradients of one forward pass at once.

The forward pass at the initial context is the same for every sample, so its activations are stored once and every
gradient takes a few products with them. Autograd under vmap would copy them and process many steps per gradient.

Shape letters: C copies of the context, each followed by the same number of classes; G gradients; M context tokens;
D width of the text features; the others as in `Packed`. A gradient dx is (C,N,G,W), so its product with an activation
x (C,N,W) is one matrix product without copies of x. f' is the derivative of f, W_f the weights of a linear map f.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..backbones import Block, Norm
from . import kernels
from .memory import card_bytes, scale_to_memory
from .packed import AttentionGradients, FusedPacked

if TYPE_CHECKING:
    from .text_tower import FastText

_ROWS = {"cpu": 4096, "cuda": 131072}  # padded cells times gradients held at a time
_GRADIENTS = {"cpu": 8, "cuda": 64}  # gradients per pass that the groups are sized for
_KEPT_BYTES, _KEPT_SHARE = 2**31, 0.1  # limit of stored activations: bytes, or a share of a GPU if that is more
_SLICES = 16  # of a Jacobian in half precision


class PullBack:
    """Pulls gradients with respect to the text features, `(B,K,D)`, back to a context shared by all samples, `(B,M,W)`.

    The classes run in groups of similar length that depend only on the task and the device. The activations of the
    groups are stored if they all fit; otherwise they are recomputed for every batch.
    """

    def __init__(self, text: FastText, context_MW: Tensor) -> None:
        # The tower owns this object; a cycle would keep both in memory until the next garbage collection.
        self.text, self.context_MW = weakref.proxy(text), context_MW
        self.rows = _rows(context_MW.device)
        room = self.rows // _GRADIENTS.get(context_MW.device.type, 8) - text.tokens.prefix
        self.groups = [(classes, text.packed(classes)) for classes in text.group_by_length(cells=room)]
        kept_bytes = sum(packed.cells for _, packed in self.groups) * text.bytes_per_token
        device = context_MW.device
        share = _KEPT_SHARE * card_bytes(device) if device.type == "cuda" else 0
        fits = kept_bytes <= max(scale_to_memory(_KEPT_BYTES, device), share)
        self.kept = [self._backward(*group) for group in self.groups] if fits else []

    def _backward(self, classes: Tensor, packed: FusedPacked) -> Backward:
        return Backward(self.text, self.context_MW[None], self.text.suffix(classes), packed)

    def __call__(self, cotangent_BKD: Tensor) -> Tensor:
        total_BMW = cotangent_BKD.new_zeros(len(cotangent_BKD), *self.context_MW.shape)
        for i, (classes, packed) in enumerate(self.groups):
            backward = self.kept[i] if self.kept else self._backward(classes, packed)
            parts = cotangent_BKD[:, classes].split(max(1, self.rows // packed.cells))
            gradients = [backward(part.transpose(0, 1)[None])[0, self.text.tokens.start :] for part in parts]
            total_BMW += torch.cat(gradients, dim=1).transpose(0, 1)
        return total_BMW


class Jacobian:
    """Like `PullBack`, from the stored derivatives of the text features: each call is one matrix product."""

    def __init__(self, text: FastText, context_MW: Tensor) -> None:
        self.shape = context_MW.shape
        J_KDX = jacobian(text, context_MW).flatten(2)
        D = J_KDX.shape[1]
        # Short sums in half precision: slices of the features are summed separately, then added in full precision.
        self.slices = math.gcd(D, _SLICES) if J_KDX.dtype in kernels.HALF else 1
        self.J_SRX = J_KDX.unflatten(1, (self.slices, -1)).transpose(0, 1).flatten(1, 2)

    def __call__(self, cotangent_BKD: Tensor) -> Tensor:
        scale_B11 = 1.0
        if self.J_SRX.dtype != cotangent_BKD.dtype:
            tiny = torch.finfo(cotangent_BKD.dtype).tiny
            scale_B11 = cotangent_BKD.flatten(1).norm(dim=1).clamp(min=tiny)[:, None, None]
        g_SBR = (cotangent_BKD / scale_B11).unflatten(2, (self.slices, -1)).permute(2, 0, 1, 3).flatten(2)
        gradient_BX = (g_SBR.to(self.J_SRX.dtype) @ self.J_SRX).sum(0, dtype=cotangent_BKD.dtype)
        return gradient_BX.unflatten(1, self.shape) * scale_B11


def jacobian(text: FastText, context_MW: Tensor) -> Tensor:
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
            backward = Backward(text, context_MW.expand(len(classes), -1, -1), suffixes, alone)
            gradients = backward(eye_DD.expand(len(classes), 1, -1, -1))[:, text.tokens.start :]
            out[classes] = gradients.transpose(1, 2).to(dtype)
    return out


class Backward:
    """`(dy (C,K,G,D)) -> (C,P,G,W)`: from gradients at the text features y of packed classes to the prefix.

    With `text.half_gradients`, products and stored activations are float16, and fused kernels run between them. Then
    all texts are in one row, C = 1. Gradients are linear in their input, so each is scaled to a maximum of one, which
    float16 represents well.
    """

    def __init__(self, text: FastText, context_CMW: Tensor, suffix: Tensor, packed: FusedPacked) -> None:
        self.copies, self.prefix, self.half, self.blocks = len(context_CMW), packed.prefix, text.half_gradients, []
        exact, final = text.blocks.blocks, text.blocks.final
        with torch.no_grad():
            x = text.embedded(context_CMW, suffix)
            if self.half and self.copies > 1:  # each text with its own prefix
                packed = FusedPacked(0, packed.lengths_K.new_full((self.copies,), packed.tokens))
                x = x.flatten(0, 1)[None]
            for block, low in zip(exact, text.half.blocks, strict=True):
                rows = packed.ends if block is exact[-1] else slice(None)
                gradients, x = _linearise(block, low if self.half else None, packed, x, rows)
                self.blocks.append(gradients)
            self.final = _NormGradients(x, final, self.half)
            z = text.project(final(x, x.dtype))
            projection = text.tower.text_projection  # a matrix, a linear layer or None
            weight = projection.weight if isinstance(projection, nn.Linear) else getattr(projection, "mT", None)
            self.W_project = weight.half() if self.half and weight is not None else weight
            self.length = z.norm(dim=-1, keepdim=True)[:, :, None].clamp(min=1e-12)
            self.y = F.normalize(z, dim=-1)[:, :, None]

    @torch.no_grad()
    def __call__(self, dy: Tensor) -> Tensor:
        if self.half:
            dy = dy.flatten(0, 1)[None]
        # y = z / |z|:  dz = (dy - y (y . dy)) / |z|
        radial = (dy * self.y).sum(dim=-1, keepdim=True)
        dz = (dy - self.y * radial) / self.length
        if not self.half:
            return self._through(dz)[:, : self.prefix]
        scale_G1 = dz.abs().amax(dim=(0, 1, 3)).clamp(min=torch.finfo(dz.dtype).tiny)[:, None]
        dx = self._through((dz / scale_G1).half())[0].unflatten(0, (self.copies, -1))
        return dx[:, : self.prefix].to(dz.dtype) * scale_G1

    def _through(self, dz: Tensor) -> Tensor:
        dx = self.final(dz if self.W_project is None else dz @ self.W_project)
        for block in reversed(self.blocks):
            dx = block(dx)
        return dx


class _NormGradients:
    """Gradients through a layer norm, y = w n + b with n = s (x - mean x) and s = 1 / sqrt(var x + eps)."""

    def __init__(self, x: Tensor, norm: Norm, half: bool = False) -> None:
        n, s = _standardised(x, norm.eps)
        self.n, self.s, self.w, self.half = n.half() if half else n[:, :, None], s[:, :, None], norm.weight, half

    def __call__(self, dy: Tensor, onto: Tensor | None = None) -> Tensor:
        """The gradients, added to `onto` in place."""
        if self.half:
            return kernels.norm_gradient(dy, onto, self.n, self.s, self.w)
        # dn = w dy,  dx = s (dn - mean dn - n mean(n dn))
        dn = dy * self.w
        along = (dn * self.n).mean(dim=-1, keepdim=True)
        dn -= dn.mean(dim=-1, keepdim=True)
        dx = torch.addcmul(dn, self.n, along, value=-1).mul_(self.s)
        return dx if onto is None else onto.add_(dx)


def _linearise(
    block: Block, low: Block | None, packed: FusedPacked, x: Tensor, rows: slice | Tensor
) -> tuple[_BlockGradients, Tensor]:
    """The gradients of a pre-norm block at x, whose MLP is evaluated at `rows` only, and its output there.

    low: the block in half precision, for gradients in half precision; else None.
    """
    C, N, _ = x.shape
    half = low is not None
    norm1 = _NormGradients(x, block.norm1, half)
    qkv = block.qkv(block.norm1(x, x.dtype)).view(C, N, 3, block.heads, -1)
    mixed, attention = _attention(packed, qkv, half)
    a = (x + block.out(mixed))[:, rows]
    norm2 = _NormGradients(a, block.norm2, half)
    y, slope = _mlp_with_slope(block, a)
    used = low or block
    weights = used.qkv.weight, used.out.weight, used.up.weight, used.down.weight
    slope = slope[:, :, None].half() if half else slope[:, :, None]
    return _BlockGradients(norm1, attention, norm2, slope, weights, rows, N), y


def _standardised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """n = s (x - mean x) and s = 1 / sqrt(var x + eps), (..., 1)."""
    centred = x - x.mean(dim=-1, keepdim=True)
    s = (centred.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return centred * s, s


def _mlp_with_slope(block: Block, a: Tensor) -> tuple[Tensor, Tensor]:
    """a + down(gelu(u)) and gelu'(u), where u = up(norm2(a))."""
    with torch.enable_grad():
        u = block.up(block.norm2(a, a.dtype)).detach().requires_grad_()
        activated = block.gelu(u)
        (slope,) = torch.autograd.grad(activated.sum(), u)
    return a + block.down(activated.detach()), slope


def _attention(packed: FusedPacked, qkv: Tensor, half: bool) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The attention of all tokens at qkv (C,N,3,H,d), and its gradients: (C,N,G,W) -> (C,N,G,3*W)."""
    q, k, v = qkv.unbind(dim=2)
    if not half:
        gradients = AttentionGradients(packed, q, k, v)
        return gradients.output(), gradients
    row = qkv[0].half()

    def through(g: Tensor) -> Tensor:
        return kernels.attention_gradient(g[0], row, packed.tiles, packed.first_N, packed.prefix)[None]

    return packed.attend(q, k, v, False), through


@dataclass(frozen=True)
class _BlockGradients:
    """Gradients through a = x + out(attention(qkv(norm1(x)))), then y = a + down(gelu(up(norm2(a)))) at `rows`."""

    norm1: _NormGradients
    attention: Callable[[Tensor], Tensor]
    norm2: _NormGradients
    slope: Tensor  # gelu'(up(norm2(a)))
    weights: tuple[Tensor, ...]  # of qkv, out, up and down
    rows: slice | Tensor
    tokens: int

    def __call__(self, dy: Tensor) -> Tensor:
        """Overwrites dy."""
        W_qkv, W_out, W_up, W_down = self.weights
        # da = dy + norm2'(((dy W_down) * gelu') W_up)
        da = self.norm2((dy @ W_down).mul_(self.slope) @ W_up, dy)
        # dx = da + norm1'(attention'(da W_out) W_qkv)
        mixed = da @ W_out
        if da.shape[1] < self.tokens:
            da, mixed = self._scatter(da), self._scatter(mixed)
        return self.norm1(self.attention(mixed) @ W_qkv, da)

    def _scatter(self, g: Tensor) -> Tensor:
        """Gradients at `rows` -> gradients at all tokens, zero elsewhere."""
        whole = g.new_zeros(len(g), self.tokens, *g.shape[2:])
        whole[:, self.rows] = g
        return whole


def _rows(device: torch.device) -> int:
    return scale_to_memory(_ROWS.get(device.type, _ROWS["cpu"]), device)
