"""The latest states of a store's threads, a page of threads at a time: what a migration of all states works on.

States that are not those of threads: scopes, values of keys, fields of agents, metadata of artifacts and sessions.

A line may have several of them, each with a version of its own. All of a line are migrated by one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from holdfast.agents.storage.agent_line import summary_of
from holdfast.backends.interface import Scan
from holdfast.backends.tables import LINES
from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.branch_graph import Position
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.line_ends import LineEnd, LineEnds
from holdfast.engine.line_head import end_query
from holdfast.engine.line_walk import lines_of_kinds
from holdfast.engine.lines import At, OnBranch
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name, unpack, unpack_state
from holdfast.engine.namespaces import LineKind, is_thread, line_kind, root_of, short_name
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef, readable_of_line
from holdfast.engine.schema_bindings import MIGRATED_SCHEMA
from holdfast.engine.value_schemas import SchemaMark
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
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
from holdfast.schemas.attachment import migrate_scope, migrate_value, own_keys
from holdfast.schemas.registry import SchemaRecord
from holdfast.schemas.schema import invalid_value
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version, parse_reference
from holdfast.state.keys import mark_name
from holdfast.state.sessions.records import LINE as SESSIONS

_KEPT = pack_name(KEPT)

_UNKNOWN = Version(0, 0, 0)

_GROUP = 50
"""How many lines are read together that are not short: each state may be large."""

BranchPolicy: TypeAlias = Literal["all", "named", "newest"]
"""The branches of a thread whose last states are migrated: all of them, HEAD and those with names, or HEAD."""


class Head(NamedTuple):
    """The last step of a branch, and the version of its state."""

    line: Line
    point: StepRef
    version: Version
    is_head: bool
    """Whether it is HEAD of its thread."""
    branch: str = ""
    write_versions: frozenset[Version] = frozenset()
    """The versions of what tasks wrote after it, where a graph stopped in the middle of a step."""
    is_start: bool = False
    """Whether the branch has no steps of its own yet: it is the one that the branch starts from."""

    def is_of(self, version: Version) -> bool:
        """Whether the state, and what tasks wrote after it, is all of a version."""
        return self.version == version and self.write_versions <= {version}

    @property
    def parent(self) -> At:
        """The parent of a step that follows it."""
        if self.is_start:
            return OnBranch(self.branch)
        return None if self.is_head else Position(self.point.branch, self.point.seq)

    @property
    def where(self) -> str:
        """The checkpoint for errors and reports."""
        return f"thread {self.line}, checkpoint {self.point.id}"


class HeadSelection(NamedTuple):
    """The states that have a schema: those whose steps say so, and those without a reference in matching threads."""

    name: str
    record: SchemaRecord
    branches: BranchPolicy = "all"
    threads: str | None = None
    """A pattern of threads, if not all are meant."""

    def check(self) -> None:
        """Raise `InvalidError` if the selection is not valid."""
        if self.branches not in get_args(BranchPolicy):
            choices = ", ".join(map(repr, get_args(BranchPolicy)))
            raise InvalidError(f"branches must be {choices}, not {self.branches!r}")
        if self.threads is not None:
            matcher(self.threads)

    @property
    def digest(self) -> str:
        """Return a digest that tells the selection from others of the schema."""
        return hashlib.sha256(repr((self.branches, self.threads)).encode()).hexdigest()[:16]

    def version(self, line: Line, reference: str) -> Version | None:
        """Return the version of a state by its reference; None if it has another schema."""
        if reference and self.threads is None:
            return self._version(reference)
        root = root_of(line).name
        if self.threads is not None and not matcher(self.threads)(root):
            return None
        if reference:
            return self._version(reference)
        matches = [self.threads] if self.threads is not None else self.record.patterns
        if line.name == root and any(matcher(pattern)(root) for pattern in matches):
            return self.record.unversioned
        return None

    def _version(self, reference: str) -> Version | None:
        name, version = _parsed(reference)
        return version if name == self.name else None


_parsed = lru_cache(256)(parse_reference)


async def pages(engine: Engine, tenant: str, size: int) -> AsyncIterator[list[Line]]:
    """Yield the lines of threads by name, a page at a time."""
    after = ""
    while True:
        scan = Scan(LINES, (tenant,), start=(after + "\0",) if after else (), limit=size, bodies=False)
        (rows,) = await engine.context.backend.read([scan])
        lines = [Line(tenant, name) for row in rows if is_thread(name := str(row.key[1]))]
        if rows:
            after = str(rows[-1].key[1])
        if lines:
            yield lines
        if len(rows) < size:
            return


class HeadGroup(NamedTuple):
    """Heads that are worked on together, each with the end of its line if that is short, and all of their lines."""

    lines: list[Line]
    heads: list[tuple[Head, LineEnd | None]]


async def read_groups(engine: Engine, page: Sequence[Line], selection: HeadSelection) -> AsyncIterator[HeadGroup]:
    """Yield the heads of a page of lines, a group at a time: those of short lines, and then the others."""
    ends, done = LineEnds(engine), set[Line]()
    for short in ends.groups(await ends.find_short(page)):
        group = HeadGroup([], [])
        for end in await ends.read(short):
            if end is None or _KEPT in end.state:
                continue  # what belongs to a checkpoint of LangGraph takes more than its state
            group.lines.append(end.line)
            version = selection.version(end.line, end.schema)
            if version is not None:
                group.heads.append((Head(end.line, end.point, version, is_head=True), end))
        done.update(group.lines)
        if group.lines:
            yield group
    others = [line for line in page if line not in done]
    for start in range(0, len(others), _GROUP):
        lines = others[start : start + _GROUP]
        yield HeadGroup(lines, [(head, None) for head in await read_heads(engine, lines, selection)])
        engine.context.cache.drop_all(*lines)  # what was cached would only displace what others need


async def read_heads(engine: Engine, lines: Sequence[Line], selection: HeadSelection) -> list[Head]:
    """Return the heads of some lines that have the schema. Their states are in the cache then."""
    tips = await engine.lines.load_tips(lines)
    points = [(line, tip.point) for line, tip in zip(lines, tips, strict=True) if tip and tip.point]
    await engine.states.load_all(points)
    heads = []
    for line, tip in zip(lines, tips, strict=True):
        if tip is None or tip.point is None:
            continue
        found = [Head(line, tip.point, _UNKNOWN, is_head=True)]
        if not tip.is_only_branch and selection.branches != "newest":
            found += await _other_heads(engine, line, tip.point, selection.branches)
        for head in found:
            version = selection.version(line, await schema_of(engine, line, head.point))
            if version is not None:
                heads.append(head._replace(version=version))
    return await _with_writes(engine, heads, selection)


async def _with_writes(engine: Engine, heads: list[Head], selection: HeadSelection) -> list[Head]:
    """Return heads with the versions of what tasks wrote after them."""
    queries = [engine.writes.queries(head.line, [head.point]) for head in heads]
    answers = iter(
        await engine.context.backend.read([each for several in queries for each in several]) if heads else ()
    )
    found = []
    for head, several in zip(heads, queries, strict=True):
        (rows,) = engine.writes.decode(head.line, [head.point], [next(answers) for _ in several])
        written = [selection.version(head.line, row.schema) for row in rows if row.task]
        found.append(head._replace(write_versions=frozenset(each for each in written if each is not None)))
    return found


async def _other_heads(engine: Engine, line: Line, head: StepRef, policy: BranchPolicy) -> list[Head]:
    branches = await engine.lines.branches(line)
    names = {0: "main", **{each.branch: each.name for each in branches}}
    numbers = [number for number, name in names.items() if number != head.branch and (name or policy == "all")]
    answers = await engine.context.backend.read([end_query(line, number) for number in numbers])
    found = []
    for number, rows in zip(numbers, answers, strict=True):
        point = StepRef.of(rows[0]) if rows else await _start_of(engine, line, number, names[number])
        if point is None or point.pruned:
            continue
        # The end of a branch that a revision replaced is not continued by anyone.
        if not rows or (point.id != head.id and await engine.lines.find(line, point.id) == point):
            found.append(Head(line, point, _UNKNOWN, False, names[number], is_start=not rows))
    return found


async def _start_of(engine: Engine, line: Line, number: int, name: str) -> StepRef | None:
    """Return the step that a branch without steps of its own starts from; None if nobody can continue the branch."""
    if not name or not number:
        return None
    try:
        return await engine.lines.head(line, number)
    except NotFoundError:  # pruned, or deleted meanwhile
        return None


async def schema_of(engine: Engine, line: Line, point: StepRef) -> str:
    """Return the reference to the schema of a state."""
    loaded = await engine.states.get(line, point)
    if loaded.schema is not None:
        return loaded.schema
    return (await engine.step_info.head(line, point)).header.schema


async def state_of(engine: Engine, line: Line, point: StepRef) -> PackedMap:
    """Return the packed state at a step, with all large values."""
    return await engine.lines.read_step(line, point, lambda point: engine.states.values(line, point))


class UnfitState(msgspec.Struct, frozen=True):
    """A state that cannot be migrated, and why."""

    thread: str
    checkpoint: str
    step: int
    path: str
    code: str
    reason: str
    kind: str = "thread"
    """What the state is that of: a thread, or a scope, a key, an agent and so on, whose name is in `thread`."""

    @classmethod
    def of(cls, head: Head, error: HoldfastError) -> UnfitState:
        """Describe an error in a state."""
        path = error.where.rpartition("; ")[2] if "; " in error.where else ""
        return cls(head.line.name, head.point.id, head.point.depth, path, error.code, error.what)


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
