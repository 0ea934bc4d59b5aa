"""Learned contexts from CoOp checkpoints, which contain pickled objects; none of them is executed."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, _utils

from .._arrays import check_finite
from .._errors import InputError

# Functions that rebuild the tensors of a checkpoint. Everything else becomes a stand-in.
_TENSORS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")


def read_context(source: Tensor | str | Path) -> Tensor:
    """Context vectors `(M, W)` from a tensor or from a CoOp checkpoint (its `state_dict["ctx"]`).

    Checkpoints are read without executing anything in them; `.safetensors` files need a tensor named `ctx`.
    """
    given = source if isinstance(source, Tensor) else _read_checkpoint(Path(source).expanduser())
    context = given.detach()
    if context.ndim != 2 or 0 in context.shape:
        hint = " One context per class (CoOp's CSC) is not supported." if context.ndim == 3 else ""
        raise InputError(f"The context must have shape (M, W), not {tuple(context.shape)}.{hint}")
    check_finite(context, "context")
    return context.float() if context.dtype != torch.float64 else context


def _read_checkpoint(file: Path) -> Tensor:
    if not file.is_file():
        raise InputError(f"The context file {file} does not exist.")
    try:
        data: Any = load_file(file) if file.suffix == ".safetensors" else _load(file)
    except MemoryError:
        raise
    except Exception as error:  # unpickling other bytes raises nearly anything
        lines = re.sub(r"\x1b\[[\d;]*m", "", str(error)).splitlines()
        # Unpickling other bytes fails with a bare number, such as KeyError(101).
        reason = lines[0].rstrip(".") if lines and re.search(r"[a-z]{3}", lines[0]) else "not a file of torch.save"
        raise InputError(
            f"{file} cannot be read as a checkpoint ({reason}). Pass CoOp's "
            "prompt_learner/model.pth.tar-*, or save only its context: "
            "safetensors.torch.save_file({'ctx': ctx}, 'ctx.safetensors')."
        ) from None
    state = data.get("state_dict", data) if isinstance(data, dict) else {}
    for key in ("ctx", "prompt_learner.ctx"):
        if isinstance(state, dict) and isinstance(state.get(key), Tensor):
            return state[key]
    raise InputError(f"{file} has no tensor 'ctx' (or state_dict['ctx']); is it a CoOp prompt-learner checkpoint?")


def _load(file: Path) -> Any:
    """The checkpoint with its tensors, numbers, strings and containers; other objects are inert."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # it contains a scheduler or numpy scalars, as Dassl saves them, or worse
        return torch.load(file, map_location="cpu", weights_only=False, pickle_module=_INERT_PICKLE)


class _Inert:
    """Stand-in for any class or function named in a checkpoint: can be called, filled and set, and does nothing."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self

    append = extend = add = __setitem__ = __setstate__ = __call__  # the methods pickle fills an object with


class _Rebuild:
    """One of torch's functions, wrapped so that a checkpoint can call it but not change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)

    def __setstate__(self, state: Any) -> None:
        pass


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == "torch._utils" and global_name in _TENSORS:
            return _Rebuild(getattr(_utils, global_name))
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return OrderedDict
        return _Inert


def _load_inert(stream: Any, **options: Any) -> Any:
    return _InertUnpickler(stream, **options).load()


_INERT_PICKLE = SimpleNamespace(__name__="inert pickle", Unpickler=_InertUnpickler, load=_load_inert)
