"""Prompts: from class names and a context to text features, and what is constant for them."""

from ._task import Task

__all__ = ["Task"]
