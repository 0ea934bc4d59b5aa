"""Class lists seen before: text features and what the first step needs, within a bound of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .._errors import InputError
from ..backbones import Backbone
from ..prompts import Task, duplicate_classes
from ._errors import invalid

# Words whose pieces a tokenizer may remember.
WORDS = 100_000


class QuietTokenizer:
    """A tokenizer for servers: its list of trained words is hidden, since the answers tell of untrained words.

    open_clip's tokenizer remembers every word for ever; here it forgets them above `WORDS`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.context_length = getattr(tokenizer, "context_length", None)
        known = getattr(getattr(tokenizer, "base", tokenizer), "cache", None)
        self._known: dict[str, Any] | None = known if isinstance(known, dict) else None
        self._first = dict(self._known or {})

    def __call__(self, texts: Any, context_length: int | None = None) -> Tensor:
        if self._known is not None and len(self._known) > len(self._first) + WORDS:
            self._known.clear()
            self._known.update(self._first)
        return self._tokenizer(texts, context_length=context_length)


class TaskCache:
    """Tasks of one backbone by class list and template, the least recently used dropped above `limit` bytes."""

    def __init__(self, backbone: Backbone, limit: int) -> None:
        self.backbone, self.limit = backbone, limit
        self._tasks: OrderedDict[tuple[tuple[str, ...], str], tuple[Task, int]] = OrderedDict()
        self._weights = {p.untyped_storage().data_ptr() for p in backbone.model.state_dict().values()}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(size for _, size in self._tasks.values())

    def get(self, classes: tuple[str, ...], template: str) -> Task:
        """The task; an error names the field that is to blame."""
        with self._lock:
            if (classes, template) in self._tasks:
                self._tasks.move_to_end((classes, template))
                return self._tasks[classes, template][0]
        if same := duplicate_classes(self.backbone, classes):
            first, second = (classes[place] for place in same)
            raise invalid(
                "classes", "duplicate_class", f"{first!r} and {second!r} are one class to the model, so its "
                "probability would be split; remove one or make the names distinct."
            )  # fmt: skip
        try:
            return Task(self.backbone, classes, template)
        except InputError as error:
            try:
                Task(self.backbone, ["a"], template)
            except InputError:
                raise invalid("template", "bad_template", str(error)) from None
            raise invalid("classes", "bad_classes", str(error)) from None

    def put(self, classes: tuple[str, ...], template: str, task: Task) -> None:
        """Keep a task, at its present size, and drop the oldest ones above the limit; not one larger than the limit."""
        size = task_bytes(task, self._weights)
        with self._lock:
            self._tasks.pop((classes, template), None)
            if size > self.limit:
                return
            self._tasks[classes, template] = task, size
            total = sum(size for _, size in self._tasks.values())
            while total > self.limit:
                _, (_, dropped) = self._tasks.popitem(last=False)
                total -= dropped


def task_bytes(task: Task, weights: set[int]) -> int:
    """Bytes that a task keeps alive, the model's own weights left out: every storage is counted once."""
    sizes: dict[int, int] = {}
    for tensor in _tensors(task, set()):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(size for pointer, size in sizes.items() if pointer not in weights)


def _tensors(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """Tensors in containers and in objects of this package, the backbone left out."""
    if isinstance(thing, Tensor):
        yield thing
    elif id(thing) not in seen and not isinstance(thing, Backbone):
        seen.add(id(thing))
        if type(thing).__module__.startswith("cots."):
            thing = vars(thing)
        if isinstance(thing, dict):
            thing = list(thing.values())
        for one in thing if isinstance(thing, (list, tuple)) else ():
            yield from _tensors(one, seen)
