"""FPP: a context whose text features hardly change under noise, learned from class names alone (CVPR 2026)."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from .._adam import AdamW
from .._arrays import default_modes
from .._errors import InputError, check_one_of, check_positive, unknown_name, whole_number
from ..backbones import Backbone, FixedText
from ..classes import Classes
from ._task import Task
from ._tokens import DEFAULT_TEMPLATE
from ._towers import token_embedding

DRAWS, HIGHEST, LOWEST = 4, 0.01, 1e-4  # noises per step; learning rates
PUBLISHED = (math.sqrt(0.005), math.sqrt(0.02))  # standard deviations of the noise on the context and elsewhere
# Those of PUBLISHED for a token table with RMS 0.0141; not checked against CLIP's table.
RELATIVE = (5.0, 10.0)

Noise = tuple[float, float] | Literal["published"]


@default_modes()
def pretrain_context(
    backbone: Backbone,
    classes: Classes,
    template: str = DEFAULT_TEMPLATE,
    *,
    context: Tensor | str | Path | None = None,
    steps: int = 1000,
    seed: int = 0,
    weight: float | None = None,
    noise: Noise = RELATIVE,
    start: Literal["random", "words"] = "random",
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """FPP: a context `(M, W)` for `Task(context=...)` that is flat under noise, from class names alone.

    Over all classes k and 4 noises r per step, with t_k the text features under the context c, t0_k those under the
    words of the template (or `context`), and t~_kr those under c with noise on every embedding, without gradient:
        L = mean_k |t_k - t0_k|^2 - weight * mean_kr t_k . t~_kr.
    AdamW, learning rate 0.01 to 1e-4 by cosine; all classes in every step. A noise is the same for all classes.

    - weight: default 1 + 15 / K, as in the authors' code; a summary of the paper has 1 + 0.15 / K
    - noise: standard deviations on the context and on all other positions, in units of the token table's RMS, or
      "published": 0.0707 and 0.1414, which fit OpenAI's CLIP only
    - start: "random", a Gaussian with the standard deviation of the second noise, as published; or "words"
    - progress: called with the number of finished steps

    With `Task(context=...)`, the zero-shot logits that CoTS and SaLS use are those of this context too.

    >>> import cots
    >>> backbone = cots.load("mini")
    >>> context = cots.pretrain_context(backbone, ["cat", "dog", "car"], steps=2)
    >>> cots.Task(backbone, ["cat", "dog", "car"], context=context).initial_context.shape
    torch.Size([4, 256])
    """
    whole_number("steps", steps)
    check_one_of("start", start, ("random", "words"))
    if isinstance(backbone.model, FixedText):
        raise InputError(f"{backbone.name} has text features only, so no context can be learned. Pass a model.")
    task = Task(backbone, classes, template, context)
    draw, words, target = _NoiseSource(task, noise, seed), task.initial_context, task.text_features
    if len(words) == 0:
        raise InputError(f"template {template!r} has no word before {{}}, so there is no context to learn.")
    if weight is None:
        weight = default_weight(len(target))
    learned = words if start == "words" else draw.elsewhere * draw.normal(words.shape)
    optimiser = AdamW(lr=HIGHEST)
    for step in range(steps):
        with torch.no_grad():
            noisy_RKD = task.tower.noisy_features(learned.expand(DRAWS, -1, -1), draw.noise(DRAWS))
        # The gradient of L with respect to t_k, whose length is 1.
        towards_KD = (2 * target + weight * noisy_RKD.mean(0)) / len(target)
        with torch.enable_grad():
            leaf = learned.detach().clone().requires_grad_()
            text_KD = task.features_under(leaf[None])[0]
            gradient = torch.autograd.grad(-(towards_KD * text_KD).sum(), leaf)[0]
        optimiser.lr = LOWEST + (HIGHEST - LOWEST) * (1 + math.cos(math.pi * step / steps)) / 2
        learned = optimiser.step(learned, gradient)
        if progress is not None:
            progress(step + 1)
    return learned.detach().clone()


def default_weight(classes: int) -> float:
    """The weight of the flat term in the authors' code."""
    return 1 + 15 / classes


@default_modes()
def flatness(task: Task, noise: Noise = RELATIVE, seed: int = 0, draws: int = 16) -> float:
    """Mean cosine between the text features of a task and those under noise (`pretrain_context`)."""
    with torch.no_grad():
        contexts = task.initial_context.expand(draws, -1, -1)
        noisy_RKD = task.tower.noisy_features(contexts, _NoiseSource(task, noise, seed).noise(draws))
        return float((noisy_RKD * task.text_features).sum(-1).mean())


class _NoiseSource:
    """Reproducible Gaussian values; on the CPU in float32, so that device and precision do not change them."""

    def __init__(self, task: Task, noise: Noise, seed: int) -> None:
        self._like, tokens = task.initial_context, task.tower.tokens
        self._generator = torch.Generator().manual_seed(whole_number("seed", seed))
        on_context, self.elsewhere = _deviations(noise, task.backbone)
        self._deviation_L1 = self._like.new_full((tokens.ids_KL.shape[1], 1), self.elsewhere)
        self._deviation_L1[tokens.start : tokens.prefix] = on_context

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self._like)

    def noise(self, draws: int) -> Tensor:
        """Noise (draws, L, W) for all positions."""
        return self._deviation_L1 * self.normal((draws, len(self._deviation_L1), self._like.shape[1]))


def _deviations(noise: Noise, backbone: Backbone) -> tuple[float, float]:
    if isinstance(noise, str):
        if noise != "published":
            raise unknown_name("noise", noise, ["published"], "Or pass two multiples, such as (5, 10).")
        return PUBLISHED
    if len(noise) != 2:
        raise InputError(f"noise must have two values, for the context and elsewhere, not {len(noise)}.")
    table = next(token_embedding(backbone).parameters())
    rms = float(table.detach().double().square().mean().sqrt())
    for value in noise:
        if value != 0:
            check_positive("noise", value)
    return noise[0] * rms, noise[1] * rms
