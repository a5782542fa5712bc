"""How operations are written: `add("plan", default=[])`, `rename("msgs", "messages")` and so on.

Paths are those of the rest of Holdfast: `"plan.goal"`, or a tuple of names. They lead through dicts and through fields
of dataclasses, pydantic models and the like; `each` leads into lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from holdfast.codec import default_codec
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import flatten
from holdfast.engine.paths import Path, path_text, require_path
from holdfast.errors import InvalidError
from holdfast.schemas.functions import require_function
from holdfast.schemas.operations import (
    Add,
    Convert,
    Custom,
    Each,
    Merge,
    Move,
    Nest,
    Notes,
    Operation,
    Remove,
    Rename,
    Split,
    Unnest,
)
from holdfast.schemas.packed_document import Keys, PackedDocument


@dataclass(frozen=True)
class ValueMapping(Operation):
    """Replaces values of a field by others. Values that are not listed stay."""

    kind: ClassVar[str] = "convert"
    path: Keys
    mapping: tuple[tuple[Any, Any], ...]

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Replace the value."""
        value = document.get(self.path)
        if value is None:
            return
        packed = flatten(value)
        if not self.lossy and packed in self._back and packed not in self._table:
            raise InvalidError(
                f"a value of {path_text(self.path)!r} is one that the mapping gives to another: "
                "the way back would be lost",
                where=path_text(self.path),
                hint="Map it too, or declare the operation lossy",
            )
        document.set(self.path, self._table.get(packed, value))

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Replace the value by that of before."""
        value = document.get(self.path)
        if value is not None:
            document.set(self.path, self._back.get(flatten(value), value))

    @cached_property
    def _table(self) -> dict[bytes, bytes]:
        return {default_codec.pack(old): default_codec.pack(new) for old, new in self.mapping}

    @cached_property
    def _back(self) -> dict[bytes, bytes]:
        return {new: old for old, new in self._table.items()}

    @property
    def is_unique(self) -> bool:
        """Whether no two values become the same."""
        return len(self._back) == len(self._table)


def add(path: Path, *, default: Any = MISSING, factory: Callable[[], Any] | None = None) -> Operation:
    """Add a field, with a default or with what a function returns. A downgrade keeps the field's value aside."""
    if (default is MISSING) is (factory is None):
        raise InvalidError("a new field must have either a default or a factory", where=_text(path))
    if factory is not None:
        require_function(factory, "the factory")
    else:
        default_codec.pack(default)  # refuses what cannot be stored
    return Add(_keys(path), default, factory)


def remove(path: Path, *, keep: bool = True, lossy: bool = False) -> Operation:
    """Remove a field. Its value is kept aside for a downgrade, unless `keep=False`, which must be declared lossy."""
    if not keep:
        _require_lossy(lossy, f"remove {_text(path)!r} with keep=False")
    return Remove(_keys(path), keep, lossy=lossy)


def rename(path: Path, name: str) -> Operation:
    """Rename a field: `rename("plan.goal", "aim")` makes `plan.goal` to `plan.aim`."""
    keys = _keys(path)
    target = (*keys[:-1], *_names((name,), path))
    if keys == target:
        raise InvalidError("a field is renamed to another name, not to its own", where=_text(path))
    return Rename(keys, target)


def move(source: Path, target: Path) -> Operation:
    """Move a field to another place, such as another channel: `move("plan.notes", "notes")`."""
    keys, others = _keys(source), _keys(target)
    shorter = min(len(keys), len(others))
    if keys[:shorter] == others[:shorter]:
        raise InvalidError("a field cannot be moved into itself", where=f"{_text(source)} to {_text(target)}")
    return Move(keys, others)


def convert(
    path: Path,
    up: Callable[[Any], Any] | Mapping[Any, Any],
    down: Callable[[Any], Any] | None = None,
    *,
    keep: bool = False,
    lossy: bool = False,
) -> Operation:
    """Convert the value of a field by functions for either way, or by a mapping of values.

    `keep=True` keeps the older value aside, and a downgrade restores it if the field has not changed since. Without
    that and without `down`, the operation must be declared lossy. In `each`, the path `""` is the item itself.
    """
    keys = ("",) if path == "" else _keys(path)
    if isinstance(up, Mapping):
        return _convert_values(keys, up, lossy=lossy)
    require_function(up, "up")
    if down is not None:
        require_function(down, "down")
    elif not keep:
        _require_lossy(lossy, f"convert {_text(path)!r} without down and without keep")
    return Convert(keys, keep, up, down, lossy=lossy)


def _convert_values(keys: Keys, mapping: Mapping[Any, Any], *, lossy: bool) -> Operation:
    if not mapping:
        raise InvalidError("a mapping of values lists at least one", where=path_text(keys))
    operation = ValueMapping(keys, tuple(mapping.items()), lossy=lossy)
    if not operation.is_unique:
        _require_lossy(lossy, f"a mapping of {path_text(keys)!r} that gives two values the same")
    return operation


def split(
    path: Path,
    into: Sequence[str],
    up: Callable[[Any], Sequence[Any]] | None = None,
    down: Callable[..., Any] | None = None,
    *,
    separator: str = "",
    lossy: bool = False,
) -> Operation:
    """Split a field into several beside it, by functions for either way, or a text at a separator.

    `up` takes the value and returns one for each field; `down` takes those and returns the value.
    """
    keys = _keys(path)
    names = _names(into, path)
    targets = tuple((*keys[:-1], name) for name in names)
    if keys in targets:
        raise InvalidError("a field cannot be split into itself: rename it first", where=_text(path))
    if separator:
        if up is not None or down is not None:
            raise InvalidError("a field is split either by functions or at a separator", where=_text(path))
        return Split(keys, targets, *_split_text(separator, len(names) - 1, path), separator)
    if up is None:
        raise InvalidError("a field is split by functions, or at a separator", where=_text(path))
    _require_functions(up, down, lossy, f"split {_text(path)!r}")
    return Split(keys, targets, up, down, lossy=lossy)


def _split_text(separator: str, count: int, path: Path) -> tuple[Callable[[Any], Sequence[Any]], Callable[..., Any]]:
    def require_text(value: object) -> str:
        if isinstance(value, str):
            return value
        raise InvalidError(
            f"expected a string to split or join, got a value of type {type(value).__name__}",
            where=_text(path),
            hint="Convert the values to text first, or give functions for either way",
        )

    def apart(value: object) -> list[str]:
        return require_text(value).split(separator, count)

    def together(*parts: object) -> str:
        return separator.join(map(require_text, parts))

    return apart, together


def merge(
    paths: Sequence[str],
    into: Path,
    up: Callable[..., Any],
    down: Callable[[Any], Sequence[Any]] | None = None,
    *,
    lossy: bool = False,
) -> Operation:
    """Merge fields into one beside them: `merge(("first", "last"), "name", up, down)`.

    `up` takes the values of the fields, and `down` returns them. If some are missing, the others are kept aside.
    """
    target = _keys(into)
    names = _names(paths, into)
    sources = tuple((*target[:-1], name) for name in names)
    if target in sources:
        raise InvalidError("fields cannot be merged into one of them: rename it first", where=_text(into))
    _require_functions(up, down, lossy, f"merge into {_text(into)!r}")
    return Merge(sources, target, up, down, lossy=lossy)


def nest(into: Path, names: Sequence[str]) -> Operation:
    """Move fields into a dict beside them, which is created: `nest("plan", ("goal", "steps"))`."""
    return Nest(_keys(into), _names(names, into))


def unnest(path: Path, names: Sequence[str]) -> Operation:
    """Move fields out of a dict, which is removed: `unnest("plan", ("goal", "steps"))`. Others of it are kept aside."""
    return Unnest(_keys(path), _names(names, path))


def each(path: Path, *operations: Operation) -> Operation:
    """Apply operations to each item of a list, such as the messages, or to each value of a dict. The path `""` is the
    value itself, where the schema is that of a list."""
    if not operations:
        raise InvalidError("each needs operations to apply to the items", where=_text(path))
    items: tuple[object, ...] = operations
    for operation in items:
        if not isinstance(operation, Operation) or isinstance(operation, Custom):
            raise InvalidError(f"{operation} cannot be applied to items", where=_text(path), hint='Use convert("", …)')
    return Each(
        ("",) if path == "" else _keys(path), operations, lossy=any(operation.lossy for operation in operations)
    )


def custom(
    up: Callable[[dict[str, Any]], Mapping[str, Any]],
    down: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    *,
    lossy: bool = False,
) -> Operation:
    """Convert a whole state by functions. Without `down`, the operation must be declared lossy."""
    _require_functions(up, down, lossy, "custom")
    return Custom(up, down, lossy=lossy)


def _require_functions(up: object, down: object, lossy: bool, what: str) -> None:
    """Require functions for either way; without that for the way down, the operation is lossy."""
    require_function(up, "up")
    if down is None:
        _require_lossy(lossy, f"{what} without down")
    else:
        require_function(down, "down")


def _require_lossy(lossy: bool, what: str) -> None:
    if not lossy:
        raise InvalidError(
            f"{what} loses data, and is not declared lossy",
            hint="Give the way back, or declare it with lossy=True",
            code="migration-lossy",
        )


def _keys(path: Path) -> Keys:
    keys = require_path(path)
    for key in keys:
        if type(key) is not str:
            raise InvalidError("a migration addresses fields by names", where=_text(path), hint="Use each(…) for items")
    return keys


def _names(names: Sequence[str], path: Path) -> tuple[str, ...]:
    found: Sequence[object] = names
    if isinstance(names, str) or not names or any(not isinstance(name, str) or not name for name in found):
        raise InvalidError('fields must be a tuple of strings: ("first", "last")', where=_text(path))
    if len(set(names)) < len(names):
        raise InvalidError("a field is named twice", where=_text(path))
    return tuple(names)


def _text(path: Path) -> str:
    return path if isinstance(path, str) else path_text(path)
