"""Recorded calls: a CUDA graph launches all kernels of a repeatedly called function at once.

For small batches, launching kernels one by one takes longer than running them.
"""

import dataclasses
import functools
import threading
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., tuple[Tensor, ...]])

_AFTER = 2  # calls with the same shapes before they are recorded
_KEPT = 8  # recordings per function; the least recently used is dropped
_FUNCTIONS = 32  # functions with recordings per owner
_CONSTANT = (type(None), bool, int, str, torch.dtype, torch.device)
_lock = threading.Lock()  # recordings of a device share their memory
_pools: dict[torch.device, Any] = {}
_shared: OrderedDict[Hashable, "Recorded"] = OrderedDict()


class Changeable(Exception):
    """A function reads a value that can change after the function was recorded."""


def key_of(value: Any) -> Hashable:
    """Equal for functions of the same code that close over the same values, and for equal constants.

    Everything that such a function reads is part of its key, so no setting can be forgotten. Other objects are told
    apart by identity; a recording keeps its function, and so these objects, alive.
    """
    if isinstance(value, _CONSTANT):
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)  # tells 0.0 from -0.0
    if isinstance(value, tuple):
        return tuple, *map(key_of, value)
    if isinstance(value, functools.partial):
        return functools.partial, key_of(value.func), key_of(value.args), key_of(tuple(sorted(value.keywords.items())))
    if isinstance(value, types.MethodType):
        return key_of(value.__func__), key_of(value.__self__)
    if isinstance(value, types.FunctionType):
        closed_over = tuple(cell.cell_contents for cell in value.__closure__ or ())
        options = tuple(sorted((value.__kwdefaults__ or {}).items()))
        return value.__code__, id(value.__globals__), key_of((closed_over, value.__defaults__, options))
    if type(value).__hash__ is None:  # lists, dicts, arrays
        raise Changeable(f"{type(value).__name__} can change")
    if dataclasses.is_dataclass(value) and type(value).__hash__ is not object.__hash__:  # frozen, compared by value
        return type(value), *(key_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    return id(value)


def compiled(function: Function, owner: Any, *also: Hashable) -> Function:
    """`function` replayed from a recording once it was called a few times; see `Accelerator.compiled`.

    also: part of the key, for what `owner` changes.
    """
    try:
        key = key_of(function), also
    except Changeable:
        return function
    recordings = _shared if owner is None else vars(owner).setdefault("_recordings", OrderedDict())
    with _lock:
        recorded = recordings.setdefault(key, Recorded(function))
        recordings.move_to_end(key)
        if len(recordings) > _FUNCTIONS:
            recordings.popitem(last=False)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        replayed = recorded(*inputs)
        return function(*inputs) if replayed is None else replayed

    return run  # type: ignore[return-value]


class Recorded:
    """Replays a function of tensors that returns tensors. None on a CPU, for the first calls, or if that fails.

    The function must depend only on its arguments and on constants, and must not wait for the GPU. The caller computes
    the first calls itself, so all constants exist when the function is recorded. Results are the same either way.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._function = function
        self._calls: Counter[Any] = Counter()
        self._graphs: OrderedDict[Any, _Graph | None] = OrderedDict()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...] | None:
        if inputs[0].device.type != "cuda":
            return None
        key = tuple((tensor.device, tensor.dtype, tensor.shape) for tensor in inputs)
        with _lock:
            self._calls[key] += 1
            if self._calls[key] <= _AFTER:
                return None
            if key not in self._graphs:
                self._graphs[key] = _record(self._function, inputs)
                if len(self._graphs) > _KEPT:
                    del self._calls[self._graphs.popitem(last=False)[0]]
            self._graphs.move_to_end(key)
            graph = self._graphs[key]
            return None if graph is None else graph.replay(inputs)


def plain(settings: Mapping[str, Any]) -> bool:
    """Whether all settings are numbers and strings, which cannot change after a function was recorded."""
    return all(value is None or isinstance(value, (int, float, str)) for value in settings.values())


class _Graph:
    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: list[Tensor], outputs: tuple[Tensor, ...]) -> None:
        self._graph, self._inputs, self._outputs = graph, inputs, outputs

    def replay(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._graph.replay()
        # Copies, because the next replay on this device overwrites the outputs.
        return tuple(output.clone() for output in self._outputs)


def _record(function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...]) -> _Graph | None:
    device = inputs[0].device
    with torch.cuda.device(device):
        own = [tensor.clone() for tensor in inputs]
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(*own)  # libraries set up their workspace for the stream
            stream.synchronize()
            pool = _pools.setdefault(device, torch.cuda.graph_pool_handle())
            try:
                # torch.cuda.graph would also collect garbage and empty the cache, which takes half a second.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    outputs = function(*own)
                finally:
                    graph.capture_end()
            except RuntimeError:  # it waits for the GPU, or does something else that a graph cannot record
                graph.reset()
                del _pools[device]  # later recordings cannot use its memory
                generator = torch.cuda.default_generators[torch.cuda.current_device()]
                generator.graphsafe_set_state(generator.clone_state())  # its state is still marked as recording
                return None
        torch.cuda.current_stream().wait_stream(stream)
    return _Graph(graph, own, outputs)
