"""A client is safe from its server: limits of size and time, and errors of a kind that one expects."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import holdfast
from holdfast.errors import HoldfastError, TooLargeError, UnavailableError
from holdfast.interfaces.http.transport import _LONGEST as TIMES
from holdfast.interfaces.http.transport import HttpTransport, _LimitedStream

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer each connection with a function, which may go on for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def accept() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                answer(connection)
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def endless(start: bytes, part: bytes, pause: float = 0) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(part)
            time.sleep(pause)

    return answer


def once(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


def with_body(body: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n" % len(body) + body


MIB = b"x" * (1 << 20)


@pytest.mark.parametrize(
    "start", [OK + b"\r\n", OK + b"Content-Length: 99999999999\r\n\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_body_without_end_is_too_large(start: bytes) -> None:
    part = b"100000\r\n" + MIB + b"\r\n" if b"chunked" in start else MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        serving(endless(start, part)) as url,
        pytest.raises(TooLargeError, match="more than 8388608 bytes"),
    ):
        holdfast.open(url, token="t", max_answer=8 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # in KiB


def test_many_small_parts_are_too_large() -> None:
    """The limit is reached while the size of a part is read."""
    start = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    with serving(endless(start, b"1\r\nx\r\n" * 1000)) as url, pytest.raises(TooLargeError, match="more than 65536"):
        holdfast.open(url, token="t", max_answer=1 << 16)


@pytest.mark.nightly
@pytest.mark.parametrize("start", [OK + b"\r\n", OK, b"HTTP/1.1 2", OK + b"Transfer-Encoding: chunked\r\n\r\n"])
def test_an_answer_that_never_ends_is_given_up(start: bytes) -> None:
    part = b"1\r\nx\r\n" if b"chunked" in start else b"x"
    begin = time.monotonic()
    with serving(endless(start, part, 0.02)) as url, pytest.raises(UnavailableError, match="took too long|timed out"):
        HttpTransport(url, "t", timeout=0.1).send("GET", "", dict)
    assert time.monotonic() - begin < 0.1 * TIMES + 20


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff" * 100,
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n",
        with_body(b""),
        with_body(b"\xff\xfe"),
        with_body(b"[1, 2"),
        with_body(b"[" * 100_000),
        with_body(b'{"name": 5}'),
        b"HTTP/1.1 500 \r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 404 \r\nContent-Length: 4\r\n\r\n\xff\xff\xff\xff",
    ],
)
def test_what_makes_no_sense_is_a_typed_error(data: bytes) -> None:
    with serving(once(data)) as url, pytest.raises(UnavailableError):
        holdfast.open(url, token="t", timeout=5)


def test_control_characters_are_visible() -> None:
    body = (
        b'{"code": "denied", "detail": "no\\u001b[2J\\u202e way", "title": "x", "status": 403, "type": "about:blank"}'
    )
    head = b"HTTP/1.1 403 \r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n"
    with serving(once(head % len(body) + body)) as url, pytest.raises(HoldfastError) as caught:
        holdfast.open(url, token="t", timeout=5)
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)
    assert r"no\x1b[2J" in str(caught.value)


def test_a_slow_answer_leaves_the_next_one_its_time() -> None:
    """What was left of the time of a whole answer is no limit of the next one on the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        theirs.sendall(b"x")
        stream = _LimitedStream(ours, 10, 0.5)
        assert stream.read(1) == b"x"
        limited = ours.gettimeout()
        assert limited is not None
        assert limited <= 0.5
        stream.close()
        assert ours.gettimeout() == 30
