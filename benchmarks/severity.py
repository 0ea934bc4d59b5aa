"""How TPT and CoTS behave as photos get worse: ImageNet-C's corruptions, severity by severity (docs/results.md).

    python benchmarks/severity.py --data DATA --out runs/severity     # minutes on a GPU; run it again to resume
    python benchmarks/severity.py                                     # only the page, from the stored results

A dataset is a protocol's name or a folder below DATA with list.csv and classes.txt. Severity 0 is the photo as it is.
Prints the table and writes benchmarks/results/severity.json, which also has every corruption by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pages import ROOT, fill

import cots
from cots import bench
from cots.data import PROTOCOLS, Dataset, open_dataset
from cots.evaluate import Scored, pool, score
from cots.metrics.intervals import draw_weights, quantiles
from cots.views import CORRUPTIONS

RESULTS = ROOT / "benchmarks/results/severity.json"
METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")
DATASETS = "pets,unseen/pacs-photo,unseen/tiny-imagenet"
BLOCK = """\
## As photos get worse

```sh
python benchmarks/severity.py --data DATA --out runs/severity
```

Means over {corruptions} [corruptions](protocol.md#corrupted-photos) of ImageNet-C, with `{model}`, one seed of views;
photos: {photos}. Severity 0 is the photo as it is. Gap: TPT's mean confidence
minus its accuracy. The last column is the change of ECE by CoTS, with a 95% interval over photos.
benchmarks/results/severity.json also has E-CoTS.

{table}"""


def opened(names: str, data: Path) -> Iterator[Dataset]:
    for name in names.split(","):
        if name in PROTOCOLS:
            yield open_dataset(name, data)
        else:
            folder = data / name
            found = open_dataset(folder / "list.csv", None, folder / "classes.txt")
            yield replace(found, name=folder.name, title=folder.name)


def figures(scored: Scored) -> dict[str, float]:
    values = {"accuracy": scored.correct.mean(), "confidence": scored.mean_confidence, "ece": scored.values["ece"]}
    return {name: round(100 * float(value), 3) for name, value in values.items()}


def change(before: Sequence[Scored], after: Sequence[Scored]) -> list[float]:
    """The change of ECE in points and its 95% interval; a photo is drawn with all its corruptions."""
    pairs = [pool(parts, ["ece"]) for parts in (before, after)]
    value = pairs[1].values["ece"] - pairs[0].values["ece"]
    draws = []
    for weights in draw_weights(len(before[0]), seed=0, resamples=1000):
        tiled = np.tile(weights, len(before))
        first, second = (scored.resampled(tiled)["ece"] for scored in pairs)
        draws.append(second - first)
    return [round(100 * float(each), 3) for each in (value, *quantiles(np.concatenate(draws), 0.95, value))]


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The results so far, after every severity."""
    backbone = cots.load(given.model, device=given.device)
    datasets = tuple(opened(given.datasets, given.data))
    common = {"model": backbone, "datasets": datasets, "methods": METHODS, "limit": given.limit}
    common |= {"workers": given.workers, "views": given.views}
    found: dict[str, Any] = {"model": backbone.name, "weights_hash": backbone.weights_hash, "sets": {}}
    for severity in map(int, given.severities.split(",")):
        names = [f"{name}:{severity}" for name in given.corruptions.split(",")] if severity else ["clean"]
        runs = {}
        for name in names:
            corrupt = name if severity else None
            config = bench.RunConfig(**common, corrupt=corrupt, out=given.out / name.replace(":", "-"))
            runs[name] = bench.run(config)
            print(f"{name} done", flush=True)
        for dataset in datasets:
            scored = {
                method: [score(run.records(dataset.name, method, 0), ["ece"]) for run in runs.values()]
                for method in METHODS
            }
            rows = {method: figures(pool(parts, ["ece"])) for method, parts in scored.items()}
            each = {
                name: {method: figures(parts[at]) for method, parts in scored.items()} for at, name in enumerate(runs)
            }
            of_set = found["sets"].setdefault(dataset.name, {"title": dataset.title, "severities": {}})
            of_set["photos"] = len(scored["tpt"][0])
            of_set["severities"][str(severity)] = {
                "methods": rows,
                "change": change(scored["tpt"], scored["tpt+cots"]),
                "corruptions": each,
            }
        yield found


def table(found: Mapping[str, Any]) -> str:
    """One row per dataset and severity."""
    head = [
        "photos",
        "severity",
        "accuracy: zero-shot",
        "TPT",
        "TPT's gap",
        "ECE: zero-shot",
        "TPT",
        "CoTS",
        "CoTS - TPT",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for of_set in found["sets"].values():
        for severity, values in of_set["severities"].items():
            rows = values["methods"]
            cells = [of_set["title"], severity]
            cells += [f"{rows[name]['accuracy']:.1f}" for name in ("zeroshot", "tpt")]
            cells += [f"{rows['tpt']['confidence'] - rows['tpt']['accuracy']:+.1f}"]
            cells += [f"{rows[name]['ece']:.1f}" for name in ("zeroshot", "tpt", "tpt+cots")]
            moved, low, high = values["change"]
            lines.append(f"| {' | '.join(cells)} | {moved:+.1f} [{low:.1f}, {high:.1f}] |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="measure: the folder that contains the datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/severity"))
    parser.add_argument("--datasets", default=DATASETS)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that corrupt photos")
    parser.add_argument("--limit", type=int, default=200, help="photos of each dataset")
    parser.add_argument("--views", type=int, help="instead of 64, for a trial")
    parser.add_argument("--corruptions", default=",".join(CORRUPTIONS))
    parser.add_argument("--severities", default="0,1,3,5")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results; elsewhere: the page is left alone")
    given = parser.parse_args()
    warnings.simplefilter("ignore", cots.UntrainedWordWarning)
    if given.data:
        for found in measure(given):
            given.json.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(given.json.read_text())
    print(table(found))
    if given.json == RESULTS:
        photos = ", ".join(f"{of_set['title']} {of_set['photos']}" for of_set in found["sets"].values())
        worst = next(reversed(next(iter(found["sets"].values()))["severities"].values()))
        about = {"photos": photos, "model": found["model"], "corruptions": len(worst["corruptions"])}
        fill("results.md", {"severity": BLOCK.format(**about, table=table(found))})


if __name__ == "__main__":
    main()
