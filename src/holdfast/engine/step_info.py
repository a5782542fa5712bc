"""Headers and parents of steps, through the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import FOLDS, STEPS, Key
from holdfast.engine.context import EngineContext
from holdfast.engine.model.large_pointers import LARGE
from holdfast.engine.model.steps import StepHeader
from holdfast.engine.row_format import HINT, Line, StepRef, open_fold_header, open_step, where
from holdfast.errors import CorruptError, HoldfastError, NotFoundError


class StepInfo(NamedTuple):
    """A step's row, its header, and the id of the step it follows, unless that was pruned."""

    point: StepRef
    header: StepHeader
    parent: str | None


class StepInfoReader:
    """Describes steps."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def head(self, line: Line, point: StepRef) -> StepInfo:
        """Describe one step."""
        return (await self.describe(line, [point]))[0]

    async def describe(self, line: Line, points: Sequence[StepRef], rows: Sequence[Row] = ()) -> list[StepInfo]:
        """Describe steps. Rows with bodies that are passed are not read again."""
        if len(points) == 1:
            loaded = self._context.cache.get((line, points[0].hash))
            if loaded is not None and loaded.head is not None and loaded.head.point[:2] == points[0][:2]:
                return [loaded.head]
        infos: dict[tuple[int, int], StepInfo] = {}
        missing: dict[tuple[int, int], StepRef] = {}
        for point in points:
            # One commit may be stored at two positions, which follow others: a checkpoint that was saved again.
            loaded = self._context.cache.get((line, point.hash))
            head: StepInfo | None = None if loaded is None else loaded.head
            if head is None or head.point[:2] != point[:2]:
                head = self._context.cache.get((line, point.hash, point[:2]))
            if head is None:
                missing[point[:2]] = point
            else:
                infos[point[:2]] = head._replace(point=point)
        if missing:
            infos.update(await self._read(line, missing, rows))
        return [infos[point[:2]] for point in points]

    def keep(self, line: Line, head: StepInfo) -> None:
        """Cache the description of a step."""
        weight = 800 + len(head.header.metadata) + len(head.point.metadata)
        self._context.cache.put((line, head.point.hash, head.point[:2]), head, weight)

    async def _read(
        self, line: Line, missing: dict[tuple[int, int], StepRef], rows: Sequence[Row]
    ) -> dict[tuple[int, int], StepInfo]:
        loaded_rows = {row.key: row for row in rows if row.body}
        unread: dict[Key, StepRef] = {
            key: point for point in missing.values() if (key := (*line, *point[:2])) not in loaded_rows
        }
        headers = await self._folded_headers(unread)
        keys = [key for key, point in unread.items() if point[:2] not in headers]
        if keys:
            (rows_read,) = await self._context.backend.read([Get(STEPS, keys, required=True)])
            loaded_rows.update((row.key, row) for row in rows_read)
        for position, point in missing.items():
            if position in headers:
                continue
            row = loaded_rows.get((*line, *point[:2]))
            if row is None:
                raise _deleted(line)
            headers[position] = open_step(line, row, self._context.max_bytes).header
        parents = {header.parents[0][:2] for header in headers.values() if header.parents}
        ids = {row.key[2:]: StepRef.of(row).id for row in loaded_rows.values()}
        ids.update((position, missing[position].id) for position in headers)
        scans = [Scan(STEPS, (*line, *place), bodies=False, required=1) for place in parents if place not in ids]
        for rows_read in await self._context.unchecked.read(scans) if scans else ():
            ids.update((row.key[2:], StepRef.of(row).id) for row in rows_read)
        heads = {}
        for position, header in headers.items():
            parent = None
            if header.parents:
                parent = ids.get(header.parents[0][:2])
                if parent is None:
                    raise await self.missing_parent(line, missing[position], header.parents[0][:2])
            heads[position] = StepInfo(missing[position], header, parent or None)
            self.keep(line, heads[position])
        return heads

    async def _folded_headers(self, points: Mapping[Key, StepRef]) -> dict[tuple[int, int], StepHeader]:
        """Return the headers of large steps, which are stored with their folded states, too."""
        keys = [key for key, point in points.items() if not point.tail and point.size > LARGE]
        headers = {}
        with suppress(CorruptError):  # the steps have them, too
            (rows,) = await self._context.backend.read([Get(FOLDS, keys)]) if keys else ([],)
            for row in rows:
                point = points[row.key]
                if row.columns[1] == point.hash and (header := open_fold_header(row, point)) is not None:
                    headers[point[:2]] = header
        return headers

    async def require_parents(self, line: Line, heads: Sequence[StepInfo]) -> None:
        """Raise `CorruptError` if a step is missing that one of these follows. Stubs of pruned steps are there."""
        listed = {head.point[:2] for head in heads}
        children = {
            parent: head.point
            for head in heads
            if head.header.parents and (parent := head.header.parents[0][:2]) not in listed
        }
        if children:
            (rows,) = await self._context.backend.read([Get(STEPS, [(*line, *place) for place in children], True)])
            for place in children.keys() - {row.key[2:] for row in rows}:
                raise await self.missing_parent(line, children[place], place)

    async def missing_parent(self, line: Line, child: StepRef, place: tuple[int, int]) -> HoldfastError:
        """Return the error for a step whose parent was not found: it is lost, unless both were deleted meanwhile."""
        keys = [(*line, *child[:2]), (*line, *place)]
        (rows,) = await self._context.backend.read([Get(STEPS, keys)])
        if [row.key for row in rows] != keys[:1]:
            return _deleted(line)
        branch, seq = place
        what = f"the checkpoint before this one (branch {branch}, number {seq}) is missing"
        return CorruptError(what, where=where(line, child), hint=HINT)


def _deleted(line: Line) -> NotFoundError:
    return NotFoundError(
        "the checkpoint no longer exists", where=f"thread {line}", hint="It was deleted by another process"
    )
