"""The format of export files: lines of JSON, each an object with a `type`.

The first line is a header with the version. Then come threads: a line of type `thread`, its rows, one a line, and a
line of type `end`. The last line is a checksum of all lines before it. A file whose name ends in `.gz` is compressed;
reading detects that automatically. Of an encrypted store, all lines after the header are encrypted with a key of the
file, which is in the header, encrypted by the master key. `docs/format.md` specifies it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import secrets
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import msgspec

from holdfast._structs import convert
from holdfast.backends.fsutil import flush_folder, open_private
from holdfast.backends.interface import BlockingCall, Row
from holdfast.backends.tables import LINES, Scalar, Table
from holdfast.engine.copy.line_stream import LINE_TABLES
from holdfast.engine.model.line_salt import SALT_SIZE
from holdfast.engine.row_format import Line, info_of, info_row
from holdfast.errors import ConfigError, CorruptError, InvalidError, NotFoundError, UnsupportedError
from holdfast.security.encryption.file_key import FileKey, open_file_key

if TYPE_CHECKING:  # it needs an extra
    from holdfast.security.encryption.provider import KeyProvider

VERSION = 1
PURPOSE = "export"
"""What the keys of files are for."""

ArchiveFile: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
"""The path of a file, or a file that is open in binary mode."""

_BUFFER = 1 << 20
_GZIP = b"\x1f\x8b"
_SLACK = 1 << 20
"""The bytes that a line may have besides the body of its row: its names and its metadata."""
_UNREADABLE = (OSError, EOFError, zlib.error)
"""Errors of a file that cannot be read or decompressed."""

_TOO_LARGE = 1 << 63
"""A number from here on fits into no column of a store."""

_TABLES = {table.name: table for table in LINE_TABLES}


class ArchiveLine(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    """A line of the file."""


class ArchiveHeader(ArchiveLine, tag="holdfast-export", omit_defaults=True):
    """The first line of a file. With a key, the other lines are encrypted."""

    version: int
    time: str
    sealed: dict[str, str] | None = None


class ThreadBegin(ArchiveLine, tag="thread"):
    """The begin of a thread: its name, the columns of its row in `lines`, and its salt."""

    tenant: str
    thread: str
    columns: list[str | int]
    salt: bytes


class ArchivedRow(ArchiveLine, tag="row", omit_defaults=True):
    """A row of the thread. The key is without tenant and thread; bytes are in base64."""

    space: str
    key: list[str | int]
    columns: list[str | int] = []
    body: bytes = b""


class ThreadEnd(ArchiveLine, tag="end"):
    """The end of a thread, with the number of its rows."""

    rows: int


class Checksum(ArchiveLine, tag="checksum"):
    """The last line, with the digest of all lines before it and their line breaks."""

    sha256: str
    threads: int
    rows: int


Lines: TypeAlias = ArchiveHeader | ThreadBegin | ArchivedRow | ThreadEnd | Checksum

_decoder: msgspec.json.Decoder[Lines] = msgspec.json.Decoder(Lines)


def row_record(table: Table, row: Row) -> ArchivedRow:
    """Convert a row to a line of the file."""
    values = [*row.key[2:], *row.columns]
    kinds = list(table.all_columns.values())[2:]
    encoded = [_base64(value) if kind is bytes else value for kind, value in zip(kinds, values, strict=True)]
    width = len(table.key) - 2
    return ArchivedRow(table.name, encoded[:width], encoded[width:], row.body)  # type: ignore[arg-type]


def thread_record(row: Row) -> ThreadBegin:
    """Convert a row of `lines` to the line of the file that begins a thread."""
    tenant, line = map(str, row.key)
    return ThreadBegin(tenant, line, list(row.columns), info_of(row).salt)  # type: ignore[arg-type]


def line_row(record: ThreadBegin, line: Line) -> Row:
    """Convert the begin of a thread to its row in `lines`. Raises `ValueError` if it is not valid."""
    if len(record.salt) != SALT_SIZE:
        raise ValueError("a thread has no salt")
    columns = _values(list(LINES.columns.values()), record.columns)
    return info_row(line, info_of(Row(tuple(line), columns))._replace(salt=record.salt))


def row_of(record: ArchivedRow, line: Line) -> tuple[Table, Row]:
    """Convert a line of the file to a row. Raises `ValueError` if it is not valid."""
    table = _TABLES.get(record.space)
    if table is None:
        raise UnsupportedError(
            f"rows of the table {record.space!r} are unknown", hint="Import it with a newer Holdfast"
        )
    key = _values(list(table.key.values())[2:], record.key)
    return table, Row((*line, *key), _values(list(table.columns.values()), record.columns), record.body)


def _values(kinds: Sequence[type], encoded: Sequence[str | int]) -> tuple[Scalar, ...]:
    values: list[Scalar] = []
    for kind, value in zip(kinds, encoded, strict=True):
        if (kind is int) is not isinstance(value, int):
            raise ValueError(f"{value!r} is not of type {kind.__name__}")
        if isinstance(value, int) and not -_TOO_LARGE <= value < _TOO_LARGE:
            raise ValueError("a number has more than 64 bits")
        values.append(convert(value, bytes) if kind is bytes else value)
    return tuple(values)


def _base64(value: Scalar) -> str:
    text: str = msgspec.to_builtins(value)
    return text


def _check_binary(file: object) -> None:
    if isinstance(file, io.TextIOBase):
        raise InvalidError("the file is open as text", hint="Open it in binary mode, or give its path")


# Writing ------------------------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes a file, which is complete in the end or does not exist.

    Under a path, a temporary file is written and then renamed; only its owner can read it. An open file is written to
    directly, and stays open.
    """

    def __init__(self, file: ArchiveFile, key: FileKey | None = None) -> None:
        """With a key, all lines but the first are encrypted."""
        self._key = key
        self._number = 0
        self._path: Path | None = None
        self._temporary: Path | None = None
        self._stack = contextlib.ExitStack()
        if isinstance(file, str | os.PathLike):
            self._path = Path(file)
            self._temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
            raw: IO[bytes] = self._open(self._temporary)
            # No name and no time in it, so that the same content makes the same file.
            compressed = self._path.suffix == ".gz"
            self._file: Any = gzip.GzipFile("", "wb", 6, raw, mtime=0) if compressed else raw
        else:
            _check_binary(file)
            raw = self._file = file
        self._raw = raw
        self._digest = hashlib.sha256()
        self._buffer = bytearray()
        self.bytes: int = 0
        """The number of bytes before compression."""

    def _open(self, path: Path) -> IO[bytes]:
        try:
            return self._stack.enter_context(open_private(path, "xb"))
        except OSError as error:
            raise ConfigError(
                f"the file cannot be written: {error.strerror}", where=str(self._path), hint="Choose another path"
            ) from error

    async def write(self, record: Lines) -> None:
        """Add a line."""
        await self.write_line(msgspec.json.encode(record))

    async def write_line(self, line: bytes) -> None:
        """Add a line that is encoded already."""
        data = line + b"\n"
        self._digest.update(data)
        sealed = self._key is not None and self._number > 0
        self._buffer += self._key.seal(data, self._number).encode() + b"\n" if self._key and sealed else data
        self._number += 1
        if len(self._buffer) >= _BUFFER:
            await self._flush()

    async def seal(self, threads: int, rows: int) -> None:
        """Add the checksum."""
        await self.write(Checksum(self._digest.hexdigest(), threads, rows))

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
            if self._path is None or self._temporary is None:
                return
            os.fsync(self._raw.fileno())
            self._stack.close()
            self._temporary.replace(self._path)
            flush_folder(self._path.parent)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        if isinstance(error, BrokenPipeError):
            raise error
        raise ConfigError(
            f"the file could not be written: {error.strerror or error}",
            where=str(self._path or "the open file"),
            hint="Check the disk, and export again. The previous file is untouched",
        ) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Make the file durable under its name. It is removed instead if there was an error."""
        try:
            if kind is None:
                await self._flush()
                await BlockingCall(self._finish)
        finally:
            self._stack.close()
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)


# Reading ------------------------------------------------------------------------------------------------------------


class ArchiveReader:
    """Reads a file."""

    def __init__(self, file: ArchiveFile, max_bytes: int, keys: KeyProvider | None = None) -> None:
        """A file whose rows have bodies of up to `max_bytes`: a line without end would fill the memory. `keys` has the
        master key of the store that it is of, which is needed if that is encrypted."""
        self._keys = keys
        self._max_line = 2 * max_bytes + _SLACK  # in base64, with a margin
        self._stack = contextlib.ExitStack()
        self.name: str = str(getattr(file, "name", "the open file"))
        if isinstance(file, str | os.PathLike):
            self.name = str(file)
            try:
                raw: Any = self._stack.enter_context(Path(file).open("rb"))  # noqa: SIM115 - closed with the rest
            except FileNotFoundError as error:
                raise NotFoundError("there is no such file", where=self.name) from error
            except OSError as error:
                raise ConfigError(f"the file cannot be read: {error.strerror}", where=self.name) from error
        else:
            _check_binary(file)
            raw = io.BufferedReader(_OpenFile(file))
        self._file = raw
        self._digest = hashlib.sha256()

    async def records(self) -> AsyncIterator[Lines]:
        """Yield the lines up to the checksum. `CorruptError` if the file is not what was written."""
        await BlockingCall(self._decompress)
        first, threads, rows = True, 0, 0
        key: FileKey | None = None
        number = 0
        while True:
            call: BlockingCall[list[bytes]] = BlockingCall(self._read)
            lines = await call
            if not lines:
                raise self.damaged("it ends early")
            for position, text in enumerate(lines, 1):
                if not text.endswith(b"\n"):
                    raise self.damaged("it ends early")
                line = text if key is None else key.unseal(text[:-1], number, self.name)
                number += 1
                record = self._decode(line, first)
                if isinstance(record, Checksum):
                    # The checksum covers all bytes but those of its own line, which has one form.
                    expected = msgspec.json.encode(Checksum(self._digest.hexdigest(), threads, rows))
                    if line != expected + b"\n":
                        raise self.damaged("its checksum is wrong")
                    if position < len(lines):
                        raise self.damaged("there is data after its end")
                    await BlockingCall(self._check_end)
                    return
                if first and isinstance(record, ArchiveHeader) and record.sealed is not None:
                    key = await self._open_key(record.sealed)
                self._digest.update(line)
                threads += isinstance(record, ThreadBegin)
                rows += isinstance(record, ArchivedRow)
                first = False
                yield record

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of a file without a checksum, such as one of the interchange format."""
        await BlockingCall(self._decompress)
        while True:
            call: BlockingCall[list[bytes]] = BlockingCall(self._read)
            if not (lines := await call):
                return
            for line in lines:
                yield line

    async def _open_key(self, sealed: dict[str, str]) -> FileKey:
        call: BlockingCall[FileKey] = BlockingCall(lambda: open_file_key(sealed, PURPOSE, self._keys, self.name))
        return await call

    def _decompress(self) -> None:
        if self._file.peek(2)[:2] == _GZIP:
            self._file = self._stack.enter_context(gzip.GzipFile(fileobj=self._file))

    def _read(self) -> list[bytes]:
        """Read some lines."""
        lines: list[bytes] = []
        size = 0
        try:
            while size < _BUFFER:
                line = self._file.readline(self._max_line + 1)
                if len(line) > self._max_line:
                    raise self.damaged("a line of it is longer than any row that can be stored here")
                if not line:
                    break
                lines.append(line)
                size += len(line)
                if line.startswith(b'{"type":"checksum"'):
                    break
        except _UNREADABLE as error:
            raise self.damaged(str(error)) from error
        return lines

    def _check_end(self) -> None:
        try:
            more = self._file.read(1)
        except _UNREADABLE as error:
            raise self.damaged(str(error)) from error
        if more:
            raise self.damaged("there is data after its end")

    def _decode(self, line: bytes, first: bool) -> Lines:
        try:
            if first:
                self._check_header(line)
            return _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.damaged(f"a line of it cannot be read: {error}") from error

    def _check_header(self, line: bytes) -> None:
        try:
            header = msgspec.json.decode(line)
            version = header["version"] if header["type"] == "holdfast-export" else None
        except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
            version = None
        if not isinstance(version, int):
            raise InvalidError(
                "this is not a file of exported threads",
                where=self.name,
                hint="Give one that `holdfast export` wrote; states exported as JSON cannot be imported",
            )
        if version != VERSION:
            raise UnsupportedError(
                f"the format of the file has version {version}, and this Holdfast reads version {VERSION}",
                where=self.name,
                hint="Import it with a newer Holdfast",
            )

    def damaged(self, why: str) -> CorruptError:
        """Return the error for a file that is not what was written."""
        hint = "Copy the file again from its source, or export again"
        return CorruptError(f"the file differs from what was written: {why}", where=self.name, hint=hint)

    def close(self) -> None:
        """Close the file; not one that the caller opened."""
        self._stack.close()


class _OpenFile(io.RawIOBase):
    """A file that the caller opened, and closes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)
