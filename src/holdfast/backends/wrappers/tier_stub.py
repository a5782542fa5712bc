"""What stands in a hot store for a body that was moved to a cold one."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.tables import NODES, OBJECTS, STEPS, WRITES, Key

MOVED = (STEPS, NODES, OBJECTS, WRITES)
"""The spaces whose bodies are moved."""

_MAGIC = b"\xf5holdfast cold"
_KEPT = _MAGIC + b"\x00"
_STUB = _MAGIC + b"\x01"
_DIGEST = 32
_NUMBER = 8

EXTRA = len(_KEPT)
"""By how many bytes a body may grow that has to be told from a stub."""


class TierStub(NamedTuple):
    """Where a body is, and how to know it. The number is new each time: what it names is never written again."""

    digest: bytes
    length: int
    number: int

    @property
    def body(self) -> bytes:
        """What stands in the hot store."""
        return _STUB + self.digest + self.length.to_bytes(_NUMBER) + self.number.to_bytes(_NUMBER)

    def key(self, key: Key) -> Key:
        """Where the body of the row with this key is, in the space `OBJECTS` of the cold store."""
        return (*key[:2], self.digest, self.number)

    def fits(self, body: bytes) -> bool:
        """Whether this is the body that was moved."""
        return len(body) == self.length and hashlib.sha256(body).digest() == self.digest


def stub_for(body: bytes) -> TierStub:
    """A new stub for a body."""
    return TierStub(hashlib.sha256(body).digest(), len(body), secrets.randbits(62))


def stub_in(row: Row) -> TierStub | None:
    """The stub that a row has for a body, if it has one."""
    if not row.body.startswith(_STUB):
        return None
    rest = row.body[len(_STUB) :]
    length, number = rest[_DIGEST:-_NUMBER], rest[-_NUMBER:]
    return TierStub(rest[:_DIGEST], int.from_bytes(length), int.from_bytes(number))


def kept(row: Row) -> Row:
    """A row as it is kept: a body that looks like a stub is marked as none."""
    return row._replace(body=_KEPT + row.body) if row.body.startswith(_MAGIC) else row


def given(row: Row) -> Row:
    """The row that was kept so."""
    return row._replace(body=row.body[len(_KEPT) :]) if row.body.startswith(_KEPT) else row
