"""What is computed once per class list, kept within a limit of bytes."""

import contextlib
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .._errors import InputError
from ..backbones import Backbone
from ..classes import DuplicateClass, check_distinct, has_known_names
from ..prompts import Sentences, Task, read_descriptions
from ._schemas import invalid

MAX_WORDS = 100_000  # in the cache of a tokenizer

_Key = tuple[tuple[str, ...], str | tuple[str, ...], Sentences | None]


@dataclass(frozen=True)
class _Kept:
    """A task, its bytes, and how many values it had computed by then: measuring the bytes takes milliseconds."""

    task: Task
    size: int
    values: int


class TaskCache:
    """Tasks of one backbone by class list and prompt; drops the least recently used above `limit` bytes."""

    def __init__(self, backbone: Backbone, limit: int) -> None:
        self.backbone, self.limit = replace(backbone, tokenizer=QuietTokenizer(backbone.tokenizer)), limit
        self._tasks: OrderedDict[_Key, _Kept] = OrderedDict()
        self._weights = {p.untyped_storage().data_ptr() for p in backbone.model.state_dict().values()}
        self._dropped, self._lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(kept.size for kept in self._tasks.values())

    def get(
        self, classes: tuple[str, ...], template: str, descriptions: Sequence[tuple[str, tuple[str, ...]]] = ()
    ) -> Task:
        """The task, or an ApiError that names the field at fault."""
        sentences = read_descriptions(dict(descriptions), classes) if descriptions else None
        key = classes, template, sentences
        with self._lock:
            if key in self._tasks:
                self._tasks.move_to_end(key)
                return self._tasks[key].task
        if not has_known_names(classes):
            try:
                check_distinct(classes, self.backbone)
            except DuplicateClass as error:
                raise invalid("classes", "duplicate_class", str(error)) from None
        try:
            task = Task(self.backbone, classes, template)
            task.expect(memory=self.limit // 2)  # with more, it would evict itself
        except InputError as error:
            try:
                Task(self.backbone, ["a"], template)
            except InputError:
                raise invalid("template", "bad_template", str(error)) from None
            raise invalid("classes", "bad_classes", str(error)) from None
        if sentences is not None:
            task = self._described(task, dict(descriptions))
        self.put(task)  # for the batches that are launched while this one waits for the device
        return task

    def _described(self, task: Task, descriptions: dict[str, tuple[str, ...]]) -> Task:
        """The task with descriptions, whose sentences fit the model."""
        try:
            described = Task(self.backbone, task.classes, task.template, descriptions=descriptions)
            _ = described.text_features
        except InputError as error:
            raise invalid("descriptions", "bad_descriptions", str(error)) from None
        return described

    def put(self, task: Task) -> None:
        """Keep a task at its current size unless it alone exceeds the limit."""
        key = task.classes, task.template, task.descriptions
        before, values = self._tasks.get(key), _count_values(task)
        if before is not None and before.task is task and before.values == values:
            return
        size = task_bytes(task, self._weights)
        with self._lock:
            self._tasks.pop(key, None)
            if size > self.limit:
                return
            self._tasks[key] = _Kept(task, size, values)
            while sum(kept.size for kept in self._tasks.values()) > self.limit:
                self._dropped += self._tasks.popitem(last=False)[1].size
            if self._dropped > self.limit // 32:
                self._dropped = 0
                return_memory()


def return_memory() -> None:
    """Return free memory to the system; glibc would keep it in fragments between the tensors of cached tasks."""
    with contextlib.suppress(AttributeError, TypeError):  # another C library, Windows
        ctypes.CDLL(None).malloc_trim(0)


class QuietTokenizer:
    """A tokenizer for servers, without its list of trained words, because responses contain those warnings.

    open_clip's tokenizer caches every word; this one clears the cache above `MAX_WORDS` words.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.context_length = getattr(tokenizer, "context_length", None)
        cache = getattr(getattr(tokenizer, "base", tokenizer), "cache", None)
        self._cache: dict[str, Any] | None = cache if isinstance(cache, dict) else None
        self._initial = dict(self._cache or {})

    def __call__(self, texts: Any, context_length: int | None = None) -> Tensor:
        if self._cache is not None and len(self._cache) > len(self._initial) + MAX_WORDS:
            self._cache.clear()
            self._cache.update(self._initial)
        return self._tokenizer(texts, context_length=context_length)


def _count_values(task: Task) -> int:
    """The number of values that a task and its text tower have computed; while it is unchanged, so are its bytes."""
    count = 0
    for value in [*vars(task).values(), *vars(task.tower).values()]:
        count += len(value) if isinstance(value, dict) else 1
    return count


def task_bytes(task: Task, weights: set[int]) -> int:
    """Bytes of the distinct storages that a task keeps alive, without the model's weights."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(task, set())}
    return sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in weights)


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Tensors in containers and in objects of this package, except in the backbone."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, Backbone):
        seen.add(id(value))
        if type(value).__module__.startswith("cots."):
            value = vars(value)
        if isinstance(value, dict):
            value = list(value.values())
        for one in value if isinstance(value, (list, tuple)) else ():
            yield from _tensors(one, seen)
