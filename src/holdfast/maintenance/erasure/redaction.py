"""Replacing sensitive data in what is stored: each branch gets a new end without it, and the checkpoints that have some
are pruned, so that only their hashes are left."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast._named_tuple import NamedTuple
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import STEPS
from holdfast.engine.engine import Engine
from holdfast.engine.model.attribution import Mark
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.operations import Set as SetValue
from holdfast.engine.model.packed_state import PackedMap, flatten, unpack_name
from holdfast.engine.namespaces import LineKind, lines_of_kinds
from holdfast.engine.row_format import Branch, Line, StepRef, open_step
from holdfast.engine.types import Progress
from holdfast.errors import NotFoundError
from holdfast.maintenance.erasure.mixed_lines import LineEraser, LineMarks
from holdfast.security.sensitive.credential_check import forget_erased
from holdfast.security.sensitive.detector import Detector
from holdfast.security.sensitive.markers import ANY_MARKER
from holdfast.security.sensitive.packed_values import Path, replace_texts
from holdfast.security.sensitive.policies import is_covered, is_internal
from holdfast.security.sensitive.protector import find_text
from holdfast.security.sensitive.scan import SensitiveScan
from holdfast.state.sessions.lifecycle import ARCHIVE_REASON


class RedactionReport(NamedTuple):
    """What a redaction did: how many threads, scopes and agents it changed, and how many of their checkpoints it
    pruned; and what is left outside of the store's control."""

    lines: int
    checkpoints: int
    remains: list[str]


class LineRedactor(LineEraser):
    """Replaces sensitive data in one line."""

    def __init__(self, engine: Engine, line: Line, detector: Detector) -> None:
        super().__init__(engine, line, {"redacted": sorted(detector.names)})
        self._scan = SensitiveScan(engine, line.tenant, detector)
        self._detector = detector
        self._known: dict[tuple[bytes, bytes], bytes] = {}

    async def _read(self) -> LineMarks:
        engine, found = self._engine, LineMarks()
        at: dict[tuple[int, int], tuple[StepRef, Mark]] = {}
        pending = {each.checkpoint async for each in self._scan.pending(self._line)}
        for branch in (Branch(0, 0, 0, 0, ""), *await engine.lines.branches(self._line)):
            base = at.get((branch.base_branch, branch.base_length - 1)) if branch.base_length else None
            if base is not None:
                found.ends[branch.branch] = base
            async for row in scan_rows(engine.context.backend, STEPS, (*self._line, branch.branch)):
                point = StepRef.of(row)
                if point.pruned:
                    found.pruned += 1
                    continue
                state = await engine.states.values(self._line, point)
                has_some = point.id in pending or bool(self._redacted(state))
                mark: Mark = has_some or bool(await self._scan.step(self._line, row))
                if self._scan.writes(self._line, row):
                    parents = open_step(self._line, row, engine.context.max_bytes).header.parents
                    found.answered |= {at[parent[:2]][0].id for parent in parents[:1] if parent[:2] in at}
                if mark:
                    found.dropped.add(point[:2])
                    found.since = min(point.time, found.since or point.time)
                at[point[:2]] = found.ends[branch.branch] = (point, mark)
        return found

    async def _edit(self, point: StepRef, mark: Mark) -> EditMap:  # noqa: ARG002
        redacted = self._redacted(await self._engine.states.values(self._line, point))
        return EditMap((), tuple((key, SetValue(value)) for key, value in redacted.items()))

    def _redacted(self, state: PackedMap) -> Mapping[bytes, bytes]:
        """Return the channels of a state that have sensitive data, without it."""
        new = {}
        for key, value in state.items():
            packed = flatten(value)
            redacted = self._redact(key, unpack_name(key), packed)
            if redacted != packed:
                new[key] = redacted
        return new

    def _redact(self, key: bytes, channel: str, packed: bytes) -> bytes:
        if not is_covered(self._line.name, channel):
            return packed
        if (key, packed) not in self._known:
            internal = is_internal(self._line.name, channel)
            self._known[key, packed] = replace_texts(packed, (channel,), channel, self._replace, in_bytes=not internal)
        return self._known[key, packed]

    def _replace(self, path: Path, name: str, text: str) -> str:  # noqa: ARG002
        for found in reversed(find_text(self._detector, name, text, ANY_MARKER)):
            text = f"{text[: found.start]}[redacted:{found.format}]{text[found.end :]}"
        return text


async def redact_stored(
    engine: Engine, tenant: str, detector: Detector, kinds: frozenset[LineKind], progress: Progress | None
) -> RedactionReport:
    """Replace sensitive data in all lines of some kinds. `DeniedError` if a hold protects one that has some. Archived
    sessions, whose state is a checkpoint before the last, are left as they are, and named."""
    own, changed, pruned, left = Engine(engine.context), 0, 0, list[str]()
    scan = SensitiveScan(own, tenant, detector)
    backend = engine.context.backend
    lines = [line async for line in lines_of_kinds(backend, tenant, kinds) if is_covered(line.name, "")]
    for number, line in enumerate(lines, 1):
        try:
            if not await scan.whole(line):
                continue
            if any(pin.reason == ARCHIVE_REASON for pin in await own.holds.pins(line)):
                left.append(f"{line.name[1:]}: the state of an archived session; resume it first, or delete it")
                continue
            pruned += await LineRedactor(own, line, detector).erase()
            changed += 1
        except NotFoundError:
            pass  # deleted meanwhile
        finally:
            if progress is not None:
                progress(number, len(lines), line.name)
    if changed:
        await forget_erased(engine, tenant)
    return RedactionReport(changed, pruned, [*left, *(await backend.purge() if changed else [])])
