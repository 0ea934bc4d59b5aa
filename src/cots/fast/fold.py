"""Batch norms folded into the convolutions before them: the same features with less memory traffic."""

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..backbones import MiniImages
from .onednn import OpaqueTrunk, Sizes, pack_convolutions

_TOLERANCE = 1e-4  # of normalised features


class _Trace(TorchFunctionMode):
    """Records convolutions and batch norms by the ids of their parameters, and how often each tensor is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_of: dict[int, int] = {}  # output of a convolution -> its weight
        self.norms: list[tuple[int, int]] = []  # input of a batch norm, its running mean
        self.reads: Counter[int] = Counter()
        self._kept: list[Any] = []  # an id is unique only while its tensor lives

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = _tensors([*args, *(kwargs or {}).values()])
        if _tensors([result]):  # a shape or a dtype reads no values
            self.reads.update({id(value) for value in inputs})
        self._kept += [*inputs, result]
        if func is F.conv2d:
            self.weight_of[id(result)] = id(inputs[1])
        elif func is F.batch_norm:
            self.norms.append((id(inputs[0]), id(inputs[1])))
        return result


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    tensors = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _tensors(value)
    return tensors


def fold_model(model: nn.Module, pixels: Tensor, pack: bool) -> nn.Module | None:
    """A copy of a model whose image tower has folded batch norms, with channels-last weights on a CPU; None without.

    pixels, pack: as for `fold_batch_norms`.
    """
    visual, cpu = getattr(model, "visual", None), pixels.device.type == "cpu"
    if visual is None:
        return None
    folded = fold_batch_norms(visual, pixels, pack and cpu and pixels.dtype == torch.float32)
    if folded is None:
        return None
    if cpu:
        folded = folded.to(memory_format=torch.channels_last)
    twin = copy.copy(model)
    twin._modules = {**model._modules, "visual": folded}
    return twin


@torch.no_grad()
def fold_batch_norms(tower: nn.Module, pixels: Tensor, pack: bool = False) -> nn.Module | None:
    """A copy of an image tower with batch norms folded into the convolutions that feed nothing else.

    w' = w * g and b' = beta + (b - mean) * g with g = gamma / sqrt(var + eps). The convolutions keep their own forward
    and padding. pixels `(B,3,H,W)`: example images to trace and compare with. pack: for float32 on a CPU, also reorder
    the weights once for images of this size. None if there is nothing to fold, or if the features of the copy differ.
    The copy shares all other weights with the tower, which stays unchanged.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in tower.modules()):
        return None
    folded = copy.deepcopy(tower, {id(tensor): tensor for tensor in (*tower.parameters(), *tower.buffers())})
    sizes: Sizes = {}

    def note(conv: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes.setdefault(conv, []).append((inputs[0].shape, output.shape))

    hooks = [conv.register_forward_hook(note) for conv in folded.modules() if isinstance(conv, nn.Conv2d)]
    with _Trace() as trace:
        expected = F.normalize(folded(pixels), dim=-1)
    for hook in hooks:
        hook.remove()
    following = _fold_traced(folded, trace)
    pack = pack and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    if pack:
        pack_convolutions(folded, sizes, following)
        if isinstance(folded, MiniImages):
            folded.trunk = OpaqueTrunk(folded.trunk)
    if float((F.normalize(folded(pixels), dim=-1) - expected).abs().max()) <= _TOLERANCE:
        return folded
    return fold_batch_norms(tower, pixels) if pack else None


def _fold_traced(tower: nn.Module, trace: _Trace) -> dict[nn.Module, str]:
    """Fold the batch norms of a traced tower; the name of the module that follows each of these convolutions."""
    convs, norms = {}, {}
    for name, module in tower.named_modules():
        if isinstance(module, nn.Conv2d):
            convs[id(module.weight)] = module
        elif isinstance(module, nn.BatchNorm2d):
            norms[id(module.running_mean)] = name
    following: dict[nn.Module, str] = {}
    for source, mean in trace.norms:
        weight = trace.weight_of.get(source, 0)
        if weight not in convs or mean not in norms or max(trace.reads[i] for i in (source, weight, mean)) > 1:
            continue
        conv, name = convs[weight], norms[mean]
        norm = tower.get_submodule(name)
        if (rest := _after(norm)) is not None:
            _fold(conv, norm)
            tower.set_submodule(name, rest)
            following[conv] = name
    return following


def _fold(conv: nn.Conv2d, norm: Any) -> None:
    var, mean = norm.running_var.double(), norm.running_mean.double()
    gain = (var + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight.double())
    bias = (0.0 if conv.bias is None else conv.bias.double()) - mean
    shift = bias * gain + (0.0 if norm.bias is None else norm.bias.double())
    weight = conv.weight.double() * gain[:, None, None, None]
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)


def _after(norm: Any) -> nn.Module | None:
    """What a batch-norm module does after the norm; None if that is not known."""
    if type(norm) is nn.BatchNorm2d:
        return nn.Identity()
    if type(norm).__name__ == "BatchNormAct2d":
        return nn.Sequential(norm.drop, norm.act)
    return None
