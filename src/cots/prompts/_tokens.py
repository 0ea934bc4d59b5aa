"""From class names and a template to token ids: which are context, which belong to the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._errors import InputError
from ..backbones import Backbone

DEFAULT_TEMPLATE = "a photo of a {}."


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """Token ids of all prompts: `start` special tokens, `context` shared ones, then what belongs to the class.

    ids_KL: padded ids, K classes by L positions. ids_KL[:, start:start + context] are the tunable positions.
    """

    ids_KL: Tensor
    start: int
    context: int

    @property
    def prefix(self) -> int:
        """Number of positions that are the same for every class."""
        return self.start + self.context


def clean_name(name: str) -> str:
    """A class name as it enters a prompt: underscores become spaces, as in the published protocols.

    >>> clean_name(" american_bulldog ")
    'american bulldog'
    """
    return " ".join(name.replace("_", " ").split())


def duplicate_classes(backbone: Backbone, names: Sequence[str]) -> tuple[int, int] | None:
    """Positions of two names that differ in capital letters at most and that the tokenizer takes for the same."""
    seen: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        for first in seen.setdefault(name.lower(), []):
            if name == names[first] or _same_tokens(backbone, name, names[first]):
                return first, place
        seen[name.lower()].append(place)
    return None


def _same_tokens(backbone: Backbone, *names: str) -> bool:
    one, other = backbone.tokenize(names)
    return bool((one == other).all())


def clean_names(classes: Sequence[str]) -> tuple[str, ...]:
    """Class names as they enter a prompt, each checked to be a name."""
    if isinstance(classes, str):
        raise InputError(f"classes must be a list of names, not the one string {classes!r}. Write [{classes!r}].")
    names = []
    for position, name in enumerate(classes):
        if not isinstance(name, str):
            raise InputError(f"class {position} is {name!r}; class names must be strings.")
        clean = clean_name(name)
        if not clean:
            raise InputError(f"class {position} has an empty name; give each class at least one word.")
        names.append(clean)
    if not names:
        raise InputError("classes is empty: give at least one class name.")
    return tuple(names)


def split_template(template: str) -> tuple[str, str]:
    """The text before and after the one `{}`."""
    if template.count("{}") != 1 or template.replace("{}", "").count("{") + template.replace("{}", "").count("}"):
        raise InputError(f"template {template!r} must hold {{}} exactly once, where the class name goes.")
    before, after = template.split("{}")
    return " ".join(before.split()), after


def tokenize_prompts(backbone: Backbone, names: Sequence[str], template: str) -> PromptTokens:
    """Tokenise `template` filled with each name, and find the positions that the template's own words take."""
    before, after = split_template(template)
    prompts = [f"{before} {name}{after}".strip() for name in names]
    length = backbone.context_length
    _check_lengths(backbone, names, prompts, length)
    ids_KL = backbone.tokenize(prompts)
    empty, opening = backbone.tokenize([""])[0], backbone.tokenize([before])[0]
    start = _common(empty, ids_KL[0])  # start-of-text, where the tokenizer has one
    shared = [_common(opening, row) for row in ids_KL]
    if len(set(shared)) > 1:
        odd = names[shared.index(min(shared))]
        raise InputError(
            f"In template {template!r} the words before {{}} melt into the name {odd!r} when tokenised. "
            "Put a space before {} and end the opening with a whole word."
        )
    return PromptTokens(ids_KL=ids_KL, start=start, context=shared[0] - start)


def _check_lengths(backbone: Backbone, names: Sequence[str], prompts: Sequence[str], length: int) -> None:
    """Tokenizers cut a long prompt silently, which would give two long names the same features."""
    longer = backbone.tokenize([*prompts, ""], context_length=2 * length)
    pad = longer[-1, -1]
    used = (longer[:-1] != pad).sum(dim=1)
    worst = int(used.argmax())
    if int(used[worst]) > length:
        raise InputError(
            f"The prompt for class {worst} ({names[worst][:60]!r}) needs {int(used[worst])} tokens or more, but "
            f"{backbone.name} takes {length}. Shorten the name or the template."
        )


def _common(first: Tensor, second: Tensor) -> int:
    """Length of the common opening of two id rows."""
    differs = (first != second).nonzero()
    return int(differs[0]) if len(differs) else first.numel()


def eot_positions(ids_KL: Tensor, pool: str, eos_id: int | None) -> Tensor:
    """Position of the token at which the feature is read, as open_clip's pooling finds it."""
    if pool == "eos":
        return (ids_KL == eos_id).int().argmax(dim=1)
    return ids_KL.argmax(dim=1)


def project(tower: Any, pooled: Tensor) -> Tensor:
    """The text projection of an open_clip tower, which is a matrix, a linear layer or missing."""
    projection = tower.text_projection
    if projection is None:
        return pooled
    return projection(pooled) if isinstance(projection, torch.nn.Linear) else pooled @ projection


def project_back(tower: Any, gradient: Tensor) -> Tensor:
    """From gradients by the projected to gradients by what was projected."""
    projection = tower.text_projection
    if projection is None:
        return gradient
    return gradient @ (projection.weight if isinstance(projection, torch.nn.Linear) else projection.mT)
