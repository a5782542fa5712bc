"""Merging: a step with two parents, whose state has the changes of both since their common ancestor.

The target is gone on with: the merge is a step on top of it, whose second parent is the other side. That is so also
where the target lies behind the other side and has nothing of its own: there is no fast-forward, since a branch is a
row of steps and not a name that moves. What was merged before is not brought up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.delta_channels import KEPT, UnreadDeltas
from holdfast.engine.engine import Engine
from holdfast.engine.lines import At, OnBranch
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.merge import PackedConflict as PackedClash
from holdfast.engine.model.merge import PackedResolution, Resolver, ours, theirs, union
from holdfast.engine.model.merge import Path as PackedPath
from holdfast.engine.model.merge import merge as merge_states
from holdfast.engine.model.missing import MISSING, MissingType
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state, unpack
from holdfast.engine.model.steps import StepParent
from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.row_format import MERGE, Line, StepRef
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import Revision
from holdfast.errors import ConflictError, InvalidError, UnsupportedError
from holdfast.history.ancestry import Ancestry, CommonAncestors
from holdfast.history.langgraph_compat import HeadMoved, about, latest_id, only_after, without_follows
from holdfast.history.revisions import Revisions, resolve

_ATTEMPTS = 100
"""How often a merge is made anew because others added to the target meanwhile."""

_SHOWN = 8
"""How many clashes the message of an error names."""


UNRESOLVED: Final = MissingType("LEAVE")
"""What a function returns that does not settle a clash."""


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """Both sides changed the same thing differently. `MISSING` is what a side has that has nothing there.

    `path` are the keys and places on the way to it, `where` the same as text. If the path ends in a slice, the values
    are the items in that stretch of a list, and so is what settles it.
    """

    path: tuple[Any, ...]
    base: Any
    ours: Any
    theirs: Any

    @property
    def where(self) -> str:
        """The path as text: `plan.steps[3]`."""
        return path_text(self.path)


Settle: TypeAlias = "str | Callable[[MergeConflict], Any]"
"""How a clash is settled: `"ours"`, `"theirs"`, `"union"`, or a function that is given it and returns the value,
`MISSING`, or `UNRESOLVED`."""

Resolve: TypeAlias = "Callable[[MergeConflict], Any] | Mapping[str, Settle]"
"""A function for all clashes, or ways to settle by the path they are at or below: `{"messages": "union"}`."""

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

    Returns the merge; or the head that is there, if nothing is to be merged. Whoever adds to the branch meanwhile is
    merged with as well; where a checkpoint is named, nothing may follow it. `ConflictError` with the `clashes` that are
    not settled; nothing is saved then.
    """
    if strategy is not None and strategy not in _STRATEGIES:
        raise InvalidError(f"a strategy is 'ours', 'theirs' or 'union', not {strategy!r}")
    if resolve is not None and not callable(resolve) and not isinstance(resolve, Mapping):
        raise InvalidError(
            f"what settles clashes is a function, or ways by path, not {resolve!r}",
            hint='As in {"messages": "union"}; one way for all is a strategy',
        )
    return await _Merge(engine, line, theirs, into, strategy, resolve, dict(metadata or {})).save()


class _Merge:
    """One merge, made anew while its target moves."""

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
        theirs = await resolve(engine, line, self._theirs)
        for _ in range(_ATTEMPTS):
            await engine.lines.info(line)  # what is remembered of the line may be out of date
            ours, parent, how = await self._target()
            common = await Ancestry(engine, line, await engine.lines.branch_graph(line)).common(ours, theirs)
            if common.theirs_is_ours:
                return await engine.step_info.head(line, ours)
            saving = await self._saving(ours, theirs, common)
            saving.parent, saving.on_conflict = parent, how
            try:
                return (await engine.writer.save(saving))[0]
            except HeadMoved:
                continue
        raise ConflictError(
            "others kept adding to the branch while it was merged into", where=f"thread {line}", hint="Try again"
        )

    async def _target(self) -> tuple[StepRef, At, OnConflict]:
        """The step that is merged into as of now, how to name it as a parent, and whether others may be first."""
        revisions = Revisions(self._engine, self._line)
        if self._into in ("HEAD", "@"):
            return await self._engine.lines.find(self._line, None), None, OnConflict.RETRY
        if isinstance(self._into, str) and await revisions.branch(self._into) is not None:
            name = OnBranch(self._into)
            return await self._engine.lines.find(self._line, name), name, OnConflict.RETRY
        point = await resolve(self._engine, self._line, self._into)
        return point, point.id, OnConflict.REFUSE

    async def _saving(self, ours: StepRef, theirs: StepRef, common: CommonAncestors) -> AppendRequest:
        base = common.best
        known = base is None or not base.pruned  # where histories have nothing in common, both start from nothing
        base = base if known else None
        states = (await self._state(base), await self._state(ours), await self._state(theirs))
        delta, sides = await self._delta((base, ours, theirs), states, known=known)
        merged = merge_states(states[0] if known else None, *states[1:], self._resolver.settle)
        if merged.clashes:
            raise self._refused(ours, theirs, merged.clashes, known=known)
        state = without_follows(merged.state)
        for channel, side in sides.items():
            name = pack_name(channel)
            state = {key: value for key, value in state.items() if key != name}
            if name in states[side]:
                state[name] = states[side][name]
        said = {
            **self._metadata,
            "merged": theirs.id,
            "revision": self._theirs if isinstance(self._theirs, str) else theirs.id,
            "base": None if base is None else base.id,
        }
        if common.others:
            said["other_bases"] = [point.id for point in common.others if not point.pruned]
        return AppendRequest(
            self._line,
            only_after(ours, diff_maps(states[1], state)),
            id=await latest_id(self._engine, self._line, ours),
            kind=MERGE,
            time=max(self._engine.context.clock(), theirs.time),
            merged=(StepParent(theirs.branch, theirs.seq, theirs.hash),),
            **about(self._engine, self._line, said, delta),
        )

    async def _state(self, point: StepRef | None) -> PackedMap:
        if point is None:
            return {}
        return await self._engine.lines.read_step(self._line, point, partial(self._engine.states.values, self._line))

    # Delta channels -------------------------------------------------------------------------------------------

    async def _delta(
        self, points: Sequence[StepRef | None], states: Sequence[PackedMap], *, known: bool
    ) -> tuple[UnreadDeltas, dict[str, int]]:
        """The delta channels, whose values only a graph knows: from which side each comes, and its history.

        They cannot be merged, only taken whole.
        """
        deltas = self._engine.delta_reader()
        unheld = [UnreadDeltas({}, {}) if at is None else await deltas.unread(self._line, at) for at in points]
        taken, sides = UnreadDeltas({}, {}), {}
        for channel in dict.fromkeys([*unheld[1].counters, *unheld[2].counters]):
            base, ours, theirs = (
                (state.get(pack_name(channel)), each.histories.get(channel))
                for state, each in zip(states, unheld, strict=True)
            )
            if theirs == ours or (known and theirs == base) or self._strategy == "ours":
                sides[channel] = 1
            elif (known and ours == base) or self._strategy == "theirs":
                sides[channel] = 2
            else:
                raise UnsupportedError(
                    f"both sides wrote to channel {channel!r}, whose value is kept as a history of writes: only the "
                    "graph can put it together",
                    where=f"thread {self._line}",
                    hint="Take one side (strategy 'ours' or 'theirs') and bring the rest in through the graph",
                )
            side = unheld[sides[channel]]
            if channel in side.counters:
                taken.counters[channel], taken.histories[channel] = side.counters[channel], side.histories[channel]
        return taken, sides

    def _refused(self, ours: StepRef, theirs: StepRef, clashes: Sequence[PackedClash], *, known: bool) -> ConflictError:
        found = tuple(map(self._resolver.shown, clashes))
        named = ", ".join(clash.where for clash in found[:_SHOWN])
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        what = "both sides changed the same, differently"
        if not known:
            what = "the common ancestor was pruned, so nobody can tell which side changed what differs"
        error = ConflictError(
            f"{what}: {named}{more}",
            where=f"checkpoints {ours.id} and {theirs.id} of thread {self._line}",
            hint="Settle it with a strategy ('ours', 'theirs', 'union') or a function",
        )
        error.clashes = found
        return error


class _Resolver:
    """Settles clashes as the caller wants, and those in what frameworks keep for themselves by itself."""

    def __init__(self, codec: Codec, strategy: str | None, resolve: Resolve | None) -> None:
        self._codec = codec
        self._strategy = None if strategy is None else _STRATEGIES[strategy]
        self._for_all = resolve if callable(resolve) else None
        self._by_path: list[tuple[tuple[Any, ...], Settle]] = []
        if isinstance(resolve, Mapping):
            self._by_path = [(parse_path(path), _checked(how)) for path, how in resolve.items()]
            self._by_path.sort(key=lambda each: len(each[0]), reverse=True)

    def settle(self, clash: PackedClash) -> PackedResolution | None:
        if clash.path[0] == pack_name(KEPT):
            return _greater(self._codec, clash)
        for how in self._asked(clash.path):
            found = _STRATEGIES[how](clash) if isinstance(how, str) else self._called(how, clash)
            if found is not None:
                return found
        return None if self._strategy is None else self._strategy(clash)

    def _asked(self, path: PackedPath) -> Iterator[Settle]:
        if self._for_all is not None:
            yield self._for_all
        plain = self._path(path)
        for start, how in self._by_path:
            if plain[: len(start)] == start:
                yield how
                return

    def _called(self, function: Callable[[MergeConflict], Any], clash: PackedClash) -> PackedResolution | None:
        shown = self.shown(clash)
        value = function(shown)
        if value is UNRESOLVED:
            return None
        if value is MISSING:
            return PackedResolution(None)
        if isinstance(clash.path[-1], slice) and type(value) is not list:
            raise InvalidError(
                f"a stretch of a list is settled with a list of items, not with {type(value).__name__}",
                where=shown.where,
            )
        return PackedResolution(pack_state(self._codec, {"": value})[pack_name("")])

    def shown(self, clash: PackedClash) -> MergeConflict:
        """A clash, for callers."""
        sides = (MISSING if side is None else unpack(self._codec, side) for side in clash[1:])
        return MergeConflict(self._path(clash.path), *sides)

    def _path(self, path: PackedPath) -> tuple[Any, ...]:
        return tuple(self._codec.unpack(part) if isinstance(part, bytes) else part for part in path)


def _checked(how: Settle) -> Settle:
    if not callable(how) and how not in _STRATEGIES:
        raise InvalidError(f"a clash is settled by 'ours', 'theirs', 'union' or a function, not by {how!r}")
    return how


def _greater(codec: Codec, clash: PackedClash) -> PackedResolution:
    """What becomes of the versions of channels, and of who saw which: the greater, so that the merge starts nothing
    anew. Of all else, ours."""
    if clash.ours is None or clash.theirs is None:
        return PackedResolution(clash.ours or clash.theirs)
    mine, yours = unpack(codec, clash.ours), unpack(codec, clash.theirs)
    newer = type(mine) is type(yours) and isinstance(mine, int | float | str) and yours > mine
    return PackedResolution(clash.theirs if newer else clash.ours)
