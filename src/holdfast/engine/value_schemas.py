"""Which schema single values have, where a program declared one: keys of scopes, metadata of artifacts and sessions.

A value has a mark beside it, wherever it is stored: the version that it has, and what migrations keep aside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name
from holdfast.engine.schema_bindings import Bindings

if TYPE_CHECKING:
    from holdfast.backends.interface import Change
    from holdfast.codec import Codec

ValueKind: TypeAlias = Literal["key", "agent", "conversation", "artifact", "session"]
"""What the value is: that of a key of a scope, the fields or the messages of an agent, the metadata of an artifact or a
session."""

_SCHEMA, _ASIDE = pack_name("schema"), pack_name("aside")
_EMPTY: Final = b"\x80"


class SchemaMark(NamedTuple):
    """The version of a stored value, as in `plan@2.0.0`, and what migrations keep aside of it."""

    reference: str = ""
    aside: Mapping[bytes, Packed] = {}

    def pack(self, codec: Codec) -> PackedMap:
        """Return the stored form."""
        stored: PackedMap = {_SCHEMA: codec.pack(self.reference)}
        if self.aside:
            stored[_ASIDE] = dict(self.aside)
        return stored

    @classmethod
    def unpack(cls, codec: Codec, packed: Packed) -> SchemaMark:
        """Read the stored form."""
        stored = as_map(packed) or {}
        reference: Any = codec.unpack(flatten(stored.get(_SCHEMA, b"\xa0")))
        return cls(str(reference), as_map(stored.get(_ASIDE, _EMPTY)) or {})


NO_MARK: Final = SchemaMark()


class ValueSchema(Protocol):
    """The schema of some values, as a program declared it."""

    @property
    def reference(self) -> str:
        """The name and the version, as in `plan@2.0.0`."""

    async def conditions(self, again: bool) -> Sequence[Change]:
        """Return the conditions on which a value may be written: that this version may still be."""

    async def read(self, value: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a stored value in this version, or in a newer one that this program gets along with."""

    def write(self, value: Packed, old: Packed | None, mark: SchemaMark, where: str) -> tuple[Packed, SchemaMark]:
        """Return what to store for a value of this version, given what is stored: it is checked, as far as it
        changed, and keeps what this program does not know."""


class ValuePlace(NamedTuple):
    """The place of a value: an owner of some kind, which is a scope, a class, a type or a session, and a key."""

    tenant: str
    kind: ValueKind
    owner: str
    key: str = ""


ValueBindings: TypeAlias = Bindings[ValuePlace, ValueSchema]
"""The schemas of a store's values: `engine.value_schemas`, once a program attached one."""
