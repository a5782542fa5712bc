"""States that are not those of threads: scopes, values of keys, fields of agents, metadata of artifacts and sessions.

A line may have several of them, each with a version of its own. All of a line are migrated by one step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from holdfast.agents.storage.agent_line import summary_of
from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.line_walk import lines_of_kinds
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.packed_state import (
    Packed,
    PackedMap,
    as_map,
    flatten,
    pack_name,
    unpack,
    unpack_state,
)
from holdfast.engine.namespaces import LineKind, line_kind, short_name
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef, readable_of_line
from holdfast.engine.schema_bindings import MIGRATED_SCHEMA
from holdfast.engine.value_schemas import SchemaMark
from holdfast.errors import HoldfastError
from holdfast.history.langgraph_compat import only_after
from holdfast.maintenance.line_documents import (
    ASIDE,
    FIELDS,
    MESSAGES,
    MESSAGES_SCHEMA,
    METADATA,
    SCHEMA,
    Document,
    DocumentKind,
    find_documents,
)
from holdfast.maintenance.migration.heads import UnfitState
from holdfast.schemas.attachment import migrate_scope, migrate_value, own_keys
from holdfast.schemas.registry import SchemaRecord
from holdfast.schemas.schema import invalid_value
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version, parse_reference
from holdfast.state.keys import mark_name
from holdfast.state.sessions.records import LINE as SESSIONS

_KINDS: Final[frozenset[LineKind]] = frozenset({"scope", "session", "agent"})


class SchemaDocuments(NamedTuple):
    """The states of a line that have a schema, with their versions."""

    line: Line
    point: StepRef
    reference: str
    """That of the step."""
    state: PackedMap
    documents: list[tuple[Document, Version]]

    def name(self, document: Document) -> str:
        """The name of a state in reports, after its kind."""
        if document.kind == "key":
            return f"{document.name} of {document.owner}"
        return document.name or short_name(self.line.name)

    def where(self, document: Document) -> str:
        """The state for errors."""
        return f"{document.kind} {self.name(document)}"

    def unfit(self, error: HoldfastError) -> UnfitState:
        """Describe an error in the first state."""
        path = error.where.rpartition("; ")[2] if "; " in error.where else ""
        (document, _), point = self.documents[0], self.point
        name = self.name(document)
        return UnfitState(name, point.id, point.depth, path, error.code, error.what, document.kind)


async def read_documents(
    engine: Engine, tenant: str, name: str, record: SchemaRecord
) -> AsyncIterator[SchemaDocuments]:
    """Yield the states that have a schema, by the line that they are in."""
    if not record.places:
        return
    async for line in lines_of_kinds(engine.context.backend, tenant, _KINDS):
        found = await read_line(engine, line, name, record)
        if found is not None:
            yield found
        engine.context.cache.drop_all(line)
    for system in (ARTIFACTS, SESSIONS):
        found = await read_line(engine, Line(tenant, system), name, record)
        if found is not None:
            yield found


async def read_line(engine: Engine, line: Line, name: str, record: SchemaRecord) -> SchemaDocuments | None:
    """Return the states of a line that have a schema; None if it has none."""
    tip = await engine.lines.load_tip(line)
    return None if tip is None or tip.point is None else await read_step(engine, line, tip.point, name, record)


async def read_step(
    engine: Engine, line: Line, point: StepRef, name: str, record: SchemaRecord
) -> SchemaDocuments | None:
    """Return the states at a step that have a schema; None if there are none."""
    state = await engine.lines.read_step(line, point, lambda point: engine.states.values(line, point))
    reference = (await engine.step_info.head(line, point)).header.schema
    codec = engine.context.codec
    documents = []
    for document in find_documents(codec, line, reference, state):
        version = _version(document, name, record)
        if version is not None:
            documents.append((document, version))
    return SchemaDocuments(line, point, reference, state, documents) if documents else None


def _version(document: Document, name: str, record: SchemaRecord) -> Version | None:
    """Return the version of a state of a schema; None if it has another, or none."""
    if document.mark.reference:
        found, version = parse_reference(document.mark.reference)
        return version if found == name else None
    return record.unversioned if any(_belongs(document, place) for place in record.places) else None


def _belongs(document: Document, place: str) -> bool:
    """Return whether a state without a reference is at a place that a schema was attached to."""
    kind, _, pattern = place.partition(" ")
    if kind != f"{document.kind}s":
        return False
    owner, _, key = pattern.partition("\t")
    return matcher(owner)(document.owner) and (not key or matcher(key)(document.name))


def migrate_documents(
    schemas: SchemaSet, name: str, found: SchemaDocuments, target: Version, codec: Codec, *, check: bool = False
) -> PackedMap:
    """Return the state of a line with all states of a schema in a version. With `check`, the stored ones have to fit
    their own versions, too."""
    state = dict(found.state)
    for document, version in found.documents:
        if version == target:
            continue
        where = found.where(document)
        try:
            if check:
                _check_source(schemas, f"{name}@{version}", document, codec)
            if document.kind == "scope":
                state = migrate_scope(schemas, name, state, version, target, where)
                continue
            value, aside = migrate_value(schemas, name, document.value, document.mark.aside, version, target, codec)
        except HoldfastError as error:
            error.where = error.where if error.where.startswith(where) else f"{where}; {error.where}"
            raise
        _put(state, document, value, SchemaMark(f"{name}@{target}", aside), codec)
    return state


def _check_source(schemas: SchemaSet, source: str, document: Document, codec: Codec) -> None:
    if not any(each.schema_reference == source for each in schemas):
        return  # a version whose form is not known: the migration shows whether it fits
    value = document.value
    plain = unpack_state(codec, value) if document.kind == "scope" and isinstance(value, dict) else unpack(codec, value)
    problems = schemas.check(source, plain, partial=document.kind == "scope")
    if problems:
        raise invalid_value(source, problems)


def _put(state: PackedMap, document: Document, value: Packed, mark: SchemaMark, codec: Codec) -> None:
    """Replace a value in the state of a line, with its version."""
    if document.kind == "key":
        state[pack_name(document.name)] = value
        state[pack_name(mark_name(document.name))] = flatten(mark.pack(codec))
    elif document.kind == "agent":
        state[FIELDS] = value
        _put_mark(state, mark, codec)
    elif document.kind == "conversation":
        state[MESSAGES] = value
        state[MESSAGES_SCHEMA] = mark.pack(codec)
    else:
        fields = dict(as_map(state[pack_name(document.name)]) or {})
        fields[METADATA] = value
        _put_mark(fields, mark, codec)
        state[pack_name(document.name)] = fields


def _put_mark(fields: PackedMap, mark: SchemaMark, codec: Codec) -> None:
    fields[SCHEMA] = codec.pack(mark.reference)
    fields.pop(ASIDE, None)
    if mark.aside:
        fields[ASIDE] = dict(mark.aside)


def unpack_document(codec: Codec, kind: DocumentKind, name: str, state: PackedMap) -> dict[str, object]:
    """Return a state of a line as a dict, for people."""
    if kind == "scope":
        return unpack_state(codec, own_keys(state))
    if kind in ("agent", "conversation"):
        return {"fields": unpack(codec, state[FIELDS])} if kind == "agent" else {kind: unpack(codec, state[MESSAGES])}
    value = state[pack_name(name)]
    if kind != "key":
        value = (as_map(value) or {})[METADATA]
    return {name: unpack(codec, value)}


async def migration_request(
    engine: Engine,
    found: SchemaDocuments,
    after: PackedMap,
    name: str,
    changed: Sequence[tuple[Document, Version, Version]],
    kind: str,
) -> AppendRequest:
    """Return the step that stores migrated states, after the step that they were read at. `changed` are those that are
    migrated, each with its versions before and after."""
    codec = engine.context.codec
    metadata: dict[str, object] = {"migrated": f"{name}@{min(version for _, version, _ in changed)}"}
    if line_kind(found.line.name) == "agent":
        header = (await engine.step_info.head(found.line, found.point)).header
        metadata = {**summary_of(codec.unpack(header.metadata)), **metadata}
    whole = [f"{name}@{target}" for document, _, target in changed if document.kind == "scope"]
    names = {"agent": FIELDS, "conversation": MESSAGES}
    keys = [(names.get(each.kind) or pack_name(each.name), f"{name}@{target}") for each, _, target in changed]
    return AppendRequest(
        found.line,
        only_after(found.point, diff_maps(found.state, after)),
        kind=kind,
        schema=whole[0] if whole else "",
        key_schemas=() if whole else tuple(keys),
        line_schema=MIGRATED_SCHEMA,
        metadata=codec.pack(metadata),
        readable=readable_of_line(found.line.name, codec, metadata),
        is_limited=False,
    )
