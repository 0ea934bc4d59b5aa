"""Worker processes that read photos, so that decoding does not take the interpreter lock that a GPU waits for."""

import contextlib
import gc
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import torch

from .._errors import InputError
from ..photos import Photo, PhotoEncoder
from ..views import choose_renderer

log = logging.getLogger("cots.serve")

MOST = 4  # processes per device
FREE_CORES = 2  # for the server's own threads
SHARED_BYTES = 2**26  # per worker, for the large arrays of a result; unused pages take no memory
LARGE = 2**14  # bytes of an array that goes through the shared memory
_DIED = (OSError, EOFError, pickle.UnpicklingError)  # what a connection raises whose other end has died


def reader_processes(device: torch.device, devices: int = 1) -> int:
    """The number of processes that read photos for one of `devices` devices; 0: the server's own threads read them.

    Only a GPU that renders the views waits for Python; on a CPU, the processes would compete with the encoder.
    """
    # Elsewhere a process with threads cannot fork, or not safely.
    if sys.platform != "linux" or choose_renderer("auto", device) != "gpu":
        return 0
    return max(1, min(MOST, (len(os.sched_getaffinity(0)) - FREE_CORES) // devices))


class Readers:
    """Reads photos with any of `encoders` in forked processes; in the calling thread if there are none or all died.

    Create it before the threads and sockets that the processes should not inherit.
    """

    def __init__(self, encoders: Sequence[PhotoEncoder], processes: int) -> None:
        self._encoders = tuple(encoders)
        self._pin = any(encoder.maker.device.type == "cuda" for encoder in encoders)
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._idle: SimpleQueue[_Worker | None] = SimpleQueue()  # None: no worker is left
        try:
            for _ in range(processes):
                self._workers.append(_fork(self._encoders, self._workers))
        except OSError as error:  # no memory, or too many processes
            log.warning("started only %d of %d processes that read photos (%s)", len(self._workers), processes, error)
        for worker in self._workers or [None]:
            self._idle.put(worker)
        # Runs once, at the latest when the program ends.
        self.close = weakref.finalize(self, _close_all, self._workers, os.getpid())

    def read(self, encoder: PhotoEncoder, image: bytes, seed: int, **options: Any) -> Photo:
        """`encoder.read(image, seed, **options)`; an image whose reader dies is read once more by another."""
        deaths = 0
        while deaths < 2:
            worker = self._idle.get()
            if worker is None:
                self._idle.put(None)  # for the other threads
                return encoder.read(image, seed, **options)
            sent = False
            try:
                worker.send((self._encoders.index(encoder), len(image), seed, options), image)
                sent = True
                data, buffers = worker.receive(self._pin)
            except BaseException as error:
                self._drop(worker)
                if not isinstance(error, _DIED):
                    raise
                deaths += sent  # a worker that died before has not seen the image
                continue
            self._idle.put(worker)
            result = pickle.loads(data, buffers=buffers)
            if isinstance(result, Exception):
                raise result
            return result
        raise InputError("image bytes: cannot be decoded (the process that read it died). Export the image again.")

    def _drop(self, worker: "_Worker") -> None:
        """Forget a worker that died."""
        with self._lock:
            if worker not in self._workers:  # `close` was called
                self._idle.put(None)
                return
            self._workers.remove(worker)
            left = len(self._workers)
        if not left:
            self._idle.put(None)
        then = f"{left} left" if left else "from now on the server's own threads read them"
        log.warning("a process that reads photos died (exit code %d); %s", worker.close(), then)


def _close_all(workers: list["_Worker"], owner: int) -> None:
    if os.getpid() == owner:  # not in a fork of it
        while workers:
            workers.pop().close()


@dataclass(frozen=True, eq=False)
class _Worker:
    """The server's side of a worker: its process id, its connection, and the memory that both share."""

    pid: int
    end: socket.socket
    file: BinaryIO
    memory: mmap.mmap

    def send(self, request: tuple[Any, ...], image: bytes) -> None:
        head = pickle.dumps(request, 5)
        sent = self.end.sendmsg([head, image])
        if sent < len(head) + len(image):
            self.end.sendall((head + image)[sent:])

    def receive(self, pin: bool) -> tuple[bytes, list[Any]]:
        """A pickled result and its large buffers, copied so that the shared memory is free again; pin: for a GPU."""
        data, sizes = pickle.load(self.file)
        buffers, start = [], 0
        for size in sizes:
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pin).numpy()
            buffer[...] = np.frombuffer(self.memory, np.uint8, size, start)  # without the interpreter lock
            buffers.append(buffer)
            start += size
        return data, buffers

    def close(self) -> int:
        """Close the connection, which ends the worker, and return its exit code when it has ended."""
        with contextlib.suppress(OSError):  # the other end is gone
            self.end.shutdown(socket.SHUT_RDWR)
        self.file.close()
        self.end.close()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # something else has waited for it
            return 0


def _fork(encoders: Sequence[PhotoEncoder], others: Sequence[_Worker]) -> _Worker:
    """Start a worker; `others` are those started before, whose connections it inherits."""
    memory = mmap.mmap(-1, SHARED_BYTES)
    ours, theirs = socket.socketpair()
    with ours, theirs, warnings.catch_warnings():
        # Python 3.12 warns when a process with threads forks; these workers only decode and draw.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        pid = os.fork()
        if not pid:
            try:
                for end in (ours, *(worker.end for worker in others)):
                    os.close(end.fileno())  # or it would not see the end of the server
                _work(encoders, theirs, memory)
            finally:
                os._exit(1)
        end = ours.dup()
    return _Worker(pid, end, end.makefile("rb"), memory)


def _work(encoders: Sequence[PhotoEncoder], end: socket.socket, memory: mmap.mmap) -> None:
    """Answer requests until the server closes the connection."""
    # A signal to the whole group does not end a worker, because the server finishes its requests first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()  # so that the memory of the server's objects stays shared
    torch.set_num_threads(1)
    file = end.makefile("rb")
    with contextlib.suppress(*_DIED):
        while True:
            place, size, seed, options = pickle.load(file)
            image = file.read(size)
            try:
                answer = _packed(encoders[place].read(image, seed, **options), memory)
            except Exception as error:
                answer = _packed(error, memory)
            end.sendall(pickle.dumps(answer, 5))
    os._exit(0)


def _packed(result: Any, memory: mmap.mmap) -> tuple[bytes, list[int]]:
    """A pickled result, and the sizes of its large buffers, which are copied to the shared memory if they fit."""
    sizes: list[int] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        content, start = buffer.raw(), sum(sizes)
        if content.nbytes < LARGE or start + content.nbytes > len(memory):
            return True
        memory[start : start + content.nbytes] = content
        sizes.append(content.nbytes)
        return False

    return pickle.dumps(result, 5, buffer_callback=in_band), sizes
