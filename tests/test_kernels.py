"""The GPU kernels without a GPU: run by Triton's interpreter, and compiled for the oldest card that takes them."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("triton.backends.nvidia")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from cots import _kernels  # noqa: E402
from cots import _triton as shared  # noqa: E402
from cots.views import _triton as of_views  # noqa: E402

WHOLE, REAL = "i32", "fp32"
FLOAT, DOUBLE, HALF, BRAIN, BYTE, LONG = "*fp32", "*fp64", "*fp16", "*bf16", "*u8", "*i64"
INT = "*i32"
# Kernel, the types of its arguments, and what it is compiled for.
KERNELS = [
    (shared.add_norm, [HALF, BRAIN, FLOAT, FLOAT, BRAIN, WHOLE, REAL], {"HAS_DELTA": True, "BLOCK": 1024}),
    (shared.add_norm, [FLOAT, HALF, FLOAT, FLOAT, HALF, WHOLE, REAL], {"HAS_DELTA": True, "BLOCK": 512}),
    (shared.embed_norm, [BRAIN, FLOAT, FLOAT, FLOAT, HALF, WHOLE, WHOLE, REAL], {"BLOCK": 1024}),
    (shared.activate, [BRAIN, WHOLE], {"QUICK": False, "BLOCK": 1024}),
    (
        shared.prefix_attention,
        [HALF] * 4 + [INT] * 2 + [WHOLE] * 7 + [REAL],
        {"HEAD": 64, "ROWS": 64, "PREFIX": 16, "KEYS": 64},
    ),
    (shared.adam, [FLOAT] * 5 + [WHOLE] * 3 + [REAL] * 2, {"VIEWS": 8, "CLASSES": 256}),
    (of_views.resize_first, [BYTE, DOUBLE, BYTE] + [WHOLE] * 7, {"LINES": 8, "SIDE": 256}),
    (
        of_views.resize_second,
        [BYTE, DOUBLE, LONG, FLOAT, FLOAT] + [WHOLE] * 6,
        {"ROWS": 8, "SIDE": 256, "SCALED": True},
    ),
    (of_views.scale_levels, [BYTE, FLOAT, FLOAT, WHOLE], {"BLOCK": 1024}),
    (of_views.move, [BYTE, BYTE, LONG, LONG, DOUBLE, WHOLE, WHOLE], {"HAS_FROM": True, "BLOCK": 1024}),
    (of_views.tone_tables, [BYTE, LONG, BYTE, WHOLE, WHOLE], {"BLOCK": 4096}),
    (of_views.tone, [BYTE, BYTE, LONG, LONG, BYTE, BYTE, WHOLE, WHOLE], {"BLOCK": 1024}),
    (of_views.mix, [BYTE, BYTE] + [FLOAT] * 4 + [WHOLE, WHOLE, REAL], {"CHAINS": 3, "BLOCK": 1024}),
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
    options = {"num_warps": 4, "enable_fp_fusion": False}
    compiled = triton.compile(source(*spec), target=GPUTarget("cuda", 80, 32), options=options)
    assert compiled.asm["cubin"]
    if spec[0].fn.__module__ == of_views.__name__:
        # PIL rounds after each step; one rounding for two would lose a level here and there.
        assert "fma.rn.f" not in compiled.asm["ptx"]


def test_every_kernel_is_compiled_here():
    ours = {
        kernel.fn.__name__
        for module in (shared, of_views)
        for name, kernel in vars(module).items()
        if isinstance(kernel, triton.JITFunction) and not name.startswith("_")
    }
    assert ours == {kernel.fn.__name__ for kernel, _, _ in KERNELS}


def test_kernels_in_tritons_interpreter():
    """Each against plain torch or PIL; the interpreter has to be chosen before Triton is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).parent / "support" / "kernels_interpreted.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    if "only 0-dimensional arrays can be converted to Python scalars" in done.stderr:
        pytest.skip("the interpreter of this Triton does not go with this NumPy: update Triton or take NumPy below 2.4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["add_norm", "embed_norm", "activate", "attention", "adam"]


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
