"""The content of artifacts: stored in pieces, and checked when it is read.

Content of a few kilobytes is in the record. Up to 1 MB it is in the line of the artifacts, by its hash, so that equal
content is there once. Larger content has a line of its own, with a piece of 1 MB a step, and is never in memory as a
whole. Content whose hash is there already is not stored again.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import arun, run
from holdfast.engine.model.large_pointers import LARGE, PIECE, pointer_to
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError, UnsupportedError
from holdfast.security.handle import StoreHandle
from holdfast.state.reader import ScopeView, StoredValue, read_line_at
from holdfast.state.writer import edit_request

CHUNK = PIECE - 64
"""The size of a piece of content: one piece of a large value."""

CONTENT_PREFIX = MARK + "content:"
"""The prefix of the names of lines that hold content."""


class StoredContent(NamedTuple):
    """Content: in memory if it is small, in a line of its own (`token`), or elsewhere (`uri`)."""

    sha256: str
    size: int
    small: bytes | None = None
    token: str = ""
    uri: str = ""


class BinaryFile(Protocol):
    """A file that is read as bytes."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at the end."""


def content_line(handle: StoreHandle, token: str) -> Line:
    """Return the line of some content."""
    return Line(handle.tenant, CONTENT_PREFIX + token)


def content_name(sha256: str) -> str:
    """Return the name of small content in the line of the artifacts."""
    return f"\0content/{sha256}"


# Taking in ----------------------------------------------------------------------------------------------------------


class ContentUpload:
    """Stores content."""

    def __init__(self, handle: StoreHandle, known: Callable[[str], Any]) -> None:
        """`known` tells, awaited, whether content with this hash is kept already."""
        self._handle = handle
        self._is_stored = known

    async def store(self, source: object, *, keep: bool, sha256: str | None, size: int | None) -> StoredContent:
        """Store content from a path, bytes, or an open file; or only hash it, if it is not to be kept."""
        if not keep:
            return await self._reference(source, sha256, size)
        if isinstance(source, bytes | bytearray | memoryview):
            found = await self._store_file(io.BytesIO(source))
        elif isinstance(source, str | os.PathLike):
            with _open(_local_path(source)) as file:
                found = await self._store_file(file)
        elif callable(getattr(source, "read", None)):
            found = await self._store_file(source)  # type: ignore[arg-type]
        else:
            raise InvalidError(
                f"an artifact must be a path, bytes, or a file opened for reading bytes, not {type(source).__name__}",
                where=repr(source)[:80],
            )
        if sha256 not in (None, found.sha256) or size not in (None, found.size):
            await self.drop(found)
            raise CorruptError(
                "the content does not match the given hash or size",
                where=f"{found.size} bytes, sha256 {found.sha256}",
                hint="Give the hash and size of this content, or none",
            )
        return found

    async def _reference(self, source: object, sha256: str | None, size: int | None) -> StoredContent:
        if not isinstance(source, str | os.PathLike):
            raise InvalidError(
                "an artifact that is not kept must be a path or a URI", where=repr(source)[:80], hint="Or have it kept"
            )
        if isinstance(text := os.fspath(source), str) and _is_remote(text):
            if sha256 is None or size is None:
                raise InvalidError(
                    "content that is stored elsewhere needs its hash and size",
                    where=text[:80],
                    hint="sha256='…', size=…",
                )
            return StoredContent(_check_sha256(sha256), size, uri=text)
        path = _local_path(source)
        with _open(path) as file:
            digest, count = await _hash(file)
        if sha256 not in (None, digest) or size not in (None, count):
            raise CorruptError(
                "the content does not match the given hash or size", where=f"{count} bytes, sha256 {digest}"
            )
        return StoredContent(digest, count, uri=path.absolute().as_uri())

    async def _store_file(self, file: BinaryFile) -> StoredContent:
        start = await _start_position(file)
        first = await _read(file, CHUNK + 1)
        if len(first) <= CHUNK:
            return StoredContent(hashlib.sha256(first).hexdigest(), len(first), first)
        if start is not None:
            # What can be read twice is hashed first: content that is kept already is not stored to be dropped again.
            await BlockingCall(lambda: file.seek(start))  # type: ignore[attr-defined]
            digest, count = await _hash(file)
            if await self._is_stored(digest):
                return StoredContent(digest, count)
            await BlockingCall(lambda: file.seek(start + len(first)))  # type: ignore[attr-defined]
        return await self._store_pieces(file, first)

    async def _store_pieces(self, file: BinaryFile, first: bytes) -> StoredContent:
        token, whole, count = secrets.token_hex(16), hashlib.sha256(), 0
        piece, rest = first[:CHUNK], first[CHUNK:]
        number = 0
        while piece:
            whole.update(piece)
            await self._put(token, number, piece)
            count, number = count + len(piece), number + 1
            more = await _read(file, CHUNK - len(rest))
            piece, rest = rest + more, b""
        found = StoredContent(whole.hexdigest(), count, token=token)
        if await self._is_stored(found.sha256):
            await self.drop(found)
            return found._replace(token="")
        return found

    async def _put(self, token: str, number: int, piece: bytes) -> None:
        handle = self._handle

        async def edit(view: ScopeView) -> LineChange:
            if number > (0 if view.point is None else view.point.seq + 1):
                raise ConflictError("the content was removed while it was taken in", hint="Register it again")
            return LineChange({_piece_name(number): handle.codec.pack(piece)})

        await handle.engine.writer.save(edit_request(handle, content_line(handle, token), "content", edit))

    async def drop(self, content: StoredContent) -> None:
        """Delete content."""
        if content.token:
            await self._handle.engine.lines.delete(content_line(self._handle, content.token))


def _piece_name(number: int) -> str:
    return f"{number:08d}"


async def _read(file: BinaryFile, size: int) -> bytes:
    """Read so many bytes; fewer only at the end."""
    found = b""
    while len(found) < size:
        left = size - len(found)
        more = await BlockingCall(partial(file.read, left))
        if not isinstance(more, bytes):
            raise InvalidError(f"the file gives {type(more).__name__} and not bytes", hint="Open it with mode 'rb'")
        if not more:
            break
        found += more
    return found


async def _start_position(file: Any) -> int | None:
    """Return the position of a file that can be read again from there."""
    seekable = getattr(file, "seekable", None)
    return await BlockingCall(file.tell) if seekable is not None and seekable() else None


async def _hash(file: BinaryFile) -> tuple[str, int]:
    whole, count = hashlib.sha256(), 0
    while piece := await _read(file, CHUNK):
        await BlockingCall(partial(whole.update, piece))
        count += len(piece)
    return whole.hexdigest(), count


def _check_sha256(sha256: object) -> str:
    if isinstance(sha256, str) and len(sha256) == 64 and set(sha256) <= set("0123456789abcdef"):
        return sha256
    raise InvalidError("a sha256 is 64 hexadecimal digits, in small letters", where=repr(sha256)[:80])


def _is_remote(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def _local_path(source: object) -> Path:
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise InvalidError("a path must be a string that is not empty", where=repr(source)[:80])
    if text.startswith("file://"):
        return Path(url2pathname(urlsplit(text).path)) if os.name == "nt" else Path(unquote(urlsplit(text).path))
    if _is_remote(text):
        raise UnsupportedError(
            "only files of this machine can be read", where=text[:80], hint="Refer to it with keep=False"
        )
    return Path(text)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise InvalidError(f"the file cannot be read: {error}", where=str(path)[:80]) from None


# Reading ------------------------------------------------------------------------------------------------------------


class ContentPieces:
    """The content of an artifact in pieces. The last piece is returned only after the whole content was checked."""

    def __init__(
        self,
        handle: StoreHandle,
        where: str,
        kept: StoredContent,
        book: Line,
        deleted: Callable[[], Awaitable[bool]],
        check_access: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """`deleted` tells whether there is no such artifact any more. `check_access` raises an error if the caller may
        not read it any more; none for the owner of the store."""
        self.check_access = check_access
        self._deleted = deleted
        self._handle = handle
        self._where = where
        self._content = kept
        self._line = book
        self._number = 0
        self._count = 0
        self._whole = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self._done = False

    async def next(self) -> bytes:
        """Return the next piece; nothing at the end. `CorruptError` if the whole is not what was registered."""
        if self.check_access is not None:
            await self.check_access()
        if self._done:
            return b""
        piece = await self._piece()
        self._number += 1
        self._count += len(piece)
        self._whole.update(piece)
        if piece and self._count < self._content.size:
            return piece
        more = await self._piece()
        self.close()
        if more or self._count != self._content.size or self._whole.hexdigest() != self._content.sha256:
            if await self._deleted():
                raise NotFoundError("the artifact was deleted meanwhile", where=self._where)
            raise CorruptError(
                "the content of an artifact is not what was registered",
                where=self._where,
                hint="Register it again, or repair the store from a mirror or a backup",
            )
        return piece

    async def _piece(self) -> bytes:
        if self._content.uri:
            if self._file is None:
                self._file = _open(_local_path(self._content.uri))
            return await _read(self._file, CHUNK)
        if self._content.token:
            return await self._entry(content_line(self._handle, self._content.token), _piece_name(self._number))
        if self._number:
            return b""
        small = self._content.small
        return await self._entry(self._line, content_name(self._content.sha256)) if small is None else small

    async def _entry(self, line: Line, name: str) -> bytes:
        tip = await self._handle.engine.lines.revalidate_tip(line)

        async def look(view: ScopeView) -> StoredValue | None:
            return await view.find(name)

        found = await read_line_at(self._handle, line, None if tip is None else tip.point, look)
        if found is None:
            return b""
        packed = found.entry.value
        if tip is not None and isinstance(packed, bytes) and len(packed) > LARGE:
            # It is read once: in the cache, the pieces would fill it, and take the place of what is read again.
            self._handle.engine.context.cache.drop(pointer_to(packed, tip.info.salt).encode())
        piece = unpack(self._handle.codec, packed)
        if not isinstance(piece, bytes):
            raise CorruptError("a piece of an artifact is not bytes", where=self._where)
        return piece

    def close(self) -> None:
        """Close the file, if one is open."""
        self._done = True
        if self._file is not None:
            self._file.close()

    async def read_all(self) -> bytes:
        """Return the whole content."""
        pieces = []
        while piece := await self.next():
            pieces.append(piece)
        return b"".join(pieces)

    async def verify(self) -> None:
        """Read the whole content."""
        while await self.next():
            pass

    async def save(self, path: Path) -> None:
        """Write the content to a file, atomically, once it was checked."""
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            with await BlockingCall(lambda: part.open("xb")) as file:
                while piece := await self.next():
                    await BlockingCall(partial(file.write, piece))
                await BlockingCall(file.flush)
                await BlockingCall(lambda: os.fsync(file.fileno()))
            await BlockingCall(lambda: part.replace(path))
            await BlockingCall(lambda: flush_folder(path.parent))
        except OSError as error:
            raise InvalidError(f"the file cannot be written: {error}", where=str(path)) from error
        finally:
            self.close()
            part.unlink(missing_ok=True)


class _Raw(io.RawIOBase):
    """Content as a file."""

    def __init__(self, pieces: ContentPieces) -> None:
        self.check_access = pieces.check_access
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(run(self._pieces.next()))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._pieces.close()
        super().close()


class _ContentFile(io.BufferedReader):
    """Content as a buffered file. Every read checks access, also one of bytes that are in the buffer already."""

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_access()
        return super().read(size)

    def read1(self, size: int = -1, /) -> bytes:
        self._check_access()
        return super().read1(size)

    def readinto(self, buffer: Any, /) -> int:
        self._check_access()
        return super().readinto(buffer)

    def readinto1(self, buffer: Any, /) -> int:
        self._check_access()
        return super().readinto1(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        self._check_access()
        return super().readline(size)

    def peek(self, size: int = 0, /) -> bytes:
        self._check_access()
        return super().peek(size)

    def _check_access(self) -> None:
        raw: Any = self.raw
        if raw.check_access is not None:
            run(raw.check_access())


def open_content(pieces: ContentPieces) -> io.BufferedReader:
    """Return content as a file that is open for reading."""
    return _ContentFile(_Raw(pieces), CHUNK)


class AsyncContent:
    """The content of an artifact, for asyncio: `async for piece in content`, or `await content.read()`."""

    def __init__(self, pieces: ContentPieces) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncContent:
        return self

    async def __anext__(self) -> bytes:
        piece = await arun(self._pieces.next())
        if not piece:
            raise StopAsyncIteration
        return piece

    async def read(self) -> bytes:
        """Return the rest of the content."""
        return await arun(self._pieces.read_all())

    async def __aenter__(self) -> AsyncContent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pieces.close()
