"""Comparison of two states: of one thread, of two threads, or a stored and a given one. Reads only what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.model import fold
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.json_diff import Edit, edits, pointers_in
from holdfast.engine.model.line_salt import NO_SALT
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
from holdfast.history.revisions import find_step

T = TypeVar("T")


class ComparedPoint(NamedTuple):
    """A step of a line, or, without a point, the empty state before its first."""

    line: Line
    point: StepRef | None


class _ComparedState(NamedTuple):
    """A state as far as it is loaded. `loaded` is None if it is not stored."""

    line: Line
    loaded: LoadedState | None
    side: FoldedSide


async def compare_revisions(engine: Engine, line: Line, a: Revision | None, b: Revision, *, large: bool) -> Diff:
    """Compare two checkpoints of a thread; without `a`, compare `b` with its parent."""
    new = await find_point(engine, line, b)
    old = await find_parent(engine, new) if a is None else await find_point(engine, line, a)
    return await compare(engine, old, new, large=large)


async def find_point(engine: Engine, line: Line, revision: Revision) -> ComparedPoint:
    return ComparedPoint(line, await find_step(engine, line, revision))


async def find_parent(engine: Engine, step: ComparedPoint) -> ComparedPoint:
    """Return the first parent of a step, or the empty state."""
    if step.point is None:
        return step
    head = await engine.step_info.head(step.line, step.point)
    if not head.header.parents:
        return ComparedPoint(step.line, None)
    parent = head.header.parents[0]
    try:
        return ComparedPoint(step.line, await engine.lines.find(step.line, Position(parent.branch, parent.seq)))
    except NotFoundError:
        raise NotFoundError(
            f"the checkpoint before {step.point.id} was pruned",
            where=f"thread {step.line}",
            hint="Name the checkpoint to compare it with; log() lists them",
        ) from None


async def compare(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | Mapping[str, Any], *, large: bool = False
) -> Diff:
    """Compare two states. With `large`, large values that differ are fetched."""
    codec = engine.context.codec
    right: ComparedPoint | _ComparedState
    if isinstance(new, ComparedPoint):
        right = new
    else:
        right = _pack_given(old.line, pack_state(codec, new), await engine.lines.salt(old.line))
    edits = await differences(engine, old, right, large=large)
    return Diff(codec, _side(old), _side(right if isinstance(right, ComparedPoint) else None), edits)


async def compare_packed(
    engine: Engine, old: ComparedPoint, old_state: PackedMap, new: ComparedPoint, new_state: PackedMap
) -> Diff:
    """Compare two packed states that were made of those at two steps."""
    left, right = _pack_given(old.line, old_state), _pack_given(new.line, new_state)
    delta = await _run_walk(engine, left, right, diff_trees(left.side, right.side, None))
    codec = engine.context.codec
    return Diff(codec, _side(old), _side(new), edits(codec, delta, {**left.side.ws.objects, **right.side.ws.objects}))


async def differences(
    engine: Engine,
    old: ComparedPoint,
    new: ComparedPoint | _ComparedState,
    *,
    only: bytes | None = None,
    large: bool = False,
) -> list[Edit]:
    """Return the edits from one state to another; `only` those in one channel, by its packed name."""

    async def with_old(old_point: StepRef | None) -> list[Edit]:
        async def with_new(new_point: StepRef | None) -> list[Edit]:
            right = new._replace(point=new_point) if isinstance(new, ComparedPoint) else new
            return await _differences(engine, old._replace(point=old_point), right, only, large)

        point = new.point if isinstance(new, ComparedPoint) else None
        return await (with_new(None) if point is None else engine.lines.read_step(new.line, point, with_new))

    return await (with_old(None) if old.point is None else engine.lines.read_step(old.line, old.point, with_old))


async def differences_given(engine: Engine, line: Line, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Edit]:
    """Return the edits between two states that are not stored."""
    codec = engine.context.codec
    left, right = (_pack_given(line, pack_state(codec, state)) for state in (old, new))
    delta = await _run_walk(engine, left, right, diff_trees(left.side, right.side, None))
    return edits(codec, delta, {**left.side.ws.objects, **right.side.ws.objects})


async def _differences(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | _ComparedState, only: bytes | None, large: bool
) -> list[Edit]:
    try:
        return await _compare(engine, old, new, only, large)
    except MissingNode:
        # The line may have been rewritten since a state was cached.
        for side in (old, new):
            if isinstance(side, ComparedPoint) and side.point is not None:
                engine.states.forget(side.line, side.point.hash)
        return await _compare(engine, old, new, only, large)


async def _compare(
    engine: Engine, old: ComparedPoint, new: ComparedPoint | _ComparedState, only: bytes | None, large: bool
) -> list[Edit]:
    left = await _load(engine, old)
    right = await _load(engine, new) if isinstance(new, ComparedPoint) else new
    if left.loaded is not None and right.loaded is not None and left.side.ws.salt != right.side.ws.salt:
        # Nodes and pointers to large values have other names in another line, and are compared by content.
        left, right = [
            _pack_given(state.line, await engine.states.values(state.line, step.point))
            for state, step in ((left, old), (right, new))
            if isinstance(step, ComparedPoint) and step.point is not None
        ]
    delta = await _run_walk(engine, left, right, diff_trees(left.side, right.side, only))
    codec = engine.context.codec
    result = edits(codec, delta, {})
    if not large:
        return result
    fetched: dict[bytes, bytes] = {}
    for state, trees in ((left, [edit.old for edit in result]), (right, [edit.new for edit in result])):
        pointers = {pointer for tree in trees for pointer in pointers_in(tree)}
        cached = {**(state.loaded.fresh if state.loaded is not None else {}), **state.side.ws.objects}
        fetched |= {pointer: cached[pointer] for pointer in pointers & cached.keys()}
        fetched |= await engine.states.load_large(state.line, pointers - cached.keys())
    return edits(codec, delta, fetched) if fetched else result


async def _load(engine: Engine, step: ComparedPoint) -> _ComparedState:
    """Load a state, and fold the steps since its last fold in memory."""
    if step.point is None:
        return _ComparedState(step.line, None, FoldedSide(Workspace(), EMPTY))
    loaded = await engine.states.get(step.line, step.point)
    salt = await engine.lines.salt(step.line)
    return _ComparedState(step.line, loaded, FoldedSide(*await engine.states.fold(step.line, loaded, salt)))


def _pack_given(line: Line, packed: PackedMap, salt: bytes = NO_SALT) -> _ComparedState:
    ws = Workspace(salt)
    edit = EditMap((), tuple((key, Set(flatten(value))) for key, value in packed.items()))
    rounds = fold.fold(ws, EMPTY, [(WrittenBy(0, 0), edit)], ws.objects.__getitem__)
    try:
        next(rounds)
    except StopIteration as done:
        return _ComparedState(line, None, FoldedSide(ws, done.value, whole=True))
    raise AssertionError("folding a new state must not need stored nodes")


async def _run_walk(engine: Engine, old: _ComparedState, new: _ComparedState, walk: Walk[T]) -> T:
    """Run a walk over two states, and send it the nodes that it requests."""
    try:
        request = next(walk)
        while True:
            request = walk.send(await _nodes(engine, old, new, request))
    except StopIteration as done:
        result: T = done.value
        return result


async def _nodes(
    engine: Engine, old: _ComparedState, new: _ComparedState, request: Asked
) -> tuple[Mapping[NodeId, bytes], Mapping[NodeId, bytes]]:
    left, right = request
    if (
        old.loaded is not None
        and new.loaded is not None
        and old.line == new.line
        and old.loaded.form == new.loaded.form
    ):
        # One read for both: the same id is the same node.
        fresh = {**old.loaded.fresh, **new.loaded.fresh}
        loaded = LoadedState(old.loaded.root, old.loaded.form, fresh=fresh)
        nodes = await engine.states.nodes(old.line, loaded, _request(list(dict.fromkeys((*left, *right)))))
        return nodes, nodes
    sides = []
    for state, ids in ((old, left), (new, right)):
        stored: Mapping[NodeId, bytes] = {}
        if ids and state.loaded is not None:
            stored = await engine.states.nodes(state.line, state.loaded, _request(ids))
        sides.append(stored)
    return sides[0], sides[1]


def _request(ids: list[NodeId]) -> Rounds[Mapping[NodeId, bytes]]:
    return (yield ids)


def _side(step: ComparedPoint | None) -> DiffSide:
    if step is None or step.point is None:
        return DiffSide("" if step is None else step.line.name, "", 0, 0, None)
    point = step.point
    return DiffSide(step.line.name, point.id, point.branch, point.depth, to_datetime(point.time))
