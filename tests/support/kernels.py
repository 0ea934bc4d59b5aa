"""GPU kernels without a GPU: Triton's interpreter, inside the test process."""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
import torch


def interpret(monkeypatch: pytest.MonkeyPatch, module: Any, kernels: str = "_triton") -> None:
    """Let `module` call interpreted copies of the kernels that it has under that name, for one test."""
    pytest.importorskip("triton")
    from cots.fast import _triton

    try:
        _interpreted(_triton.__file__).activate[(1,)](torch.zeros(16), 16, QUICK=True, BLOCK=16)
    except TypeError as error:  # only 0-dimensional arrays can be converted to Python scalars
        pytest.skip(f"The interpreter of this Triton does not support this NumPy: {error}")
    monkeypatch.setattr(module, kernels, _interpreted(getattr(module, kernels).__file__))


@functools.cache
def _interpreted(file: str) -> ModuleType:
    """Triton chooses between compiler and interpreter when it is imported, so a second copy of it is imported."""
    spec = importlib.util.spec_from_file_location("interpreted", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    compiled = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "triton" and not n.startswith("triton._C")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name in compiled:
            patch.delitem(sys.modules, name)
        spec.loader.exec_module(module)
        _patch_language_once(sys.modules["triton.runtime.interpreter"])
    return module


def _patch_language_once(interpreter: Any) -> None:
    """Replace the functions of the language once per launch and module, not at each call of one: all are searched."""
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[str] = set()

    def launch_anew(executor: Any, *arguments: Any, **options: Any) -> None:
        patched.clear()  # the launch before has restored them
        launch(executor, *arguments, **options)

    def patch_once(function: Any) -> Any:
        if function.__module__ in patched:
            return None
        patched.add(function.__module__)
        return patch(function)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_anew
