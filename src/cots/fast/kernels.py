"""Fused kernels for work bound by memory traffic or kernel launches.

They compute residual sum and layer norm in one pass, the activation in place or at the end of a matrix product, the
attention of packed texts without padding, and all steps of the Adam solver. Every caller has an equivalent in plain
torch.
"""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class OnFirstUse:
    """A module that is imported when a name in it is first used: a CPU has no use for Triton, nor time to import it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        self.__dict__[name] = found = getattr(importlib.import_module(self._module), name)
        return found


_triton: Any = OnFirstUse("cots.fast._triton")
_triton_products: Any = OnFirstUse("cots.fast._triton_products")
_triton_tau: Any = OnFirstUse("cots.fast._triton_tau")
HALF = (torch.float16, torch.bfloat16)
_GRID = 65535  # maximum programs along any axis of a grid except the first
_TILE = 2**15  # values per tile of `adam`, and four times those of `exact`
_REGISTERS = 2**13  # values that a program of `adam` keeps in registers
_CELLS = 256  # at least the points of the exact solver's grid, 243
_BASINS = 3  # local minima that it refines
_AT_ONCE = 8  # gradients per program of `attention_gradient`
_PRODUCT = {"ROWS": 128, "COLUMNS": 256, "INNER": 64, "GROUP": 8}  # tiles of `linear_activate`, the fastest of eleven
_PRODUCT_ROWS = 1024  # fewer do not fill a GPU with such tiles


def usable(tensor: Tensor) -> bool:
    """Whether the kernels accept this tensor: on an NVIDIA GPU, without gradients. COTS_KERNELS=0 disables them."""
    return not torch.is_grad_enabled() and available(tensor.device)


@functools.cache
def available(device: torch.device) -> bool:
    """Whether `device` and this build of torch can run Triton kernels."""
    if device.type != "cuda" or os.environ.get("COTS_KERNELS") == "0" or torch.version.cuda is None:
        return False
    if importlib.util.find_spec("triton") is None:  # a build of torch without it, as on Windows
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def launched(kernel: Any, *grid: int) -> Callable[..., None]:
    """A Triton kernel on a grid, on the GPU of its first argument; by itself, Triton uses the thread's current GPU."""

    def run(first: Tensor, *arguments: Any, **options: Any) -> None:
        elsewhere = first.is_cuda and first.device.index != torch.cuda.current_device()
        with torch.cuda.device(first.device) if elsewhere else contextlib.nullcontext():
            kernel[grid](first, *arguments, **options)

    return run


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x += delta in place; the layer norm of the sum in `dtype`. Both contiguous; float16 saturates at 65504."""
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    launched(_triton.add_norm, x.numel() // width)(
        x, x if delta is None else delta, weight, bias, out, width, eps,
        HAS_DELTA=delta is not None, BLOCK=power_of_two(width), num_warps=2,
    )  # fmt: skip
    return out


def embed_norm(tokens: Tensor, table: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The layer norm of tokens (B,N,W) + table (N,W), in `dtype`."""
    width = tokens.shape[-1]
    out = torch.empty(tokens.shape, dtype=dtype, device=tokens.device)
    launched(_triton.embed_norm, tokens.numel() // width)(
        tokens, table, weight, bias, out, width, len(table), eps, BLOCK=power_of_two(width), num_warps=2
    )
    return out


def activate(u: Tensor, quick: bool) -> Tensor:
    """QuickGELU or the exact GELU, in place on a contiguous tensor."""
    launched(_triton.activate, -(-u.numel() // 8192))(u, u.numel(), QUICK=quick, BLOCK=8192, num_warps=8)
    return u


def multiplies(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear_activate` accepts a product: on a Hopper GPU, in bfloat16, of many rows."""
    if not usable(x) or {x.dtype, weight.dtype} != {torch.bfloat16} or x.numel() // x.shape[-1] < _PRODUCT_ROWS:
        return False
    packed = all(size % 8 == 0 for size in weight.shape) and x.is_contiguous() and weight.is_contiguous()
    aligned = x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0
    return packed and aligned and _copies_tiles(x.device)


@functools.cache
def _copies_tiles(device: torch.device) -> bool:
    """Whether GPU and Triton copy tiles by a descriptor; GPUs of other generations have less memory per program."""
    return torch.cuda.get_device_capability(device) == (9, 0) and _triton_products.TensorDescriptor is not None


def linear_activate(x: Tensor, weight: Tensor, bias: Tensor | None, quick: bool) -> Tensor:
    """QuickGELU or GELU of x @ weight^T + bias, rounded once; see `multiplies`."""
    columns, inner = weight.shape
    rows = x.numel() // inner
    out = torch.empty(*x.shape[:-1], columns, dtype=x.dtype, device=x.device)
    tile, programs = _PRODUCT, _processors(x.device)
    tiles = _triton_products.TensorDescriptor.from_tensor
    launched(_triton_products.linear_activate, programs)(
        x if bias is None else bias,
        tiles(x.view(rows, inner), [tile["ROWS"], tile["INNER"]]),
        tiles(weight, [tile["COLUMNS"], tile["INNER"]]),
        tiles(out.view(rows, columns), [tile["ROWS"], tile["COLUMNS"] // 2]),
        rows, columns, inner,
        QUICK=quick, HAS_BIAS=bias is not None, PROGRAMS=programs, **tile, num_warps=8, num_stages=4,
    )  # fmt: skip
    return out


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def prefix_attention(q: Tensor, k: Tensor, v: Tensor, row: Tensor, first: Tensor, prefix: int) -> Tensor:
    """Attention of packed texts that share a prefix: (B,R,H,d) over (B,N,H,d) -> (B,R,H*d).

    Query r belongs to token row[r], whose text begins at token first[r]; both ascending, int32. It attends to tokens
    0..prefix-1 and first[r]..row[r], none after itself. q, k and v may be slices of one packed projection.
    """
    B, R, H, width = q.shape
    out = torch.empty(B, R, H * width, dtype=q.dtype, device=q.device)
    for begin in range(0, B, _GRID // H):
        some = slice(begin, begin + _GRID // H)
        launched(_triton.prefix_attention, -(-R // 64), len(out[some]) * H)(
            q[some], k[some], v[some], out[some], row, first, R, prefix, H,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), width**-0.5,
            HEAD=width, ROWS=64, PREFIX=max(16, power_of_two(prefix)), KEYS=32, num_warps=4,
        )  # fmt: skip
    return out


def norm_gradient(dy: Tensor, onto: Tensor | None, n: Tensor, s: Tensor, weight: Tensor) -> Tensor:
    """Gradients dy (...,G,W) through the norm with output w n + b, n = s (x - mean x), added to `onto` in place."""
    width = dy.shape[-1]
    launched(_triton.norm_gradient, dy.numel() // width)(
        dy, dy if onto is None else onto, n, s, weight, dy.shape[-2], width,
        HAS_ONTO=onto is not None, BLOCK=power_of_two(width), num_warps=2,
    )  # fmt: skip
    return dy if onto is None else onto


def attention_gradient(dout: Tensor, qkv: Tensor, tiles: Tensor, first: Tensor, prefix: int) -> Tensor:
    """Gradients (N,G,H*d) through the attention of packed texts at qkv (N,3,H,d) -> (N,G,3*H*d), all contiguous.

    tiles (T,R): the tokens of whole texts, padded with -1; first (N,): the start of each token's own text.
    """
    N, G, W = dout.shape
    H, width = qkv.shape[2:]
    out = torch.empty(N, G, 3 * W, dtype=dout.dtype, device=dout.device)
    parts = torch.empty(len(tiles), G, 2, H, prefix, width, device=dout.device)
    launched(_triton.attention_gradient, len(tiles), H, -(-G // _AT_ONCE))(
        dout, qkv, out, parts, tiles, first, G, prefix, H, width**-0.5,
        HEAD=width, ROWS=tiles.shape[1], PREFIX=max(16, power_of_two(prefix)), AT_ONCE=_AT_ONCE, num_warps=4,
    )  # fmt: skip
    if prefix:
        of_keys_and_values = parts.sum(0).permute(3, 0, 1, 2, 4)  # (P,G,2,H,d)
        out[:prefix].unflatten(2, (3, H, width))[:, :, 1:] = of_keys_and_values
    return out


def adam(
    beyond: Tensor, runner_up: Tensor, target_top: Tensor, target_miss: Tensor, *, steps: int, lr: float, start: float
) -> Tensor:
    """tau (B,) after `steps` steps of Adam on theta = log tau from `start`, for the squared loss; inputs float32.

    beyond (B,n,K): gaps to the runner-up, huge for the top class; runner_up, target_top, target_miss (B,n).
    """
    B, n, K = beyond.shape
    tau = torch.empty(B, dtype=beyond.dtype, device=beyond.device)
    parts = [t.contiguous() for t in (beyond, runner_up, target_top, target_miss)]
    views = power_of_two(n)
    classes = max(32, power_of_two(K))
    whole = views * classes <= _REGISTERS
    if not whole:
        classes = max(1, min(512, _TILE // views, classes))
    # Triton rejects NumPy numbers.
    launched(_triton_tau.adam, B)(
        *parts, tau, n, K, int(steps), float(lr), float(start), VIEWS=views, CLASSES=classes, WHOLE=whole, num_warps=4
    )
    return tau


def exact(adapted: Tensor, zero_shot: Tensor, adam: Tensor, *, bits: tuple[int, int]) -> Tensor:
    """The best tau (B,) with |log tau| <= 12 for the squared loss, in the precision of `adam`.

    adapted, zero_shot (B,n,K): logits. adam (B,): a candidate. bits: halvings of the intervals around roots and
    around zeros of the slope.
    """
    B, n, K = adapted.shape
    candidates = 2 + 1 + _BASINS + n  # 1 and adam's; of the grid; its minima; roots
    tau = torch.ones(B, candidates, dtype=adam.dtype, device=adam.device)
    tau[:, 1] = adam
    beyond, curve = (torch.empty(B, n, width, dtype=torch.float64, device=adam.device) for width in (K, 4))
    columns = min(1024, max(32, power_of_two(K)))
    launched(_triton_tau.roots, B * n)(
        adapted.contiguous(), zero_shot.contiguous(), beyond, curve, tau, n, K, candidates,
        BITS=bits[0], CLASSES=columns, num_warps=4,
    )  # fmt: skip
    rows = power_of_two(n)
    tile = {"VIEWS": rows, "CLASSES": max(1, min(columns, _TILE // 4 // rows)), "num_warps": 8}
    on_grid = torch.empty(B, _CELLS, dtype=torch.float64, device=adam.device)
    launched(_triton_tau.losses_on_grid, B, _CELLS)(beyond, curve, on_grid, n, K, CELLS=_CELLS, **tile)
    launched(_triton_tau.zeros_of_slope, B, 1 + _BASINS)(
        beyond, curve, on_grid, tau, n, K, candidates, BITS=bits[1], CELLS=_CELLS, **tile
    )
    loss = torch.empty(B, candidates, dtype=torch.float64, device=adam.device)
    launched(_triton_tau.losses, B, candidates)(beyond, curve, tau, loss, n, K, candidates, **tile)
    distance = torch.where(loss == loss.amin(1, keepdim=True), tau.log().abs(), torch.inf)
    return tau.gather(1, distance.argmin(1, keepdim=True))[:, 0]


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()
