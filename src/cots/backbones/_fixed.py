"""A backbone of text features alone: for view features of a model that is not here."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._errors import InputError
from ._backbone import Backbone


class FixedText(nn.Module):
    """Text features (K,D) of `classes` and a logit scale, in place of a model. It encodes nothing."""

    def __init__(self, classes: Sequence[str], features: Tensor, logit_scale: float) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.register_buffer("features", nn.functional.normalize(features.float(), dim=-1))

    def rows(self, names: Sequence[str]) -> Tensor:
        """The features of some of the classes."""
        place = range(len(names)) if tuple(names) == self.classes else map(self.classes.index, names)
        return self.get_buffer("features")[list(place)]


def fixed_backbone(
    name: str, classes: Sequence[str], features: Tensor, logit_scale: float, device: str | torch.device
) -> Backbone:
    model = FixedText(classes, features, logit_scale).to(device)
    return Backbone(name=name, model=model, tokenizer=_no_tokenizer, preprocess={"size": 1})


def _no_tokenizer(texts: Sequence[str], context_length: int | None = None) -> Tensor:
    raise InputError("This backbone has text features only; load a model to encode other texts.")
