"""Accuracy and calibration of the exported model on all test photos, with the package's own views, methods and metrics.

    python evaluate.py --data DATA --model model --out RESULTS --seeds 0 1 2 --workers 16 [--demo demo.safetensors]

Writes RESULTS/figures.json (every method, set and seed, 95% bootstrap intervals) and, with --demo, view features of
a seeded random choice of test photos (never by outcome) for the package's demo.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from photos import SETS, class_names, read_split
from safetensors.torch import load_file, save_file
from torch import Tensor

import cots

METHODS = (
    "zeroshot", "tpt", "tpt+sals", "tpt+cor", "tpt+cots", "tpt+ecots", "tpt+ensemble", "ctpt", "ctpt+cots", "otpt",
    "otpt+cots", "atpt", "atpt+cots",
    "soc", "soc+cots",
)  # fmt: skip
MAIN = METHODS[:6]


def encode(rank: int, args: argparse.Namespace, seed: int) -> None:
    """This worker's share of the test photos as view features; views depend on the seed, the set and the file's name
    alone.
    """
    torch.set_num_threads(1)
    backbone = cots.load(f"local-dir:{args.model}", device=args.device)
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, augmix=True)
    found = {}
    for name in SETS:
        photos = read_split(args.data, name, "test")
        for i in range(rank, len(photos), args.workers):
            views = cots.make_views(photos[i].path, settings, cots.sample_seed(seed, name, photos[i].path.name))
            found[f"{name}.{i}"] = backbone.encode_images(views.to(args.device)).half().cpu()
    save_file(found, args.out / f"part-{seed}-{rank}.safetensors")


def gather(args: argparse.Namespace, seed: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for rank in range(args.workers):
        part = args.out / f"part-{seed}-{rank}.safetensors"
        found |= load_file(part)
        part.unlink()
    return {s: torch.stack([found[f"{s}.{i}"] for i in range(len(read_split(args.data, s, "test")))]) for s in SETS}


def outcomes(
    task: cots.Task, features_NVD: Tensor, labels: np.ndarray, methods: list[str], batch: int
) -> dict[str, dict[str, np.ndarray]]:
    """Confidence, correctness and log-loss of every photo under every method."""
    parsed = [cots.parse_method(m) for m in methods]
    found: dict[str, list[np.ndarray]] = {m: [] for m in methods}
    for start in range(0, len(labels), batch):
        views, y = features_NVD[start : start + batch].float(), torch.from_numpy(labels[start : start + batch])
        for name in dict.fromkeys(m.adapter for m in parsed):
            adapted = cots.adapt(name, views.to(task.device), task)
            for text, method in zip(methods, parsed, strict=True):
                if method.adapter == name:
                    result = cots.calibrate(
                        adapted.logits, adapted.zero_shot_logits, method=method.calibrator, alpha=task.alpha
                    )
                    p = result.probabilities.double().cpu()[torch.arange(len(y)), y].clamp(min=1e-300)
                    columns = (result.confidence.double().cpu(), (result.prediction.cpu() == y).double(), -p.log())
                    found[text].append(torch.stack(columns).numpy())
    return {
        m: dict(zip(("confidence", "correct", "loss"), np.concatenate(parts, axis=1), strict=True))
        for m, parts in found.items()
    }


def figures(one: dict[str, np.ndarray], resamples: int) -> dict[str, object]:
    """Per cent (nats for the log-loss) with 95% bootstrap intervals."""
    ece = cots.metrics.bootstrap(cots.metrics.ece, one["confidence"], one["correct"] > 0, resamples=resamples)
    row: dict[str, object] = {"n": len(one["loss"]), "ece": [round(100 * v, 3) for v in (ece.value, ece.low, ece.high)]}
    for name, column, scale in (
        ("accuracy", "correct", 100),
        ("mean_confidence", "confidence", 100),
        ("nll", "loss", 1),
    ):
        interval = cots.metrics.bootstrap(np.mean, scale * one[column], resamples=resamples)
        row[name] = [round(v, 4) for v in (interval.value, interval.low, interval.high)]
    return row


def write_demo(args: argparse.Namespace, features: dict[str, Tensor]) -> None:
    """The demo's photos: the same number of each set, drawn by a seeded permutation."""
    tensors, described = {}, []
    for k, (name, x) in enumerate(features.items()):
        photos = read_split(args.data, name, "test")
        pick = np.sort(np.random.default_rng([args.demo_seed, k]).permutation(len(photos))[: args.demo_photos])
        tensors[f"{name}.features"] = x[pick].contiguous()
        tensors[f"{name}.labels"] = torch.tensor([photos[i].label for i in pick], dtype=torch.int16)
        described.append(
            {"name": name, "classes": class_names(args.data, name), "ids": [photos[i].path.name for i in pick]}
        )
    save_file(tensors, args.demo, metadata={"sets": json.dumps(described)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--demo-photos", type=int, default=133)
    parser.add_argument("--demo-seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    backbone = cots.load(f"local-dir:{args.model}", device=args.device)
    rows, start = [], time.time()
    for seed in args.seeds:
        mp.spawn(encode, (args, seed), nprocs=args.workers)
        features = gather(args, seed)
        print(f"seed {seed}: views and features, {time.time() - start:.0f} s", flush=True)
        if args.demo and seed == args.seeds[0]:
            write_demo(args, features)
        methods = list(METHODS if seed == args.seeds[0] else MAIN)
        pooled: dict[str, list[dict[str, np.ndarray]]] = {m: [] for m in methods}
        for name, x in features.items():
            task = cots.Task(backbone, class_names(args.data, name))
            labels = np.array([p.label for p in read_split(args.data, name, "test")])
            for method, one in outcomes(task, x, labels, methods, args.batch).items():
                pooled[method].append(one)
                rows.append(
                    {"seed": seed, "dataset": name, "method": method, "alpha": task.alpha}
                    | figures(one, args.resamples)
                )
        for method, parts in pooled.items():
            one = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
            rows.append({"seed": seed, "dataset": "pooled", "method": method} | figures(one, args.resamples))
        (args.out / "figures.json").write_text(json.dumps({"weights": backbone.weights_hash, "rows": rows}, indent=1))
        print(f"seed {seed}: {len(methods)} methods, {time.time() - start:.0f} s", flush=True)
    for row in rows:
        shown = " ".join(
            f"{k} {row[k][0]:.3f} [{row[k][1]:.3f}, {row[k][2]:.3f}]"
            for k in ("accuracy", "mean_confidence", "ece", "nll")
        )
        print(row["seed"], row["dataset"], row["method"], shown)


if __name__ == "__main__":
    main()
