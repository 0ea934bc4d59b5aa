"""The three photo sets in the benchmark's layout: their files, their held-out part, the ways a photo is viewed."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop

SETS = {
    "pets": ("oxford_pets", "split_zhou_OxfordPets.json", "images"),
    "caltech": ("caltech-101", "split_zhou_Caltech101.json", "101_ObjectCategories"),
    "flowers": ("oxford_flowers", "split_zhou_OxfordFlowers.json", "jpg"),
}
CATS = {
    "abyssinian", "bengal", "birman", "bombay", "british shorthair", "egyptian mau", "maine coon", "persian", "ragdoll",
    "russian blue", "siamese", "sphynx",
}  # fmt: skip
SIZE = 224


@dataclass(frozen=True)
class Photo:
    path: Path
    label: int
    name: str


def require(path: Path, remedy: str) -> Path:
    """Return the path, or exit with the remedy if nothing exists there."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: {remedy}.")
    return path


def read_split(data: Path, name: str, part: str) -> list[Photo]:
    folder, split, images = SETS[name]
    file = require(data / folder / split, "--data must be a folder in the benchmark's layout, with its splits")
    rows = json.loads(file.read_text())[part]
    return [Photo(data / folder / images / file, label, word) for file, label, word in rows]


def class_names(data: Path, name: str) -> list[str]:
    names = {p.label: p.name for p in read_split(data, name, "train")}
    return [names[i] for i in range(len(names))]


def held_out(photos: list[Photo], fraction: float, seed: int = 0) -> Tensor:
    """A seeded share of every class, held out of training to fit the gains and the logit scale."""
    rng, mask = random.Random(seed), torch.zeros(len(photos), dtype=torch.bool)
    for label in sorted({p.label for p in photos}):
        mine = [i for i, p in enumerate(photos) if p.label == label]
        rng.shuffle(mine)
        mask[mine[: round(fraction * len(mine))]] = True
    return mask


def open_photo(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def weak(image: Image.Image, size: int = SIZE) -> Image.Image:
    return F.center_crop(F.resize(image, size, InterpolationMode.BICUBIC), [size, size])


def strong(image: Image.Image, rng: random.Random, low: float = 0.08, high: float = 1.0) -> Image.Image:
    torch.manual_seed(rng.getrandbits(31))
    box = RandomResizedCrop.get_params(image, [low, high], [3 / 4, 4 / 3])
    view = F.resized_crop(image, *box, [SIZE, SIZE], InterpolationMode.BILINEAR)
    return ImageOps.mirror(view) if rng.random() < 0.5 else view


def _small(image: Image.Image, rng: random.Random) -> Image.Image:
    side = rng.randint(64, 110)
    fill = tuple(rng.randint(0, 255) for _ in range(3))
    canvas = Image.new("RGB", (SIZE, SIZE), fill)
    canvas.paste(image.resize((side, side)), (rng.randint(0, SIZE - side), rng.randint(0, SIZE - side)))
    return canvas


def _several(image: Image.Image, rng: random.Random) -> Image.Image:
    half = SIZE // 2
    tile, canvas = image.resize((half, half)), Image.new("RGB", (SIZE, SIZE))
    for x in (0, half):
        for y in (0, half):
            canvas.paste(ImageOps.mirror(tile) if rng.random() < 0.5 else tile, (x, y))
    return canvas


def _noisy(image: Image.Image, rng: random.Random) -> Image.Image:
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    pixels = F.pil_to_tensor(image).float()
    pixels += torch.randn(pixels.shape, generator=generator) * rng.uniform(30, 70)
    return F.to_pil_image(pixels.clamp(0, 255).to(torch.uint8))


def _jpeg(image: Image.Image, rng: random.Random) -> Image.Image:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=rng.randint(3, 9))
    return Image.open(buffer).convert("RGB")


def _sketch(image: Image.Image, rng: random.Random) -> Image.Image:
    """Dodge: the grey photo divided by its blurred negative leaves pencil lines."""
    grey = F.pil_to_tensor(ImageOps.grayscale(image)).float()
    blurred = F.gaussian_blur(255 - grey, [11, 11], [rng.uniform(1.5, 4)])
    return F.to_pil_image((grey * 255 / (256 - blurred)).clamp(0, 255).to(torch.uint8)).convert("RGB")


def _painting(image: Image.Image, rng: random.Random) -> Image.Image:
    return ImageOps.posterize(image.filter(ImageFilter.ModeFilter(rng.choice((7, 9)))), 4)


def _pixelated(image: Image.Image, rng: random.Random) -> Image.Image:
    side = rng.randint(20, 36)
    return image.resize((side, side), Image.Resampling.BILINEAR).resize((SIZE, SIZE), Image.Resampling.NEAREST)


Change = Callable[[Image.Image, random.Random], Image.Image]
CHANGES: dict[str, Change] = {
    "plain": lambda image, rng: image,
    "close-up": lambda image, rng: image,
    "cropped": lambda image, rng: image,
    "grey": lambda image, rng: ImageOps.grayscale(image).convert("RGB"),
    "blurry": lambda image, rng: image.filter(ImageFilter.GaussianBlur(rng.uniform(3, 6))),
    "dark": lambda image, rng: ImageEnhance.Brightness(image).enhance(rng.uniform(0.15, 0.35)),
    "bright": lambda image, rng: ImageEnhance.Brightness(image).enhance(rng.uniform(1.8, 2.6)),
    "pale": lambda image, rng: ImageEnhance.Contrast(image).enhance(rng.uniform(0.12, 0.3)),
    "small": _small,
    "upside down": lambda image, rng: ImageOps.flip(image),
    "tilted": lambda image, rng: image.rotate(rng.choice((-1, 1)) * rng.uniform(25, 70), Image.Resampling.BILINEAR),
    "pixelated": _pixelated,
    "noisy": _noisy,
    "corrupted": _jpeg,
    "negative": lambda image, rng: ImageOps.invert(image),
    "sketch": _sketch,
    "painting": _painting,
    "colorful": lambda image, rng: ImageEnhance.Color(ImageOps.autocontrast(image)).enhance(rng.uniform(2.5, 4)),
    "several": _several,
}


def describe(image: Image.Image, how: str, rng: random.Random) -> Image.Image:
    """A view that the captions of words.DESCRIPTIONS[how] tell apart from the others."""
    if how == "close-up":
        return strong(image, rng, 0.06, 0.15)
    if how == "cropped":
        return strong(image, rng, 0.2, 0.4)
    base = weak(image) if rng.random() < 0.5 else strong(image, rng, 0.6, 1.0)
    return CHANGES[how](base, rng)


def to_input(images: list[Image.Image]) -> Tensor:
    return torch.stack([F.pil_to_tensor(i) for i in images])
