"""The schema of an agent's fields, as its class declares it: what is saved is checked, what is loaded is upgraded.

The channel `schema` of an agent has the version of its fields, and the channel `aside` what migrations keep of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.agents.definition.spec import Spec
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, pack_name, pack_state, unpack
from holdfast.engine.value_schemas import NO_MARK, SchemaMark, ValueKind, ValuePlace
from holdfast.errors import HoldfastError, InvalidError

if TYPE_CHECKING:
    from holdfast.schemas.attachment import ValueAttachment
    from holdfast.schemas.schema_declaration import Declaration

_FIELDS, _SCHEMA, _ASIDE = map(pack_name, ("fields", "schema", "aside"))
_EMPTY: Final = b"\x80"


class FieldSchema:
    """Checks and upgrades the fields of one agent."""

    def __init__(self, line: AgentLine, spec: Spec, agent: object) -> None:
        self._line = line
        self._spec = spec
        self._agent = agent
        self.attached: ValueAttachment | None = None
        """Set once the class's declaration was checked against the store; None if there is none."""

    async def attach(self) -> None:
        """Check what the class declares against what the store has, and register it: once for each class."""
        if self._spec.declaration is not None and self.attached is None:
            self.attached = await attach_class(self._line, self._spec.declaration, "agent", self._spec.name)

    def write(self, channels: PackedMap, saved: Mapping[bytes, Packed]) -> None:
        """Bring the channels to save into the form to store, given those that were saved: the fields fit the schema,
        and keep what this release does not know. Raises `InvalidError`."""
        if self.attached is None:
            if _ASIDE in saved:
                channels[_ASIDE] = saved[_ASIDE]
            return
        mark = self._mark(saved)
        channels[_FIELDS], mark = self.attached.write(channels[_FIELDS], saved.get(_FIELDS), mark, self._line.where)
        channels[_SCHEMA] = self._line.handle.codec.pack(mark.reference)
        if mark.aside:
            channels[_ASIDE] = dict(mark.aside)

    async def read(self, channels: Mapping[bytes, Packed]) -> PackedMap:
        """Return stored channels with the fields in the form of the class, if that declares one."""
        mark = NO_MARK if self.attached is None else self._mark(channels)
        if self.attached is None or mark.reference == self.attached.reference:
            return dict(channels)
        fields = await self.attached.read(channels[_FIELDS], mark, self._line.where)
        return {**channels, _FIELDS: fields}

    async def upgrade(self, channels: Mapping[bytes, Packed], schema: str) -> dict[str, Any]:
        """Return the fields of stored channels, in the form of the class. Raises `UnsupportedError` if that is
        impossible."""
        codec = self._line.handle.codec
        if self.attached is None:
            return self._spec.upgrade_fields(unpack(codec, channels[_FIELDS]), schema, self._line.where)
        fields: dict[str, Any] = unpack(codec, (await self.read(channels))[_FIELDS])
        return fields

    async def check_record(self, state: str, fields: Mapping[str, Any], schema: str) -> None:
        """Raise `InvalidError` if the agent cannot have fields of a stored version, in a state."""
        stored = pack_state(self._line.handle.codec, {"fields": dict(fields), "schema": schema})
        self.check_valid(state, await self.upgrade(stored, schema))

    def _mark(self, channels: Mapping[bytes, Packed]) -> SchemaMark:
        packed = channels.get(_SCHEMA)
        reference = "" if packed is None else str(unpack(self._line.handle.codec, packed))
        if "@" not in reference:
            return NO_MARK  # saved before the class declared a schema
        return SchemaMark(reference, as_map(channels.get(_ASIDE, _EMPTY)) or {})

    def comparable(self, channels: PackedMap) -> PackedMap:
        """Return channels that `read` or `write` returned without the versions of their fields, which are the same."""
        if self.attached is None:
            return channels
        return {name: value for name, value in channels.items() if name not in (_SCHEMA, _ASIDE)}

    def differs(self, channels: Mapping[bytes, Packed], saved: Mapping[bytes, Packed]) -> bool:
        """Return whether the fields to save have another version than those that were saved."""
        return channels.get(_SCHEMA) != saved.get(_SCHEMA)

    def check_valid(self, state: str, fields: Mapping[str, Any]) -> None:
        """Raise `InvalidError` if the agent or its machine refuses a state and these fields."""
        where, machine = self._line.where, self._spec.machine
        validate = self._spec.find_method(self._agent, "validate")
        try:
            result = None if validate is None else validate(fields)
            if machine is not None:
                machine.validate(state, self._agent, fields)
        except HoldfastError:
            raise
        except Exception as error:
            raise InvalidError(
                str(error) or type(error).__name__,
                where=where,
                hint="The agent's own validate rejected this state; the stored record is unchanged",
                code="agent-invalid",
            ) from error
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidError("validate must be a plain function, even in asyncio programs", where=where)


async def attach_class(line: AgentLine, declaration: Declaration, kind: ValueKind, name: str) -> ValueAttachment:
    """Check what a class declares against what the store of an agent has, and register it, unless that was done."""
    from holdfast.schemas.attached_version import attach
    from holdfast.schemas.attachment import ValueAttachment

    handle, place, tenant = line.handle, f"{kind}s {name}", line.handle.tenant
    bindings, bound = handle.engine.bind_value_schemas(), f"{tenant} {place}"
    found = bindings.get(bound)
    if not isinstance(found, ValueAttachment) or found.declaration is not declaration:
        actor = handle.guard.actor
        found = await attach(declaration, handle.engine, tenant, actor, places=(place,), kind=ValueAttachment)
        bindings.bind(bound, lambda value: value == ValuePlace(tenant, kind, name), found)
    return found
