"""TTL: test-time low-rank adaptation of the image encoder (Imam et al., WACV 2025)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from .._adam import AdamW
from .._arrays import entropy
from .._errors import InputError, whole_number
from ..backbones import Backbone, with_child
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch, check_tuning

THRESHOLD = 0.4  # nats; views with a higher entropy get less weight


@adapter("ttl", title="TTL", cite="Imam et al., WACV 2025", place=100, takes="pixels")
def ttl(
    batch: Batch,
    *,
    steps: int = 1,
    lr: float = 5e-3,
    rank: int = 16,
    lora_alpha: float = 32.0,
    blocks: int = 3,
    seed: int = 0,
) -> Adapted:
    """Low-rank updates of query and value in the last ViT blocks; the text side stays frozen.

    L = mean over all views of exp(0.4 - H_i).detach() * H_i, the weights not normalised. W' = W + (lora_alpha/rank) B A
    with A drawn once from `seed` (Xavier normal) and B = 0 at the start of every episode. It takes pixels and needs a
    ViT image tower; adapted blocks run in float32.
    """
    check_tuning(steps, lr, rho=1.0)
    task, pixels_BVCHW = batch.task, batch.pixels
    tower = _Tower(task.backbone, blocks)
    down = _draw(tower, rank, seed)
    before, after = [], []
    if len(pixels_BVCHW) == 0:
        none = task.text_features.new_empty(0, pixels_BVCHW.shape[1], len(task.text_features))
        return Adapted(zero_shot_logits=none, logits=none.clone())
    for pixels in pixels_BVCHW:
        zero_shot = tower.start(pixels)
        before.append(zero_shot @ task.text_features.T * task.logit_scale)
        after.append(_episode(tower, down, task, steps, lr, lora_alpha / rank) if steps else before[-1].clone())
    return Adapted(zero_shot_logits=torch.stack(before), logits=torch.stack(after))


def _episode(tower: "_Tower", down: Tensor, task: Task, steps: int, lr: float, scale: float) -> Tensor:
    """Tune one sample: `down` (A) and `up` (B), (blocks, 2, r, W), update query and value of every adapted block."""
    up = torch.zeros_like(down).mT
    optimisers = AdamW(lr=lr), AdamW(lr=lr)

    def logits(up: Tensor, down: Tensor) -> Tensor:
        return task.logit_scale * tower.resume(scale * up @ down) @ task.text_features.T

    for _ in range(steps):
        with torch.enable_grad():
            up_leaf, down_leaf = up.detach().clone().requires_grad_(), down.detach().clone().requires_grad_()
            H_V = entropy(logits(up_leaf, down_leaf))
            loss = ((THRESHOLD - H_V).exp().detach() * H_V).mean()
            gradients = torch.autograd.grad(loss, (up_leaf, down_leaf))
        up, down = (o.step(v, g) for o, v, g in zip(optimisers, (up, down), gradients, strict=True))
    with torch.no_grad():
        return logits(up, down)


def _draw(tower: "_Tower", rank: int, seed: int) -> Tensor:
    whole_number("rank", rank, 1)
    generator = torch.Generator().manual_seed(seed)
    shape = (len(tower.weights), 2, rank, tower.width)
    std = (2.0 / (rank + tower.width)) ** 0.5  # Xavier normal for a (rank, width) matrix
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * std
    return drawn.to(tower.weights[0])


class _Tower:
    """The image tower in two parts: frozen blocks, run once per sample, and the last blocks, which are adapted."""

    def __init__(self, backbone: Backbone, blocks: int) -> None:
        self.backbone = backbone
        visual: Any = backbone.model.visual
        if isinstance(getattr(getattr(visual, "transformer", None), "resblocks", None), nn.ModuleList):
            (outer, inner), self.weight_name = ("transformer", "resblocks"), "attn.in_proj_weight"
        elif _has_attention(getattr(getattr(visual, "trunk", None), "blocks", None)):
            (outer, inner), self.weight_name = ("trunk", "blocks"), "attn.qkv.weight"
        else:
            raise InputError(
                f"ttl adapts the attention of a vision transformer; the image tower of {backbone.name} has none. "
                "Use a ViT backbone, or a text-side method such as tpt."
            )
        self.path = f"{outer}.{inner}"
        whole: Any = visual.get_submodule(self.path)
        whole_number("blocks", blocks, 1, len(whole))
        self.adapted = list(whole)[-blocks:]
        self.weights: list[Tensor] = [block.get_parameter(self.weight_name) for block in self.adapted]
        self.width = self.weights[0].shape[1]
        # The tower with the output of the frozen blocks in their place.
        self.frozen, container = _Frozen(), type(whole)
        rest = [self.frozen, *self.adapted]
        rest = container(*rest) if container is nn.Sequential else container(rest)
        self.visual = with_child(visual, f"{outer}.{inner}", rest)

    def start(self, pixels: Tensor) -> Tensor:
        """Zero-shot features of a sample, which `resume` then adapts."""
        kept: list[Tensor] = []
        handle = self.adapted[0].register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
        try:
            features = self.backbone.forward_images(pixels)
        finally:
            handle.remove()
        self.pixels, self.frozen.output = pixels, kept[0].to(self.backbone.dtype)
        if self.backbone.precision == "float32":
            return features
        # The adapted blocks run in full precision for the gradient. They must do so before the step too, or the
        # rounding of half precision would look like adaptation.
        with torch.no_grad():
            return self.resume(None)

    def resume(self, change: Tensor | None) -> Tensor:
        """Normalised features; change: (blocks, 2, W, W), added to the query and value parts of each projection."""
        weights = {}
        pairs = [] if change is None else zip(self.weights, change, strict=True)
        for i, (weight, (query, value)) in enumerate(pairs, start=1):
            delta = torch.cat([query, torch.zeros_like(query), value])
            weights[f"{self.path}.{i}.{self.weight_name}"] = weight + delta
        return F.normalize(functional_call(self.visual, weights, (self.pixels,)), dim=-1)


def _has_attention(blocks: Any) -> bool:
    """Whether these are timm's transformer blocks; its convolutional networks have `blocks` too."""
    return isinstance(blocks, nn.Sequential) and all(hasattr(getattr(b, "attn", None), "qkv") for b in blocks)


class _Frozen(nn.Module):
    """Stand-in for the frozen blocks: returns their output."""

    output: Tensor

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.output
