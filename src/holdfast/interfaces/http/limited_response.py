"""Responses with limits: a server is not trusted with the memory of a client, or with its time."""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPResponse
from typing import Any

from holdfast.errors import TooLargeError


class _LimitedStream(io.RawIOBase):
    """The bytes of a connection up to a number of them, and to a time."""

    def __init__(self, connection: socket.socket, max_bytes: int, seconds: float) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", buffering=0)  # which keeps the socket open as long as it is read
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._timeout = connection.gettimeout()
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("it took too long to answer")
        if self._left <= 0:
            raise _too_large(self._max_bytes)
        self._socket.settimeout(seconds if self._timeout is None else min(seconds, self._timeout))
        count: int | None = self._file.readinto(buffer)
        self._left -= count or 0
        return count

    def close(self) -> None:
        if not self.closed:
            self._socket.settimeout(self._timeout)  # for the next response on the connection
        self._file.close()
        super().close()


class LimitedResponse(HTTPResponse):
    """A response of at most so many bytes, within so many seconds from when it is waited for: headers, too."""

    def __init__(self, sock: socket.socket, *args: Any, max_bytes: int, seconds: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_LimitedStream(sock, max_bytes, seconds))
        self._max_bytes = max_bytes

    def begin(self) -> None:
        """Read the headers. They may say that the answer is too large."""
        super().begin()
        if self.length is not None and self.length > self._max_bytes:  # memory would be taken for it
            raise _too_large(self._max_bytes)


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"the answer of the server has more than {max_bytes} bytes",
        hint="Ask for less at once, or allow more with the option max_answer",
    )
