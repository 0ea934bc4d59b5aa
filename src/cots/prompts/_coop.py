"""CoOp checkpoints: learnt context vectors in place of a template's words."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .._errors import InputError


def read_context(source: Tensor | str | Path) -> Tensor:
    """Context vectors `(M, W)` from a tensor or from a CoOp checkpoint (its `state_dict["ctx"]`).

    Checkpoints are read without executing anything in them; `.safetensors` files need a tensor named `ctx`.
    """
    context = source.detach() if isinstance(source, Tensor) else _read_file(Path(source).expanduser())
    if context.ndim == 3:
        raise InputError(
            f"The context has shape {tuple(context.shape)}: one context per class (CoOp's CSC). "
            "cots tunes one context shared by all classes; use a checkpoint with a unified context (M, W)."
        )
    if context.ndim != 2 or 0 in context.shape:
        raise InputError(f"The context must have shape (M, W), not {tuple(context.shape)}.")
    return context.float() if context.dtype != torch.float64 else context


def _read_file(file: Path) -> Tensor:
    if not file.is_file():
        raise InputError(f"The context file {file} does not exist.")
    try:
        data: Any = load_file(file) if file.suffix == ".safetensors" else _torch_load(file)
    except (RuntimeError, OSError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{file} cannot be read safely as a checkpoint: {str(error).splitlines()[0]} "
            "Save its tensor alone: safetensors.torch.save_file({'ctx': state_dict['ctx']}, 'ctx.safetensors')."
        ) from None
    state = data.get("state_dict", data) if isinstance(data, dict) else {}
    for key in ("ctx", "prompt_learner.ctx"):
        if isinstance(state.get(key), Tensor):
            return state[key]
    raise InputError(f"{file} holds no tensor 'ctx' (or state_dict['ctx']); is it a CoOp prompt-learner checkpoint?")


def _torch_load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)
