"""Adapters: one file per method. Importing this package registers the built-in ones."""

from ._api import ADAPTERS, Adapted, adapt, adapter, replay
from ._start import Start, clock
from .tda import TDAState

ADAPTERS.discover(__name__)

__all__ = ["ADAPTERS", "Adapted", "Start", "TDAState", "adapt", "adapter", "clock", "replay"]
