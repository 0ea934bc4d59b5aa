"""Calibrators: from adapted and zero-shot logits to calibrated probabilities."""

from .._arrays import looks_like_probabilities, missing_axis
from ._api import CALIBRATORS, Calibrated, calibrate, calibrator
from .pseudocal import fit_pseudo_temperature
from .ts import fit_temperature

CALIBRATORS.discover(__name__)

__all__ = [
    "CALIBRATORS", "Calibrated", "calibrate", "calibrator", "fit_pseudo_temperature", "fit_temperature",
    "looks_like_probabilities", "missing_axis",
]  # fmt: skip
