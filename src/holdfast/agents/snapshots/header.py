"""The first line of a snapshot: what is in it, told without reading the rest."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, SnapshotCorruptError, SnapshotUnsupportedError

FORMAT = "holdfast-snapshot"
VERSION = 1

Kind = Literal["langchain", "history", "agent", "persistent"]
"""What was frozen: an object of LangChain's, a chat history, an agent of `create_agent`, or one of Holdfast's."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")


class PayloadInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload: its size, its size when compressed, and the SHA-256 of the first."""

    bytes: int
    packed: int
    sha256: str


class SnapshotHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header. Its line is what `msgspec` makes of it, byte for byte: nothing can hide in another spelling."""

    id: str
    """First, so that the first bytes of a file tell it from all others."""
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


class SnapshotInfo(NamedTuple):
    """What a snapshot says of itself."""

    source: str
    """Where it is."""
    id: str
    kind: Kind
    """`langchain`, `history`, `agent` (of `langchain.agents.create_agent`) or `persistent` (of Holdfast)."""
    type: str
    """The class of what was frozen."""
    name: str
    """The name or id that the agent has, or nothing."""
    time: datetime
    """When it was made."""
    description: str
    versions: dict[str, str]
    """Of Holdfast, Python, and of LangChain where it was in use."""
    secrets: tuple[str, ...]
    """The secrets that `restore` has to be given, by name."""
    classes: tuple[str, ...]
    """The classes beyond those of langchain-core that `restore` has to allow."""
    tools: tuple[str, ...]
    """The tools that `restore` has to be given, by name."""
    middleware: tuple[str, ...]
    """The middleware that `restore` has to be given, by name."""
    format: int
    """The version of the format."""
    size: int
    """How many bytes the file has."""
    content_size: int
    """How many bytes the content has when it is unpacked."""
    sha256: str
    """The digest of the content."""


class SnapshotListing(NamedTuple):
    """What `list` found under a name: a snapshot's info, or what is wrong with the file."""

    source: str
    name: str
    """The last part of where it is."""
    size: int
    modified: datetime
    info: SnapshotInfo | None
    problem: str
    """Why there is no info; empty otherwise."""


_decoder = msgspec.json.Decoder(SnapshotHeader)


def encode(header: SnapshotHeader) -> bytes:
    """The line of a header."""
    return msgspec.json.encode(header) + b"\n"


def decode(line: bytes, where: str) -> SnapshotHeader:
    """The header of a line. Raises `SnapshotCorruptError`, or `SnapshotUnsupportedError` for a newer format."""
    try:
        header = _decoder.decode(line)
    except msgspec.ValidationError as error:
        _check_version(line, where)
        raise SnapshotCorruptError(f"the header is not what a header is: {error}", where=where) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotCorruptError(f"the header is no sound JSON: {error}", where=where) from error
    if header.format != FORMAT:
        raise SnapshotCorruptError("this is no snapshot of Holdfast's", where=where)
    if header.version != VERSION:
        raise _newer(header.version, where)
    if encode(header) != line:
        raise SnapshotCorruptError("the header is not in the one form that Holdfast writes", where=where)
    if not _ID.fullmatch(header.id) or not _DIGEST.fullmatch(header.content.sha256):
        raise SnapshotCorruptError("the header has an id or a digest that is none", where=where)
    if header.content.bytes < 0 or header.content.packed < 0:
        raise SnapshotCorruptError("the header tells of a size that is none", where=where)
    moment(header.time, where)
    return header


def info_of(header: SnapshotHeader, size: int, where: str) -> SnapshotInfo:
    """What a header says, for people."""
    return SnapshotInfo(
        source=where,
        id=header.id,
        kind=header.kind,
        type=header.type,
        name=header.name,
        time=moment(header.time, where),
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
    )


def moment(text: str, where: str) -> datetime:
    """The time that a header tells, which is of UTC."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not UTC or found.isoformat() != text:
            raise ValueError(text)
    except ValueError as error:
        raise SnapshotCorruptError(f"{text[:40]!r} is no time", where=where) from error
    return found


class _Peek(msgspec.Struct):
    format: Any = None
    version: Any = None


def _check_version(line: bytes, where: str) -> None:
    """A newer header has other fields: that it is newer is what has to be said of it."""
    try:
        peek = msgspec.json.decode(line, type=_Peek)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # it is none, and not newer
    if peek.format == FORMAT and type(peek.version) is int and peek.version > VERSION:
        raise _newer(peek.version, where)


def _newer(version: int, where: str) -> HoldfastError:
    return SnapshotUnsupportedError(
        f"the snapshot has format {version}, and this release reads {VERSION}",
        where=where,
        hint="Read it with a newer Holdfast" if version > VERSION else "",
    )
