"""Operations on the items of a list, and on a whole state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.engine.model.packed_state import as_map, flatten, pack_name, pack_state, unpack_state
from holdfast.engine.paths import path_text
from holdfast.errors import HoldfastError, InvalidError
from holdfast.schemas.functions import function_failed
from holdfast.schemas.item_notes import pop_item_notes, store_item_notes
from holdfast.schemas.operations import Notes, Operation, irreversible
from holdfast.schemas.packed_document import Keys, PackedDocument, read_fields, read_items, write_fields

_ITEM = pack_name("")
_NONE = b"\xc0"


@dataclass(frozen=True)
class Each(Operation):
    """Applies operations to each item of a list, or to each value of a dict."""

    kind: ClassVar[str] = "each"
    path: Keys
    operations: tuple[Operation, ...]

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Apply the operations to each item, in order."""
        self._map(document, notes, lambda item, inner: _run(self.operations, item, inner, up=True))

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Apply the inverse operations to each item, the last one first."""
        self._map(document, notes, lambda item, inner: _run(self.operations, item, inner, up=False))

    def _map(self, document: PackedDocument, notes: Notes, change: Callable[[PackedDocument, Notes], None]) -> None:
        packed = document.get(self.path)
        if packed is None or packed == _NONE:
            return
        items = read_items(packed)
        if items is None:
            raise InvalidError(
                f"{path_text(self.path)!r} is not a list, tuple or deque, and not a dict", where=path_text(self.path)
            )
        found = pop_item_notes(notes, items, lossy=self.lossy) if notes else {}
        kept: dict[int, Notes] = {}
        changed = []
        for place, item in enumerate(items.values):
            inner_notes = found.get(place, {})
            holder = PackedDocument({_ITEM: item}, document.codec)
            try:
                change(holder, inner_notes)
            except HoldfastError as error:
                error.where = f"{path_text((*self.path, place))}{'.' if error.where else ''}{error.where}"
                raise
            except Exception as error:
                raise function_failed(error, path_text((*self.path, place))) from error
            changed.append(flatten(holder.fields[_ITEM]))
            if inner_notes:
                kept[place] = inner_notes
        document.set(self.path, items.join(changed))
        store_item_notes(notes, items._replace(values=changed), kept)

    @property
    def reversible(self) -> bool:
        """Whether all operations have a way back."""
        return all(each.reversible for each in self.operations)

    @property
    def calls_code(self) -> bool:
        """Whether it calls functions of the application."""
        return any(operation.calls_code for operation in self.operations)

    def arguments(self) -> dict[str, Any]:
        """Return the path, and the operations."""
        return {"path": self.path, "operations": [[each.kind, each.arguments()] for each in self.operations]}


def _run(operations: tuple[Operation, ...], holder: PackedDocument, notes: Notes, *, up: bool) -> None:
    """Apply operations to an item. Those on fields of it get it as a document of its own."""
    for place in range(len(operations)) if up else reversed(range(len(operations))):
        operation, name = operations[place], pack_name(str(place))
        own: Notes = dict(as_map(notes.pop(name, b"\x80")) or {})
        target = holder
        item = holder.fields[_ITEM]
        whole = operation.paths() == (("",),)
        if not whole:
            fields = read_fields(item)
            if fields is None:
                raise InvalidError(
                    "an item has no fields: it is not a dict, and not an instance of a known kind of class"
                )
            target = PackedDocument(fields, holder.codec, item)
        (operation.upgrade if up else operation.downgrade)(target, own)
        if not whole:
            holder.fields[_ITEM] = write_fields(item, target.fields)
        if own:
            notes[name] = own


@dataclass(frozen=True)
class Custom(Operation):
    """Converts a whole state by functions."""

    kind: ClassVar[str] = "custom"
    places: ClassVar[tuple[str, ...]] = ()
    up: Callable[[dict[str, Any]], Mapping[str, Any]]
    down: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Convert the state."""
        _apply(document, self.up)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Convert the state back."""
        if self.down is None:
            raise irreversible(self)
        _apply(document, self.down)


def _apply(document: PackedDocument, function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    result: object = function(unpack_state(document.codec, document.fields))
    if not isinstance(result, Mapping):
        raise InvalidError(
            f"a custom migration returns the state as a dict, not {type(result).__name__}", code="migration-shape"
        )
    document.fields = pack_state(document.codec, result)
