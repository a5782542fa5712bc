"""Revisions: the ways to name a checkpoint of a thread, as git has them for commits.

::

    HEAD, @               the latest checkpoint of the thread
    1f0c2a3b-4d5e…        the one with this id, or with the only id that starts so (4 characters or more)
    before-the-cut        the one that has this tag
    main, draft           the last one of a branch
    #12, draft#12         step 12 on the way to HEAD, or to another revision
    X~2, X^, X^2          two before X; the parent of X; the second parent of X, which is a merge
    X@{2h}, @{yesterday}  the last one by that time: on the way to X, or, with HEAD or nothing before it, of the thread

The part before a suffix is looked up as an id, then as a tag, then as a branch, and at last as the start of an id; the
first that is found counts. The whole text comes before any part of it: an id may well end in `~2`. Suffixes are
applied from left to right. `~`, `^` and `#` go along first parents by counting, and read one step however far they go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.backends.interface import Get, Query, Scan
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.engine import Engine
from holdfast.engine.lines import MAIN, NAME, missing_line_error
from holdfast.engine.row_format import Branch, Line, StepRef, check_name
from holdfast.engine.types import Checkpoint, Revision, to_datetime, to_time
from holdfast.errors import InvalidError, NotFoundError
from holdfast.time_parsing import parse_time

_SHORTEST = 4
"""How many characters the start of an id has at least."""

_SHOWN = 6
"""How many of the checkpoints that may be meant are shown."""

_SUFFIX = re.compile(r"(?P<kind>[~^#])(?P<count>\d*)$|@\{(?P<time>[^{}]*)\}$")
_LATEST = ("HEAD", "@")


async def resolve(engine: Engine, line: Line, at: Revision) -> StepRef:
    """Find the step that a revision names. `NotFoundError` if there is none; `InvalidError` if it is not a revision, or
    several ids start so."""
    if isinstance(at, Checkpoint):
        if at.thread != line.name:
            raise InvalidError(f"the checkpoint {at.id} belongs to thread {at.thread!r}", where=f"thread {line}")
        return await engine.lines.find(line, at.id)
    if isinstance(at, datetime):
        return await engine.lines.at_time(line, to_time(parse_time(at, at)))
    if isinstance(at, bool) or not isinstance(at, int | str):
        raise InvalidError(
            f"a checkpoint is named by text, a number, a datetime or a Checkpoint, not by {type(at).__name__}",
            where=repr(at)[:80],
            hint="See the guide on revisions: HEAD, a tag, a branch, an id, HEAD~2",
        )
    if isinstance(at, int) and at < 0:
        raise InvalidError(f"the number of a step is 0 or more, not {at}", hint=f"{-at} steps back is 'HEAD~{-at}'")
    return await Revisions(engine, line).resolve(f"#{at}" if isinstance(at, int) else at)


class Revisions:
    """Finds the steps of a line that revisions name. What was read of the line's branches is kept for the next."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._lines = engine.lines
        self._backend = engine.context.backend
        self._line = line
        self._branches: list[Branch] | None = None
        self._layout = BranchGraph(())

    async def resolve(self, text: str) -> StepRef:
        """The step that a revision names."""
        base, suffixes = await self._split(check_name(text, "revision"))
        point = await self._base(text, base)
        for suffix in suffixes:
            point = await self._follow(text, point, suffix, of_thread=suffix is suffixes[0] and base in ("", *_LATEST))
        if point.pruned:
            raise self._gone(text, point)
        return point

    async def branch(self, text: str) -> Branch | None:
        """The branch that a text names, if it is the name of one."""
        for each in await self.branches():
            if each.name == text:
                return each
        return MAIN_BRANCH if text == MAIN.name else None

    async def branches(self) -> list[Branch]:
        """All branches but the first."""
        if self._branches is None:
            self._branches = await self._lines.branches(self._line)
            self._layout = BranchGraph(self._branches)
        return self._branches

    # What a text consists of ----------------------------------------------------------------------------------

    async def _split(self, text: str) -> tuple[str, list[_Suffix]]:
        """The longest base that is there, and the suffixes after it."""
        if not text:
            raise InvalidError("a revision is not empty", hint="HEAD is the latest checkpoint")
        cuts = [text]
        suffixes: list[_Suffix] = []
        while found := _SUFFIX.search(cuts[-1]):
            suffixes.insert(0, _Suffix(found.start(), found["kind"] or "@", found["count"] or "", found["time"] or ""))
            cuts.append(cuts[-1][: found.start()])
        if suffixes:
            there = await self._exact(cuts)
            kept = next((cut for cut in cuts if cut in there), cuts[-1])
            return kept, [suffix for suffix in suffixes if suffix.column >= len(kept)]
        return text, []

    async def _exact(self, texts: Sequence[str]) -> set[str]:
        """Those of some texts that are ids, names or branches."""
        found = {text for text in texts if text in ("", *_LATEST, MAIN.name)}
        wanted = [text for text in texts if text not in found]
        if wanted:
            ids, names = await self._ids_and_names(wanted)
            found |= ids.keys() | names.keys()
            if not found.issuperset(wanted[:1]):
                found |= {each.name for each in await self.branches() if each.name in wanted}
        return found

    async def _ids_and_names(self, texts: Sequence[str]) -> tuple[dict[str, StepRef], dict[str, str]]:
        queries: list[Query] = [
            Scan(STEPS, (*self._line, text), reverse=True, limit=1, by="id", bodies=False) for text in texts
        ]
        queries.append(Get(REFS, [(*self._line, NAME, text, "") for text in texts]))
        *steps, refs = await self._backend.read(queries)
        ids = {text: StepRef.of(rows[0]) for text, rows in zip(texts, steps, strict=True) if rows}
        return ids, {str(row.key[3]): str(row.columns[0]) for row in refs}

    # The base -------------------------------------------------------------------------------------------------

    async def _base(self, text: str, base: str) -> StepRef:
        if base in _LATEST or not base:
            return await self._lines.find(self._line, None)
        ids, names = await self._ids_and_names([base])
        if base in ids:
            return ids[base]
        if base in names:
            return await self._lines.find(self._line, names[base])
        branch = await self.branch(base)
        if branch is not None:
            return await self._lines.head(self._line, branch.branch)
        return await self._prefixed(text, base)

    async def _prefixed(self, text: str, start: str) -> StepRef:
        """The only step whose id starts so."""
        found: dict[str, StepRef] = {}
        after, page = start, _SHOWN + 1
        while len(start) >= _SHORTEST and len(found) <= _SHOWN:
            (rows,) = await self._backend.read(
                [Scan(STEPS, tuple(self._line), (after,), limit=page, by="id", bodies=False)]
            )
            points = [point for point in map(StepRef.of, rows) if point.id.startswith(start)]
            found.update((point.id, point) for point in points)
            if len(points) < page:
                break
            after = points[-1].id + "\0"
        if not found:
            raise await self._unknown(text, start)
        if len(found) > 1:
            raise _ambiguous(text, start, list(found.values()))
        (point,) = found.values()
        return await self._lines.find(self._line, point.id)

    async def _unknown(self, text: str, base: str) -> NotFoundError | InvalidError:
        if await self._lines.latest_step(self._line) is None:
            return missing_line_error(self._line)
        odd = re.search(r"[~^]|@\{|#", base)
        if odd is not None:
            return _invalid(f"{base[odd.start() :]!r} is no suffix of a revision", text, odd.start(), _SUFFIXES)
        from difflib import get_close_matches  # for mistakes alone

        names = [name for name, _ in await self._lines.refs(self._line, NAME)]
        names += [each.name for each in await self.branches() if each.name]
        near = get_close_matches(base, ["HEAD", MAIN.name, *names], 3, 0.6)
        hint = "List them with log() and branches()"
        if near:
            hint = f"Did you mean {' or '.join(map(repr, near))}?"
        elif len(base) < _SHORTEST:
            hint = f"Write {_SHORTEST} characters of an id or more"
        return NotFoundError(
            f"no checkpoint has the id or the tag {base!r}, and no branch has that name",
            where=f"thread {self._line}",
            hint=hint,
        )

    # Suffixes -------------------------------------------------------------------------------------------------

    async def _follow(self, text: str, point: StepRef, suffix: _Suffix, of_thread: bool) -> StepRef:
        if suffix.kind == "@":
            return await self._by_time(text, point, suffix, of_thread)
        if suffix.kind == "#":
            if not suffix.number:
                raise _invalid("the number of a step is missing", text, suffix.column, "As in main#12")
            return await self._along(text, point, int(suffix.number), suffix)
        count = int(suffix.number or 1)
        if suffix.kind == "^" and count > 1:
            return await self._parent(text, point, count, suffix)
        return await self._along(text, point, point.depth - count, suffix)

    async def _along(self, text: str, point: StepRef, depth: int, suffix: _Suffix) -> StepRef:
        """The step that has so many before it, on the way to a step."""
        if depth == point.depth:
            return point
        if not 0 <= depth < point.depth:
            raise NotFoundError(
                f"{text[: suffix.column] or 'HEAD'!r} has the steps 0 to {point.depth}, and no step {depth}"
                if suffix.kind == "#"
                else f"there are only {point.depth} checkpoints before {text[: suffix.column] or 'HEAD'!r}",
                where=f"column {suffix.column + 1} of {text!r}, thread {self._line}",
            )
        place = Position(point.branch, point.seq - (point.depth - depth))
        if place.seq < 0:
            await self.branches()
            place = self._layout.along(point.branch, depth)
        return await self._at(place, text)

    async def _parent(self, text: str, point: StepRef, number: int, suffix: _Suffix) -> StepRef:
        """A further parent of a merge."""
        if point.pruned:
            raise self._gone(text[: suffix.column], point)
        head = await self._engine.step_info.head(self._line, point)
        parents = head.header.parents
        if number > len(parents):
            raise NotFoundError(
                f"checkpoint {point.id} has {len(parents)} parent{'s' * (len(parents) != 1)}, and no number {number}",
                where=f"column {suffix.column + 1} of {text!r}, thread {self._line}",
                hint="A merge has two: log() shows which checkpoints are merges",
            )
        parent = parents[number - 1]
        found = await self._at(Position(parent.branch, parent.seq), text)
        if found.hash != parent.commit:
            raise self._gone(text, None)
        return found

    async def _by_time(self, text: str, point: StepRef, suffix: _Suffix, of_thread: bool) -> StepRef:
        now = to_datetime(self._engine.context.clock())
        try:
            time = to_time(parse_time(suffix.time, now))
        except InvalidError as error:
            raise _invalid(error.what, text, suffix.column + 2, error.hint) from None
        if of_thread:
            return await self._lines.at_time(self._line, time)
        await self.branches()
        for end in self._layout.stretches(Position(point.branch, point.seq)):
            if found := await self._lines.last_before(self._line, [end], time):
                return found[0]
        raise NotFoundError(
            f"{text[: suffix.column]!r} has no checkpoint of that time or before",
            where=f"column {suffix.column + 1} of {text!r}, thread {self._line}",
        )

    async def _at(self, place: Position, text: str) -> StepRef:
        (rows,) = await self._backend.read([Scan(STEPS, (*self._line, *place), bodies=False)])
        if not rows:
            raise self._gone(text, None)
        return StepRef.of(rows[0])

    def _gone(self, text: str, point: StepRef | None) -> NotFoundError:
        when = "" if point is None else f", of {_when(point.time)},"
        return NotFoundError(
            f"the checkpoint that {text!r} names{when} was pruned",
            where=f"thread {self._line}",
            hint="See log() for those that are there",
        )


class _Suffix(NamedTuple):
    """What follows the base of a revision: where in the text, its sign, and its number or time."""

    column: int
    kind: str
    number: str
    time: str


MAIN_BRANCH = Branch(0, 0, 0, 0, MAIN.name)
"""The first branch, which has no row of its own."""

_SUFFIXES = "There are ~2, ^, ^2, #12 and @{2h}"


def _invalid(what: str, text: str, column: int, hint: str = "") -> InvalidError:
    return InvalidError(what, where=f"column {column + 1} of {text!r}", hint=hint)


def _ambiguous(text: str, start: str, points: Sequence[StepRef]) -> InvalidError:
    shown = ", ".join(f"{point.id} ({point.kind}, {_when(point.time)})" for point in points[:_SHOWN])
    more = ", and more" if len(points) > _SHOWN else ""
    return _invalid(f"several ids start with {start!r}: {shown}{more}", text, 0, "Write more of it")


def _when(time: int) -> str:
    return f"{to_datetime(time):%Y-%m-%d %H:%M:%S}"
