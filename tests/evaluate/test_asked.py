"""The table of photos to label and the pool beside it: written, filled by people and spreadsheets, and read back."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.asked import asked
from support.damage import flip

from cots import CotsError, InputError
from cots._checked import read_tensors, write_tensors
from cots.evaluate import NOBODY, NONE, Asked, Labels, count_labels, is_asked, read_export, read_table

CLASSES = ("cat", "sea lion", "car")


@pytest.fixture
def table(tmp_path) -> Path:
    file = tmp_path / "ask.csv"
    assert asked(CLASSES).save(file) == tmp_path / "ask.pool"
    return file


def fill(file: Path, labels: dict[int, str], delimiter: str = ",") -> None:
    """Write labels into rows of the table."""
    with open(file, newline="") as stream:
        header, *rows = csv.reader(stream)
    for at, label in labels.items():
        rows[at][-1] = label
    with open(file, "w", newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([header, *rows])


def right(labelled: int) -> dict[int, str]:
    predictions = asked(CLASSES).predictions
    return {at: predictions[at].label for at in range(labelled)}


def test_the_pool_is_read_as_it_was_written(table):
    expected, found = asked(CLASSES), Asked.load(table)
    assert (found.setup, found.paths) == (expected.setup, expected.paths)
    for name in ("confidence", "photos", "probability", "heads", "place", "least", "most"):
        values = getattr(expected.draw, name)
        np.testing.assert_array_equal(getattr(found.draw, name), values)
        assert getattr(found.draw, name).dtype == values.dtype
    for mine, theirs in zip(found.predictions, expected.predictions, strict=True):
        assert mine.to_dict() == theirs.to_dict()
        np.testing.assert_array_equal(mine.probabilities, theirs.probabilities)


def test_the_table_is_for_people(table):
    header, first, *_ = table.read_text().splitlines()
    drawn = asked(CLASSES)
    assert header == "path,prediction,confidence,asking_probability,label"
    one = drawn.predictions[0]
    assert first == f"{drawn.paths[0]},{one.label},{one.confidence:.6f},{drawn.draw.probability[0]:.6g},"
    assert count_labels(table) == 0
    fill(table, right(2))
    assert count_labels(table) == 2


def test_labels_are_read_in_any_order_and_spelling_of_numbers(table):
    labels = right(12) | {2: NONE, 4: NOBODY, 5: " sea_lion "}
    fill(table, labels)
    expected = read_table(table, Asked.load(table))
    assert expected.marks[2] == NONE
    assert expected.marks[4] == NOBODY
    assert expected.marks[5] == 1
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *sorted(rows, reverse=True)]))
    assert read_table(table, Asked.load(table)).marks == expected.marks
    fill(table, {}, delimiter=";")
    table.write_text(table.read_text().replace("0.", "0,").replace(",jpg", ".jpg"), encoding="utf-8-sig")
    assert read_table(table, Asked.load(table)).marks == expected.marks


def test_what_labels_count_as(table):
    fill(table, right(12) | {2: NONE, 4: NOBODY})
    labels = read_table(table, Asked.load(table))
    correct = []
    for at, mark in enumerate(labels.marks):
        predicted = CLASSES.index(asked(CLASSES).predictions[at].label)
        correct.append(math.nan if mark == NOBODY else float(mark == predicted))
    assert correct.count(0.0) == 1
    assert labels.accuracy() == asked(CLASSES).draw.accuracy(correct)
    predictions, truth = labels.uniform()
    rows = [row for row in asked(CLASSES).draw.uniform_rows() if row not in (2, 4)]
    assert truth == [labels.marks[row] for row in rows]
    assert [one.label for one in predictions] == [asked(CLASSES).predictions[row].label for row in rows]


def test_labels_after_a_gap_are_not_used(table):
    fill(table, right(12) | {5: ""})
    labels = read_table(table, Asked.load(table))
    assert (len(labels.marks), labels.unused) == (5, 6)
    assert labels.accuracy().labelled == 5
    said = "\n".join(labels.lines())
    assert f"6 labels after {asked(CLASSES).paths[5]}, which has none, are not used: label photos in the order" in said
    fill(table, {0: ""})
    with pytest.raises(InputError, match=f"no label for the first photo, {asked(CLASSES).paths[0]}"):
        read_table(table, Asked.load(table))


def wrong_now_and_then(drawn: Asked) -> Labels:
    marks = [CLASSES.index(one.label) for one in drawn.predictions]
    for at in range(0, len(marks), 6):
        marks[at] = (marks[at] + 1) % 3
    return Labels(asked=drawn, marks=tuple(marks))


def span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


def test_what_is_printed_about_a_mixed_draw():
    labels = wrong_now_and_then(asked(CLASSES, photos=400, labels=300))
    found = labels.accuracy()
    low, high = found.gap_interval
    assert high < 0, "made-up predictions are right more often than they say"
    assert labels.lines() == [
        "300 of 300 photos labelled, drawn from 400.",
        f"accuracy {found.accuracy:.1%} (95% interval {span(found.interval)}, valid whenever you stop), mean "
        f"confidence {found.mean_confidence:.1%}",
        f"The confidence does not hold: it is {-100 * high:.1f} to {-100 * low:.1f} points too low.",
        f"For this folder, approximately {span(found.normal)} (active inference).",
        f"For new photos, {span(found.exact)}, from the {found.uniform} uniform labels alone.",
    ]
    wrong = replace(labels, marks=(NONE,) * 300)
    assert wrong.lines()[2].endswith("points too high.")
    assert wrong.lines()[-1] == "300 of them show none of the classes; a policy is not about such photos."
    unknown = replace(labels, marks=(NOBODY, 0))
    assert unknown.lines()[2].startswith("The confidence may hold: it is between ")
    assert unknown.lines()[3].startswith("1 that nobody can tell count as wrong in lower ends")


def test_what_is_printed_about_a_uniform_draw():
    """One accuracy: the exact interval of all labels, or what holds when one stops, or none where a verdict follows."""
    labels = wrong_now_and_then(asked(CLASSES, photos=400, labels=150, uniform=True))
    found = labels.accuracy()
    high = found.mean_confidence - found.exact[0]
    first = f"accuracy {found.accuracy:.1%} (95% interval "
    assert len(labels.lines()) == 3
    assert labels.lines()[0] == "150 of 150 photos labelled, drawn uniformly from 400."
    assert labels.lines()[1].startswith(f"{first}{span(found.exact)}), mean confidence")
    assert f" {-100 * high:.1f} to " in labels.lines()[2]
    part = replace(labels, marks=labels.marks[:120])
    assert f"{span(part.accuracy().interval)}, valid whenever you stop)" in part.lines()[1]
    many = wrong_now_and_then(asked(CLASSES, photos=400, labels=200, uniform=True))
    assert many.enough
    assert many.lines() == ["200 of 200 photos labelled, drawn uniformly from 400."]
    outside = wrong_now_and_then(asked(CLASSES, photos=400, labels=201, uniform=True))
    outside = replace(outside, marks=(NONE, *outside.marks[1:]))
    assert outside.enough
    assert outside.lines()[1].startswith("accuracy ")
    assert not replace(many, marks=(NONE, *many.marks[1:])).enough


def test_what_is_refused(table, tmp_path):
    text = table.read_text()
    first = asked(CLASSES).paths[0]

    def refuse(message: str, content: str) -> None:
        table.write_text(content)
        with pytest.raises(InputError, match=message):
            read_table(table, Asked.load(table))

    refuse("Unknown label of .* 'sea loin'. Did you mean 'sea lion'", text.replace(",\n", ",sea loin\n", 1))
    refuse("Unknown photo in .*Its photos are not those that were drawn", text.replace(first, "photos/99.jpg"))
    refuse("line 3: .* is there twice", "\n".join([*text.splitlines()[:2], *text.splitlines()[1:]]))
    number = text.splitlines()[1].split(",")[3]
    refuse("asking_probability is 0.5, but photos", text.replace(number, "0.5", 1))
    refuse("asking_probability is missing", text.replace(number, "", 1))
    without = "\n".join(",".join(line.split(",")[:3] + line.split(",")[4:]) for line in text.splitlines())
    refuse("no column asking_probability. Without the probability with which each photo was asked", without)
    assert is_asked(table), "its pool tells"
    table.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(table, Asked.load(table))
    table.write_text(text)
    pool = table.with_suffix(".pool")
    flip(pool)
    with pytest.raises(CotsError, match=r"damaged .*Ask again with cots check --ask"):
        Asked.load(table)
    pool.unlink()
    assert is_asked(table), "its header tells"
    with pytest.raises(InputError, match=r"ask\.pool, which cots check --ask wrote beside ask\.csv, is missing"):
        Asked.load(table)
    table.write_text(without)
    assert is_asked(table), "even without the column and the pool"
    for header in ("path,label", "path,prediction,label"):
        table.write_text(f"{header}\n")
        assert not is_asked(table)
    assert not is_asked(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "cots ask 9"}, "its kind is not 'cots ask 1'"),
        ({"setup": "{}"}, "missing required field"),
        ({"photos": '{"paths": [], "labels": []}'}, "other numbers of photos and predictions"),
        ({"photos": '{"labels": []}'}, "paths"),
    ],
)
def test_a_pool_of_something_else_is_refused(table, change, problem):
    pool = table.with_suffix(".pool")
    tensors, metadata = read_tensors(pool, framework="pt")
    write_tensors(pool, tensors, {**metadata, **change})
    with pytest.raises(InputError, match=rf"ask\.pool is not a file of cots check --ask \(.*{problem}"):
        Asked.load(table)


def test_labels_of_an_export_of_label_studio(table, tmp_path):
    tasks = []
    for at, path in enumerate(asked(CLASSES).paths):
        result = [{"type": "choices", "value": {"choices": ["car" if at else NONE]}}, {"value": {"text": "?"}}]
        annotations = [{"result": result, "was_cancelled": False}, {"result": [], "was_cancelled": True}]
        data = {"path": path, "table": str(table), "image": "x"}
        tasks.append({"id": at, "data": data, "annotations": annotations if at < 7 else []})
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks))
    assert read_export(file).marks == (NONE, 2, 2, 2, 2, 2, 2)
    odd = [{"data": {"path": "a", "table": "b"}, "annotations": [{"result": [{"value": "cat"}]}]}]
    for content in ("[]", "{}", "[{}]", "no", json.dumps(odd)):
        file.write_text(content)
        with pytest.raises(InputError, match="not an export of Label Studio"):
            read_export(file)
