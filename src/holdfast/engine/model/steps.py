"""Steps and their commit hashes.

A step names its parents and contains its changes. Its commit hash covers the parents' hashes, its id, a digest of its
header and a digest of each operation: the *content* of the step, not how it is stored. Folding, pruning, re-encrypting
or moving a line changes no hash. Digests of operations and commit hashes are under the salt of the line.

A step with a salt of its own has events, whose rows stay when the step is pruned. Its hash covers the digest of those
rows separately, and everything else by one digest with the salt. A stub keeps both (`StubProof`): they prove the rows,
and without the salt nothing can be guessed from them about the rest.
"""

from __future__ import annotations

import hashlib
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.codec import msgpack
from holdfast.engine.model.line_salt import digest, digest_parts
from holdfast.engine.model.operations import EditMap, decode_operation, encode_parts
from holdfast.errors import CorruptError

_COMMIT, _SALTED = "holdfast commit 1", "holdfast salted commit 1"
_HASH_SIZE = 32


class StepParent(NamedTuple):
    """A step that another one follows: its position in the line, and its commit hash."""

    branch: int
    seq: int
    commit: bytes


class StepOrigin(NamedTuple):
    """Who saved a step and why: an identity, a correlation id, and the id of the event that caused it."""

    actor: str = ""
    correlation: str = ""
    cause: str = ""


NO_ORIGIN = StepOrigin()

KeySchemas: TypeAlias = tuple[tuple[bytes, str], ...]
"""References to schemas, such as `plan@3`, by the packed name of a channel."""


class StepHeader(NamedTuple):
    """The header of a step.

    `id` is the caller's own name for it. `time` is the line's time in nanoseconds, never before a parent's; `stamp` is
    the caller's own time, stored as it is. `metadata` is a packed dict. A merge has several parents; the operations
    change the state of the first.
    """

    id: str
    parents: tuple[StepParent, ...] = ()
    time: int = 0
    stamp: str = ""
    kind: str = "save"
    schema: str = ""
    metadata: bytes = b"\x80"
    events: str = ""
    """The digest of the step's event rows."""
    salt: bytes = b""
    """Random bytes that protect the digest of the content; empty where events are never stored with steps."""
    origin: StepOrigin = NO_ORIGIN
    """Who saved a step of a thread and why. Steps with events have that in their metadata."""
    key_schemas: KeySchemas = ()
    """The schemas of single channels that the step changed, in a scope: `schema` is that of all others."""

    def digest(self) -> bytes:
        """Return the digest of everything here but id, parents, events and salt, which the commit hash covers
        itself."""
        content = [self.time, self.stamp, self.kind, self.schema, self.metadata]
        if self.key_schemas:
            content += [self.origin, self.key_schemas]
        elif self.origin != NO_ORIGIN:
            content.append(self.origin)
        return _sha256(encode(content))


ANSWERED: Final = "__answered__"
"""The channel of pending writes that say that an interrupt was answered: by the id of the interrupt, in place of a
task. Graphs do not get them."""

RECORDED: Final = "__recorded__"
"""The channel of pending writes that have the calls of a task, for a replay. States have none of this name."""


class PendingWriteRow(NamedTuple):
    """A packed value that a task wrote to a channel. A negative number is for marks that replace each other."""

    path: str
    task: str
    place: int
    channel: str
    packed: bytes
    schema: str = ""
    """A reference to the schema of the value, such as `plan@3`."""


Stored: TypeAlias = tuple[tuple[bytes, tuple[bytes, ...]], ...]
"""Each channel's stored operation, in parts, by the channel's packed name."""

_LARGE = 1 << 16
"""From this many bytes of operations on, a step is encoded without a copy of them that grows."""

_NOTHING = EditMap()
_NO_REST = encode_parts(_NOTHING)
"""The rest of most steps: nothing is removed or moved."""


@lru_cache(1024)
def _no_rest_digest(salt: bytes) -> bytes:
    return digest_parts(salt, _NO_REST)


Digests: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""A digest of each channel's stored operation, by the channel's packed name; last, of removals and order."""


@dataclass(slots=True)
class Step:
    """A step of a line: its header, and the changes of its first parent's state."""

    header: StepHeader
    edit: EditMap = field(default_factory=EditMap)
    _stored: Stored | None = field(default=None, init=False, repr=False, compare=False)
    _sizes: list[int] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def stored(self) -> Stored:
        """Return each channel's operation as it is stored; last, under no name, removals and order."""
        if self._stored is None:
            changes = [(key, encode_parts(operation)) for key, operation in self.edit.put]
            edit = self.edit
            rest = encode_parts(EditMap(edit.removed, (), edit.moved)) if edit.removed or edit.moved else _NO_REST
            self._stored = (*changes, (b"", rest))
        return self._stored

    @property
    def sizes(self) -> list[int]:
        """Return the number of bytes of each stored operation."""
        if self._sizes is None:
            self._sizes = [sum(map(len, parts)) for _, parts in self.stored]
        return self._sizes

    def may_contain(self, data: bytes) -> bool:
        """Return whether some bytes are anywhere in the stored operations."""
        for _, parts in self.stored:
            for part in parts:
                if data in part:
                    return True
        return False

    def digests(self, salt: bytes) -> Digests:
        """Return what the commit hash covers of the changes: digests of stored bytes, never of re-encoded ones."""
        *changes, (name, rest) = self.stored
        last = _no_rest_digest(salt) if rest is _NO_REST else digest_parts(salt, rest)
        return (*[(key, digest_parts(salt, parts)) for key, parts in changes], (name, last))

    def commit(self, salt: bytes) -> bytes:
        """Return the commit hash in a line with this salt."""
        return commit_hash(self.header, self.digests(salt), salt)

    def encode(self, writes: Sequence[PendingWriteRow] = (), line_salt: bytes = b"") -> bytes:
        """Return the stored form, without id, schema version and commit hash: the row has them.

        `writes` are those that followed the step before it, and led to this one. They are no part of the step: they are
        stored with it since most have the same content. `line_salt` is stored with a step that has no parent."""
        header = self.header
        fields = (header.parents, header.time, header.stamp, header.kind, header.metadata)
        rest: tuple[object, ...] = ()
        events = a2b_base64(header.events.encode().translate(_FROM_URLS) + b"=") if header.events else b""
        if line_salt or header.key_schemas:
            rest = (events, header.salt, header.origin, line_salt)
            rest = (*rest, header.key_schemas) if header.key_schemas else rest
        elif header.origin != NO_ORIGIN:
            rest = (events, header.salt, header.origin)
        elif header.salt:
            rest = (events, header.salt)
        if sum(self.sizes) < _LARGE:
            operations = [each for key, parts in self.stored for each in (key, b"".join(parts))]
            return encode((fields, operations, writes, *rest))
        return self._encode_large(fields, (writes, *rest))

    def _encode_large(self, fields: object, rest: Sequence[object]) -> bytes:
        """Return the same bytes as the encoder, which would need the memory of several copies of large operations."""
        start = (msgpack.array_header(2 + len(rest)), encode(fields), msgpack.array_header(2 * len(self.stored)))
        operations: list[bytes] = []
        for (key, parts), size in zip(self.stored, self.sizes, strict=True):
            operations += (msgpack.binary(key), msgpack.binary_header(size), *parts)
        return b"".join((*start, *operations, *map(encode, rest)))

    @classmethod
    def decode(cls, data: bytes, id: str, schema: str = "") -> Step:
        """Decode a step from its stored form, and what its row says. `CorruptError` if it is not valid; whether it is
        the right one, its commit hash tells."""
        found = _parts(data)
        stored, edit = _edit(found.operations)
        step = cls(_header(found, id, schema), edit)
        step._stored = stored  # the hash covers the bytes as they are stored
        return step


def decode_edit(data: bytes) -> EditMap:
    """Return the changes in the stored form of a step, without its header."""
    return _edit(_parts(data).operations)[1]


def _edit(flat: list[bytes]) -> tuple[Stored, EditMap]:
    if not flat or len(flat) % 2:
        raise CorruptError("a stored step holds no changes of a state")
    stored = tuple([(key, (operation,)) for key, operation in zip(flat[::2], flat[1::2], strict=True)])
    operations = [(key, decode_operation(operation)) for key, (operation,) in stored[:-1]]
    rest = _NOTHING if stored[-1][1] == _NO_REST else decode_operation(flat[-1])
    if not isinstance(rest, EditMap):
        raise CorruptError("a stored step holds no changes of a state")
    return stored, EditMap(rest.removed, tuple(operations), rest.moved)


def commit_hash(header: StepHeader, digests: Digests, salt: bytes) -> bytes:
    """Return the hash that names a step and everything before it. That of a step with a salt of its own needs the salt
    of the line for the digests only."""
    parents = [parent.commit for parent in header.parents]
    if header.salt:
        return StubProof.of(header, digests).commit(parents)
    return digest(salt, encode((_COMMIT, parents, header.id, header.digest(), digests)))


class StubProof(NamedTuple):
    """The rest of a pruned step in its stub: its id, the digest of its event rows, and a digest of everything else
    together with its salt, which may have been removed since."""

    id: str
    events: str
    content: bytes
    salt: bytes = b""

    @classmethod
    def of(cls, header: StepHeader, digests: Digests) -> StubProof:
        """Return the proof of a step that has a salt."""
        content = _sha256(encode((header.salt, header.digest(), digests)))
        return cls(header.id, header.events, content, header.salt)

    def commit(self, parents: Sequence[bytes]) -> bytes:
        """Return the hash of the step, given those of its parents."""
        return _sha256(encode((_SALTED, parents, self.id, self.events, self.content)))


def decode_writes(data: bytes) -> list[PendingWriteRow]:
    """Return the writes in the stored form of a step."""
    return [PendingWriteRow(*write) for write in _parts(data).writes]


def decode_line_salt(data: bytes) -> bytes:
    """Return the salt of the line in the stored form of a step; nothing, if it has a parent."""
    return _parts(data).line_salt


def without_writes(data: bytes) -> bytes:
    """Return the stored form of a step without the writes."""
    found = _parts(data)
    found.writes = []
    return encode(found)


def without_recordings(data: bytes) -> bytes:
    """Return the stored form of a step without the recordings among the writes."""
    found = _parts(data)
    found.writes = [write for write in found.writes if write[3] != RECORDED]
    return encode(found)


def digest_text(digest: bytes) -> str:
    """Return the digest of event rows as text: base64 for URLs."""
    return b2a_base64(digest, newline=False).translate(_FOR_URLS, b"=").decode()


_FOR_URLS, _FROM_URLS = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


_Fields: TypeAlias = tuple[list[tuple[int, int, bytes]], int, str, str, bytes]
"""Parents, time, stamp, kind and metadata."""


# The types of all parts of a step are fixed, and cannot nest.
class _StoredStep(Struct, array_like=True, forbid_unknown_fields=True):
    fields: _Fields
    operations: list[bytes]
    writes: list[tuple[str, str, int, str, bytes, str]] = []
    events: bytes = b""
    salt: bytes = b""
    origin: tuple[str, str, str] = NO_ORIGIN
    line_salt: bytes = b""
    key_schemas: list[tuple[bytes, str]] = []


_FORM = packed_form(_StoredStep)


def _parts(data: bytes) -> _StoredStep:
    return ByteReader(data, "the stored form of a step").packed(_FORM)


def _header(found: _StoredStep, id: str, schema: str) -> StepHeader:
    parents, time, stamp, kind, metadata = found.fields
    if any(len(commit) != _HASH_SIZE for _, _, commit in parents):
        raise CorruptError("the parents in a stored step are malformed")
    if len(found.events) not in (0, _HASH_SIZE):
        raise CorruptError("the digest of the events of a stored step is malformed")
    if found.events and not found.salt:
        raise CorruptError("a stored step has events but no salt")
    named = tuple(StepParent(*parent) for parent in parents)
    origin = NO_ORIGIN if found.origin is NO_ORIGIN else StepOrigin(*found.origin)
    events = digest_text(found.events) if found.events else ""
    header = StepHeader(id, named, time, stamp, kind, schema, metadata, events, found.salt, origin)
    return header._replace(key_schemas=tuple(found.key_schemas)) if found.key_schemas else header
