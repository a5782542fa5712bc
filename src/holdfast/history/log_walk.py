"""The walk over a line's history that `holdfast log` shows.

The latest steps come first, and every step before its parents: times do not decrease from parent to child, and equal
times are ordered by depth. Only the visited steps are read, and a few ahead on each branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Query, Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.lines import LABEL, MAIN, TAG
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Branch, Line, StepRef, open_step
from holdfast.errors import CorruptError

_FIRST_PAGE, _PAGE = 16, 256
"""How many steps of a branch are read at a time: at first, and at most."""


class VisitedStep(NamedTuple):
    """A step that the walk visited.

    `step` is None if it was pruned to a stub, or is damaged, as `damage` describes.
    """

    row: Row
    point: StepRef
    step: Step | None
    parents: tuple[Position, ...]
    damage: str = ""

    @property
    def position(self) -> Position:
        return Position(self.point.branch, self.point.seq)


class LogWalk:
    """Visits steps and their ancestors, the latest first, in pages."""

    def __init__(self, engine: Engine, line: Line, branches: Iterable[Branch], *, first_parents: bool = False) -> None:
        self._engine = engine
        self._line = line
        self._graph = BranchGraph(branches)
        self._first_parents = first_parents
        self._rows: dict[Position, Row] = {}
        self._continued: dict[Position, int] = {}
        """Where reading continues below what was read, with how many steps were read above it."""
        self._queue: list[tuple[int, int, int, int]] = []
        self.ids: dict[Position, str] = {}
        """The ids of the steps visited so far and of their parents; empty for stubs."""

    async def start(self, positions: Sequence[Position]) -> None:
        """Start to walk from these steps, in addition to others."""
        missing = [position for position in positions if position not in self.ids and position not in self._rows]
        queries: list[Query] = [Scan(STEPS, (*self._line, *position), required=1) for position in missing]
        results = await read_despite_damage(self._engine.context.backend, queries) if queries else []
        for position, rows in zip(missing, results, strict=True):
            self._rows.update((position, row) for row in rows)
            self._continued[Position(position.branch, position.seq - 1)] = _FIRST_PAGE // 2
        for position in positions:
            await self._push(position)

    @property
    def frontier(self) -> list[Position]:
        """The steps to visit next: a walk from these visits what this one has not visited yet."""
        return [Position(-branch, -seq) for _, _, branch, seq in sorted(self._queue)]

    async def page(self, limit: int) -> list[VisitedStep]:
        """Visit the next steps, up to `limit` including stubs; none at the end."""
        visits: list[VisitedStep] = []
        while self._queue and len(visits) < limit:
            _, _, branch, seq = heappop(self._queue)
            position = Position(-branch, -seq)
            visit = self._visit(position, self._rows.pop(position))
            visits.append(visit)
            for number, parent in enumerate(visit.parents[:1] if self._first_parents else visit.parents):
                if not await self._push(parent) and not number:
                    # Only what was merged may have been deleted since, with its branch.
                    raise await self._engine.step_info.missing_parent(self._line, visit.point, parent)
        return visits

    async def _push(self, position: Position) -> bool:
        """Add a step to those to visit, and return whether there is one."""
        if position in self.ids:
            return True
        row = self._rows.get(position)
        if row is None:
            await self._read(position)
            row = self._rows.get(position)
            if row is None:
                return False
        point = StepRef.of(row)
        self.ids[position] = point.id
        heappush(self._queue, (-point.time, -point.depth, -position.branch, -position.seq))
        return True

    async def _read(self, position: Position) -> None:
        """Read a step; and if the walk came from the one after it, some before it on its branch. Of a step where
        another branch starts, those before it may be visited much later."""
        above = self._continued.pop(position, 0)
        count = min(max(2 * above, _FIRST_PAGE), _PAGE) if above else 1
        self._continued[Position(position.branch, position.seq - count)] = count
        start, stop = max(0, position.seq + 1 - count), position.seq + 1
        branch = (*self._line, position.branch)
        scan = Scan(STEPS, branch, (start,), (stop,), reverse=True, required=stop - start)
        (rows,) = await read_despite_damage(self._engine.context.backend, [scan])
        for row in rows:
            self._rows[Position(*StepRef.of(row)[:2])] = row

    def _visit(self, position: Position, row: Row) -> VisitedStep:
        point = StepRef.of(row)
        before = Position(position.branch, position.seq - 1) if position.seq else self._graph.base(position.branch)
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
    """The names of steps: branches that end there, tags and labels. Reads only what is requested."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._line = line
        self.branches: list[Branch] = []
        self.head: StepRef | None = None
        self._names: dict[int, str] = {}
        self._branches_at: dict[Position, list[int]] = {}
        self._ends: dict[int, Position] = {}
        self._tags: dict[str, list[str]] = {}
        self._labels: dict[str, list[str]] = {}

    async def load(self) -> None:
        """Read the branches, tags and labels."""
        lines, line = self._engine.lines, self._line
        self.head = await lines.find(line, None)
        self.branches = await lines.branches(line)
        renamed = any(branch.name == MAIN.name for branch in self.branches)
        self._names = {0: "" if renamed else MAIN.name, **{branch.branch: branch.name for branch in self.branches}}
        for branch in self.branches:
            self._branches_at.setdefault(Position(branch.base_branch, branch.base_length - 1), []).append(branch.branch)
        for kind, refs in ((TAG, self._tags), (LABEL, self._labels)):
            for name, id in await lines.refs(line, kind):
                refs.setdefault(id, []).append(name)

    def name(self, branch: int) -> str:
        """Return the name of a branch, or its number if it has none."""
        return self.branch_name(branch) or f"branch {branch}"

    def branch_name(self, branch: int) -> str:
        """Return the name of a branch; empty if it has none."""
        return self._names.get(branch, "")

    async def ends(self) -> list[Position]:
        """Return the last steps of all branches, except those that a new revision replaced."""
        await self._find_ends(self._names)
        unnamed = [number for number in self._ends if not self._names[number]]
        if unnamed:
            positions = [self._ends[number] for number in unnamed]
            points = [
                StepRef.of(row)
                for rows in await self._read([Scan(STEPS, (*self._line, *end), bodies=False) for end in positions])
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
        """Return the names of each step."""
        numbers = {visit.position.branch for visit in visits}
        numbers |= {number for visit in visits for number in self._branches_at.get(visit.position, ())}
        await self._find_ends(numbers - self._ends.keys())
        ends: dict[Position, list[int]] = {}
        for number, position in sorted(self._ends.items()):
            ends.setdefault(position, []).append(number)
        return [self._names_of(visit, ends.get(visit.position, [])) for visit in visits]

    def _names_of(self, visit: VisitedStep, numbers: Sequence[int]) -> StepNames:
        names = [self._names[number] for number in numbers if self._names[number]]
        is_head = self.head is not None and (self.head.branch, self.head.seq) == visit.position
        own = self._names.get(visit.position.branch)
        if is_head and own in names:
            names.remove(own)
            names.insert(0, own)
        id = visit.point.id
        return StepNames(is_head, names, self._tags.get(id, []), self._labels.get(id, []), own in names)

    async def _find_ends(self, numbers: Iterable[int]) -> None:
        missing = sorted(set(numbers) - self._ends.keys())
        results = await self._read(
            [Scan(STEPS, (*self._line, number), reverse=True, limit=1, bodies=False) for number in missing]
        )
        bases = {number: base for base, branches in self._branches_at.items() for number in branches}
        for number, rows in zip(missing, results, strict=True):
            if rows:
                self._ends[number] = Position(*StepRef.of(rows[0])[:2])
            elif number in bases and bases[number].seq >= 0:
                self._ends[number] = bases[number]

    async def _read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._engine.context.backend.read(queries) if queries else []


async def abbreviations(engine: Engine, line: Line, ids: Sequence[str], shortest: int) -> list[str]:
    """Shorten ids to the shortest common length at which all of them are unique in the line."""
    queries: list[Query] = []
    for id in ids:
        queries.append(Scan(STEPS, tuple(line), (), (id,), True, 1, "id", bodies=False))
        queries.append(Scan(STEPS, tuple(line), (id + "\0",), (), False, 1, "id", bodies=False))
    results = await engine.context.backend.read(queries) if queries else []
    longest = shortest
    for number, id in enumerate(ids):
        for rows in results[2 * number : 2 * number + 2]:
            for row in rows:
                longest = max(longest, _common_length(id, StepRef.of(row).id) + 1)
    return [id[:longest] for id in ids]


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
