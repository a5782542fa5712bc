"""Update operators on the fields of a live agent.

An operator changes the field at once. What was applied since the last save is remembered beside the field, so that the
next save stores operators and not values, and a merge applies them to what another process saved. If the program sets
the field in the meantime, the value differs from what the operators made: then it counts as set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from holdfast.codec import Codec
from holdfast.engine.model.diff import diff, diff_maps
from holdfast.engine.model.operations import Combine, EditMap, Operation, compose
from holdfast.engine.model.operator_runs import KeyPath, OperatorRun, undo_runs, value_at
from holdfast.engine.model.operators import UpdateOperator, combine
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, unpack
from holdfast.engine.paths import path_text
from holdfast.engine.state_reader import pack_operator
from holdfast.errors import InvalidError

_MISSING = object()


@dataclass
class _AppliedRun:
    """The operators that were applied to a value, the value before, and the value that they made."""

    before: bytes | None
    operators: tuple[Combine, ...]
    after: bytes
    captured: int = 0
    """How many of the operators were captured to be saved. Those stay as they are until that save has succeeded."""


class CapturedRun(NamedTuple):
    """How many operators a save contains, and the value that they made."""

    operators: int
    after: bytes


CapturedRuns: TypeAlias = Mapping[KeyPath, CapturedRun]


class FieldOperators:
    """The operators that were applied to the fields of an agent since its last save."""

    def __init__(self, runs: Mapping[KeyPath, _AppliedRun] | None = None) -> None:
        self._runs = {path: replace(run) for path, run in (runs or {}).items()}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def copy(self) -> FieldOperators:
        """Return a copy, to return to."""
        return FieldOperators(self._runs)

    def apply(self, codec: Codec, fields: dict[str, Any], path: tuple[Any, ...], operator: UpdateOperator) -> Any:
        """Apply an operator to the value at a path of some fields, in place. Returns the new value."""
        if not isinstance(operator, UpdateOperator):
            raise InvalidError(
                f"an operator must be Increment, Append, AddToSet or Max, not {type(operator).__name__}",
                where=path_text(path),
                hint="To set a field, assign to the attribute",
            )
        parent: Any = fields
        for key in path[:-1]:
            parent = parent.get(key) if isinstance(parent, dict) else None
        if not isinstance(parent, dict) or (len(path) == 1 and path[0] not in fields):
            raise InvalidError("the agent has no such field, or no dict at this path", where=path_text(path))
        old = parent.get(path[-1], _MISSING)
        before = None if old is _MISSING else codec.pack(old)
        operation = pack_operator(codec, path, operator)
        try:
            after = flatten(combine(operation.rule, operation.operand, before))
        except InvalidError as error:
            raise InvalidError(error.what, where=path_text(path), hint=error.hint) from None
        parent[path[-1]] = unpack(codec, after)
        self._add(tuple(map(codec.pack, path)), before, operation, after)
        return parent[path[-1]]

    def _add(self, path: KeyPath, before: bytes | None, operator: Combine, after: bytes) -> None:
        run = self._runs.get(path)
        if run is None or run.after != before:
            self._runs[path] = _AppliedRun(before, (operator,), after)
            return
        last = run.operators[-1] if len(run.operators) > run.captured else None
        both = compose(last, operator) if last is not None else None
        kept = run.operators[:-1] if isinstance(both, Combine) else run.operators
        run.operators, run.after = (*kept, both if isinstance(both, Combine) else operator), after

    def capture(self, saved: PackedMap, fields: Packed) -> tuple[Operation | None, CapturedRuns]:
        """Return the operation that makes the fields of the saved ones, and which operators it contains."""
        runs = self.current_runs(saved, fields)
        single = {path: run for path, run in runs.items() if len(run.operators) == 1}
        edit: EditMap | None = diff_maps(saved, undo_runs(as_map(fields) or {}, single)) if single else None
        for path, run in single.items():
            edit = None if edit is None else _add_operator(edit, path, run.operators[0])
        if edit is None:
            return diff(saved, fields), {}
        captured = {path: self._runs[path] for path in single}
        for applied in captured.values():
            applied.captured = len(applied.operators)
        return edit, {path: CapturedRun(applied.captured, applied.after) for path, applied in captured.items()}

    def mark_saved(self, captured: CapturedRuns) -> None:
        """Forget the operators that were saved."""
        for path, (count, after) in captured.items():
            run = self._runs.get(path)
            if run is not None and len(run.operators) >= count:
                run.before, run.operators, run.captured = after, run.operators[count:], 0
        self._runs = {path: run for path, run in self._runs.items() if run.operators}

    def current_runs(self, saved: PackedMap, fields: Packed) -> dict[KeyPath, OperatorRun]:
        """Return the operators of the values that are as the operators left them, and that were saved as they were
        before. Those of all other values are forgotten."""
        state = as_map(fields) or {}
        self._runs = {
            path: run
            for path, run in self._runs.items()
            if _flat(value_at(state, path)) == run.after and _flat(value_at(saved, path)) == run.before
        }
        return {path: OperatorRun(run.before, run.operators) for path, run in self._runs.items()}

    def rebase(self, saved: PackedMap, fields: PackedMap) -> None:
        """Take over a merge with what another process saved: the operators are to be applied to that."""
        for path, run in self._runs.items():
            before, after = _flat(value_at(saved, path)), _flat(value_at(fields, path))
            run.before, run.after, run.captured = before, after or b"", 0


def _flat(value: Packed | None) -> bytes | None:
    return None if value is None else flatten(value)


def _add_operator(edit: EditMap, path: KeyPath, operator: Combine) -> EditMap | None:
    """Return an edit with an operator on a value that it leaves alone otherwise; None if it sets a dict around it."""
    key, *below = path
    put = dict(edit.put)
    new: Operation | None = operator
    if below:
        inner = put.get(key, EditMap())
        new = _add_operator(inner, tuple(below), operator) if isinstance(inner, EditMap) else None
    return None if new is None else EditMap(edit.removed, tuple({**put, key: new}.items()), edit.moved)
