"""Class lists seen before: text features and the forward pass behind the first step, within a bound of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .._errors import InputError
from ..backbones import Backbone
from ..prompts import Task
from ._errors import invalid

# Floats that a forward pass of a text block keeps for one token, by its width; measured, see tests.
KEPT_PER_TOKEN = 22


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
        try:
            return Task(self.backbone, classes, template)
        except InputError as error:
            try:
                Task(self.backbone, ["a"], template)
            except InputError:
                raise invalid("template", "bad_template", str(error)) from None
            raise invalid("classes", "bad_classes", str(error)) from None

    def put(self, classes: tuple[str, ...], template: str, task: Task) -> None:
        """Keep a task, at its present size, and drop the oldest ones above the limit."""
        size = task_bytes(task, self._weights)
        with self._lock:
            self._tasks[classes, template] = task, size
            self._tasks.move_to_end((classes, template))
            total = sum(size for _, size in self._tasks.values())
            while total > self.limit:
                _, (_, dropped) = self._tasks.popitem(last=False)
                total -= dropped

    def check(self, task: Task) -> None:
        """Refuse a class list whose tuning would need more than the whole cache."""
        needed = tuning_bytes(task)
        if needed > self.limit:
            raise invalid(
                "classes",
                "too_many_classes",
                f"Tuning the prompt for these {len(task.classes)} classes needs about {needed / 2**20:.0f} MiB, and "
                f"this server allows {self.limit / 2**20:.0f}. Give fewer or shorter names, use methods=zeroshot, or "
                "start the server with a larger --task-cache-mib.",
            )


def tuning_bytes(task: Task) -> int:
    """About what the stored forward pass of a causal text tower takes; others store none."""
    blocks = getattr(getattr(getattr(task.tower, "tower", None), "transformer", None), "resblocks", None)
    if blocks is None:
        return 0
    width = task.initial_context.shape[-1]
    return task.tower.tokens_per_sample * len(blocks) * KEPT_PER_TOKEN * width * task.initial_context.element_size()


def task_bytes(task: Task, weights: set[int]) -> int:
    """Bytes that a task keeps alive, the model's own weights left out: every storage is counted once."""
    sizes: dict[int, int] = {}
    for tensor in _tensors([vars(task), vars(task.tower)], set()):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(size for pointer, size in sizes.items() if pointer not in weights)


def _tensors(things: Any, seen: set[int]) -> Iterator[Tensor]:
    """Tensors in nested containers, and those that their graphs have saved for the backward pass."""
    if isinstance(things, dict):
        things = list(things.values())
    if isinstance(things, Tensor):
        yield things
        if things.grad_fn is not None:
            yield from _saved(things.grad_fn, seen)
    elif isinstance(things, (list, tuple)):
        for thing in things:
            yield from _tensors(thing, seen)


def _saved(root: Any, seen: set[int]) -> Iterator[Tensor]:
    stack, alive = [root], []
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        alive.append(node)  # an id is only unique while its object lives
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                for tensor in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(tensor, Tensor):
                        yield tensor.detach()
        stack.extend(function for function, _ in node.next_functions)
