"""Calibrate dense predictions: every pixel of synthetic maps, then every patch of an open_clip ViT.

    uv run python examples/dense_prediction.py

`cots.calibrate` takes logits (images, views, classes, height, width) and treats each pixel as a sample. Views must be
aligned, so that a pixel shows the same spot in all of them: only change colours, or undo crops and flips first.
"""

from pathlib import Path

import numpy as np
import torch
from open_clip import SimpleTokenizer
from open_clip.model import CLIP
from torch.nn import functional as F

import cots

VIEWS, CLASSES = 12, ["cat", "grass", "sky", "wall"]


def synthetic(side: int = 32) -> dict[str, tuple[float, float, float]]:
    """Accuracy, mean confidence and ECE in %, of maps whose adaptation made every pixel over-confident."""
    draws = torch.Generator().manual_seed(0)
    label = torch.randint(len(CLASSES), (2, side, side), generator=draws)
    signal = 1.2 * F.one_hot(label, len(CLASSES)).permute(0, 3, 1, 2)[:, None]
    zero_shot = signal + torch.randn(2, VIEWS, len(CLASSES), side, side, generator=draws)
    adapted = 3.0 * zero_shot
    mask = torch.ones(2, side, side, dtype=torch.bool)
    mask[:, :2] = False  # unlabelled rows
    found = {}
    for method in ("none", "cots"):
        result = cots.calibrate(adapted, zero_shot, method, mask=mask)
        correct, confidence = (result.prediction == label)[mask], result.confidence[mask]
        ece = float(cots.metrics.ece(confidence.numpy(), correct.numpy()))
        found[method] = (100 * float(correct.float().mean()), 100 * float(confidence.mean()), 100 * ece)
    return found


def patches(photo: Path) -> cots.Calibrated:
    """The patches of a photo against class texts. The weights are random: this shows the shapes, not a segmentation."""
    torch.manual_seed(0)
    vision = {"image_size": 96, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32}
    text = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    model = CLIP(embed_dim=32, vision_cfg=vision, text_cfg=text).eval()
    image = torch.from_numpy(np.array(cots.read_image(photo).resize((96, 96)))).permute(2, 0, 1) / 255
    views = torch.stack([image, *(image * (0.6 + 0.8 * torch.rand(3, 1, 1)) for _ in range(VIEWS - 1))])
    with torch.no_grad():
        model.visual.output_tokens = True
        _, tokens = model.visual(views)  # (V, patches, width)
        features = F.normalize(tokens @ model.visual.proj, dim=-1)
        prompts = SimpleTokenizer()([f"a photo of a {name}." for name in CLASSES], context_length=16)
        texts = F.normalize(model.encode_text(prompts), dim=-1)
        zero_shot = (20 * features @ texts.T).mT.unflatten(-1, (6, 6))[None]  # (1, V, K, 6, 6)
    adapted = 2 * zero_shot  # stands for any adaptation that sharpens the patches' logits
    return cots.calibrate(adapted, zero_shot, "ecots", alpha=cots.mean_similarity(texts))


def main() -> None:
    print("synthetic pixels     accuracy  confidence    ECE")
    for method, row in synthetic().items():
        print(f"{method:18}" + "".join(f"{value:10.1f}%" for value in row))
    result = patches(Path(__file__).parent / "photos" / "cat.jpg")
    shapes = {name: tuple(getattr(result, name).shape) for name in ("probabilities", "confidence", "tau", "views")}
    print("patches of a ViT:", ", ".join(f"{name} {shape}" for name, shape in shapes.items()))


if __name__ == "__main__":
    main()
