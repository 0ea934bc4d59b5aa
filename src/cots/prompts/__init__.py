"""Prompts: from class names and a context to text features, and what is constant for them."""

from ._task import ONE_CLASS, Task, untrained_message
from ._tokens import clean_name, twins

__all__ = ["ONE_CLASS", "Task", "clean_name", "twins", "untrained_message"]
