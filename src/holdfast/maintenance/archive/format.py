"""The file that threads are exported to: lines of JSON, each an object with its `type`.

The first says what this is and its version. Then come threads, each begun by a line of type `thread`, with its rows,
one to a line, and ended by one of type `end`. The last line is a checksum of all before it. A file whose name ends in
`.gz` is compressed; whoever reads one sees that for himself. `docs/format.md` has it all.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import secrets
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, TypeAlias

import msgspec

from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import BlockingCall, Row
from holdfast.backends.tables import BRANCHES, EVENTS, FOLDS, LINKS, NODES, OBJECTS, REFS, STEPS, WRITES, Scalar, Table
from holdfast.engine.row_format import Line
from holdfast.errors import ConfigError, CorruptError, InvalidError, NotFoundError, UnsupportedError

VERSION = 1

EXPORTED = (BRANCHES, STEPS, FOLDS, NODES, OBJECTS, WRITES, REFS, EVENTS, LINKS)
"""The spaces whose rows are in the file; that of the line itself is in the line that begins a thread."""

Place: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
"""Where a file is: its path, or the file itself, open in binary mode."""

Progress: TypeAlias = "Callable[[int, int | None, str], None]"
"""Is told how much is done, of how much if that is known, and of what."""

_BUFFER = 1 << 20
_GZIP = b"\x1f\x8b"
_SLACK = 1 << 20
"""How many bytes a line may have besides the body of its row: its names and its metadata."""
_UNREADABLE = (OSError, EOFError, zlib.error)
"""What a file raises that cannot be read or unpacked."""

_SPACES = {space.name: space for space in EXPORTED}


class ArchiveLine(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    """A line of the file."""


class ArchiveHeader(ArchiveLine, tag="holdfast-export"):
    """The first line."""

    version: int
    time: str


class ThreadBegin(ArchiveLine, tag="thread"):
    """A thread begins: its name, and the columns of its row in `lines`."""

    tenant: str
    thread: str
    columns: tuple[int, ...]


class ArchivedRow(ArchiveLine, tag="row", omit_defaults=True):
    """A row of the thread. The key is without tenant and thread; bytes are in base64."""

    space: str
    key: list[str | int]
    columns: list[str | int] = []
    body: bytes = b""


class ThreadEnd(ArchiveLine, tag="end"):
    """A thread ends."""

    rows: int


class Checksum(ArchiveLine, tag="checksum"):
    """The last line. The digest is that of all lines before it, with their ends."""

    sha256: str
    threads: int
    rows: int


Lines: TypeAlias = ArchiveHeader | ThreadBegin | ArchivedRow | ThreadEnd | Checksum

_decoder: msgspec.json.Decoder[Lines] = msgspec.json.Decoder(Lines)


def row_record(space: Table, row: Row) -> ArchivedRow:
    """A row as a line of the file."""
    values = [*row.key[2:], *row.columns]
    kinds = list(space.all_columns.values())[2:]
    told = [_base64(value) if kind is bytes else value for kind, value in zip(kinds, values, strict=True)]
    width = len(space.key) - 2
    return ArchivedRow(space.name, told[:width], told[width:], row.body)  # type: ignore[arg-type]


def row_of(record: ArchivedRow, line: Line) -> tuple[Table, Row]:
    """The row that a line of the file tells of. Raises `ValueError` where it is none."""
    space = _SPACES.get(record.space)
    if space is None:
        raise UnsupportedError(f"rows of a kind {record.space!r} are unknown", hint="Import it with a newer Holdfast")
    key = _values(list(space.key.values())[2:], record.key)
    return space, Row((*line, *key), _values(list(space.columns.values()), record.columns), record.body)


def _values(kinds: Sequence[type], told: Sequence[str | int]) -> tuple[Scalar, ...]:
    values: list[Scalar] = []
    for kind, value in zip(kinds, told, strict=True):
        if (kind is int) is not isinstance(value, int):
            raise ValueError(f"{value!r} is no {kind.__name__}")
        values.append(msgspec.convert(value, bytes) if kind is bytes else value)
    return tuple(values)


def _base64(value: Scalar) -> str:
    text: str = msgspec.to_builtins(value)
    return text


def _check_binary(file: object) -> None:
    if isinstance(file, io.TextIOBase):
        raise InvalidError("the file is open as text", hint="Open it in binary mode, or give its path")


# Writing ------------------------------------------------------------------------------------------------------------


class ArchiveWriter:
    """A file that is being written: there as a whole in the end, or not at all.

    Given as a path, it is written beside its place and then takes that. As a file that is open, it is written to at
    once, and stays open.
    """

    def __init__(self, place: Place) -> None:
        self._path: Path | None = None
        self._new: Path | None = None
        self._closed = contextlib.ExitStack()
        if isinstance(place, str | os.PathLike):
            self._path = Path(place)
            self._new = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
            raw: IO[bytes] = self._opened(self._new)
            # What has the same content is the same file: no name and no time in it.
            zipped = self._path.suffix == ".gz"
            self._file: Any = gzip.GzipFile("", "wb", 6, raw, mtime=0) if zipped else raw
        else:
            _check_binary(place)
            raw = self._file = place
        self._raw = raw
        self._digest = hashlib.sha256()
        self._buffer = bytearray()
        self.bytes = 0
        """How many bytes were written, before they are compressed."""

    def _opened(self, path: Path) -> IO[bytes]:
        try:
            return self._closed.enter_context(path.open("xb"))
        except OSError as error:
            raise ConfigError(
                f"the file cannot be written: {error.strerror}", where=str(self._path), hint="Choose another place"
            ) from error

    async def write(self, record: Lines) -> None:
        """Add a line."""
        await self.write_line(msgspec.json.encode(record))

    async def write_line(self, line: bytes) -> None:
        """Add a line of another kind."""
        ended = line + b"\n"
        self._digest.update(ended)
        self._buffer += ended
        if len(self._buffer) >= _BUFFER:
            await self._flush()

    async def seal(self, threads: int, rows: int) -> None:
        """Add the checksum."""
        await self.write(Checksum(self._digest.hexdigest(), threads, rows))

    async def finish(self) -> None:
        """Have it durable, in its place."""
        await self._flush()
        await BlockingCall(self._finish)

    async def _flush(self) -> None:
        chunk = bytes(self._buffer)
        self._buffer.clear()
        self.bytes += len(chunk)
        call: BlockingCall[None] = BlockingCall(lambda: self._write(chunk))
        await call

    def _write(self, chunk: bytes) -> None:
        try:
            self._file.write(chunk)
        except OSError as error:
            self._fail(error)

    def _finish(self) -> None:
        try:
            if self._file is not self._raw:
                self._file.close()
            self._raw.flush()
            if self._path is None or self._new is None:
                return
            os.fsync(self._raw.fileno())
            self._closed.close()
            self._new.replace(self._path)
            flush_folder(self._path.parent)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        if isinstance(error, BrokenPipeError):
            raise error
        raise ConfigError(
            f"the file could not be written: {error.strerror or error}",
            where=str(self._path or "the file that was given"),
            hint="Look at the disk, and export again. What was there before is untouched",
        ) from error

    def close(self) -> None:
        """Let go of it. What is not finished is removed."""
        self._closed.close()
        if self._new is not None:
            self._new.unlink(missing_ok=True)


# Reading ------------------------------------------------------------------------------------------------------------


class ArchiveReader:
    """A file that is being read."""

    def __init__(self, place: Place, max_bytes: int) -> None:
        """A file whose rows have bodies of up to so many bytes. A line without end would fill the memory otherwise."""
        self._longest = 2 * max_bytes + _SLACK  # as base64, with room for more
        self._closed = contextlib.ExitStack()
        self.name = str(getattr(place, "name", "the file that was given"))
        if isinstance(place, str | os.PathLike):
            self.name = str(place)
            try:
                raw: Any = self._closed.enter_context(Path(place).open("rb"))  # noqa: SIM115 - closed with the rest
            except FileNotFoundError as error:
                raise NotFoundError("there is no such file", where=self.name) from error
            except OSError as error:
                raise ConfigError(f"the file cannot be read: {error.strerror}", where=self.name) from error
        else:
            _check_binary(place)
            raw = io.BufferedReader(_Raw(place))
        self._file = raw
        self._digest = hashlib.sha256()

    async def records(self) -> AsyncIterator[Lines]:
        """The lines, from the first to the one before the checksum. `CorruptError` if they are not what was written."""
        await BlockingCall(self._unzip)
        first, threads, rows = True, 0, 0
        while True:
            call: BlockingCall[list[bytes]] = BlockingCall(self._read)
            lines = await call
            if not lines:
                raise self.damaged("it ends early")
            for line in lines:
                record = self._decode(line, first)
                if isinstance(record, Checksum):
                    if record != Checksum(self._digest.hexdigest(), threads, rows):
                        raise self.damaged("its checksum is another")
                    await BlockingCall(self._see_the_end)
                    return
                self._digest.update(line)
                threads += isinstance(record, ThreadBegin)
                rows += isinstance(record, ArchivedRow)
                first = False
                yield record

    def _unzip(self) -> None:
        if self._file.peek(2)[:2] == _GZIP:
            self._file = self._closed.enter_context(gzip.GzipFile(fileobj=self._file))

    def _read(self) -> list[bytes]:
        """Some lines."""
        lines: list[bytes] = []
        size = 0
        try:
            while size < _BUFFER:
                line = self._file.readline(self._longest + 1)
                if len(line) > self._longest:
                    raise self.damaged("a line of it is longer than any row that may be stored here")
                if not line:
                    break
                lines.append(line)
                size += len(line)
                if line.startswith(b'{"type":"checksum"'):
                    break
        except _UNREADABLE as error:
            raise self.damaged(str(error)) from error
        return lines

    def _see_the_end(self) -> None:
        try:
            more = self._file.read(1)
        except _UNREADABLE as error:
            raise self.damaged(str(error)) from error
        if more:
            raise self.damaged("something comes after its end")

    def _decode(self, line: bytes, first: bool) -> Lines:
        try:
            if first:
                self._check_head(line)
            return _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.damaged(f"a line of it cannot be read: {error}") from error

    def _check_head(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line)
            version = said["version"] if said["type"] == "holdfast-export" else None
        except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
            version = None
        if not isinstance(version, int):
            raise InvalidError(
                "this is no file of exported threads",
                where=self.name,
                hint="Give one that `holdfast export` wrote; states exported as JSON cannot be brought back",
            )
        if version != VERSION:
            raise UnsupportedError(
                f"the file has version {version} of its format, and this Holdfast knows version {VERSION}",
                where=self.name,
                hint="Import it with a newer Holdfast",
            )

    def damaged(self, why: str) -> CorruptError:
        """The error for a file that is not what was written."""
        hint = "Get the file once more from where it was made, or export again"
        return CorruptError(f"the file is not what was written: {why}", where=self.name, hint=hint)

    def close(self) -> None:
        """Let go of it. A file that was given open stays open."""
        self._closed.close()


class _Raw(io.RawIOBase):
    """A file that somebody else opened, and closes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)
