"""Appending steps: the hot path.

A step is prepared against its parent: the difference of the two states, its hash, perhaps the nodes of a fold; then it
is created at the parent's place plus one, which only one step can have. Whoever loses opens a branch, is refused, or
tries again on top of the winner, as the caller wants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from holdfast.backends.port import Change, Create, Ensure, Put
from holdfast.backends.spaces import BRANCHES, FOLDS, LINES, NODES, OBJECTS, STEPS
from holdfast.engine.ground import Ground
from holdfast.engine.heads import Head
from holdfast.engine.ids import new_id
from holdfast.engine.lines import At, Lines, Memo, OnBranch, Place, Root
from holdfast.engine.records import (
    Branch,
    Info,
    Line,
    Point,
    fold_row,
    info_row,
    node_row,
    object_rows,
    step_body,
)
from holdfast.engine.states import Held, States, weigh
from holdfast.errors import Conflict
from holdfast.model.diff import diff_maps
from holdfast.model.drafts import EMPTY
from holdfast.model.folded import diff_folded
from holdfast.model.large import set_aside
from holdfast.model.nodes import MapRoot, Origin
from holdfast.model.objects import LARGE
from holdfast.model.operations import EditMap
from holdfast.model.packed import PackedMap
from holdfast.model.steps import Header, Parent, Step
from holdfast.model.trees import MissingNode, Workspace

_ATTEMPTS = 1000
"""How often an append gives way to others before it gives up. Each time, somebody else got through."""


class OnConflict(Enum):
    """What to do when another step took the place after the parent."""

    RETRY = "retry"
    """Append to the latest step, whichever that is by now."""
    BRANCH = "branch"
    """Open a branch at the parent."""
    REFUSE = "refuse"
    """Raise `Conflict`."""


Edit: TypeAlias = "Callable[[Point | None, Held | None], Awaitable[EditMap]]"
"""Works out what to change of the parent's state, given the parent as of the attempt."""


@dataclass(slots=True)
class Saving:
    """What is to be appended: a whole packed state, or an edit of the parent's."""

    line: Line
    state: PackedMap | Edit
    parent: At = None
    on_conflict: OnConflict = OnConflict.RETRY
    id: str = ""
    metadata: bytes = b"\x80"
    readable: str = ""
    kind: str = "save"
    riders: Callable[[str], Sequence[Change]] | None = None
    """Given the step's id, changes that are made together with the step, or not at all."""
    if_changed: bool = False
    """Save nothing where the state is the parent's; the parent then stands for the step."""
    stamp: str = ""
    schema: str = ""
    time: int = 0
    """When it was, for steps that are moved; now, if 0."""


@dataclass(slots=True)
class Prepared:
    """A step ready to be committed, with the changes that make it, some of them on a condition."""

    saving: Saving
    info: Info
    point: Point
    step: Step
    held: Held
    parent: Point | None
    ws: Workspace | None
    changes: list[Change] = field(default_factory=list)
    conditions: dict[int, _Condition] = field(default_factory=dict)

    def add(self, change: Change, condition: _Condition) -> None:
        """Another change, made on a condition."""
        self.conditions[len(self.changes)] = condition
        self.changes.append(change)


class _Condition(Enum):
    LINE = "the line is as it was"
    BRANCH = "the branch's number is free"
    STEP = "the place is free"
    RIDER = "the caller's own"


class IdTaken(Exception):
    """Another step has got the id meanwhile."""


class Appender:
    """Appends steps to lines."""

    def __init__(self, ground: Ground, lines: Lines, states: States) -> None:
        self._ground = ground
        self._lines = lines
        self._states = states

    async def append(self, *savings: Saving) -> list[Point]:
        """Append one step to each of some lines, all or none; several to one line follow each other."""
        taken: dict[int, list[bytes]] = {}  # for each step, the parents whose next place others had
        swept = 0
        for _ in range(_ATTEMPTS):
            prepared: list[Prepared] = []
            try:
                for number, saving in enumerate(savings):
                    each = await self._prepare_now(saving, prepared, taken.get(number, []))
                    if saving.if_changed and each.parent is not None and each.step.edit == EditMap():
                        return [each.parent]
                    prepared.append(each)
            except MissingNode:
                # Nodes go when a line is rewritten; if they are missing for good, it will not help to look again.
                swept += 1
                if swept > 2:
                    raise
                await self._start_over(savings)
                continue
            changes = prepared[0].changes if len(prepared) == 1 else [c for each in prepared for c in each.changes]
            failed = await self._ground.backend.apply(changes)
            if failed is None:
                for each in prepared:
                    self.remember(each)
                return [each.point for each in prepared]
            number, condition = _which(prepared, failed)
            line, id = savings[number].line, savings[number].id
            await self._lines.look(line)
            if id and await self._lines.existing(line, id) is not None:
                raise IdTaken(id)
            if condition is _Condition.STEP:
                self._place_taken(prepared[number], taken.setdefault(number, []))
            elif condition is _Condition.RIDER:
                raise Conflict(
                    "the step's name, or something else that it was to be stored with, is taken",
                    where=f"line {savings[number].line}",
                    hint="Use another name",
                )
        raise Conflict(
            f"others were first {_ATTEMPTS} times", where=f"line {savings[0].line}", hint="Try again with fewer writers"
        )

    async def _start_over(self, savings: Sequence[Saving]) -> None:
        """Forget what was remembered of the lines."""
        for saving in savings:
            memo = await self._lines.look(saving.line)
            if memo is not None:
                parent = await self._parent(saving, memo)
                if parent is not None:
                    self._states.forget(saving.line, parent.hash)

    def _place_taken(self, prepared: Prepared, taken: list[bytes]) -> None:
        """Somebody else followed the parent first."""
        saving, parent = prepared.saving, prepared.parent
        if saving.on_conflict is OnConflict.REFUSE:
            raise Conflict(
                f"another step follows {'the start' if parent is None else f'step {parent.id}'} already",
                where=f"line {saving.line}",
                hint="Read the latest state and apply the change to it, or fork a branch",
            )
        taken.append(b"" if parent is None else parent.hash)

    async def _prepare_now(self, saving: Saving, before: Sequence[Prepared], taken: list[bytes]) -> Prepared:
        """Prepare a step on the parent that it names, as of now."""
        line = saving.line
        for each in reversed(before):
            if each.saving.line == line and saving.parent in (None, each.point.id):
                return await self.prepare(saving, each.info, each.point, each.held)
        memo = await self._lines.memo(line)
        if memo is None:
            if saving.parent is not None and not isinstance(saving.parent, Root):
                await self._lines.find(line, saving.parent)  # says what is wrong
            info = self._lines.new_info()
            return await self.prepare(saving, info, None, None, [Create(LINES, info_row(line, info))])
        info = memo.info
        parent = await self._parent(saving, memo)
        held = None if parent is None else await self._states.hold(line, parent)
        if held is not None and held.form not in (0, info.form):
            raise MissingNode("a line was rewritten")
        tries = taken.count(b"" if parent is None else parent.hash) if taken else 0
        # Where only the latest was meant, the one who was first is the latest by now; unless its id is lower.
        if tries > (saving.on_conflict is OnConflict.RETRY):
            branch = Place(await self._lines.free_branch(line), 0)
            fresh = info._replace(version=info.version + 1)
            return await self.prepare(
                saving, fresh, parent, held, self._lines.renewed(line, info), branch, new_branch=True
            )
        place = None
        if isinstance(saving.parent, OnBranch) and parent is not None and parent.branch != saving.parent.branch:
            place = Place(saving.parent.branch, 0)  # the first step of its own
        return await self.prepare(saving, info, parent, held, [self._lines.unchanged(line, info)], place)

    async def _parent(self, saving: Saving, memo: Memo) -> Point | None:
        at, point = saving.parent, memo.point
        if at is None:
            return point if memo.sole else await self._lines.newest(saving.line)
        if isinstance(at, Root):
            return None
        return point if point is not None and point.id == at else await self._lines.find(saving.line, at)

    async def prepare(
        self,
        saving: Saving,
        info: Info,
        parent: Point | None,
        held: Held | None,
        conditions: Sequence[Change] = (),
        place: Place | None = None,
        *,
        new_branch: bool = False,
        revision: int = 0,
    ) -> Prepared:
        """Make a step of what is to be saved, and the changes that store it: after its parent, or at a given place."""
        line = saving.line
        edit, packed = await self._edit(saving, parent, held)
        time = saving.time or self._ground.clock()
        if parent is not None and time < parent.time:
            time = parent.time
        id = saving.id or new_id(time, "" if parent is None else parent.id)
        parents = () if parent is None else (Parent(parent.branch, parent.seq, parent.hash),)
        header = Header(id, parents, time, saving.stamp, saving.kind, saving.schema, saving.metadata)
        step = Step(header, edit)
        objects: dict[bytes, bytes] = {}
        if max(len(operation) for _, operation in step.stored) > LARGE:
            edit, objects = set_aside(edit)
            step = Step(header, edit)
        body = step_body(line, step)
        base = Place(0, -1) if parent is None else Place(parent.branch, parent.seq)
        follows = place is None
        place = Place(base.branch, base.seq + 1) if place is None else place
        child = _child(held, Origin(*place), edit, packed, len(body))
        if objects:
            child.fresh = {**child.fresh, **objects}
        ws = None
        more: list[Ensure | Put] = []
        if len(child.tail) >= self._ground.fold_every:
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
        point = Point(*place, id, revision, step.commit, time, saving.kind, saving.readable, len(child.tail), size)
        prepared = Prepared(saving, info, point, step, child, parent, ws)
        for condition in conditions:
            prepared.add(condition, _Condition.LINE)
        if new_branch:
            branch = Branch(place.branch, base.branch, base.seq + 1, time, "")
            prepared.add(Create(BRANCHES, branch.row(line)), _Condition.BRANCH)
        prepared.add(Create(STEPS, point.row(line, body)), _Condition.STEP)
        prepared.changes += more
        for change in saving.riders(id) if saving.riders is not None else ():
            prepared.add(change, _Condition.RIDER)
        return prepared

    async def _edit(self, saving: Saving, parent: Point | None, held: Held | None) -> tuple[EditMap, PackedMap | None]:
        """What the step changes; and the state it makes, if that is at hand."""
        new = saving.state
        if not isinstance(new, dict):
            return await new(parent, held), None
        if held is None:
            return diff_maps({}, new), new
        if held.known is None:
            # Nothing of the state is at hand: compare with its nodes, and read only what is unlike.
            ws, root = await self._states.fold(saving.line, held)
            return await self._states.nodes(saving.line, held, diff_folded(ws, root, new)), new
        base, since = held.known
        if since:
            base = await self._states.whole(saving.line, held)
        return diff_maps(base, new), new

    def remember(self, prepared: Prepared) -> None:
        """Keep what was just stored in mind: it is what the next step will be compared with."""
        line, point, parent, held = prepared.saving.line, prepared.point, prepared.parent, prepared.held
        held.head = Head(point, prepared.step.header, None if parent is None else parent.id)
        if held.fresh:
            held.fresh = {}
        self._lines.appended(line, prepared.info, point, parent)
        self._states.keep(line, point.hash, held)
        if prepared.ws is not None:
            self._states.keep_nodes(prepared.ws)
        if parent is not None:
            self._states.demote(line, parent.hash)


def _child(held: Held | None, origin: Origin, edit: EditMap, packed: PackedMap | None, size: int) -> Held:
    """The state after an edit of another; packed, if that is at hand."""
    if held is None:
        held = Held(EMPTY, 0, known=({}, ()))
    child = Held(held.root, held.form, (*held.tail, (origin, edit)), held.tail_weight + size, fresh=held.fresh)
    if packed is not None:
        child.known, child.known_weight = (packed, ()), weigh(packed)
    elif held.known is not None:
        base, since = held.known
        child.known, child.known_weight = (base, (*since, edit)), held.known_weight
    return child


def _folded(held: Held, form: int, root: MapRoot, fresh: Mapping[bytes, bytes]) -> Held:
    """The same state, folded."""
    known = held.known
    if known is not None and len(known[1]) >= len(held.tail):
        known = None  # applying so many changes would cost more than reading the nodes
    return Held(root, form, (), 0, known, held.known_weight if known else 0, fresh)


def _which(prepared: Sequence[Prepared], failed: int) -> tuple[int, _Condition]:
    """The step, and which of its conditions, that a place in the batch belongs to."""
    for number, each in enumerate(prepared):
        if failed < len(each.changes):
            return number, each.conditions[failed]
        failed -= len(each.changes)
    raise AssertionError("a store named a change that it was not given")
