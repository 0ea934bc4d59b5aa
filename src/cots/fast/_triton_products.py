# type: ignore  (Triton's own language, not Python)
"""A matrix product with the activation after it, for GPUs that copy tiles by themselves; see `cots.fast.kernels`."""

import triton
import triton.language as tl

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # before Triton 3.4
    TensorDescriptor = None

# The exact GELU is u (1 + tanh(angle)) / 2, angle of degree 5 in u, error 3e-5; beyond 5 the tanh is 1, up to 6e-7.
_FIRST, _THIRD, _FIFTH, _BEYOND = (tl.constexpr(value) for value in (0.797506499, 0.0370069063, -0.000351721495, 5.0))


@triton.jit
def _tanh(x):
    """In one instruction, with an error of 2^-11."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def linear_activate(
    bias_ptr, x, weight, out, rows, columns, inner,
    QUICK: tl.constexpr, HAS_BIAS: tl.constexpr, PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out (rows,columns) = act(x (rows,inner) @ weight (columns,inner)^T + bias), each a descriptor of tiles.

    A program computes one tile of `out` after the other, and the copies for the next one run while it finishes one.
    GROUP rows of tiles are taken together, so that their inputs stay in the cache. A tile is stored in two halves,
    which takes less memory per program.
    """
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    for tile in tl.range(tl.program_id(0), down * across, PROGRAMS, flatten=True):
        first = tile // (GROUP * across) * GROUP
        high = tl.minimum(down - first, GROUP)
        row = (first + tile % (GROUP * across) % high) * ROWS
        column = tile % (GROUP * across) // high * COLUMNS
        u = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, inner, INNER):
            u = tl.dot(x.load([row, k]), weight.load([column, k]).T, u)
        if HAS_BIAS:
            place = column + tl.arange(0, COLUMNS)
            u += tl.load(bias_ptr + place, mask=place < columns, other=0.0).to(tl.float32)[None, :]
        if QUICK:
            angle = 0.851 * u
        else:
            near = tl.minimum(tl.maximum(u, -_BEYOND), _BEYOND)
            angle = near * (_FIRST + near * near * (_THIRD + near * near * _FIFTH))
        u *= 0.5 + 0.5 * _tanh(angle)
        halves = tl.permute(tl.reshape(u, (ROWS, 2, COLUMNS // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        out.store([row, column], left.to(out.dtype))
        out.store([row, column + COLUMNS // 2], right.to(out.dtype))
