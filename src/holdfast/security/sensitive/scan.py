"""Scanning what is stored for sensitive data. Reports say where it is, and not what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import STEPS, WRITES
from holdfast.engine.engine import Engine
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.operations import ChangeItem, Combine, EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import POINTER, Packed, PackedMap, unpack_name
from holdfast.engine.model.scopes import place_of_line
from holdfast.engine.namespaces import ALL_KINDS, LineKind, lines_of_kinds
from holdfast.engine.paths import path_text
from holdfast.engine.row_format import Line, StepRef, open_step, open_write, open_writes
from holdfast.engine.types import Progress
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.security.sensitive.detector import Detector
from holdfast.security.sensitive.markers import ANY_MARKER
from holdfast.security.sensitive.packed_values import Path, ReplaceText, replace_texts, texts_of
from holdfast.security.sensitive.policies import PolicySet, is_covered, is_internal
from holdfast.security.sensitive.protector import find_any, find_text, has_fragments

_PAGE = 200


class SensitiveFinding(NamedTuple):
    """Sensitive data in a store: the thread or scope that has it, its path in the state, and its format.

    `checkpoint` is the id of the checkpoint; `times` is how often the format occurs at the path.
    """

    scope: str
    checkpoint: str
    path: str
    format: str
    times: int = 1


class SensitiveReport(NamedTuple):
    """What a scan found. `damaged` are threads and scopes that could not be read."""

    findings: list[SensitiveFinding]
    scanned: int
    """The number of threads and scopes."""
    damaged: list[str]


class SensitiveScan:
    """Searches the lines of a tenant."""

    def __init__(self, engine: Engine, tenant: str, detector: Detector, policies: PolicySet | None = None) -> None:
        """What one of the policies allows is not found."""
        self._engine = engine
        self._policies = policies
        self._tenant = tenant
        self._detector = detector
        self._without_names = Detector(detector.names - {"field", "high-entropy", "named-secret"})

    async def run(
        self, kinds: frozenset[LineKind] = ALL_KINDS, *, history: bool = False, progress: Progress | None = None
    ) -> SensitiveReport:
        """Search the latest states; with `history`, all that the steps of each line wrote."""
        findings: list[SensitiveFinding] = []
        damaged: list[str] = []
        backend = self._engine.context.backend
        lines = [line async for line in lines_of_kinds(backend, self._tenant, kinds) if is_covered(line.name, "")]
        for number, line in enumerate(lines, 1):
            place = place_of_line(line.name)
            try:
                found = self._history(line) if history else self._latest(line)
                findings += [each async for each in found]
            except NotFoundError:
                pass  # deleted meanwhile
            except HoldfastError:
                damaged.append(place)
            if progress is not None:
                progress(number, len(lines), place)
        return SensitiveReport([*dict.fromkeys(findings)], len(lines), damaged)

    async def whole(self, line: Line) -> list[SensitiveFinding]:
        """Search all that the steps of a line wrote, and its latest state."""
        return [each async for each in self._history(line)]

    async def recent(self, line: Line, since: int) -> list[SensitiveFinding] | None:
        """Search what the steps of a line wrote since a time, in nanoseconds since 1970. None if there are no such
        steps: then something else about the line has changed."""
        backend, max_bytes = self._engine.context.backend, self._engine.context.max_bytes
        found: list[SensitiveFinding] = []
        any_step, any_part = False, False
        for branch in (0, *(each.branch for each in await self._engine.lines.branches(line))):
            stop: tuple[int] | tuple[()] = ()
            while True:
                scan = Scan(STEPS, (*line, branch), stop=stop, reverse=True, limit=_PAGE)
                (rows,) = await backend.read([scan])
                new = [row for row in rows if StepRef.of(row).time >= since]
                for row in new:
                    if not StepRef.of(row).pruned:
                        found += await self.step(line, row)
                        edit = open_step(line, row, max_bytes).edit
                        any_part = any_part or any(has_fragments(each) for _, each in edit.put)
                any_step = any_step or bool(new)
                if len(new) < _PAGE:
                    break
                stop = (int(new[-1].key[3]),)
        if not any_step:
            return None
        found += [each async for each in self.pending(line)]
        if any_part:  # what a part belongs to is in the state
            found += [each async for each in self._latest(line)]
        return found

    async def _latest(self, line: Line) -> AsyncIterator[SensitiveFinding]:
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
            for value, path, name in _values(operation, (channel,), channel, self._detector):
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
        counts: dict[tuple[str, str], int] = {}

        def search(at: Path, name: str, text: str) -> str:
            spans = find_text(detector, name, text, ANY_MARKER)
            for each in spans:
                where = path_text(at), each.format
                counts[where] = counts.get(where, 0) + 1
            return "…" if spans else text  # paths of what is below a key must not have it

        _search(detector, value, path or (channel,), channel if name is None else name, search)
        place, policies = place_of_line(line.name), self._policies
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
