"""Errors that are answers: a status, a code that a program can test, a message for a person, the field to blame."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Becomes `{"error": {"code", "message", "field"}}` with `status`."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "field": self.field}}


def invalid(field: str, code: str, message: str) -> ApiError:
    """A 422 that names the field."""
    return ApiError(422, code, message, field)
