"""`holdfast log`: the history of a thread, as git shows that of a repository."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.backends.runtime.drivers import run
from holdfast.engine.branch_graph import Position
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.history.log_walk import LogWalk, StepLabels, VisitedStep, abbreviations
from holdfast.history.revisions import resolve
from holdfast.interfaces.cli.base import CliCommand, CliContext, all_channels_option, command
from holdfast.interfaces.cli.completion_types import BRANCH, REVISION, THREAD
from holdfast.interfaces.cli.exit_codes import INTEGRITY
from holdfast.interfaces.cli.formatting import ago, cut, first_line, local, safe
from holdfast.interfaces.cli.step_summary import changed, said, summary

if TYPE_CHECKING:
    from holdfast.engine.model.steps import Step
    from holdfast.history.diff_result import Diff
    from holdfast.history.search import SearchRun
    from holdfast.interfaces.cli.graph import GraphDrawing
    from holdfast.store.store import Store

_FIRST, _MORE = 32, 256
"""How many checkpoints are read at a time: at first, so that something is seen at once, and then."""

_USUAL = ("save", "update", "loop")
"""The kinds that checkpoints have as a rule: they say nothing."""

SHORTEST = 8
"""How many characters of an id are shown at least."""


class LogCommand(CliCommand):
    """Takes `-3` for `-n 3`, as git does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        plain = args.index("--") if "--" in args else len(args)
        args[:plain] = [f"-n{each[1:]}" if re.fullmatch(r"-[0-9]+", each) else each for each in args[:plain]]
        return super().parse_args(ctx, args)


@command("log", cls=LogCommand)
@click.argument("thread", type=THREAD)
@click.argument("revision", type=REVISION, required=False)
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="Show so many at most; -3 is -n 3.")
@click.option("--oneline", is_flag=True, help="One line for each checkpoint.")
@click.option("--graph", is_flag=True, help="Draw how branches leave and come together.")
@click.option("--branch", type=BRANCH, metavar="NAME", help="The history of this branch.")
@click.option("--all", "everything", is_flag=True, help="The checkpoints of all branches.")
@click.option("--first-parent", is_flag=True, help="Of a merge, follow its own branch only.")
@click.option("--where", metavar="QUERY", help="Show those that a query finds; see holdfast help grep.")
@click.option("-p", "--patch", is_flag=True, help="Show what each checkpoint changed.")
@all_channels_option
def log(
    session: CliContext,
    thread: str,
    revision: str | None,
    limit: int | None,
    oneline: bool,
    graph: bool,
    branch: str | None,
    everything: bool,
    first_parent: bool,
    where: str | None,
    patch: bool,
    all_channels: bool,
) -> None:
    """Show the history of a thread, the latest checkpoint first.

    It starts at the latest checkpoint, at a REVISION (a branch, a name, the start of an id, HEAD~2, @{yesterday}), or
    with --all at the ends of all branches.

    \b
    holdfast log chat --oneline --graph --all
    holdfast log chat -3 -p
    holdfast log chat draft~2 --where 'role:human time>2h'
    """
    if (revision is not None) + (branch is not None) + everything > 1:
        raise InvalidError("a history starts in one way", hint="Give a revision, --branch or --all")
    store = session.open()
    history = LogReader(store, thread, first_parent, where)
    history.start(revision if branch is None else branch, everything)
    shown = LogWriter(session, history, LogOptions(oneline, graph, patch, all_channels))
    left = limit
    for entry in history.entries():
        if left == 0:
            break
        if not entry.wanted:
            shown.skip(entry)
            continue
        shown.write(entry)
        left = None if left is None else left - 1
    if history.damaged:
        raise click.exceptions.Exit(INTEGRITY)


class LogOptions(NamedTuple):
    """How a log is shown."""

    oneline: bool = False
    graph: bool = False
    patch: bool = False
    all_channels: bool = False


class LoggedStep(NamedTuple):
    """A checkpoint in a log: how it is called for short, and what leads to it by name."""

    visit: VisitedStep
    short: str
    labels: list[str]
    wanted: bool


class LogReader:
    """The checkpoints that lead to some others, the latest first, read from the store page by page."""

    def __init__(self, store: Store, thread: str, first_parent: bool = False, where: str | None = None) -> None:
        self.store = store
        self.line = Line(store.tenant, thread)
        self.damaged = False
        self.labels = StepLabels(store._engine, self.line)
        self._first_parent = first_parent
        self._asked: SearchRun | None = None
        if where is not None:
            from holdfast.history.query import parse
            from holdfast.history.search import SearchRun

            self._asked = SearchRun(store._engine, store.tenant, parse(where))

    def start(self, revision: str | None, everything: bool) -> None:
        """Find where to start."""
        run(self._start(revision, everything))

    async def _start(self, revision: str | None, everything: bool) -> None:
        engine = self.store._engine
        labels = self.labels
        await labels.load()
        self.walk = LogWalk(engine, self.line, labels.branches, first_parents=self._first_parent)
        if everything:
            await self.walk.start(await labels.ends())
        else:
            point = labels.head if revision is None else await resolve(engine, self.line, revision)
            await self.walk.start([] if point is None else [Position(point.branch, point.seq)])

    def entries(self) -> Iterator[LoggedStep]:
        """The checkpoints, one by one. Those that a query does not find, and stubs, are not `wanted`."""
        size = _FIRST
        while True:
            page = run(self._page(size))
            if not page:
                return
            yield from page
            size = min(2 * size, _MORE)

    async def _page(self, size: int) -> list[LoggedStep]:
        engine = self.store._engine
        visits = await self.walk.page(size)
        ids = [visit.point.id for visit in visits if visit.point.id]
        short = dict(zip(ids, await abbreviations(engine, self.line, ids, SHORTEST), strict=True))
        labels = await self.labels.of(visits)
        wanted = await self._wanted(visits)
        self.damaged |= any(visit.damage for visit in visits)
        return [
            LoggedStep(visit, short.get(visit.point.id, ""), found, asked)
            for visit, found, asked in zip(visits, labels, wanted, strict=True)
        ]

    async def _wanted(self, visits: Sequence[VisitedStep]) -> list[bool]:
        """Which ones are shown: those that are there, if a query finds them."""
        there = [visit.row for visit in visits if visit.point.id]
        if self._asked is None or not there:
            return [bool(visit.point.id) for visit in visits]
        found = iter(await self._asked.match_rows(self.line, there))
        return [bool(visit.point.id) and next(found) for visit in visits]


class LogWriter:
    """Writes the entries of a log."""

    def __init__(self, session: CliContext, history: LogReader, options: LogOptions) -> None:
        self._session = session
        self._history = history
        self._options = options
        self._out = session.out
        self._graph: GraphDrawing | None = None
        if session.json:
            return
        self._out.page()
        if options.graph:
            from holdfast.interfaces.cli.graph import GraphDrawing

            columns = self._out.columns
            self._graph = GraphDrawing(self._out.style, max(10, columns // 2) if columns else 0)
        self._now = datetime.now(UTC)
        self._first = True

    def write(self, entry: LoggedStep) -> None:
        """Write a checkpoint."""
        if self._session.json:
            self._session.emit(self._record(entry))
        elif self._options.oneline:
            self._lines(entry, [self._oneline(entry), *self._patch(entry)])
        else:
            self._lines(entry, [*self._paragraph(entry), *self._patch(entry)])

    def _lines(self, entry: LoggedStep, lines: list[str]) -> None:
        visit, out = entry.visit, self._out
        if self._graph is None:
            if not self._first and not self._options.oneline:
                out.line()
            self._first = False
            for line in lines:
                out.line(line)
            return
        before, beside, after = self._graph.step(visit.position, visit.parents)
        for line in before:
            out.line(line.rstrip())
        out.line(f"{beside}{lines[0]}")
        rest = [*lines[1:], *([] if self._options.oneline else [""])]
        for bend in after:
            out.line(f"{bend} {rest.pop(0)}".rstrip() if rest else bend.rstrip())
        for line in rest:
            out.line(f"{self._graph.beside() or '  '}{line}".rstrip())

    def skip(self, entry: LoggedStep) -> None:
        """Pass by a checkpoint that is not shown."""
        if self._graph is not None:
            self._graph.replace(entry.visit.position, entry.visit.parents)

    # As people read it ----------------------------------------------------------------------------------------

    def _labelled(self, labels: list[str]) -> str:
        if not labels:
            return ""
        style = self._out.style
        named = [style(safe(label), "bold", _label_color(label)) for label in labels]
        comma = style(", ", "yellow")
        return f" {style('(', 'yellow')}{comma.join(named)}{style(')', 'yellow')}"

    def _oneline(self, entry: LoggedStep) -> str:
        visit, style = entry.visit, self._out.style
        point = visit.point
        head = f"{style(safe(entry.short), 'yellow')}{self._labelled(entry.labels)}"
        if visit.step is None:
            return f"{head} {style('damaged', 'red')}: {safe(first_line(visit.damage))}"
        kind = "" if point.kind in _USUAL else f"{safe(point.kind)}: "
        what, words = self._changed(visit.step), safe(said(visit.step))
        what = f"{words} {style(f'[{what}]', 'dim')}" if words else what
        return f"{head} {kind}{what} {style(f'({ago(to_datetime(point.time), self._now)})', 'green')}"

    def _changed(self, step: Step) -> str:
        return ", ".join(map(safe, summary(step, hidden=self._options.all_channels))) or "no change"

    def _paragraph(self, entry: LoggedStep) -> Iterator[str]:
        visit, style = entry.visit, self._out.style
        point = visit.point
        yield f"{style('checkpoint ' + safe(point.id), 'yellow')}{self._labelled(entry.labels)}"
        if len(visit.parents) > 1:
            ids = [self._history.walk.ids.get(parent) or "(pruned)" for parent in visit.parents]
            yield f"Merge:    {' '.join(map(safe, ids))}"
        yield f"Step:     {point.depth} on {safe(self._history.labels.name(point.branch))}"
        moment = to_datetime(point.time)
        yield f"Date:     {local(moment)} ({ago(moment, self._now)})"
        yield f"Kind:     {safe(point.kind)}"
        if visit.step is None:
            yield f"{style('Damaged:', 'red')}  {safe(visit.damage)}"
            return
        if point.metadata:
            yield f"Metadata: {safe(cut(point.metadata, 400))}"
        yield ""
        if words := said(visit.step):
            yield f"    {safe(words)}"
        yield f"    {self._changed(visit.step)}"

    def _patch(self, entry: LoggedStep) -> list[str]:
        if not self._options.patch or entry.visit.step is None:
            return []
        from holdfast.interfaces.cli.patches import painted

        try:
            found = self._difference(entry)
        except NotFoundError as gone:
            return ["", f"    ({safe(gone.what)})"]  # what it changed is not known any more; the others are shown
        found = found if self._options.all_channels else found.without_internal()
        return ["", *("    " + painted(self._out, line) if line else "" for line in found.lines())]

    # As programs read it --------------------------------------------------------------------------------------

    def _record(self, entry: LoggedStep) -> dict[str, Any]:
        visit, walk = entry.visit, self._history.walk
        point, step = visit.point, visit.step
        parents = [walk.ids.get(parent) or None for parent in visit.parents]
        record: dict[str, Any] = {
            "thread": self._history.line.name,
            "id": point.id,
            "parents": parents,
            "branch": point.branch,
            "branch_name": self._history.labels.name(point.branch),
            "step": point.depth,
            "time": to_datetime(point.time),
            "kind": point.kind,
            "hash": point.hash.hex(),
            "labels": entry.labels,
        }
        if step is None:
            return {**record, "damage": visit.damage}
        codec = self._history.store._engine.context.codec
        record |= {"metadata": codec.unpack(step.header.metadata), "changed": changed(step)}
        if self._options.patch:
            try:
                record["patch"] = self._difference(entry, large=True).patch()
            except NotFoundError:
                record["patch"] = None  # what it follows was pruned
        return record

    def _difference(self, entry: LoggedStep, *, large: bool = False) -> Diff:
        """What a checkpoint changed. A patch cannot do without the large values."""
        return self._history.store.thread(self._history.line.name).diff(None, entry.visit.point.id, large=large)


def _label_color(label: str) -> str:
    if label.startswith("HEAD"):
        return "cyan"
    return "yellow" if label.startswith(("tag: ", "label: ")) else "green"
