"""The ends of many lines: read together, and appended to in one batch. For work on all threads of a store.

Most threads have one branch, and all of their steps since the last folded state fit into a few rows. Their last states
are read with two requests for many lines, and get a step each in one batch, without what a save of a single line needs:
a queue, cached tips and states, branches, folds. Lines that need any of that are left to `StepWriter.save`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Create, Expect, Get, Row, Scan
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS
from holdfast.codec import collector_paused
from holdfast.engine import trace_context
from holdfast.engine.engine import Engine
from holdfast.engine.guard import OWNER, current_authority
from holdfast.engine.ids import new_id
from holdfast.engine.leases import pause_key
from holdfast.engine.model.large_pointers import LARGE
from holdfast.engine.model.operations import EditMap, apply_map
from holdfast.engine.model.packed_state import POINTER, PackedMap
from holdfast.engine.model.steps import Step, StepHeader, StepParent, decode_edit
from holdfast.engine.namespaces import index_key
from holdfast.engine.row_format import AT_HEAD, Line, LineInfo, StepRef, info_of, open_body, open_step, step_body
from holdfast.engine.trace_context import NO_TRACE

_STEPS_PER_LINE = 8
"""How many steps of lines are looked at, on average. A page of longer lines is left to others."""

_GROUP_BYTES, _GROUP_LINES = 1 << 20, 500
"""How many bytes are read, and written, together; and how many lines."""


class ShortLine(NamedTuple):
    """A line with one branch whose state is in its steps, without their content."""

    line: Line
    info: LineInfo
    points: tuple[StepRef, ...]


class LineEnd(NamedTuple):
    """The last step of a line, with its state, and the state before it."""

    line: Line
    info: LineInfo
    point: StepRef
    state: PackedMap
    schema: str
    former: PackedMap
    former_schema: str | None
    """The schema of the state before the last step; None if there is no such step."""
    former_kind: str = ""
    """The kind of the step before the last."""


class NextStep(NamedTuple):
    """A step that is to follow the end of a line, and its row."""

    end: LineEnd
    step: Step
    row: Row


class LineEnds:
    """Reads the ends of lines, and appends to them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._context = engine.context

    def is_usable(self) -> bool:
        """Return whether steps can be appended without more than their rows: no readable rows, text index or hooks, and
        on behalf of the store's owner."""
        engine = self._engine
        return (
            not engine.projector.on
            and engine.writer.around is None
            and trace_context.current() is NO_TRACE
            and current_authority() is OWNER
        )

    async def find_short(self, lines: Sequence[Line]) -> list[ShortLine]:
        """Return those of some consecutive lines of a tenant that have one branch and are not folded."""
        if not lines or not self.is_usable():
            return []
        tenant, first, last = lines[0].tenant, lines[0].name, lines[-1].name
        bounds, limit = ((tenant,), (first,), (last + "\0",)), _STEPS_PER_LINE * len(lines)
        infos, steps, branches, refs, index = await self._context.backend.read(
            [
                Scan(LINES, *bounds, limit=limit + 1),
                Scan(STEPS, *bounds, limit=limit + 1, bodies=False),
                Scan(BRANCHES, *bounds, limit=limit + 1, bodies=False),
                Scan(REFS, *bounds, limit=limit + 1, bodies=False),
                Get(REFS, [index_key(tenant)]),
            ]
        )
        self._engine.lines.note_index(tenant, bool(index))
        if index or len(branches) > limit or len(refs) > limit:
            return []
        others = {row.key[1] for row in branches} | {row.key[1] for row in refs if row.key == pause_key(_line(row))}
        by_line: dict[str, list[StepRef]] = {}
        for row in steps:
            by_line.setdefault(str(row.key[1]), []).append(StepRef.of(row))
        if len(steps) > limit:
            by_line.pop(str(steps[-1].key[1]))  # there are more of it
        names, found = {line.name for line in lines}, []
        for row in infos:
            points = by_line.get(name := str(row.key[1]))
            if points and name in names and name not in others and self._is_short(points):
                found.append(ShortLine(Line(tenant, name), info_of(row), tuple(points)))
        return found

    def _is_short(self, points: Sequence[StepRef]) -> bool:
        last, count = points[-1], len(points)
        return (
            count == last.tail < self._context.fold_every - 1
            and last.seq == count - 1
            and last.size < _GROUP_BYTES
            and last.beside == AT_HEAD
            and all(not point.branch and not point.pruned for point in points)
            and (count == 1 or last.id > max(point.id for point in points[:-1]))
        )

    def groups(self, lines: Sequence[ShortLine]) -> Iterator[Sequence[ShortLine]]:
        """Divide lines into groups that are read together."""
        start, size = 0, 0
        for place, each in enumerate(lines):
            if place > start and (place - start >= _GROUP_LINES or size + each.points[-1].size > _GROUP_BYTES):
                yield lines[start:place]
                start, size = place, 0
            size += each.points[-1].size
        if start < len(lines):
            yield lines[start:]

    async def read(self, lines: Sequence[ShortLine]) -> list[LineEnd | None]:
        """Return the ends of lines; None for one that changed meanwhile, or has large values of its own."""
        keys = [(*each.line, 0, point.seq) for each in lines for point in each.points]
        (rows,) = await self._context.backend.read([Get(STEPS, keys)])
        by_key = {row.key: row for row in rows}
        found = iter([by_key.get(key) for key in keys])
        with collector_paused():
            return [self._end(each, list(islice(found, len(each.points)))) for each in lines]

    def _end(self, short: ShortLine, rows: Sequence[Row | None]) -> LineEnd | None:
        state: PackedMap = {}
        former, former_schema, schema = state, None, ""
        parent = b""
        for number, (point, row) in enumerate(zip(short.points, rows, strict=True)):
            if row is None or row.columns != point[2:]:
                return None
            step = open_step(short.line, row, self._context.max_bytes)
            if (step.header.parents[0].commit if step.header.parents else b"") != parent:
                return None  # verifying tells whether it is damaged
            if any(POINTER in part for _, parts in step.stored for part in parts):
                return None
            former, former_schema = state, schema if number else None
            state, schema, parent = apply_map(step.edit, state), step.header.schema, point.hash
        former_kind = short.points[-2].kind if len(short.points) > 1 else ""
        return LineEnd(short.line, short.info, short.points[-1], state, schema, former, former_schema, former_kind)

    # Appending ----------------------------------------------------------------------------------------------------

    def prepare(
        self, end: LineEnd, edit: EditMap, kind: str, schema: str, metadata: bytes, readable: str
    ) -> NextStep | None:
        """Prepare a step after the end of a line; None if it has large values, which are stored apart. `metadata` is a
        packed dict, and `readable` the same for people."""
        context, parent = self._context, end.point
        time = max(context.clock(), parent.time)
        id = new_id(time, parent.id)
        header = StepHeader(id, (StepParent(0, parent.seq, parent.hash),), time, "", kind, schema, metadata)
        step = Step(header, edit)
        if max(step.sizes) > LARGE:
            return None
        body = step_body(end.line, step, context.max_bytes, (), end.info.salt)
        columns = (id, 0, parent.depth + 1, step.commit(end.info.salt), time, kind, readable)
        size = parent.size + len(body)
        return NextStep(
            end, step, Row((*end.line, 0, parent.seq + 1), (*columns, parent.tail + 1, size, AT_HEAD), body)
        )

    async def append(self, steps: Sequence[NextStep], conditions: Sequence[Change] = ()) -> bool:
        """Append steps to their lines, all or none, on some conditions. False if a line changed since it was read, or a
        condition does not hold."""
        changes: list[Change] = [*conditions]
        for end, _, row in steps:
            changes += (Expect(LINES, tuple(end.line), end.info.columns), Create(STEPS, row))
        applied = await self._context.backend.apply(changes) is None
        for each in steps:
            self._context.cache.drop(("line", each.end.line))
        return applied

    async def read_back(self, steps: Sequence[NextStep]) -> list[PackedMap | None]:
        """Read steps that were appended from the store, as any reader does: with their checksums, and from the stored
        bytes. Returns the states that they result in; None for a step that is not as it was written."""
        (rows,) = await self._context.backend.read([Get(STEPS, [each.row.key for each in steps], required=True)])
        by_key = {row.key: row for row in rows}
        states: list[PackedMap | None] = []
        with collector_paused():
            for end, _, row in steps:
                stored = by_key.get(row.key)
                if stored is None or stored != row:
                    states.append(None)
                    continue
                states.append(apply_map(decode_edit(open_body(stored, self._context.max_bytes)), end.state))
        return states


def _line(row: Row) -> Line:
    return Line(str(row.key[0]), str(row.key[1]))
