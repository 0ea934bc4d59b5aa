"""Calibrators: from adapted and zero-shot logits to probabilities that can be trusted."""

from . import cor, cots, ecots, ensemble, none, sals, ts, zero  # noqa: F401 (importing a method registers it)
from ._api import CALIBRATORS, Calibrated, calibrate, calibrator
from .ts import fit_temperature

__all__ = ["CALIBRATORS", "Calibrated", "calibrate", "calibrator", "fit_temperature"]
