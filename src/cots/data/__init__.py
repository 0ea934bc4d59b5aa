"""Data: the fifteen protocols of the paper in CoOp's layout, and your own images, as one Dataset."""

from ._coop import available
from ._dataset import Dataset, Sample
from ._open import open_dataset
from ._protocols import PROTOCOLS, Protocol, find_protocol
from ._validate import Problem, ValidationReport, validate

__all__ = [
    "PROTOCOLS",
    "Dataset",
    "Problem",
    "Protocol",
    "Sample",
    "ValidationReport",
    "available",
    "find_protocol",
    "open_dataset",
    "validate",
]
