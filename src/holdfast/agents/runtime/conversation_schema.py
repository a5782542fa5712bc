"""The schema of an agent's conversation, as its class declares it: messages are checked when they are added, and
upgraded all together when the agent is loaded.

The channel `conversation_schema` has the version of the messages, and what migrations keep aside of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.agents.definition.spec import Spec
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import CONVERSATION
from holdfast.engine.model.packed_state import Packed, PackedMap, pack_channel, pack_name, unpack
from holdfast.engine.row_format import StepRef
from holdfast.engine.value_schemas import NO_MARK, SchemaMark

if TYPE_CHECKING:
    from holdfast.schemas.value_attachment import ValueAttachment

_MARK = pack_name("conversation_schema")


class ConversationSchema:
    """Checks and upgrades the messages of one agent."""

    def __init__(self, line: AgentLine, spec: Spec) -> None:
        self._line = line
        self._spec = spec
        self._mark = NO_MARK
        self.attached: ValueAttachment | None = None
        """Set once the class's declaration was checked against the store; None if there is none."""

    async def attach(self) -> None:
        """Check what the class declares against what the store has, and register it: once for each class."""
        if self._spec.conversation is not None and self.attached is None:
            from holdfast.agents.runtime.field_schema import attach_class

            self.attached = await attach_class(self._line, self._spec.conversation, "conversation", self._spec.name)

    def check(self, added: Sequence[Any]) -> object:
        """Raise an error for messages that cannot be saved, or do not fit the schema."""
        packed = self._line.handle.codec.pack_items(added)
        declaration = self._spec.conversation
        if declaration is not None and declaration.validate != "off":
            from holdfast.schemas.attached_version import report_problems

            reference = declaration.schema.schema_reference
            problems = declaration.schemas.check(reference, list(added))
            report_problems(reference, problems, f"new messages of {self._line.where}", declaration.validate)
        return packed

    def write(self, channels: PackedMap, saved: Mapping[bytes, Packed]) -> None:
        """Add the version of the messages to the channels to save, given those that were saved."""
        if self.attached is not None:
            mark = self._mark if self._mark.reference else SchemaMark(self.attached.reference)
            channels[_MARK] = mark.pack(self._line.handle.codec)
        elif _MARK in saved:
            channels[_MARK] = saved[_MARK]

    async def upgrade(self, point: StepRef, channels: Mapping[bytes, Packed], count: int) -> list[Any] | None:
        """Return all messages in the version of the class; None if they are stored so. `channels` are those of a step,
        and `count` is the number of its messages."""
        stored, attached = self._stored_mark(channels), self.attached
        self._mark = stored
        if attached is None and stored.reference and count:
            inherited = self._line.handle.engine.appender.inherited
            where = f"conversation of {self._line.where}"
            await inherited.require_unversioned(self._line.line, stored.reference, where)
        if attached is None or stored.reference == attached.reference:
            return None
        if not count:
            self._mark = NO_MARK
            return None
        codec, where = self._line.handle.codec, f"conversation of {self._line.where}"
        packed = pack_channel(codec, CONVERSATION, await self._line.read_messages(point))
        upgraded = await attached.read(packed, stored, where)
        if upgraded is packed:
            return None
        _, self._mark = attached.write(upgraded, packed, stored, where)
        messages: list[Any] = unpack(codec, upgraded)
        return messages

    def is_same(self, saved: Mapping[bytes, Packed], theirs: Mapping[bytes, Packed]) -> bool:
        """Return whether another save left the messages in the version that they had."""
        return self._stored_mark(saved) == self._stored_mark(theirs)

    def _stored_mark(self, channels: Mapping[bytes, Packed]) -> SchemaMark:
        packed = channels.get(_MARK)
        return NO_MARK if packed is None else SchemaMark.unpack(self._line.handle.codec, packed)
