"""A classifier with fixed classes as one module: image tower, text matrix, temperature and none-of-these score."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import InputError
from ..backbones import Backbone, FixedText
from ..calibrators import CALIBRATORS
from ..classifier import Classifier
from ..novelty import FEWEST, background
from ..prompts import Task

INPUT = "pixel_values"
OUTPUTS = ("logits", "probabilities", "in_list", "image_features")
_FIXED = ("ts", "pseudocal")  # calibrators with one temperature for all photos


class FrozenClassifier(nn.Module):
    """Zero-shot classification with one temperature, as a function of pixels `(B,3,H,W)`, normalised; in float32.

    Its outputs, in the order of `OUTPUTS`:

    - logits (B,K): scale * cos / temperature, so that a softmax gives the calibrated confidence
    - probabilities (B,K): softmax(logits)
    - in_list (B): as `cots.novelty.in_list`; values above 1 - 1e-7 are 1
    - image_features (B,D): L2-normalised
    """

    text: Tensor
    words: Tensor

    def __init__(self, task: Task, temperature: float) -> None:
        super().__init__()
        self.tower = image_tower(task.backbone)
        self.scale = task.logit_scale / temperature
        self.power = max(FEWEST, len(task.classes))
        self.register_buffer("text", task.text_features.cpu().float())
        self.register_buffer("words", background(task).cpu().float())
        self.eval().requires_grad_(False)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features_BD = F.normalize(self.tower.encode_image(pixel_values), dim=-1)
        cosines_BK = features_BD @ self.text.T
        words_BM = features_BD @ self.words.T
        best_B = (cosines_BK.amax(1) - words_BM.mean(1)) / words_BM.std(1)
        logits_BK = self.scale * cosines_BK
        return logits_BK, logits_BK.softmax(1), torch.special.ndtr(best_B) ** self.power, features_BD


def image_tower(backbone: Backbone) -> Any:
    """A copy of the model on the CPU, in float32 and, if its image tower is a module `visual`, without the rest."""
    if isinstance(backbone.model, FixedText):
        raise InputError(f"{backbone.name} has no image encoder; export a classifier with a loaded model.")
    visual = getattr(backbone.model, "visual", None)
    if not isinstance(visual, nn.Module):
        return copy.deepcopy(backbone.model).cpu().float()
    tower = copy.copy(backbone.model)
    tower._modules = {"visual": copy.deepcopy(visual).cpu().float()}
    tower._parameters, tower._buffers = {}, {}
    return tower


def exact_temperature(classifier: Classifier) -> float | None:
    """The one temperature of the classifier's method, with that of its policy; None if it has more than that.

    `zeroshot`, also with `ts` or `pseudocal`, is exported as it is. Tuning needs gradients, temperatures per photo and
    ensembles need views, and online methods a state: those are not part of a graph.
    """
    method = classifier.method
    if method.adapter != "zeroshot" or method.calibrator not in ("none", *_FIXED):
        return None
    temperature = 1.0
    if method.calibrator in _FIXED:
        known = CALIBRATORS.settings(method.calibrator)
        given = {**known, **classifier.setup.settings, **dict(method.calibrator_settings)}
        temperature = given["temperature"]
    policy = classifier.policy
    return float(temperature) * (1.0 if policy is None else policy.temperature)
