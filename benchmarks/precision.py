"""Effect of half precision on real photos: agreement of the class and difference of the confidence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cots
from cots.adapters import Batch
from cots.demo import read_photos


def text_in_half(device: str) -> dict[str, Any]:
    """Text tower under tuned contexts in float16 against float32, on the demo's view features."""
    found: dict[str, Any] = {}
    for method in ("tpt+cots", "tpt+ecots"):
        results = []
        for precision in ("float32", "bfloat16"):
            backbone = cots.load("mini", device=device, precision=precision)
            parts = []
            for photos in read_photos():
                task = cots.Task(backbone, photos.classes)
                features = torch.as_tensor(photos.features).to(device).float()
                parts.append(_predict(method, torch.nn.functional.normalize(features, dim=-1), task))
            results.append(tuple(torch.cat(column) for column in zip(*parts, strict=True)))
        found[method] = _compare(*results)
    return found


def gradients_in_half(device: str) -> dict[str, Any]:
    """The tuner's gradients in half precision against float32, on the demo's view features; all else the same."""
    results: dict[bool, list[tuple[Tensor, Tensor]]] = {True: [], False: []}
    flips = []
    backbone = cots.load("mini", device=device, precision="bfloat16")
    for photos in read_photos():
        features = torch.nn.functional.normalize(torch.as_tensor(photos.features).to(device).float(), dim=-1)
        signs = []
        for half, parts in results.items():
            task = cots.Task(backbone, photos.classes)
            assert task.tower.half_gradients  # pyright: ignore
            task.tower.half_gradients = half  # pyright: ignore
            task.expect(0, exactly=True)
            parts.append(_predict("tpt+cots", features, task))
            signs.append(Batch(features, task).entropy_gradient(0.1)[1].sign())
        flips.append((signs[0] != signs[1]).float().mean(dim=(1, 2)))
    exact, half = (tuple(torch.cat(column) for column in zip(*results[h], strict=True)) for h in (False, True))
    return {"sign_flips": float(torch.cat(flips).mean()), **_compare(exact, half)}


def photos_in_half(device: str, folder: Path | None, limit: int = 100) -> dict[str, Any] | None:
    """Image encoder in bfloat16 against float32, on photos in class folders."""
    if folder is None:
        return None
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in {".jpg", ".jpeg", ".png"})
    step = max(1, len(files) // limit)
    files = files[::step][:limit]
    classes = sorted({file.parent.name for file in files})
    results = []
    for precision in ("float32", "bfloat16"):
        backbone = cots.load("mini", device=device, precision=precision)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cots.UntrainedWordWarning)
            classifier = cots.Classifier(backbone, classes, "tpt+cots", views=64)
        done = classifier(files)
        good = [p for p in done if p.error is None]
        results.append((
            torch.tensor([p.classes.index(p.label) for p in good]), torch.tensor([p.confidence for p in good])
        ))  # fmt: skip
    return {"tpt+cots": _compare(*results)}


def _predict(method: str, features: Tensor, task: cots.Task) -> tuple[Tensor, Tensor]:
    adapter, calibrator = method.split("+")
    adapted = cots.adapt(adapter, features, task)
    result = cots.calibrate(adapted.logits, adapted.zero_shot_logits, method=calibrator, alpha=task.alpha)
    return result.prediction.cpu(), result.confidence.cpu()


def _compare(exact: tuple[Tensor, Tensor], half: tuple[Tensor, Tensor]) -> dict[str, float]:
    difference = (exact[1] - half[1]).abs()
    return {
        "photos": len(difference),
        "same_class": float((exact[0] == half[0]).float().mean()),
        "mean_difference": float(difference.mean()),
        "p99_difference": float(difference.quantile(0.99)),
        "largest_difference": float(difference.max()),
    }
