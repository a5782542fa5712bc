"""Reads from a standby: `read_from=postgresql://…`.

A standby replays the log of its primary, some time later. Positions in that log say how far it is, and how far it has
to be: this process notes one for every line that it has written or read. A standby answers a read only if it has
replayed the positions of all its lines; a read that is not of certain lines, such as a list or a search, needs the
latest of all positions. Until then, the primary answers.

A position is learned after the commit of a group, also of one that was refused, and after every read from the primary:
by a statement that is sent along. So a position is that of the commit, or later, never earlier.

**Which server answers.** The system, the database and the timeline of a standby must be those of the primary. A standby
that was promoted takes changes of its own, and is not used any more. Another server at the same address, or the same
one after a restart, may be behind the one before: nothing is read from it until the primary has answered once, with a
position for all lines.

Reads never wait for a standby that is behind or away: they go to the primary, and meanwhile the standby is asked how
far it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.interface import Batch, Get, Query, key_of
from holdfast.backends.tables import KEYS, Key
from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from holdfast.backends.postgres.connection import PostgresConnection, ResultRows, Statement
    from holdfast.backends.postgres.options import PostgresOptions
    from holdfast.backends.postgres.pool import ConnectionPool

_log = logging.getLogger("holdfast.backends")

Lines: TypeAlias = frozenset[Key]

_MOST_LINES = 10_000
"""Of how many lines positions are kept."""

_PATIENCE = 5.0
"""How many seconds a standby may take to answer."""

_NEXT_LOOK = 0.005
_LONGEST_PAUSE = 5.0
"""After how many seconds a standby that was behind is asked again, and one that failed at most."""

# A position after the header of a page is that before it: no record has been written between.
POSITION: Statement = (
    "SELECT p - CASE WHEN p % s = 40 THEN 40 WHEN p % b = 24 THEN 24 ELSE 0 END FROM (SELECT "
    "pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::bigint AS p, "
    "pg_catalog.current_setting('wal_block_size')::bigint AS b, "
    "pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')) AS s) AS at",
    (),
)
"""Reads the position of a primary."""

_REPLAYED: Statement = (
    "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() "
    "THEN pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_last_wal_replay_lsn(), '0/0')::bigint END",
    (),
)
"""Reads the position of a standby; NULL if it is none."""

PLACE: Statement = (
    "SELECT s.system_identifier, d.oid::bigint, "
    "CASE WHEN pg_catalog.pg_is_in_recovery() "
    "THEN (SELECT c.timeline_id FROM pg_catalog.pg_control_checkpoint() c)::bigint "
    "ELSE ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)"
    "::bigint END, "
    "pg_catalog.concat_ws('-', pg_catalog.inet_server_addr(), pg_catalog.inet_server_port(), "
    "extract(epoch FROM pg_catalog.pg_postmaster_start_time()))"
    "FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d "
    "WHERE d.datname = pg_catalog.current_database()",
    (),
)


class Place(NamedTuple):
    """The data that a server has, and which server it is."""

    system: int
    database: int
    timeline: int
    server: str


class _NotUsableError(Exception):
    """A standby cannot answer, and why."""


_FAILURES = (HoldfastError, ServerInterrupted, TimeoutError, _NotUsableError)


class StandbyReader:
    """Answers reads from a standby, if it has replayed what this process has seen. In the loop of a store."""

    def __init__(self, primary: ConnectionPool, standby: ConnectionPool, options: PostgresOptions) -> None:
        self._primary = primary
        self._pool = standby
        self._url = options.url
        self._max_lag = options.max_lag
        self._seen: dict[Key, int] = {}
        """The positions of lines, the latest noted last."""
        self._least = 0
        """The least position for any line."""
        self._latest = 0
        self._replayed: int | None = None
        """How far the standby was when it was last asked; None if it cannot be used."""
        self._server = ""
        self._is_blind = True
        """Whether nothing may be read from it until the primary has answered."""
        self._blind_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._pause = _NEXT_LOOK
        self._next_look = 0.0
        self._why = ""
        self.answered = 0
        """How many reads it has answered."""

    def status(self) -> dict[str, int | float | str]:
        """Return how far it is, and how many reads it has answered."""
        found: dict[str, int | float | str] = {"standby": self._url, "standby_reads": self.answered}
        if self._replayed is None:
            return found | {"standby_state": f"not used: {self._why}"}
        behind = max(self._latest - self._replayed, 0)
        return found | {"standby_state": "used", "standby_bytes_behind": behind}

    # What was seen

    def note_batches(self, batches: Iterable[Batch], position: int) -> None:
        """Note the position after a group."""
        keys = {key_of(change)[:2] for batch in batches for change in batch}
        self.note(None if any(len(key) < 2 for key in keys) else frozenset(keys), position)

    def note(self, lines: Lines | None, position: int) -> None:
        """Note the position of the primary after lines were read or written; None for any."""
        self._latest = max(self._latest, position)
        if lines is None or self._is_blind:
            self._least = max(self._least, position)
            self._seen.clear()
            self._is_blind = False
            self._blind_at = asyncio.get_running_loop().time() + self._max_lag
            return
        for line in lines:
            known = self._seen.pop(line, 0)
            self._seen[line] = max(known, position)
        while len(self._seen) > _MOST_LINES:
            self._least = max(self._least, self._seen.pop(next(iter(self._seen))))

    def _needed(self, lines: Lines | None) -> int:
        if lines is None:
            return self._latest
        return max([self._least, *(self._seen.get(line, 0) for line in lines)])

    # Reading

    async def query(self, statements: Sequence[Statement], lines: Lines | None) -> list[ResultRows] | None:
        """Run statements on the standby; None if the primary has to answer."""
        if asyncio.get_running_loop().time() >= self._blind_at:
            self._is_blind = True
        replayed, needed = self._replayed, self._needed(lines)
        if self._is_blind:
            return None
        if replayed is None or replayed < needed:
            self._look_soon()
            return None
        try:
            async with asyncio.timeout(_PATIENCE), self._pool.use(_as_it_is) as connection:
                if self._is_another(connection):
                    return None
                # In a transaction of its own: what is read after it is at least as new.
                before: list[Statement] = [("BEGIN", ()), _REPLAYED, ("COMMIT", ())]
                _, replayed_now, _, *found = await connection.query_all([*before, *statements])
                self._take(replayed_now)
        except _FAILURES as error:
            self._fail(error)
            return None
        if self._replayed is None or self._replayed < needed:
            return None
        self.answered += 1
        return found

    async def look(self) -> None:
        """Ask the standby how far it is. `ConfigError` if it is not one of this primary."""
        try:
            async with asyncio.timeout(_PATIENCE), self._pool.use(_as_it_is) as connection:
                self._is_another(connection)
                self._take(await connection.query(*_REPLAYED))
        except ConfigError:
            raise
        except _FAILURES as error:
            self._fail(error)

    def _look_soon(self) -> None:
        """Ask the standby in the background, unless that was done just now."""
        loop = asyncio.get_running_loop()
        if self._looking is None and loop.time() >= self._next_look:
            self._next_look = loop.time() + _NEXT_LOOK
            self._looking = loop.create_task(self._look_quietly())

    async def _look_quietly(self) -> None:
        try:
            await self.look()
        except ConfigError as error:
            self._fail(error)
        finally:
            self._looking = None

    def _is_another(self, connection: PostgresConnection) -> bool:
        """Return whether it is another server than before, which may be behind that. Raises if it has other data."""
        here, there = connection.place, self._primary.place
        if here[:2] != there[:2]:
            connection.close()
            raise ConfigError(
                "read_from is not a standby of the primary: it has another database",
                where=self._url,
                hint="Name a streaming replica of the same server, and the same database",
            )
        if here.timeline != there.timeline:
            connection.close()  # the next one says anew which it has
            raise _NotUsableError(f"it is on timeline {here.timeline}, and the primary on {there.timeline}")
        if here.server == self._server:
            return False
        self._server, self._is_blind = here.server, True
        return True

    def _take(self, rows: ResultRows) -> None:
        replayed: Any = rows[0][0]
        if replayed is None:
            self._pool.close_idle()
            raise _NotUsableError("it was promoted, or does not replay a log")
        if self._replayed is None and self._why:
            _log.warning("reads of %s are answered by the standby again", self._url)
        self._replayed, self._why, self._pause = replayed, "", _NEXT_LOOK

    def _fail(self, error: Exception) -> None:
        """Do not use it for a while."""
        why = "no answer came in time" if isinstance(error, TimeoutError) else str(error)
        if self._replayed is not None or not self._why:
            _log.warning("the standby %s is not used, and the primary answers: %s", self._url, why)
        self._replayed, self._why = None, why
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._next_look = asyncio.get_running_loop().time() + self._pause


def lines_of(queries: Sequence[Query]) -> Lines | None:
    """Return the lines of queries; None if one is not of certain lines."""
    lines: set[Key] = set()
    for query in queries:
        if isinstance(query, Get):
            lines.update(key[:2] for key in query.keys)
        elif len(query.prefix) < 2 or query.space.order(query.by)[:2] != query.space.order("")[:2]:
            return None
        else:
            lines.add(query.prefix[:2])
    return frozenset(lines)


def may_lag(queries: Sequence[Query]) -> bool:
    """Return whether a standby may answer: not about the keys of an encrypted store, which somebody may have erased."""
    return all(query.space is not KEYS for query in queries)


def _as_it_is(error: Exception) -> Exception:
    return ServerInterrupted(str(error))
