"""Datasets: the paper's fifteen test sets in CoOp's layout, and your own images, as one type."""

from ._dataset import Dataset, Problem, Protocol, Sample, ValidationReport, validate
from ._files import sample_photos
from ._open import open_dataset
from ._present import LabelledPhotos, open_present
from ._protocols import PROTOCOLS, available, find_protocol, is_protocol

__all__ = [
    "PROTOCOLS",
    "Dataset",
    "LabelledPhotos",
    "Problem",
    "Protocol",
    "Sample",
    "ValidationReport",
    "available",
    "find_protocol",
    "is_protocol",
    "open_dataset",
    "open_present",
    "sample_photos",
    "validate",
]  # fmt: skip
