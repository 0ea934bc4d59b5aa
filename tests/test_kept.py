"""Predictions in a file: a stopped command goes on, and nothing damaged or of another setup is used."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import tiny
from support.serving import photo

import cots
from cots.kept import HEAD, PredictionFile

CLASSES = ("cat", "car", "tree")
PHOTOS = [photo(i) for i in range(4)]
NAMES = [f"{i}.png" for i in range(4)]


def classifier(**options) -> cots.Classifier:
    return cots.Classifier(tiny("vit"), CLASSES, options.pop("method", "tpt+ecots"), views=8, **options)


class Counting:
    """The photos, and which of them a classifier had to read."""

    def __init__(self, made: cots.Classifier, monkeypatch, stop_at: int | None = None) -> None:
        self.classified: list[bytes] = []
        stream = made.stream

        def counted(images):
            for prediction in stream(self.noted(images)):
                if stop_at is not None and len(self.classified) > stop_at:
                    raise KeyboardInterrupt
                yield prediction

        monkeypatch.setattr(made, "stream", counted)

    def noted(self, images):
        for image in images:
            self.classified.append(image)
            yield image


def complete(file, made=None, photos=PHOTOS):
    return PredictionFile(file).complete(made or classifier(), NAMES[: len(photos)], photos.__getitem__)


def same(a: cots.Prediction, b: cots.Prediction) -> bool:
    p, q = a.to_dict(), b.to_dict()
    return p == q and np.array_equal(a.probabilities, b.probabilities) and a.classes == b.classes


def test_a_stopped_command_computes_only_what_is_missing(tmp_path, monkeypatch):
    file = tmp_path / "policy.predictions"
    expected = classifier()(PHOTOS)
    first = classifier()
    counted = Counting(first, monkeypatch, stop_at=2)
    with pytest.raises(KeyboardInterrupt):
        complete(file, first)
    assert len(file.read_bytes().splitlines()) == 3, "the header and two photos"
    with file.open("ab") as cut:
        cut.write(b'01234567 {"photo": ')  # killed in the middle of a line
    second, shown = classifier(), []
    counted = Counting(second, monkeypatch)
    progress = lambda done, total: shown.append((done, total))  # noqa: E731
    found = PredictionFile(file).complete(second, NAMES, PHOTOS.__getitem__, progress)
    assert counted.classified == PHOTOS[2:]
    assert shown == [(2, 4), (3, 4), (4, 4)]
    assert all(map(same, found, expected))
    third = classifier()
    counted = Counting(third, monkeypatch)
    again = complete(file, third, PHOTOS[::-1])
    assert counted.classified == [], "whatever the order and the names"
    assert all(map(same, again, expected[::-1]))
    assert [kept.photo for kept in PredictionFile(file).read(third.setup)] == NAMES


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"solver": "exact"}, {"augmix": False}, {"calibrator_settings": {"rho": 0.5}}, {"method": "tpt"}],
)
def test_another_setup_is_computed(other, tmp_path, monkeypatch):
    file = tmp_path / "policy.predictions"
    complete(file, classifier(solver="adam"))
    made = classifier(**other)
    counted = Counting(made, monkeypatch)
    found = complete(file, made)
    assert len(counted.classified) == 4
    assert all(map(same, found, classifier(**other)(PHOTOS)))


def test_damaged_lines_are_computed_again(tmp_path, monkeypatch):
    file = tmp_path / "policy.predictions"
    complete(file)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    made = classifier()
    counted = Counting(made, monkeypatch)
    assert all(map(same, complete(file, made), classifier()(PHOTOS)))
    assert len(counted.classified) == 1


def test_no_changed_number_is_believed(tmp_path):
    """Half of the changed lines are still JSON with probabilities of the right length."""
    file = tmp_path / "policy.predictions"
    made = classifier()
    complete(file, made, PHOTOS[:1])
    head, line = file.read_bytes().splitlines(keepends=True)
    for place in range(0, len(line) - 1, 5):
        changed = bytearray(line)
        changed[place] ^= 1
        file.write_bytes(head + changed)
        assert list(PredictionFile(file).read(made.setup)) == [], bytes(changed)


def test_unreadable_photos_are_tried_again_and_foreign_files_left_alone(tmp_path):
    file = tmp_path / "policy.predictions"
    for _ in range(2):
        found = complete(file, photos=[PHOTOS[0], b"no photo"])
        assert [one.error is None for one in found] == [True, False]
    assert file.read_bytes().startswith(HEAD.encode() + b"\n")
    file.write_text("my notes\n")
    with pytest.raises(cots.InputError, match=r"was not written by cots check\. Move it"):
        complete(file)
    assert file.read_text() == "my notes\n"


def test_a_classifier_that_abstains_is_refused(tmp_path):
    with pytest.raises(cots.InputError, match="does not abstain"):
        complete(tmp_path / "policy.predictions", classifier(abstain=0.5))


def test_online_methods_see_every_photo(tmp_path, monkeypatch):
    file = tmp_path / "policy.predictions"
    for _ in range(2):
        made = classifier(method="tda")
        counted = Counting(made, monkeypatch)
        complete(file, made)
        assert counted.classified == PHOTOS
    assert not file.exists()
