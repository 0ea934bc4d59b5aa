"""Adapters: one file a method. Importing this package registers the built-in ones."""

from . import atpt, ctpt, dtpt, otpt, penalty, soc, tda, tda_tuned, tps, tpt, ttl, zeroshot, zsnorm  # noqa: F401
from ._api import ADAPTERS, Adapted, adapt, adapter
from .tda import TDAState

__all__ = ["ADAPTERS", "Adapted", "TDAState", "adapt", "adapter"]
