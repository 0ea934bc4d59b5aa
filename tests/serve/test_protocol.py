"""Connections over raw sockets: slow headers, aborted uploads, and the number of connections."""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import socket
import struct
import threading
import time

import pytest
import uvicorn
from support.serving import client, until

from cots.serve import _server
from cots.serve._server import Server

HEADER_S = 0.2
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture(scope="module", autouse=True)
def stopping_at_once():
    """No request arrives after a server here is stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_server, "LINGER_S", 0)
        yield


LARGE = 2**22  # bytes of a response that the system does not hold


async def large(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


@contextlib.contextmanager
def serving(app, timeout_s):
    sock = socket.create_server(("127.0.0.1", 0), backlog=64)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
    http = _server.protocol(timeout_s)
    server = Server(uvicorn.Config(app, http=http, lifespan="off", log_config=None, timeout_keep_alive=5))
    server.capture_signals = contextlib.nullcontext  # in a thread
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield sock.getsockname()
    finally:
        server.should_exit = True
        thread.join(30)
        sock.close()


@pytest.fixture(scope="module")
def address():
    with serving(hello, HEADER_S) as found:
        yield found


def connect(address, source: str = "127.0.0.1") -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    connection.settimeout(30)
    connection.bind((source, 0))
    connection.connect(address)
    return connection


def rest(connection: socket.socket, pause_s: float = 0) -> bytes:
    """Everything until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(2**16):
            found += data
            time.sleep(pause_s)
    return found


def test_a_header_that_does_not_end_is_cut_off(address):
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(address)) for _ in range(3)]
        for connection, sent in zip(connections, (b"", b"G", REQUEST[:-2]), strict=True):
            connection.sendall(sent)
        answer = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        assert [rest(connection) for connection in connections] == [answer] * 3


def test_drops_of_a_header_do_not_extend_its_deadline(address):
    with connect(address) as connection:
        for _ in range(500):
            connection.sendall(b"a")
            if select.select([connection], [], [], HEADER_S / 10)[0]:
                assert connection.recv(4096).startswith(b"HTTP/1.1 408")
                return
    raise AssertionError("still open")


def test_finished_requests_and_kept_connections_are_left_alone(address):
    with connect(address) as connection:
        for idle in (0, 1.5 * HEADER_S, 1.5 * HEADER_S):  # which the keep-alive timeout limits, not the header's
            time.sleep(idle)
            connection.sendall(REQUEST)
            answer = b""
            while not answer.endswith(b"hi"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")


def test_connections_beyond_the_limit_are_refused_until_others_end(address, monkeypatch):
    monkeypatch.setattr(_server, "CONNECTIONS", 3)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(address))
        time.sleep(0.05)
        with connect(address) as refused:
            assert rest(refused).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10")
    for _ in range(100):
        with connect(address) as connection:
            connection.sendall(REQUEST)
            if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.05)
    raise AssertionError("connections that ended still count")


def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    monkeypatch.setattr(_server, "WRITE_S", 0.2)
    with serving(large, 60) as address, connect(address) as stuck, connect(address) as slow:
        for connection in (stuck, slow):
            connection.sendall(REQUEST[:-2] + b"connection: close\r\n\r\n")
        received = rest(slow, pause_s=0.01)  # takes several deadlines
        assert received.endswith(bytes(100))
        assert len(received) > LARGE
        assert len(rest(stuck)) < LARGE


def test_clients_that_do_not_read_make_room_for_others(monkeypatch):
    monkeypatch.setattr(_server, "CONNECTIONS", 3)
    monkeypatch.setattr(_server, "STUCK_S", 0.1)
    with serving(large, 60) as address, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(address)).sendall(20 * REQUEST)
        time.sleep(0.2)
        for _ in range(3):
            with connect(address) as connection:
                connection.sendall(REQUEST)
                assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_one_address_does_not_take_all_connections(address, monkeypatch):
    monkeypatch.setattr(_server, "PER_ADDRESS", 2)
    with connect(address), connect(address), connect(address) as third, connect(address, "127.0.0.2") as other:
        assert rest(third).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10")
        other.sendall(REQUEST)
        assert other.recv(4096).startswith(b"HTTP/1.1 200")


async def busy(scope, receive, send):
    time.sleep(0.2)  # connections wait meanwhile, and are all made at once
    await hello(scope, receive, send)


def test_refused_connections_take_no_room_from_other_addresses(monkeypatch):
    monkeypatch.setattr(_server, "PER_ADDRESS", 2)
    monkeypatch.setattr(_server, "CONNECTIONS", 5)
    with serving(busy, 60) as address, contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(address))
        first.sendall(REQUEST)
        time.sleep(0.05)
        for _ in range(20):
            stack.enter_context(connect(address))
        other = stack.enter_context(connect(address, "127.0.0.2"))
        other.sendall(REQUEST)
        assert other.recv(4096).startswith(b"HTTP/1.1 200")


def test_few_requests_are_answered_ahead(address):
    with connect(address) as connection:
        connection.sendall(50 * REQUEST)
        assert rest(connection).count(b"HTTP/1.1 200") == _server.PIPELINED + 1


def test_an_aborted_upload_logs_one_line_at_info(caplog):
    caplog.set_level(logging.INFO)
    uploads = {"predict": "multipart/form-data; boundary=b", "calibrate": "application/json"}
    reset = struct.pack("ii", 1, 0)  # instead of an orderly end
    with serving(client().app, 60) as address:
        for count, (linger, route) in enumerate(itertools.product((None, reset), uploads), start=1):
            kind = uploads[route]
            with connect(address) as connection:
                head = f"POST /v1/{route} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: 9999\r\n\r\n"
                connection.sendall(head.encode() + b'--b\r\ncontent-disposition: form-data; name="image"; filename="x')
                time.sleep(0.05)
                if linger:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            until(lambda count=count: sum("disconnected" in text for text in caplog.messages) == count, "the log")
            assert f"POST /v1/{route}: the client disconnected" == caplog.messages[-1]
    lines = [(record.name, record.levelname) for record in caplog.records if not record.name.startswith("uvicorn")]
    assert lines == [("cots.serve", "INFO")] * 4
    assert not [record for record in caplog.records if record.levelno > logging.INFO or record.exc_info]
