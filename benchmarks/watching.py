"""The tables of docs/monitoring.md about monitors: false alarms, delays, corrupted photos, looks at an error rate.

python benchmarks/watching.py                    # simulated streams, about two minutes
python benchmarks/watching.py photos --data DATA # the demo's photos, the last 150 corrupted; DATA in CoOp's layout
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

import cots
from cots._checked import read_tensors
from cots.data import open_dataset
from cots.views import corrupt, read_image
from cots.watch import FALSE_ALARMS, Watch, reference_of
from cots.watch._signal import bet, levels_of

BLOCK = 32  # levels per block of counts
Draw = Callable[[np.random.Generator, int], np.ndarray]

SIGNALS_DRAWN: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "beta(4, 1), like a confidence": lambda rng, n: rng.beta(4, 1, n),
    "binomial(64, 0.8) / 64, like agreement, with ties": lambda rng, n: rng.binomial(64, 0.8, n) / 64,
}


class Bags:
    """The bags of many streams of levels 0 to n - 1: counts in blocks, so that ranks cost two short sums."""

    def __init__(self, streams: int, levels: int) -> None:
        self.counts = np.zeros((streams, levels // BLOCK + 1, BLOCK), np.int32)
        self.blocks = np.zeros((streams, levels // BLOCK + 1), np.int32)
        self.rows, self.size = np.arange(streams), 0

    def ranks(self, levels: np.ndarray, grow: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """How many are smaller, and how many equal, itself included."""
        block, inside = np.divmod(levels, BLOCK)
        if grow:
            self.add(levels)
        own = self.counts[self.rows, block]
        below = (self.blocks * (np.arange(self.blocks.shape[1]) < block[:, None])).sum(1)
        below += (own * (np.arange(BLOCK) < inside[:, None])).sum(1)
        return below, own[self.rows, inside] + (not grow)

    def add(self, levels: np.ndarray) -> None:
        block, inside = np.divmod(levels, BLOCK)
        self.counts[self.rows, block, inside] += 1
        self.blocks[self.rows, block] += 1
        self.size += 1


def largest_capital(values: np.ndarray, reference: int, rng: np.random.Generator, grow: bool = True) -> np.ndarray:
    """The running maximum of the capital (streams, photos after the reference)."""
    _, index = np.unique(levels_of(values), return_inverse=True)
    index = index.reshape(values.shape)
    streams, photos = values.shape
    bags, capital = Bags(streams, int(index.max()) + 1), np.zeros((3, streams))
    largest = np.zeros((streams, photos - reference), np.float32)
    highest = np.zeros(streams)
    for t in range(reference):
        bags.add(index[:, t])
    for t in range(reference, photos):
        below, equal = bags.ranks(index[:, t], grow)
        p = (below + rng.random(streams) * equal) / (bags.size + (not grow))
        capital = bet(capital, p, t - reference + 1)
        highest = np.maximum(highest, capital.sum(0))
        largest[:, t - reference] = np.minimum(highest, 1e30)
    return largest


def false_alarms(streams: int, photos: int, reference: int = 200) -> str:
    text = f"| {streams:,} stable streams of {photos:,} | capital 20 (bound 5%) | capital 100 (bound 1%) |\n"
    text += "|---|---|---|\n"
    alarm, number = np.zeros(streams, bool), len(SIGNALS_DRAWN)
    needed = number / (FALSE_ALARMS * 6 / math.pi**2)
    for seed, (name, draw) in enumerate(SIGNALS_DRAWN.items()):
        rng = np.random.default_rng(seed)
        values = draw(rng, streams * (reference + photos)).reshape(streams, -1)
        last = largest_capital(values, reference, rng)[:, -1]
        text += f"| {name} | {100 * (last >= 20).mean():.1f}% | {100 * (last >= 100).mean():.1f}% |\n"
        alarm |= last >= needed
    rng = np.random.default_rng(9)
    last = largest_capital(rng.normal(size=(streams // 4, reference + photos)), reference, rng, grow=False)[:, -1]
    text += f"| normal, against a fixed reference of {reference} instead | {100 * (last >= 20).mean():.1f}% "
    text += f"| {100 * (last >= 100).mean():.1f}% |\n"
    return (
        f"{text}\nAn alarm of any of the three signals (bound {100 * FALSE_ALARMS:.0f}%): {100 * alarm.mean():.1f}%\n"
    )


def delays(runs: int = 200, after: int = 1500) -> str:
    text = "| shift | unchanged photos | reference | median delay | missed in 1,500 |\n|---|---|---|---|---|\n"
    for seed, (shift, unchanged, reference) in enumerate(
        [(1, 300, 200), (1, 300, 1000), (0.5, 300, 200), (0.5, 300, 1000), (0.5, 5000, 200), (0.25, 300, 200),
         (0.25, 300, 1000)]
    ):  # fmt: skip
        rng = np.random.default_rng(100 + seed)
        values = rng.normal(size=(runs, reference + unchanged + after))
        values[:, reference + unchanged :] += shift
        alarm = largest_capital(values, reference, rng)[:, unchanged:] >= 1000
        found = alarm.any(1)
        delay = np.where(found, alarm.argmax(1) + 1, np.inf)
        median = f"{np.median(delay):.0f}" if np.isfinite(np.median(delay)) else f"over {after:,}"
        text += f"| {shift} SD | {unchanged:,} | {reference:,} | {median} | {100 * (1 - found.mean()):.0f}% |\n"
    return text


def looks(runs: int = 4000, n: int = 2000, rate: float = 0.05) -> str:
    """How often intervals with 95% ever exclude the true error rate, over a look at every label."""
    rng = np.random.default_rng(0)
    text = "| labels | intervals that exclude the rate | at the last look | ever |\n|---|---|---|---|\n"
    s = np.cumsum(rng.random((runs, n)) < rate, axis=1)
    t = np.arange(1, n + 1)
    mixed = special.betaln(s + 0.5, t - s + 0.5) - special.betaln(0.5, 0.5)
    capital = mixed - s * math.log(rate) - (t - s) * math.log1p(-rate)
    text += _missed("uniform", "ErrorMonitor", capital >= math.log(20))
    # Clopper-Pearson excludes the rate if a tail at it is below 2.5%.
    tails = np.minimum(special.bdtr(s, t, rate), special.bdtrc(s - 1, t, rate))
    text += _missed("uniform", "Clopper-Pearson", tails < 0.025)
    missed = np.zeros((1000, n), bool)
    unsure = rng.random(missed.shape) < 0.3
    chance, wrong = np.where(unsure, 0.4, 0.1), np.where(unsure, 0.12, 0.02)
    x = (rng.random(missed.shape) < chance) * (rng.random(missed.shape) < wrong) / chance
    mean = 0.3 * 0.12 + 0.7 * 0.02
    for values, of_mean in ((x, mean), (10 - x, 10 - mean)):
        missed |= log_capitals(values, of_mean) >= math.log(40)
    return text + _missed("asked with 0.1 or 0.4", "ErrorMonitor", missed)


def log_capitals(values: np.ndarray, mean: float) -> np.ndarray:
    """log K(mean) of `cots.conformal.mean_lower_bound` after each sample (runs, samples)."""
    from cots.conformal._sequences import FRACTIONS

    each = [np.cumsum(np.log1p(c * (values / mean - 1)), axis=1) for c in FRACTIONS]
    return special.logsumexp(each, axis=0) - math.log(len(FRACTIONS))


def _missed(labels: str, interval: str, missed: np.ndarray) -> str:
    return f"| {labels} | {interval} | {100 * missed[:, -1].mean():.1f}% | {100 * missed.any(1).mean():.1f}% |\n"


def demo_photos(data: Path) -> list[tuple[cots.Classifier, Any]]:
    """The demo's photos of known classes in random order, each with the classifier of its set."""
    _, metadata = read_tensors(Path(str(files("cots") / "embedded" / "demo.safetensors")))
    found = []
    for one in json.loads(metadata["sets"]):
        if one["known"]:
            dataset = open_dataset(one["name"], data)
            classifier = cots.Classifier("mini", dataset.classes, "zeroshot")
            sources = {sample.id: sample.source for sample in dataset.samples}
            found += [(classifier, sources[id]) for id in one["ids"]]
    order = np.random.default_rng(0).permutation(len(found))
    return [found[i] for i in order]


def photos(data: Path, reference: int = 200, clean: int = 150) -> str:
    """The demo's photos, the last of them corrupted: when an alarm is raised, and what it says."""
    drawn = demo_photos(data)
    first = [classifier(source) for classifier, source in drawn[: reference + clean]]
    rest = drawn[reference + clean :]
    values = reference_of(first[:reference])
    head = f"{reference} photos as reference, {clean} unchanged ones, then {len(rest)} corrupted ones"
    text = f"{head}\n\n| corruption | alarm after | since about | signal | corrupted among the five to look at |\n"
    text += "|---|---|---|---|---|\n"
    for kind in ("none", "gaussian_noise:3", "defocus_blur:3", "contrast:4", "jpeg_compression:3"):
        watch = Watch(tuple(values), values)
        for one in first[reference:]:
            watch.add(one)
        for seed, (classifier, source) in enumerate(rest):
            image = read_image(source)
            watch.add(classifier(image if kind == "none" else corrupt(image, kind, seed)))
        text += f"| {kind} | {_alarm_cells(watch, clean)} |\n"
    return text


def _alarm_cells(watch: Watch, clean: int) -> str:
    if not watch.alarms:
        return "none | | |"
    alarm = watch.alarms[0]
    direction = "higher" if alarm.higher else "lower"
    named = sum(one.photo > clean for one in alarm.extremes)
    return f"{alarm.at - clean} | {alarm.since - clean:+d} | {alarm.signal}, {direction} | {named}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="streams", choices=["streams", "photos"])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--photos", type=int, default=20_000)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    if args.part == "photos":
        print(photos(args.data))
        return
    for table in (false_alarms(args.streams, args.photos), delays(), looks()):
        print(table)


if __name__ == "__main__":
    main()
