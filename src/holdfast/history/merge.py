"""Merge: a step with two parents, whose state has the changes of both since their common ancestor.

The merge is a step on top of the target, and its second parent is the other side, also if the target has no changes of
its own: there is no fast-forward, since a branch is a sequence of steps, not a movable name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.branch_graph import Position
from holdfast.engine.delta_channels import KEPT, UnreadDeltas
from holdfast.engine.engine import Engine
from holdfast.engine.lines import At, OnBranch
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.merge import PackedConflict, PackedResolution, Resolver, ours, theirs, union
from holdfast.engine.model.merge import Path as PackedPath
from holdfast.engine.model.merge import merge as merge_states
from holdfast.engine.model.missing import MISSING, MissingType
from holdfast.engine.model.operations import EditMap, has_operator
from holdfast.engine.model.operator_runs import OperatorRuns, operator_runs
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state, unpack, unpack_state
from holdfast.engine.model.steps import StepParent
from holdfast.engine.optimistic import Attempts
from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.row_format import MERGE, Line, StepRef
from holdfast.engine.schema_bindings import ASIDE, KEPT_SCHEMA
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import Revision
from holdfast.errors import ConflictError, InvalidError, UnsupportedError
from holdfast.history.ancestry import Ancestry, CommonAncestors
from holdfast.history.langgraph_compat import HeadMoved, latest_id, only_after, step_fields, without_follows
from holdfast.history.log_walk import LogWalk
from holdfast.history.revisions import Revisions, find_step

_LISTED = 8
"""How many conflicts the message of an error names."""


UNRESOLVED: Final = MissingType("UNRESOLVED")
"""Returned by a function that does not resolve a conflict."""


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """Both sides changed the same value differently. A side without a value there has `MISSING`.

    If `path` ends in a slice, the values are lists of the items in that range, and so is the resolution. A function
    that resolves it returns the value, `MISSING`, or `UNRESOLVED` to leave it to the strategy.
    """

    UNRESOLVED = UNRESOLVED

    path: tuple[Any, ...]
    base: Any
    ours: Any
    theirs: Any

    @property
    def where(self) -> str:
        """The path as text: `plan.steps[3]`."""
        return path_text(self.path)


Resolution: TypeAlias = "str | Callable[[MergeConflict], Any]"
"""`"ours"`, `"theirs"`, `"union"`, or a function that takes a conflict and returns the value, `MISSING` or
`UNRESOLVED`."""

Resolve: TypeAlias = "Callable[[MergeConflict], Any] | Mapping[str, Resolution]"
"""A function for all conflicts, or resolutions by the path they are at or below: `{"messages": "union"}`."""

_PAGE = 256
"""How many steps are read at a time."""

_STRATEGIES: dict[str, Resolver] = {"ours": ours, "theirs": theirs, "union": union}


async def merge(
    engine: Engine,
    line: Line,
    theirs: Revision,
    into: Revision = "HEAD",
    *,
    strategy: str | None = None,
    resolve: Resolve | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> StepInfo:
    """Merge a revision into a branch, into the latest checkpoint (`HEAD`), or on top of a checkpoint.

    Returns the merge, or the current head if there is nothing to merge. Steps that others add to the branch meanwhile
    are merged, too; a checkpoint that `into` names must be the last. Raises `ConflictError` with the unresolved
    `conflicts`, and saves nothing then.
    """
    return await _Merge(engine, line, theirs, into, strategy, resolve, dict(metadata or {})).save()


async def preview_merge(
    engine: Engine,
    line: Line,
    theirs: Revision,
    into: Revision = "HEAD",
    *,
    strategy: str | None = None,
    resolve: Resolve | None = None,
) -> tuple[StepInfo, dict[str, Any]]:
    """Return the step that `merge` would merge into, and the state that the merge would have. Saves nothing."""
    return await _Merge(engine, line, theirs, into, strategy, resolve, {}).preview()


class _MergedState(NamedTuple):
    """The state of a merge, with what it was made from. `base` is None if there is no common ancestor, or not now."""

    base: StepRef | None
    ours: PackedMap
    state: PackedMap
    delta: UnreadDeltas


class _Merge:
    """One merge, repeated while others add to its target."""

    def __init__(
        self,
        engine: Engine,
        line: Line,
        theirs: Revision,
        into: Revision,
        strategy: str | None,
        resolve: Resolve | None,
        metadata: dict[str, Any],
    ) -> None:
        if strategy is not None and strategy not in _STRATEGIES:
            raise InvalidError(f"the strategy must be 'ours', 'theirs' or 'union', not {strategy!r}")
        if resolve is not None and not callable(resolve) and not isinstance(resolve, Mapping):
            raise InvalidError(
                f"resolve must be a function or a dict by path, not {resolve!r}",
                hint='As in {"messages": "union"}; use strategy= for all conflicts',
            )
        self._engine = engine
        self._codec = engine.context.codec
        self._line = line
        self._theirs = theirs
        self._into = into
        self._strategy = strategy
        self._resolver = _Resolver(engine.context.codec, strategy, resolve)
        self._metadata = metadata

    async def save(self) -> StepInfo:
        engine, line = self._engine, self._line
        theirs = await find_step(engine, line, self._theirs)
        attempts = Attempts("merging a branch", line, engine.context.metrics)
        while True:
            await attempts.begin()
            await engine.lines.info(line)  # refreshes the cached tip of the line
            ours, parent, on_conflict = await self._target()
            common = await Ancestry(engine, line, await engine.lines.branch_graph(line)).common(ours, theirs)
            if common.is_merged:
                return await engine.step_info.head(line, ours)
            request = await self._build_request(ours, theirs, common)
            request.parent, request.on_conflict = parent, on_conflict
            try:
                return (await engine.writer.save(request))[0]
            except HeadMoved:
                continue

    async def preview(self) -> tuple[StepInfo, dict[str, Any]]:
        engine, line = self._engine, self._line
        theirs = await find_step(engine, line, self._theirs)
        await engine.lines.info(line)  # refreshes the cached tip of the line
        ours, _, _ = await self._target()
        common = await Ancestry(engine, line, await engine.lines.branch_graph(line)).common(ours, theirs)
        if common.is_merged:
            packed = await self._state(ours)
        else:
            packed = (await self._merge_states(ours, theirs, common)).state
        return await engine.step_info.head(line, ours), unpack_state(self._codec, packed)

    async def _target(self) -> tuple[StepRef, At, OnConflict]:
        """Return the step to merge into, how to name it as a parent, and what to do if others are first."""
        revisions = Revisions(self._engine, self._line)
        if self._into in ("HEAD", "@"):
            return await self._engine.lines.find(self._line, None), None, OnConflict.RETRY
        if isinstance(self._into, str) and await revisions.branch(self._into) is not None:
            name = OnBranch(self._into)
            return await self._engine.lines.find(self._line, name), name, OnConflict.RETRY
        point = await find_step(self._engine, self._line, self._into)
        return point, point.id, OnConflict.REFUSE

    async def _merge_states(self, ours: StepRef, theirs: StepRef, common: CommonAncestors) -> _MergedState:
        base = common.best
        known = base is None or not base.pruned  # without a common ancestor, both sides start from the empty state
        base = base if known else None
        await self._require_one_version(ours, theirs)
        states = (await self._state(base), await self._state(ours), await self._state(theirs))
        delta, sides = await self._delta((base, ours, theirs), states, known=known)
        runs = await self._operators_since(base, theirs, states[0]) if known else {}
        merged = merge_states(states[0] if known else None, *states[1:], self._resolver.resolve, their_runs=runs)
        if merged.conflicts:
            raise self._conflict_error(ours, theirs, merged.conflicts, known=known)
        state = without_follows(merged.state)
        for channel, side in sides.items():
            name = pack_name(channel)
            state = {key: value for key, value in state.items() if key != name}
            if name in states[side]:
                state[name] = states[side][name]
        return _MergedState(base, states[1], state, delta)

    async def _operators_since(self, base: StepRef | None, theirs: StepRef, state: PackedMap) -> OperatorRuns:
        """Return the operators that were applied on their side since the base, which has this state. Those before a
        merge that brought the base are in it, and those of pruned steps are not known: values are compared there."""
        engine, line = self._engine, self._line
        walk = LogWalk(engine, line, await engine.lines.branches(line), first_parents=True)
        await walk.start([Position(theirs.branch, theirs.seq)])
        points: list[StepRef] = []
        edits: list[EditMap] = []
        merge: int | None = None
        is_reached = is_lost = False
        while not (is_reached or is_lost) and (visited := await walk.page(_PAGE)):
            for each in visited:
                is_reached = base is not None and each.position == base[:2]
                is_lost = each.step is None and not is_reached
                if is_reached or each.step is None:
                    break
                if merge is None and len(each.parents) > 1:
                    merge = len(points)
                points.append(each.point)
                edits.append(each.step.edit)
        if is_lost or (base is not None and not is_reached):
            since = len(points) - 1 if merge is None else merge
            edits = edits[: max(since, 0)]
            if any(map(has_operator, edits)):
                state = await self._state(points[since])
        if not any(map(has_operator, edits)):
            return {}
        large = await engine.states.load_large(line, {pointer for edit in edits for pointer in pointers(edit)})
        return operator_runs(state, reversed(edits), large.__getitem__)

    async def _build_request(self, ours: StepRef, theirs: StepRef, common: CommonAncestors) -> AppendRequest:
        merged = await self._merge_states(ours, theirs, common)
        metadata = {
            **self._metadata,
            "merged": theirs.id,
            "revision": self._theirs if isinstance(self._theirs, str) else theirs.id,
            "base": None if merged.base is None else merged.base.id,
        }
        if common.others:
            metadata["other_bases"] = [point.id for point in common.others if not point.pruned]
        return AppendRequest(
            self._line,
            only_after(ours, diff_maps(merged.ours, merged.state)),
            id=await latest_id(self._engine, self._line, ours),
            kind=MERGE,
            line_schema=KEPT_SCHEMA,
            time=max(self._engine.context.clock(), theirs.time),
            merged=(StepParent(theirs.branch, theirs.seq, theirs.hash),),
            **step_fields(self._engine, self._line, metadata, merged.delta),
        )

    async def _require_one_version(self, ours: StepRef, theirs: StepRef) -> None:
        one, other = [(await self._engine.step_info.head(self._line, at)).header.schema for at in (ours, theirs)]
        if one != other:
            raise UnsupportedError(
                f"the sides have states of different versions, {one or 'none'} and {other or 'none'}",
                where=f"thread {self._line}",
                hint="Bring both to one version first: holdfast migrate up, or save a step on the older branch",
                code="schema-mixed",
            )

    async def _state(self, point: StepRef | None) -> PackedMap:
        if point is None:
            return {}
        return await self._engine.lines.read_step(self._line, point, partial(self._engine.states.values, self._line))

    # Delta channels -------------------------------------------------------------------------------------------

    async def _delta(
        self, points: Sequence[StepRef | None], states: Sequence[PackedMap], *, known: bool
    ) -> tuple[UnreadDeltas, dict[str, int]]:
        """Choose a side for each delta channel: only a graph knows their values, so they cannot be merged.

        Returns their histories, and the side of each channel.
        """
        deltas = self._engine.delta_reader()
        unread = [UnreadDeltas({}, {}) if at is None else await deltas.unread(self._line, at) for at in points]
        result, sides = UnreadDeltas({}, {}), {}
        for channel in dict.fromkeys([*unread[1].counters, *unread[2].counters]):
            base, ours, theirs = (
                (state.get(pack_name(channel)), side.histories.get(channel))
                for state, side in zip(states, unread, strict=True)
            )
            if theirs == ours or (known and theirs == base) or self._strategy == "ours":
                sides[channel] = 1
            elif (known and ours == base) or self._strategy == "theirs":
                sides[channel] = 2
            else:
                raise UnsupportedError(
                    f"both sides wrote to channel {channel!r}, which is stored as a history of writes that only the "
                    "graph can combine",
                    where=f"thread {self._line}",
                    hint="Choose one side (strategy 'ours' or 'theirs') and add the other changes through the graph",
                )
            chosen = unread[sides[channel]]
            if channel in chosen.counters:
                result.counters[channel] = chosen.counters[channel]
                result.histories[channel] = chosen.histories[channel]
        return result, sides

    def _conflict_error(
        self, ours: StepRef, theirs: StepRef, packed: Sequence[PackedConflict], *, known: bool
    ) -> ConflictError:
        conflicts = tuple(map(self._resolver.unpack, packed))
        paths = ", ".join(conflict.where for conflict in conflicts[:_LISTED])
        more = f", and {len(conflicts) - _LISTED} more" if len(conflicts) > _LISTED else ""
        what = "both sides changed the same values differently"
        if not known:
            what = "the common ancestor was pruned, so it is unknown which side changed what"
        error = ConflictError(
            f"{what}: {paths}{more}",
            where=f"checkpoints {ours.id} and {theirs.id} of thread {self._line}",
            hint="Resolve it with a strategy ('ours', 'theirs', 'union') or a function",
        )
        error.conflicts = conflicts
        return error


class _Resolver:
    """Resolves conflicts as the caller specified, and those in internal channels automatically."""

    def __init__(self, codec: Codec, strategy: str | None, resolve: Resolve | None) -> None:
        self._codec = codec
        self._strategy = None if strategy is None else _STRATEGIES[strategy]
        self._for_all = resolve if callable(resolve) else None
        self._by_path: list[tuple[tuple[Any, ...], Resolution]] = []
        if isinstance(resolve, Mapping):
            self._by_path = [(parse_path(path), _check_resolution(how)) for path, how in resolve.items()]
            self._by_path.sort(key=lambda rule: len(rule[0]), reverse=True)

    def resolve(self, conflict: PackedConflict) -> PackedResolution | None:
        if conflict.path[0] == pack_name(KEPT):
            return _greater(self._codec, conflict)
        if conflict.path[0] == pack_name(ASIDE):
            return ours(conflict)
        for how in self._resolutions(conflict.path):
            resolution = _STRATEGIES[how](conflict) if isinstance(how, str) else self._call(how, conflict)
            if resolution is not None:
                return resolution
        return None if self._strategy is None else self._strategy(conflict)

    def _resolutions(self, path: PackedPath) -> Iterator[Resolution]:
        if self._for_all is not None:
            yield self._for_all
        plain = self._path(path)
        for start, how in self._by_path:
            if plain[: len(start)] == start:
                yield how
                return

    def _call(self, function: Callable[[MergeConflict], Any], conflict: PackedConflict) -> PackedResolution | None:
        unpacked = self.unpack(conflict)
        value = function(unpacked)
        if value is UNRESOLVED:
            return None
        if value is MISSING:
            return PackedResolution(None)
        if isinstance(conflict.path[-1], slice) and type(value) is not list:
            raise InvalidError(
                f"a conflict in a range of a list must be resolved by a list of items, not by {type(value).__name__}",
                where=unpacked.where,
            )
        return PackedResolution(pack_state(self._codec, {"": value})[pack_name("")])

    def unpack(self, conflict: PackedConflict) -> MergeConflict:
        sides = (MISSING if side is None else unpack(self._codec, side) for side in conflict[1:])
        return MergeConflict(self._path(conflict.path), *sides)

    def _path(self, path: PackedPath) -> tuple[Any, ...]:
        return tuple(self._codec.unpack(part) if isinstance(part, bytes) else part for part in path)


def _check_resolution(how: Resolution) -> Resolution:
    if not callable(how) and how not in _STRATEGIES:
        raise InvalidError(f"a conflict can be resolved by 'ours', 'theirs', 'union' or a function, not by {how!r}")
    return how


def _greater(codec: Codec, conflict: PackedConflict) -> PackedResolution:
    """Resolve a conflict in the versions of channels by the greater one, so that the merge triggers no node again.

    Anything else is resolved as ours.
    """
    if conflict.ours is None or conflict.theirs is None:
        return PackedResolution(conflict.ours or conflict.theirs)
    our, their = unpack(codec, conflict.ours), unpack(codec, conflict.theirs)
    newer = type(our) is type(their) and isinstance(our, int | float | str) and their > our
    return PackedResolution(conflict.theirs if newer else conflict.ours)
