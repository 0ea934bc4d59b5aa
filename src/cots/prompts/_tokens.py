"""What a prompt is made of: class names, a template or a learned context; its token ids.

Learned contexts come from CoOp checkpoints, which contain pickled objects; none of them is executed.
"""

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, _utils

from .._arrays import check_finite
from .._errors import InputError
from ..backbones import Backbone
from ._classes import MAX_NAME, clean_names

DEFAULT_TEMPLATE = "a photo of a {}."

# Functions that rebuild the tensors of a checkpoint. Everything else becomes a stand-in.
_TENSORS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")

Template = str | Callable[[str], str] | Sequence[str | Callable[[str], str]]


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """Token ids of all prompts: `start` special tokens, `context` shared tokens, then the tokens of the class.

    ids_KL: padded ids, K classes by L positions; ids_KL[:, start:start + context] are the tunable positions.
    """

    ids_KL: Tensor
    start: int
    context: int

    @property
    def prefix(self) -> int:
        """Number of positions that are the same for every class."""
        return self.start + self.context


def template_list(template: Template, context: Any = None) -> tuple[str, ...]:
    """The templates as strings; a function, as in open_clip's lists, is called with {} in place of a name."""
    several = [template] if isinstance(template, str) or callable(template) else list(template)
    if not several:
        raise InputError(f"template is empty; use one such as {DEFAULT_TEMPLATE!r}.")
    if len(several) > 1 and context is not None:
        raise InputError(f"A context replaces the words of one template, not of {len(several)}; pass one template.")
    return tuple(one("{}") if callable(one) else one for one in several)


def check_prompts(classes: Sequence[str], template: Template, context: Tensor | str | Path | None) -> tuple[str, ...]:
    """Refuse what no model accepts, before one is loaded; return the names as used in a prompt."""
    for one in template_list(template, context):
        split_template(one)
    if context is not None:
        read_context(context)
    return clean_names(classes)


def split_template(template: str) -> tuple[str, str]:
    """The text before and after the one `{}`."""
    if len(template) > MAX_NAME:
        raise InputError(f"The template has {len(template)} characters, more than {MAX_NAME}. Shorten it.")
    before, *after = template.split("{}")
    if len(after) != 1 or any(brace in before + after[0] for brace in "{}"):
        raise InputError(f"template {template!r} must contain {{}} exactly once, where the class name goes.")
    return " ".join(before.split()), after[0]


def tokenize_prompts(backbone: Backbone, names: Sequence[str], template: str) -> PromptTokens:
    """Tokenize `template` with each name filled in, and find the positions of the template's own words."""
    before, after = split_template(template)
    prompts = [f"{before} {name}{after}".strip() for name in names]
    _check_lengths(backbone, names, prompts)
    ids_KL = backbone.tokenize(prompts)
    empty, opening = backbone.tokenize([""])[0], backbone.tokenize([before])[0]
    start = _common(empty, ids_KL[0])  # start-of-text, where the tokenizer has one
    shared = [_common(opening, row) for row in ids_KL]
    if len(set(shared)) > 1:
        odd = names[shared.index(min(shared))]
        raise InputError(
            f"In template {template!r} the words before {{}} merge with the name {odd!r} when tokenized. "
            "Put a space before {} and end the opening with a whole word."
        )
    return PromptTokens(ids_KL=ids_KL, start=start, context=shared[0] - start)


def _check_lengths(backbone: Backbone, names: Sequence[str], prompts: Sequence[str]) -> None:
    """Refuse long prompts: tokenizers truncate them silently, which would give two long names the same features."""
    length = backbone.context_length
    longer = backbone.tokenize([*prompts, ""], context_length=2 * length)
    used = (longer[:-1] != longer[-1, -1]).sum(dim=1)  # the last token of the empty text is padding
    worst = int(used.argmax())
    if int(used[worst]) > length:
        raise InputError(
            f"The prompt for class {worst} ({names[worst][:60]!r}) needs {int(used[worst])} tokens or more, but "
            f"{backbone.name} takes {length}. Shorten the name or the template."
        )


def _common(first: Tensor, second: Tensor) -> int:
    """Length of the common prefix of two rows of ids."""
    differs = (first != second).nonzero()
    return int(differs[0]) if len(differs) else first.numel()


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
