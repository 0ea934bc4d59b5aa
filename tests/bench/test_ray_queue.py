"""What becomes of units that fail: the order of tries without a cluster, the files as the only witness."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
from support.runs import config, figures, photos

import cots
from cots import bench
from cots.bench import _parts, _ray
from cots.bench._files import Halt
from cots.bench._job import silent
from cots.bench._queue import Queue

BAD = RuntimeError("out of order")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 64)  # 192 samples: three files of features


def jobs_of(dataset, out, **changes):
    plan = bench.plan(config(dataset, out, **{"methods": ["zeroshot"], "views": 2, "shard_size": 32, **changes}))
    with pytest.raises(KeyboardInterrupt):
        plan.run(lambda *event: (_ for _ in ()).throw(KeyboardInterrupt))  # the manifest is there, nothing else
    return list(plan.jobs(32))


def do(queue: Queue, unit) -> None:
    job = queue.jobs[unit.job]
    if unit.stream is None:
        _parts.do_shards(job, unit.shards, silent)
    else:
        _parts.do_stream(_parts.streams(job)[unit.stream], silent)
    queue.succeeded(unit, 0.01)


def test_a_failed_unit_comes_back_shard_by_shard_and_another_worker_is_preferred(dataset, tmp_path):
    queue = Queue(jobs_of(dataset, tmp_path / "y"), silent)
    first = queue.next(0, 2)
    assert first.shards == (0, 1)
    queue.failed(first, 0, "here", BAD)
    # Shard 1 was not tried yet; shard 0 is for the other worker.
    assert queue.next(0, 2).shards == (1,)
    assert queue.next(0, 2).shards == (2, 3)
    again = queue.next(1, 2)
    assert (again.shards, again.tries) == ((0,), 1)
    queue.failed(again, 1, "there", BAD)
    # Both have failed on it: whoever comes may try for the third time.
    assert queue.next(0, 2).tries == 2
    assert (queue.failures, queue.given_up, queue.done, queue.finished) == (2, 0, 0, False)


def test_where_there_are_several_machines_another_one_is_preferred(dataset, tmp_path):
    """One without the data would fail everywhere, and quickly."""
    driver = object.__new__(_ray._Driver)
    hands = [_ray._Hand(number=n, actor=None, machine=name, ready=True) for n, name in enumerate("aab")]
    driver._hands, driver._idle = {}, hands
    assert [driver._name(hand) for hand in hands] == ["a", "a", "b"]
    queue = Queue(jobs_of(dataset, tmp_path / "y"), silent)
    queue.failed(queue.next("a", 3, 2), "a", "a (process 1)", BAD)
    assert [queue.next("a", 3, 2).shards for _ in range(3)] == [(1,), (2, 3), (4, 5)]
    assert queue.next("a", 3, 2) is None
    again = queue.next("b", 3, 2)
    assert (again.shards, again.tries) == ((0,), 1)
    queue.failed(again, "b", "b (process 3)", BAD)
    assert queue.next("a", 3, 2).tries == 2, "both have failed on it"
    driver._idle = hands[:2]
    assert [driver._name(hand) for hand in hands[:2]] == [0, 1]


def test_a_unit_whose_files_are_there_has_not_failed(dataset, tmp_path):
    queue = Queue(jobs_of(dataset, tmp_path / "y"), silent)
    unit = queue.next(0, 1)
    _parts.do_shards(queue.jobs[0], unit.shards, silent)
    queue.failed(unit, 0, "here", BAD)  # lost after its last file
    assert queue.done == 64
    assert queue.next(0, 1).shards == (2, 3)


def test_a_full_disk_stops_the_run_and_leaves_no_record(dataset, tmp_path):
    queue = Queue(jobs_of(dataset, tmp_path / "y"), silent)
    full = Halt("The disk is full.")
    while (unit := queue.next(0, 1)).tries < 2:
        queue.failed(unit, 0, "here", full)
    with pytest.raises(cots.CotsError, match=r"The disk is full\. \(Tried 3 times, the last time on there\.\)"):
        queue.failed(unit, 0, "there", full)
    assert not list((tmp_path / "y").rglob("shards/**/*.safetensors"))


def test_an_error_of_ours_about_one_shard_becomes_its_records(dataset, tmp_path):
    queue = Queue(jobs_of(dataset, tmp_path / "y"), silent)
    bad = queue.next(0, 1)
    queue.failed(bad, 0, "here", cots.InputError("logits are not finite"))
    while (unit := queue.next(0, 1)) is not None:
        if unit.shards == (0,) and unit.tries == 2:
            with pytest.warns(UserWarning, match=r"Shard 0 of photos, seed 0, failed 3 times, .* --retry-failed"):
                queue.failed(unit, 0, "here", cots.InputError("logits are not finite"))
        elif unit.shards == (0,):
            queue.failed(unit, 0, "here", cots.InputError("logits are not finite"))
        else:
            _parts.do_shards(queue.jobs[unit.job], unit.shards, silent)
            queue.succeeded(unit, 1.0)
    assert queue.finished
    assert queue.given_up == 1
    job = queue.jobs[0]
    assert not job.missing()
    errors = bench.Run.open(tmp_path / "y").records(job.name, job.methods[0], job.seed).errors
    assert len(errors) == len(job.places(0))
    assert all("logits are not finite" in text for text in errors.values())


def test_when_nothing_ever_succeeds_the_run_goes_on_with_a_warning_and_can_be_done_again(dataset, tmp_path):
    queue = Queue(jobs_of(dataset, tmp_path / "y"), silent)
    with warnings.catch_warnings(record=True, action="always") as told:
        while (unit := queue.next(0, 1)) is not None:
            queue.failed(unit, 0, "here", BAD)
    first, second = (str(warning.message) for warning in told)
    assert "Shard 0 of photos, seed 0, failed 3 times, the last time on here: RuntimeError: out of order." in first
    assert "Nothing has succeeded yet, and 3 shards failed 3 times each, the last one on here" in second
    assert "better stop now" in second
    assert all("the same command with --retry-failed" in text for text in (first, second))
    assert queue.finished
    assert (queue.failures, queue.given_up, queue.done) == (18, 6, queue.total)
    run = bench.Run.open(tmp_path / "y")
    assert run.failures("photos", "zeroshot", 0) == (192, 192)
    options = {"methods": ["zeroshot"], "views": 2, "shard_size": 32}
    assert bench.run(config(dataset, tmp_path / "y", **options)).failures("photos", "zeroshot", 0).given_up == 192
    again = bench.run(config(dataset, tmp_path / "y", **options), retry_failed=True)
    assert again.complete
    assert again.failures("photos", "zeroshot", 0) == (0, 0)
    assert figures(again) == figures(bench.run(config(dataset, tmp_path / "x", **options)))


def test_streams_begin_when_the_features_are_there_and_a_broken_one_is_given_up(dataset, tmp_path):
    methods = ["zeroshot", "tda", "tda+cots"]
    whole = figures(bench.run(config(dataset, tmp_path / "x", methods=methods, views=2, shard_size=32)))
    queue = Queue(jobs_of(dataset, tmp_path / "y", methods=methods), silent)
    units = [queue.next(worker, 3) for worker in range(3)]
    assert [unit.shards for unit in units] == [(0, 1), (2, 3), (4, 5)]
    for unit in units:
        assert queue.next(3, 3) is None, "no stream before its features"
        do(queue, unit)
    stream = queue.next(0, 3)
    assert (stream.stream, stream.records) == ("tda", 2 * 192)
    job = _parts.streams(queue.jobs[0])["tda"]
    for tries in range(3):
        if tries == 0:  # it gets to the third shard, and no further
            _parts.replace(job, only=frozenset({0, 1})).run(silent)
        with pytest.warns(UserWarning, match="Shard 2 of photos") if tries == 2 else nullcontext():
            queue.failed(stream, tries, "here", BAD)
        stream = queue.next(tries + 1, 3)
    assert stream is None
    assert queue.finished
    assert (queue.done, queue.given_up) == (queue.total, 1)
    found = bench.run(config(dataset, tmp_path / "y", methods=methods, views=2, shard_size=32))
    assert found.complete
    assert figures(found)["photos", "zeroshot", 0] == whole["photos", "zeroshot", 0]
    records = found.records("photos", "tda+cots", 0)
    assert (len(records), records.failed) == (64, 128)
    assert whole["photos", "tda+cots", 0]["probabilities"].startswith(records.probabilities.tobytes())
    assert set(records.errors.values()) == {
        "The stream stopped at 2. This shard failed 3 times, the last time on here: RuntimeError: out of order"
    }
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "y").glob("shards/**/0000[01].safetensors")}
    options = {"methods": methods, "views": 2, "shard_size": 32}
    assert figures(bench.run(config(dataset, tmp_path / "y", **options), retry_failed=True)) == whole
    assert {file: file.stat().st_mtime_ns for file in before} == before, "what held no error was done again"


def test_quick_shards_are_handed_out_several_at_a_time_while_many_are_left(dataset, tmp_path):
    queue = Queue(jobs_of(dataset, tmp_path / "y", seeds=range(10)), silent)
    sizes = []
    while (unit := queue.next(0, 1)) is not None:
        sizes.append(len(unit.shards))
        queue.succeeded(unit, 0.01)
    assert sum(sizes) == 60
    assert sizes[0] == 2, "one group, until it is known how long one takes"
    assert max(sizes) == 6, "a unit stays within one dataset and seed"
    assert sizes[-1] == 2, "small ones at the end, so that all workers end together"
    assert queue.finished


def test_nothing_is_kept_of_what_is_done(dataset, tmp_path):
    """The driver holds numbers of shards that are being done, and counters: not more for more samples."""
    queue = Queue(jobs_of(dataset, tmp_path / "y", seeds=range(5)), silent)
    while (unit := queue.next(0, 1)) is not None:
        assert len(queue._again) <= 1
        queue.succeeded(unit, 0.01)
    assert all(isinstance(value, (int, bool)) for count in queue._counts for value in vars(count).values())
