"""The door to faster implementations: what they may replace, and the plain default of each.

The library is complete without them and gives the same results up to rounding. `COTS_FAST=0` in the environment turns
them off. Only this module names the package `cots.fast`.
"""

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .backbones import Backbone, ImageEncoder
    from .calibrators import Fit, Objective
    from .prompts import TextTower
    from .views import Renderer, ViewSettings

Function = Callable[..., tuple[Tensor, ...]]

# How much is computed at a time. Results do not depend on it, up to rounding.
LIMITS: dict[str, int] = {
    "images": 4,  # that the image encoder takes; the activations of a few fit in a cache
    "photos": 1,  # whose views are adapted together; larger batches delay the first prediction
    "tuned tokens": 4096,  # of the texts under tuned contexts
    "gradient tokens": 4096,  # of texts whose activations are held for a gradient
    "gradient values": 2**26,  # text-feature values of the samples whose losses are computed
    "prompts": 256,  # that a text tower without a shared prefix takes
    "logits": 2**22,  # of a calibration that is worth compiling
    "prompt tokens": 16384,  # of the prompts of such a tower, for a gradient
}


class Accelerator(Protocol):
    """What can be replaced. Every method has a plain default; a guest overrides some of them."""

    def image_encoder(self, backbone: "Backbone") -> "ImageEncoder | None":
        """What encodes images; None: the model's own forward."""

    def text_tower(self, plain: "type[TextTower]") -> "type[TextTower]":
        """The class to use in place of the text tower `plain`."""
        return plain

    def renderer(self, settings: "ViewSettings", device: torch.device) -> "Renderer | None":
        """What renders views on `device`; None: the host."""

    def fit_tau(self, objective: "Objective", fit: "Fit", plain: "Callable[[Objective, Fit], Tensor]") -> Tensor:
        """The temperatures that `plain(objective, fit)` gives."""
        return plain(objective, fit)

    def searches(self, loss: str, device: torch.device) -> bool:
        """Whether `search_tau` is replaced for this loss, by something that never waits for the device."""
        return False

    def search_tau(
        self,
        adapted: Tensor,
        zero_shot: Tensor,
        fit: "Fit",
        adam: Tensor,
        plain: "Callable[[Tensor, Tensor, Fit, Tensor], Tensor]",
    ) -> Tensor:
        """The temperatures that `plain(adapted, zero_shot, fit, adam)` gives; `adam`: those of the other solver."""
        return plain(adapted, zero_shot, fit, adam)

    def compiled(self, function: Function, owner: Any = None) -> Function:
        """`function`, which takes and returns tensors, for many calls; kept as long as `owner`.

        Its result depends on its arguments and on the values that it closes over, and on nothing else that changes.
        """
        return function

    def batch_limit(self, what: str, device: torch.device) -> int:
        """How much of `what` is computed at a time on `device`; at least 1."""
        return LIMITS[what]

    def limit_memory(self, share: float) -> None:
        """Use at most a share of the device's memory, which other processes use too."""


class Plain(Accelerator):
    """Nothing is replaced."""


@functools.cache
def _guest() -> Accelerator:
    if os.environ.get("COTS_FAST") == "0":
        return Plain()
    # By name, because the guest builds on the modules that use the door.
    return importlib.import_module("cots.fast").Fast()


_chosen: Accelerator | None = None


def accelerator() -> Accelerator:
    """The accelerator in use.

    >>> import torch
    >>> accelerator().batch_limit("images", torch.device("cpu"))
    4
    """
    return _chosen or _guest()


@contextmanager
def using(chosen: Accelerator) -> Iterator[Accelerator]:
    """Use another accelerator for a while, for tests and comparisons: `with using(Plain()): ...`."""
    global _chosen
    before, _chosen = _chosen, chosen
    try:
        yield chosen
    finally:
        _chosen = before
