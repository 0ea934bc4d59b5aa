"""What a prompt is made of: class names, a template or a learned context; its token ids.

Learned contexts come from CoOp checkpoints, which contain pickled objects; none of them is executed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._arrays import check_finite
from .._checkpoints import read_weights
from .._errors import InputError
from ..backbones import Backbone
from ..classes import MAX_NAME, Classes, read_classes
from ._descriptions import Attributes, Descriptions, read_attributes, read_descriptions

DEFAULT_TEMPLATE = "a photo of a {}."

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
    if isinstance(template, str) or callable(template):
        template = [template]
    texts: list[str] = []
    for one in template:
        texts.append(one("{}") if callable(one) else one)
    if not texts:
        raise InputError(f"template is empty; use one such as {DEFAULT_TEMPLATE!r}.")
    if len(texts) > 1 and context is not None:
        raise InputError(f"A context replaces the words of one template, not of {len(texts)}; pass one template.")
    return tuple(texts)


def check_prompts(
    classes: Classes,
    template: Template,
    context: Tensor | str | Path | None,
    descriptions: Descriptions | None = None,
    attributes: Attributes | None = None,
) -> tuple[str, ...]:
    """Refuse what no model accepts, before one is loaded; return the names as used in a prompt."""
    names = read_classes(classes)
    if descriptions is not None:
        read_descriptions(descriptions, names)
    if attributes is not None:
        read_attributes(attributes, names)
    templates = template_list(template, context)
    for one in templates:
        split_template(one)
    if context is not None:
        _refuse_unused_words(templates[0])
        read_context(context)
    return names


def _refuse_unused_words(template: str) -> None:
    """Refuse words of a template that a context replaces, unless they are the default."""
    before, after = split_template(template)
    if before not in ("", split_template(DEFAULT_TEMPLATE)[0]):
        problem = f"A context replaces the words before {{}}, so {before!r} has no effect"
        raise InputError(f"{problem}. Omit template, or write {'{}' + after!r}.")


def split_template(template: str) -> tuple[str, str]:
    """The text before and after the one `{}`."""
    if len(template) > MAX_NAME:
        raise InputError(f"The template has {len(template)} characters, more than {MAX_NAME}. Shorten it.")
    before, *after = template.split("{}")
    if len(after) != 1 or set("{}") & set(template.replace("{}", "")):
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
    if not len(differs):
        return first.numel()
    return int(differs[0])


def read_context(source: Tensor | str | Path) -> Tensor:
    """Context vectors `(M, W)` from a tensor or from a CoOp checkpoint (its `state_dict["ctx"]`).

    Checkpoints are read without executing anything in them; `.safetensors` files need a tensor named `ctx`.
    """
    if not isinstance(source, Tensor):
        source = _read_checkpoint(Path(source).expanduser())
    context = source.detach()
    if context.ndim != 2 or 0 in context.shape:
        problem = f"The context must have shape (M, W), not {tuple(context.shape)}."
        if context.ndim == 3:
            problem += " One context per class (CoOp's CSC) is not supported."
        raise InputError(problem)
    check_finite(context, "context")
    return context.to(torch.promote_types(context.dtype, torch.float32))


def _read_checkpoint(file: Path) -> Tensor:
    if not file.is_file():
        raise InputError(f"The context file {file} does not exist.")
    try:
        tensors = read_weights(file)
    except ValueError as error:
        raise InputError(
            f"{file} cannot be read as a checkpoint ({error}). Pass CoOp's "
            "prompt_learner/model.pth.tar-*, or save only its context: "
            "safetensors.torch.save_file({'ctx': ctx}, 'ctx.safetensors')."
        ) from None
    for key in ("ctx", "prompt_learner.ctx"):
        if key in tensors:
            return tensors[key]
    raise InputError(f"{file} has no tensor 'ctx' (or state_dict['ctx']). Pass CoOp's prompt_learner/model.pth.tar-*.")
