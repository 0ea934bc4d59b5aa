"""The table of docs/guarantees.md about answers at the rank that is sure: promise and result on held-out photos.

    python benchmarks/taxonomy.py --data DATA

Up to 500 photos per set with their zero-shot probabilities under `mini`; in each of 200 random splits, 300 photos (or
half) are labelled and give the threshold, and the others are answered. The splits share photos, so their results are
not independent. DATA has oxford_pets in CoOp's layout, imagenet-sample (one folder per synset) and unseen/NAME with
list.csv and classes.txt.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import cots
from cots.data import Dataset, open_dataset
from cots.taxonomy import RankRule, Taxonomy, TaxonomyFile, evaluate_ranks

CATS = (
    "abyssinian", "bengal", "birman", "bombay", "british shorthair", "egyptian mau", "maine coon", "persian", "ragdoll",
    "russian blue", "siamese", "sphynx",
)  # fmt: skip
RISK, CERTAINTY, LABELS, SPLITS, PHOTOS = 0.05, 0.95, 300, 200, 500
UNSEEN = ("tiny-imagenet", "pacs-art")
HEAD = """\
| photos | classes, groups | class wrong | answers wrong | splits above 5% | a class | a group | information |
|---|---|---|---|---|---|---|---|
"""


def pets_tree(classes: tuple[str, ...], folder: Path) -> Taxonomy:
    rows = ["parent,child,rank", ",cat,species", ",dog,species"]
    for name in classes:
        rows.append(f"{'cat' if name in CATS else 'dog'},{name},breed")
    file = folder / "pets-tree.csv"
    file.write_text("\n".join(rows))
    return TaxonomyFile.read(file).tree(classes)


def probabilities(dataset: Dataset, backbone: cots.Backbone) -> tuple[np.ndarray, np.ndarray]:
    """Zero-shot probabilities and labels of evenly spaced photos of a dataset."""
    classifier = cots.Classifier(backbone, dataset.classes, "zeroshot", allow_duplicates=True)
    rows = np.unique(np.linspace(0, len(dataset) - 1, PHOTOS).astype(int)).tolist()
    found = [prediction.probabilities for prediction in classifier.stream(dataset.read(i) for i in rows)]
    return np.array(found, dtype=np.float64), np.array([dataset.samples[i].label for i in rows])


def row_of(name: str, tree: Taxonomy, table: np.ndarray, labels: np.ndarray) -> str:
    """A row; its pairs are for the promise with certainty and for the one on average."""
    pairs: list[list[str]] = [[], [], [], [], []]
    few = min(LABELS, len(labels) // 2)
    for certainty in (CERTAINTY, None):
        reports = []
        for seed in range(SPLITS):
            order = np.random.default_rng(seed).permutation(len(labels))
            first, rest = order[:few], order[few:]
            rule = RankRule.fit(tree, table[first], labels[first], RISK, certainty)
            reports.append(evaluate_ranks(tree, tree.climb(table[rest], rule.threshold)[0], labels[rest]))
        wrong = np.array([report.error_rate for report in reports])
        classes = np.mean([report.classes / report.n for report in reports])
        roots = np.mean([report.roots / report.n for report in reports])
        kept = np.mean([report.information for report in reports])
        for cells, value in zip(
            pairs, (wrong.mean(), (wrong > RISK).mean(), classes, 1 - classes - roots, kept), strict=True
        ):
            cells.append(f"{100 * value:.{1 if cells is pairs[0] else 0}f}")
    about = f"{name} | {len(tree.leaves)}, {len(tree.parents) - len(tree.leaves) - 1}"
    plain = (table.argmax(1) != labels).mean()
    return f"| {about} | {100 * plain:.1f} | {' | '.join('/'.join(cells) for cells in pairs)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the tree of the pets")
    parser.add_argument("--model", default="mini")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    known = TaxonomyFile.read("imagenet")
    backbone = cots.load(args.model)
    pets = open_dataset("pets", args.data)
    print(HEAD + row_of("pets", pets_tree(pets.classes, args.out), *probabilities(pets, backbone)), end="", flush=True)
    sets = {"ImageNet sample": open_dataset(args.data / "imagenet-sample")}
    for name in UNSEEN:
        folder = args.data / "unseen" / name
        sets[name] = open_dataset(folder / "list.csv", None, folder / "classes.txt")
    for name, dataset in sets.items():
        print(row_of(name, known.tree(dataset.classes), *probabilities(dataset, backbone)), end="", flush=True)


if __name__ == "__main__":
    main()
