"""A store with a synchronous copy: `mirror:?local=agents.db&remote=/mnt/other/agents.db`.

As `write-behind:` (see `holdfast.backends.wrappers.replication`), but acknowledged once a batch is in both stores. If
the remote store does not take it within `patience` seconds (5), the mirror is degraded: it uses the local store alone,
and the copy catches up when it can. With `strict`, that is an error instead: `OutcomeUnknownError` for the batch that
is in one store only, then `TransientError`, before anything is written, until the copy has caught up.

**Healing.** Rows that cannot be read from the local store, do not pass the row check, or are missing though others
refer to them, are read from the copy, if it has caught up; they are written back where possible, counted in `status`
and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.backends.interface import Backend, Batch, Get, Query, Row, lacks_rows
from holdfast.backends.tables import JOURNAL, Key, Table
from holdfast.backends.urls import parse_bool
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.private_rows import read_caller_rows
from holdfast.backends.wrappers.replica_pair import ReplicaCursor, ReplicaIdentity, read_cursor
from holdfast.backends.wrappers.replication import PATIENCE, ReplicatingBackend
from holdfast.backends.wrappers.store_diff import read_row
from holdfast.errors import CorruptError, HoldfastError, OutcomeUnknownError, TransientError

_log = logging.getLogger("holdfast.copies")

_NEAR = 64
"""How many entries the copy may lag when writers start to wait for it again."""

_MAX_REPAIRED = 1_000


class MirrorBackend(ReplicatingBackend):
    """Acknowledges a batch once it is in both stores. See the module."""

    schemes: ClassVar[tuple[str, ...]] = ("mirror",)

    def __init__(
        self,
        local: Backend,
        remote: Backend,
        identity: ReplicaIdentity,
        *,
        strict: bool = False,
        patience: float = PATIENCE,
        **settings: float,
    ) -> None:
        super().__init__(local, remote, identity, patience=patience, **settings)
        self._strict = strict
        self._overdue: int | None = None
        """The last entry that the copy did not take in time; None unless the mirror is degraded."""

    @classmethod
    def _options(cls) -> tuple[str, ...]:
        return (*super()._options(), "strict")

    @classmethod
    def _settings(cls, url: str, parts: dict[str, Any]) -> dict[str, Any]:
        return {"strict": parse_bool(url, "strict", parts.get("strict", False))}

    async def status(self) -> dict[str, int | float | str]:
        """As for `write-behind:`; and whether the mirror is degraded."""
        await self._rejoin()
        return {**await super().status(), "degraded": int(self._overdue is not None)}

    # Writing

    async def apply(self, batch: Batch) -> int | None:
        if not await self._rejoin() and self._strict and self._sender.fatal_error is None:
            raise TransientError(
                f"the copy does not keep up: {self._sender.trouble or 'it is catching up'}",
                where=self.remote.url,
                hint="Nothing was written. Try again when the copy is back, or open without strict",
            )
        number, refused = await self._write(batch)
        if refused is not None or number is None or self._overdue is not None:
            return refused
        if await self._sender.wait_sent(number, self._patience):
            return None
        self._overdue = number
        if self._sender.fatal_error is not None:
            raise OutcomeUnknownError(
                f"stored here, and will not be in the copy: {self._sender.fatal_error.what}",
                where=self.remote.url,
                hint=self._sender.fatal_error.hint,
            )
        _log.warning("%s: the copy does not answer; continuing without it", self.url)
        if self._strict:
            raise OutcomeUnknownError(
                f"stored here, and not yet in the copy after {self._patience:g} s: {self._sender.trouble}",
                where=self.remote.url,
                hint="It will be copied; saving again under the same id is safe",
            )
        return None

    async def _rejoin(self) -> bool:
        """Wait for the copy again, if it has caught up. Returns whether writers wait for it."""
        overdue, sender = self._overdue, self._sender
        if overdue is not None and not sender.trouble and sender.sent >= overdue:
            ((last,),) = await self.inner.read([journal.LAST])
            if journal.parse_row(last).number - sender.sent <= _NEAR:
                self._overdue = None
        return self._overdue is None

    # Reading and healing

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        try:
            found = await read_caller_rows(self.inner, queries)
        except CorruptError as error:
            copied = await self._read_copy(queries)
            if copied is None:
                raise
            _log.warning("%s: damaged; answering from the copy: %s", self.inner.url, error)
            await self._repair_unreadable(queries, *copied)
            return copied[1]
        damaged = self._damaged_rows(queries, found)
        if not damaged and not any(map(lacks_rows, queries, found)):
            return found
        copied = await self._read_copy(queries)
        if copied is None:
            return found
        await self._healer.restore([*damaged, *_lost_rows(queries, found, copied[1])], copied[0])
        return copied[1]

    def _damaged_rows(self, queries: Sequence[Query], found: list[list[Row]]) -> list[tuple[Table, Key]]:
        """Return the rows that do not pass the check. Rows without bodies cannot be checked."""
        return [
            (query.space, row.key)
            for query, rows in zip(queries, found, strict=True)
            if (isinstance(query, Get) or query.bodies) and query.space is not JOURNAL
            for row in rows
            if not self._healer.is_intact(query.space, row)
        ]

    async def _read_copy(self, queries: Sequence[Query]) -> tuple[ReplicaCursor, list[list[Row]]] | None:
        """Return the answer of the copy, and its cursor, if it has caught up and its rows are OK."""
        try:
            if not await self._wait_caught_up():
                return None
            cursor = await read_cursor(self.remote)
            found = await read_caller_rows(self.remote, queries)
        except HoldfastError as error:
            _log.warning("%s: the copy cannot help: %s", self.remote.url, error)
            return None
        if cursor is None or self._damaged_rows(queries, found):
            return None
        return cursor, found

    async def _wait_caught_up(self) -> bool:
        try:
            return await super()._wait_caught_up()
        except CorruptError:
            # The end of the journal cannot be read either, but what this process wrote is known.
            return await self._sender.wait_sent(self._last.number if self._last else 0, self._patience)

    async def _repair_unreadable(self, queries: Sequence[Query], cursor: ReplicaCursor, found: list[list[Row]]) -> None:
        rows = [
            (query.space, row.key)
            for query, rows in zip(queries, found, strict=True)
            if query.space is not JOURNAL
            for row in rows
        ]
        damaged = [at for at in rows[:_MAX_REPAIRED] if (await read_row(self.inner, *at))[1]]
        await self._healer.restore(damaged, cursor)


def _lost_rows(queries: Sequence[Query], found: list[list[Row]], copied: list[list[Row]]) -> list[tuple[Table, Key]]:
    """Return the rows of the copy that queries require and the local store lacks."""
    lost: list[tuple[Table, Key]] = []
    for query, here, there in zip(queries, found, copied, strict=True):
        if query.space is not JOURNAL and lacks_rows(query, here):
            keys = {row.key for row in here}
            lost += ((query.space, row.key) for row in there if row.key not in keys)
    return lost
