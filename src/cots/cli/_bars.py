"""Progress bars: with rate and time left on a terminal, silent elsewhere, never on standard output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Bars:
    """One bar for each thing that is counted; `update(name, done, total)` makes it on first sight."""

    def __init__(self, width: int = 26, hidden: bool = False) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn(f"{{task.description:<{width}}}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
            console=console, transient=True, disable=hidden or not console.is_terminal,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.__enter__()
        return self

    def __exit__(self, *stopped: Any) -> None:
        self._progress.__exit__(*stopped)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The bars leave the terminal while something is printed on standard output."""
        if self._progress.disable:
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def update(self, name: str, done: int, total: int, shown: str | None = None) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, rate="")
        task = self._tasks[name]
        speed = self._progress.tasks[self._progress.task_ids.index(task)].speed
        rate = f"{speed:.1f}/s" if speed else ""
        self._progress.update(task, completed=done, total=total, description=shown or name, rate=rate)
