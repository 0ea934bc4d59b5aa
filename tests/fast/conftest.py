"""These tests are about the guest, also where COTS_FAST=0."""

from __future__ import annotations

import pytest
from support.models import tiny_task

from cots.accelerate import Plain, accelerator, using
from cots.fast import Fast


@pytest.fixture(autouse=True)
def guest():
    if not isinstance(accelerator(), Plain):
        yield
        return
    tiny_task.cache_clear()
    with using(Fast()):
        yield
    tiny_task.cache_clear()
