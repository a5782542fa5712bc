"""The TTL of a thread: how long after its last change it may be deleted.

It is a row of `refs`, written with a save. What this process saved a thread with is cached, so that later saves do not
write it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Backend, Change, Delete, Get, Put, Row
from holdfast.backends.tables import REFS
from holdfast.engine.context import Apply
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import Line, ttl_key
from holdfast.errors import CorruptError, InvalidError
from holdfast.time_parser import Duration, parse_nanoseconds

_WEIGHT = 200


class _StoredTtl(NamedTuple):
    """The TTL that this process stored while the line had a version; with a step, if that may not be stored yet."""

    ttl: int
    version: int
    step: str


def attach_ttl(
    engine: Engine, line: Line, ttl: Duration, more: Callable[[str], Sequence[Change]] | None = None
) -> Callable[[str], Sequence[Change]]:
    """Return the changes that are to be attached to a step that sets the TTL of its thread, besides `more`."""
    span = parse_ttl(line, ttl)

    def changes(step: str) -> Sequence[Change]:
        return [*(() if more is None else more(step)), *_changes(engine, line, span, step)]

    return changes


def parse_ttl(line: Line, ttl: Duration) -> int:
    """Return the TTL of a thread, in nanoseconds."""
    if root_of(line) != line:
        raise InvalidError(
            "a namespace cannot have its own TTL: it uses that of its thread",
            where=f"thread {line}",
            hint="Set the TTL of the thread itself",
        )
    return parse_nanoseconds(ttl, "time to live", positive=True)


def _changes(engine: Engine, line: Line, ttl: int, step: str) -> Sequence[Change]:
    """Return the change that stores a TTL together with a step, by the step's id; none if it is stored already."""
    cache, tip = engine.context.cache, engine.lines.cached_tip(line)
    if tip is None:
        return [_put(line, ttl)]
    version, last = tip.info.version, "" if tip.point is None else tip.point.id
    known: _StoredTtl | None = cache.get(("ttl", line))
    if known is not None and known[:2] == (ttl, version):
        if not known.step:
            return ()
        if known.step == last != step:  # the step that it was written with is the last one, so that it is stored
            cache.put(("ttl", line), _StoredTtl(ttl, version, ""), _WEIGHT)
            return ()
    if step != last:  # one that exists already does not show whether the TTL was stored with it
        cache.put(("ttl", line), _StoredTtl(ttl, version, step), _WEIGHT)
    return [_put(line, ttl)]


async def set_ttl(engine: Engine, line: Line, ttl: int | None, apply: Apply) -> None:
    """Set the TTL of a thread, or remove it. With a new version: a deletion in progress has to look again."""
    lines = engine.lines
    change = Delete(REFS, ttl_key(line)) if ttl is None else _put(line, ttl)
    while True:
        info = await lines.info(line)
        if await apply([*lines.new_version(line, info), change]) is None:
            engine.context.cache.drop(("line", line))
            return


async def read_ttls(backend: Backend, roots: Sequence[Line]) -> dict[Line, int]:
    """Return the TTLs of those threads that have one, in nanoseconds."""
    (rows,) = await backend.read([Get(REFS, [ttl_key(root) for root in roots])]) if roots else ([],)
    return {Line(str(row.key[0]), str(row.key[1])): _ttl_of(row) for row in rows}


def _put(line: Line, ttl: int) -> Put:
    return Put(REFS, Row(ttl_key(line), (str(ttl), 0)))


def _ttl_of(row: Row) -> int:
    text = str(row.columns[0])
    if not text.isascii() or not text.isdigit():
        raise CorruptError("the TTL of a thread is not a number", where=f"thread {row.key[1]!s}")
    return int(text)
