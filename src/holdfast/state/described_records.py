"""Tables of records with metadata: artifacts and sessions.

A program may attach a schema to the metadata, of artifacts by their types, and of sessions by their ids. A record says
which version its metadata has, and has what migrations keep aside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.backends.interface import Change
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import pack_channel, pack_state, unpack, unpack_state
from holdfast.engine.record_table import RecordTable
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import Link, SystemLine, SystemLineEntries
from holdfast.engine.value_schemas import SchemaMark, ValueKind, ValuePlace
from holdfast.hooks.feature_hooks import FeatureHooks
from holdfast.security.handle import StoreHandle
from holdfast.state.session_guard import maintenance_handle
from holdfast.state.writer import FOLD_EVERY

if TYPE_CHECKING:
    from holdfast.engine.value_schemas import ValueSchema

D = TypeVar("D", bound="DescribedRecord")


@dataclass(kw_only=True)
class DescribedRecord:
    """A record with metadata."""

    metadata: dict[str, Any] = field(default_factory=dict)
    schema: str = ""
    """The version of the metadata, as in `visit@2.0.0`; empty for none."""
    aside: dict[str, Any] = field(default_factory=dict)
    """The values of the metadata that migrations keep aside."""

    @classmethod
    def of(cls, stored: Mapping[str, Any], version: int = 0) -> Self:
        """Build a record from its stored form, and the number of the step that wrote it, if it has one."""
        known = {**stored, "version": version}
        return cls(**{each.name: known[each.name] for each in fields(cls) if each.name in known})

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form: what it says about a schema only where there is one."""
        left_out = {"version", *(name for name in ("schema", "aside") if not getattr(self, name))}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def links(self, id: str) -> list[Link]:
        """Return the links by which it is found."""
        raise NotImplementedError

    def schema_owner(self, id: str) -> str:
        """Return what patterns of schemas are compared with."""
        return id


class DescribedTable(RecordTable[D]):
    """The records of one kind, for an identity that the guard has checked."""

    def __init__(self, handle: StoreHandle, kind: ValueKind, line: str, record: type[D], hint: str) -> None:
        system_line = SystemLine(handle.engine, Line(handle.tenant, line), handle.guard.actor, fold_every=FOLD_EVERY)
        super().__init__(system_line, kind, record.of, record.to_dict, hint=hint, links=record.links)
        self.handle: StoreHandle = maintenance_handle(handle)
        self._kind: ValueKind = kind
        self._used: dict[str, ValueSchema] = {}

    async def get_many(
        self, names: Iterable[str], entries: SystemLineEntries | None = None, *, migrate: bool = False
    ) -> dict[str, D]:
        """Return the records of those names that have one, with their metadata as it is stored or upgraded."""
        found = await super().get_many(names, entries)
        if migrate and self.handle.engine.value_schemas is not None:
            for id, record in found.items():
                await self.upgrade(id, record)
        return found

    async def get(self, name: str, entries: SystemLineEntries | None = None, *, migrate: bool = False) -> D:
        """Return a record, with its metadata as it is stored or upgraded. Raises `NotFoundError`."""
        found = await super().get(name, entries)
        if migrate:
            await self.upgrade(name, found)
        return found

    def _find_schema(self, id: str, record: D) -> ValueSchema | None:
        bindings = self.handle.engine.value_schemas
        if bindings is None:
            return None
        return bindings.find(ValuePlace(self.handle.tenant, self._kind, record.schema_owner(id)))

    async def upgrade(self, id: str, record: D) -> None:
        """Upgrade the metadata of a record that was read, if it has an older version."""
        schema = self._find_schema(id, record)
        if schema is None or schema.reference == record.schema:
            return
        codec = self.handle.codec
        value = pack_channel(codec, "metadata", record.metadata)
        record.metadata = unpack(codec, await schema.read(value, self._mark(record), self._where(id)))

    async def fit(self, id: str, record: D, stored: D | None) -> None:
        """Let the metadata of a record fit its schema, given the record as it is stored. Raises `InvalidError`."""
        schema, where = self._find_schema(id, record), self._where(id)
        if schema is None:
            if stored is not None and stored.schema and record.metadata != stored.metadata:
                inherited = self.handle.engine.appender.inherited
                await inherited.require_unversioned(Line(self.handle.tenant, ""), stored.schema, where)
            return
        codec, self._used[schema.reference] = self.handle.codec, schema
        value = pack_channel(codec, "metadata", record.metadata)
        old = None if stored is None else pack_channel(codec, "metadata", stored.metadata)
        mark = SchemaMark() if stored is None else self._mark(stored)
        if old is not None and mark.reference != schema.reference:
            await schema.read(old, mark, where)  # whether this version gets along with it
        packed, mark = schema.write(value, old, mark, where)
        record.metadata = unpack(codec, packed)
        record.schema, record.aside = mark.reference, unpack_state(codec, dict(mark.aside))

    async def conditions(self, again: bool) -> list[Change]:
        """Return the conditions on which what was written may be stored: that its versions may still be written."""
        return [change for schema in self._used.values() for change in await schema.conditions(again)]

    def events(self, id: str, action: str, call: FeatureHooks | None) -> list[Event]:
        """Return the event of a change of a record, with the notes of its hooks, and their executions."""
        detail = self.handle.codec.pack(dict(call.notes)) if call is not None and call.notes else b""
        event = Event(self._kind, self.handle.guard.actor, action, id, detail=detail)
        return [event, *(() if call is None else call.events)]

    def _where(self, id: str) -> str:
        return f"metadata of {self._kind} {id!r}"

    def _mark(self, record: D) -> SchemaMark:
        return SchemaMark(record.schema, pack_state(self.handle.codec, record.aside))
