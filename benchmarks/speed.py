"""Speed of cots on a GPU or CPU: the measurements and ratios of docs/performance.md in one run.

    uv run python benchmarks/speed.py --out speed.json            # uses a GPU if there is one
    uv run python benchmarks/speed.py --device cpu --quick
    uv run python benchmarks/speed.py --photos DIR                # also the effect of half precision on predictions

All ratios compare measurements of the same run. Models have random weights; speed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import open_clip
import torch
from clock import METHODS, Clock, show
from naive import Naive
from precision import gradients_in_half, photos_in_half, text_in_half
from torch import Tensor
from torch.nn import functional as F
from views import Benchmark

import cots
from cots.adaptation import Pipeline
from cots.adapters import Batch, adapt_batch

VIEWS = 64
MANY = 1024  # samples, for which a GPU computes the Jacobian of the text features
ARCH = "random:ViT-B-16-quickgelu"  # the architecture of OpenAI's CLIP ViT-B/16, which has QuickGELU
NAMES = tuple(dict.fromkeys(open_clip.IMAGENET_CLASSNAMES))


ADJECTIVES = ("old", "small", "red", "blue", "big", "new", "dark", "wet", "dry", "hot", "cold", "long", "short", "thin",
              "thick", "round", "flat", "soft", "hard", "bright")  # fmt: skip


def class_names(count: int) -> list[str]:
    """ImageNet's names, then the same names with an adjective."""
    return [*NAMES, *(f"{word} {name}" for word in ADJECTIVES for name in NAMES)][:count]


def random_features(samples: int, views: int, backbone: cots.Backbone) -> Tensor:
    """Unit vectors in a cone, like image features."""
    width = 512
    centre = torch.randn(samples, 1, width, device=backbone.device)
    return F.normalize(centre + 0.5 * torch.randn(samples, views, width, device=backbone.device), dim=-1)


def vit_operations() -> dict[str, float]:
    """FLOP of 64 views of ViT-B/16: the plain forward, and with the last block at the class token only."""
    tokens, width = 197, 768
    linear, attention = 12 * width**2 * tokens, 2 * tokens**2 * width
    plain = 12 * (linear + attention) + 196 * width * 768
    saved = 10 * width**2 * (tokens - 1) + attention
    return {"plain": 2.0 * VIEWS * plain, "done": 2.0 * VIEWS * (plain - saved)}


def matmul_rate(clock: Clock) -> dict[str, float]:
    """FLOP/s of large bf16 matrix products; the best is the reference rate."""
    found = {}
    for n in (4096, 8192, 16384):
        a, b = (torch.randn(n, n, device=clock.device, dtype=torch.bfloat16) for _ in range(2))
        found[str(n)] = 2 * n**3 / clock.ms(lambda a=a, b=b: a @ b) * 1e3
    return found


def images(clock: Clock, backbone: cots.Backbone, samples: int) -> dict[str, Any]:
    pixels = torch.randn(samples * VIEWS, 3, *backbone.image_size, device=clock.device)
    ours = clock.ms(lambda: backbone.encode_images(pixels)) / samples
    plain = clock.ms(lambda: backbone.forward_images(pixels[:VIEWS]))
    return {"ms": ours, "samples": samples, "model_own_forward_ms": plain}


def tune(name: str, features: Tensor, task: cots.Task) -> Any:
    """One method on one batch, with all the work it shares with others."""
    adapter, calibrator = name.split("+")
    adapted = cots.adapt(adapter, features, task)
    return cots.calibrate(adapted.logits, adapted.zero_shot_logits, method=calibrator, alpha=task.alpha)


def text_side(clock: Clock, backbone: cots.Backbone, classes: int, batch: int, naive_samples: int) -> dict[str, Any]:
    """From view features to calibrated probabilities, by cots and by the published way."""
    names = class_names(classes)
    features = random_features(batch, VIEWS, backbone)
    clock.reset_memory()

    def make() -> cots.Task:
        task = cots.Task(backbone, names)
        task.expect(MANY)
        task.pull_back(torch.zeros(1, *task.text_features.shape, device=clock.device))
        return task

    setup_ms, task = clock.once(make)
    found: dict[str, Any] = {"classes": classes, "batch": batch, "setup_s": setup_ms / 1e3}
    for method in METHODS if clock.cuda else METHODS[:2]:
        found[method] = clock.ms(lambda method=method: tune(method, features, task)) / batch
    shared = Batch(features, task, shared=True)
    adapt_batch("tpt", shared, {})

    def add() -> Any:
        """One more method on a batch that another has run on: the entropy gradient is known."""
        adapted = adapt_batch("ctpt", shared, {})
        return cots.calibrate(adapted.logits, adapted.zero_shot_logits, method="cots")

    found["added_method"] = clock.ms(add) / batch
    few = features[:16]
    found["batch_of_16"] = clock.ms(lambda: tune("tpt+cots", few, task)) / len(few)
    found["peak_gib"] = clock.peak_gib()
    if clock.cuda:
        found["one_photo"] = one_photo(clock, task)
        found["one_photo_exact"] = one_photo(clock, task, solver="exact")
        found |= without_jacobian(clock, cots.Task(backbone, names), features)
    naive = Naive(backbone, names, half=clock.cuda)
    sample = features[0]
    zero_shot, adapted = naive.tune(sample)
    found["naive_tune"] = clock.ms(lambda: naive.tune(sample), repeats=naive_samples, warm=1)
    found["naive_temperature"] = clock.ms(lambda: naive.temperature(zero_shot, adapted), repeats=naive_samples, warm=1)
    result = tune("tpt+cots", features, task)
    found["difference"] = float((result.probabilities[0] - naive.cots(sample)).abs().max())
    return found


def without_jacobian(clock: Clock, task: cots.Task, features: Tensor) -> dict[str, Any]:
    """As for class lists that are new: per sample of a batch through the public functions, and one photo."""
    task.expect(0, exactly=True)
    sizes = (8, len(features))
    batches = {str(n): clock.ms(lambda n=n: tune("tpt+cots", features[:n], task)) / n for n in sizes}
    return {"without_jacobian": batches, "one_photo_without_jacobian": one_photo(clock, task)}


def one_photo(clock: Clock, task: cots.Task, solver: str = "adam") -> float:
    """From the pixels of 64 views on the GPU to calibrated probabilities, in milliseconds of the wall clock."""
    pixels = torch.randn(1, VIEWS, 3, *task.backbone.image_size, device=clock.device)
    pipeline = Pipeline(task, ["tpt+cots"], calibrator_settings={"cots": {"solver": solver}})
    return clock.wall(lambda: pipeline.run(task.backbone.encode_images(pixels)))


def many_classes(clock: Clock, backbone: cots.Backbone) -> dict[str, dict[str, float | None]]:
    """Cost and memory without the Jacobian, batches of 16, as the number of classes grows."""
    features, found = random_features(16, VIEWS, backbone), {}
    for classes in (1000, 5000, 20000):
        clock.reset_memory()
        task = cots.Task(backbone, class_names(classes))
        task.expect(0, exactly=True)
        per_sample = clock.ms(lambda task=task: tune("tpt+cots", features, task), repeats=3) / len(features)
        found[str(len(task.classes))] = {"ms": per_sample, "peak_gib": clock.peak_gib()}
    return found


def calibration(clock: Clock, classes: int, batch: int) -> dict[str, Any]:
    zero_shot = 5 * torch.randn(batch, VIEWS, classes, device=clock.device)
    adapted = 1.5 * zero_shot + 0.2 * torch.randn(batch, VIEWS, classes, device=clock.device)
    clock.reset_memory()
    found: dict[str, Any] = {"classes": classes, "batch": batch}
    for solver in ("adam", "exact"):
        found[solver] = clock.ms(
            lambda solver=solver: cots.calibrate(adapted, zero_shot, method="cots", solver=solver), repeats=5
        ) / batch  # fmt: skip
    found["peak_gib"] = clock.peak_gib()
    found["logits_gib"] = 2 * adapted.numel() * 4 / 2**30
    return found


def scaling(clock: Clock, backbone: cots.Backbone, quick: bool) -> dict[str, list[list[float]]]:
    """Milliseconds of TPT + CoTS per batch against samples, views (on a GPU including encoding) and classes."""
    base_classes = 47 if quick else 200
    task = cots.Task(backbone, class_names(base_classes))
    task.expect(MANY)
    found: dict[str, list[list[float]]] = {"samples": [], "views": [], "classes": []}
    for samples in (4, 8, 16) if quick else (16, 32, 64, 128, 256):
        x = random_features(samples, VIEWS, backbone)
        found["samples"].append([samples, clock.ms(lambda x=x: tune("tpt+cots", x, task), repeats=5)])
    for views in (16, 32, 64) if quick else (16, 32, 64, 128, 256):
        x = random_features(4, views, backbone)
        pixels = torch.randn(4 * views, 3, *backbone.image_size, device=clock.device) if clock.cuda else None

        def episodes(x: Tensor = x, pixels: Tensor | None = pixels) -> None:
            if pixels is not None:
                backbone.encode_images(pixels)
            tune("tpt+cots", x, task)

        found["views"].append([views, clock.ms(episodes, repeats=5)])
    for classes in (10, 20, 47) if quick else (10, 20, 50, 100, 200, 500, 1000):
        many = cots.Task(backbone, class_names(classes))
        many.expect(MANY)
        x = random_features(16 if quick else 64, VIEWS, backbone)
        found["classes"].append([classes, clock.ms(lambda x=x, many=many: tune("tpt+cots", x, many), repeats=5)])
    return found


def whole_way(quick: bool, device: str, renderer: str) -> dict[str, Any]:
    """From JPEG files to calibrated probabilities."""
    with tempfile.TemporaryDirectory() as folder:
        return Benchmark(quick, torch.device(device), Path(folder)).whole_way((renderer,))


def on_gpu(clock: Clock, photos: Path | None, found: dict[str, Any]) -> None:
    backbone = cots.load(ARCH, device="cuda", precision="bfloat16")
    found |= {"matmul": matmul_rate(clock), "operations": vit_operations()}
    found["images"] = {str(n): images(clock, backbone, n) for n in (1, 4, 16)}
    clock.say("image encoder done")
    found["text"] = {}
    naive = Naive(backbone, class_names(2), half=True)
    pixels = torch.randn(VIEWS, 3, *backbone.image_size, device="cuda")
    found["naive_images"] = clock.ms(lambda: naive.images(pixels))
    for classes in (47, 200, 1000):
        found["text"][str(classes)] = text_side(clock, backbone, classes, 64, 10)
        clock.say(f"K = {classes} done")
    found["many_classes"] = many_classes(clock, backbone)
    found["calibration"] = [calibration(clock, k, b) for k in (47, 200, 1000) for b in (256, 1024)]
    clock.say("calibration done")
    found["gradients"] = gradients_in_half("cuda")
    found["precision"] = {"text": text_in_half("cuda"), "images": photos_in_half("cuda", photos)}
    clock.say("precision done")
    found["scaling"] = scaling(clock, backbone, quick=False)
    clock.say("scaling done")
    found["files"] = whole_way(quick=False, device="cuda", renderer="gpu")


def on_cpu(clock: Clock, quick: bool, photos: Path | None, found: dict[str, Any]) -> None:
    backbone = cots.load(ARCH, device="cpu")
    found["text"] = {"37": text_side(clock, backbone, 37, 16, 2)}
    clock.say("text side done")
    found["calibration"] = [calibration(clock, 37, 256)]
    mini = {p: cots.load("mini", device="cpu", precision=p) for p in ("float32", "bfloat16")}
    pixels = torch.randn(VIEWS, 3, *mini["float32"].image_size)
    found["images"] = {p: clock.ms(lambda b=b: b.encode_images(pixels), repeats=3) for p, b in mini.items()}
    features = [b.encode_images(pixels) for b in mini.values()]
    found["images"]["difference"] = float((features[0] - features[1]).abs().max())
    found["images"]["distance"] = float((features[0] - features[1]).norm(dim=-1).max())
    clock.say("image encoder done")
    if not quick:
        found["scaling"] = scaling(clock, backbone, quick=True)
    found["precision"] = {"images": photos_in_half("cpu", photos)}
    clock.say("precision done")
    found["files"] = whole_way(quick=True, device="cpu", renderer="pil")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="skip the slowest parts on a CPU")
    parser.add_argument("--photos", type=Path, help="folder of class folders, to measure the effect of precision")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    torch.manual_seed(0)
    clock = Clock(given.device)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name()
        if clock.cuda
        else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    try:
        if clock.cuda:
            on_gpu(clock, given.photos, found)
        else:
            on_cpu(clock, given.quick, given.photos, found)
    finally:  # keep what was measured if a later part fails
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(show(found))


if __name__ == "__main__":
    main()
