"""Adapters: one file per method. Importing this package registers the built-in ones."""

from ._api import ADAPTERS, Adapted, adapt, adapt_batch, adapter, check_task
from ._batch import Batch
from .tda import TDAState

ADAPTERS.discover(__name__)

__all__ = ["ADAPTERS", "Adapted", "Batch", "TDAState", "adapt", "adapt_batch", "adapter", "check_task"]
