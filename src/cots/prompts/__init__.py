"""Prompts: from class names and a context to text features."""

from ._task import ONE_CLASS, Task, untrained_message
from ._tokens import (
    DEFAULT_TEMPLATE,
    Template,
    check_prompts,
    class_list,
    class_lists,
    clean_name,
    clean_names,
    duplicate_classes,
    imagenet_names,
    list_or_names,
    synsets,
)  # fmt: skip

__all__ = [
    "DEFAULT_TEMPLATE", "ONE_CLASS", "Task", "Template", "check_prompts", "class_list", "class_lists", "clean_name",
    "clean_names", "duplicate_classes", "imagenet_names", "list_or_names", "synsets", "untrained_message",
]  # fmt: skip
