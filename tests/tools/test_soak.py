"""A short version of tools/soak.py, in this process."""

from __future__ import annotations

import random

import pytest
from support.runs import config, photos
from support.scripts import load_script
from support.serving import client

from cots import bench

soak = load_script("tools/soak.py", "soak")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    dataset = photos(tmp_path_factory.mktemp("data") / "photos", 3)
    return config(dataset, tmp_path_factory.mktemp("runs") / "x", methods=["zeroshot", "tpt"])


@pytest.fixture(scope="module")
def run(settings):
    return bench.run(settings)


@pytest.fixture(scope="module")
def send(run):
    web = client(runs=run.folder.parent)

    def send(path, body, kind):
        head = {"content-type": kind} if kind else {}
        return (web.get(path) if body is None else web.post(path, content=body, headers=head)).status_code

    return send


def test_every_flipped_bit_in_a_run_is_found(run):
    found = soak.flip_bits(run, 40, random.Random(0))
    assert found.problems == {}
    kinds = {kind.partition(":")[0] for kind in found.note.split(", ")}
    assert kinds == {"demo", "features", "manifest", "policy", "shards", "state"}


def test_damaged_files_are_made_again(run, settings):
    assert soak.repair(run, settings, random.Random(0)).problems == {}


def test_mutated_manifests_raise_only_errors_of_cots(run, send):
    found = soak.fuzz_manifests(run, 8, random.Random(0), send)
    assert (found.problems, found.count) == ({}, 8)
    assert "refusals" in found.note
    assert bench.check_run(run.folder).ok, "the manifest is restored"


def test_mutated_images_are_read_or_refused():
    assert soak.mutate_images(200, random.Random(0)).problems == {}


@pytest.mark.parametrize(
    ("limit", "peak", "problems"),
    [
        (10, 1.4, {}),
        (9, 1.4, {"square of 10 x 10: refused": 1}),
        (11, 1.4, {"square of 11 x 11: read": 1}),
        (10, 1.6, {"square: 1.60 GiB": 1}),
    ],
)
def test_the_largest_images_are_judged(limit, peak, problems, monkeypatch):
    def write(side, file):
        file.write_text(str(side))

    monkeypatch.setattr(soak, "LARGEST", (("square", 3, write),))
    monkeypatch.setattr(soak, "MAX_PIXELS", 100)
    monkeypatch.setattr(soak, "in_child", lambda call, images: call(images))
    monkeypatch.setattr(soak, "_is_read", lambda image: int(image.read_text()) <= limit)
    monkeypatch.setattr(soak, "_peak", lambda: peak)
    found = soak.read_largest()
    assert (found.count, found.problems, found.note) == (1, problems, f"of 1 kinds, peak {peak:.2f} GiB")
    assert soak.read_largest(until=0.0).count == 0


# Starlette leaves the temporary file of a form that ends too early to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hostile_requests_get_an_answer(send):
    assert soak.fuzz_requests(send, 20, random.Random(0), lambda: 1.0).problems == {}


def test_checks_are_bounded_in_time(run):
    assert soak.mutate_images(10**9, random.Random(0), until=0.0).count == 0
