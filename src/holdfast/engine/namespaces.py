"""The names of lines: of threads, and of the namespaces in them.

A thread's own checkpoints are in the line of the same name. Those of a namespace, such as a subgraph's, are in a line
of their own, `chat-1␟child:6f…`; operations on the whole thread include them. No two pairs of thread and namespace
share a name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import lru_cache
from typing import Literal, TypeAlias

from holdfast.backends.interface import Backend, Get, Scan
from holdfast.backends.tables import DAMAGED_LINE, LINES, Key
from holdfast.engine.model.scopes import GLOBAL, KINDS, Scope
from holdfast.engine.model.scopes import MARK as STATE
from holdfast.engine.row_format import Line, check_name
from holdfast.errors import InvalidError, NotFoundError

_FORM = list(LINES.columns).index("form")

MARK = "␟"
"""Separates a thread's name from a namespace; doubled where it is part of the thread's own name."""

AGENTS = f"{STATE}agents:"
"""The start of names of lines with agents."""

_STEPS_START, _STEPS_END = f"{STATE}agent:", "/steps:main"
"""The start and the end of names of lines with the durable steps of agents."""


ACCESS, AUDIT, HOOKS = f"{STATE}access", f"{STATE}audit", f"{STATE}hooks"
"""The names of the system lines of rights, of the audit, and of records of after-hooks and vetoes."""

RECORD_LINES = (HOOKS, ACCESS, AUDIT)
"""Lines that have no values of users, and events about all scopes and threads."""

KEYS_PLACE, BACKUPS_PLACE, JOBS_PLACE = f"{STATE}keys", f"{STATE}backups", f"{STATE}jobs"
"""Stand for the keys of an encrypted store, for its backups and its jobs, in the audit. There are no lines of these
names."""

LineKind: TypeAlias = Literal["thread", "agent", "scope", "session", "access", "audit", "system"]
"""The kinds of lines: `access` has the rights of identities, `audit` the reads and denied attempts, and those of the
system have records of sessions, artifacts, topics, hooks and the like."""

LineKinds: TypeAlias = LineKind | Literal["all"] | Iterable[LineKind]
"""How callers name kinds of lines: one, several, or all."""

COUNTS: dict[LineKind, str] = {
    "thread": "threads",
    "agent": "agents",
    "scope": "scopes",
    "session": "sessions",
    "access": "system",
    "audit": "system",
    "system": "system",
}
"""The fields of reports that count lines of each kind."""

COUNT_FIELDS = tuple(dict.fromkeys(COUNTS.values()))

ALL_KINDS = frozenset(COUNTS)

CONTENT_KINDS: frozenset[LineKind] = frozenset({"thread", "agent", "scope", "session"})
"""The kinds of lines whose content is the application's own. The others decide who may do what, and prove who did."""


def is_thread(name: str) -> bool:
    """Return whether a line of this name is a thread, or a namespace of one."""
    return not name.startswith(STATE)


def line_kind(name: str) -> LineKind:
    """Return the kind of a line."""
    if is_thread(name):
        return "thread"
    if name.startswith(AGENTS):
        return "agent"
    if name in (ACCESS, AUDIT):
        return "access" if name == ACCESS else "audit"
    scope = Scope.of_line(name)
    if scope is None:
        return "system"
    return "session" if any(part.kind == "session" for part in scope.parts) else "scope"


def short_name(name: str) -> str:
    """Return the name that people know a line by: the id of an agent, a scope as text, the name of a thread."""
    return name.removeprefix(AGENTS).removeprefix(STATE)


def parse_kind(kind: object) -> LineKind:
    """Return the kind of lines that a caller names. `InvalidError` if there is no such kind."""
    for each in COUNTS:
        if each == kind:
            return each
    raise InvalidError(f"the kind of lines must be {', '.join(COUNTS)} or all, not {ascii(kind)[:80]}")


def parse_kinds(kinds: LineKinds) -> frozenset[LineKind]:
    """Return the kinds of lines that a caller names: one, several, or all."""
    if kinds == "all":
        return ALL_KINDS
    found = frozenset(map(parse_kind, [kinds] if isinstance(kinds, str) or not isinstance(kinds, Iterable) else kinds))
    if not found:
        raise InvalidError("no kind of line was given", hint=f"There are {', '.join(COUNTS)}")
    return found


def select_lines(
    names: Iterable[str] | None, kinds: LineKinds | None, default: Iterable[LineKind]
) -> tuple[list[str] | None, frozenset[LineKind]]:
    """Return the names of lines that a caller names by kind, and the kinds. Without names, all lines of the kinds are
    meant, by default those of `default`; names without a kind are those of threads."""
    if names is None:
        return None, frozenset(default) if kinds is None else parse_kinds(kinds)
    chosen = parse_kinds("thread" if kinds is None else kinds)
    if len(chosen) > 1:
        raise InvalidError(
            "lines that are given by name must all be of one kind", where=f"kinds {', '.join(sorted(chosen))}"
        )
    (kind,) = chosen
    return [line_name(name, kind) for name in names], chosen


def line_name(name: str, kind: LineKind = "thread") -> str:
    """Return the name of the line of a kind that people know by a name: the inverse of `short_name`. `InvalidError` if
    no line of the kind has it."""
    if not check_name(name, f"name of a line of kind {kind}" if kind != "thread" else "name of a thread"):
        raise InvalidError("the name of a thread must not be empty" if kind == "thread" else "a name must not be empty")
    if kind == "thread":
        return check_thread(name)
    full = (AGENTS if kind == "agent" else STATE) + name
    if line_kind(full) != kind:
        raise InvalidError(f"no line of kind {kind} has this name", where=repr(name)[:80])
    return full


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


def ranges_of(kinds: frozenset[LineKind]) -> list[tuple[str, str]]:
    """Return the ranges of names in which all lines of some kinds are, and perhaps others."""
    if kinds == ALL_KINDS:
        return [("", "")]
    fields = {_range_field(kind) for kind in kinds}
    return [(start, stop) for field, start, stop in name_ranges() if field in fields]


def _range_field(kind: LineKind) -> str:
    return "scopes" if kind == "session" else COUNTS[kind]


async def count_stored(
    backend: Backend, tenant: str, kinds: frozenset[LineKind], limit: int | None
) -> tuple[dict[str, int], bool]:
    """Count the lines of some kinds, those of sessions as scopes. Returns False if a limit was reached.

    The limit applies only where the lines must be read: in stores that cannot count, and for kinds whose names are
    among those of others.
    """
    totals = {**dict.fromkeys(map(_range_field, COUNTS), 0), "damaged": 0}
    ranges = [each for each in name_ranges() if each[0] in set(map(_range_field, kinds))]
    if all(kind in kinds for kind in COUNTS if _range_field(kind) in set(map(_range_field, kinds))):
        counts = await backend.count_rows(
            [Scan(LINES, (tenant,), (start,), (stop,) if stop else (), bodies=False) for _, start, stop in ranges]
        )
        if counts is not None:
            for (field, _, _), count in zip(ranges, counts, strict=True):
                totals[field] += count
            return totals, True
    read = 0
    for start, stop in ranges_of(kinds):
        most = None if limit is None else limit - read + 1
        (rows,) = await backend.read(
            [Scan(LINES, (tenant,), (start,), (stop,) if stop else (), bodies=False, limit=most)]
        )
        for row in rows if limit is None else rows[: limit - read]:
            if (kind := line_kind(str(row.key[1]))) in kinds:
                totals[_range_field(kind)] += 1
                totals["damaged"] += row.columns[_FORM] == DAMAGED_LINE
        read += len(rows)
        if limit is not None and read > limit:
            return totals, False
    return totals, True


def steps_of(agent: Line) -> Line:
    """Return the line of the durable steps of an agent, by the line of the agent."""
    return agent._replace(name=f"{_STEPS_START}{agent.name.removeprefix(AGENTS)}{_STEPS_END}")


def agent_of(steps: Line) -> Line | None:
    """Return the line of the agent that has these durable steps; None if it is another kind of line."""
    name = steps.name
    if not name.startswith(_STEPS_START) or not name.endswith(_STEPS_END):
        return None
    return steps._replace(name=AGENTS + name[len(_STEPS_START) : -len(_STEPS_END)])


async def with_steps(backend: Backend, lines: AsyncIterator[Line]) -> AsyncIterator[Line]:
    """Yield lines, and then those of the durable steps of the agents among them: who has the agent without its steps
    would run them again."""
    steps, known = list[Line](), set[Line]()
    async for line in lines:
        yield line
        if line.name.startswith(AGENTS):
            steps.append(steps_of(line))
        elif agent_of(line) is not None:
            known.add(line)
    missing = [tuple(line) for line in steps if line not in known]
    (rows,) = await backend.read([Get(LINES, missing)]) if missing else ([],)
    for row in rows:
        yield Line(*map(str, row.key))


def _after(prefix: str) -> str:
    """Return the first name after those with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def has_messages(name: str) -> bool:
    """Return whether a line of this name may contain conversations: those of threads and of agents may."""
    return is_thread(name) or name.startswith(AGENTS)


def check_thread(name: str) -> str:
    """Return the name of a thread. `InvalidError` if it is the name of another kind of line."""
    if not is_thread(name):
        raise InvalidError(
            f"the name of a thread cannot start with {STATE}, which is reserved for state and the store's own records",
            where=repr(name)[:80],
            hint="Use store.state(…), store.agents, store.audit …; choose another name for a thread",
        )
    return name


@lru_cache(1024)
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


def pruned_error(line: Line) -> NotFoundError:
    """Return the error for a step of which only a stub is left."""
    return NotFoundError(
        "the checkpoint was pruned", where=f"thread {line}", hint="See log() for the existing checkpoints"
    )


def missing_line_error(line: Line) -> NotFoundError:
    """Return the error for a line that does not exist."""
    return NotFoundError(
        "there is no such thread, or it has no checkpoint yet", where=f"thread {line}", hint="See threads()"
    )
