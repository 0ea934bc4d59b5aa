"""Whether GPUs with less memory work and give the same results: one process per size, limited to that share of a GPU.

    uv run python benchmarks/small_card.py --out benchmarks/results/h200-small.json

Each process runs pictures, 64 views, image encoder in bfloat16, TPT and E-CoTS with 1000 classes; ViT-B/16 also with
the Jacobian, where it fits. Allocating more than the limit is an error, so a process that exits normally kept to it.
The results are compared with those of a process that uses the whole GPU. Weights and pictures are random but the same
in all processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed import class_names

import cots
from cots.fast.memory import card_bytes, limit_memory

SMALL, LARGE = "random:ViT-B-16-quickgelu", "random:ViT-L-14-quickgelu"
MODELS = {SMALL: (0, 16, 8, 4), LARGE: (0, 12, 8, 6)}  # GiB; 0: the whole card
PICTURES, CLASSES = 64, 1000


def pictures() -> list[np.ndarray]:
    """Smooth, noisy pictures of several shapes."""
    rng, found = np.random.default_rng(0), []
    for k in range(PICTURES):
        height, width = 200 + 7 * (k % 9), 240 + 5 * (k % 11)
        y, x = np.mgrid[0:height, 0:width] / 200
        waves = np.stack([np.sin(x * rng.uniform(1, 30) + y * rng.uniform(1, 30) + c) for c in range(3)], -1)
        found.append((127 + 90 * waves + rng.normal(0, 12, waves.shape)).clip(0, 255).astype(np.uint8))
    return found


def measure(model: str, gib: float, out: Path) -> None:
    """One process: write features, adapted logits and calibrated probabilities of all pictures to a file."""
    torch.manual_seed(0)
    if gib:
        limit_memory(gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    backbone = cots.load(model, device="cuda", precision="bfloat16")
    classifier = cots.Classifier(backbone, class_names(CLASSES), "tpt+ecots", views=64)
    found = list(classifier(pictures()))
    result = {
        "probabilities": torch.tensor(np.stack([p.probabilities for p in found])),
        "tau": torch.tensor([p.tau for p in found]),
        "at_once": backbone.samples_at_once(64),
        "card_gib": card_bytes(torch.device("cuda", 0)) / 2**30,
    }
    if model == SMALL:
        settings, some = classifier.view_settings, enumerate(pictures()[:4])
        del classifier
        task = cots.Task(backbone, class_names(CLASSES))
        task.expect(1024)
        views = [cots.make_views(p, settings, cots.sample_seed(0, "small", str(k))).cuda() for k, p in some]
        features = torch.stack([backbone.encode_images(v) for v in views]).repeat(16, 1, 1)
        adapted = cots.adapt("tpt", features, task)
        result |= {
            "jacobian": task.tower.linear,  # pyright: ignore
            "features": features.cpu(),
            "logits": adapted.logits.cpu(),
        }
    torch.save(result | {"peak_gib": torch.cuda.max_memory_reserved() / 2**30}, out)


def compare(found: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Largest differences from the whole card, with the spread of the values."""
    row = {k: found[k] for k in ("at_once", "card_gib", "peak_gib", "jacobian") if k in found}
    for name in ("probabilities", "tau", "features", "logits"):
        if name in found:
            row[name] = {"differ": float((found[name] - whole[name]).abs().max()), "spread": float(whole[name].std())}
    same = found["probabilities"].argmax(-1) == whole["probabilities"].argmax(-1)
    return row | {"same_class": float(same.float().mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--measure", nargs=3, metavar=("MODEL", "GIB", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure[0], float(given.measure[1]), Path(given.measure[2]))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = {(m, g): Path(folder) / f"{k}-{g}.pt" for k, (m, sizes) in enumerate(MODELS.items()) for g in sizes}
        running = [
            subprocess.Popen([sys.executable, __file__, "--measure", model, str(gib), str(file)])
            for (model, gib), file in files.items()
        ]
        ended = [process.wait() for process in running]
        for ((model, gib), file), code in zip(files.items(), ended, strict=True):
            row: dict[str, Any] = {"model": model, "gib": gib, "ended": code}
            if not code and files[model, 0].exists():
                row |= compare(torch.load(file), torch.load(files[model, 0]))
            rows.append(row)
            print(json.dumps(row), flush=True)
    if given.out:
        found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "pictures": PICTURES}
        given.out.write_text(json.dumps(found | {"classes": CLASSES, "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
