"""The data of the overview and of the list of threads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.types import ThreadInfo
from holdfast.errors import CorruptError, DeniedError, HoldfastError, InvalidError
from holdfast.interfaces.http.admin_routes import get_status
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.page_renderer import segment, shell_text
from holdfast.interfaces.web.plots import Line, draw_line
from holdfast.maintenance.jobs.job import Job

T = TypeVar("T")

_READ = 2000
"""How many threads are read to find those that changed last."""

_LOOK_SECONDS = 0.3
"""How long one view of the overview looks for credentials; the next one goes on."""

_RECENT = 8
_DAYS = 14
_GROWTH_DAYS = 30
PAGE = 100
ORDERS = ("name", "updated", "steps", "branches", "size")


class DayBar(NamedTuple):
    """A day in the chart of activity."""

    day: str
    threads: int
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


class AttentionItem(NamedTuple):
    """Something that somebody should look at."""

    what: str
    why: str
    command: str
    """What to do, in one line or several."""
    address: str = ""
    """The page that has more of it."""


class _Reads:
    """Reads parts of the overview. A part that is damaged is left out, and said to be."""

    def __init__(self) -> None:
        self.damage: list[AttentionItem] = []

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Read a part; None if it is damaged, or the store owner's."""
        try:
            return read()
        except CorruptError as error:
            problem = to_problem(error)
            why, command = f"{problem.detail}. {problem.hint}", f"holdfast explain {problem.code}"
            self.damage.append(AttentionItem(f"{what} cannot be read", why, command))
        except DeniedError:
            pass
        return None


def overview_values(call: Call) -> dict[str, Any]:
    """Return what the overview shows."""
    reads = _Reads()
    threads, complete = reads.attempt("Threads", lambda: _read_threads(call)) or ([], True)
    status = reads.attempt("Status", lambda: get_status(call))
    jobs = reads.attempt("Jobs", lambda: list(call.owned.jobs.list())) or []
    recent = sorted(threads, key=lambda each: each.updated, reverse=True)[:_RECENT]
    return {
        "status": status,
        "recent": recent,
        "largest": sorted(threads, key=lambda each: each.bytes, reverse=True)[:5],
        "threads": len(threads),
        "complete": complete,
        "steps": sum(each.steps for each in threads),
        "days": _days(threads),
        "growth": _growth(threads),
        "today": sum(each.updated > datetime.now(UTC) - timedelta(days=1) for each in threads),
        "attention": [*_attention(call, jobs, reads), *reads.damage],
    }


def _read_threads(call: Call) -> tuple[Sequence[ThreadInfo], bool]:
    page = call.store.threads(limit=_READ)
    return page, page.next is None


def _days(threads: Sequence[ThreadInfo]) -> list[DayBar]:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(_DAYS - 1, -1, -1)]
    counts = [sum(each.updated.date() == day for each in threads) for day in days]
    most = max(1, *counts)
    return [DayBar(f"{day:%d %b}", count, round(48 * count / most)) for day, count in zip(days, counts, strict=True)]


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


def _attention(call: Call, jobs: Sequence[Job], reads: _Reads) -> list[AttentionItem]:
    alerts = reads.attempt("Alerts", lambda: list(call.owned.alerts.list())) or []
    found = [
        AttentionItem(f"Alert {each.rule}", each.message, f"holdfast explain {each.rule}", "/jobs")
        for each in alerts
        if each.state == "firing" and each.rule != "credentials"  # below, with the places
    ]
    noticed = reads.attempt("Credentials", lambda: call.owned.redaction.credentials(seconds=_LOOK_SECONDS))
    if noticed is not None and noticed.findings:
        found.append(AttentionItem("Credentials", noticed.describe(), "\n".join(noticed.remedies)))
    for job in jobs:
        if job.failures:
            last = job.runs[0].error or job.runs[0].summary if job.runs else ""
            why = f"failed {job.failures} times in a row. {last}"
            command = f"holdfast jobs log {shell_text(job.name)}"
            found.append(AttentionItem(f"Job {job.name}", why, command, f"/jobs/{segment(job.name)}"))
    try:
        for agent in reads.attempt("Agents", lambda: list(call.store.agents.list(pending=True, limit=5))) or ():
            what, why = f"Agent {agent.id}", f"left something half-done: {agent.pending}"
            command = f"holdfast agent resolve {shell_text(agent.id)}"
            found.append(AttentionItem(what, why, command, f"/agents/{segment(agent.id)}"))
    except HoldfastError:
        pass  # the agents of others are not shown
    return found


def thread_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of threads shows: by name in pages, or in another order of the first ones."""
    prefix, where, sort = params.get("prefix", ""), params.get("where", "").strip(), params.get("sort", "name")
    sort = sort if sort in ORDERS else "name"
    values: dict[str, Any] = {"prefix": prefix, "where": where, "sort": sort, "items": [], "next": None}
    values |= {"problem": None, "complete": True, "orders": ORDERS, "filtered": bool(prefix or where)}
    limit = PAGE if sort == "name" else _READ
    try:
        page = call.store.threads(prefix=prefix, where=where or None, limit=limit, cursor=params.get("cursor") or None)
    except InvalidError as error:
        return {**values, "problem": to_problem(error)}
    items = list(page)
    if sort != "name":
        keys: dict[str, Any] = {
            "updated": lambda each: each.updated,
            "steps": lambda each: each.steps,
            "branches": lambda each: each.branches,
            "size": lambda each: each.bytes,
        }
        values["complete"] = page.next is None
        items = sorted(items, key=keys[sort], reverse=True)[:PAGE]
        return {**values, "items": items}
    return {**values, "items": items, "next": page.next}
