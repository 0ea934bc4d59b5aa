"""Processes that are killed, and file operations that fail, at chosen steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import contextmanager

STEPS = ("open", "write", "fsync", "replace", "unlink")


@contextmanager
def step_by_step(act: Callable[[int, str, tuple], None]):
    """Call `act(count, name, arguments)` before every call that changes files."""
    originals = {name: getattr(os, name) for name in STEPS}
    count = 0

    def wrap(name):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            act(count, name, arguments)
            return originals[name](*arguments, **options)

        return call

    try:
        for name in STEPS:
            setattr(os, name, wrap(name))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def die_at(step: int, kind: str | None = None):
    """Kill this process at its `step`-th file operation (of a kind); a write is cut in half first."""
    write, passed = os.write, []

    def act(count, name, arguments):
        if kind in (None, name):
            passed.append(name)
        if len(passed) == step:
            if name == "write":
                write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return step_by_step(act)


def forked(job: Callable[[], object]) -> int:
    """Run `job` in a fork of this process; its process id."""
    if pid := os.fork():
        return pid
    try:
        job()
        os._exit(0)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)


def killed(pid: int) -> bool:
    """Wait for a process; whether it was killed. Otherwise it must have succeeded."""
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)
