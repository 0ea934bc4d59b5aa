"""A run to look at: generated images whose classes are drawn from the model's own probabilities.

So zero-shot is calibrated by construction, up to chance, and whatever sharpens it is over-confident.
"""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cots
from cots import bench
from cots.data import open_dataset
from support.models import tiny

CLASSES = ("tabby cat", "car", "tree", "boat", "flower")
METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")


@functools.cache
def sharp() -> cots.Backbone:
    """The tiny model with a logit scale that spreads its confidence over the whole range."""
    plain = tiny("vit")
    model = copy.deepcopy(plain.model)
    model.logit_scale.data.fill_(math.log(120.0))
    return cots.Backbone(name="tiny-sharp", model=model, tokenizer=plain.tokenizer, preprocess=plain.preprocess)


def write_images(folder: Path, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = [
        Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize((50, 40), Image.Resampling.BICUBIC)
        for _ in range(n)
    ]
    backbone = sharp()
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=1, augmix=False)
    pixels = torch.cat([cots.make_views(image, settings, seed=0) for image in images])
    task = cots.Task(backbone, CLASSES)
    probabilities = (task.logit_scale * backbone.encode_images(pixels) @ task.text_features.T).softmax(-1).numpy()
    for i, (image, p) in enumerate(zip(images, probabilities.astype(float), strict=True)):
        file = folder / CLASSES[rng.choice(len(CLASSES), p=p / p.sum())] / f"{i:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)


def write_run(out: Path, images: Path, n: int = 150, seeds: tuple[int, ...] = (0,), sets: tuple[str, ...] = ("mine",)):
    """A run folder at `out`; the images stay under `images`."""
    for number, name in enumerate(sets):
        write_images(images / name, n, number)
    return bench.run(
        bench.RunConfig(
            model=sharp(),
            datasets=[open_dataset(images / name) for name in sets],
            out=out,
            methods=METHODS,
            seeds=seeds,
            views=2,
            augmix=False,
            batch_size=50,
        )
    )
