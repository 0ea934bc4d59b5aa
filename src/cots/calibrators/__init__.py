"""Calibrators: from adapted and zero-shot logits to calibrated probabilities."""

from .._arrays import looks_like_probabilities, missing_axis
from ._api import CALIBRATORS, TEXT, calibrate, calibrate_batch, calibrator, check_call, chosen_solver
from ._calibrated import Calibrated
from ._solver import SOLVERS, Fit, Objective, halvings
from .ensemble import select
from .pseudocal import fit_pseudo_temperature
from .ts import fit_temperature

CALIBRATORS.discover(__name__)

__all__ = [
    "CALIBRATORS", "SOLVERS", "TEXT", "Calibrated", "Fit", "Objective", "calibrate", "calibrate_batch", "calibrator",
    "check_call", "chosen_solver", "fit_pseudo_temperature", "fit_temperature", "halvings", "looks_like_probabilities",
    "missing_axis", "select",
]  # fmt: skip
