"""The ledger of erasures: a system line to which a record is appended for each, and from which nothing is removed.

A record has the time, the certificate, and keyed digests of the subject and of the lines that were erased, but no name.
It is applied to whatever brings back older data: restores, imports, copies and repairs.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.backends.interface import Change
from holdfast.byte_reader import ByteReader
from holdfast.engine.engine import Engine
from holdfast.engine.model.scopes import MARK
from holdfast.engine.record_table import RecordTable
from holdfast.engine.row_format import ERASE, Line
from holdfast.engine.subject_names import METADATA_KEY
from holdfast.engine.system_line import EditEntries, LineChange, SystemLine, SystemLineEntries

LINE = f"{MARK}erasures"
"""The name of the line."""

_KEY = "key"
_ENTRY = "erasure/"
_EVENTS = "events/"
_SIZE = 16


@dataclass(frozen=True)
class LedgerEntry:
    """An erasure: until when data is erased, in nanoseconds since 1970, and by which digests it is recognised."""

    time: int
    key: bytes
    """The key of the digests."""
    subject: bytes
    lines: frozenset[bytes]
    """Digests of the lines that were erased, whatever they are called in a copy."""
    certificate: str
    places: Mapping[bytes, int] = field(default_factory=dict)
    """Digests of the names of what was erased, and from when on: 0, or the time of the person's first step in a line
    that others share. Records of the audit and of hooks refer to these names."""
    metadata_keys: tuple[str, ...] = (METADATA_KEY,)
    """The entries of metadata that named the subject."""

    @property
    def name(self) -> str:
        """Its name in the ledger: its time, and the beginning of the digest."""
        return f"{self.time:020}-{self.subject.hex()[:16]}"

    def is_of(self, subject: str) -> bool:
        """Return whether it is the erasure of a subject."""
        return hmac.compare_digest(digest_subject(self.key, subject), self.subject)

    def has_line(self, salt: bytes) -> bool:
        """Return whether a line was erased, by its salt, which copies keep."""
        return digest_line(self.key, salt) in self.lines

    def since(self, place: str) -> int | None:
        """Return since when something of the person was in a place; None if nothing was erased there."""
        return self.places.get(digest_place(self.key, place))

    def with_places(self, places: Mapping[str, int]) -> LedgerEntry:
        """Return the entry with more places, by their names."""
        new = {digest_place(self.key, name): since for name, since in places.items()}
        return replace(self, places={**self.places, **new})

    @classmethod
    def of(cls, stored: Mapping[str, Any], _version: int = 0) -> LedgerEntry:
        """Return the entry of a record."""
        packed = stored["lines"]
        lines = frozenset(packed[start : start + _SIZE] for start in range(0, len(packed), _SIZE))
        return cls(
            stored["time"],
            stored["key"],
            stored["subject"],
            lines,
            stored["certificate"],
            _unpack_places(ByteReader(stored.get("places", b""), "an entry of the ledger of erasures")),
            tuple(stored.get("metadata_keys", (METADATA_KEY,))),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the record of the entry."""
        packed = b"".join(sorted(self.lines))
        return {
            "time": self.time,
            "key": self.key,
            "subject": self.subject,
            "lines": packed,
            "certificate": self.certificate,
            "places": b"".join(name + since.to_bytes(8) for name, since in sorted(self.places.items())),
            "metadata_keys": list(self.metadata_keys),
        }


def digest_subject(key: bytes, subject: str) -> bytes:
    """Return the keyed digest of the name of a subject."""
    return hmac.digest(key, b"holdfast subject 1\0" + subject.encode(), "sha256")


def digest_line(key: bytes, salt: bytes) -> bytes:
    """Return the keyed digest of a line, by its salt."""
    return hmac.digest(key, b"holdfast line 1\0" + salt, "sha256")[:_SIZE]


def _unpack_places(reader: ByteReader) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    while reader.left:
        name = reader.take(_SIZE)
        found[name] = reader.number(8)
    return found


def digest_place(key: bytes, name: str) -> bytes:
    """Return the keyed digest of the name of something that was erased."""
    return hmac.digest(key, b"holdfast place 1\0" + name.encode(errors="surrogatepass"), "sha256")[:_SIZE]


class ErasureLedger:
    """The ledger of a tenant."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._line = SystemLine(engine, Line(tenant, LINE), actor)
        self._entries = RecordTable(self._line, "erasure", LedgerEntry.of, LedgerEntry.to_record, prefix=_ENTRY)

    async def entries(self) -> list[LedgerEntry]:
        """Return all entries, the oldest first."""
        return list((await self._entries.all()).values())

    async def key(self) -> bytes:
        """Return the key of the digests in this ledger, which is created first."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            found = await entries.find(_KEY)
            return LineChange({} if found else self._line.pack({_KEY: os.urandom(32)}))

        key = await self._line.read(lambda entries: entries.find(_KEY))
        while not key:
            await self._change(edit)
            key = await self._line.read(lambda entries: entries.find(_KEY))
        return bytes(key)

    async def add(self, new: Sequence[LedgerEntry]) -> None:
        """Append entries that it does not have."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            missing = [each for each in new if not await entries.has(_ENTRY + each.name)]
            return LineChange(self._entries.pack({each.name: each for each in missing}))

        if new:
            await self._change(edit)

    async def _change(self, edit: EditEntries) -> None:
        request = self._line.request(ERASE, edit)
        request.if_changed, request.is_limited = True, False
        await self._line.engine.writer.save(request)

    # Records of the audit whose content was erased ------------------------------------------------------------

    async def replaced_digests(self) -> dict[tuple[str, str], str]:
        """Return the digests of those rows of events that were left when content was erased, by line and step."""
        found = await self._line.read(lambda entries: entries.with_prefix(_EVENTS))
        return {(str(line), str(id)): str(digest) for each in found.values() for line, id, digest, *_ in each}

    async def count_replaced(self, name: str) -> int:
        """Return how many rows lost their content under this name."""
        found = await self._line.read(lambda entries: entries.with_prefix(f"{_EVENTS}{name}/"))
        return sum(count for each in found.values() for *_, count in each)

    async def add_digests(self, digests: Sequence[tuple[str, str, str]]) -> None:
        """Add the digests of rows that another store replaced, and that are copied to this one: line, id of the step,
        and digest."""
        known = await self.replaced_digests()
        new = [(*each, 0) for each in digests if known.get(each[:2]) != each[2]]
        if new:
            await self.replace_digests(f"{self._line.engine.context.clock():020}-copied", new, [])

    async def replace_digests(
        self, name: str, digests: Sequence[tuple[str, str, str, int]], changes: Sequence[Change]
    ) -> None:
        """Change rows of events, and record the digests of what is left: line, id of the step, digest, and the number
        of rows that changed."""

        async def edit(_: SystemLineEntries) -> LineChange:
            key = f"{_EVENTS}{name}/{digests[0][1]}/{len(digests)}"
            return LineChange(self._line.pack({key: list(map(list, digests))}), rows=changes)

        await self._line.change(ERASE, edit)
