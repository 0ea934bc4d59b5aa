"""Prompts: from class names and a context to text features, and what is constant for them."""

from ._task import ONE_CLASS, Task, untrained_message
from ._tokens import DEFAULT_TEMPLATE, check_prompts, clean_name, duplicate_classes

__all__ = [
    "DEFAULT_TEMPLATE", "ONE_CLASS", "Task", "check_prompts", "clean_name", "duplicate_classes", "untrained_message",
]  # fmt: skip
