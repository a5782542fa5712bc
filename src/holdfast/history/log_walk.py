"""Walking a line from its last steps back to its first: what `holdfast log` shows.

Steps come the latest first, and every step before those that it follows: times do not decrease from parent to child,
and where they are equal the number of steps before them tells. Nothing is read that is not walked over, but for a few
steps ahead on each branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from holdfast.backends.interface import Query, Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.engine import Engine
from holdfast.engine.lines import MAIN, NAME, TAG
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Branch, Line, StepRef, open_step
from holdfast.errors import CorruptError

_AHEAD, _FAR_AHEAD = 16, 256
"""How many steps of a branch are read at a time: at first, and after a while."""


class VisitedStep(NamedTuple):
    """A step that the walk came by.

    `step` is None where only a stub is left of it, and where it is damaged: `damage` says how.
    """

    row: Row
    point: StepRef
    step: Step | None
    parents: tuple[Position, ...]
    damage: str = ""

    @property
    def place(self) -> Position:
        """Where it stands."""
        return Position(self.point.branch, self.point.seq)


class LogWalk:
    """The steps that some steps follow, those among them, the latest first, in pages."""

    def __init__(self, engine: Engine, line: Line, branches: Iterable[Branch], *, first_parents: bool = False) -> None:
        self._engine = engine
        self._line = line
        self._layout = BranchGraph(branches)
        self._first_parents = first_parents
        self._rows: dict[Position, Row] = {}
        self._ahead: dict[int, int] = {}
        self._queue: list[tuple[int, int, int, int]] = []
        self.ids: dict[Position, str] = {}
        """The ids of the steps walked over so far, and of those that they follow; empty for stubs."""

    async def start(self, places: Sequence[Position]) -> None:
        """Walk back from these steps too."""
        wanted = [place for place in places if place not in self.ids and place not in self._rows]
        queries: list[Query] = [Scan(STEPS, (*self._line, *place)) for place in wanted]
        found = await self._engine.context.backend.read(queries) if queries else []
        for place, rows in zip(wanted, found, strict=True):
            self._rows.update((place, row) for row in rows)
        for place in places:
            await self._push(place)

    async def page(self, limit: int) -> list[VisitedStep]:
        """The next steps, so many at most; none at the end. Stubs count too."""
        found: list[VisitedStep] = []
        while self._queue and len(found) < limit:
            _, _, branch, seq = heappop(self._queue)
            place = Position(-branch, -seq)
            visit = self._visit(place, self._rows.pop(place))
            found.append(visit)
            for parent in visit.parents[:1] if self._first_parents else visit.parents:
                await self._push(parent)
        return found

    async def _push(self, place: Position) -> None:
        if place in self.ids:
            return
        row = self._rows.get(place)
        if row is None:
            await self._read(place)
            row = self._rows.get(place)
            if row is None:
                return  # deleted meanwhile, or the line is cut off there
        point = StepRef.of(row)
        self.ids[place] = point.id
        heappush(self._queue, (-point.time, -point.depth, -place.branch, -place.seq))

    async def _read(self, place: Position) -> None:
        """Read a step, and some before it on its branch."""
        count = self._ahead.get(place.branch, _AHEAD)
        self._ahead[place.branch] = min(2 * count, _FAR_AHEAD)
        scan = Scan(
            STEPS, (*self._line, place.branch), (max(0, place.seq + 1 - count),), (place.seq + 1,), reverse=True
        )
        (rows,) = await self._engine.context.backend.read([scan])
        for row in rows:
            self._rows[Position(*StepRef.of(row)[:2])] = row

    def _visit(self, place: Position, row: Row) -> VisitedStep:
        point = StepRef.of(row)
        before = Position(place.branch, place.seq - 1) if place.seq else self._layout.base(place.branch)
        parents = () if before is None else (before,)
        try:
            if point.pruned:
                merged = (Position(parent.branch, parent.seq) for parent in point.merged)
                return VisitedStep(row, point, None, (*parents, *merged))
            step = open_step(self._line, row, self._engine.context.max_bytes)
        except CorruptError as error:
            return VisitedStep(row, point, None, parents, str(error))
        return VisitedStep(
            row, point, step, tuple(Position(parent.branch, parent.seq) for parent in step.header.parents)
        )


class StepNames(NamedTuple):
    """The names of a step: whether it is HEAD, the branches whose last step it is (that of HEAD first), its tags and
    labels."""

    head: bool
    branches: list[str]
    tags: list[str]
    labels: list[str]
    on_branch: bool = False
    """Whether the first of the branches is that of HEAD."""

    def texts(self) -> list[str]:
        """As git writes them: `HEAD -> main`, `other`, `tag: good`, `label: seen`."""
        branches = self.branches
        if self.head:
            branches = [f"HEAD -> {branches[0]}", *branches[1:]] if self.on_branch else ["HEAD", *branches]
        return [*branches, *(f"tag: {tag}" for tag in self.tags), *(f"label: {label}" for label in self.labels)]


class StepLabels:
    """What leads to steps by name: branches whose last they are, tags and labels. Read as far as it is asked for."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._line = line
        self.branches: list[Branch] = []
        self.head: StepRef | None = None
        self._names: dict[int, str] = {}
        self._based: dict[Position, list[int]] = {}
        self._ends: dict[int, Position] = {}
        self._tags: dict[str, list[str]] = {}
        self._labels: dict[str, list[str]] = {}

    async def load(self) -> None:
        """Look which branches, names and tags there are."""
        lines, line = self._engine.lines, self._line
        self.head = await lines.find(line, None)
        self.branches = await lines.branches(line)
        taken = any(branch.name == MAIN.name for branch in self.branches)
        self._names = {0: "" if taken else MAIN.name, **{branch.branch: branch.name for branch in self.branches}}
        for branch in self.branches:
            self._based.setdefault(Position(branch.base_branch, branch.base_length - 1), []).append(branch.branch)
        for kind, refs in ((NAME, self._tags), (TAG, self._labels)):
            for name, id in await lines.refs(line, kind):
                refs.setdefault(id, []).append(name)

    def name(self, branch: int) -> str:
        """What a branch is called; its number, if it has no name."""
        return self.branch_name(branch) or f"branch {branch}"

    def branch_name(self, branch: int) -> str:
        """The name of a branch; empty if it has none."""
        return self._names.get(branch, "")

    async def ends(self) -> list[Position]:
        """The last steps of all branches, but of those that a new revision took the place of."""
        await self._look(self._names)
        unnamed = [number for number in self._ends if not self._names[number]]
        if unnamed:
            places = [self._ends[number] for number in unnamed]
            points = [
                StepRef.of(row)
                for rows in await self._read([Scan(STEPS, (*self._line, *place), bodies=False) for place in places])
                for row in rows
            ]
            latest = await self._read(
                [Scan(STEPS, (*self._line, point.id), (), (), True, 1, "id", bodies=False) for point in points]
            )
            for point, rows in zip(points, latest, strict=True):
                if not point.pruned and rows and StepRef.of(rows[0]).revision > point.revision:
                    del self._ends[point.branch]
        return list(dict.fromkeys(self._ends.values()))

    async def of(self, visits: Sequence[VisitedStep]) -> list[StepNames]:
        """Return the names of each of some steps."""
        wanted = {visit.place.branch for visit in visits}
        wanted |= {number for visit in visits for number in self._based.get(visit.place, ())}
        await self._look(wanted - self._ends.keys())
        at: dict[Position, list[int]] = {}
        for number, place in sorted(self._ends.items()):
            at.setdefault(place, []).append(number)
        return [self._names_of(visit, at.get(visit.place, [])) for visit in visits]

    def _names_of(self, visit: VisitedStep, numbers: Sequence[int]) -> StepNames:
        names = [self._names[number] for number in numbers if self._names[number]]
        is_head = self.head is not None and (self.head.branch, self.head.seq) == visit.place
        own = self._names.get(visit.place.branch)
        if is_head and own in names:
            names.remove(own)
            names.insert(0, own)
        id = visit.point.id
        return StepNames(is_head, names, self._tags.get(id, []), self._labels.get(id, []), own in names)

    async def _look(self, numbers: Iterable[int]) -> None:
        """Find where some branches end."""
        wanted = sorted(set(numbers) - self._ends.keys())
        found = await self._read(
            [Scan(STEPS, (*self._line, number), reverse=True, limit=1, bodies=False) for number in wanted]
        )
        bases = {number: place for place, based in self._based.items() for number in based}
        for number, rows in zip(wanted, found, strict=True):
            if rows:
                self._ends[number] = Position(*StepRef.of(rows[0])[:2])
            elif number in bases and bases[number].seq >= 0:
                self._ends[number] = bases[number]

    async def _read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._engine.context.backend.read(queries) if queries else []


async def abbreviations(engine: Engine, line: Line, ids: Sequence[str], shortest: int) -> list[str]:
    """The starts of ids by which they are known in their line, each as long as the longest of them must be."""
    queries: list[Query] = []
    for id in ids:
        queries.append(Scan(STEPS, tuple(line), (), (id,), True, 1, "id", bodies=False))
        queries.append(Scan(STEPS, tuple(line), (id + "\0",), (), False, 1, "id", bodies=False))
    found = await engine.context.backend.read(queries) if queries else []
    longest = shortest
    for number, id in enumerate(ids):
        for rows in found[2 * number : 2 * number + 2]:
            for row in rows:
                longest = max(longest, _common(id, StepRef.of(row).id) + 1)
    return [id[:longest] for id in ids]


def _common(one: str, other: str) -> int:
    """How many characters two texts start with that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
