"""The names of lines: of threads, and of the namespaces in them.

A thread's own checkpoints are in the line of the same name. Those of a namespace, such as a subgraph's, are in a line
of their own, `chat-1␟child:6f…`; operations on the whole thread include them. No two pairs of thread and namespace
share a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from holdfast.backends.interface import Backend, Scan
from holdfast.backends.tables import LINES, Key
from holdfast.engine.model.scopes import GLOBAL, KINDS, Scope
from holdfast.engine.model.scopes import MARK as STATE
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError

MARK = "␟"
"""Separates a thread's name from a namespace; doubled where it is part of the thread's own name."""

AGENTS = f"{STATE}agents:"
"""The start of names of lines with agents."""


LineKind: TypeAlias = Literal["thread", "agent", "scope", "session", "system"]
"""The kinds of lines. Those of the system have records of sessions, grants, jobs and the like."""

COUNTS: dict[LineKind, str] = {
    "thread": "threads",
    "agent": "agents",
    "scope": "scopes",
    "session": "sessions",
    "system": "system",
}
"""The fields of reports that count lines of each kind."""


def is_thread(name: str) -> bool:
    """Return whether a line of this name is a thread, or a namespace of one."""
    return not name.startswith(STATE)


def line_kind(name: str) -> LineKind:
    """Return the kind of a line."""
    if is_thread(name):
        return "thread"
    if name.startswith(AGENTS):
        return "agent"
    scope = Scope.of_line(name)
    if scope is None:
        return "system"
    return "session" if any(part.kind == "session" for part in scope.parts) else "scope"


def short_name(name: str) -> str:
    """Return the name that people know a line by: the id of an agent, a scope as text, the name of a thread."""
    return name.removeprefix(AGENTS).removeprefix(STATE)


def count_lines(names: Iterable[str]) -> dict[str, int]:
    """Count lines by kind: `{"threads": 2, "agents": 1, …}`."""
    counts = dict.fromkeys(COUNTS.values(), 0)
    for name in names:
        counts[COUNTS[line_kind(name)]] += 1
    return counts


def name_ranges() -> list[tuple[str, str, str]]:
    """Return the ranges of names that make up all names of lines: a kind as in `COUNTS`, the start, and the end, which
    is empty for the last one.

    Scopes are those of sessions too: a session may be anywhere in the name of a scope.
    """
    kinds = [(f"{STATE}{GLOBAL}", f"{STATE}{GLOBAL}\0", "scopes"), (AGENTS, _after(AGENTS), "agents")]
    kinds += [(prefix, _after(prefix), "scopes") for prefix in (f"{STATE}{kind}:" for kind in KINDS)]
    ranges, at = [("threads", "", STATE)], STATE
    for start, stop, kind in sorted(kinds):
        ranges += [("system", at, start), (kind, start, stop)]
        at = stop
    return [*ranges, ("system", at, _after(STATE)), ("threads", _after(STATE), "")]


async def count_stored(backend: Backend, tenant: str, limit: int | None) -> tuple[dict[str, int], bool]:
    """Count lines by kind, those of sessions as scopes. Returns False if a limit was reached.

    The limit applies only to stores that cannot count, where the lines are read.
    """
    ranges = name_ranges()
    scans = [Scan(LINES, (tenant,), (start,), (stop,) if stop else (), bodies=False) for _, start, stop in ranges]
    totals = {"threads": 0, "agents": 0, "scopes": 0, "system": 0}
    counts = await backend.count_rows(scans)
    if counts is not None:
        for (kind, _, _), count in zip(ranges, counts, strict=True):
            totals[kind] += count
        return totals, True
    (rows,) = await backend.read([Scan(LINES, (tenant,), limit=None if limit is None else limit + 1, bodies=False)])
    by_kind = count_lines(str(row.key[1]) for row in rows[:limit])
    by_kind["scopes"] += by_kind.pop("sessions")
    return totals | by_kind, limit is None or len(rows) <= limit


def _after(prefix: str) -> str:
    """Return the first name after those with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def has_messages(name: str) -> bool:
    """Return whether a line of this name may contain conversations: those of threads and of agents may."""
    return is_thread(name) or name.startswith(AGENTS)


def check_thread(name: str) -> str:
    """Return the name of a thread to save to. `InvalidError` if it is the name of another kind of line."""
    if not is_thread(name):
        raise InvalidError(
            f"names that start with {STATE} are those of state, and no thread's",
            where=repr(name)[:80],
            hint="Change state by store.state(…); choose another name for a thread",
        )
    return name


def thread_name(thread_id: str, namespace: str = "") -> str:
    """Return the name of the line for a thread, or for a namespace in it."""
    check_thread(thread_id)
    if namespace.startswith(MARK):
        raise InvalidError(f"a namespace does not start with {MARK}", where=repr(namespace)[:80])
    name = thread_id.replace(MARK, MARK * 2)
    return name + MARK + namespace if namespace or not thread_id else name


def split_name(name: str) -> tuple[str, str]:
    """Return the thread's id and the namespace of a line's name."""
    thread_id, start = "", 0
    while (at := name.find(MARK, start)) >= 0:
        thread_id += name[start:at]
        if name[at + 1 : at + 2] != MARK:
            return thread_id, name[at + 1 :]
        thread_id, start = thread_id + MARK, at + 2
    return thread_id + name[start:], ""


def root_of(line: Line) -> Line:
    """Return the line of the thread that a namespace's line belongs to; a thread's own line is its root."""
    name, at = line.name, 0
    if not is_thread(name):
        return line  # a scope's name may contain the mark
    while (at := name.find(MARK, at)) >= 0:
        if name[at + 1 : at + 2] != MARK:
            return line._replace(name=name[:at] or MARK)
        at += 2
    return line


def rename_line(line: Line, root: Line, new: Line) -> Line:
    """Return the new name of a thread's line, or of one of its namespaces, when the thread is renamed."""
    rest = line.name if root.name == MARK else line.name[len(root.name) :]
    return new if line == root else new._replace(name=new.name + rest)


def below(root: Line) -> str:
    """Return the prefix of the names of a thread's namespaces. Other names may have it, too."""
    return root.name if root.name == MARK else root.name + MARK


def index_key(tenant: str) -> Key:
    """Return the key of the reference that marks a tenant's text index. It belongs to no line: none has this name."""
    return (tenant, "", "setting", "words", "")
