"""Descriptions of keys, without what encrypts: they are read where the library for that is not installed."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast._fields import Hidden


class KeyInfo(msgspec.Struct, frozen=True):
    """A key of a tenant: a `wrapping` one encrypts the keys of threads, and the one for `digest`s text in columns."""

    id: str
    kind: str
    number: Hidden[int]
    state: str
    """`active`, `retired` when a newer one is in use, or `destroying`."""
    master: str
    """The id of the master key that encrypts it."""
    created: datetime
    lines: int
    """How many keys of threads and other lines it encrypts."""
    destroyed_at: Hidden[datetime | None] = None
    """When it may be destroyed."""


class KeyCheck(msgspec.Struct, frozen=True):
    """The findings of a check of keys."""

    keys: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all keys are there and decrypt."""
        return not self.problems
