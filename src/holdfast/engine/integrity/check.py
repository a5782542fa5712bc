"""The state of a line's check, shared by its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

from holdfast._fields import count
from holdfast.backends.interface import Create, Get, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import RowReader, UnreadableRange, scan_readable_rows, scan_rows
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, STEPS, Key, Table
from holdfast.codec import Codec
from holdfast.engine.checked_rows import RowCodec
from holdfast.engine.context import EngineContext
from holdfast.engine.integrity.findings import Finding, FindingCode, VerifyLevel
from holdfast.engine.model.large_pointers import parse_pointer
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef, info_of, stored_salt
from holdfast.errors import CorruptError, HoldfastError

_PROGRESS_EVERY = 1000
"""How many rows are read between two reports of progress."""

TOGETHER = 64
"""How many small queries are sent at a time."""

Where = tuple[int, int]
"""The branch and the number of a step."""


LineRows: TypeAlias = Mapping[Table, Sequence[Row]]
"""All rows of a line, each table in the order of its keys."""


class GivenRows:
    """The rows of a line that were read before: they are checked without the store. `opened` says that they have their
    records as bodies, and not what is stored."""

    def __init__(self, rows: LineRows, *, opened: bool = False) -> None:
        self.rows = rows
        self.opened = opened
        self._memory: MemoryBackend | None = None
        self._loaded: set[Table] = set()

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Answer queries, as a backend does: few lines need any."""
        if not any(self.rows.get(query.space) for query in queries):
            return [[] for _ in queries]
        if self._memory is None:
            self._memory = MemoryBackend()
        for table in {query.space for query in queries} - self._loaded:
            await self._memory.apply([Create(table, row) for row in self.rows.get(table, ())])
            self._loaded.add(table)
        return await self._memory.read(queries)

    def steps_by_id(self) -> list[Row]:
        """Return the steps in the order of their ids."""
        return sorted(self.rows.get(STEPS, ()), key=lambda row: _BY_ID(row.key + row.columns))


_BY_ID: itemgetter[Any] = itemgetter(*(list(STEPS.all_columns).index(name) for name in STEPS.order("id")))


@dataclass
class LineReport:
    """The rows that were checked, and the findings."""

    steps: int = 0
    nodes: int = 0
    objects: int = 0
    writes: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass
class SpoiledSteps:
    """Why checkpoints cannot be read: findings by what they make unreadable."""

    steps: dict[Where, list[Finding]] = field(default_factory=dict)
    """Steps that cannot be opened."""
    gaps: dict[Where, list[Finding]] = field(default_factory=dict)
    """Steps before which something is missing."""
    folds: dict[Where, list[Finding]] = field(default_factory=dict)
    """Steps whose folded state is missing or incomplete."""
    objects: dict[bytes, list[Finding]] = field(default_factory=dict)
    """Large values that are missing or incomplete, by digest."""
    values: dict[Where, list[Finding]] = field(default_factory=dict)
    """Steps whose folded state contains such a value."""

    def __bool__(self) -> bool:
        return bool(self.steps or self.gaps or self.folds or self.objects)


class LineCheck:
    """The check of a line in progress."""

    def __init__(
        self,
        context: EngineContext,
        line: Line,
        level: VerifyLevel,
        tell: Callable[[int], None] | None = None,
        given: GivenRows | None = None,
    ) -> None:
        self.given = given
        self.backend: RowReader = given or context.stored
        self.unchecked: RowReader = given or context.unchecked
        """For reading columns alone."""
        self.row_codec: RowCodec = context.rows
        self.line = line
        self.deep: bool = level >= VerifyLevel.HASHES
        self.max_bytes: int = context.max_bytes
        self.codec: Codec = context.codec
        self._tell = tell
        self._rows = 0
        self.found: LineReport = LineReport()
        self.marks: SpoiledSteps = SpoiledSteps()
        self.holes: list[UnreadableRange] = []
        """Steps that cannot be read."""
        self._unread: list[tuple[UnreadableRange, Finding]] = []
        self.info: LineInfo | None = None
        self.salt = b""
        """The salt of the line; empty if it is lost, and nothing can be compared with its hash."""
        self.branches: dict[int, Branch] = {}
        self.lengths: dict[int, int] = {}
        """How many positions of each branch were read."""
        self.steps = 0
        self.stubs = 0
        self.lost_steps = 0
        """How many of the stubs are of steps that were lost."""
        self.folded: dict[Where, bytes] = {}
        """The hashes of steps that have a folded state."""
        self.needed: set[bytes] = set()
        """Pointers to large values."""

    def add(self, code: FindingCode, what: str, point: StepRef | None = None, **more: Any) -> Finding:
        """Add a finding."""
        if point is not None:
            more = {"checkpoint": point.id, "place": point[:2], "space": STEPS.name} | more
            more.setdefault("key", (*self.line, *point[:2]))
        finding = Finding(code, what, self.line.tenant, self.line.name, **more)
        self.found.findings.append(finding)
        return finding

    def spoil(self, code: FindingCode, what: str, point: StepRef, **more: Any) -> None:
        """Add a finding because of which a step cannot be read."""
        self.marks.steps.setdefault(point[:2], []).append(self.add(code, what, point, **more))

    def add_branch(self, code: FindingCode, what: str, number: int) -> None:
        """Add a finding about a branch."""
        self.add(code, what, space=BRANCHES.name, key=(*self.line, number), place=(number, 0))

    async def rows(self, space: Table, *, bodies: bool = True) -> AsyncIterator[tuple[Row, HoldfastError | None]]:
        """Yield the line's rows in a table, as far as they can be read, each with what its checksum says."""
        holes: list[UnreadableRange] = []
        read_bodies = bodies or self.row_codec.hides_columns
        if self.given is not None:
            for stored in self.given.rows.get(space, ()):
                self.found.bytes += len(stored.body) if read_bodies else 0
                row, damage = self.check_row(space, stored) if read_bodies else (stored, None)
                yield row if bodies else row._replace(body=b""), damage
            return
        async for stored in scan_readable_rows(self.backend, space, tuple(self.line), holes, bodies=read_bodies):
            self.found.bytes += len(stored.body) if read_bodies else 0  # some stores return bodies anyway
            self.count_row()
            row, damage = self.check_row(space, stored) if read_bodies else (stored, None)
            yield row if bodies else row._replace(body=b""), damage
        for hole in holes:
            finding = self.unreadable(space, hole)
            if space is STEPS:
                self.holes.append(hole)
                self._replace_gaps(hole, finding)

    async def steps_by_id(self) -> AsyncIterator[Row]:
        """Yield the columns of the steps in the order of their ids."""
        if self.given is not None:
            for row in self.given.steps_by_id():
                yield row
            return
        async for row in scan_rows(self.unchecked, STEPS, tuple(self.line), bodies=False, by="id"):
            self.count_row()
            yield row

    def check_row(self, space: Table, stored: Row) -> tuple[Row, HoldfastError | None]:
        """Return a row with its record as the body, and why it is not what was written, if it is not."""
        if self.given is not None and self.given.opened:
            return stored, None
        try:
            return self.row_codec.decode(space, stored), None
        except HoldfastError as error:
            return self.row_codec.salvage(space, stored), error

    def damaged(self, space: Table, row: Row, error: HoldfastError, **more: Any) -> Finding:
        """Add a finding for a row that is not what was written."""
        code = FindingCode.DAMAGED_ROW if isinstance(error, CorruptError) else FindingCode.UNKNOWN_FORMAT
        what = f"a row of {space.name} is not what was written: {error.what}"
        return self.add(code, what, space=space.name, key=row.key, **more)

    def count_row(self) -> None:
        """Count a row, and report progress from time to time."""
        self._rows += 1
        if self._tell is not None and not self._rows % _PROGRESS_EVERY:
            self._tell(self._rows)

    def unreadable(self, space: Table, hole: UnreadableRange) -> Finding:
        """Add a finding for rows that cannot be read."""
        place = hole.start if space in (STEPS, FOLDS) and len(hole.start) == 2 else None
        finding = self.add(
            FindingCode.UNREADABLE_ROWS,
            f"rows of {space.name} cannot be read, from {hole.start!r} on: {hole.error}",
            space=space.name,
            key=(*self.line, *hole.start),
            place=place,
        )
        self._unread.append((hole, finding))
        return finding

    def lost(self, space: Table, key: Key) -> Finding | None:
        """Return the finding that covers a row, if it is among those that cannot be read."""
        rest = key[2:]
        for hole, finding in self._unread:
            if hole.space is space and hole.start <= rest and (not hole.stop or rest < hole.stop):
                return finding
        return None

    def _replace_gaps(self, hole: UnreadableRange, finding: Finding) -> None:
        """Replace findings of missing steps that exist, and cannot be read."""
        for gap in [each for each in self.found.findings if each.code is FindingCode.MISSING_STEP]:
            start = gap.place
            if start is not None and hole.start <= start and (not hole.stop or start < hole.stop):
                count(finding, affected_count=gap.affected_count)
                self.found.findings.remove(gap)
                for found in self.marks.gaps.values():
                    found[:] = [finding if each is gap else each for each in found]


async def find_salt(context: EngineContext, line: Line) -> bytes:
    """Return the salt of a line, from its row, or else from the other rows that have it; nothing, if all are lost."""
    with suppress(CorruptError):
        (rows,) = await context.backend.read([Get(LINES, [tuple(line)])])
        if rows:
            return info_of(rows[0]).salt
    for table in (FOLDS, STEPS):
        async for stored in scan_readable_rows(context.stored, table, tuple(line), []):
            with suppress(HoldfastError):
                if salt := stored_salt(table, context.rows.decode(table, stored), context.max_bytes):
                    return salt
    return b""


def affected_by(marks: SpoiledSteps, point: StepRef, before: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return why a step cannot be read, and why its state cannot, given the same of the state before it."""
    own = marks.steps.get(point[:2], [])
    if not point.tail:
        state = [*marks.folds.get(point[:2], []), *marks.values.get(point[:2], [])]
        return [*own, *state], state
    state = [*marks.gaps.get(point[:2], []), *own, *before]
    return state, state


def needs(step: Step, marks: SpoiledSteps) -> Iterator[Finding]:
    """Yield why the content of a step is incomplete: large values that are missing."""
    for pointer in pointers(step.edit):
        yield from marks.objects.get(parse_pointer(pointer).digest, ())
