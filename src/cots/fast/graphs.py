"""Recorded calls: a CUDA graph launches all kernels of a repeatedly called function at once.

For small batches, launching kernels one by one takes longer than running them.
"""

import dataclasses
import functools
import threading
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..accelerate import Function

_AFTER = 2  # calls with the same shapes before they are recorded
_KEPT = 8  # recordings per function; the least recently used is dropped
_FUNCTIONS = 32  # functions with recordings per owner
_CONSTANT = (type(None), bool, int, str, torch.dtype, torch.device)
_lock = threading.RLock()  # recordings of a device share their memory
_pools: dict[torch.device, Any] = {}
_shared: OrderedDict[Hashable, "Recorded"] = OrderedDict()


class Changeable(Exception):
    """A function reads a value that can change without notice."""


def key_of(value: Any) -> Hashable:
    """Equal for functions of the same code that close over the same values, and for equal constants.

    Everything that such a function reads is part of its key, so no setting can be forgotten. Other objects are told
    apart by identity; a recording keeps its function, and so these objects, alive.
    """
    if isinstance(value, _CONSTANT):
        return type(value), value
    if isinstance(value, float):
        return float, repr(value)  # tells 0.0 from -0.0
    if isinstance(value, (tuple, list)):
        return type(value), *map(key_of, value)
    if isinstance(value, dict):
        return dict, *((key_of(name), key_of(item)) for name, item in value.items())
    if isinstance(value, functools.partial):
        return functools.partial, key_of(value.func), key_of(value.args), key_of(value.keywords)
    if isinstance(value, types.MethodType):
        return key_of(value.__func__), key_of(value.__self__)
    if isinstance(value, types.FunctionType):
        closed_over = tuple(cell.cell_contents for cell in value.__closure__ or ())
        return value.__code__, id(value.__globals__), key_of((closed_over, value.__defaults__, value.__kwdefaults__))
    if isinstance(value, Tensor) or type(value).__hash__ is None:
        raise Changeable
    if dataclasses.is_dataclass(value) and type(value).__hash__ is not object.__hash__:  # frozen, compared by value
        return type(value), *(key_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    return id(value)


def compiled(function: Function, owner: Any, *also: Hashable) -> Function:
    """`function` replayed from a recording once it was called a few times; see `Accelerator.compiled`.

    also: part of the key, for what `owner` changes.
    """
    recordings = _shared if owner is None else vars(owner).setdefault("_recordings", OrderedDict())

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        if not on_gpu(inputs[0]):
            return function(*inputs)
        try:
            key = key_of(function), also
        except Changeable:
            return function(*inputs)
        with _lock:
            recorded = recordings.setdefault(key, Recorded())
            recordings.move_to_end(key)
            if len(recordings) > _FUNCTIONS:
                recordings.popitem(last=False)
            replayed = recorded.replay(function, inputs)
        return function(*inputs) if replayed is None else replayed

    return run


def on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


class Recorded:
    """The recordings of one function, by the shapes of its inputs.

    The first calls run as they are, so all constants exist when the function is recorded. A function that cannot be
    recorded always runs as it is. Results are the same either way.
    """

    def __init__(self) -> None:
        self._calls: Counter[Any] = Counter()
        self._graphs: OrderedDict[Any, _Graph | None] = OrderedDict()

    def replay(self, function: Function, inputs: Sequence[Tensor]) -> Any:
        """The function's results, or None for the first calls and if it cannot be recorded."""
        key = tuple((tensor.device, tensor.dtype, tensor.shape) for tensor in inputs)
        self._calls[key] += 1
        if self._calls[key] <= _AFTER:
            return None
        if key not in self._graphs:
            self._graphs[key] = record(function, inputs)
            if len(self._graphs) > _KEPT:
                del self._calls[self._graphs.popitem(last=False)[0]]
        self._graphs.move_to_end(key)
        graph = self._graphs[key]
        return None if graph is None else graph.replay(inputs)


@dataclasses.dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]
    function: Callable[..., Any]  # keeps alive what the graph reads

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        # Copies, because the next replay on this device overwrites the outputs.
        return tuple(output.clone() for output in self.outputs)


def record(function: Function, inputs: Sequence[Tensor]) -> _Graph | None:
    """A recording of one call; None if that is not possible."""
    device = inputs[0].device
    with torch.cuda.device(device):
        with torch.inference_mode(False):  # in it, they could not be overwritten later
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
    return _Graph(graph, own, outputs, function)
