"""Appending steps: the hot path.

A step is prepared against its parent: the difference of the two states, its hash, perhaps the nodes of a fold; then it
is created at the parent's place plus one, which only one step can have. Whoever loses opens a branch, is refused, or
tries again on top of the winner, as the caller wants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from holdfast.backends.interface import Change, Create, Ensure, Expect, Get, Put
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, NODES, OBJECTS, STEPS
from holdfast.engine.branch_graph import Position
from holdfast.engine.context import EngineContext
from holdfast.engine.ids import new_id
from holdfast.engine.lines import MAIN, At, LineIndex, LineTip, OnBranch, Root
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.fold_diff import diff_folded
from holdfast.engine.model.large_pointers import LARGE
from holdfast.engine.model.large_values import set_aside
from holdfast.engine.model.nodes import MapRoot, WrittenBy
from holdfast.engine.model.operations import EditMap, Operation
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.model.steps import Step, StepHeader, StepParent
from holdfast.engine.model.workspace import MissingNode, Workspace
from holdfast.engine.projection.rows import ProjectedStep, RowChanges
from holdfast.engine.rng import chance
from holdfast.engine.row_format import (
    Branch,
    Line,
    LineInfo,
    StepRef,
    fold_row,
    info_row,
    node_row,
    object_rows,
    step_body,
)
from holdfast.engine.state_loader import LoadedState, StateLoader, weigh
from holdfast.engine.step_info import StepInfo, StepInfoReader
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError

if TYPE_CHECKING:
    from holdfast.engine.projection.projector import Projector
    from holdfast.engine.text_index.indexer import TextIndexer

_ATTEMPTS = 1000
"""How often an append gives way to others before it gives up. Each time, somebody else got through."""

_UNPAUSED, _LONGEST_PAUSE = 2, 0.05
"""How often it gives way without a pause, and for how many seconds it pauses at most: so that of many, all get on."""

_HEAVY = 256 << 10
"""Where folding is put off, it is not for long with so many bytes of changes."""

_RECENT = 1024
"""Of more keys than this, it is not kept in mind that they were folded last."""

PATIENCE = 50
"""How often a line may be rewritten while a step is prepared. A node that is still missing then is lost."""


class OnConflict(Enum):
    """What to do when another step took the place after the parent."""

    RETRY = "retry"
    """Append to the latest step, whichever that is by now."""
    BRANCH = "branch"
    """Open a branch at the parent."""
    REFUSE = "refuse"
    """Raise `ConflictError`."""


Edit: TypeAlias = "Callable[[StepRef | None, LoadedState | None], Awaitable[EditMap]]"
"""Works out what to change of the parent's state, given the parent as of the attempt."""


@dataclass(slots=True)
class AppendRequest:
    """What is to be appended: a whole packed state, or an edit of the parent's."""

    line: Line
    state: PackedMap | Edit
    parent: At = None
    on_conflict: OnConflict = OnConflict.RETRY
    id: str = ""
    metadata: bytes = b"\x80"
    """A packed dict. An edit may set this and `readable`, to tell what it found."""
    readable: str = ""
    kind: str = "save"
    riders: Callable[[str], Sequence[Change]] | None = None
    """Given the step's id, changes that are made together with the step, or not at all."""
    guards: Callable[[bool], Awaitable[Sequence[Change]]] | None = None
    """Conditions beyond the line's own, worked out at every attempt; told whether one has failed already."""
    if_changed: bool = False
    """Save nothing where the state is the parent's; the parent then stands for the step."""
    stamp: str = ""
    schema: str = ""
    time: int = 0
    """When it was, for steps that are moved; now, if 0."""
    opens: str = ""
    """The name of a branch that starts with this step."""
    merged: tuple[StepParent, ...] = ()
    """The further parents of a merge. Its time is not before theirs, and what it changes is what the first lacks."""
    fold_every: int = 0
    """How many steps there are from one folded state to the next, where it is not as everywhere else."""


@dataclass(slots=True)
class PreparedStep:
    """A step ready to be committed, with the changes that make it, some of them on a condition."""

    request: AppendRequest
    info: LineInfo
    point: StepRef
    step: Step
    loaded: LoadedState
    parent: StepRef | None
    ws: Workspace | None
    changes: list[Change] = field(default_factory=list)
    conditions: dict[int, _Condition] = field(default_factory=dict)

    def add(self, change: Change, condition: _Condition) -> None:
        """Another change, made on a condition."""
        self.conditions[len(self.changes)] = condition
        self.changes.append(change)

    def made(self) -> ProjectedStep:
        """What readable rows are made of."""
        branches = [Branch.of(each.row) for each in self.changes if isinstance(each, Create) and each.space is BRANCHES]
        return ProjectedStep(self.info, self.point, self.step, self.loaded, self.parent, branches)

    @property
    def head(self) -> StepInfo:
        """What is known of the step besides its state."""
        return StepInfo(self.point, self.step.header, None if self.parent is None else self.parent.id)


class _Condition(Enum):
    LINE = "the line is as it was"
    BRANCH = "the branch's number is free"
    STEP = "the place is free"
    RIDER = "the caller's own"
    GUARD = "what the caller's own rest on"
    ROWS = "the readable rows are as they were"


class IdTaken(Exception):
    """Another step has got the id meanwhile."""


class Appender:
    """Appends steps to lines."""

    def __init__(
        self,
        context: EngineContext,
        lines: LineIndex,
        states: StateLoader,
        heads: StepInfoReader,
        projector: Projector,
        indexer: TextIndexer,
    ) -> None:
        self._context = context
        self._lines = lines
        self._states = states
        self._heads = heads
        self._projector = projector
        self._indexer = indexer

    async def append(self, *requests: AppendRequest) -> list[StepInfo]:
        """Append one step to each of some lines, all or none; several to one line follow each other.

        A step that is to be saved only if it changes something, and does not, is stood for by its parent.
        """
        taken: dict[int, list[Position]] = {}  # for each step, where the parents were whose next place others had
        swept = 0
        for attempt in range(_ATTEMPTS):
            if attempt > _UNPAUSED:
                await Pause(chance.random() * min(_LONGEST_PAUSE, 0.001 * attempt))
            batch = _Batch()
            try:
                for number, request in enumerate(requests):
                    await self._add(batch, request, taken.get(number, ()), again=attempt > 0)
                if self._projector.on:
                    for line, made in batch.by_line().items():
                        batch.show(await self._projector.rows(line, made))
                if self._indexer.on:
                    for line, made in batch.by_line().items():
                        batch.changes += await self._indexer.rows(line, made)
            except MissingNode:
                # Nodes go when a line is rewritten; if they are missing for good, it will not help to look again.
                swept += 1
                if swept > PATIENCE:
                    raise
                await self._start_over(requests)
                continue
            except (NotFoundError, InvalidError, CorruptError, ConflictError):
                # What is remembered of a line may be out of date, and the change right for how it is now.
                if await self._up_to_date(batch):
                    raise
                continue
            failed = await self._context.backend.apply(batch.changes)
            if failed is None:
                heads = [self.remember(each) for each in batch.steps]
                for rows in batch.rows:
                    self._projector.remember(rows)
                if len(heads) == len(requests):
                    return heads
                return [await self._head(request, each) for request, each in zip(requests, batch.made, strict=True)]
            await self._refused(requests, batch, failed, taken)
        raise ConflictError(
            f"others were first {_ATTEMPTS} times",
            where=f"thread {requests[0].line}",
            hint="Try again with fewer writers",
        )

    async def _head(self, request: AppendRequest, made: PreparedStep | StepRef) -> StepInfo:
        point = made.point if isinstance(made, PreparedStep) else made
        return await self._heads.head(request.line, point)

    async def _refused(
        self, requests: Sequence[AppendRequest], batch: _Batch, failed: int, taken: dict[int, list[Position]]
    ) -> None:
        """A condition did not hold: see whether to try again."""
        for rows in batch.rows:
            self._projector.forget(rows.line)
        number, condition, parent = batch.which(failed)
        if condition in (_Condition.ROWS, _Condition.GUARD):
            return
        request = requests[number]
        line = request.line
        if condition is _Condition.RIDER:
            raise name_taken(line)
        await self._lines.look(line)
        if request.id and await self._lines.existing(line, request.id, request.parent) is not None:
            raise IdTaken(request.id)
        if condition is _Condition.STEP:
            if request.on_conflict is OnConflict.REFUSE:
                raise ConflictError(
                    f"another checkpoint follows {'the start' if parent is None else parent.id} already",
                    where=f"thread {line}",
                    hint="Read the latest state and apply the change to it, or fork a branch",
                )
            taken.setdefault(number, []).append(_place_of(parent))

    async def _start_over(self, requests: Sequence[AppendRequest]) -> None:
        """Forget what was remembered of the lines."""
        for request in requests:
            tip = await self._lines.look(request.line)
            if tip is not None:
                parent = await self._parent(request, tip)
                if parent is not None:
                    self._states.forget(request.line, parent.hash)

    async def _up_to_date(self, batch: _Batch) -> bool:
        """Whether the lines are still as they were taken to be; by now, that is what is remembered of them."""
        return all([tip == await self._lines.look(line) for line, tip in batch.tips.items()])

    # One step -------------------------------------------------------------------------------------------------

    async def _add(self, batch: _Batch, request: AppendRequest, taken: Sequence[Position], *, again: bool) -> None:
        """Prepare a step on the parent that it names, as of now, and add it to the batch."""
        line = request.line
        before = batch.last(line) if batch.made else None
        if before is None:
            tip = batch.tips[line] = await self._lines.tip(line)
        else:
            tip = LineTip(before.info, before.point, sole=True)
        conditions: list[Change] = []
        if tip is None:
            if request.parent is not None and not isinstance(request.parent, Root) and request.parent != MAIN:
                await self._lines.find(line, request.parent)  # says what is wrong
            tip = LineTip(self._lines.new_info(), None, sole=True)
            conditions = [Create(LINES, info_row(line, tip.info))]
            batch.renewed.add(line)  # nobody can remember it yet
        elif before is None:
            conditions = [self._lines.unchanged(line, tip.info)]
        number = await self._lines.branch(line, request.parent.name) if isinstance(request.parent, OnBranch) else None
        earlier = batch.step(line, request.parent, number) if batch.made else None
        parent = await self._parent(request, tip) if earlier is None else earlier.point
        loaded = earlier.loaded if earlier is not None else None
        if loaded is None and parent is not None:
            loaded = await self._states.hold(line, parent)
            if loaded.form not in (0, tip.info.form):
                raise MissingNode("a line was rewritten")
        info = tip.info
        place, branches = None, False
        # Where only the latest was meant, the one who was first is the latest by now; unless its id is lower.
        gives_way = request.on_conflict is not OnConflict.BRANCH
        if request.opens or (taken and taken.count(_place_of(parent)) > gives_way):
            if request.opens:
                await self._lines.check_free(line, request.opens)
            place, branches = Position(max(await self._lines.free_branch(line), batch.free_branch(line)), 0), True
            if line not in batch.renewed:
                info = info._replace(version=info.version + 1)
                conditions.append(Put(LINES, info_row(line, info)))
                batch.renewed.add(line)
        elif number is not None and parent is not None and parent.branch != number:
            place = Position(number, 0)  # the first step of its own
        prepared = await self.prepare(request, info, parent, loaded, conditions, place, new_branch=branches)
        if request.guards is not None:
            for guard in await request.guards(again):
                prepared.add(guard, _Condition.GUARD)
        if not request.if_changed or parent is None or prepared.step.edit != EditMap():
            batch.add(prepared)
            return
        # Nothing changed: the parent stands for the step, and gets what was to be stored with it.
        if parent is tip.point and tip.sole and before is None:
            # It was only remembered to be the latest: that must still be so.
            conditions.append(Expect(STEPS, (*line, parent.branch, parent.seq + 1), None))
        batch.stay(parent, conditions, await self.riders(request, parent.id))

    async def riders(self, request: AppendRequest, id: str) -> list[Change]:
        """What is to be stored with a step that is there already, but for a name that it has."""
        riders: list[Change] = []
        for change in request.riders(id) if request.riders is not None else ():
            if isinstance(change, Create):
                (there,) = await self._context.backend.read([Get(change.space, [change.row.key])])
                if there and there[0].columns[0] != id:
                    raise name_taken(request.line)
                if there:
                    continue
            riders.append(change)
        return riders

    async def _parent(self, request: AppendRequest, tip: LineTip) -> StepRef | None:
        at, point = request.parent, tip.point
        if at is None:
            # Whoever does not want to give way is told of others who came since, and not of what was forgotten.
            remembered = tip.sole and request.on_conflict is not OnConflict.REFUSE
            return point if remembered else await self._lines.newest(request.line)
        if isinstance(at, Root):
            return None
        if at == MAIN and point is None:
            return None
        return point if point is not None and point.id == at else await self._lines.find(request.line, at)

    async def prepare(
        self,
        request: AppendRequest,
        info: LineInfo,
        parent: StepRef | None,
        loaded: LoadedState | None,
        conditions: Sequence[Change] = (),
        place: Position | None = None,
        *,
        new_branch: bool = False,
        revision: int = 0,
    ) -> PreparedStep:
        """Make a step of what is to be saved, and the changes that store it: after its parent, or at a given place."""
        line = request.line
        edit, packed = await self._edit(request, parent, loaded)
        time = request.time or self._context.clock()
        if parent is not None and time < parent.time:
            time = parent.time
        id = request.id or new_id(time, "" if parent is None else parent.id)
        parents = () if parent is None else (StepParent(parent.branch, parent.seq, parent.hash), *request.merged)
        header = StepHeader(id, parents, time, request.stamp, request.kind, request.schema, request.metadata)
        step = Step(header, edit)
        sizes = [len(operation) for _, operation in step.stored]
        objects: dict[bytes, bytes] = {}
        if max(sizes) > LARGE:
            edit, objects = set_aside(edit)
            step = Step(header, edit)
            sizes = [len(operation) for _, operation in step.stored]
        body = step_body(line, step, self._context.max_bytes)
        base = _place_of(parent)
        follows = place is None
        place = Position(base.branch, base.seq + 1) if place is None else place
        child = _child(loaded, WrittenBy(*place), edit, packed, sum(sizes))
        if objects:
            child.fresh = {**child.fresh, **objects}
        ws = None
        more: list[Ensure | Put] = []
        if len(child.tail) >= (request.fold_every or self._context.fold_every) or (
            request.fold_every and child.tail_weight > _HEAVY
        ):
            ws, root = await self._states.fold(line, child)
            more = [Ensure(NODES, node_row(line, info.form, node, data)) for node, data in ws.created.items()]
            more.append(Put(FOLDS, fold_row(line, place, step.commit, info.form, root)))
            objects.update(ws.objects)
            child = _folded(child, info.form, root, {**child.fresh, **ws.created, **ws.objects})
        for pointer, value in objects.items():
            more += [Ensure(OBJECTS, row) for row in object_rows(line, pointer, value)]
        size = len(body) if parent is None or not follows else len(body) + parent.size
        for stored in more:
            size += len(stored.row.body)
        depth = 0 if parent is None else parent.depth + 1
        point = StepRef(
            *place, id, revision, depth, step.commit, time, request.kind, request.readable, len(child.tail), size
        )
        prepared = PreparedStep(request, info, point, step, child, parent, ws)
        for condition in conditions:
            prepared.add(condition, _Condition.LINE)
        if new_branch:
            branch = Branch(place.branch, base.branch, base.seq + 1, time, request.opens)
            prepared.add(Create(BRANCHES, branch.row(line)), _Condition.BRANCH)
        prepared.add(Create(STEPS, point.row(line, body)), _Condition.STEP)
        prepared.changes += more
        for change in request.riders(id) if request.riders is not None else ():
            prepared.add(change, _Condition.RIDER)
        return prepared

    async def _edit(
        self, request: AppendRequest, parent: StepRef | None, loaded: LoadedState | None
    ) -> tuple[EditMap, PackedMap | None]:
        """What the step changes; and the state it makes, if that is at hand."""
        new = request.state
        if not isinstance(new, dict):
            return await new(parent, loaded), None
        if loaded is None:
            return diff_maps({}, new), new
        if loaded.known is None:
            # Nothing of the state is at hand: compare with its nodes, and read only what is unlike.
            ws, root = await self._states.fold(request.line, loaded)
            return await self._states.nodes(request.line, loaded, diff_folded(ws, root, new)), new
        base, since = loaded.known
        if since:
            base = await self._states.whole(request.line, loaded)
        return diff_maps(base, new), new

    def remember(self, prepared: PreparedStep) -> StepInfo:
        """Keep what was just stored in mind: it is what the next step will be compared with."""
        line, point, parent, loaded = prepared.request.line, prepared.point, prepared.parent, prepared.loaded
        loaded.head = head = prepared.head
        if loaded.fresh:
            loaded.fresh = {}
        self._lines.appended(line, prepared.info, point, parent)
        self._states.keep(line, point.hash, loaded)
        if prepared.ws is not None:
            self._states.keep_nodes(prepared.ws)
        if parent is not None:
            self._states.demote(line, parent.hash)
        return head


class _Batch:
    """Steps that are appended together."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.made: list[PreparedStep | StepRef] = []
        """For each step that was asked for, the one that was prepared, or the one that stands for it."""
        self.tips: dict[Line, LineTip | None] = {}
        """What the lines were taken to be."""
        self.renewed: set[Line] = set()
        """The lines that get a new version, or are new."""
        self.rows: list[RowChanges] = []
        """What goes with the steps, for people to read."""
        self._starts: list[tuple[int, dict[int, _Condition], StepRef | None]] = []
        """For each step, where its changes start, which of those are conditions, and its parent."""
        self._shown: set[int] = set()
        """Which changes are conditions of readable rows."""

    @property
    def steps(self) -> list[PreparedStep]:
        return [each for each in self.made if isinstance(each, PreparedStep)]

    def add(self, prepared: PreparedStep) -> None:
        """Another step."""
        self._starts.append((len(self.changes), prepared.conditions, prepared.parent))
        self.changes += prepared.changes
        self.made.append(prepared)

    def stay(self, parent: StepRef, conditions: Sequence[Change], riders: Sequence[Change]) -> None:
        """A step that its parent stands for, on conditions."""
        kinds = [_Condition.LINE] * len(conditions) + [_Condition.RIDER] * len(riders)
        self._starts.append((len(self.changes), dict(enumerate(kinds)), parent))
        self.changes += [*conditions, *riders]
        self.made.append(parent)

    def by_line(self) -> dict[Line, list[ProjectedStep]]:
        """The steps of each line, for readable rows to be made of them."""
        found: dict[Line, list[ProjectedStep]] = {}
        for each in self.steps:
            found.setdefault(each.request.line, []).append(each.made())
        return found

    def show(self, rows: RowChanges) -> None:
        """Readable rows of a line whose steps are all there."""
        start = len(self.changes)
        for place, change in enumerate(rows.changes):
            if isinstance(change, Expect):
                self._shown.add(start + place)
        self.changes += rows.changes
        self.rows.append(rows)

    def which(self, failed: int) -> tuple[int, _Condition, StepRef | None]:
        """The step, which of its conditions, and its parent, that a place in the batch belongs to."""
        number = max(number for number, (start, _, _) in enumerate(self._starts) if start <= failed)
        start, conditions, parent = self._starts[number]
        return number, _Condition.ROWS if failed in self._shown else conditions[failed - start], parent

    def last(self, line: Line) -> PreparedStep | None:
        """The step that comes last on a line so far."""
        return next((each for each in reversed(self.steps) if each.request.line == line), None)

    def step(self, line: Line, at: At, branch: int | None) -> PreparedStep | None:
        """The step that is named, or the last one of a branch, if it is one of these."""
        for each in reversed(self.steps):
            if each.request.line == line and (at is None or each.point.id == at or each.point.branch == branch):
                return each
        return None

    def free_branch(self, line: Line) -> int:
        """A number that no branch of these steps has."""
        return 1 + max((each.point.branch for each in self.steps if each.request.line == line), default=0)


def _place_of(parent: StepRef | None) -> Position:
    return Position(0, -1) if parent is None else Position(parent.branch, parent.seq)


def name_taken(line: Line) -> ConflictError:
    """The error for a name that another step has."""
    return ConflictError(
        "another checkpoint has the name", where=f"thread {line}", hint="Use another name, or move this one"
    )


def _child(
    loaded: LoadedState | None, origin: WrittenBy, edit: EditMap, packed: PackedMap | None, size: int
) -> LoadedState:
    """The state after an edit of another; packed, if that is at hand."""
    if loaded is None:
        loaded = LoadedState(EMPTY, 0, known=({}, ()))
    child = LoadedState(
        loaded.root, loaded.form, (*loaded.tail, (origin, edit)), loaded.tail_weight + size, fresh=loaded.fresh
    )
    touched = loaded.touched
    if touched is not None:
        child.recent, child.touched = loaded.recent, touched.copy()
        touch(child.touched, origin, edit)
    if packed is not None:
        # About what it was, and what was added; it is weighed anew when it is folded.
        child.known = (packed, ())
        child.known_weight = loaded.known_weight + size if loaded.known_weight else weigh(packed)
    elif loaded.known is not None:
        base, since = loaded.known
        child.known, child.known_weight = (base, (*since, edit)), loaded.known_weight
    return child


def touch(touched: dict[bytes, tuple[WrittenBy, Operation | None]], origin: WrittenBy, edit: EditMap) -> None:
    """Add the keys that a step changes to those that others before it did, as `Held.touched` has them."""
    for key in edit.removed:
        touched[key] = origin, None
    for key, operation in edit.put:
        touched[key] = origin, operation


def _folded(loaded: LoadedState, form: int, root: MapRoot, fresh: Mapping[bytes, bytes]) -> LoadedState:
    """The same state, folded."""
    known = loaded.known
    if known is not None and len(known[1]) >= len(loaded.tail):
        known = None  # applying so many changes would cost more than reading the nodes
    folded = LoadedState(root, form, (), 0, known, weigh(known[0]) if known else 0, fresh)
    if loaded.touched is not None:
        folded.touched = {}
        if len(loaded.touched) <= _RECENT:
            folded.recent = loaded.touched
    return folded
