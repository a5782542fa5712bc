"""Counts what goes over the wire: a proxy between a store and its server.

A round trip is what a client sends after the server has said something, up to the server's next word. So what a client
sends in one go, in a pipeline or in several packets, counts once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from types import TracebackType
from typing import Self

_CHUNK = 1 << 18


class Proxy:
    """Passes everything on to a server, and counts."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.reset()

    def reset(self) -> None:
        """Start again at nothing."""
        self.trips = 0
        self.sent = 0
        """Bytes from clients to the server."""
        self.received = 0
        self.words: Counter[bytes] = Counter()
        """The first word of each request; that is what is asked for, where the protocol is HTTP."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()  # and whoever reads from there comes to an end
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far_reader, far_writer = await asyncio.open_connection(*self._server, limit=_CHUNK)
        self._writers |= {writer, far_writer}
        turn = _Turn()
        await asyncio.gather(
            self._forth(reader, far_writer, turn), self._back(far_reader, writer, turn), return_exceptions=True
        )
        for each in (writer, far_writer):
            each.transport.abort()
            self._writers.discard(each)

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: _Turn) -> None:
        while data := await reader.read(_CHUNK):
            if turn.answered:
                turn.answered = False
                self.trips += 1
                self.words[data[:8].split(b" ")[0]] += 1
            self.sent += len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()  # and the server ends its side

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: _Turn) -> None:
        while data := await reader.read(_CHUNK):
            turn.answered = True
            self.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


class _Turn:
    """Whose turn it is to speak on a connection."""

    answered = True
