"""The GPU kernels without a GPU: run by Triton's interpreter, and compiled for the oldest card that takes them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from open_clip.model import CLIP
from support.kernels import interpret
from support.models import tiny
from torch.nn import functional as F

triton = pytest.importorskip("triton")
pytest.importorskip("triton.backends.nvidia")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

import cots  # noqa: E402
from cots.backbones import Norm  # noqa: E402
from cots.calibrators import halvings  # noqa: E402
from cots.calibrators._solver import Fit, Objective, adam, exact, make_loss  # noqa: E402
from cots.fast import _triton as shared  # noqa: E402
from cots.fast import _triton_products as of_products  # noqa: E402
from cots.fast import _triton_tau as of_tau  # noqa: E402
from cots.fast import _triton_views as of_views  # noqa: E402
from cots.fast import kernels as _kernels  # noqa: E402
from cots.fast.backward import Jacobian, _NormGradients  # noqa: E402
from cots.fast.blocks import FusedBlocks  # noqa: E402
from cots.fast.packed import AttentionGradients, FusedPacked  # noqa: E402

WHOLE, REAL = "i32", "fp32"
FLOAT, DOUBLE, HALF, BRAIN, BYTE, LONG = "*fp32", "*fp64", "*fp16", "*bf16", "*u8", "*i64"
INT = "*i32"
TILES = ["tensordesc<bf16[128, 64]>", "tensordesc<bf16[256, 64]>", "tensordesc<bf16[128, 128]>"]
# Kernel, the types of its arguments, and what it is compiled for: small blocks, because large ones only repeat the same
# instructions.
KERNELS = [
    (shared.add_norm, [HALF, BRAIN, FLOAT, FLOAT, BRAIN, WHOLE, REAL], {"HAS_DELTA": True, "BLOCK": 128}),
    (shared.add_norm, [FLOAT, HALF, FLOAT, FLOAT, HALF, WHOLE, REAL], {"HAS_DELTA": True, "BLOCK": 256}),
    (shared.embed_norm, [BRAIN, FLOAT, FLOAT, FLOAT, HALF, WHOLE, WHOLE, REAL], {"BLOCK": 128}),
    (shared.activate, [BRAIN, WHOLE], {"QUICK": False, "BLOCK": 128}),
    (
        shared.prefix_attention,
        [HALF] * 4 + [INT] * 2 + [WHOLE] * 7 + [REAL],
        {"HEAD": 16, "ROWS": 16, "PREFIX": 16, "KEYS": 16},
    ),
    (shared.norm_gradient, [HALF] * 3 + [FLOAT] * 2 + [WHOLE] * 2, {"HAS_ONTO": True, "BLOCK": 128}),
    (
        shared.attention_gradient,
        [HALF] * 3 + [FLOAT, INT, INT] + [WHOLE] * 3 + [REAL],
        {"HEAD": 16, "ROWS": 16, "PREFIX": 16, "AT_ONCE": 8},
    ),
    (
        of_products.linear_activate,
        [BRAIN, *TILES] + [WHOLE] * 3,
        {"QUICK": False, "HAS_BIAS": True, "PROGRAMS": 132, "ROWS": 128, "COLUMNS": 256, "INNER": 64, "GROUP": 8},
    ),
    (of_tau.adam, [FLOAT] * 5 + [WHOLE] * 3 + [REAL] * 2, {"VIEWS": 8, "CLASSES": 32, "WHOLE": True}),
    (of_tau.adam, [FLOAT] * 5 + [WHOLE] * 3 + [REAL] * 2, {"VIEWS": 8, "CLASSES": 32, "WHOLE": False}),
    (of_tau.roots, [FLOAT, FLOAT, DOUBLE, DOUBLE, FLOAT] + [WHOLE] * 3, {"BITS": 2, "CLASSES": 32}),
    (of_tau.losses_on_grid, [DOUBLE] * 3 + [WHOLE] * 2, {"CELLS": 256, "VIEWS": 8, "CLASSES": 32}),
    (
        of_tau.zeros_of_slope,
        [DOUBLE] * 3 + [FLOAT] + [WHOLE] * 3,
        {"BITS": 2, "CELLS": 256, "VIEWS": 8, "CLASSES": 32},
    ),
    (of_tau.losses, [DOUBLE, DOUBLE, FLOAT, DOUBLE] + [WHOLE] * 3, {"VIEWS": 8, "CLASSES": 32}),
    (of_views.resize_first, [BYTE, LONG, LONG, BYTE, DOUBLE] + [LONG] * 3 + [WHOLE] * 5, {"LINES": 8, "SIDE": 32}),
    (
        of_views.resize_second,
        [BYTE, FLOAT, FLOAT, DOUBLE] + [LONG] * 3 + [WHOLE] * 5,
        {"ROWS": 8, "SIDE": 32, "SCALED": True},
    ),
    (
        of_views.resize_second,
        [BYTE, BYTE, BYTE, DOUBLE] + [LONG] * 3 + [WHOLE] * 5,
        {"ROWS": 8, "SIDE": 32, "SCALED": False},
    ),
    (of_views.resize_weak, [BYTE, INT, LONG, FLOAT, FLOAT] + [WHOLE] * 3, {"ROWS": 2, "SIDE": 32}),
    (of_views.move, [BYTE, BYTE, LONG, LONG, DOUBLE, WHOLE, WHOLE], {"HAS_FROM": True, "BLOCK": 128}),
    (of_views.tone_tables, [BYTE, LONG, BYTE, WHOLE, WHOLE], {"BLOCK": 256}),
    (of_views.tone, [BYTE, BYTE, LONG, LONG, BYTE, BYTE, WHOLE, WHOLE], {"BLOCK": 128}),
    (of_views.mix, [BYTE, BYTE] + [FLOAT] * 4 + [WHOLE, WHOLE, REAL], {"CHAINS": 3, "BLOCK": 128}),
]


def source(kernel, types: list[str], chosen: dict) -> ASTSource:
    names = list(inspect.signature(kernel.fn).parameters)
    plain = dict(zip([name for name in names if name not in chosen], types, strict=True))
    try:
        every = {name: plain.get(name, "constexpr") for name in names}
        return ASTSource(fn=kernel, signature=every, constexprs={(names.index(n),): v for n, v in chosen.items()})
    except TypeError:  # Triton 3.2
        return ASTSource(fn=kernel, signature=plain, constants=chosen)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: spec[0].fn.__name__)
def test_kernels_compile(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("triton.runtime.cache.triton_key", lambda: "", raising=False)  # reads all of Triton's files
    options = {"num_warps": 4, "enable_fp_fusion": False}
    capability = 80
    if spec[0] is of_products.linear_activate:
        if of_products.TensorDescriptor is None:
            pytest.skip("This version of Triton has no descriptors of tiles.")
        capability, options = 90, {"num_warps": 8, "num_stages": 4, "enable_fp_fusion": True}
    compiled = triton.compile(source(*spec), target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"]
    if spec[0].fn.__module__ == of_views.__name__:
        # PIL rounds after each step; one rounding for two would lose a level here and there.
        assert "fma.rn.f" not in compiled.asm["ptx"]


def test_every_kernel_is_compiled_here():
    ours = {
        kernel.fn.__name__
        for module in (shared, of_products, of_tau, of_views)
        for name, kernel in vars(module).items()
        if isinstance(kernel, triton.JITFunction) and not name.startswith("_")
    }
    assert ours == {kernel.fn.__name__ for kernel, _, _ in KERNELS}


@pytest.fixture
def interpreter(monkeypatch):
    torch.manual_seed(0)
    if torch.cuda.is_available():
        pytest.skip("tests/test_cuda.py runs the compiled kernels on this GPU")
    interpret(monkeypatch, _kernels)
    interpret(monkeypatch, _kernels, "_triton_tau")
    interpret(monkeypatch, _kernels, "_triton_products")
    monkeypatch.setattr(_kernels, "_AT_ONCE", 2)  # a program loops over all, also over those that are not there


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_add_norm(interpreter, dtype):
    delta = None if dtype is None else torch.randn(3, 5, 48, dtype=dtype)
    x, weight, bias = torch.randn(3, 5, 48), torch.randn(48), torch.randn(48)
    total = x.clone() if delta is None else x + delta
    out = _kernels.add_norm(x, delta, weight, bias, 1e-5, torch.float32)
    torch.testing.assert_close(x, total, rtol=0, atol=0)
    torch.testing.assert_close(out, F.layer_norm(total, (48,), weight, bias, 1e-5), rtol=1e-5, atol=1e-5)


def test_add_norm_saturates_in_float16(interpreter):
    x, delta = torch.randn(2, 3, 5, 48).half()
    weight, bias = torch.randn(48), torch.randn(48)
    x[0, 0, :2], delta[0, 0, :2] = torch.tensor([60_000.0, -60_000.0]), torch.tensor([30_000.0, -30_000.0])
    total = (x.double() + delta.double()).clamp(-65504, 65504)
    out = _kernels.add_norm(x, delta, weight, bias, 1e-5, torch.float32)
    torch.testing.assert_close(x.double(), total, rtol=1e-3, atol=0)
    expected = F.layer_norm(total, (48,), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


def test_embed_norm(interpreter):
    tokens, table = torch.randn(3, 5, 48).bfloat16(), torch.randn(5, 48)
    weight, bias = torch.randn(48), torch.randn(48)
    out = _kernels.embed_norm(tokens, table, weight, bias, 1e-5, torch.float32)
    torch.testing.assert_close(out, F.layer_norm(tokens + table, (48,), weight, bias, 1e-5), rtol=1e-5, atol=1e-5)


def test_activate(interpreter):
    u = torch.randn(10_000)
    torch.testing.assert_close(_kernels.activate(u.clone(), quick=False), F.gelu(u), rtol=1e-5, atol=1e-6)
    expected = u * torch.sigmoid(1.702 * u)
    torch.testing.assert_close(_kernels.activate(u.clone(), quick=True), expected, rtol=1e-5, atol=1e-6)


def test_the_gelu_of_products():
    """The kernel's polynomial, in float64: within a rounding of bfloat16 of the exact GELU."""
    u = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    first, third, fifth, beyond = (
        getattr(of_products, name).value for name in ("_FIRST", "_THIRD", "_FIFTH", "_BEYOND")
    )
    near = u.clamp(-beyond, beyond)
    found = u * (0.5 + 0.5 * torch.tanh(near * (first + third * near**2 + fifth * near**4)))
    assert float((found - F.gelu(u)).abs().max()) < 3.5e-5


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_activate(interpreter, monkeypatch, quick, biased):
    """Tiles that reach beyond the rows and columns, and programs that compute several."""
    if of_products.TensorDescriptor is None:
        pytest.skip("This version of Triton has no descriptors of tiles.")
    monkeypatch.setattr(_kernels, "_PRODUCT", {"ROWS": 32, "COLUMNS": 64, "INNER": 16, "GROUP": 2})
    monkeypatch.setattr(_kernels, "_processors", lambda device: 3)
    interpreted = _kernels._triton_products
    # The interpreter runs no assembly.
    monkeypatch.setattr(interpreted, "_tanh", lambda x: 2 * interpreted.tl.sigmoid(2 * x) - 1)
    x, weight = torch.randn(3, 30, 48), torch.randn(104, 48)
    bias = torch.randn(104) if biased else None
    found = _kernels.linear_activate(x, weight, bias, quick)
    u = F.linear(x, weight, bias)
    expected = u * torch.sigmoid(1.702 * u) if quick else F.gelu(u)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_products_are_left_to_torch_where_the_kernel_does_not_fit(monkeypatch):
    monkeypatch.setattr(_kernels, "usable", lambda tensor: True)
    monkeypatch.setattr(_kernels, "_copies_tiles", lambda device: True)
    x, weight = torch.zeros(8, 197, 64).bfloat16(), torch.zeros(256, 64).bfloat16()
    assert _kernels.multiplies(x, weight)
    assert not _kernels.multiplies(x, weight.float())
    assert not _kernels.multiplies(x, torch.zeros(256 * 64 + 1).bfloat16()[1:].view(256, 64))  # not at 16 bytes
    assert not _kernels.multiplies(x.half(), weight)  # the short tanh is not exact enough
    assert not _kernels.multiplies(x[:2], weight)  # few rows
    assert not _kernels.multiplies(x[:, :, :60], weight[:, :60])  # rows that do not start at 16 bytes
    monkeypatch.setattr(_kernels, "_copies_tiles", lambda device: False)
    assert not _kernels.multiplies(x, weight)


@pytest.mark.parametrize(
    ("prefix", "lengths", "grid"),
    [
        (5, [3, 1, 7, 2, 20, 4, 30], 65535),  # several texts in each of two blocks of rows
        (17, [70, 1], 65535),  # a text longer than a block of keys
        (1, [2], 4),  # two samples by two heads in one launch: three samples take two launches
    ],
)
def test_prefix_attention(interpreter, monkeypatch, prefix, lengths, grid):
    monkeypatch.setattr(_kernels, "_GRID", grid)
    packed = FusedPacked(prefix, torch.tensor(lengths))
    samples = 3 if grid == 4 else 1
    q, k, v = torch.randn(samples, prefix + sum(lengths), 3, 2, 16).half().unbind(2)
    for queries, at_ends in ((q, False), (q[:, packed.ends], True)):
        rows = (packed.row_K, packed.first_K) if at_ends else (packed.row_N, packed.first_N)
        found = _kernels.prefix_attention(queries, k, v, *rows, prefix)
        expected = packed.attend(queries.double(), k.double(), v.double(), at_ends)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("adding", [True, False])
def test_norm_gradient(interpreter, adding):
    x, dy, onto = torch.randn(5, 1, 48), torch.randn(5, 3, 48).half(), torch.randn(5, 3, 48).half()
    norm = Norm(torch.randn(48), torch.randn(48), 1e-5)
    expected = _NormGradients(x.double().transpose(0, 1), norm)(dy.double()[None])[0] + (onto.double() if adding else 0)
    exact = x[:, 0] - x[:, 0].mean(-1, keepdim=True)
    s = (exact.square().mean(-1) + 1e-5).rsqrt()
    given = onto if adding else None
    out = _kernels.norm_gradient(dy, given, (exact * s[:, None]).half(), s, norm.weight)
    torch.testing.assert_close(out.double(), expected, rtol=4e-3, atol=4e-3)
    assert out is (onto if adding else dy)


@pytest.mark.parametrize(
    ("prefix", "lengths", "gradients"),
    # Several texts in a tile, padding and more gradients than a program takes; a text longer than a tile; no shared
    # prefix; a prefix shared by two tiles.
    [(5, [3, 1, 7, 2, 20, 4], 5), (17, [70, 1], 2), (0, [9] * 8, 2), (2, [62, 63, 1], 3)],
)
def test_attention_gradient(interpreter, prefix, lengths, gradients):
    packed = FusedPacked(prefix, torch.tensor(lengths))
    qkv, dout = torch.randn(packed.tokens, 3, 2, 16).half(), torch.randn(packed.tokens, gradients, 32).half()
    found = _kernels.attention_gradient(dout, qkv, packed.tiles, packed.first_N, prefix)
    expected = AttentionGradients(packed, *qkv.double()[None].unbind(2))(dout.double()[None])[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-3 * float(expected.abs().max()))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("views", "classes", "t0", "steps"),
    # The last: more views than a tile holds beside 512 classes, and a NumPy number.
    [(6, 50, 1.0, 15), (1, 2, 0.5, 15), (2100, 20, 1.0, np.int64(2))],
)
def test_adam(interpreter, views, classes, t0, steps):
    zero_shot = 5 * torch.randn(2, views, classes)
    adapted = 1.7 * zero_shot + 0.3 * torch.randn(2, views, classes)
    adapted[0] *= 30
    fit = Fit(t0=t0, steps=steps, lr=np.float32(0.1))
    objective = Objective(adapted, zero_shot, make_loss("l2", 0.1))
    curve, c = objective.curve, objective.target
    start = torch.tensor(t0).log().item()
    tau = _kernels.adam(curve.beyond, curve.runner_up, c.top, c.miss, steps=steps, lr=fit.lr, start=start)
    torch.testing.assert_close(tau, adam(objective, fit), rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("samples", "views", "classes", "dtype"),
    [(3, 6, 20, torch.float32), (1, 2, 1100, torch.float64)],  # the last: more classes than a tile holds
)
def test_exact(interpreter, samples, views, classes, dtype):
    """With basins far apart, saturated, and equal logits, against the plain solver."""
    zero_shot = 5 * torch.randn(samples, views, classes)
    adapted = 1.7 * zero_shot + 0.3 * torch.randn(samples, views, classes)
    adapted[0] *= torch.logspace(-1, 1, views)[:, None]
    adapted[1:2] *= 30
    adapted[2:] = 1.0
    adapted, zero_shot = adapted.to(dtype), zero_shot.to(dtype)
    start = adam(Objective(adapted, zero_shot, make_loss("l2", 0.1)), Fit())
    fit = Fit(solver="exact")
    found = _kernels.exact(adapted, zero_shot, start, bits=halvings(fit, dtype))
    expected = exact(adapted, zero_shot, fit, start)
    torch.testing.assert_close(found, expected, rtol=1.2e-7 if dtype == torch.float32 else 1e-9, atol=0)


def test_a_kernel_runs_on_the_gpu_of_its_first_argument(monkeypatch):
    """Triton uses the thread's current GPU, which in a server with several may be another thread's."""
    current = [0]

    @contextlib.contextmanager
    def device(wanted):
        before, current[0] = current[0], wanted.index
        yield
        current[0] = before

    monkeypatch.setattr("torch.cuda.current_device", lambda: current[0])
    monkeypatch.setattr("torch.cuda.device", device)
    seen = []
    kernel = {(3, 4): lambda first, *rest, **options: seen.append((current[0], rest, options))}
    for index in (0, 1):
        tensor = SimpleNamespace(is_cuda=True, device=torch.device("cuda", index))
        _kernels.launched(kernel, 3, 4)(tensor, 5, SIDE=6)
    assert seen == [(0, (5,), {"SIDE": 6}), (1, (5,), {"SIDE": 6})]
    assert current == [0]


def test_no_grid_is_larger_than_a_gpu_takes(monkeypatch):
    """Few classes make few tokens per sample, so that a batch can exceed the limit of CUDA's second axis."""
    launches = []

    def launched(kernel, *grid):
        return lambda q, k, v, out, *rest, **options: launches.append((grid, len(q), len(k), len(v), len(out)))

    monkeypatch.setattr(_kernels, "launched", launched)
    monkeypatch.setattr(_kernels, "_triton", SimpleNamespace(prefix_attention=None))
    q, k, v = torch.empty(10_000, 9, 3, 8, 16, dtype=torch.float16).unbind(2)
    rows = torch.arange(9, dtype=torch.int32)
    assert _kernels.prefix_attention(q, k, v, rows, rows, 5).shape == (10_000, 9, 128)
    assert sum(samples for _, samples, *_ in launches) == 10_000
    for (first, second), *samples in launches:
        assert first == 1
        assert second == 8 * samples[0] <= 65535
        assert len(set(samples)) == 1


def test_gradients_in_half_precision_are_near_the_exact_ones(interpreter):
    """The pull-back and the Jacobian. Here, because the interpreter keeps Triton from compiling afterwards."""
    names, backbone = ["cat", "red car"], tiny("vit", torch.float64)
    vision = {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8}
    text = {"context_length": 30, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    model = CLIP(4, vision, text, quick_gelu=True).double()  # 4 dimensions: the Jacobian takes 4 gradients per class
    exact = cots.Task(dataclasses.replace(backbone, model=model), names)
    task = cots.Task(dataclasses.replace(backbone, model=copy.deepcopy(model).float()), names)
    tower = task.tower
    tower.half = FusedBlocks(tower.tower.transformer.resblocks, tower.tower.ln_final, torch.float16)
    tower.half_gradients = True
    cotangent = 1e-6 * torch.randn(2, 2, 4, dtype=torch.float64)  # as small as gradients of a confident sample
    expected = exact.pull_back(cotangent)
    for pull in (task.pull_back, Jacobian(tower, task.initial_context)):
        assert (pull(cotangent.float()) - expected).norm() < 5e-3 * expected.norm()
