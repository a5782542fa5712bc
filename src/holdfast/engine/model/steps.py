"""Steps and their commit hashes.

A step names its parents and holds what it changed. Its commit hash covers the parents' hashes, its id, a digest of its
header and a digest of each operation: what the step *means*, not how it is stored. Folding, pruning, re-encrypting or
moving a line changes no hash.
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
    """A step that another one follows: its place in the line, and its commit hash."""

    branch: int
    seq: int
    commit: bytes


class StepHeader(NamedTuple):
    """What is known of a step besides its changes.

    `id` is the caller's own name for it. `time` is the line's time in nanoseconds, never before a parent's; `stamp` is
    the caller's idea of the time, kept as given. `metadata` is a packed dict. Several parents make a merge; the first
    is the one whose state the operations change.
    """

    id: str
    parents: tuple[StepParent, ...] = ()
    time: int = 0
    stamp: str = ""
    kind: str = "save"
    schema: str = ""
    metadata: bytes = b"\x80"

    def digest(self) -> bytes:
        """Covers everything here but id and parents, which the commit hash covers itself."""
        return _sha256(encode([self.time, self.stamp, self.kind, self.schema, self.metadata]))


Stored: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Each channel's stored operation, by the channel's packed name."""

_NO_REST = encode_operation(EditMap())
"""Where nothing is removed or moved, as in most steps."""

Digests: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""A digest of each channel's stored operation, by the channel's packed name; last, of removals and order."""


@dataclass(slots=True)
class Step:
    """One step of a line: header, and what it changed of its first parent's state."""

    header: StepHeader
    edit: EditMap = field(default_factory=EditMap)
    _stored: Stored | None = field(default=None, init=False, repr=False, compare=False)
    _commit: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def stored(self) -> Stored:
        """Each channel's operation as it is stored; last, under no name, removals and order."""
        if self._stored is None:
            changes = [(key, encode_operation(operation)) for key, operation in self.edit.put]
            edit = self.edit
            rest = encode_operation(EditMap(edit.removed, (), edit.moved)) if edit.removed or edit.moved else _NO_REST
            self._stored = (*changes, (b"", rest))
        return self._stored

    @property
    def digests(self) -> Digests:
        """What the commit hash covers of the changes: digests of stored bytes, never of re-encoded ones."""
        return tuple([(key, _sha256(operation)) for key, operation in self.stored])

    @property
    def commit(self) -> bytes:
        """The commit hash."""
        if self._commit is None:
            self._commit = commit_hash(self.header, self.digests)
        return self._commit

    def encode(self) -> bytes:
        """The stored form."""
        return encode((self.header, [part for pair in self.stored for part in pair], self.commit))

    @classmethod
    def decode(cls, data: bytes) -> Step:
        """A step from its stored form, whose commit hash must be its own."""
        fields, flat, commit = _parts(data)
        if not flat or len(flat) % 2:
            raise CorruptError("a stored step holds no changes of a state")
        stored = tuple(zip(flat[::2], flat[1::2], strict=True))
        operations = [(key, decode_operation(operation)) for key, operation in stored]
        _, rest = operations.pop()
        if not isinstance(rest, EditMap):
            raise CorruptError("a stored step holds no changes of a state")
        step = cls(_header(fields), EditMap(rest.removed, tuple(operations), rest.moved))
        step._stored = stored  # what the hash covers is what is there
        if step.commit != commit:
            raise CorruptError("a step's commit hash is not that of its content", where=step.header.id, hint=_HINT)
        return step


_HINT = "Verify the line, and repair it from a mirror or a backup"


def commit_hash(header: StepHeader, digests: Digests) -> bytes:
    """The hash that names a step and everything before it."""
    parents = [parent.commit for parent in header.parents]
    return _sha256(encode((_COMMIT, parents, header.id, header.digest(), digests)))


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


_Fields: TypeAlias = tuple[str, list[tuple[int, int, bytes]], int, str, str, str, bytes]

# All that a step holds is known beforehand, and can not nest.
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
