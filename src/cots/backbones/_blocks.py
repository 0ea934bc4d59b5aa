"""The forward pass of open_clip's pre-norm transformer blocks.

A tower's output is one row per image (the class token) or per text (the end token), so the last block computes queries
and MLP for these rows only. Matrix products can have another precision than norms and residual stream, which keep that
of the weights.

Shape letters: B sequences, N tokens, R output rows, W width, H heads.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# (q (B,R,H,d), k (B,N,H,d), v (B,N,H,d), whether q has only the output rows) -> (B,R,W)
Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]

_PARTS = {"ln_1", "attn", "ls_1", "ln_2", "mlp", "ls_2"}
_MLP = ["c_fc", "gelu", "c_proj"]
_CLOSE = 1e-2  # relative error of the same computation, on GPUs with rounded products; another one differs by more


@dataclass(frozen=True)
class Norm:
    """A layer norm in the precision of its weights."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> Self:
        return cls(module.weight, module.bias, module.eps)

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps).to(dtype)


class Linear:
    """A linear map in the precision of the matrix products, with a layer scale folded in."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, scale: nn.Module | None = None) -> None:
        if isinstance(gamma := getattr(scale, "gamma", None), Tensor):
            weight, bias = weight * gamma[:, None], None if bias is None else bias * gamma
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)

    def __call__(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])


class Block:
    """The parts of one block, with matrix products in `dtype`."""

    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        attention, mlp = block.attn, block.mlp
        self.norm1, self.norm2 = Norm.of(block.ln_1), Norm.of(block.ln_2)
        self.qkv = Linear(attention.in_proj_weight, attention.in_proj_bias, dtype)
        self.out = Linear(attention.out_proj.weight, attention.out_proj.bias, dtype, block.ls_1)
        self.up = Linear(mlp.c_fc.weight, mlp.c_fc.bias, dtype)
        self.down = Linear(mlp.c_proj.weight, mlp.c_proj.bias, dtype, block.ls_2)
        self.gelu: nn.Module = mlp.gelu
        self.heads: int = attention.num_heads


class Blocks:
    """The blocks of a tower and its final norm, with matrix products in `dtype`."""

    def __init__(self, blocks: nn.ModuleList, final: nn.LayerNorm, dtype: torch.dtype) -> None:
        self.blocks = [Block(block, dtype) for block in blocks]
        self.final = Norm.of(final)
        self.dtype = dtype

    @staticmethod
    def supports(blocks: Any) -> bool:
        """Whether these are plain pre-norm blocks with self-attention, whatever their classes are called.

        All must have the parts of such a block, and the first of each class must compute what `run` does.
        """
        if not isinstance(blocks, nn.ModuleList) or not len(blocks) or not all(map(_has_parts, blocks)):
            return False
        first_of_class: dict[type, nn.Module] = {}
        for block in blocks:
            first_of_class.setdefault(type(block), block)
        return all(map(_is_reproduced, first_of_class.values()))

    def run(self, x: Tensor, attend: Attention, rows: slice | Tensor) -> Tensor:
        """Residual stream x (B,N,W) -> final norm of its `rows` after the last block (B,R,W); may overwrite x."""
        x, h = self.add_norm(x, None, self.blocks[0].norm1)
        for block, following in zip(self.blocks, self.blocks[1:], strict=False):
            q, k, v = self._heads(block.qkv(h), block.heads, 3)
            x, h = self.add_norm(x, block.out(attend(q, k, v, False)), block.norm2)
            x, h = self.add_norm(x, self.mlp(block, h), following.norm1)
        last, W = self.blocks[-1], x.shape[-1]
        k, v = self._heads(last.qkv(h, slice(W, None)), last.heads, 2)
        (q,) = self._heads(last.qkv(h[:, rows], slice(W)), last.heads, 1)
        x = x[:, rows].contiguous()
        x, h = self.add_norm(x, last.out(attend(q, k, v, True)), last.norm2)
        return self.last_norm(x, self.mlp(last, h))

    def mlp(self, block: Block, h: Tensor) -> Tensor:
        return block.down(block.gelu(block.up(h)))

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        """x + delta, and its norm."""
        x = x if delta is None else x + delta
        return x, norm(x, self.dtype)

    def last_norm(self, x: Tensor, delta: Tensor) -> Tensor:
        """The final norm of x + delta, in the precision of x."""
        x = x + delta
        return self.final(x, x.dtype)

    @staticmethod
    def _heads(packed: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
        """(B,N,parts*W) -> `parts` tensors (B,N,H,W/H)"""
        B, N, width = packed.shape
        return packed.view(B, N, parts, heads, width // parts // heads).unbind(dim=2)


def full_attention(q: Tensor, k: Tensor, v: Tensor, at_rows: bool) -> Tensor:
    """Attention in which every row sees every token."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).flatten(2)


def with_child(module: nn.Module, path: str, child: nn.Module) -> Any:
    """A copy of a module that shares its parameters and children, except for the one at `path`, such as "a.b"."""
    name, _, rest = path.partition(".")
    twin = copy.copy(module)
    new = with_child(module.get_submodule(name), rest, child) if rest else child
    twin.__dict__["_modules"] = {**module._modules, name: new}
    return twin


def same_values(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are results of the same computation, up to rounding."""
    if found.shape != expected.shape:
        return False
    return float((found - expected).norm()) <= _CLOSE * float(expected.norm())


def _has_parts(block: Any) -> bool:
    """Whether a block has exactly the parts that `Block` reads."""
    parts = block._modules
    if set(parts) != _PARTS:
        return False
    attention, mlp = block.attn, block.mlp
    return (
        isinstance(attention, nn.MultiheadAttention)
        and attention.in_proj_weight is not None
        and attention.bias_k is None
        and not attention.add_zero_attn
        and isinstance(mlp, nn.Sequential)
        and list(mlp._modules) == _MLP
        and not list(block.mlp.gelu.parameters())
        and all(isinstance(norm, nn.LayerNorm) and norm.elementwise_affine for norm in (block.ln_1, block.ln_2))
    )


@torch.no_grad()
def _is_reproduced(block: Any) -> bool:
    """Whether `Blocks` computes the output of this block, tried on three tokens."""
    weight = block.ln_1.weight
    x = torch.arange(3 * len(weight), dtype=weight.dtype, device=weight.device).sin().reshape(1, 3, -1)
    first = block.attn.batch_first
    try:
        own = block(x) if first else block(x.transpose(0, 1)).transpose(0, 1)
        ours = Blocks(nn.ModuleList([block]), block.ln_1, weight.dtype).run(x.clone(), full_attention, slice(None))
    except (RuntimeError, TypeError, ValueError):  # another signature, or shapes that do not fit
        return False
    return same_values(ours, block.ln_1(own))
