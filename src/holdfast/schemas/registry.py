"""The registry of schemas in a store: a system line, so that every process sees the same.

It has an entry for each version (`version chat@1.0.0`: the definition and its hash), for each schema (`schema chat`:
the version that is written now), and for each migration that was applied (`migration chat 1.0.0 -> 2.0.0`: its
fingerprint). Writers save on condition that the line has no newer step than they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from holdfast.backends.interface import Change
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.guard import Preconditions
from holdfast.engine.inherited_schemas import RECORD, REGISTRY
from holdfast.engine.lines import LineTip
from holdfast.engine.record_table import RecordTable
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.errors import ConflictError
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet, schema_changed
from holdfast.schemas.version import Version, parse_reference

LINE: Final = REGISTRY
"""The name of the system line."""

_SCHEMA, _VERSION, _MIGRATION = RECORD, "version ", "migration "

_CLOSING = "closing"
"""The state of a version between being in use and being retired."""


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """The record of a schema in a store."""

    current: Version
    """The version that writers have now."""
    unversioned: Version
    """The version of states that were saved without a reference to a schema."""
    is_pinned: bool = False
    """Whether the states were downgraded to the current version: only a migration raises it then."""
    patterns: tuple[str, ...] = ()
    """The patterns of threads that it was attached to."""
    places: tuple[str, ...] = ()
    """Further places that it was attached to: `scopes user:*`, `agents greeter`, or `keys user:*`, a tab, and a
    pattern of keys."""

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "current": str(self.current),
            "unversioned": str(self.unversioned),
            "pinned": self.is_pinned,
            "threads": list(self.patterns),
            **({"places": list(self.places)} if self.places else {}),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], _version: int = 0) -> SchemaRecord:
        """Parse the stored form."""
        current, unversioned = (Version.parse(stored[name]) for name in ("current", "unversioned"))
        patterns, places = tuple(stored["threads"]), tuple(stored.get("places", ()))
        return cls(current, unversioned, bool(stored["pinned"]), patterns, places)


@dataclass(frozen=True, slots=True)
class RegisteredSchemas:
    """The content of the registry as of one of its steps."""

    tip: LineTip | None
    schemas: SchemaSet = field(default_factory=SchemaSet)
    """All versions that were registered."""
    records: Mapping[str, SchemaRecord] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    """References of versions that no latest state has any more, as the last migration of all states found."""
    closing: frozenset[str] = frozenset()
    """References of versions that a migration is about to retire, unless somebody uses them meanwhile."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """The fingerprints of applied migrations, by their text."""

    @property
    def unused(self) -> frozenset[str]:
        """References of versions that are retired, or about to be: whoever stores a state of one registers its use."""
        return self.retired | self.closing

    def stored_versions(self, name: str) -> list[Version]:
        """Return the versions that stored states may still have."""
        return [
            each.version for each in self.schemas if each.name == name and each.schema_reference not in self.retired
        ]

    def edited(self, migrations: Iterable[Migration]) -> list[Migration]:
        """Return those of some migrations that are not as they were when they were applied."""
        return [each for each in migrations if self.fingerprints.get(str(each), each.fingerprint) != each.fingerprint]

    def form(self, reference: str) -> Schema | None:
        """Return a version as it was registered."""
        return next((each for each in self.schemas if each.schema_reference == reference), None)

    def changed(self, schemas: Iterable[Schema]) -> list[Schema]:
        """Return those of some schemas that have another form than the one that was registered."""
        known = {each.schema_reference: each.hash for each in self.schemas}
        return [each for each in schemas if known.get(each.schema_reference, each.hash) != each.hash]


UpdateRecord: TypeAlias = Callable[[SchemaRecord | None], SchemaRecord]
"""Returns the new record of a schema, given the one that is stored. Called at each attempt."""


class SchemaRegistry:
    """Reads and changes the registry of a store."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._line = SystemLine(engine, Line(tenant, LINE), actor)
        self._records = RecordTable(self._line, "schema", SchemaRecord.from_dict, SchemaRecord.to_dict, prefix=_SCHEMA)
        self._actor = actor
        self._known: RegisteredSchemas | None = None

    async def load(self, *, refresh: bool = False) -> RegisteredSchemas:
        """Return the content: as it was read last, or read again if anything was added since."""
        if self._known is None or refresh:
            tip = await self._line.engine.lines.load_tip(self._line.line)
            if self._known is None or self._known.tip != tip:
                self._known = await self._read(tip)
        return self._known

    async def _read(self, tip: LineTip | None) -> RegisteredSchemas:
        if tip is None or tip.point is None:
            return RegisteredSchemas(tip)

        async def collect(entries: SystemLineEntries) -> RegisteredSchemas:
            versions = await entries.with_prefix(_VERSION)
            schemas = [
                Schema.from_definition(*_name_and_version(reference), stored["definition"])
                for reference, stored in versions.items()
            ]
            return RegisteredSchemas(
                tip,
                SchemaSet(*schemas),
                await self._records.all(entries=entries),
                frozenset(reference for reference, stored in versions.items() if stored["retired"] is True),
                frozenset(reference for reference, stored in versions.items() if stored["retired"] == _CLOSING),
                await entries.with_prefix(_MIGRATION),
            )

        return await self._line.read_at(tip.point, collect)

    def unchanged(self) -> list[Change]:
        """Return the conditions that the registry is as it was read last."""
        return self._line.tip_unchanged(None if self._known is None else self._known.tip)

    async def register(
        self,
        schemas: Sequence[Schema],
        migrations: Sequence[Migration] = (),
        records: Mapping[str, UpdateRecord] | None = None,
        *,
        closing: Sequence[str] = (),
        retired: Sequence[str] = (),
        unapplied: Sequence[str] = (),
        used: Sequence[str] = (),
        renewed: bool = False,
        kind: str = "schema",
        preconditions: Preconditions | None = None,
    ) -> None:
        """Add versions, fingerprints of applied migrations, and records. A version whose form differs from the
        registered one is refused. Versions are `retired` that are `closing`, unless they were `used` since: then they
        stay in use. If `renewed`, fingerprints of migrations that were edited replace those that were recorded; those
        that are `unapplied` are removed. All that happens on some conditions, or not at all."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            put: dict[str, Any] = {}
            for schema in schemas:
                reference = schema.schema_reference
                stored = await entries.find(_VERSION + reference)
                if stored is not None and stored["hash"] != schema.hash:
                    raise schema_changed(
                        Schema.from_definition(schema.name, schema.version, stored["definition"]), schema
                    )
                if stored is None:
                    put[_VERSION + reference] = {
                        "hash": schema.hash,
                        "definition": schema.definition,
                        "retired": False,
                    }
            for references, new in ((closing, _CLOSING), (retired, True), (used, False)):
                for reference in references:
                    stored = put.get(name := _VERSION + reference) or await entries.find(name)
                    old = None if stored is None else stored["retired"]
                    if (old == _CLOSING) if new is True else (old is not None and old != new):
                        put[name] = {**stored, "retired": new}
            for migration in migrations:
                name = _MIGRATION + str(migration)
                recorded = await entries.find(name)
                if recorded is None or (renewed and recorded != migration.fingerprint):
                    put[name] = migration.fingerprint
            for name, update in (records or {}).items():
                before = await self._records.find(name, entries)
                if (after := update(before)) != before:
                    put[_SCHEMA + name] = after.to_dict()
            removed = [_MIGRATION + each for each in unapplied]
            events = [Event("schema", self._actor, kind, name) for name in (*put, *removed)]
            return LineChange(self._line.pack(put), removed, events)

        await self._line.change(kind, edit, preconditions)
        await self.load(refresh=True)


def _name_and_version(reference: str) -> tuple[str, Version]:
    name, version = parse_reference(reference)
    if version is None:
        raise ConflictError("a registered schema has no version", where=reference)
    return name, version
