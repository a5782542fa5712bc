"""Revisions: names of a checkpoint in its thread, as git has them for commits.

::

    HEAD, @               the checkpoint that the thread resumes from
    1f0c2a3b-4d5e…        the one with this id, or with the only id that starts with it (4 characters or more)
    before-the-cut        the one that has this tag
    main, draft           the last one of a branch
    #12, draft#12         step 12 of the history of HEAD, or of another revision
    X~2, X^, X^2          two before X; the parent of X; the second parent of X, which is a merge
    X@{2h}, @{yesterday}  the last one by that time in the history of X; if X is HEAD or missing, what was HEAD then

The part before a suffix is looked up as an id, a tag, a branch, and the start of an id, in this order. The whole text
is tried before any part of it: an id may end in `~2`. Suffixes are applied from left to right. `~`, `^` and `#` follow
first parents by arithmetic, and read one step however far they go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Get, Query, Scan
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.engine import Engine
from holdfast.engine.ids import LATEST, SUFFIX
from holdfast.engine.lines import MAIN, TAG
from holdfast.engine.namespaces import missing_line_error
from holdfast.engine.row_format import Branch, Line, StepRef, check_name
from holdfast.engine.types import Checkpoint, Revision, to_datetime, to_time
from holdfast.errors import InvalidError, NotFoundError
from holdfast.time_parser import parse_time

_SHORTEST = 4
"""The fewest characters of an abbreviated id."""

_LONGEST_STEP = 8
"""Decimals that are longer are no numbers of steps."""

_LISTED = 6
"""How many matching checkpoints an error lists."""


async def find_step(engine: Engine, line: Line, at: Revision) -> StepRef:
    """Find the step that a revision names.

    Raises `NotFoundError`, or `InvalidError` if it is not a revision or several ids start with it.
    """
    if isinstance(at, Checkpoint):
        if at.thread != line.name:
            raise InvalidError(f"the checkpoint {at.id} belongs to thread {at.thread!r}", where=f"thread {line}")
        return await engine.lines.find(line, at.id)
    if isinstance(at, datetime):
        return await engine.step_times.last_of_line(line, to_time(parse_time(at, at)))
    if isinstance(at, bool) or not isinstance(at, int | str):
        raise InvalidError(
            f"a checkpoint must be given as a string, a number, a datetime or a Checkpoint, not {type(at).__name__}",
            where=repr(at)[:80],
            hint="See the guide on revisions: HEAD, a tag, a branch, an id, HEAD~2",
        )
    if isinstance(at, int) and at < 0:
        raise InvalidError(
            f"the number of a step must be 0 or more, not {at}", hint=f"So many steps back is 'HEAD~{-at}'"
        )
    return await Revisions(engine, line).find(f"#{at}" if isinstance(at, int) else at)


class Revisions:
    """Resolves revisions of one line, and caches its branches."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._lines = engine.lines
        self._backend = engine.context.backend
        self._line = line
        self._branches: list[Branch] | None = None
        self._graph = BranchGraph(())

    async def find(self, text: str) -> StepRef:
        base, suffixes = await self._split(check_name(text, "revision"))
        point = await self._base(text, base)
        for suffix in suffixes:
            point = await self._follow(text, point, suffix, of_thread=suffix is suffixes[0] and base in ("", *LATEST))
        if point.pruned:
            raise self._pruned_error(text, point)
        return point

    async def branch(self, text: str) -> Branch | None:
        """Return the branch of this name, or None."""
        for branch in await self.branches():
            if branch.name == text:
                return branch
        return MAIN_BRANCH if text == MAIN.name else None

    async def branches(self) -> list[Branch]:
        """Return all branches but the first."""
        if self._branches is None:
            self._branches = await self._lines.branches(self._line)
            self._graph = BranchGraph(self._branches)
        return self._branches

    # Parse ----------------------------------------------------------------------------------------------------

    async def _split(self, text: str) -> tuple[str, list[_Suffix]]:
        """Split a revision into the longest base that exists, and the suffixes after it."""
        if not text:
            raise InvalidError("a revision cannot be empty", hint="HEAD is the latest checkpoint")
        cuts = [text]
        suffixes: list[_Suffix] = []
        while match := SUFFIX.search(cuts[-1]):
            suffixes.insert(0, _Suffix(match.start(), match["kind"] or "@", match["count"] or "", match["time"] or ""))
            cuts.append(cuts[-1][: match.start()])
        if suffixes:
            existing = await self._existing(cuts)
            base = next((cut for cut in cuts if cut in existing), cuts[-1])
            return base, [suffix for suffix in suffixes if suffix.column >= len(base)]
        return text, []

    async def _existing(self, texts: Sequence[str]) -> set[str]:
        """Return the texts that are ids, tags or branches."""
        existing = {text for text in texts if text in ("", *LATEST, MAIN.name)}
        unknown = [text for text in texts if text not in existing]
        if unknown:
            ids, tags = await self._ids_and_tags(unknown)
            existing |= ids.keys() | tags.keys()
            if not existing.issuperset(unknown[:1]):
                existing |= {branch.name for branch in await self.branches() if branch.name in unknown}
        return existing

    async def _ids_and_tags(self, texts: Sequence[str]) -> tuple[dict[str, StepRef], dict[str, str]]:
        queries: list[Query] = [
            Scan(STEPS, (*self._line, text), reverse=True, limit=1, by="id", bodies=False) for text in texts
        ]
        queries.append(Get(REFS, [(*self._line, TAG, text, "") for text in texts]))
        *steps, refs = await self._backend.read(queries)
        ids = {text: StepRef.of(rows[0]) for text, rows in zip(texts, steps, strict=True) if rows}
        return ids, {str(row.key[3]): str(row.columns[0]) for row in refs}

    # The base -------------------------------------------------------------------------------------------------

    async def _base(self, text: str, base: str) -> StepRef:
        if base in LATEST or not base:
            return await self._lines.find(self._line, None)
        ids, tags = await self._ids_and_tags([base])
        if base in ids:
            return ids[base]
        if base in tags:
            return await self._lines.find(self._line, tags[base])
        branch = await self.branch(base)
        if branch is not None:
            return await self._lines.head(self._line, branch.branch)
        return await self._by_prefix(text, base)

    async def _by_prefix(self, text: str, prefix: str) -> StepRef:
        """Return the only step whose id starts with a prefix."""
        candidates: dict[str, StepRef] = {}
        after, page = prefix, _LISTED + 1
        while len(prefix) >= _SHORTEST and len(candidates) <= _LISTED:
            (rows,) = await self._backend.read(
                [Scan(STEPS, tuple(self._line), (after,), limit=page, by="id", bodies=False)]
            )
            points = [point for point in map(StepRef.of, rows) if point.id.startswith(prefix)]
            candidates.update((point.id, point) for point in points)
            if len(points) < page:
                break
            after = points[-1].id + "\0"
        if not candidates:
            # Lost, perhaps, and in a copy.
            scan = Scan(STEPS, (*self._line, prefix), reverse=True, limit=1, by="id", bodies=False, required=1)
            (rows,) = await self._backend.read([scan])
            candidates.update((point.id, point) for point in map(StepRef.of, rows))
        if not candidates:
            raise await self._unknown(text, prefix)
        if len(candidates) > 1:
            raise _ambiguous(text, prefix, list(candidates.values()))
        (point,) = candidates.values()
        return await self._lines.find(self._line, point.id)

    async def _unknown(self, text: str, base: str) -> NotFoundError | InvalidError:
        if await self._lines.latest_step(self._line) is None:
            return missing_line_error(self._line)
        odd = re.search(r"[~^]|@\{|#", base)
        if odd is not None:
            return _invalid(f"{base[odd.start() :]!r} is not a suffix of a revision", text, odd.start(), _SUFFIXES)
        from difflib import get_close_matches  # rarely needed

        names = [name for name, _ in await self._lines.refs(self._line, TAG)]
        names += [branch.name for branch in await self.branches() if branch.name]
        near = get_close_matches(base, ["HEAD", MAIN.name, *names], 3, 0.6)
        hint = "log() and branches() list them"
        if near:
            hint = f"Did you mean {' or '.join(map(repr, near))}?"
        elif base.isdecimal() and len(base) < _LONGEST_STEP:
            hint = f"Step {int(base)} is '#{int(base)}'; {hint}"
        elif _is_time(base):
            hint = f"The last one by a time is '@{{{base}}}'; {hint}"
        elif len(base) < _SHORTEST:
            hint += f"; an abbreviated id has {_SHORTEST} characters or more"
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
        """Return the step with this number in the history of another."""
        if depth == point.depth:
            return point
        if not 0 <= depth < point.depth:
            raise NotFoundError(
                f"{text[: suffix.column] or 'HEAD'!r} has the steps 0 to {point.depth}, but no step {depth}"
                if suffix.kind == "#"
                else f"there {_count(point.depth)} before {text[: suffix.column] or 'HEAD'!r}",
                where=f"column {suffix.column + 1} of {text!r}, thread {self._line}",
                hint="See log()",
            )
        position = Position(point.branch, point.seq - (point.depth - depth))
        if position.seq < 0:
            await self.branches()
            position = self._graph.along(point.branch, depth)
        return await self._at(position, text)

    async def _parent(self, text: str, point: StepRef, number: int, suffix: _Suffix) -> StepRef:
        """Return a parent of a merge by number."""
        if point.pruned:
            raise self._pruned_error(text[: suffix.column], point)
        head = await self._engine.step_info.head(self._line, point)
        parents = head.header.parents
        if number > len(parents):
            raise NotFoundError(
                f"checkpoint {point.id} has {len(parents)} parent{'s' * (len(parents) != 1)}, but no number {number}",
                where=f"column {suffix.column + 1} of {text!r}, thread {self._line}",
                hint="Merges have two: log() shows which checkpoints are merges",
            )
        parent = parents[number - 1]
        step = await self._at(Position(parent.branch, parent.seq), text)
        if step.hash != parent.commit:
            raise self._pruned_error(text, None)
        return step

    async def _by_time(self, text: str, point: StepRef, suffix: _Suffix, of_thread: bool) -> StepRef:
        ends = await self._engine.step_times.ends(self._line) if of_thread else [point]
        # The clock may have been set back since. What was saved was saved before now.
        now = max(self._engine.context.clock(), *(end.time for end in ends))
        try:
            time = to_time(parse_time(suffix.time, to_datetime(now)))
        except InvalidError as error:
            raise _invalid(error.what, text, suffix.column + 2, error.hint) from None
        if of_thread:
            return await self._engine.step_times.last_of_line(self._line, time, ends)
        await self.branches()
        for end in self._graph.stretches(Position(point.branch, point.seq)):
            if points := await self._engine.step_times.last_of_branches(self._line, [end], time):
                return points[0]
        raise NotFoundError(
            f"{text[: suffix.column]!r} has no checkpoint at or before that time",
            where=f"column {suffix.column + 1} of {text!r}, thread {self._line}",
        )

    async def _at(self, position: Position, text: str) -> StepRef:
        (rows,) = await self._backend.read([Scan(STEPS, (*self._line, *position), bodies=False, required=1)])
        if not rows:
            raise self._pruned_error(text, None)
        return StepRef.of(rows[0])

    def _pruned_error(self, text: str, point: StepRef | None) -> NotFoundError:
        time = "" if point is None else f", of {_format_time(point.time)},"
        return NotFoundError(
            f"the checkpoint that {text!r} names{time} was pruned",
            where=f"thread {self._line}",
            hint="log() lists the checkpoints",
        )


class _Suffix(NamedTuple):
    """A suffix of a revision: its column, its sign, and its number or time."""

    column: int
    kind: str
    number: str
    time: str


MAIN_BRANCH = Branch(0, 0, 0, 0, MAIN.name)
"""The first branch, which has no row of its own."""

_SUFFIXES = "Suffixes are ~2, ^, ^2, #12 and @{2h}"


def _invalid(what: str, text: str, column: int, hint: str = "") -> InvalidError:
    return InvalidError(what, where=f"column {column + 1} of {text!r}", hint=hint)


def _ambiguous(text: str, prefix: str, points: Sequence[StepRef]) -> InvalidError:
    ids = ", ".join(f"{point.id} ({point.kind}, {_format_time(point.time)})" for point in points[:_LISTED])
    more = ", and more" if len(points) > _LISTED else ""
    return _invalid(f"several ids start with {prefix!r}: {ids}{more}", text, 0, "Write more characters")


def _is_time(text: str) -> bool:
    try:
        parse_time(text, datetime.now(UTC))
    except InvalidError:
        return False
    return True


def _format_time(time: int) -> str:
    return f"{to_datetime(time):%Y-%m-%d %H:%M:%S}"


def _count(checkpoints: int) -> str:
    return (
        ("is no checkpoint", "is only 1 checkpoint")[checkpoints]
        if checkpoints < 2
        else f"are only {checkpoints} checkpoints"
    )
