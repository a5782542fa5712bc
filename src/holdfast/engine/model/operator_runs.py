"""Update operators in a merge: what they changed is not compared, but applied to the merged value.

A *run* is what happened to a value since another writer last set it: operators only. To merge, the value before the run
takes the place of the current one, so that the merge compares what was set; then the run is applied to the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import Combine, EditMap, LoadLarge, apply_map
from holdfast.engine.model.operators import combine
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map

EMPTY_DICT = b"\x80"

KeyPath: TypeAlias = tuple[bytes, ...]
"""The path to a value through dicts, as packed keys."""


class OperatorRun(NamedTuple):
    """The operators that were applied to a value since it was last set, and the value before; None if it is new."""

    before: Packed | None
    operators: tuple[Combine, ...]

    def apply(self, value: Packed | None) -> Packed | None:
        """Return a value after the operators. `InvalidError` if they do not go together."""
        for operator in self.operators:
            value = combine(operator.rule, operator.operand, value)
        return value


OperatorRuns: TypeAlias = Mapping[KeyPath, OperatorRun]


def operator_runs(base: PackedMap, edits: Iterable[EditMap], load: LoadLarge) -> dict[KeyPath, OperatorRun]:
    """Return the runs at the end of some edits of a state. `load` is called for the large values that they put."""
    runs: dict[KeyPath, OperatorRun] = {}
    state = base
    for edit in edits:
        _track(runs, (), edit, state, load)
        state = apply_map(edit, state, load)
    return runs


def _track(
    runs: dict[KeyPath, OperatorRun], path: KeyPath, edit: EditMap, state: Mapping[bytes, Packed], load: LoadLarge
) -> None:
    for key in edit.removed:
        _end_runs(runs, (*path, key))
    for key, operation in edit.put:
        at, old = (*path, key), state.get(key)
        if isinstance(old, bytes) and is_pointer(old):
            old = load(old)
        if isinstance(operation, Combine):
            before, operators = runs.get(at, OperatorRun(old, ()))
            runs[at] = OperatorRun(before, (*operators, operation))
        elif isinstance(operation, EditMap):
            _track(runs, at, operation, {} if old is None else as_map(old) or {}, load)
        else:
            _end_runs(runs, at)


def _end_runs(runs: dict[KeyPath, OperatorRun], path: KeyPath) -> None:
    """Forget the runs of a value that was set, and of those in it."""
    for other in [other for other in runs if other[: len(path)] == path]:
        del runs[other]


def undo_runs(state: PackedMap, runs: OperatorRuns) -> PackedMap:
    """Return a state with the values from before the runs."""
    for path, run in runs.items():
        state = put_at(state, path, run.before)
    return state


def value_at(state: PackedMap, path: KeyPath) -> Packed | None:
    """Return the value at a path; None if there is none."""
    value: Packed | None = state
    for key in path:
        entries = None if value is None else as_map(value)
        value = None if entries is None else entries.get(key)
    return value


def put_at(state: PackedMap, path: KeyPath, value: Packed | None) -> PackedMap:
    """Return a state with another value at a path, or with none. Dicts on the path are created."""
    key, *below = path
    new = dict(state)
    if below:
        new[key] = put_at(as_map(new.get(key, EMPTY_DICT)) or {}, tuple(below), value)
    elif value is None:
        new.pop(key, None)
    else:
        new[key] = value
    return new
