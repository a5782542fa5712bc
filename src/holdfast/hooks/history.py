"""The history of hooks: what was recorded of their executions."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any, NamedTuple, TypeAlias

from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import EVENTS
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, lines_of, place_of
from holdfast.engine.model.scopes import check_key
from holdfast.engine.row_format import Line, open_event
from holdfast.errors import InvalidError
from holdfast.hooks.context import HookExecution, to_datetime, to_time
from holdfast.hooks.execution_log import LINE
from holdfast.time_parsing import Time, parse_time

Executions: TypeAlias = list[HookExecution]

_PAGE = 1000

_SLACK = 60 * 10**9
"""Executions are recorded some time after they were, at most this many nanoseconds."""


async def executions(
    engine: Engine,
    tenant: str,
    hook: str | None,
    scope: str | None,
    key: str | None,
    since: Time | None,
    limit: int,
) -> Executions:
    """Executions that were recorded, the latest first.

    Those of a scope are found by its line, and by what is told of it in the line of hooks; without a scope, all that
    was recorded of this tenant is looked through.
    """
    if type(limit) is not int or limit < 0:
        raise InvalidError(f"a limit is a number, not {limit!r}")
    start = 0 if since is None else to_time(parse_time(since, to_datetime(engine.context.clock())))
    asked = _Asked(hook, scope, None if key is None else check_key(key), start, limit)
    if scope is None:
        found = await _all(engine, tenant, asked)
    else:
        found = []
        for line in (*lines_of(scope), scope, LINE):
            found += await _latest(engine, (tenant, line), asked)
    found.sort(key=lambda row: (int(row.columns[0]), row.key), reverse=True)
    return [_opened(engine, row) for row in found[:limit]]


class _Asked(NamedTuple):
    hook: str | None
    scope: str | None
    key: str | None
    since: int
    limit: int

    def means(self, row: Row) -> bool:
        """Whether a row is one of those that are asked for."""
        time, kind, _, action, *_ = row.columns
        if kind != "hook" or int(time) < self.since or self.hook not in (None, action):
            return False
        where, _, what = _target(row)
        return self.scope in (None, where) and self.key in (None, what)


async def _latest(engine: Engine, line: tuple[str, str], asked: _Asked) -> list[Row]:
    """Those of a line, the latest first: ids of steps sort by time."""
    found: list[Row] = []
    stop: tuple[Any, ...] = ()
    while True:
        query = Scan(EVENTS, line, stop=stop, reverse=True, limit=_PAGE)
        (rows,) = await engine.context.backend.read([query])
        found += filter(asked.means, rows)
        if len(rows) < _PAGE or len(found) >= asked.limit or int(rows[-1].columns[0]) < asked.since - _SLACK:
            return found
        stop = rows[-1].key[2:]


async def _all(engine: Engine, tenant: str, asked: _Asked) -> list[Row]:
    """Those of all lines: of as many as there may be, only the latest are kept in mind."""
    found: list[Row] = []
    start: tuple[Any, ...] = ()
    while True:
        (rows,) = await engine.context.backend.read([Scan(EVENTS, (tenant,), start=start, limit=_PAGE)])
        found = nlargest(asked.limit, [*found, *filter(asked.means, rows)], key=lambda row: int(row.columns[0]))
        if len(rows) < _PAGE:
            return found
        *rest, number = rows[-1].key[1:]
        start = (*rest, int(number) + 1)


def _target(row: Row) -> tuple[str, str, str]:
    """The scope and the key that a row tells of."""
    line, target = str(row.key[1]), str(row.columns[4])
    if BETWEEN in target:
        where, _, what = target.rpartition(BETWEEN)
        return place_of(where), BETWEEN, what
    return place_of(line), BETWEEN, target


def _opened(engine: Engine, row: Row) -> HookExecution:
    tenant, line, id, number = row.key
    time, _, actor, action, _, outcome, correlation, cause, duration = row.columns
    scope, _, key = _target(row)
    detail: Mapping[str, Any] = {}
    if row.body:
        packed = open_event(Line(str(tenant), str(line)), str(id), int(number), row.body, engine.context.max_bytes)
        detail = engine.context.codec.unpack(packed)
    return HookExecution(
        str(action),
        scope,
        key,
        str(outcome),
        to_datetime(int(time)),
        int(duration) / 1e9,
        str(actor),
        str(correlation),
        str(cause),
        str(id),
        detail,
    )
