"""Schemas of metadata: that of artifacts, by their types, and that of sessions, by their ids.

A record says which version its metadata has, and has what migrations keep aside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.backends.interface import Change
from holdfast.engine.model.packed_state import pack_channel, pack_state, unpack, unpack_state
from holdfast.engine.row_format import Line
from holdfast.engine.value_schemas import SchemaMark, ValueKind
from holdfast.security.handle import StoreHandle

if TYPE_CHECKING:
    from holdfast.engine.value_schemas import ValueSchema


class DescribedRecord(Protocol):
    """A record with metadata."""

    metadata: dict[str, Any]
    schema: str
    aside: dict[str, Any]


class MetadataSchemas:
    """Checks and upgrades the metadata of records."""

    def __init__(self, handle: StoreHandle, kind: ValueKind) -> None:
        self._handle = handle
        self._kind = kind
        self._used: dict[str, ValueSchema] = {}

    def _find(self, owner: str) -> ValueSchema | None:
        bindings = self._handle.engine.value_schemas
        return None if bindings is None else bindings.find(self._handle.tenant, self._kind, owner)

    async def read(self, owner: str, record: DescribedRecord, where: str) -> None:
        """Upgrade the metadata of a record that was read, if it has an older version."""
        schema = self._find(owner)
        if schema is None or schema.reference == record.schema:
            return
        codec = self._handle.codec
        value = pack_channel(codec, "metadata", record.metadata)
        record.metadata = unpack(codec, await schema.read(value, self._mark(record), f"metadata of {where}"))

    async def write(self, owner: str, record: DescribedRecord, stored: DescribedRecord | None, where: str) -> None:
        """Let the metadata of a record fit its schema, given the record as it is stored. Raises `InvalidError`."""
        schema = self._find(owner)
        if schema is None:
            if stored is not None and stored.schema and record.metadata != stored.metadata:
                inherited, line = self._handle.engine.appender.inherited, Line(self._handle.tenant, "")
                await inherited.require_unversioned(line, stored.schema, f"metadata of {where}")
            return
        codec, self._used[schema.reference] = self._handle.codec, schema
        value = pack_channel(codec, "metadata", record.metadata)
        old = None if stored is None else pack_channel(codec, "metadata", stored.metadata)
        mark = SchemaMark() if stored is None else self._mark(stored)
        if old is not None and mark.reference != schema.reference:
            await schema.read(old, mark, f"metadata of {where}")  # whether this version gets along with it
        packed, mark = schema.write(value, old, mark, f"metadata of {where}")
        record.metadata = unpack(codec, packed)
        record.schema, record.aside = mark.reference, unpack_state(codec, dict(mark.aside))

    async def conditions(self, again: bool) -> list[Change]:
        """Return the conditions on which what was written may be stored: that its versions may still be written."""
        return [change for schema in self._used.values() for change in await schema.conditions(again)]

    def _mark(self, record: DescribedRecord) -> SchemaMark:
        return SchemaMark(record.schema, pack_state(self._handle.codec, record.aside))


def stored_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record to store: those about a schema only where there is one."""
    return {name: value for name, value in fields.items() if value or name not in ("schema", "aside")}
