"""The README's picture and results, and the outputs printed in README and docs/acting.md, all with `mini`.

    uv run python tools/readme.py --data DATA     # predict 600 photos of DATA/oxford_pets again, then write the README
    uv run python tools/readme.py                 # from the predictions of tests/support/readme.predictions

The README's six commands run with the predictions of `mini` for 400 and 200 test photos of Oxford Pets, drawn at
random. The photos are not part of the repository; their predictions are, so a test compares what the commands print.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill, wrap
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

import cots
import cots.classifier
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.cli import app
from cots.conformal import Policy
from cots.data import open_dataset
from cots.demo import ALL_TEST_PHOTOS, KNOWN, UNKNOWN, DemoResult, read_photos, run_demo, short_lists
from cots.evaluate import save_demo_picture
from cots.kept import PredictionFile
from cots.methods import Method, Prediction
from cots.paper import load_table
from cots.photos import EncodedPhoto, Photo, PhotoEncoder

ROOT = Path(__file__).parents[1]
README, ACTING = ROOT / "README.md", ROOT / "docs/acting.md"
KEPT = ROOT / "tests/support/readme.predictions"
BREEDS = ROOT / "tests/support/breeds.txt"
WIDTH = 135
METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots")
PAPER = {"*paper: 11 datasets*": ("fine-grained", "average:fine-grained"),
         "*paper: 4 ImageNet variants*": ("imagenet-variants", "average:variants")}  # fmt: skip
ABOUT = {KNOWN: [ALL_TEST_PHOTOS], UNKNOWN: []}
FOLDERS = {"photos": 400, "new": 200}  # photos that the commands see first, and later
SEED = 0
STYLES = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = 130  # of the terminal
LONG, FIRST, LAST = 14, 4, 1  # lines of an output that is not printed whole, and those of its start and end that are
PRINTED = re.compile(r"(?<=^```console\n)\$ (?P<command>[^\n]*)\n(?P<output>.*?)(?=^```)", re.DOTALL | re.MULTILINE)


def results(result: DemoResult) -> str:
    """What tuning adds to the confidence and CoTS takes back, known classes first, then the table."""
    parts = []
    for kind in result.kinds:
        sentences = [*ABOUT[kind.name], *kind.sentences[3:5]]  # about what tuning adds, and what CoTS leaves
        parts.append(fill(f"**{kind.name.capitalize()}.** {' '.join(sentences)}", WIDTH, break_on_hyphens=False))
    return "\n\n".join([*parts, table(result)])


def table(result: DemoResult) -> str:
    """Accuracy and mean confidence of the demo's methods, and the paper's averages of accuracy and ECE."""
    kinds = [f"{kind.name}, {len(kind)} photos" for kind in result.kinds]
    lines = [["method", *kinds, *PAPER], ["---"] * (1 + len(kinds) + len(PAPER))]
    for method in METHODS:
        cells = []
        for kind in result.kinds:
            scored = kind.outcomes[method].scored
            right, sure = scored.values["accuracy"], scored.mean_confidence
            cells.append(f"{100 * right:.1f}% right, {100 * sure:.1f}% sure")
        lines.append([f"`{method}`", *cells, *paper(method)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def paper(method: str) -> list[str]:
    """The paper's averages of a method, accuracy / ECE."""
    found = []
    for name, average in PAPER.values():
        accuracy, ece = (load_table(name).value(metric, method, average) for metric in ("accuracy", "ece"))
        found.append(f"{accuracy:.2f} / {ece:.2f}")
    return found


def names() -> str:
    """The names of all adapters and calibrators."""
    lines = []
    for title, registry in (("Adapters", ADAPTERS), ("Calibrators", CALIBRATORS)):
        plain = [f"`{name}`" for name in registry if "(" not in name]
        lines.append(f"{title}: {', '.join(plain)}.")
    return fill(" ".join(lines), WIDTH) + "\n"


def predict(data: Path) -> None:
    """Keep the predictions of the photos that are drawn from DATA; those that are up to date stay."""
    pets = open_dataset("pets", data)
    drawn = np.random.default_rng(SEED).permutation(len(pets))[: sum(FOLDERS.values())]
    files = [Path(pets.samples[i].source) for i in drawn]
    BREEDS.write_text("\n".join(pets.classes) + "\n")
    classifier = cots.Classifier(classes=pets.classes)
    PredictionFile(KEPT).complete(classifier, [file.name for file in files], files.__getitem__, progress=print)


class Example:
    """The folder in which the README's commands run: stand-ins for the photos, which their kept predictions answer.

    Commands of cots run in this process, as on a terminal of COLUMNS columns.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.classes = tuple(BREEDS.read_text().splitlines())
        self.kept: dict[str, Prediction] = {}
        for kept in PredictionFile(KEPT).read(self):  # only the classes are read
            self.kept[kept.photo] = kept.prediction
        self._write_photos()

    def _write_photos(self) -> None:
        shutil.copy(BREEDS, self.folder / "breeds.txt")
        picture = io.BytesIO()
        Image.new("RGB", (8, 8), "gray").save(picture, "JPEG")
        photos = iter(self.kept)
        for name, count in FOLDERS.items():
            (self.folder / name).mkdir()
            for photo in islice(photos, count):
                # The name after the end of the picture makes each file unique, and survives copies.
                (self.folder / name / photo).write_bytes(picture.getvalue() + b"\n" + photo.encode())
        later = sorted((self.folder / "new").iterdir())
        write_rows(self.folder / "new.csv", ("path", "label"), [(f"new/{file.name}", label(file)) for file in later])

    def run(self, command: str) -> str:
        """What a command of the README prints, without the middle of long outputs."""
        words = shlex.split(command)
        if words[:3] == ["uv", "run", "cots"]:
            text = self._run_cots(words[3:])
            self._fill_in_labels()
        else:
            text = subprocess.run(
                command, shell=True, cwd=self.folder, capture_output=True, text=True, check=True
            ).stdout
        lines = []
        for line in text.splitlines():
            lines += wrap(line.rstrip(), COLUMNS, subsequent_indent="  ") if line[:1].isalpha() else [line.rstrip()]
        lines = [line for line in lines if line]
        if len(lines) >= LONG:
            lines[FIRST:-LAST] = ["..."]
        return "\n".join(lines) + "\n"

    def _run_cots(self, words: list[str]) -> str:
        out = Terminal()
        settings = patch.dict(os.environ, {"COLUMNS": str(COLUMNS), "TERM": "xterm", "NO_COLOR": "1", "UV": "uv"})
        playback = (
            patch.object(PhotoEncoder, "read", lambda encoder, source, seed, **options: Photo((8, 8), name_of(source))),
            patch.object(PhotoEncoder, "encode", encode),
            patch.object(cots.classifier, "begin_predictions", self._predictions),
        )
        with contextlib.ExitStack() as stack:
            for one in (settings, *playback, contextlib.chdir(self.folder)):
                stack.enter_context(one)
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(Pipe(out)))  # without progress bars
            app(words, standalone_mode=False)
        return STYLES.sub("", out.getvalue())

    def _predictions(
        self, pipeline: Any, photos: Sequence[EncodedPhoto], *, none_below: float, policy: Policy | None, **_: Any
    ) -> Callable[[], dict[Method, list[Prediction]]]:
        found = []
        for photo in photos:
            prediction = self.kept[photo.views]
            prediction = replace(prediction, none_of_these=prediction.in_list < none_below)
            found.append(prediction if policy is None else policy.apply(prediction))
        return lambda: {pipeline.methods[0]: found}

    def _fill_in_labels(self) -> None:
        """Do the labelling: write the true classes into ask.csv, if it was just written."""
        file = self.folder / "ask.csv"
        if not file.exists():
            return
        with file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            row["label"] = label(Path(row["path"]))
        write_rows(file, list(rows[0]), [list(row.values()) for row in rows])


class Terminal(io.StringIO):
    """Text that thinks it is a terminal."""

    def isatty(self) -> bool:
        return True


class Pipe(io.TextIOBase):
    """Text that goes to a terminal, but is none."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        return self._terminal.write(text)


def name_of(source: Path | bytes) -> str:
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    return data.rpartition(b"\n")[2].decode()


def encode(encoder: PhotoEncoder, photos: Iterable[Photo], task: Any = None) -> Iterator[EncodedPhoto]:
    for photo in photos:
        yield EncodedPhoto(size=photo.size, views=photo.prepared)


def label(file: Path) -> str:
    """The breed of a photo of Oxford Pets, by its name: Egyptian_Mau_12.jpg."""
    return file.stem.rpartition("_")[0].replace("_", " ").lower()


def write_rows(file: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def outputs(text: str) -> str:
    """The page with what its commands print below them."""
    with TemporaryDirectory() as folder:
        example = Example(Path(folder))
        return PRINTED.sub(lambda found: f"$ {found['command']}\n{example.run(found['command'])}", text)


def between(marker: str, content: str, text: str) -> str:
    """The text with new content between <!-- marker --> and <!-- /marker -->."""
    marked = re.compile(rf"(<!-- {marker} -->\n).*(<!-- /{marker} -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}\n{content}\n{found[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with oxford_pets, to predict its photos again")
    parser.add_argument("--only-commands", action="store_true", help="leave picture and results as they are")
    args = parser.parse_args()
    if args.data is not None:
        predict(args.data)
    ACTING.write_text(outputs(ACTING.read_text()))
    text = outputs(README.read_text())
    text = between("names", names(), text)
    if not args.only_commands:
        result = run_demo(photos=short_lists(read_photos()), methods=METHODS)
        save_demo_picture(result, ROOT / "docs/figures/gain-and-gap")
        text = between("results", results(result), text)
    README.write_text(text)


if __name__ == "__main__":
    main()
