"""View features for `cots demo`: test photos of classes that mini knows, and photos that it was not trained on.

    python demo.py --data DATA --model model --out demo.safetensors --full full.safetensors --workers 16

Photos are drawn by a seeded permutation and are not stored. The unknown sets keep the first CLASSES names that mini was
trained on (PACS loses giraffe and person). Features are stored as 8-bit integers with a scale per view, rounded so that
no photo changes its class or its bin of ECE.
`--full` also stores them in half precision and prints how much the demo's figures change; `--check` prints that again
for existing files.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import Tensor

import cots
from cots._checked import write_tensors
from cots.adaptation import Pipeline
from cots.data import Dataset, open_dataset
from cots.demo import PhotoSet, read_photos, run_demo, short_lists

# Photos drawn from each set: from the test lists of the benchmark in proportion to their lengths, and from photos of
# other sources.
KNOWN = {"pets": 165, "caltech": 173, "flowers": 162}
UNKNOWN = {"tiny-imagenet": 234, "pacs-art": 127, "pacs-cartoon": 139}
CLASSES = 100  # names of each unknown set: the demo's time grows with photos times names
METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots")
FIGURES = ("accuracy", "mean_confidence", "ece", "nll")


def drawn(args: argparse.Namespace, tokenizer: Any) -> list[Dataset]:
    """The demo's photos per set, in the order of its list, known classes first."""
    found = []
    for k, (name, count) in enumerate({**UNKNOWN, **KNOWN}.items()):
        dataset = (
            open_dataset(name, args.data) if name in KNOWN else open_dataset(args.data / "unseen" / name / "list.csv")
        )
        classes = list(dataset.classes)
        if name in UNKNOWN:
            classes = [word for word in classes if not tokenizer.untrained_words([word])][:CLASSES]
        samples = [
            replace(photo, label=classes.index(word))
            for photo in dataset.samples
            if (word := dataset.classes[photo.label]) in classes
        ]
        pick = np.sort(np.random.default_rng([args.seed, k]).permutation(len(samples))[:count])
        found.append(replace(dataset, name=name, classes=tuple(classes), samples=[samples[i] for i in pick]))
    return sorted(found, key=lambda dataset: dataset.name in UNKNOWN)


def encode(rank: int, args: argparse.Namespace, folder: str) -> None:
    """Encode this worker's share; views depend on the seed, the set and the photo's id only."""
    torch.set_num_threads(1)
    backbone = cots.load(f"local-dir:{args.model}", device=args.device)
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, augmix=True)
    found = {}
    for dataset in drawn(args, backbone.tokenizer):
        for i in range(rank, len(dataset), args.workers):
            photo = dataset.samples[i]
            views = cots.make_views(photo.source, settings, cots.sample_seed(args.seed, dataset.name, photo.id))
            found[f"{dataset.name}.{i}"] = backbone.encode_images(views.to(args.device)).half().cpu()
    save_file(found, Path(folder) / f"{rank}.safetensors")


def quantised(features: Tensor, text: Tensor, stretch: float = 1.0) -> tuple[Tensor, Tensor]:
    """8-bit features `(n,V,D)` and scales `(n,V)`: the largest entry of each view becomes 127 / stretch.

    Entries are rounded one after the other. Each one's error is made up for by those that follow, so that the cosines
    with the text features `(K,D)` change as little as possible.
    """
    spread = (text - text.mean(0)).double()
    curvature = spread.T @ spread
    curvature += 0.01 * curvature.diagonal().mean() * torch.eye(len(curvature), dtype=torch.float64)
    order = curvature.diagonal().argsort(descending=True)
    factor = torch.linalg.cholesky(torch.linalg.inv(curvature[order][:, order]), upper=True)
    scales = (stretch * features.float().abs().amax(dim=-1) / 127).half()
    left, steps = features[..., order].double(), torch.empty_like(features, dtype=torch.int8)
    for i, column in enumerate(order):
        step = (left[..., i] / scales).round().clamp(-127, 127)
        error = (left[..., i] - step * scales) / factor[i, i]
        left[..., i + 1 :] -= error[..., None] * factor[i, i + 1 :]
        steps[..., column] = step.to(torch.int8)
    return steps, scales


def steady(backbone: cots.Backbone, exact: PhotoSet, steps: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Round photos again, at other scales, that have another class or bin of ECE than with their exact features."""
    text, wanted = cots.Task(backbone, exact.classes).text_features, answers(backbone, exact)
    rows, steps, scales = np.arange(len(steps)), steps.clone(), scales.clone()
    for stretch in (1.0, *np.arange(1.01, 1.5, 0.01)):
        here = torch.as_tensor(rows)
        if stretch > 1:
            steps[here], scales[here] = quantised(exact.features[here], text, float(stretch))
        rounded = replace(exact.take(rows), features=steps[here].float() * scales[here, :, None].float())
        rows = rows[(answers(backbone, rounded) != wanted[rows]).any(axis=(1, 2))]
        print(f"{exact.name}, scales x {stretch:.2f}: {len(rows)} photos have another class or bin")
        if not len(rows):
            break
    return steps, scales


def answers(backbone: cots.Backbone, photos: PhotoSet) -> np.ndarray:
    """Class and bin of ECE `(n,methods,2)` of each photo."""
    found = np.zeros((len(photos.labels), len(METHODS), 2), dtype=np.int64)
    places = replace(photos, features=torch.arange(len(photos.labels)))
    for part, place in zip(short_lists([photos]), short_lists([places]), strict=True):
        outcomes = Pipeline(cots.Task(backbone, part.classes), METHODS).run(part.features.float().split(8))
        for i, outcome in enumerate(outcomes.values()):
            result = outcome.calibrated
            found[place.features, i, 0] = result.prediction
            found[place.features, i, 1] = (20 * result.confidence.double()).ceil()
    return found


def save(args: argparse.Namespace, sets: list[Dataset], features: dict[str, Tensor]) -> None:
    """Write the shipped file and, with --full, the same in half precision with scales of one."""
    backbone = cots.load(f"local-dir:{args.model}", device="cpu")
    files = {args.out: {}} | ({args.full: {}} if args.full else {})
    for dataset in sets:
        stacked = torch.stack([features[f"{dataset.name}.{i}"] for i in range(len(dataset))])
        labels = np.array([photo.label for photo in dataset.samples])
        about = {"name": dataset.name, "classes": dataset.classes, "known": dataset.name in KNOWN}
        exact = PhotoSet(**about, labels=labels, features=stacked)
        rounded = quantised(stacked, cots.Task(backbone, dataset.classes).text_features)
        forms = steady(backbone, exact, *rounded), (stacked, torch.ones(stacked.shape[:2], dtype=torch.float16))
        for tensors, (values, scales) in zip(files.values(), forms, strict=False):
            tensors[f"{dataset.name}.features"], tensors[f"{dataset.name}.scales"] = values, scales
            tensors[f"{dataset.name}.labels"] = torch.tensor(labels, dtype=torch.int16)
    described = [
        {"name": d.name, "known": d.name in KNOWN, "classes": d.classes, "ids": [p.id for p in d.samples]} for d in sets
    ]
    about = {"sets": json.dumps(described), "weights_hash": backbone.weights_hash}
    for file, tensors in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(file, tensors, about)
        print(f"{file}: {', '.join(f'{len(dataset)} photos of {dataset.name}' for dataset in sets)}")


def check(args: argparse.Namespace) -> float:
    """Print the figures of the shipped features and how far they move from the full ones; return the largest move.

    Per cent, and hundredths of a nat for NLL.
    """
    backbone = cots.load(f"local-dir:{args.model}", device=args.device)
    shipped, full = (
        run_demo(backbone=backbone, photos=short_lists(read_photos(file)), methods=METHODS)
        for file in (args.out, args.full)
    )
    moves = []
    for kind in shipped.kinds:
        print(f"{kind.name:20}" + "".join(f"{name:>26}" for name in FIGURES))
        for method in METHODS:
            line = f"{method:20}"
            new, old = shipped.row(method, kind.name), full.row(method, kind.name)
            for name in FIGURES:
                moves.append((100 if name == "nll" else 1) * (new[name] - old[name]))
                line += f"{new[name]:>17.3f} ({moves[-1]:+.3f})"
            print(line)
    largest = max(map(abs, moves))
    print(f"largest move {largest:.3f} points (NLL in hundredths of a nat)")
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder that contains unseen/")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--full", type=Path, help="features in half precision")
    parser.add_argument("--check", action="store_true", help="encode nothing, compare --out with --full")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if not (args.full if args.check else args.data):
        parser.error("give --data, or --check with --full")
    if not args.check:
        tokenizer = cots.load(f"local-dir:{args.model}", device="cpu").tokenizer
        sets, features = drawn(args, tokenizer), {}
        with TemporaryDirectory() as folder:
            mp.spawn(encode, (args, folder), nprocs=args.workers)
            for part in Path(folder).iterdir():
                features |= load_file(part)
        save(args, sets, features)
    if args.full:
        check(args)


if __name__ == "__main__":
    main()
