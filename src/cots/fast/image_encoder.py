"""Image encoders with less overhead than the model's own forward."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arrays import one_thread_each
from ..backbones import Backbone, ImageEncoder, MiniImages
from .fold import fold_model
from .graphs import compiled
from .image_tower import ImageTower
from .kernels import power_of_two

_MINI_IMAGES = 16  # of `mini` per pass on one core; the 64 views of one sample keep many cores busy too


def image_encoder(backbone: Backbone) -> ImageEncoder | None:
    """The encoder for a backbone: a vision transformer's, or one with folded batch norms; None for other models."""
    visual = getattr(backbone.model, "visual", None)
    if ImageTower.supports(visual):
        return TowerEncoder(backbone)
    height, width = backbone.image_size
    pixels = torch.linspace(-1, 1, 3 * height * width, dtype=backbone.dtype, device=backbone.device)
    folded = fold_model(backbone.model, pixels.reshape(1, 3, height, width), pack=backbone.precision == "float32")
    return None if folded is None else FoldedEncoder(backbone, folded)


class TowerEncoder(ImageEncoder):
    """A vision transformer in the chosen precision; on a GPU, recorded."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.tower = ImageTower(self.model.visual, self.precision or self.dtype)

    @torch.no_grad()
    def features(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return (F.normalize(self.tower.features(pixels), dim=-1),)

    def encode(self, pixels: Tensor) -> Tensor:
        pixels = pixels.to(self.device, non_blocking=True)
        if len(pixels) > self.at_once:
            return self.features(pixels)[0]
        count = len(pixels)
        if self.device.type == "cuda":
            blank = recorded_size(count, self.at_once) - count
            pixels = F.pad(pixels, (0, 0, 0, 0, 0, 0, 0, blank)) if blank else pixels
        # Also large passes: in a server, other threads hold the interpreter's lock between two launches.
        return compiled(self.features, self)(pixels)[0][:count]


def recorded_size(count: int, most: int) -> int:
    """The number of images to record for a pass of `count`: few sizes, because each needs its own recording.

    Photos that end after different rounds leave passes of any size.
    """
    step = max(1, most // 4)
    return min(most, power_of_two(count) if count <= step else -(-count // step) * step)


class FoldedEncoder(ImageEncoder):
    """A convolutional tower with folded batch norms; on a CPU, each thread takes whole passes."""

    def __init__(self, backbone: Backbone, folded: nn.Module) -> None:
        super().__init__(backbone, folded)
        self.small = isinstance(backbone.model.visual, MiniImages)

    @property
    def at_once(self) -> int:
        images = super().at_once
        if self.small and self.device.type == "cpu":
            images = max(images, min(_MINI_IMAGES, 32 // torch.get_num_threads()))
        return images

    def __call__(self, pixels: Tensor, batch_size: int | None = None) -> Tensor:
        size = batch_size or self.at_once
        if batch_size is None and self.device.type == "cpu":
            size = min(size, -(-len(pixels) // torch.get_num_threads()))  # work for each thread
        parts = pixels.split(size)
        if self.device.type != "cpu" or len(parts) == 1 or torch.get_num_threads() == 1:
            return super().__call__(pixels, batch_size)
        with one_thread_each(on_cpu=True) as pool:
            return torch.cat(list(pool.map(self.encode, parts)))
