"""Cost of one more method on cached features: milliseconds per sample at K classes, against a target of 1 ms.

    python3 benchmarks/toolbox.py --device cuda --out toolbox.json
    python3 benchmarks/toolbox.py --device cpu --classes 100 --samples 16

Features are random unit vectors of CLIP ViT-B/16's width under a model with random weights; speed does not depend on
them. A method uses view features and zero-shot logits that another method has computed, as in `cots run`. An
online method is timed in the middle of a stream, after as many samples as are timed.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from clock import Clock
from speed import ARCH, VIEWS, class_names, random_features

import cots
from cots.adapters import ADAPTERS, Batch, adapt_batch

TARGET = 1.0  # milliseconds per sample
SLOW = ("zeroshot", "ttl")  # nothing to add; takes pixels


# CLIP's seven templates, https://github.com/openai/CLIP/blob/main/notebooks/Prompt_Engineering_for_ImageNet.ipynb
SEVEN = (
    "itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.", "a {} in a video game.",
    "art of the {}.", "a photo of the small {}.",
)  # fmt: skip
WORDS = Path(__file__).with_name("attributes.json")


def needs(names: list[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """Options of the tasks that methods need, with the methods of each: ReTA several texts, TCA attributes."""
    alone = [name for name in names if name not in ("reta", "tca")]
    return [
        ({}, alone),
        ({"attributes": WORDS}, [name for name in names if name == "tca"]),
        ({"template": SEVEN}, [name for name in names if name == "reta"]),
    ]


def methods() -> list[str]:
    return [info.name for info in ADAPTERS.infos() if info.name not in SLOW and "(" not in info.name]


def one_more(clock: Clock, name: str, task: cots.Task, views: int, samples: int, calibrator: str) -> float:
    """Milliseconds per sample of a method on a batch that another has run on."""
    before, batch = (random_features(samples, views, task.backbone) for _ in range(2))
    settings: dict[str, Any] = {"length": 2 * samples} if "length" in ADAPTERS.settings(name) else {}
    if ADAPTERS.info(name).online:
        settings["state"] = cots.adapt(name, before, task, **settings).state
    shared = Batch(batch, task, shared=True)
    adapt_batch("tps" if task.averaged else "tpt", shared, {})

    def add() -> Any:
        adapted = adapt_batch(name, shared, settings)
        return cots.calibrate(adapted.logits, adapted.zero_shot_logits, method=calibrator, alpha=task.alpha)

    return clock.ms(add, repeats=3, warm=1) / samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--samples", type=int, default=256, help="in a batch; as many precede it in a stream")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    torch.manual_seed(0)
    clock = Clock(given.device)
    backbone = cots.load(ARCH, device=given.device, precision="bfloat16" if clock.cuda else "float32")
    classes = class_names(given.classes)
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if clock.cuda else platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "classes": given.classes,
        "samples": given.samples,
        "views": VIEWS,
        "milliseconds": {},
    }
    tasks = {}
    for options, own in needs(methods()):
        if "attributes" in options:
            options = {"attributes": {name: ["old", "new"] for name in classes}}
        task = cots.Task(backbone, classes, **options)
        task.expect(1024)
        tasks |= dict.fromkeys(own, task)
    for name in methods():
        task = tasks[name]
        alone, with_cots = (one_more(clock, name, task, VIEWS, given.samples, c) for c in ("none", "cots"))
        found["milliseconds"][name] = {"kind": ADAPTERS.info(name).kind, "alone": alone, "cots": with_cots}
        holds = "ok" if with_cots <= TARGET else "NO"
        clock.say(f"{holds} {name:<14} {alone:7.3f} ms alone, {with_cots:7.3f} ms with CoTS, at most {TARGET:g} ms")
        if given.out:  # keep what was measured if a later method fails
            given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
