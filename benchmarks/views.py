"""From JPEG files to calibrated probabilities: cost of reading, rendering and the whole way on this machine.

    python benchmarks/views.py --out views.json     # on a GPU: ViT-B/16 in bfloat16, 200 classes, about a minute
    python benchmarks/views.py --quick              # on a CPU: the embedded model, a few images

Each part is timed separately. A part that fails is reported with its error, and the others continue.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image

import cots
from cots.photos import in_threads
from cots.views import ViewMaker, ViewSettings, make_views, read_image

KINDS = ("old", "young", "red", "small", "wild", "wooden", "striped", "snow-covered", "golden", "flying")
THINGS = (
    "cat", "dog", "car", "tree", "house", "bird", "boat", "chair", "cup", "horse", "train", "flower", "bridge", "lamp",
    "shoe", "clock", "bear", "truck", "fish", "tower",
)  # fmt: skip
CLASSES = [f"{kind} {thing}" for kind, thing in itertools.product(KINDS, THINGS)]
TARGETS = {"crop+flip": 100, "augmix": 60}  # images per second on one H200 with 16 cores


def photo(height: int, width: int, seed: int) -> Image.Image:
    """Gradients, edges and fine texture: about 110 kB as a JPEG of 500 x 375 at quality 90."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
    rows, columns = np.mgrid[0:height, 0:width]
    edges = 24 * np.sign(np.sin((rows * rng.normal() + columns * rng.normal()) / 25))
    texture = rng.normal(0, 23, (height, width, 1)) + rng.normal(0, 4, (height, width, 3))
    return Image.fromarray(np.clip(smooth + edges[..., None] + texture, 0, 255).astype(np.uint8))


def write_photos(folder: Path, count: int) -> list[Path]:
    files = []
    for i in range(count):
        file = folder / CLASSES[i % 4] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo(375, 500, i).save(file, quality=90)
        files.append(file)
    return files


def milliseconds(work: Callable[[int], Any], count: int, device: torch.device) -> float:
    """Mean milliseconds of `count` calls after two for warm-up; waits for the GPU."""
    for i in range(2):
        work(i)
    _wait(device)
    start = time.perf_counter()
    for i in range(count):
        work(i)
    _wait(device)
    return 1000 * (time.perf_counter() - start) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Benchmark:
    """The parts of the benchmark and their results."""

    def __init__(self, quick: bool, device: torch.device, folder: Path) -> None:
        self.quick, self.device, self.folder = quick, device, folder
        self.count = 8 if quick else 64  # views per image
        self.found: dict[str, Any] = {"machine": self.machine()}
        self.files = write_photos(folder / "photos", 8 if quick else 64)
        settings = {name: ViewSettings(n=self.count, augmix=name == "augmix") for name in TARGETS}
        self.makers = {name: ViewMaker(views, device) for name, views in settings.items()}

    def machine(self) -> dict[str, Any]:
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        versions = {"python": platform.python_version(), "torch": torch.__version__, "pillow": PIL.__version__}
        return {"device": self.device.type, "gpu": gpu, "cores": os.cpu_count(), "versions": versions}

    def run(self, *parts: str) -> None:
        for part in parts:
            start = time.perf_counter()
            try:
                self.found[part] = getattr(self, part)()
            except Exception as error:
                traceback.print_exc()
                self.found[part] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{part} ({time.perf_counter() - start:.1f} s)\n{json.dumps(self.found[part], indent=1)}", flush=True)

    def reading(self) -> dict[str, Any]:
        """Decoding and preparing, on one core and in threads."""
        files, here = self.files, torch.device("cpu")
        image = read_image(files[0])

        def pick(i: int) -> Path:
            return files[i % len(files)]

        count = 8 if self.quick else 64
        found: dict[str, Any] = {
            "kB per file": round(sum(f.stat().st_size for f in files) / len(files) / 1000, 1),
            "decode ms": milliseconds(lambda i: read_image(pick(i)), count, here),
        }
        for name, maker in self.makers.items():
            found[f"{name}: prepare ms"] = milliseconds(lambda i, maker=maker: maker.prepare(image, i), count, here)

        def whole(i: int) -> None:
            self.makers["augmix"].prepare(read_image(pick(i)), i)

        for threads in (1, 2) if self.quick else (1, 2, 4, 8, 16):
            start = time.perf_counter()
            for _ in in_threads(whole, range(threads * count), threads):
                pass
            found[f"read and prepared in {threads} threads, images/s"] = threads * count / (time.perf_counter() - start)
        return found

    def equality(self) -> dict[str, Any]:
        """Difference of the device's pixels from PIL's, in levels of 255."""
        found = {}
        for name, maker in self.makers.items():
            worst, total, odd, count = 0.0, 0.0, 0, 0
            for i in range(2 if self.quick else 6):
                image = read_image(self.files[i])
                expected = make_views(image, maker.settings, i)
                difference = (maker.render([maker.prepare(image, i)])[0].cpu() - expected).abs()
                levels = 255 * difference * torch.tensor(maker.settings.std).view(3, 1, 1)
                worst, total = max(worst, float(levels.max())), total + float(levels.double().sum())
                odd, count = odd + int((levels > 0.01).sum()), count + levels.numel()
            found[name] = {"max level": worst, "mean level": total / count, "share of pixels that differ": odd / count}
        return found

    def views(self) -> dict[str, Any]:
        """Rendering alone, from memory; "host ms" is the time of the launching thread."""
        found: dict[str, Any] = {}
        image = read_image(self.files[0])
        for name, maker in self.makers.items():
            prepared = [maker.prepare(image, i) for i in range(8)]

            def render(i: int, maker: ViewMaker = maker, prepared: list[Any] = prepared) -> None:
                maker.render([prepared[i % 8]])

            found[name] = {
                "PIL ms": milliseconds(
                    lambda i, maker=maker: make_views(image, maker.settings, i), 3, torch.device("cpu")
                ),
                "device ms": milliseconds(render, 2 if self.quick else 100, self.device),
            }
            if self.device.type == "cuda":
                found[name] |= self.on_gpu(render)
        if not self.quick:
            maker = self.makers["crop+flip"]
            for height, width in ((1500, 2000), (3000, 4000)):
                large = maker.prepare(photo(height, width, 0), 0)
                found[f"{width} x {height}: device ms"] = milliseconds(
                    lambda i, large=large: maker.render([large]), 5, self.device
                )
        return found

    def on_gpu(self, work: Callable[[int], Any]) -> dict[str, Any]:
        """Host time, peak memory, launches and the slowest kernels."""
        torch.cuda.reset_peak_memory_stats()
        _wait(self.device)
        start = time.perf_counter()
        for i in range(10):
            work(i)
        host = 100 * (time.perf_counter() - start)
        _wait(self.device)
        peak = torch.cuda.max_memory_allocated() / 2**20
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for i in range(4):
                work(i)
            _wait(self.device)
        kernels = [e for e in profiled.key_averages() if e.self_device_time_total > 0]
        kernels.sort(key=lambda e: -e.self_device_time_total)
        return {
            "host ms": host,
            "peak MB": peak,
            "launches": sum(e.count for e in kernels) / 4,
            "GPU ms by the profiler": sum(e.self_device_time_total for e in kernels) / 4000,
            "slowest kernels (ms per image)": {e.key[:90]: e.self_device_time_total / 4000 for e in kernels[:12]},
        }

    def whole_way(self, renderers: Sequence[str] = ("gpu", "pil")) -> dict[str, Any]:
        """Classifier on paths with each renderer, and its parts: encoding alone, adapting and calibrating alone."""
        found: dict[str, Any] = {}
        model, precision = ("mini", "float32") if self.quick else ("random:ViT-B-16", "bfloat16")
        backbone = cots.load(model, device=self.device, precision=precision)
        classes = CLASSES[:20] if self.quick else CLASSES
        side = backbone.image_size
        pixels = torch.randn(4, self.count, 3, *side, device=self.device)
        found["encoding ms per image"] = milliseconds(lambda i: backbone.encode_images(pixels), 1 if self.quick else 20,
                                                     self.device) / 4  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cots.UntrainedWordWarning)
            for renderer, name in itertools.product(renderers, TARGETS):
                classifier = cots.Classifier(
                    backbone, classes, "tpt+cots", views=self.count, augmix=name == "augmix", renderer=renderer
                )
                classifier.task.expect(1024)  # as for lists of 1024 photos or more
                count = 4 if self.quick else 256 if renderer == "gpu" else 8
                files = [self.files[i % len(self.files)] for i in range(count)]
                classifier(files[: 4 if self.quick or renderer == "pil" else 32])
                _wait(self.device)
                start = time.perf_counter()
                predictions = classifier(files)
                rate = count / (time.perf_counter() - start)
                assert all(p.error is None for p in predictions)
                found[f"{name}, views by {renderer}: images/s"] = rate
                print(f"{name}, views by {renderer}: {rate:.1f} images/s", flush=True)
            features = backbone.encode_images(pixels).repeat(4, 1, 1)
            task = cots.Task(backbone, classes)

        def adapt(i: int) -> None:
            adapted = cots.adapt("tpt", features, task)
            cots.calibrate(adapted.logits, adapted.zero_shot_logits, method="cots", alpha=task.alpha)

        found["adapting and calibrating ms per image"] = milliseconds(adapt, 2 if self.quick else 10, self.device) / 16
        if not self.quick and self.device.type == "cuda":
            found["targets met"] = {n: found[f"{n}, views by gpu: images/s"] >= TARGETS[n] for n in TARGETS}
        return found

    def bench_run(self) -> dict[str, Any]:
        """`cots.bench` on a folder of the photos: features, then records; reading in threads or processes."""
        from cots import bench

        found = {}
        model, precision = ("mini", "float32") if self.quick else ("random:ViT-B-16", "bfloat16")
        backbone = cots.load(model, device=self.device, precision=precision)
        for name, workers in itertools.product(TARGETS, (0,) if self.quick else (0, 4)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cots.UntrainedWordWarning)
                planned = bench.plan(
                    bench.RunConfig(
                        model=backbone,
                        datasets=[self.folder / "photos"],
                        methods="tpt+cots",
                        views=self.count,
                        workers=workers,
                        augmix=name == "augmix",
                        out=self.folder / f"run-{name}-{workers}",
                        renderer="gpu",
                    )
                )
            start = time.perf_counter()
            planned.run()
            found[f"{name}, {workers} processes: images/s"] = len(self.files) / (time.perf_counter() - start)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, the embedded model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--parts", default="reading,equality,views,whole_way,bench_run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        benchmark = Benchmark(options.quick, torch.device(options.device), Path(folder))
        print(json.dumps(benchmark.found["machine"], indent=1), flush=True)
        benchmark.run(*options.parts.split(","))
    if options.out:
        options.out.write_text(json.dumps(benchmark.found, indent=1))


if __name__ == "__main__":
    main()
