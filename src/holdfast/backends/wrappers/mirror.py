"""A store with a copy that is kept in step: `mirror:?local=sqlite:///agents.db&remote=sqlite:////mnt/other/agents.db`.

As `write-behind:` (see `holdfast.backends.wrappers.replication`), but acknowledged once a batch is in both stores. If
the remote store does not take it within `patience` seconds (5), the mirror goes on with the local store alone; `status`
says so, and the copy catches up when it can. With `strict`, that is an error instead: `OutcomeUnknownError` for the
batch that is in one store only, then `TransientError`, before anything is done, until the copy has caught up.

**Healing.** What cannot be read from the local store, or does not pass the check `sound`, is read from the copy, if
that has everything; it is written back where that can be, counted in `status` and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from holdfast.backends.interface import Backend, Batch, Change, Expect, Get, Put, Query, Row, Sound
from holdfast.backends.tables import JOURNAL, Key, Table
from holdfast.backends.urls import parse_bool
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.private_rows import read_theirs
from holdfast.backends.wrappers.replica_pair import ReplicaCursor, ReplicaIdentity, cursor_of
from holdfast.backends.wrappers.replication import PATIENCE, ReplicatingBackend
from holdfast.backends.wrappers.store_diff import read_one
from holdfast.errors import CorruptError, HoldfastError, OutcomeUnknownError, TransientError

_log = logging.getLogger("holdfast.copies")

_NEAR = 64
"""How many entries the copy may lack when writers begin to wait for it again."""

_MOST_MENDED = 1_000


class MirrorBackend(ReplicatingBackend):
    """`mirror:`: in both stores before it is acknowledged. See the module."""

    schemes = ("mirror",)

    def __init__(
        self,
        local: Backend,
        remote: Backend,
        identity: ReplicaIdentity,
        *,
        strict: bool = False,
        sound: Sound | None = None,
        patience: float = PATIENCE,
        **settings: float,
    ) -> None:
        super().__init__(local, remote, identity, patience=patience, **settings)
        self.sound = sound
        """Tells rows that are damaged although the store does not notice. None: all are taken for sound."""
        self._strict = strict
        self._alone = False
        self._healed = 0
        self._unhealed = 0

    def check_rows_with(self, sound: Sound) -> None:
        self.sound = sound
        super().check_rows_with(sound)

    @classmethod
    def _options(cls) -> tuple[str, ...]:
        return (*super()._options(), "strict")

    @classmethod
    def _settings(cls, url: str, found: dict[str, Any]) -> dict[str, Any]:
        return {"strict": parse_bool(url, "strict", found.get("strict", False))}

    async def status(self) -> dict[str, int | float | str]:
        """As for `write-behind:`; and whether it runs without the copy, and how many rows were repaired or were not."""
        return {
            **await super().status(),
            "degraded": int(self._alone),
            "healed": self._healed,
            "unhealed": self._unhealed,
        }

    # Writing

    async def apply(self, batch: Batch) -> int | None:
        if self._alone:
            await self._join()
        number, refused = await self._write(batch)
        if refused is not None or number is None or self._alone:
            return refused
        if await self._sender.arrival(number, self._patience):
            return None
        self._alone = True
        _log.warning("%s: the copy does not answer; going on without it", self.url)
        if self._strict:
            raise OutcomeUnknownError(
                f"made here, and not yet in the copy after {self._patience:g} s: {self._sender.trouble}",
                where=self.remote.url,
                hint="It will be copied; saving again under the same id is safe",
            )
        return None

    async def _join(self) -> None:
        """See whether the copy keeps up again."""
        ((last,),) = await self.inner.read([journal.LAST])
        if not self._sender.trouble and journal.mark_of(last).number - self._sender.sent <= _NEAR:
            self._alone = False
        elif self._strict:
            raise TransientError(
                f"the copy does not keep up: {self._sender.trouble or 'it is catching up'}",
                where=self.remote.url,
                hint="Nothing was done. Try again when the copy is back, or open without strict",
            )

    # Reading and healing

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        try:
            found = await read_theirs(self.inner, queries)
        except CorruptError as error:
            copied = await self._copied(queries)
            if copied is None:
                raise
            _log.warning("%s: damaged; answering from the copy: %s", self.inner.url, error)
            await self._mend_unreadable(queries, *copied)
            return copied[1]
        unsound = self._unsound(queries, found)
        if not unsound:
            return found
        copied = await self._copied(queries)
        if copied is None:
            return found
        await self._mend(unsound, copied[0])
        return copied[1]

    async def heal(self) -> list[str]:
        """Compare both stores from end to end, and put right what is damaged in one and sound in the other.

        Returns what was not the same, in words. What is sound in both and still not the same is left as it is: only
        you can know which of the two is right.
        """
        found = await self._differences()
        for difference in found:
            cursor = await cursor_of(self.remote)
            if cursor is None:
                break
            here = difference.local is not None and self._is_sound(difference.space, difference.local)
            there = difference.remote is not None and self._is_sound(difference.space, difference.remote)
            if there and not here and (difference.local is not None or difference.damaged):
                await self._mend([(difference.space, difference.key)], cursor)
            elif here and not there and difference.remote is not None:
                await self._mend_copy(difference.space, difference.key, cursor)
        return [difference.told() for difference in found]

    def _is_sound(self, space: Table, row: Row) -> bool:
        return self.sound is None or self.sound(space, row)

    def _unsound(self, queries: Sequence[Query], found: list[list[Row]]) -> list[tuple[Table, Key]]:
        """The rows that are not what was written. Those that came without their bodies cannot be judged."""
        if self.sound is None:
            return []
        return [
            (query.space, row.key)
            for query, rows in zip(queries, found, strict=True)
            if (isinstance(query, Get) or query.bodies) and query.space is not JOURNAL
            for row in rows
            if not self.sound(query.space, row)
        ]

    async def _copied(self, queries: Sequence[Query]) -> tuple[ReplicaCursor, list[list[Row]]] | None:
        """What the copy answers, and as of when, if it has all that was acknowledged, and it is sound."""
        try:
            if not await self._caught_up():
                return None
            cursor = await cursor_of(self.remote)
            found = await read_theirs(self.remote, queries)
        except HoldfastError as error:
            _log.warning("%s: the copy cannot help: %s", self.remote.url, error)
            return None
        if cursor is None or self._unsound(queries, found):
            return None
        return cursor, found

    async def _caught_up(self) -> bool:
        try:
            return await super()._caught_up()
        except CorruptError:
            # The end of the journal cannot be read either: what this process wrote is known, and what the copy has.
            return await self._sender.arrival(self._last.number if self._last else 0, self._patience)

    async def _mend_unreadable(self, queries: Sequence[Query], cursor: ReplicaCursor, found: list[list[Row]]) -> None:
        rows = [
            (query.space, row.key)
            for query, rows in zip(queries, found, strict=True)
            if query.space is not JOURNAL
            for row in rows
        ]
        damaged = [at for at in rows[:_MOST_MENDED] if (await read_one(self.inner, *at))[1]]
        await self._mend(damaged, cursor)

    async def _mend(self, rows: list[tuple[Table, Key]], cursor: ReplicaCursor) -> None:
        """Write rows of the copy back, unless anything was written since the copy had got to the cursor."""
        unchanged: list[Change] = [
            cursor.last.there,
            Expect(JOURNAL, (*journal.LINE, cursor.number + 1), None),
        ]
        for space, key in rows:
            try:
                row, _ = await read_one(self.remote, space, key)
                mended = (
                    row is not None
                    and self._is_sound(space, row)
                    and await self.inner.apply([*unchanged, Put(space, row)]) is None
                )
            except HoldfastError as error:
                _log.warning("%s: a row of %s could not be put right: %s", self.inner.url, space.name, error)
                mended = False
            self._healed += mended
            self._unhealed += not mended
            if mended:
                _log.warning("%s: a row of %s was damaged, and is put right", self.inner.url, space.name)

    async def _mend_copy(self, space: Table, key: Key, cursor: ReplicaCursor) -> None:
        """Write a row into the copy, if that has got to the cursor, as of which the row is read here."""
        (last,), rows = await self.inner.read([journal.LAST, Get(space, [key])])
        if journal.mark_of(last) != cursor.last or not rows or not self._is_sound(space, rows[0]):
            return
        if await self.remote.apply([cursor.there, Put(space, rows[0])]) is None:
            self._healed += 1
            _log.warning("%s: a row of %s was damaged, and is put right", self.remote.url, space.name)
