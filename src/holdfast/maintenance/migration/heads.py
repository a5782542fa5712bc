"""The latest states of a store's threads, a page of threads at a time: what a migration of all states works on."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from holdfast.backends.interface import Scan
from holdfast.backends.tables import LINES
from holdfast.engine.branch_graph import Position
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.line_ends import LineEnd, LineEnds
from holdfast.engine.line_head import end_query
from holdfast.engine.lines import At, OnBranch
from holdfast.engine.model.packed_state import PackedMap, pack_name
from holdfast.engine.namespaces import is_thread, root_of
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.schemas.registry import SchemaRecord
from holdfast.schemas.version import Version, parse_reference

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
