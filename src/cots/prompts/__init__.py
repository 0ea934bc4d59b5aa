"""Prompts: from class names and a context to text features."""

from ._classes import (
    MAX_NAME,
    DuplicateClass,
    check_distinct,
    class_list,
    class_lists,
    clean_name,
    clean_names,
    imagenet_names,
    list_or_names,
    synsets,
)
from ._task import ONE_CLASS, Task, untrained_message
from ._tokens import DEFAULT_TEMPLATE, Template, check_prompts

__all__ = [
    "DEFAULT_TEMPLATE", "MAX_NAME", "ONE_CLASS", "DuplicateClass", "Task", "Template", "check_distinct",
    "check_prompts", "class_list", "class_lists", "clean_name", "clean_names", "imagenet_names", "list_or_names",
    "synsets", "untrained_message",
]  # fmt: skip
