"""The data of the overview and of the list of threads."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from holdfast.engine.thread_sizes import ThreadOrder
from holdfast.engine.thread_status import STATES
from holdfast.engine.types import ThreadInfo
from holdfast.errors import InvalidError
from holdfast.interfaces.http.admin_routes import get_status
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.attention import Reads, list_attention
from holdfast.interfaces.web.bulk_page import offered_in_bulk
from holdfast.interfaces.web.plots import Line, draw_line
from holdfast.interfaces.web.subgraphs import nest

_READ = 2000
"""How many threads are read to find those that changed last."""

_RECENT = 8
_LARGEST = 5
DAYS = 14
_GROWTH_DAYS = 30
PAGE = 100
_EXAMINED, _EXAMINED_FURTHER = 250, 5000
"""How many threads and checkpoints a query that no index answers reads at once, and how many where it goes on."""

ORDERS: Sequence[ThreadOrder] = ("updated", "name", "steps", "branches", "size")


class DayBar(NamedTuple):
    """A day in a chart: how many of something there were."""

    day: str
    number: int
    height: int


class Growth(NamedTuple):
    """The number of threads over the last weeks, and what those that were created in them have."""

    line: Line | None
    before: int
    now: int
    since: str
    threads: int
    steps: int
    bytes: int


def overview_values(call: Call) -> dict[str, Any]:
    """Return what the overview shows."""
    reads = Reads()
    threads, complete = reads.attempt("Threads", lambda: _read_threads(call)) or ([], True)
    status = reads.attempt("Status", lambda: get_status(call))
    jobs = reads.attempt("Jobs", lambda: list(call.owned.jobs.list())) or []
    recent: Sequence[ThreadInfo] = (
        reads.attempt("Threads", lambda: call.store.threads(order="updated", preview=True, limit=_RECENT)) or []
    )
    return {
        "status": status,
        "recent": recent,
        "largest": reads.attempt("Threads", lambda: call.store.threads(order="size", limit=_LARGEST)) or [],
        "threads": len(threads),
        "complete": complete,
        "steps": sum(each.steps for each in threads),
        "days": _days(threads),
        "growth": _growth(threads),
        "today": sum(each.updated > datetime.now(UTC) - timedelta(days=1) for each in threads),
        "attention": list_attention(call, jobs, reads),
    }


def _read_threads(call: Call) -> tuple[Sequence[ThreadInfo], bool]:
    page = call.store.threads(order="updated", limit=_READ)
    return page, page.next is None


def _days(threads: Sequence[ThreadInfo]) -> list[DayBar]:
    return draw_days(Counter(each.updated.date() for each in threads))


def draw_days(numbers: Mapping[date, int]) -> list[DayBar]:
    """Draw a number for each of the last days."""
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]
    counts = [numbers.get(day, 0) for day in days]
    most = max(1, *counts)
    return [DayBar(f"{day:%d %b}", count, round(48 * count / most)) for day, count in zip(days, counts, strict=True)]


def draw_growth(call: Call) -> tuple[Growth | None, list[DayBar], bool]:
    """Return how the number of threads grew, how many changed on each of the last days, and whether that is of all."""
    threads, complete = _read_threads(call)
    return _growth(threads), _days(threads), complete


def _growth(threads: Sequence[ThreadInfo]) -> Growth | None:
    """Return how the number of threads grew, by the days on which they were created; None if there are none."""
    if not threads:
        return None
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(_GROWTH_DAYS, -1, -1)]
    created = sorted(each.created.date() for each in threads)
    totals = [(day.toordinal(), bisect_right(created, day)) for day in days]
    recent = [each for each in threads if each.created.date() > days[0]]
    return Growth(
        draw_line(totals),
        totals[0][1],
        len(threads),
        f"{days[0]:%d %b}",
        len(recent),
        sum(each.steps for each in recent),
        sum(each.bytes for each in recent),
    )


def thread_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of threads shows: a page of it, in one of the orders of the store."""
    prefix, where, sort = params.get("prefix", ""), params.get("where", "").strip(), params.get("sort", "updated")
    order: ThreadOrder = next((each for each in ORDERS if each == sort), "updated")
    status = next((each for each in STATES if each == params.get("status")), None)
    values: dict[str, Any] = {"prefix": prefix, "where": where, "sort": order, "status": status, "items": []}
    values |= {"problem": None, "orders": ORDERS, "statuses": STATES, "next": None, "stopped": False}
    values |= {"filtered": bool(prefix or where or status), "bulk": offered_in_bulk(call)}
    cursor = params.get("cursor") or None
    try:
        page = call.store.threads(
            prefix=prefix,
            where=where or None,
            status=status,
            order=order,
            preview=True,
            limit=PAGE,
            cursor=cursor,
            scan_limit=_EXAMINED_FURTHER if cursor else _EXAMINED,
        )
    except InvalidError as error:
        return {**values, "problem": to_problem(error)}
    nested = order in ("updated", "name")  # a largest thread is not below a smaller one
    stopped = len(page) < PAGE and page.next is not None
    return {**values, "items": nest(page) if nested else page, "next": page.next, "stopped": stopped}
