"""Which schema single values have, where a program declared one: keys of scopes, metadata of artifacts and sessions.

A value has a mark beside it, wherever it is stored: the version that it has, and what migrations keep aside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name

if TYPE_CHECKING:
    from holdfast.backends.interface import Change
    from holdfast.codec import Codec

ValueKind: TypeAlias = Literal["key", "agent", "conversation", "artifact", "session"]
"""What the value is: that of a key of a scope, the fields or the messages of an agent, the metadata of an artifact or a
session."""

_MAX_CACHED = 4096
"""The number of values whose schema is cached."""

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


class ValueBindings:
    """The schemas of a store's values: `engine.value_schemas`, once a program attached one."""

    def __init__(self) -> None:
        self._bound: list[tuple[str, str, ValueKind, Callable[[str, str], bool], ValueSchema]] = []
        self._cache: dict[tuple[str, ValueKind, str, str], ValueSchema | None] = {}
        self._lock = Lock()
        reinit_after_fork(self)

    def bind(
        self, name: str, tenant: str, kind: ValueKind, matches: Callable[[str, str], bool], schema: ValueSchema
    ) -> None:
        """Bind the values whose owner and key match to a schema, in place of an earlier binding of this name."""
        with self._lock:
            others = [each for each in self._bound if each[:2] != (name, tenant)]
            self._bound = [(name, tenant, kind, matches, schema), *others]
            self._cache = {}

    def unbind(self, name: str, tenant: str) -> bool:
        """Remove the binding of a name. False if there is none."""
        with self._lock:
            before = len(self._bound)
            self._bound = [each for each in self._bound if each[:2] != (name, tenant)]
            self._cache = {}
            return len(self._bound) < before

    def get(self, name: str, tenant: str) -> ValueSchema | None:
        """Return the schema of the binding of a name."""
        return next((each[4] for each in self._bound if each[:2] == (name, tenant)), None)

    def find(self, tenant: str, kind: ValueKind, owner: str, key: str = "") -> ValueSchema | None:
        """Return the schema of a value; None if it has none. An owner is a scope, a class, a type, or a session."""
        try:
            return self._cache[tenant, kind, owner, key]
        except KeyError:
            pass
        with self._lock:
            found = next(
                (
                    schema
                    for _, of, what, matches, schema in self._bound
                    if of == tenant and what == kind and matches(owner, key)
                ),
                None,
            )
            if len(self._cache) >= _MAX_CACHED:
                self._cache = {}
            self._cache[tenant, kind, owner, key] = found
            return found

    def reinit_locks(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = Lock()
