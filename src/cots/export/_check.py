"""Whether exported files compute what cots computes, on photos."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._errors import CotsError
from ..adapters import adapt
from ..calibrators import calibrate
from ..novelty import in_list
from ..prompts import Task

BATCHES = (1, 5)
MARGIN = LOGITS = IN_LIST = 1e-3  # largest differences, and the margin below which a class may change
CONFIDENCE = 1e-4

Run = Callable[[Tensor], Mapping[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What cots itself computes for N photos: logits (N,K) divided by the temperature, probabilities, in_list (N)."""

    pixels: Tensor
    logits: np.ndarray
    probabilities: np.ndarray
    in_list: np.ndarray

    @classmethod
    def of(cls, pixels_N3HW: Tensor, task: Task, temperature: float) -> "Reference":
        features_N1D = task.backbone.encode_images(pixels_N3HW)[:, None]
        adapted = adapt("zeroshot", features_N1D, task)
        calibrated = calibrate(adapted.logits, adapted.zero_shot_logits, "ts", temperature=temperature)
        return cls(
            pixels=pixels_N3HW,
            logits=(adapted.logits[:, 0] / temperature).cpu().numpy(),
            probabilities=calibrated.probabilities.cpu().numpy(),
            in_list=in_list(features_N1D, task).cpu().numpy(),
        )

    @property
    def classes(self) -> np.ndarray:
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> np.ndarray:
        return self.probabilities.max(1)

    def first(self, count: int) -> "Reference":
        return Reference(
            pixels=self.pixels[:count], logits=self.logits[:count], probabilities=self.probabilities[:count],
            in_list=self.in_list[:count],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The largest differences between a file and cots on n photos, in batches of each size of `BATCHES`.

    changed: photos with another class, although its logit and that of the class differ by more than `MARGIN`.
    """

    n: int
    logits: float
    confidence: float
    in_list: float
    changed: int

    @property
    def holds(self) -> bool:
        within = self.logits < LOGITS and self.confidence < CONFIDENCE and self.in_list < IN_LIST
        return within and self.changed == 0

    def line(self, file: str) -> str:
        return (
            f"{file}: as cots on {self.n} photos in batches of {' and '.join(map(str, BATCHES))}: logits within "
            f"{self.logits:.1e}, confidence within {self.confidence:.1e}, in_list within {self.in_list:.1e}"
        )

    def require(self, file: str) -> None:
        """Refuse a file that computes something else."""
        if not self.holds:
            raise CotsError(
                f"{file} differs from cots by {self.logits:.1e} in a logit, {self.confidence:.1e} in a confidence and "
                f"{self.in_list:.1e} in in_list, with {self.changed} other classes, so nothing was exported. Report "
                "this with the name of the model."
            )


def run_in_batches(run: Run, pixels: Tensor, size: int) -> dict[str, np.ndarray]:
    """The outputs for all images; the last batch is filled up with images from the start."""
    parts: dict[str, list[np.ndarray]] = {}
    count = len(pixels)
    for start in range(0, count, size):
        rows = torch.arange(start, start + size) % count
        for name, values in run(pixels[rows]).items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values)[:count] for name, values in parts.items()}


def compare(run: Run, reference: Reference) -> Agreement:
    """What a file computes, in batches of each size, against cots."""
    logits = confidence = score = 0.0
    changed = 0
    rows = np.arange(len(reference.pixels))
    for size in BATCHES:
        outputs = run_in_batches(run, reference.pixels, size)
        logits = max(logits, _apart(outputs["logits"], reference.logits))
        confidence = max(confidence, _apart(outputs["probabilities"], reference.probabilities))
        score = max(score, _apart(outputs["in_list"], reference.in_list))
        found = outputs["logits"].argmax(1)
        lost = reference.logits[rows, reference.classes] - reference.logits[rows, found]
        changed += int((lost > MARGIN).sum())
    return Agreement(n=len(rows), logits=logits, confidence=confidence, in_list=score, changed=changed)


def _apart(values: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference; infinite if a value is not a number."""
    apart = np.abs(values.astype(np.float64) - expected)
    return float(np.nan_to_num(apart, nan=np.inf).max())
