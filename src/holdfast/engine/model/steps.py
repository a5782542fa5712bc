"""Steps and their commit hashes.

A step names its parents and contains its changes. Its commit hash covers the parents' hashes, its id, a digest of its
header and a digest of each operation: the *content* of the step, not how it is stored. Folding, pruning, re-encrypting
or moving a line changes no hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, encode

from holdfast.engine.model.operations import EditMap, decode_operation, encode_operation
from holdfast.errors import CorruptError

_COMMIT = "holdfast commit 1"
_HASH_SIZE = 32


class StepParent(NamedTuple):
    """A step that another one follows: its position in the line, and its commit hash."""

    branch: int
    seq: int
    commit: bytes


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

    def digest(self) -> bytes:
        """Return the digest of everything here but id and parents, which the commit hash covers itself."""
        return _sha256(encode([self.time, self.stamp, self.kind, self.schema, self.metadata]))


Stored: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Each channel's stored operation, by the channel's packed name."""

_NO_REST = encode_operation(EditMap())
"""The rest of most steps: nothing is removed or moved."""

Digests: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""A digest of each channel's stored operation, by the channel's packed name; last, of removals and order."""


@dataclass(slots=True)
class Step:
    """A step of a line: its header, and the changes of its first parent's state."""

    header: StepHeader
    edit: EditMap = field(default_factory=EditMap)
    _stored: Stored | None = field(default=None, init=False, repr=False, compare=False)
    _commit: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def stored(self) -> Stored:
        """Return each channel's operation as it is stored; last, under no name, removals and order."""
        if self._stored is None:
            changes = [(key, encode_operation(operation)) for key, operation in self.edit.put]
            edit = self.edit
            rest = encode_operation(EditMap(edit.removed, (), edit.moved)) if edit.removed or edit.moved else _NO_REST
            self._stored = (*changes, (b"", rest))
        return self._stored

    @property
    def digests(self) -> Digests:
        """Return what the commit hash covers of the changes: digests of stored bytes, never of re-encoded ones."""
        return tuple([(key, _sha256(operation)) for key, operation in self.stored])

    @property
    def commit(self) -> bytes:
        """Return the commit hash."""
        if self._commit is None:
            self._commit = commit_hash(self.header, self.digests)
        return self._commit

    def encode(self) -> bytes:
        """Return the stored form."""
        return encode((self.header, [part for pair in self.stored for part in pair], self.commit))

    @classmethod
    def decode(cls, data: bytes) -> Step:
        """Decode a step from its stored form. `CorruptError` if it is not valid."""
        fields, flat, commit = _parts(data)
        if not flat or len(flat) % 2:
            raise CorruptError("a stored step holds no changes of a state")
        stored = tuple(zip(flat[::2], flat[1::2], strict=True))
        operations = [(key, decode_operation(operation)) for key, operation in stored]
        _, rest = operations.pop()
        if not isinstance(rest, EditMap):
            raise CorruptError("a stored step holds no changes of a state")
        step = cls(_header(fields), EditMap(rest.removed, tuple(operations), rest.moved))
        step._stored = stored  # the hash covers the bytes as they are stored
        if step.commit != commit:
            raise CorruptError("a step's commit hash is not that of its content", where=step.header.id, hint=_HINT)
        return step


_HINT = "Verify the line, and repair it from a mirror or a backup"


def commit_hash(header: StepHeader, digests: Digests) -> bytes:
    """Return the hash that names a step and everything before it."""
    parents = [parent.commit for parent in header.parents]
    return _sha256(encode((_COMMIT, parents, header.id, header.digest(), digests)))


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


_Fields: TypeAlias = tuple[str, list[tuple[int, int, bytes]], int, str, str, str, bytes]

# The types of all parts of a step are fixed, and cannot nest.
_decode = Decoder(tuple[_Fields, list[bytes], bytes]).decode


def _parts(data: bytes) -> tuple[_Fields, list[bytes], bytes]:
    try:
        return _decode(data)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(f"not the stored form of a step: {error}") from None


def _header(fields: _Fields) -> StepHeader:
    id, parents, time, stamp, kind, schema, metadata = fields
    if any(len(commit) != _HASH_SIZE for _, _, commit in parents):
        raise CorruptError("a stored step's parents are not parents")
    return StepHeader(id, tuple(StepParent(*parent) for parent in parents), time, stamp, kind, schema, metadata)
