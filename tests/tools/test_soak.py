"""A short version of tools/soak, in this process."""

from __future__ import annotations

import random
from importlib import import_module

import pytest
from support.runs import config, photos
from support.scripts import load_script
from support.serving import client

from cots import bench

load_script("tools/soak/__init__.py", "soak")
checks, configs, images, runs, server = (
    import_module(f"soak.{name}") for name in ("checks", "configs", "images", "runs", "server")
)


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
    result = runs.flip_bits(run, 40, random.Random(0))
    assert result.problems == {}
    kinds = {kind.partition(":")[0] for kind in result.note.split(", ")}
    assert kinds == {"demo", "features", "manifest", "policy", "shards", "state"}


def test_flips_are_counted_where_nothing_verifies_them(run, monkeypatch):
    """Without checksums, a flip is missed or ends in another error: both are problems, and neither ends the check."""
    monkeypatch.setattr("cots._checked._checksum", lambda data, stored: stored[1])
    result = runs.flip_bits(run, 120, random.Random(0))
    assert result.count == 120
    assert result.problems.total() > 60
    assert {problem.partition(": ")[2] for problem in result.problems} > {"not found"}


def test_damaged_files_are_made_again(run, settings):
    assert runs.repair(run, settings, random.Random(0)).problems == {}


def test_every_column_of_a_record_counts(run):
    texts = runs.records_of(run)
    names = {key.rpartition(" ")[2] for key in texts}
    assert names == {"ids", "label", "prediction", "confidence", "probabilities", "errors"}


def test_mutated_manifests_raise_only_errors_of_cots(run, send):
    result = runs.fuzz_manifests(run, 8, random.Random(0), send)
    assert (result.problems, result.count) == ({}, 8)
    assert bench.check_run(run.folder).ok, "the manifest is restored"


def test_mutated_images_are_read_or_refused():
    assert images.mutate_images(200, random.Random(0)).problems == {}


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

    monkeypatch.setattr(images, "LARGEST", (("square", 3, write),))
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    monkeypatch.setattr(images, "in_child", lambda call, files: call(files))
    monkeypatch.setattr(images, "_is_read", lambda image: int(image.read_text()) <= limit)
    monkeypatch.setattr(images, "peak_gib", lambda: peak)
    result = images.read_largest()
    assert (result.count, result.problems, result.note) == (1, problems, f"of 1 kinds, peak {peak:.2f} GiB")


def test_mutated_configs_raise_only_errors_of_cots(tmp_path):
    dataset = photos(tmp_path / "photos", 2)
    result = configs.mutate_configs(dataset, tmp_path, 30, random.Random(0))
    assert (result.problems, result.count) == ({}, 30)


# Starlette leaves the temporary file of a form that ends too early to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hostile_requests_get_an_answer(send):
    assert server.fuzz_requests(send, 20, random.Random(0), lambda: 1.0).problems == {}


def test_checks_are_bounded_in_time():
    assert images.mutate_images(10**9, random.Random(0), until=0.0).problems == {}
    assert list(checks.bounded(10**9, 0.0)) == [1]
