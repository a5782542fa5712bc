"""`holdfast log`: the history of a thread, as git shows that of a repository."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast._views import encode
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliCommand, CliContext, all_channels_option, command, migrate_option
from holdfast.interfaces.cli.completion_types import BRANCH, REVISION, THREAD
from holdfast.interfaces.cli.exit_codes import INTEGRITY
from holdfast.interfaces.cli.formatting import ago, cut, first_line, safe
from holdfast.interfaces.cli.scope_args import TIME

if TYPE_CHECKING:
    from holdfast.history.diff_result import Diff
    from holdfast.schemas.schema_set import SchemaSet
    from holdfast.store.log_reader import LogEntry
    from holdfast.store.thread import Thread


_USUAL = ("save", "update", "loop")
"""The common kinds of checkpoints, which are not shown."""

_SAID_ELSEWHERE = (
    *("thread", "id", "short", "revision", "matches", "position", "parents", "parent_ids", "branch", "branch_name"),
    *("hash", "head", "branches", "tags", "labels", "summary", "message", "changed"),
)
"""The fields of a checkpoint that its paragraph has in the title, beside another one, or at the end."""

_MESSAGE = 60
"""How many columns of a message are shown."""


class LogCommand(CliCommand):
    """Takes `-3` for `-n 3`, as git does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        plain = args.index("--") if "--" in args else len(args)
        args[:plain] = [f"-n{each[1:]}" if re.fullmatch(r"-[0-9]+", each) else each for each in args[:plain]]
        return super().parse_args(ctx, args)


@command("log", cls=LogCommand, thread=THREAD, revision=REVISION)
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="Show at most N; -3 is -n 3.")
@click.option("--oneline", is_flag=True, help="One line for each checkpoint.")
@click.option("--graph", is_flag=True, help="Draw where branches fork and merge.")
@click.option("--branch", type=BRANCH, metavar="NAME", help="The history of this branch.")
@click.option("--all", "all_branches", is_flag=True, help="The checkpoints of all branches.")
@click.option("--first-parent", is_flag=True, help="Follow only the first parent of a merge.")
@click.option("--since", metavar="WHEN", type=TIME, help="Only since a time: 2h, yesterday, 2026-11-01.")
@click.option("--until", metavar="WHEN", type=TIME, help="Only until a time.")
@click.option("--where", metavar="QUERY", help="Those that match a query; see holdfast help grep.")
@click.option("-p", "--patch", is_flag=True, help="Show what each checkpoint changed.")
@migrate_option
@all_channels_option
def log(
    session: CliContext,
    thread: str,
    revision: str | None,
    limit: int | None,
    oneline: bool,
    graph: bool,
    branch: str | None,
    all_branches: bool,
    first_parent: bool,
    since: datetime | None,
    until: datetime | None,
    where: str | None,
    patch: bool,
    migrate: bool,
    all_channels: bool,
) -> None:
    """Show the history of a thread, the latest checkpoint first.

    It starts at the latest checkpoint, at a REVISION (a branch, a tag, the start of an id, '#12', HEAD~2,
    @{yesterday}), or with --all at the heads of all branches. The number that --oneline shows first is a revision.
    With --migrate, what each checkpoint changed is shown as if all had the newest version of their schema.

    holdfast log chat --oneline --graph --all
    holdfast log chat -3 -p
    holdfast log chat --since yesterday
    holdfast log chat draft~2 --where 'role:human time>2h'
    """
    from holdfast.store.log_reader import LogReader

    if (revision is not None) + (branch is not None) + all_branches > 1:
        raise InvalidError("give only one of a revision, --branch and --all", hint="Give a revision, --branch or --all")
    handle = session.open().thread(thread)
    reader = LogReader(handle, first_parents=first_parent, where=where)
    reader.start(revision if branch is None else branch, all_branches=all_branches)
    schemas = None
    if migrate:
        from holdfast.interfaces.cli.migrate import load_declared

        schemas = load_declared()
    writer = LogWriter(session, handle, LogOptions(oneline, graph, patch, all_channels, schemas))
    left = limit
    for entry in reader.entries():
        if left == 0 or (since is not None and entry.time < since):
            break  # no earlier checkpoint is later
        if not entry.matches or (until is not None and entry.time > until):
            writer.skip(entry)
            continue
        writer.write(entry)
        left = None if left is None else left - 1
    session.exit_if(reader.damaged, INTEGRITY)


class LogOptions(NamedTuple):
    """The form of a log."""

    oneline: bool = False
    graph: bool = False
    patch: bool = False
    all_channels: bool = False
    schemas: SchemaSet | None = None
    """States are brought to the newest version of these."""


class LogWriter:
    """Writes the entries of a log."""

    def __init__(self, session: CliContext, thread: Thread, options: LogOptions) -> None:
        self._session = session
        self._thread = thread
        self._options = options
        self._out = session.out
        self._graph: GraphDrawing | None = None
        if session.json:
            return
        self._out.page()
        if options.graph:
            columns = self._out.columns
            self._graph = GraphDrawing(self._out.style, max(10, columns // 2) if columns else 0)
        self._now = datetime.now(UTC)
        self._first = True

    def write(self, entry: LogEntry) -> None:
        """Write a checkpoint."""
        if self._session.json:
            self._session.emit(entry, self._more(entry))
        elif self._options.oneline:
            self._lines(entry, [self._oneline(entry), *self._patch(entry)])
        else:
            self._lines(entry, [*self._paragraph(entry), *self._patch(entry)])

    def _lines(self, entry: LogEntry, lines: list[str]) -> None:
        out = self._out
        if self._graph is None:
            if not self._first and not self._options.oneline:
                out.line()
            self._first = False
            for line in lines:
                out.line(line)
            return
        before, beside, after = self._graph.step(entry.position, entry.parents)
        for line in before:
            out.line(line.rstrip())
        out.line(f"{beside}{lines[0]}")
        rest = [*lines[1:], *([] if self._options.oneline else [""])]
        for bend in after:
            out.line(f"{bend} {rest.pop(0)}".rstrip() if rest else bend.rstrip())
        for line in rest:
            out.line(f"{self._graph.beside() or '  '}{line}".rstrip())

    def skip(self, entry: LogEntry) -> None:
        """Pass a checkpoint that is not shown."""
        if self._graph is not None:
            self._graph.replace(entry.position, entry.parents)

    # Text -----------------------------------------------------------------------------------------------------

    def _names(self, entry: LogEntry) -> str:
        names = entry.names.texts()
        if not names:
            return ""
        style = self._out.style
        comma = style(", ", "yellow")
        styled = comma.join(style(safe(name), "bold", _name_color(name)) for name in names)
        return f" {style('(', 'yellow')}{styled}{style(')', 'yellow')}"

    def _oneline(self, entry: LogEntry) -> str:
        style = self._out.style
        number = f"{style(safe(entry.revision), 'cyan')} " if entry.revision else ""
        head = f"{number}{style(safe(entry.short), 'yellow')}{self._names(entry)}"
        if entry.damage:
            return f"{head} {style('damaged', 'red')}: {safe(first_line(entry.damage))}"
        kind = "" if entry.kind in _USUAL else f"{safe(entry.kind)}: "
        summary, message = self._summary(entry), safe(cut(entry.message, _MESSAGE))
        text = f"{message} {style(f'[{summary}]', 'dim')}" if message else summary
        return f"{head} {kind}{text} {style(f'({ago(entry.time, self._now)})', 'green')}"

    def _summary(self, entry: LogEntry) -> str:
        if self._options.schemas is not None:
            try:
                diff = self._diff(entry)
            except NotFoundError:
                return "its parent was pruned"
            diff = diff if self._options.all_channels else diff.without_internal()
            return ", ".join(safe(str(each)) for each in diff.summary) or "no change"
        return ", ".join(map(safe, entry.summarize(hidden=self._options.all_channels))) or "no change"

    def _paragraph(self, entry: LogEntry) -> Iterator[str]:
        from holdfast.engine.types import framework_of

        said = {
            "step": f"{entry.step} on {entry.branch_name}",
            "framework": framework_of(entry.metadata),
            "metadata": cut(encode(entry.metadata), 400) if entry.metadata else "",
        }
        if len(entry.parents) > 1:
            said["merge"] = " ".join(id or "(pruned)" for id in entry.parent_ids)
        title, *lines = self._session.describe(entry, f"checkpoint {entry.id}", hidden=_SAID_ELSEWHERE, **said)
        yield f"{title}{self._names(entry)}"
        yield from lines
        if entry.damage:
            return
        yield ""
        if message := entry.message:
            yield f"    {safe(cut(message, _MESSAGE))}"
        yield f"    {self._summary(entry)}"

    def _patch(self, entry: LogEntry) -> list[str]:
        if not self._options.patch or entry.damage:
            return []
        try:
            diff = self._diff(entry)
        except NotFoundError as error:
            return ["", f"    ({safe(error.what)})"]  # its parent was pruned; the others are shown
        diff = diff if self._options.all_channels else diff.without_internal()
        return ["", *("    " + self._out.diff_line(line) if line else "" for line in diff.lines())]

    def _more(self, entry: LogEntry) -> dict[str, Any]:
        """Return what options add to the JSON of a checkpoint, if its parent was not pruned."""
        found: dict[str, Any] = {"patch": None} if self._options.patch and not entry.damage else {}
        with suppress(NotFoundError):
            if self._options.schemas is not None:
                found["changed"] = [each.channel for each in self._diff(entry).summary]
            if "patch" in found:
                found["patch"] = self._diff(entry, large=True).patch()
        return found

    def _diff(self, entry: LogEntry, *, large: bool = False) -> Diff:
        """Compare a checkpoint with its parent. A patch needs the large values too."""
        schemas = self._options.schemas
        return self._thread.diff(None, entry.id, large=large, migrate=False if schemas is None else schemas)


def _name_color(name: str) -> str:
    if name.startswith("HEAD"):
        return "cyan"
    return "yellow" if name.startswith(("tag: ", "label: ")) else "green"


COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan")

Paint = Callable[[str, str], str]
"""Colours a part of the graph: `paint("|", "red")`."""


class GraphDrawing:
    """Draws a history from its last steps to its first. Each column waits for the step that it leads to."""

    def __init__(self, paint: Paint, widest: int = 0) -> None:
        self._columns: list[Hashable] = []
        self._colors: list[str] = []
        self._opened = 0
        self._paint = paint
        self._widest = widest

    def step(
        self, position: Hashable, parents: Sequence[Hashable], mark: str = "*"
    ) -> tuple[list[str], str, list[str]]:
        """Draw a step: the lines before it, the graph beside it, and the lines after it."""
        before = []
        if position not in self._columns:
            self._open(len(self._columns), position)
        waiting = [index for index, each in enumerate(self._columns) if each == position]
        for into, other in reversed(list(pairwise(waiting))):
            before += self._join(other, into)
        index = waiting[0]
        row = [*(("|", color) for color in self._colors)]
        row[index] = (mark, "")
        return (
            before,
            self._draw([piece for each in row for piece in (each, (" ", ""))]),
            self._continue(index, parents),
        )

    def beside(self) -> str:
        """Draw the graph beside further lines of text."""
        return self._draw([piece for color in self._colors for piece in (("|", color), (" ", ""))])

    def replace(self, position: Hashable, parents: Sequence[Hashable]) -> None:
        """Skip a step that is not shown: its columns now wait for its parent."""
        if parents:
            self._columns = [parents[0] if each == position else each for each in self._columns]
            return
        while position in self._columns:
            self._close(self._columns.index(position))

    def _continue(self, index: int, parents: Sequence[Hashable]) -> list[str]:
        if not parents:
            moved = len(self._columns) - index - 1
            colors = list(self._colors)
            self._close(index)
            if not moved:
                return []
            return [self._draw(_slant(colors, index, index + 1, "/", -1))]
        self._columns[index] = parents[0]
        after = []
        for number, parent in enumerate(parents[1:], 1):
            self._open(index + number, parent)
            after.append(self._draw(_slant(self._colors, index + number, index + number, "\\", -1)))
        return after

    def _join(self, index: int, into: int) -> list[str]:
        """Draw a column that joins another on its left."""
        colors, color = list(self._colors), self._colors[index]
        self._close(index)
        if index == into + 1:
            return [self._draw(_slant(colors, index, index, "/", -1))]
        first = _slant(colors, index, index, "/", -1)
        for column in range(2 * into + 3, 2 * index - 1, 2):
            first[column] = ("_", color)
        second: list[tuple[str, str]] = [piece for each in self._colors for piece in (("|", each), (" ", ""))]
        second[2 * into + 1] = ("/", color)
        return [self._draw(first), self._draw(second)]

    def _open(self, index: int, position: Hashable) -> None:
        self._columns.insert(index, position)
        self._colors.insert(index, COLORS[self._opened % len(COLORS)])
        self._opened += 1

    def _close(self, index: int) -> None:
        del self._columns[index]
        del self._colors[index]

    def _draw(self, pieces: Sequence[tuple[str, str]]) -> str:
        cut = self._widest and len(pieces) > self._widest
        shown = pieces[: self._widest - 2] if cut else pieces
        text = "".join(self._paint(sign, color) if color else sign for sign, color in shown)
        return f"{text}~ " if cut else text


def _slant(colors: Sequence[str], start: int, moved: int, sign: str, shift: int) -> list[tuple[str, str]]:
    """Return a row in which the columns before `start` are straight, and those from `moved` on shift to the side."""
    row = [(" ", "")] * (2 * len(colors) + 1)
    for index, color in enumerate(colors):
        if index < start:
            row[2 * index] = ("|", color)
        elif index >= moved:
            row[2 * index + shift] = (sign, color)
    return row
