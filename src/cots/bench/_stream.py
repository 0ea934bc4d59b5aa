"""One adapter's way through the shards of a dataset: which it must see, and what it carries from one to the next."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from ..adapters import ADAPTERS, Adapted, TDAState, adapt
from ..prompts import Task
from ._files import remove, write_whole
from ._numbers import Numbers
from ._paths import Location
from ._protocol import split
from ._shards import file_name, open_archive, present


def is_online(method: str) -> bool:
    """Whether the method's adapter carries a state from sample to sample, so that their order counts."""
    return "state" in ADAPTERS.settings(split(method)[0])


class Stream:
    """An adapter, the methods that share its logits, and the shards that are still missing for each of them.

    An episodic adapter sees the missing shards alone. An online one (with a `state`) must see every sample from the
    start, or from the last state that was kept: shards that it passes without a missing method are not written again.
    """

    def __init__(
        self,
        adapter: str,
        task: Task,
        arguments: Mapping[str, Any],
        missing: Mapping[str, Set[int]],
        folder: Location,
    ) -> None:
        self.adapter, self.task, self.arguments, self.folder = adapter, task, dict(arguments), folder
        self.missing = missing
        self.online = is_online(adapter)
        self.state: Any = None
        self._parts: list[Adapted] = []
        self._seconds = 0.0
        wanted = Numbers(itertools.chain(*self.missing.values()))
        if self.online and wanted:
            wanted = Numbers(range(self._restore(min(wanted)), max(wanted) + 1))
        self.wanted = wanted

    @property
    def takes_pixels(self) -> bool:
        return ADAPTERS.info(self.adapter).takes == "pixels"

    def methods(self, shard: int) -> list[str]:
        """The methods whose records of `shard` are to be written."""
        return [method for method, shards in self.missing.items() if shard in shards]

    def feed(self, inputs: Tensor) -> None:
        """Adapt to some samples of a batch."""
        arguments = {**self.arguments, "state": self.state} if self.online else self.arguments
        start = clock(self.task)
        adapted = adapt(self.adapter, inputs, self.task, **arguments)
        self._seconds += clock(self.task) - start
        self.state = adapted.state
        self._parts.append(adapted)

    def collect(self) -> tuple[Tensor, Tensor, float]:
        """Adapted and zero-shot logits of what was fed since the last call, and the seconds that it took."""
        parts, seconds = self._parts, self._seconds
        self._parts, self._seconds = [], 0.0
        if len(parts) == 1:
            return parts[0].logits, parts[0].zero_shot_logits, seconds
        return torch.cat([p.logits for p in parts]), torch.cat([p.zero_shot_logits for p in parts]), seconds

    def keep(self, shard: int) -> None:
        """Keep the state after `shard`, once its records are on the disk, and let the older ones go.

        Killed between the two, the run begins again at an older state: slower, but with the same results.
        """
        if not isinstance(self.state, TDAState):
            return  # another online method's state has no form on the disk: its stream starts over
        tensors = {f.name: getattr(self.state, f.name).cpu().contiguous() for f in fields(self.state)}
        write_whole(self.folder / file_name(shard), save(tensors))
        for older in present(self.folder):
            if older < shard:
                remove(self.folder / file_name(older))

    def _restore(self, first: int) -> int:
        """Load the last state from before shard `first`; the shard that comes after it."""
        for shard in sorted(present(self.folder), reverse=True):
            if shard < first:
                # A damaged state costs time, not results: an older one or none will do.
                with contextlib.suppress(OSError, SafetensorError, TypeError, ValueError):
                    self.state = self._load(shard)
                    return shard + 1
        return 0

    def _load(self, shard: int) -> TDAState:
        with open_archive(self.folder / file_name(shard), "pt") as archive:
            return TDAState(**{f.name: archive.get_tensor(f.name) for f in fields(TDAState)})


def clock(task: Task) -> float:
    """Seconds; a GPU works behind the clock's back, so it has to finish first."""
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    return time.perf_counter()
