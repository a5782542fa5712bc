"""The operation that replaces values by others. It compares and replaces packed bytes: 1, True and 1.0 differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from holdfast.codec import default_codec
from holdfast.engine.model.packed_state import flatten
from holdfast.engine.paths import path_text
from holdfast.errors import InvalidError
from holdfast.schemas.operations import Notes, Operation
from holdfast.schemas.packed_document import Keys, PackedDocument


@dataclass(frozen=True)
class ValueMapping(Operation):
    """Replaces values of a field by others. Values that are not listed stay."""

    kind: ClassVar[str] = "convert"
    keys: Keys
    mapping: tuple[tuple[Any, Any], ...]

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Replace the value."""
        value = document.get(self.keys)
        if value is None:
            return
        packed = flatten(value)
        if not self.lossy and packed in self._back and packed not in self._table:
            raise InvalidError(
                f"a value of {path_text(self.keys)!r} is one that the mapping gives to another: "
                "the way back would be lost",
                where=path_text(self.keys),
                hint="Map it too, or declare the operation lossy",
            )
        document.set(self.keys, self._table.get(packed, value))

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Replace the value by that of before."""
        value = document.get(self.keys)
        if value is not None:
            document.set(self.keys, self._back.get(flatten(value), value))

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

    def paths(self) -> tuple[Keys, ...]:
        """Return the path of the field."""
        return (self.keys,)

    def arguments(self) -> dict[str, Any]:
        """Return the path, and the mapping."""
        return {"path": self.keys, "mapping": self.mapping}
