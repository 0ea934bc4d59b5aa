"""Photos read by worker processes are those that the server's own threads would read, whatever happens to a worker."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from support.kills import forked
from support.models import CLASSES, tiny
from support.serving import bomb, photo, until

import cots
from cots._errors import InputError
from cots.accelerate import Plain, using
from cots.fast.views import GpuRenderer, Prepared
from cots.photos import PhotoEncoder
from cots.serve import ServeSettings, _app, _readers, create_app
from cots.serve._predict import Predictor
from cots.serve._readers import Readers, reader_processes
from cots.serve._requests import PredictFields, PredictRequest
from cots.views import LargeImage, ViewSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes read photos on Linux")
CPU = torch.device("cpu")


class Packs(Plain):
    """Photos are packed as for a GPU."""

    def renderer(self, settings, device):
        return GpuRenderer(settings, device)


@pytest.fixture(autouse=True)
def packs(monkeypatch):
    monkeypatch.setattr(torch, "empty", torch.zeros)  # or the bytes between packed arrays would differ
    with using(Packs()):
        yield


def encoder(renderer: str = "gpu", **options) -> PhotoEncoder:
    return PhotoEncoder(tiny("vit"), ViewSettings(n=4, size=32), renderer=renderer, **options)


@pytest.fixture
def started():
    """Makes readers that are closed after the test."""
    made = []

    def start(processes: int = 2, *encoders: PhotoEncoder) -> tuple[Readers, PhotoEncoder]:
        encoders = encoders or (encoder(),)
        made.append(Readers(encoders, processes))
        return made[-1], encoders[-1]

    yield start
    for readers in made:
        readers.close()


def plain(value) -> object:
    """A value whose parts can be compared."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        array = np.asarray(value)
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if type(value).__module__.startswith(("cots.", "PIL.")):
        return plain(value.__getstate__() if hasattr(value, "__getstate__") else vars(value))
    return value


def pids(readers: Readers) -> list[int]:
    return [worker.pid for worker in readers._workers]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors() -> list[str]:
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("renderer", "rounds"), [("gpu", ()), ("gpu", (2, 4)), ("pil", ()), ("pil", (2, 4))])
def test_a_worker_reads_what_a_thread_reads(started, renderer, rounds):
    readers, chosen = started(1, encoder("pil"), encoder(renderer, rounds=rounds))
    for seed, kind in enumerate(("PNG", "JPEG")):
        image = photo(seed, (300, 200), kind)
        found, wanted = readers.read(chosen, image, seed), chosen.read(image, seed)
        assert isinstance(found.prepared, Prepared) == (renderer == "gpu")
        assert plain(found) == plain(wanted)


def test_arrays_can_be_changed_and_later_photos_do_not_change_them(started):
    readers, chosen = started(1)
    first = readers.read(chosen, photo(0, (300, 200)), 0)
    before = plain(first)
    readers.read(chosen, photo(1, (300, 200)), 1)
    assert plain(first) == before
    first.prepared.data[0] += 1
    assert first.prepared.pinned(torch.device("cpu")).data_ptr() == first.prepared.data.ctypes.data, "without a copy"


@pytest.mark.parametrize("size", [0, 1, 30_000, 3 * 300 * 200 + 1])
def test_what_does_not_fit_in_the_shared_memory_is_sent(started, monkeypatch, size):
    monkeypatch.setattr(_readers, "SHARED_BYTES", max(size, 1))
    readers, chosen = started(1)
    image = photo(2, (300, 200))
    assert plain(readers.read(chosen, image, 5)) == plain(chosen.read(image, 5))


def test_errors_are_those_of_reading_in_a_thread(started):
    readers, chosen = started(1)
    for image, options in ((photo()[:200], {}), (b"", {}), (b"cots", {}), (bomb(30_000, 30_000), {"max_pixels": 1000})):
        with pytest.raises(InputError) as wanted:
            chosen.read(image, 0, **options)
        with pytest.raises(InputError) as found:
            readers.read(chosen, image, 0, **options)
        assert (type(found.value), str(found.value)) == (type(wanted.value), str(wanted.value))
    assert type(found.value) is LargeImage
    with pytest.raises(TypeError, match="colour"):
        readers.read(chosen, photo(), 0, colour=1)
    assert readers.read(chosen, photo(), 0).size == (50, 40), "the worker goes on"


def test_eight_threads_read_at_once(started):
    readers, chosen = started(3)
    images = [photo(seed, (100 + seed, 90), "JPEG") for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda item: readers.read(chosen, item[1], item[0]), enumerate(images)))
    for seed, image in enumerate(images):
        assert plain(found[seed]) == plain(chosen.read(image, seed))


def test_a_photo_that_ends_its_worker_is_read_once_more(started, caplog):
    """The first worker dies while it reads; the second reads."""
    readers, chosen = started(3)
    doomed, last = pids(readers)[0], pids(readers)[1:]
    os.kill(doomed, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(readers.read, chosen, photo(3), 7)
        until(lambda: readers._idle.qsize() == 2, "the worker to be taken")
        time.sleep(0.05)  # until the request is sent
        os.kill(doomed, signal.SIGKILL)
        assert plain(reading.result(60)) == plain(chosen.read(photo(3), 7))
    assert pids(readers) == last
    assert [record.message for record in caplog.records] == ["a process that reads photos died (exit code -9); 2 left"]


class Crashes(PhotoEncoder):
    """A photo with seed 13 crashes the decoder; in a thread of the server, it is only noticed."""

    server = os.getpid()

    def read(self, source, seed, **options):
        if seed == 13 and os.getpid() != self.server:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(source, seed, **options)


def test_a_photo_that_ends_two_workers_is_unreadable(started, monkeypatch):
    monkeypatch.setattr(Crashes, "server", os.getpid())
    readers, chosen = started(3, Crashes(tiny("vit"), ViewSettings(n=4, size=32), renderer="gpu"))
    with pytest.raises(InputError, match="the process that read it died"):
        readers.read(chosen, photo(), 13)
    assert len(pids(readers)) == 1
    assert plain(readers.read(chosen, photo(), 1)) == plain(chosen.read(photo(), 1))
    assert len(pids(readers)) == 1


def test_without_a_worker_threads_read(started, caplog):
    readers, chosen = started(3)
    for pid in pids(readers):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids(readers))), "the workers to end")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: readers.read(chosen, photo(seed), seed), range(16)))
    assert [plain(one) for one in found] == [plain(chosen.read(photo(seed), seed)) for seed in range(16)]
    assert pids(readers) == []
    assert sorted(record.message.partition("; ")[2] for record in caplog.records) == [
        "1 left", "2 left", "from now on the server's own threads read them",
    ]  # fmt: skip


def test_no_process_can_be_started(started, monkeypatch, caplog):
    monkeypatch.setattr(os, "fork", lambda: (_ for _ in ()).throw(BlockingIOError("no more processes")))
    readers, chosen = started(2)
    assert plain(readers.read(chosen, photo(), 3)) == plain(chosen.read(photo(), 3))
    assert "started only 0 of 2 processes" in caplog.text


def test_signals_of_the_group_end_no_worker(started):
    readers, chosen = started(2)
    readers.read(chosen, photo(), 0)
    readers.read(chosen, photo(), 0)
    for pid in pids(readers):
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    before = pids(readers)
    for seed in range(4):
        readers.read(chosen, photo(), seed)
    assert pids(readers) == before


def test_closing_ends_the_processes_and_leaves_nothing_open():
    before, first = descriptors(), Readers([encoder()], 2)
    second = Readers([encoder()], 2)  # its workers inherit the connections of the first
    ended = pids(first) + pids(second)
    assert all(map(alive, ended))
    first.close()
    first.close()
    assert all(map(alive, pids(second)))
    assert plain(first.read(first._encoders[0], photo(), 1)) == plain(first._encoders[0].read(photo(), 1))
    del second
    gc.collect()
    for pid in ended:
        with pytest.raises(ChildProcessError):  # waited for
            os.waitpid(pid, os.WNOHANG)
    del first
    assert descriptors() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_processes_end_with_the_server(number):
    reading, writing = os.pipe()

    def serve():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        pools = [Readers([encoder()], 2), Readers([encoder()], 2)]
        os.write(writing, pickle.dumps([pid for pool in pools for pid in pids(pool)]))
        signal.pause()

    server = forked(serve)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        started = pickle.load(file)
        assert len(started) == 4
        assert all(map(alive, started))
        os.kill(server, number)
        os.waitpid(server, 0)
        assert file.read() == b"", "ends when the last process that inherited it has ended"
    until(lambda: not any(map(alive, started)), "the workers to end")


def test_how_many_processes(monkeypatch):
    for cores, devices, expected in ((1, 1, 1), (4, 1, 2), (16, 1, 4), (16, 8, 1), (64, 8, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: range(cores))
        assert reader_processes(CPU, devices) == expected
    with using(Plain()):
        assert reader_processes(CPU) == 0, "the host draws the views"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert reader_processes(CPU) == 0


def test_a_server_on_a_cpu_starts_none(monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    with using(Plain()), TestClient(create_app(tiny("vit"), ServeSettings(views=4))) as web:
        assert web.get("/healthz").status_code == 200


def test_a_server_reads_in_processes_until_it_stops(monkeypatch):
    made = []

    class Recorded(Predictor):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(_app, "Predictor", Recorded)
    monkeypatch.setattr(_app, "reader_processes", lambda device, devices: 2)
    with TestClient(create_app(tiny("vit"), ServeSettings(views=4))):
        (predictor,) = made
        readers, chosen = predictor._readers, predictor._encoder
        running = pids(readers)
        assert len(running) == 2
        fields = PredictFields(classes=tuple(CLASSES), methods=(cots.parse_method("tpt+cots"),), seed=3)
        request = PredictRequest(image=photo(4), fields=fields)
        with monkeypatch.context() as patch:
            patch.setattr(PhotoEncoder, "read", lambda *_, **__: pytest.fail("read in the server"))
            found = predictor._read(chosen, request)
        assert plain(found) == plain(chosen.read(photo(4), 3, max_pixels=50_000_000))
    assert not any(map(alive, running))
