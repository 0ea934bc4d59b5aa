"""Prompts: from class names and a context to text features, and what is constant for them."""

from ._task import Task, untrained_message
from ._tokens import clean_name

__all__ = ["Task", "clean_name", "untrained_message"]
