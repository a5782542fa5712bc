"""The states in memory that come of a loaded one when a step is appended, or the state folded."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from holdfast.backends.interface import Row
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.nodes import MapRoot, WrittenBy, sort_key
from holdfast.engine.model.operations import Combine, EditMap, Operation, Set, compose
from holdfast.engine.model.packed_state import POINTER, PackedMap, flatten
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Line, node_row, open_node
from holdfast.engine.state_loader import LoadedState, weigh

_RECENT = 1024
"""Keys that were folded last are remembered only up to this number."""


class NodeRows(MutableMapping[bytes, bytes]):
    """New nodes by id, as the rows that store them: those of a large state take less memory."""

    def __init__(self, line: Line, form: int) -> None:
        self._line = line
        self._form = form
        self._rows: dict[bytes, Row] = {}

    @property
    def rows(self) -> Iterable[Row]:
        """Return the rows."""
        return self._rows.values()

    def __getitem__(self, id: bytes) -> bytes:
        return open_node(self._rows[id])[1]

    def __setitem__(self, id: bytes, node: bytes) -> None:
        self._rows[id] = node_row(self._line, self._form, id, node)

    def __delitem__(self, id: bytes) -> None:
        del self._rows[id]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def unfolded_state(packed: PackedMap, origins: Mapping[bytes, WrittenBy], last: WrittenBy) -> LoadedState:
    """Return a state that is in memory only, as if steps had set its channels: those of `origins`, or else the last."""
    puts: dict[WrittenBy, list[tuple[bytes, Operation]]] = {}
    for key, value in packed.items():
        puts.setdefault(origins.get(key, last), []).append((key, Set(flatten(value))))
    tail = tuple((origin, EditMap((), tuple(puts[origin]))) for origin in sorted(puts))
    weight = weigh(packed)
    return LoadedState(EMPTY, 0, tail, weight, (packed, ()), weight)


def child_state(
    loaded: LoadedState | None, origin: WrittenBy, step: Step, packed: PackedMap | None, size: int
) -> LoadedState:
    """Return the state after a step from another; packed, if that is in memory."""
    edit = step.edit
    if loaded is None:
        loaded = LoadedState(EMPTY, 0, known=({}, ()), pointers=frozenset())
    child = LoadedState(
        loaded.root, loaded.form, (*loaded.tail, (origin, edit)), loaded.tail_weight + size, fresh=loaded.fresh
    )
    changed_keys = loaded.changed_keys
    if changed_keys is not None:
        child.recent, child.changed_keys = loaded.recent, changed_keys.copy()
        if (order := loaded.changed_order) is not None:
            child.changed_order = order = order.copy()
            for key in {*edit.removed, *(key for key, _ in edit.put)} - changed_keys.keys():
                insort(order, (sort_key(key), key))
        touch(child.changed_keys, origin, edit)
    if packed is not None:
        # About the old weight and that of the change; it is computed exactly when the state is folded.
        child.known = (packed, ())
        child.known_weight = loaded.known_weight + size if loaded.known_weight else weigh(packed)
        is_whole = loaded.known is not None and not loaded.known[1]
        if is_whole and loaded.pointers is not None and not loaded.pointers and not step.may_contain(POINTER):
            child.pointers = loaded.pointers
    elif loaded.known is not None:
        base, since = loaded.known
        child.known, child.pointers = (base, (*since, edit)), loaded.pointers
        child.known_weight = loaded.known_weight and loaded.known_weight + size
    return child


def touch(changed_keys: dict[bytes, tuple[WrittenBy, Operation | None]], origin: WrittenBy, edit: EditMap) -> None:
    """Add the keys that a step changes, as in `LoadedState.changed_keys`."""
    for key in edit.removed:
        changed_keys[key] = origin, None
    for key, operation in edit.put:
        if isinstance(operation, Combine) and key in changed_keys:
            before = changed_keys[key][1]
            operation = Set(operation.operand) if before is None else compose(before, operation) or _IN_PART
        changed_keys[key] = origin, operation


_IN_PART = EditMap()
"""Stands for several operations on a key, which have to be applied one by one."""


def folded_state(loaded: LoadedState, form: int, root: MapRoot, unsaved: Mapping[bytes, bytes]) -> LoadedState:
    """Return the same state, folded."""
    cached = loaded.known
    if cached is not None and len(cached[1]) >= len(loaded.tail):
        cached = None  # applying so many changes would cost more than reading the nodes
    folded = LoadedState(root, form, (), 0, cached, weigh(cached[0]) if cached else 0, unsaved)
    folded.schema = loaded.schema
    if cached is not None:
        folded.pointers = loaded.pointers
    if loaded.changed_keys is not None:
        folded.changed_keys = {}
        if len(loaded.changed_keys) <= _RECENT:
            folded.recent = loaded.changed_keys
    return folded
