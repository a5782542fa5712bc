"""The history of a thread as `holdfast log` shows it: checkpoint by checkpoint, with branches, tags and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from holdfast._fields import Hidden, Internal, Label, computed
from holdfast._named_tuple import NamedTuple
from holdfast.backends.runtime.drivers import run
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.lines import MAIN
from holdfast.engine.types import Revision, to_datetime
from holdfast.errors import InvalidError
from holdfast.history.log_walk import LogWalk, StepLabels, StepNames, VisitedStep, abbreviations
from holdfast.history.revisions import find_step
from holdfast.history.step_summary import changed_channels, has_failed_tool, last_message, nodes_of, summarize
from holdfast.store.thread import Thread
from holdfast.store.thread_access import thread_access

if TYPE_CHECKING:
    from holdfast.history.search import SearchRun


class ThreadCaller(Protocol):
    """Calls a function of a thread where its store is."""

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call it, and return its result."""


def caller_of(thread: Thread) -> ThreadCaller | None:
    """Return what calls functions of a thread of a served store; None for a thread of a store in this process."""
    caller: ThreadCaller | None = getattr(thread, "_caller", None)
    return caller


_FIRST, _MORE = 32, 256
"""How many checkpoints are read at a time: at first, so that output starts at once, and later."""

SHORTEST = 8
"""The least number of characters of a short id."""


class LogDetails(NamedTuple):
    """The changes of a step in a log that another process has read."""

    summary: list[str]
    whole_summary: list[str]
    """With internal channels."""
    message: str
    changed: list[str]
    failed: bool = False
    nodes: Sequence[str] = ()


class LogPage(NamedTuple):
    """Checkpoints of a log, and where the next page starts; None at the end."""

    entries: list[LogEntry]
    cursor: str | None
    damaged: bool


class LogEntry(NamedTuple):
    """A checkpoint in a log.

    `short` is a prefix of its id that is unique in the thread; `revision` its number as a revision, such as `#12` or
    `draft#12`; `names` are the branches, tags and labels that lead to it. It `matches` unless it was pruned or the
    query does not find it. `position` and `parents` are equal for equal checkpoints. `damage` says why it cannot be
    read.
    """

    thread: str
    id: str
    short: Hidden[str]
    revision: str
    names: Internal[StepNames]
    matches: Hidden[bool]
    position: Hidden[str]
    parents: Hidden[tuple[str, ...]]
    parent_ids: Hidden[list[str | None]]
    branch: Hidden[int]
    branch_name: Annotated[str, Label("branch")]
    step: int
    time: datetime
    kind: str
    hash: Hidden[str]
    damage: str
    visit: Internal[VisitedStep | LogDetails]
    metadata: Mapping[str, Any] = {}
    schema: str = ""
    actor: str = ""
    """The identity that saved it; empty for the store's owner."""
    correlation: Hidden[str] = ""
    cause: Hidden[str] = ""

    @property
    @computed
    def head(self) -> bool:
        """Whether it is HEAD."""
        return self.names.head

    @property
    @computed
    def branches(self) -> list[str]:
        """The branches that end with it."""
        return self.names.branches

    @property
    @computed
    def tags(self) -> list[str]:
        """Its tags."""
        return self.names.tags

    @property
    @computed
    def labels(self) -> list[str]:
        """Its labels."""
        return self.names.labels

    @property
    @computed
    def summary(self) -> list[str]:
        """Its changes in short: `messages +2`, `plan ~1`, `count=3`, `-draft`."""
        return self.summarize()

    def summarize(self, *, hidden: bool = False) -> list[str]:
        """Return the changes in short, also those of internal channels if `hidden`."""
        if isinstance(self.visit, LogDetails):
            return self.visit.whole_summary if hidden else self.visit.summary
        return [] if self.visit.step is None else summarize(self.visit.step, hidden=hidden)

    @property
    @computed
    def message(self) -> str:
        """The last message that it added, with its role; empty if it added none."""
        if isinstance(self.visit, LogDetails):
            return self.visit.message
        return "" if self.visit.step is None else last_message(self.visit.step)

    @property
    @computed
    def changed(self) -> list[str]:
        """The channels that it changed."""
        if isinstance(self.visit, LogDetails):
            return self.visit.changed
        return [] if self.visit.step is None else changed_channels(self.visit.step)

    @property
    @computed
    def failed(self) -> Hidden[bool]:
        """Whether it added the result of a tool that failed."""
        if isinstance(self.visit, LogDetails):
            return self.visit.failed
        return self.visit.step is not None and has_failed_tool(self.visit.step)

    @property
    @computed
    def nodes(self) -> Hidden[list[str]]:
        """The nodes of a graph whose work it stored."""
        if isinstance(self.visit, LogDetails):
            return list(self.visit.nodes)
        return [] if self.visit.step is None else nodes_of(self.visit.step)


class LogReader:
    """Reads the checkpoints that lead to some others, the latest first, page by page."""

    def __init__(self, thread: Thread, *, first_parents: bool = False, where: str | None = None) -> None:
        self.damaged: bool = False
        """Whether an entry so far could not be read."""
        self._served = None
        if (caller := caller_of(thread)) is not None:
            self._served = ServedLog(caller, first_parents, where)
            return
        self._engine, self._line = thread._engine, thread._line
        self._handle = thread._handle
        self._labels = StepLabels(self._engine, self._line)
        self._first_parents = first_parents
        self._query: SearchRun | None = None
        if where is not None:
            from holdfast.history.search import prepare

            self._query = prepare(self._engine, self._line.tenant, where, None)

    def start(self, at: Revision | None = None, *, all_branches: bool = False, cursor: str | None = None) -> None:
        """Start at a revision, at the latest checkpoint, at the heads of all branches, or where `cursor` resumes."""
        if self._served is not None:
            self._served.start(at, all_branches, cursor)
            return
        run(self._start(at, all_branches, cursor))

    async def _start(self, at: Revision | None, all_branches: bool, cursor: str | None) -> None:
        async with thread_access(self._handle, self._line, ["read"]):
            labels = self._labels
            await labels.load()
            self._graph = BranchGraph(labels.branches)
            self._walk = LogWalk(self._engine, self._line, labels.branches, first_parents=self._first_parents)
            if cursor is not None:
                await self._walk.start(_parse_cursor(cursor))
            elif all_branches:
                await self._walk.start(await labels.ends())
            else:
                point = labels.head if at is None else await find_step(self._engine, self._line, at)
                await self._walk.start([] if point is None else [Position(point.branch, point.seq)])

    def entries(self) -> Iterator[LogEntry]:
        """Yield the checkpoints, also those that do not match."""
        size = _FIRST
        while page := self.page(size):
            yield from page
            size = min(2 * size, _MORE)

    def page(self, limit: int) -> list[LogEntry]:
        """Return the next checkpoints, also those that do not match; none at the end."""
        if self._served is not None:
            page = self._served.page(limit)
            self.damaged |= page.damaged
            return page.entries
        return run(self._page(limit))

    @property
    def cursor(self) -> str | None:
        """Where another reader resumes after the last page: `start(cursor=…)`. None at the end."""
        if self._served is not None:
            return self._served.cursor
        return ",".join(f"{branch}.{seq}" for branch, seq in self._walk.frontier) or None

    async def _page(self, size: int) -> list[LogEntry]:
        async with thread_access(self._handle, self._line, ["read"]):
            visits = await self._walk.page(size)
            ids = [visit.point.id for visit in visits if visit.point.id]
            short = dict(zip(ids, await abbreviations(self._engine, self._line, ids, SHORTEST), strict=True))
            labels, matches = await self._labels.of(visits), await self._matches(visits)
        self.damaged |= any(visit.damage for visit in visits)
        return [
            self._entry(visit, short.get(visit.point.id, ""), names, found)
            for visit, names, found in zip(visits, labels, matches, strict=True)
        ]

    def _entry(self, visit: VisitedStep, short: str, names: StepNames, matches: bool) -> LogEntry:
        point = visit.point
        header = None if visit.step is None else visit.step.header
        said = {}
        if header is not None:
            said = {"schema": header.schema, "metadata": self._engine.context.codec.unpack(header.metadata)}
            said |= {name: getattr(header.origin, name) for name in ("actor", "correlation", "cause")}
        return LogEntry(
            thread=self._line.name,
            id=point.id,
            short=short,
            revision=self._revision(visit),
            names=names,
            matches=matches,
            position=_position(visit.position),
            parents=tuple(map(_position, visit.parents)),
            parent_ids=[self._walk.ids.get(parent) or None for parent in visit.parents],
            branch=point.branch,
            branch_name=self._labels.name(point.branch),
            step=point.depth,
            time=to_datetime(point.time),
            kind=point.kind,
            hash=point.hash.hex(),
            damage=visit.damage,
            visit=visit,
            **said,
        )

    def _revision(self, visit: VisitedStep) -> str:
        head, depth = self._labels.head, visit.point.depth
        if head is not None and depth <= head.depth:
            ahead = head.depth - depth
            on_branch = Position(head.branch, head.seq - ahead)
            if visit.position == (on_branch if on_branch.seq >= 0 else self._graph.along(head.branch, depth)):
                return f"#{depth}"
        name = self._labels.branch_name(visit.point.branch)
        return f"{name}#{depth}" if name else ""

    async def _matches(self, visits: Sequence[VisitedStep]) -> list[bool]:
        rows = [visit.row for visit in visits if visit.point.id]
        if self._query is None or not rows:
            return [bool(visit.point.id) for visit in visits]
        found = iter(await self._query.match_rows(self._line, rows))
        return [bool(visit.point.id) and next(found) for visit in visits]


class ServedLog:
    """The log of a thread of a served store: the server reads each page."""

    def __init__(self, caller: ThreadCaller, first_parents: bool, where: str | None) -> None:
        self._caller = caller
        self._options: dict[str, Any] = {"first_parents": first_parents, "where": where}
        self._first: LogPage | None = None
        self._ended = False
        self.cursor: str | None = None

    def start(self, at: Revision | None, all_branches: bool, cursor: str | None) -> None:
        """Read the first page, so that what is wrong is reported now."""
        self._first = self._read(_FIRST, at=at, all_branches=all_branches, cursor=cursor)

    def page(self, limit: int) -> LogPage:
        """Return the next checkpoints."""
        found, self._first = self._first, None
        if found is None:
            found = LogPage([], None, False) if self._ended else self._read(limit, cursor=self.cursor)
        return found

    def _read(self, limit: int, **options: Any) -> LogPage:
        found: LogPage = self._caller.call("read_log_page", limit, **self._options, **options)
        self.cursor, self._ended = found.cursor, found.cursor is None
        return found


def read_log_page(
    thread: Thread,
    limit: int,
    *,
    first_parents: bool = False,
    where: str | None = None,
    at: Revision | None = None,
    all_branches: bool = False,
    cursor: str | None = None,
) -> LogPage:
    """Read a page of a log for another process: with what the log shows of each step, and not the step itself."""
    reader = LogReader(thread, first_parents=first_parents, where=where)
    reader.start(at, all_branches=all_branches, cursor=cursor)
    entries = reader.page(max(1, min(limit, _MORE)))
    return LogPage([each._replace(visit=_details(each)) for each in entries], reader.cursor, reader.damaged)


def _details(entry: LogEntry) -> LogDetails:
    whole = entry.summarize(hidden=True)
    return LogDetails(entry.summary, whole, entry.message, entry.changed, entry.failed, entry.nodes)


def _position(position: Position) -> str:
    return f"{position.branch}.{position.seq}"


def _parse_cursor(cursor: str) -> list[Position]:
    try:
        return [Position(int(branch), int(seq)) for branch, seq in (each.split(".") for each in cursor.split(","))]
    except ValueError:
        raise InvalidError(
            "the cursor is not one of this log", where=repr(cursor)[:80], hint="Pass the cursor of a reader"
        ) from None


def branch_names(thread: Thread) -> dict[int, str]:
    """Return the names of branches by number, without reading anything else of them. Raises `NotFoundError`."""
    if (caller := caller_of(thread)) is not None:
        served: dict[int, str] = caller.call("branch_names")
        return served

    async def read() -> dict[int, str]:
        async with thread_access(thread._handle, thread._line, ["read"]):
            await thread._lines.info(thread._line)
            others = {each.branch: each.name for each in await thread._lines.branches(thread._line)}
            return {0: "" if MAIN.name in others.values() else MAIN.name, **others}

    return run(read())


def short_ids(thread: Thread, ids: Sequence[str]) -> dict[str, str]:
    """Return prefixes of ids that are unique in their thread."""
    if (caller := caller_of(thread)) is not None:
        served: dict[str, str] = caller.call("short_ids", list(ids))
        return served

    async def read() -> dict[str, str]:
        async with thread_access(thread._handle, thread._line, ["read"]):
            unique = list(dict.fromkeys(ids))
            short = await abbreviations(thread._engine, thread._line, unique, SHORTEST)
            return dict(zip(unique, short, strict=True))

    return run(read())
