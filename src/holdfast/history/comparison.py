"""Comparing two states: of one thread, of two, or of a thread and one that is given. Reads only what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.model import fold
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.json_diff import Edit, edits, pointers_in
from holdfast.engine.model.nodes import NodeId, WrittenBy
from holdfast.engine.model.operations import EditMap, Set
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_state
from holdfast.engine.model.tree_diff import Asked, FoldedSide, Walk, diff_trees
from holdfast.engine.model.workspace import MissingNode, Rounds, Workspace
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.types import Revision, to_datetime
from holdfast.errors import NotFoundError
from holdfast.history.diff_result import Diff, DiffSide
from holdfast.history.revisions import resolve

T = TypeVar("T")


class ComparedPoint(NamedTuple):
    """A step of a line; without one, the empty state before the first."""

    line: Line
    point: StepRef | None


class _Read(NamedTuple):
    """A state that is compared, as far as it is at hand. `held` is None if it is in no store."""

    line: Line
    held: LoadedState | None
    side: FoldedSide


async def compare_revisions(engine: Engine, line: Line, a: Revision | None, b: Revision, *, large: bool) -> Diff:
    """The difference of two checkpoints of a thread; of one and its parent, if only one is named."""
    new = await spot(engine, line, b)
    old = await before(engine, new) if a is None else await spot(engine, line, a)
    return await compare(engine, old, new, large=large)


async def spot(engine: Engine, line: Line, revision: Revision) -> ComparedPoint:
    """The step that a revision names."""
    return ComparedPoint(line, await resolve(engine, line, revision))


async def before(engine: Engine, spot: ComparedPoint) -> ComparedPoint:
    """The step that a step follows, or the empty state before the first."""
    if spot.point is None:
        return spot
    head = await engine.step_info.head(spot.line, spot.point)
    if not head.header.parents:
        return ComparedPoint(spot.line, None)
    parent = head.header.parents[0]
    try:
        return ComparedPoint(spot.line, await engine.lines.find(spot.line, Position(parent.branch, parent.seq)))
    except NotFoundError:
        raise NotFoundError(
            f"the checkpoint before {spot.point.id} was pruned",
            where=f"thread {spot.line}",
            hint="Name the checkpoint to compare it with; see log() for those that are there",
        ) from None


async def compare(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | Mapping[str, Any], *, large: bool = False
) -> Diff:
    """What differs between two states. With `large`, large values that differ are fetched."""
    codec = engine.context.codec
    right = new if isinstance(new, ComparedPoint) else _given(old.line, pack_state(codec, new))
    found = await differences(engine, old, right, large=large)
    return Diff(codec, _named(old), _named(right if isinstance(right, ComparedPoint) else None), found)


async def differences(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | _Read, *, only: bytes | None = None, large: bool = False
) -> list[Edit]:
    """The same, place by place; `only` those in a channel, by its packed name."""

    async def with_old(old_point: StepRef | None) -> list[Edit]:
        async def with_new(new_point: StepRef | None) -> list[Edit]:
            right = new._replace(point=new_point) if isinstance(new, ComparedPoint) else new
            return await _differences(engine, old._replace(point=old_point), right, only, large)

        point = new.point if isinstance(new, ComparedPoint) else None
        return await (with_new(None) if point is None else engine.lines.read_step(new.line, point, with_new))

    return await (with_old(None) if old.point is None else engine.lines.read_step(old.line, old.point, with_old))


async def differences_given(engine: Engine, line: Line, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Edit]:
    """The same of two states that are given, both of a line's, with all of their values."""
    codec = engine.context.codec
    left, right = (_given(line, pack_state(codec, each)) for each in (old, new))
    delta = await _driven(engine, left, right, diff_trees(left.side, right.side, None))
    return edits(codec, delta, {**left.side.ws.objects, **right.side.ws.objects})


async def _differences(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | _Read, only: bytes | None, large: bool
) -> list[Edit]:
    try:
        return await _walked(engine, old, new, only, large)
    except MissingNode:
        # The line may have been rewritten since a state was first looked at.
        for spot in (old, new):
            if isinstance(spot, ComparedPoint) and spot.point is not None:
                engine.states.forget(spot.line, spot.point.hash)
        return await _walked(engine, old, new, only, large)


async def _walked(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | _Read, only: bytes | None, large: bool
) -> list[Edit]:
    left = await _read(engine, old)
    right = await _read(engine, new) if isinstance(new, ComparedPoint) else new
    delta = await _driven(engine, left, right, diff_trees(left.side, right.side, only))
    codec = engine.context.codec
    found = edits(codec, delta, {})
    if not large:
        return found
    fetched: dict[bytes, bytes] = {}
    for read, trees in ((left, [edit.old for edit in found]), (right, [edit.new for edit in found])):
        pointers = {pointer for tree in trees for pointer in pointers_in(tree)}
        at_hand = {**(read.held.fresh if read.held is not None else {}), **read.side.ws.objects}
        fetched |= {pointer: at_hand[pointer] for pointer in pointers & at_hand.keys()}
        fetched |= await engine.states.load_large(read.line, pointers - at_hand.keys())
    return edits(codec, delta, fetched) if fetched else found


async def _read(engine: Engine, spot: ComparedPoint) -> _Read:
    """A state, the steps since it was last folded folded in memory."""
    if spot.point is None:
        return _Read(spot.line, None, FoldedSide(Workspace(), EMPTY))
    held = await engine.states.get(spot.line, spot.point)
    return _Read(spot.line, held, FoldedSide(*await engine.states.fold(spot.line, held)))


def _given(line: Line, packed: PackedMap) -> _Read:
    """A state that is in no store."""
    ws = Workspace()
    edit = EditMap((), tuple((key, Set(flatten(value))) for key, value in packed.items()))
    rounds = fold.fold(ws, EMPTY, [(WrittenBy(0, 0), edit)], ws.objects.__getitem__)
    try:
        next(rounds)
    except StopIteration as done:
        return _Read(line, None, FoldedSide(ws, done.value, whole=True))
    raise AssertionError("a state that starts from nothing needs no stored nodes")


async def _driven(engine: Engine, old: _Read, new: _Read, walk: Walk[T]) -> T:
    """What a walk over two states finds; it is sent the nodes it asks for."""
    try:
        asked = next(walk)
        while True:
            asked = walk.send(await _nodes(engine, old, new, asked))
    except StopIteration as done:
        found: T = done.value
        return found


async def _nodes(
    engine: Engine, old: _Read, new: _Read, asked: Asked
) -> tuple[Mapping[NodeId, bytes], Mapping[NodeId, bytes]]:
    left, right = asked
    if old.held is not None and new.held is not None and old.line == new.line and old.held.form == new.held.form:
        # One read for both: an id names the same node wherever it stands.
        fresh = {**old.held.fresh, **new.held.fresh}
        held = LoadedState(old.held.root, old.held.form, fresh=fresh)
        found = await engine.states.nodes(old.line, held, _ask(list(dict.fromkeys((*left, *right)))))
        return found, found
    sides = []
    for read, ids in ((old, left), (new, right)):
        stored: Mapping[NodeId, bytes] = {}
        if ids and read.held is not None:
            stored = await engine.states.nodes(read.line, read.held, _ask(ids))
        sides.append(stored)
    return sides[0], sides[1]


def _ask(ids: list[NodeId]) -> Rounds[Mapping[NodeId, bytes]]:
    return (yield ids)


def _named(spot: ComparedPoint | None) -> DiffSide:
    if spot is None or spot.point is None:
        return DiffSide("" if spot is None else spot.line.name, "", 0, 0, None)
    point = spot.point
    return DiffSide(spot.line.name, point.id, point.branch, point.depth, to_datetime(point.time))
