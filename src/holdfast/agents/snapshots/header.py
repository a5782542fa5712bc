"""The header of a snapshot, its first line: it describes the content, and is read alone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

import msgspec

from holdfast._fields import Hidden, Label
from holdfast._structs import decode_json
from holdfast.errors import HoldfastError, SnapshotCorruptError, SnapshotUnsupportedError

FORMAT = "holdfast-snapshot"
VERSION = 1

Kind = Literal["langchain", "history", "agent", "persistent"]
"""The kind of content: an object of LangChain, a chat history, an agent of `create_agent`, or one of Holdfast."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")


Compression = Literal["gzip", "zstd", "none"]
"""How the content of a snapshot is compressed."""

COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)


class PayloadInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The payload: its size, its size when compressed, the SHA-256 of the first, and how it is compressed."""

    bytes: int
    packed: int
    sha256: str
    compression: str = "gzip"


class SnapshotHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header. Its line is exactly what `msgspec` encodes: nothing can hide in another spelling."""

    id: str
    """First, so that the first bytes of a file identify it."""
    format: str
    version: int
    kind: Kind
    type: str
    name: str
    time: str
    description: str
    versions: dict[str, str]
    secrets: tuple[str, ...]
    classes: tuple[str, ...]
    tools: tuple[str, ...]
    middleware: tuple[str, ...]
    content: PayloadInfo


class SnapshotInfo(msgspec.Struct, frozen=True):
    """The description of a snapshot in its header."""

    source: str
    """The path or URL."""
    id: str
    kind: Kind
    """`langchain`, `history`, `agent` (of `langchain.agents.create_agent`) or `persistent` (of Holdfast)."""
    type: str
    """The class of the object."""
    name: str
    """The name or id of the agent, or empty."""
    time: datetime
    """When the snapshot was taken."""
    description: str
    versions: dict[str, str]
    """The versions of Holdfast, Python, and of LangChain if it was installed."""
    secrets: tuple[str, ...]
    """The names of the secrets that `restore` needs."""
    classes: tuple[str, ...]
    """The classes beyond those of langchain-core that `restore` has to allow."""
    tools: tuple[str, ...]
    """The names of the tools that `restore` needs."""
    middleware: tuple[str, ...]
    """The names of the middleware that `restore` needs."""
    format: int
    """The version of the format."""
    size: int
    """The size of the file in bytes."""
    content_size: int
    """The size of the uncompressed content in bytes."""
    sha256: Annotated[str, Label("SHA-256")]
    """The digest of the content."""
    compression: str
    """How the content is compressed: `gzip`, `zstd` or `none`."""


class SnapshotListing(msgspec.Struct, frozen=True):
    """An entry of `list`: the info of a snapshot, or the problem with a file."""

    source: Hidden[str]
    name: Annotated[str, Label("snapshot")]
    """The last part of the path or URL."""
    size: int
    modified: Hidden[datetime]
    info: Hidden[SnapshotInfo | None]
    problem: str
    """Why there is no info; empty otherwise."""


_decoder = msgspec.json.Decoder(SnapshotHeader)


def encode(header: SnapshotHeader) -> bytes:
    """Encode a header as its line."""
    return msgspec.json.encode(header) + b"\n"


def decode(line: bytes, where: str) -> SnapshotHeader:
    """Decode a header. Raises `SnapshotCorruptError`, or `SnapshotUnsupportedError` for a newer format."""
    try:
        header = _decoder.decode(line)
    except msgspec.ValidationError as error:
        _check_version(line, where)
        raise SnapshotCorruptError(f"the header is invalid: {error}", where=where) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotCorruptError(f"the header is invalid JSON: {error}", where=where) from error
    if header.format != FORMAT:
        raise SnapshotCorruptError("this is not a Holdfast snapshot", where=where)
    if header.version != VERSION:
        raise _version_error(header.version, where)
    if header.content.compression not in COMPRESSIONS:
        raise SnapshotUnsupportedError(
            f"the content is compressed by {header.content.compression[:40]!r}, which this release does not know",
            where=where,
            hint="Read it with a newer Holdfast",
        )
    if encode(header) != line:
        raise SnapshotCorruptError("the header is in a form that Holdfast never writes", where=where)
    if not _ID.fullmatch(header.id) or not _DIGEST.fullmatch(header.content.sha256):
        raise SnapshotCorruptError("the header has an invalid id or digest", where=where)
    if header.content.bytes < 0 or header.content.packed < 0:
        raise SnapshotCorruptError("the header has an invalid size", where=where)
    _parse_time(header.time, where)
    return header


def info_of(header: SnapshotHeader, size: int, where: str) -> SnapshotInfo:
    """Return the public form of a header."""
    return SnapshotInfo(
        source=where,
        id=header.id,
        kind=header.kind,
        type=header.type,
        name=header.name,
        time=_parse_time(header.time, where),
        description=header.description,
        versions=dict(header.versions),
        secrets=header.secrets,
        classes=header.classes,
        tools=header.tools,
        middleware=header.middleware,
        format=header.version,
        size=size,
        content_size=header.content.bytes,
        sha256=header.content.sha256,
        compression=header.content.compression,
    )


def _parse_time(text: str, where: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not UTC or time.isoformat() != text:
            raise ValueError(text)
    except ValueError as error:
        raise SnapshotCorruptError(f"{text[:40]!r} is not a time", where=where) from error
    return time


class _FormatVersion(msgspec.Struct):
    format: Any = None
    version: Any = None


def _check_version(line: bytes, where: str) -> None:
    """Raise the error for a newer format, if an invalid header is of one, since that has other fields."""
    try:
        header = decode_json(line, _FormatVersion)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if header.format == FORMAT and type(header.version) is int and header.version > VERSION:
        raise _version_error(header.version, where)


def _version_error(version: int, where: str) -> HoldfastError:
    return SnapshotUnsupportedError(
        f"the snapshot has format {version}, and this release reads {VERSION}",
        where=where,
        hint="Read it with a newer Holdfast" if version > VERSION else "",
    )
