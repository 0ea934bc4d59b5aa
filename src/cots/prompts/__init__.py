"""Prompts: from class names and a context to text features, and what is constant for them."""

from ._task import Task
from ._tokens import clean_name

__all__ = ["Task", "clean_name"]
