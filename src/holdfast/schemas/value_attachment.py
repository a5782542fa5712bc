"""A schema that a program attached to single values: keys of scopes, fields of agents, metadata of artifacts.

A value says by a mark which version it has, and what migrations keep aside of it; see `engine/value_schemas.py`.
"""

from __future__ import annotations

import hashlib

from holdfast.codec import msgpack
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, unpack, unpack_name
from holdfast.engine.state_loader import weigh
from holdfast.engine.value_schemas import SchemaMark
from holdfast.errors import HoldfastError, UnsupportedError
from holdfast.schemas.attached_version import AttachedVersion
from holdfast.schemas.value_migration import migrate_value
from holdfast.schemas.version import Version


class ValueAttachment(AttachedVersion):
    """The schema of some values, as this program has it."""

    async def read(self, value: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a stored value in this version, or in a newer one that this program gets along with."""
        version = self.version_of(mark.reference) or self.schema.version
        if version > self.schema.version:
            await self.accept(mark.reference, where)
        return self._upgraded(value, mark, version, where)[0] if version < self.schema.version else value

    def write(self, value: Packed, old: Packed | None, mark: SchemaMark, where: str) -> tuple[Packed, SchemaMark]:
        """Return what to store for a value of this version, given what is stored: it is checked, as far as it
        changed, and keeps what this program does not know."""
        if old is None:
            self._check(value, None, where)
            return value, SchemaMark(self.reference)
        version = self.version_of(mark.reference) or self.schema.version
        if version > self.schema.version:
            self.require_accepted(mark.reference, where)
            self._check(value, old, where)
            return self._with_unknown(value, old, mark, where), mark
        if version == self.schema.version:
            self._check(value, old, where)
            return value, mark if mark.reference else SchemaMark(self.reference, mark.aside)
        before, aside = self._upgraded(old, mark, version, where)
        self._check(value, before, where)
        return value, SchemaMark(self.reference, aside)

    def _with_unknown(self, value: Packed, old: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a value with those fields of the stored one that this version does not know."""
        new, stored = _fields(value), _fields(old)
        if new is None or stored is None:
            raise UnsupportedError(
                f"the value is of {mark.reference}, and this program's {self.schema.version} would drop what it does "
                "not know of it",
                where=where,
                hint=f"Run the release with {mark.reference}, or change parts of the value",
                code="schema-newer",
            )
        known = self.schema.canonical.get("fields", {})
        unknown = {key: each for key, each in stored.items() if key not in new and unpack_name(key) not in known}
        return {**new, **unknown} if unknown else value

    def _check(self, value: Packed, before: Packed | None, where: str) -> None:
        if self._validate == "off" or value == before:
            return
        new, old = _fields(value), None if before is None else _fields(before)
        if new is None or old is None or self.schema.canonical["type"] != "record":
            problems = self.schemas.check(self.reference, unpack(self._engine.context.codec, value))
        else:
            changed = [key for key, each in new.items() if old.get(key) != each]
            problems = self.problems(new, changed + [key for key in old if key not in new], old)
        self.report(problems, where)

    def _upgraded(self, value: Packed, mark: SchemaMark, version: Version, where: str) -> tuple[Packed, PackedMap]:
        """Return a value of an older version in this one, and what was kept aside; cached by its content."""
        content = hashlib.blake2b(flatten(value) + flatten(dict(mark.aside)), digest_size=16).digest()
        cache, key = self._engine.context.cache, ("migrated value", content, str(version), self.reference)
        found: tuple[Packed, PackedMap] | None = cache.get(key)
        if found is None:
            codec = self._engine.context.codec
            try:
                found = migrate_value(
                    self.schemas, self.schema.name, value, mark.aside, version, self.schema.version, codec
                )
            except HoldfastError as error:
                error.where = f"{where}; {error.where}" if error.where else where
                raise
            cache.put(key, found, weigh(found[0]) + weigh(found[1]))
        return found


def _fields(value: Packed) -> PackedMap | None:
    """Return the fields of a dict whose keys are all text; None for other values."""
    fields = as_map(value)
    return None if fields is None or not all(map(msgpack.is_str, fields)) else fields
