"""The state at a step: loading it, and caching it.

A state is a folded root and the few steps since. `LoadedState` is that, and perhaps the packed state itself. It is
immutable in meaning: the commit hash that is its key in the cache names it for good.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence, Set
from itertools import compress
from operator import methodcaller
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Backend, Get, Query, Row, Scan
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import FOLDS, NODES, OBJECTS, STEPS
from holdfast.engine.checked_rows import storage_of
from holdfast.engine.model import fold
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY, MapDraft, draft
from holdfast.engine.model.large_pointers import is_pointer, parse_pointer
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.line_salt import NO_SALT
from holdfast.engine.model.nodes import MapRoot, NodeId, WrittenBy
from holdfast.engine.model.operations import EditMap, LoadLarge, Operation, apply_map
from holdfast.engine.model.packed_state import POINTER, Packed, PackedMap
from holdfast.engine.model.steps import Step
from holdfast.engine.model.tree_diff import diff_folded
from holdfast.engine.model.workspace import MissingNode, Rounds, Workspace
from holdfast.engine.row_format import (
    HINT,
    Line,
    StepRef,
    object_keys,
    open_fold,
    open_node,
    open_object,
    open_step,
    where,
)
from holdfast.engine.step_info import StepInfo
from holdfast.errors import CorruptError

T = TypeVar("T")

_starts_like_pointer = methodcaller("startswith", POINTER)
"""Does what `is_pointer` does, with no Python code per item."""

_OBJECT = 64
"""About how many bytes Python adds to each packed value."""


class LoadedState(Struct):
    """A state as far as it is in memory.

    `root` is the folded state before the steps of `tail`, in nodes of `form`. `known` is an ancestor's packed state, if
    one is in memory, with the changes since; without changes it is this state's own. The weights are about the memory
    that both take; of `known`, 0 if that was not weighed.
    """

    root: MapRoot
    form: int
    tail: tuple[tuple[WrittenBy, EditMap], ...] = ()
    tail_weight: int = 0
    known: tuple[PackedMap, tuple[EditMap, ...]] | None = None
    known_weight: int = 0
    fresh: Mapping[bytes, bytes] = field(default_factory=dict)
    """New nodes by id and large values by pointer that are stored together with this state."""
    head: StepInfo | None = None
    """The step whose state it is, where it was just appended."""
    schema: str | None = None
    """The reference to the schema of the state; empty for none. None if it is not known."""
    pointers: frozenset[bytes] | None = None
    """The pointers to large values in the state of `known`, once they were searched."""
    changed_keys: dict[bytes, tuple[WrittenBy, Operation | None]] | None = None
    """The keys that `tail` changes, each with the last step that did and how; None where it was removed. An operator is
    the sum of all that `tail` does to the key. Set when single keys are read first."""
    changed_order: list[tuple[bytes, bytes]] | None = None
    """The keys of `changed_keys` in their order, each after its sort key. Set when a range of keys is read first."""
    recent: Mapping[bytes, tuple[WrittenBy, Operation | None]] = field(default_factory=dict)
    """The keys that the tail before `root` was folded changed, if in memory: what was changed is soon changed again."""

    @property
    def weight(self) -> int:
        """Return about how many bytes of memory it takes."""
        return 512 + self.tail_weight + self.known_weight

    def with_tail(self, tail: tuple[tuple[WrittenBy, EditMap], ...]) -> LoadedState:
        """Return the state after other steps since the folded one."""
        return replace(self, tail=tail, known=None, changed_keys=None, changed_order=None, schema=None)


class FoldedTree(NamedTuple):
    """A folded state: its nodes by id, new large values by pointer, and all the pointers in it."""

    root: MapRoot
    nodes: Mapping[NodeId, bytes]
    objects: Mapping[bytes, bytes]
    pointers: frozenset[bytes]


class _MissingLarge(Exception):
    """A computation needs a large value that is not in memory."""

    def __init__(self, pointer: bytes) -> None:
        self.pointer = pointer


class StateLoader:
    """Loads states from a store, through a cache."""

    def __init__(self, backend: Backend, cache: MemoryCache, max_bytes: int) -> None:
        self._backend = backend
        self._stored, self._rows = storage_of(backend)
        self._cache = cache
        self._max_bytes = max_bytes

    # Loading a state ------------------------------------------------------------------------------------------

    async def get(self, line: Line, point: StepRef) -> LoadedState:
        """Return the state at a step, as far as it can be loaded without reading nodes."""
        loaded: LoadedState | None = self._cache.get((line, point.hash))
        if loaded is None or len(loaded.tail) != point.tail:  # pruning may have changed its root
            loaded = await self.load(line, point)
            self.cache_state(line, point.hash, loaded)
        return loaded

    def cache_state(self, line: Line, commit: bytes, loaded: LoadedState) -> None:
        """Cache the state at a commit. One that is larger than the cache is read again, as far as it is needed."""
        if loaded.known_weight > self._cache.max_bytes:
            loaded = replace(loaded, known=None, known_weight=0)
        self._cache.put((line, commit), loaded, loaded.weight)

    def forget(self, line: Line, commit: bytes) -> None:
        """Drop the cached state at a commit."""
        self._cache.drop((line, commit))

    def keep_nodes(self, ws: Workspace) -> None:
        """Cache nodes that were just created."""
        for id, node in ws.created.items():
            self._cache.put(id, node, len(node) + _OBJECT)

    def demote(self, line: Line, commit: bytes) -> None:
        """Make a state that has a successor the next to be dropped, and drop the one before it unless that is whole in
        memory: collecting garbage of all of them would cost more than reading one again."""
        loaded: LoadedState | None = self._cache.demote((line, commit))
        if loaded is None:
            return
        loaded.changed_keys = loaded.changed_order = None  # large, and quickly rebuilt
        if loaded.head is not None and loaded.head.header.parents and (loaded.known is None or loaded.known[1]):
            self._cache.drop((line, loaded.head.header.parents[0].commit))

    async def load(self, line: Line, point: StepRef) -> LoadedState:
        """Read the state at a step from the store."""
        steps: list[tuple[StepRef, Step]] = []
        branch, last, remaining, commit = point.branch, point.seq, point.tail, point.hash
        folds: list[Row] = []
        while True:
            count = min(remaining, last + 1)
            queries: list[Query] = []
            if count:
                queries.append(Scan(STEPS, (*line, branch), (last + 1 - count,), (last + 1,), required=count))
            on_this_branch = remaining <= last
            if on_this_branch:
                queries.append(Get(FOLDS, [(*line, branch, last - remaining)], required=True))
            # Steps are checked when they are opened: most of them are in the cache, and are not.
            pages = await self._stored.read(queries)
            if count and not steps:
                form = int(pages[1][0].columns[0]) if on_this_branch and pages[1] else 0
                loaded = self._extend(line, point, pages[0], form)
                if loaded is not None:
                    return loaded
            if count:
                steps[:0] = self._chain(line, pages[0], count, commit, point)
                remaining -= count
            if on_this_branch:
                folds = pages[-1]
                break
            # The rest, or only the folded state, lies before the start of the branch.
            parents = steps[0][1].header.parents
            if not parents:
                break
            branch, last, commit = parents[0]
        if remaining:
            raise CorruptError("the steps that a state is made of do not reach its start", where=where(line, point))
        tail, weight = _tail(steps)
        schema = steps[-1][1].header.schema if steps else None
        if steps and not steps[0][1].header.parents:
            return LoadedState(EMPTY, 0, tail, weight, ({}, tuple(edit for _, edit in tail)), schema=schema)
        if not folds:
            raise CorruptError("a folded state is missing", where=where(line, point), hint=HINT)
        base = steps[0][1].header.parents[0].commit if steps else point.hash
        return LoadedState(
            open_fold(self._rows.decode(FOLDS, folds[0]), base), int(folds[0].columns[0]), tail, weight, schema=schema
        )

    async def load_all(self, points: Sequence[tuple[Line, StepRef]]) -> None:
        """Read the states at steps of some lines into the cache. Those that one request can read are read together."""
        queries: list[Query] = []
        together: list[tuple[Line, StepRef]] = []
        for line, point in points:
            if 0 < point.tail == point.seq + 1 and not point.branch:  # from the start of the line
                queries.append(Scan(STEPS, (*line, 0), (0,), (point.tail,), required=point.tail))
                together.append((line, point))
            else:
                await self.get(line, point)
        for (line, point), rows in zip(together, await self._stored.read(queries), strict=True):
            steps = self._chain(line, rows, point.tail, point.hash, point)
            if steps[0][1].header.parents:
                await self.get(line, point)
                continue
            tail, weight = _tail(steps)
            since = tuple(edit for _, edit in tail)
            loaded = LoadedState(EMPTY, 0, tail, weight, ({}, since), schema=steps[-1][1].header.schema)
            self.cache_state(line, point.hash, loaded)

    def _extend(self, line: Line, point: StepRef, rows: list[Row], form: int) -> LoadedState | None:
        """Return the state as a cached one and the steps since; only those steps are decoded.

        None if no cached state among the steps has the same folded root, in the same form.
        """
        for behind, row in enumerate(reversed(rows)):
            loaded: LoadedState | None = self._cache.get((line, StepRef.of(row).hash)) if behind else None
            if loaded is None:
                continue
            if len(loaded.tail) != point.tail - behind or loaded.form != form:
                return None
            steps = self._chain(line, rows[len(rows) - behind :], behind, point.hash, point)
            if steps[0][1].header.parents[0].commit != StepRef.of(row).hash:
                return None
            more, weight = _tail(steps)
            schema = steps[-1][1].header.schema
            return LoadedState(loaded.root, form, (*loaded.tail, *more), loaded.tail_weight + weight, schema=schema)
        return None

    def _chain(
        self, line: Line, rows: list[Row], count: int, commit: bytes, point: StepRef
    ) -> list[tuple[StepRef, Step]]:
        """Decode consecutive steps from their rows, each of which must be the parent of the next."""
        if len(rows) != count:
            raise CorruptError(
                f"{count - len(rows)} steps are missing before this one", where=where(line, point), hint=HINT
            )
        steps = []
        for row in reversed(rows):
            step = open_step(line, self._rows.decode(STEPS, row), self._max_bytes)
            if StepRef.of(row).hash != commit:
                raise CorruptError("a step does not follow its parent", where=where(line, StepRef.of(row)), hint=HINT)
            steps.append((StepRef.of(row), step))
            commit = step.header.parents[0].commit if step.header.parents else b""
        return steps[::-1]

    # Whole states --------------------------------------------------------------------------------------------

    async def packed(self, line: Line, point: StepRef) -> PackedMap:
        """Return the packed state at a step; large values may be pointers."""
        loaded = await self._hold_whole(line, point)
        assert loaded.known is not None  # noqa: S101 - that is what makes it whole
        return loaded.known[0]

    async def values(self, line: Line, point: StepRef) -> PackedMap:
        """Return the packed state at a step, with all large values."""
        loaded = await self._hold_whole(line, point)
        assert loaded.known is not None  # noqa: S101
        packed = loaded.known[0]
        if loaded.pointers is None:
            loaded.pointers = frozenset(pointers_in(packed))
        return await self._replace_pointers(line, packed, loaded.pointers) if loaded.pointers else packed

    async def _hold_whole(self, line: Line, point: StepRef) -> LoadedState:
        loaded = await self.get(line, point)
        if loaded.known is not None and not loaded.known[1]:
            return loaded
        try:
            whole = await self.whole(line, loaded)
        except MissingNode as missing:
            loaded = await self._reload(line, point, loaded, missing)
            whole = await self.whole(line, loaded)
        known, searched = loaded.known, loaded.pointers
        if known is None or searched is None or searched or any(map(any, map(pointers, known[1]))):
            searched = None
        weight = loaded.known_weight or weigh(whole)
        loaded = replace(loaded, known=(whole, ()), known_weight=weight, pointers=searched)
        self.cache_state(line, point.hash, loaded)
        return loaded

    async def _reload(self, line: Line, point: StepRef, loaded: LoadedState, missing: MissingNode) -> LoadedState:
        """Load a state again, if the line was rewritten since; else raise, since a node is lost."""
        reloaded = await self.load(line, point)
        if reloaded.form == loaded.form:
            raise missing
        return reloaded

    async def whole(self, line: Line, loaded: LoadedState) -> PackedMap:
        """Return the packed state of a loaded one; large values may be pointers."""
        if loaded.known is None:
            base = await self.nodes(line, loaded, fold.read(Workspace(), loaded.root))
            since = tuple(edit for _, edit in loaded.tail)
        else:
            base, since = loaded.known
            if not since:
                return base

        async def apply_edits(load: LoadLarge) -> PackedMap:
            state = base
            for edit in since:
                state = apply_map(edit, state, load)
            return state

        return await self.with_large(line, loaded, apply_edits)

    async def series(self, line: Line, points: Sequence[StepRef]) -> list[PackedMap]:
        """Return the packed states at several steps, with all large values.

        Steps that follow each other are read together: a state is its folded root and the changes since, and applying
        these produces the states between.
        """
        if len(points) == 1:
            return [await self.values(line, points[0])]
        states: dict[tuple[int, int], PackedMap] = {}
        positions = {point[:2] for point in points}
        for point in sorted(points, key=lambda point: point.depth, reverse=True):
            if point[:2] in states:
                continue
            loaded = await self.get(line, point)
            between = [origin for origin, _ in loaded.tail[:-1] if tuple(origin) in positions]
            if not between:
                states[point[:2]] = await self.values(line, point)
                continue
            states.update(await self._between(line, point, loaded, positions))
        return [states[point[:2]] for point in points]

    async def _between(
        self, line: Line, point: StepRef, loaded: LoadedState, positions: Set[tuple[int, int]]
    ) -> dict[tuple[int, int], PackedMap]:
        """Return those of some states that lie between a folded one and a step."""
        try:
            base = await self.whole(line, replace(loaded, tail=(), known=None))
        except MissingNode as missing:
            loaded = await self._reload(line, point, loaded, missing)
            base = await self.whole(line, replace(loaded, tail=(), known=None))

        async def apply_edits(load: LoadLarge) -> dict[tuple[int, int], PackedMap]:
            state, states = base, {}
            for origin, edit in loaded.tail:
                state = apply_map(edit, state, load)
                if tuple(origin) in positions:
                    states[origin.branch, origin.seq] = state
            return states

        states = await self.with_large(line, loaded, apply_edits)
        return {place: await self.resolve_pointers(line, state) for place, state in states.items()}

    async def fold(
        self,
        line: Line,
        loaded: LoadedState,
        salt: bytes = NO_SALT,
        created: MutableMapping[NodeId, bytes] | None = None,
    ) -> tuple[Workspace, MapRoot]:
        """Fold a state: return its root, and the new nodes and large values in a workspace. Nothing is stored. What is
        to be stored, or compared with what is, needs the salt of the line. New nodes go to `created`, if it is given.
        """
        ws = Workspace(salt, created)

        async def fold_all(load: LoadLarge) -> MapRoot:
            return await self.nodes(line, loaded, fold.fold(ws, loaded.root, loaded.tail, load))

        return ws, await self.with_large(line, loaded, fold_all)

    async def tree(self, line: Line, loaded: LoadedState, salt: bytes) -> FoldedTree:
        """Fold a state, and return all its nodes and not only the new ones."""
        ws, root = await self.fold(line, loaded, salt)
        loaded, reader = replace(loaded, fresh={**loaded.fresh, **ws.created}), Workspace()
        state = await self.nodes(line, loaded, fold.read(reader, root))
        return FoldedTree(root, await self._fetch(line, loaded, reader.ids), ws.objects, frozenset(pointers_in(state)))

    async def difference(self, line: Line, loaded: LoadedState | None, new: PackedMap) -> EditMap:
        """Return the edit that turns a state, or none, into another."""
        if loaded is None:
            return diff_maps({}, new)
        if loaded.known is None:
            # The state is not in memory: compare with its nodes, and read only those that differ.
            ws, root = await self.fold(line, loaded)
            return await self.nodes(line, loaded, diff_folded(ws, root, new))
        base, since = loaded.known
        if since:
            base = await self.whole(line, loaded)
        return diff_maps(base, new)

    async def resolve_pointers(self, line: Line, packed: PackedMap) -> PackedMap:
        """Return a packed state with large values in place of their pointers."""
        pointers = frozenset(pointers_in(packed))
        return await self._replace_pointers(line, packed, pointers) if pointers else packed

    async def _replace_pointers(self, line: Line, packed: PackedMap, pointers: frozenset[bytes]) -> PackedMap:
        values = await self.load_large(line, pointers)
        return {key: _resolve(value, values) for key, value in packed.items()}

    # Nodes and large values -----------------------------------------------------------------------------------

    async def nodes(self, line: Line, loaded: LoadedState, rounds: Rounds[T]) -> T:
        """Run a computation over a state's nodes, and send it those it asks for."""
        try:
            ids = next(rounds)
            while True:
                ids = rounds.send(await self._fetch(line, loaded, ids))
        except StopIteration as done:
            value: T = done.value
            return value

    async def _fetch(self, line: Line, loaded: LoadedState, ids: Iterable[NodeId]) -> Mapping[NodeId, bytes]:
        nodes: dict[NodeId, bytes] = {}
        missing = []
        for id in ids:
            node = loaded.fresh.get(id) or self._cache.get(id)
            if node is None:
                missing.append(id)
            else:
                nodes[id] = node
        if missing:
            keys = [(*line, loaded.form, id) for id in missing]
            (rows,) = await self._backend.read([Get(NODES, keys, required=True)])
            for row in rows:
                id, node = open_node(row)
                nodes[id] = node
                self._cache.put(id, node, len(node) + _OBJECT)
        return nodes

    async def load_large(self, line: Line, pointers: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values of pointers."""
        values: dict[bytes, bytes] = {}
        missing = []
        for pointer in pointers:
            value = self._cache.get(pointer)
            if value is None:
                missing.append(pointer)
            else:
                values[pointer] = value
        if missing:
            parsed_pointers = {pointer: parse_pointer(pointer) for pointer in missing}
            answers = await self._backend.read(
                [Get(OBJECTS, object_keys(line, parsed_pointers[at]), required=True) for at in missing]
            )
            for pointer, rows in zip(missing, answers, strict=True):
                values[pointer] = open_object(parsed_pointers[pointer], rows)
                self._cache.put(pointer, values[pointer], len(values[pointer]) + _OBJECT)
        return values

    async def with_large(self, line: Line, loaded: LoadedState, compute: Callable[[LoadLarge], Awaitable[T]]) -> T:
        """Run a computation that may need large values; it is restarted when one had to be read."""
        values: dict[bytes, bytes] = {}

        def load(pointer: bytes) -> bytes:
            value = values.get(pointer) or loaded.fresh.get(pointer)
            if value is None:
                raise _MissingLarge(pointer)
            return value

        while True:
            try:
                return await compute(load)
            except _MissingLarge as missing:
                values.update(await self.load_large(line, [missing.pointer]))


class PartialState:
    """Reads parts of the state at a step without the rest. Nodes stay in memory for the next read."""

    def __init__(
        self, states: StateLoader, line: Line, point: StepRef | None, loaded: LoadedState | None = None
    ) -> None:
        self._states = states
        self._line = line
        self.point = point
        self._loaded = loaded
        self._ws = Workspace()
        self._draft: MapDraft | None = None

    async def nodes(self, rounds: Rounds[T]) -> T:
        """Run a computation over the state's nodes."""
        return await self._states.nodes(self._line, self._loaded or await self._load(), rounds)

    async def _state(self) -> MapDraft:
        if self._draft is None:
            loaded = self._loaded or await self._load()

            async def replay(load: LoadLarge) -> MapDraft:
                return await self._states.nodes(self._line, loaded, draft(self._ws, loaded.root, loaded.tail, load))

            self._draft, self._loaded = await self._states.with_large(self._line, loaded, replay), loaded
        return self._draft

    async def _load(self) -> LoadedState:
        return LoadedState(EMPTY, 0) if self.point is None else await self._states.get(self._line, self.point)


def _tail(steps: Sequence[tuple[StepRef, Step]]) -> tuple[tuple[tuple[WrittenBy, EditMap], ...], int]:
    """Return the changes of steps, and the memory that they take."""
    weight = sum(size + _OBJECT for _, step in steps for size in step.sizes)
    return tuple((WrittenBy(*at[:2]), step.edit) for at, step in steps), weight


def weigh(packed: Packed) -> int:
    """Return about how many bytes of memory a packed value takes."""
    if isinstance(packed, bytes):
        return len(packed) + _OBJECT
    if isinstance(packed, list):
        return sum(map(len, packed)) + _OBJECT * len(packed)
    return sum(map(weigh, packed.values())) + 2 * _OBJECT * len(packed)


def pointers_in(packed: Packed) -> Iterable[bytes]:
    """Yield the pointers to large values in a packed state."""
    if isinstance(packed, bytes):
        if is_pointer(packed):
            yield packed
    elif isinstance(packed, list):
        yield from compress(packed, map(_starts_like_pointer, packed))
    else:
        for value in packed.values():
            yield from pointers_in(value)


def _resolve(packed: Packed, values: Mapping[bytes, bytes]) -> Packed:
    if isinstance(packed, bytes):
        return values.get(packed, packed) if is_pointer(packed) else packed
    if isinstance(packed, list):
        if not any(map(_starts_like_pointer, packed)):
            return packed  # nearly every list
        return [values.get(item, item) if is_pointer(item) else item for item in packed]
    return {key: _resolve(value, values) for key, value in packed.items()}
