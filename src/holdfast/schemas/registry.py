"""The registry of schemas in a store: a system line, so that every process sees the same.

It has an entry for each version (`version chat@1.0.0`: the definition and its hash), for each schema (`schema chat`:
the version that is written now), and for each migration that was applied (`migration chat 1.0.0 -> 2.0.0`: its
fingerprint). Writers save on condition that the line has no newer step than they know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast._fields import Internal
from holdfast.backends.interface import Batch, Change
from holdfast.engine.context import Apply
from holdfast.engine.copy.line_stream import every_line, every_tenant
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.guard import Preconditions
from holdfast.engine.inherited_schemas import RECORD, REGISTRY
from holdfast.engine.lines import LineTip
from holdfast.engine.namespaces import is_thread, root_of
from holdfast.engine.patterns import matcher
from holdfast.engine.record_table import RecordTable
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.errors import ConflictError, CorruptError, NotFoundError, UnsupportedError
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet, schema_changed
from holdfast.schemas.version import Version, parse_reference

LINE: Final = REGISTRY
"""The name of the system line."""

_SCHEMA, _VERSION, _MIGRATION = RECORD, "version ", "migration "

_CLOSING = "closing"
"""The state of a version between being in use and being retired."""


class SchemaRecord(msgspec.Struct, frozen=True):
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


class RegisteredSchemas(msgspec.Struct, frozen=True):
    """The content of the registry as of one of its steps."""

    tip: Internal[LineTip | None]
    schemas: SchemaSet = msgspec.field(default_factory=SchemaSet)
    """All versions that were registered."""
    records: Mapping[str, SchemaRecord] = {}
    retired: frozenset[str] = frozenset()
    """References of versions that no latest state has any more, as the last migration of all states found."""
    closing: frozenset[str] = frozenset()
    """References of versions that a migration is about to retire, unless somebody uses them meanwhile."""
    fingerprints: Mapping[str, str] = {}
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


# Version use ----------------------------------------------------------------------------------------------------------
#
# Versions of stored states that come back: a branch starts from an old checkpoint, or an old state is restored.


class VersionUse:
    """Registers that there are states of some versions again, so that programs reckon with them."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._engine = engine
        self._registry = SchemaRegistry(engine, tenant, actor)

    async def reference(self, line: Line, point: StepRef) -> str:
        """Return the reference of a state of a thread; empty if it has no schema. One that was saved without a
        reference has the version that such states have."""
        reference = (await self._engine.step_info.head(line, point)).header.schema
        if reference or line != root_of(line):
            return reference
        for name, record in (await self._registry.load()).records.items():
            if any(matcher(pattern)(line.name) for pattern in record.patterns):
                return f"{name}@{record.unversioned}"
        return ""

    async def conditions_at(self, line: Line, point: StepRef) -> tuple[str, Preconditions | None]:
        """Return the reference of an old state, and the conditions on which it is stored again; where a schema is
        attached, that has its own."""
        reference, schemas = await self.reference(line, point), self._engine.schemas
        is_attached = schemas is not None and schemas.find(line) is not None
        return reference, None if is_attached or not reference else self.conditions([reference], f"thread {line}")

    def conditions(self, references: Iterable[str], where: str) -> Preconditions:
        """Return the conditions on which states of some versions are stored: nobody retires the versions meanwhile.
        Raises `UnsupportedError` of a version that states were downgraded from."""
        stored = sorted(set(references) - {""})

        async def register(again: bool) -> Sequence[Change]:
            registered = await self._registry.load(refresh=again)
            unused = [each for each in stored if each in registered.unused]
            if unused:
                for each in unused:
                    _refuse_newer(each, registered, where)
                await self._registry.register([], used=unused)
            return self._registry.unchanged() if stored else ()

        return register

    def applied(self, references: Iterable[str], where: str, apply: Apply) -> Apply:
        """Return how to apply changes on these conditions."""
        conditions, attempts = self.conditions(references, where), 0

        async def apply_on_conditions(changes: Batch) -> int | None:
            nonlocal attempts
            attempts += 1
            return await apply([*await conditions(attempts > 1), *changes])

        return apply_on_conditions


def _refuse_newer(reference: str, registered: RegisteredSchemas, where: str) -> None:
    name, version = parse_reference(reference)
    record = registered.records.get(name)
    if record is not None and version is not None and version > record.current:
        raise UnsupportedError(
            f"the state is of {reference}, and those of {name} were downgraded to {record.current}",
            where=where,
            hint=f"Take a state of {record.current}, or upgrade again: holdfast migrate up {name}",
            code="schema-newer",
        )


# Registry copy --------------------------------------------------------------------------------------------------------
#
# The registry in a copy of states: the other store learns the versions that they have, beside those that it knows.


async def copy_registries(
    source: Engine, target: Engine, tenant: str | None, lines: Sequence[Line] | None
) -> list[Line]:
    """Add the versions that some lines have, or all of a tenant or of all, to the registries of another store. Returns
    the registries that need not be copied. `ConflictError` if a version has another form there, and then nothing is
    written."""
    found = []
    tenants = await every_tenant(source.context.backend) if tenant is None else [tenant]
    for each in tenants:
        try:
            here = await SchemaRegistry(source, each).load()
        except CorruptError:
            continue  # the copy reports it
        there = SchemaRegistry(target, each)
        known = await there.load()
        own = None if lines is None else [line for line in lines if line.tenant == each]
        if unused := await _unversioned_in_use(source, known, each, own):
            await there.register([], used=unused)
            known = await there.load()
        if here.tip is None or here.tip.point is None:
            continue
        if own is None and (known.tip is None or known.tip.point is None or await _is_copy(source, each, known)):
            continue  # it is copied as it is
        names = None if own is None else await _names(source, own)
        await _add(there, known, here, names)
        found.append(Line(each, LINE))
    return found


async def _unversioned_in_use(
    source: Engine, known: RegisteredSchemas, tenant: str, lines: Sequence[Line] | None
) -> list[str]:
    """Return the versions, retired in the other store, that threads without one will have there."""
    found = set()
    for name, record in known.records.items():
        reference = f"{name}@{record.unversioned}"
        if reference in known.unused:
            matches = [matcher(each) for each in record.patterns]
            if lines is None:
                lines = [line async for line in every_line(source.context.backend, tenant)]
            threads = [each for each in lines if is_thread(each.name) and any(match(each.name) for match in matches)]
            if not all(await _references(source, threads)):
                found.add(reference)
    return sorted(found)


async def _is_copy(source: Engine, tenant: str, known: RegisteredSchemas) -> bool:
    """Whether the registry of the other store is an earlier copy."""
    point = None if known.tip is None else known.tip.point
    with suppress(NotFoundError):
        return point is not None and (await source.lines.find(Line(tenant, LINE), point.id)).hash == point.hash
    return False


async def _names(source: Engine, lines: Sequence[Line]) -> set[str]:
    """Return the schemas of the last states of some lines."""
    return {parse_reference(each)[0] for each in await _references(source, lines) if each}


async def _references(source: Engine, lines: Sequence[Line]) -> list[str]:
    """Return the references of the last states of some lines; empty ones of states without a version."""
    found = []
    for line in lines:
        with suppress(NotFoundError, CorruptError):  # the copy reports what is damaged
            latest = await source.lines.latest_step(line)
            if latest is not None:
                found.append((await source.step_info.head(line, latest)).header.schema)
    return found


async def _add(
    registry: SchemaRegistry, known: RegisteredSchemas, more: RegisteredSchemas, names: Collection[str] | None
) -> None:
    used = [
        each
        for each in more.schemas
        if each.schema_reference not in more.retired and (names is None or each.name in names)
    ]
    needed = [more.schemas.get(reference) for each in used for reference in sorted(each.references)]
    schemas = {each.schema_reference: each for each in (*used, *needed)}
    _require_same(known, more, schemas)
    missing = [reference for reference in schemas if not _has(known, reference)]
    if not missing:
        return
    records = {each.name: more.records[each.name] for each in used if each.name in more.records}
    updates = {name: partial(_record, record, all_states=names is None) for name, record in records.items()}
    await registry.register(list(schemas.values()), (), updates, used=[each.schema_reference for each in used])


def _has(known: RegisteredSchemas, reference: str) -> bool:
    return reference not in known.retired and any(each.schema_reference == reference for each in known.schemas)


def _require_same(known: RegisteredSchemas, more: RegisteredSchemas, schemas: dict[str, Schema]) -> None:
    for each in known.schemas:
        other = schemas.get(each.schema_reference)
        if other is not None and other.hash != each.hash:
            raise schema_changed(each, other)
    for name in {each.name for each in schemas.values()} & known.records.keys() & more.records.keys():
        old, new = known.records[name].unversioned, more.records[name].unversioned
        if old != new:
            raise ConflictError(
                f"states of {name} without a version are taken for {old} in the other store, and for {new} in this one",
                where=name,
                hint="Migrate the states of one of the stores first: holdfast migrate up",
                code="schema-changed",
            )


def _record(given: SchemaRecord, stored: SchemaRecord | None, *, all_states: bool) -> SchemaRecord:
    """Return the record in the other store. What has no version there stays without, unless everything is copied."""
    if stored is None:
        return given if all_states else replace(given, patterns=(), places=())
    return stored if stored.is_pinned else replace(stored, current=max(stored.current, given.current))
