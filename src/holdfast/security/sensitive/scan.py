"""Scanning what is stored for sensitive data. Reports say where it is, and not what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from holdfast.backends.interface import Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import EVENTS, REFS, STEPS, WRITES
from holdfast.engine.engine import Engine
from holdfast.engine.line_walk import count_lines, lines_of_kinds
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.operations import ChangeItem, Combine, EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import POINTER, Packed, PackedMap, unpack_name
from holdfast.engine.model.scopes import place_of_line
from holdfast.engine.namespaces import ALL_KINDS, RECORD_LINES, LineKind
from holdfast.engine.paths import path_text
from holdfast.engine.row_format import HOLD, PIN, Line, StepRef, open_body, open_step, open_write, open_writes
from holdfast.engine.types import Progress
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.security.audit.removals import ARRIVED, REMOVED
from holdfast.security.sensitive.detector import Detector, mask
from holdfast.security.sensitive.formats import BY_NAME
from holdfast.security.sensitive.markers import ANY_MARKER
from holdfast.security.sensitive.packed_values import Path, ReplaceText, replace_texts, texts_of
from holdfast.security.sensitive.protector import PolicySet, find_any, find_text, has_fragments, is_covered, is_internal

_PAGE = 200

AUDITED = "(audit)"
RECORD_PATHS = (AUDITED, f"({PIN})", f"({HOLD})")
"""The starts of the paths in records of the audit, and those of the reasons of pins and holds."""


ValuesBeside: TypeAlias = Callable[[Engine, Line], AsyncIterator[tuple[str, str, bytes]]]
"""Yields packed values that are stored beside the steps of a line: whose they are, what they are, and each value."""


class SensitiveFinding(msgspec.Struct, frozen=True):
    """Sensitive data in a store: the thread or scope that has it, its path in the state, and its format.

    `checkpoint` is the id of the checkpoint; `times` is how often the format occurs at the path.
    """

    scope: str
    checkpoint: str
    path: str
    format: str
    times: int = 1


class SensitiveReport(msgspec.Struct, frozen=True):
    """The findings of a scan. `damaged` are threads and scopes that could not be read."""

    findings: list[SensitiveFinding]
    scanned: int
    """The number of threads and scopes."""
    damaged: list[str]


def has_values(name: str) -> bool:
    """Whether a line has values of users."""
    return is_covered(name, "")


def has_texts(name: str) -> bool:
    """Whether a line has values of users, or records with details."""
    return has_values(name) or name in RECORD_LINES


def is_line_name(path: Path) -> bool:
    """Whether a key in the details of a record is the name of a line: what was removed from it is found by that."""
    return path in ((AUDITED, REMOVED, "(key)"), (AUDITED, ARRIVED, "(key)"))


async def read_reasons(engine: Engine, line: Line) -> list[Row]:
    """Return the pins and holds of a line, whose keys have their reasons."""
    pins, holds = await engine.context.backend.read([Scan(REFS, (*line, kind)) for kind in (PIN, HOLD)])
    return [*pins, *holds]


class SensitiveScan:
    """Searches the lines of a tenant."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        detector: Detector,
        policies: PolicySet | None = None,
        beside: ValuesBeside | None = None,
    ) -> None:
        """The policies: data that one of them allows is not reported."""
        self._engine = engine
        self._policies = policies
        self._tenant = tenant
        self._detector = detector
        self._beside = beside
        self._without_names = Detector(detector.names - BY_NAME)

    async def run(
        self, kinds: frozenset[LineKind] = ALL_KINDS, *, history: bool = False, progress: Progress | None = None
    ) -> SensitiveReport:
        """Search the latest states; with `history`, all that the steps of each line wrote."""
        findings: list[SensitiveFinding] = []
        damaged: list[str] = []
        backend = self._engine.context.backend
        chosen = has_texts if history else has_values
        searched = 0
        total = None if progress is None else await count_lines(backend, self._tenant, kinds)
        async for line in lines_of_kinds(backend, self._tenant, kinds):
            if not chosen(line.name):
                continue
            searched += 1
            place = mask(place_of_line(line.name))
            try:
                found = self._history(line) if history else self._latest(line)
                findings += [each async for each in found]
            except NotFoundError:
                pass  # deleted meanwhile
            except HoldfastError:
                damaged.append(place)
            if progress is not None:
                progress(searched, total, place)
        return SensitiveReport([*dict.fromkeys(findings)], searched, damaged)

    async def whole(self, line: Line) -> list[SensitiveFinding]:
        """Search all that the steps of a line wrote, its latest state, and the records about it."""
        return [each async for each in self._history(line)]

    async def recent(self, line: Line, since: int) -> list[SensitiveFinding] | None:
        """Search what the steps of a line wrote since a time, in nanoseconds since 1970. None if there are no such
        steps: then something else about the line has changed."""
        backend, max_bytes = self._engine.context.backend, self._engine.context.max_bytes
        found: list[SensitiveFinding] = []
        any_step, any_part, ids = False, False, list[str]()
        for branch in (0, *(each.branch for each in await self._engine.lines.branches(line))):
            stop: tuple[int] | tuple[()] = ()
            while True:
                scan = Scan(STEPS, (*line, branch), stop=stop, reverse=True, limit=_PAGE)
                (rows,) = await backend.read([scan])
                new = [row for row in rows if StepRef.of(row).time >= since]
                for row in new:
                    step = None if StepRef.of(row).pruned else open_step(line, row, max_bytes)
                    if step is None or step.header.events:
                        ids.append(StepRef.of(row).id)
                    if step is not None and has_values(line.name):
                        found += await self.step(line, row)
                        any_part = any_part or any(has_fragments(each) for _, each in step.edit.put)
                any_step = any_step or bool(new)
                if len(new) < _PAGE:
                    break
                stop = (int(new[-1].key[3]),)
        if not any_step:
            return None
        found += [each async for each in self.pending(line)]
        found += await self.records(line, ids)
        if any_part:  # what a part belongs to is in the state
            found += [each async for each in self._latest(line)]
        return found

    async def _latest(self, line: Line) -> AsyncIterator[SensitiveFinding]:
        if self._beside is not None:
            async for owner, what, packed in self._beside(self._engine, line):
                for each in self._value(line, "", packed, what, (f"({mask(owner)})", what)):
                    yield each
        tip = await self._engine.lines.load_tip(line)
        if tip is None or tip.point is None:
            return
        point = tip.point if tip.is_only_branch else await self._engine.lines.latest_step(line)
        if point is None:
            return
        state: PackedMap = await self._engine.states.values(line, point)
        for key, value in state.items():
            for each in self._value(line, point.id, value, unpack_name(key)):
                yield each
        info = await self._engine.step_info.head(line, point)
        for each in self._value(line, point.id, info.header.metadata, "metadata"):
            yield each
        (writes,) = await self._engine.writes.of_many(line, [point])
        for write in writes:
            for each in self._value(line, point.id, write.packed, write.channel):
                yield each

    async def _history(self, line: Line) -> AsyncIterator[SensitiveFinding]:
        backend = self._engine.context.backend
        start: tuple[int, int] | tuple[()] = ()
        for each in await self.records(line):
            yield each
        if not has_values(line.name):
            return
        while True:
            (rows,) = await backend.read([Scan(STEPS, tuple(line), start=start, limit=_PAGE)])
            for row in rows:
                if StepRef.of(row).pruned:
                    continue
                for each in await self.step(line, row):
                    yield each
            if len(rows) < _PAGE:
                break
            *_, branch, seq = rows[-1].key
            start = (int(branch), int(seq) + 1)
        async for each in self.pending(line):
            yield each
        async for each in self._latest(line):
            yield each

    async def step(self, line: Line, row: Row) -> list[SensitiveFinding]:
        """Search what a step wrote: values and metadata; and the pending writes stored with it."""
        max_bytes, point = self._engine.context.max_bytes, StepRef.of(row)
        step = open_step(line, row, max_bytes)
        large = await self._engine.states.load_large(line, frozenset(pointers(step.edit)))
        found = self._value(line, point.id, step.header.metadata, "metadata")
        for key, operation in step.edit.put:
            channel = unpack_name(key)
            for value, path, name in _values(operation, (mask(channel),), channel, self._detector):
                found += self._value(line, point.id, large.get(value, value), channel, path, name)
        return found + self.writes(line, row)

    def writes(self, line: Line, row: Row) -> list[SensitiveFinding]:
        """Search the pending writes and recordings that are stored with a step: they follow its parent."""
        found: list[SensitiveFinding] = []
        for write in open_writes(row, self._engine.context.max_bytes):
            found += self._value(line, StepRef.of(row).id, write.packed, write.channel)
        return found

    async def pending(self, line: Line) -> AsyncIterator[SensitiveFinding]:
        """Search the pending writes of a line that are stored beside its steps."""
        (rows,) = await self._engine.context.backend.read([Scan(WRITES, tuple(line))])
        for row in rows:
            write = open_write(row, self._engine.context.max_bytes)
            for each in self._value(line, str(row.key[2]), write.packed, write.channel):
                yield each

    async def records(self, line: Line, ids: Sequence[str] | None = None) -> list[SensitiveFinding]:
        """Search the records of the audit in a line, all or those of some steps; and the reasons of its pins and holds,
        as of its latest step."""
        context, found = self._engine.context, list[SensitiveFinding]()
        async for row in self._events(line, ids):
            if row.body:
                detail = open_body(row, context.max_bytes)
                found += self._texts(self._detector, line, str(row.key[2]), detail, "", (AUDITED,), "")
        for row in await read_reasons(self._engine, line):
            (packed,), kind = context.codec.pack_items([str(row.key[3])]), f"({row.key[2]!s})"
            point = None if row.columns[0] else await self._engine.lines.latest_step(line)
            id = str(row.columns[0]) if point is None else point.id
            found += self._texts(self._detector, line, id, packed, "", (kind,), "")
        return found

    async def _events(self, line: Line, ids: Sequence[str] | None) -> AsyncIterator[Row]:
        backend = self._engine.context.backend
        if ids is None:
            async for row in scan_rows(backend, EVENTS, tuple(line)):
                yield row
            return
        for start in range(0, len(ids), _PAGE):
            for rows in await backend.read([Scan(EVENTS, (*line, id)) for id in ids[start : start + _PAGE]]):
                for row in rows:
                    yield row

    def _value(
        self,
        line: Line,
        checkpoint: str,
        value: Packed,
        channel: str,
        path: Path | None = None,
        name: str | None = None,
    ) -> list[SensitiveFinding]:
        if not is_covered(line.name, channel):
            return []
        detector = self._without_names if is_internal(line.name, channel) else self._detector
        label = channel if name is None else name
        return self._texts(detector, line, checkpoint, value, channel, path or (mask(channel),), label)

    def _texts(
        self, detector: Detector, line: Line, checkpoint: str, value: Packed, channel: str, path: Path, name: str
    ) -> list[SensitiveFinding]:
        counts: dict[tuple[str, str], int] = {}

        def search(at: Path, name: str, text: str) -> str:
            if is_line_name(at):
                return mask(text)
            spans = find_text(detector, name, text, ANY_MARKER)
            for each in spans:
                where = path_text(at), each.format
                counts[where] = counts.get(where, 0) + 1
            return "…" if spans else text  # paths of what is below a key must not have it

        _search(detector, value, path, name, search)
        place, policies = mask(place_of_line(line.name)), self._policies
        return [
            SensitiveFinding(place, checkpoint, at, format_, count)
            for (at, format_), count in counts.items()
            if policies is None or not policies.allows(line, channel, format_)
        ]


def _search(detector: Detector, value: Packed, path: Path, name: str, search: ReplaceText) -> None:
    if isinstance(value, list):
        for place, each in enumerate(value):
            _search(detector, each, (*path, place), name, search)
    elif isinstance(value, dict):
        for key, item in value.items():
            label = _label(key)
            _search(detector, item, (*path, search((*path, "(key)"), "", label)), label, search)
    elif not value.startswith(POINTER) and find_any(detector, texts_of(value, name), ANY_MARKER):
        replace_texts(value, path, name, search)


def _values(operation: Operation, path: Path, name: str, detector: Detector) -> Iterator[tuple[bytes, Path, str]]:
    """Yield the values that an operation contains, with their paths and the names of their fields. Parts of texts are
    found in the latest state."""
    if isinstance(operation, Set):
        yield operation.value, path, name
    elif isinstance(operation, Combine):
        yield operation.operand, path, name
    elif isinstance(operation, EditMap):
        for key, change in operation.put:
            label = _label(key)
            yield key, (*path, "(key)"), ""
            yield from _values(change, (*path, "…" if detector.find(label) else label), label, detector)
    elif isinstance(operation, EditList):
        place = 0
        for part in operation.parts:
            if isinstance(part, KeepRun):
                place += part.length
            elif isinstance(part, ChangeItem):
                yield from _values(part.operation, (*path, place), name, detector)
                place += 1
            else:
                yield from ((item, (*path, place + number), name) for number, item in enumerate(part))
                place += len(part)


def _label(key: bytes) -> str:
    return next((text for _, text in texts_of(key)), key.hex())
