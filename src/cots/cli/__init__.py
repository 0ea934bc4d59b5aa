"""The command line: thin functions that call the stages and print what they return."""

from ._app import app, main

__all__ = ["app", "main"]
