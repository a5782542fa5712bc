"""Replacing sensitive data in what is stored: each branch gets a new end without it, and the checkpoints that have some
are pruned, so that only their hashes are left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from holdfast.backends.interface import Change, Delete, Expect, Put, Row
from holdfast.backends.tables import REFS
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.line_walk import lines_of_kinds
from holdfast.engine.model.attribution import Mark
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.operations import Set as SetValue
from holdfast.engine.model.packed_state import Packed, PackedMap, flatten, pack_name, unpack, unpack_name
from holdfast.engine.model.scopes import place_of_line
from holdfast.engine.model.steps import Step
from holdfast.engine.namespaces import ACCESS, LineKind
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.system_line import SystemLine
from holdfast.engine.types import Progress
from holdfast.errors import NotFoundError
from holdfast.maintenance.erasure.audit_rows import AuditRewriter, Rewrite
from holdfast.maintenance.erasure.mixed_lines import LineEraser, LineMarks
from holdfast.security.access.registry import AccessRegistry
from holdfast.security.audit.archive_records import archived_segments
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.sensitive.credential_check import forget_erased
from holdfast.security.sensitive.detector import Detector, mask
from holdfast.security.sensitive.formats import BY_NAME
from holdfast.security.sensitive.markers import ANY_MARKER
from holdfast.security.sensitive.packed_values import Path, replace_texts, texts_of
from holdfast.security.sensitive.protector import PolicySet, find_any, is_covered, is_internal, policies_of, redact_text
from holdfast.security.sensitive.scan import (
    AUDITED,
    RECORD_PATHS,
    SensitiveScan,
    has_texts,
    is_line_name,
    read_reasons,
)
from holdfast.state.artifacts.records import ArtifactRecord
from holdfast.state.sessions.lifecycle import ARCHIVE_REASON


class RedactionReport(msgspec.Struct, frozen=True):
    """The result of a redaction: how many threads, scopes and agents it changed, and how many of their checkpoints it
    pruned; in how many records of the audit and reasons of pins and holds it replaced something; and what is left,
    outside of the store's control or because it has to stay."""

    lines: int
    checkpoints: int
    records: int
    remains: list[str]


class _Detectors:
    """A finder of sensitive data of some formats, without what a policy allows in a channel."""

    def __init__(self, detector: Detector, policies: PolicySet | None) -> None:
        self.all = detector
        self.policies = policies
        self.of: Callable[[Line, str], Detector] = lru_cache(4096)(self._of)

    def _of(self, line: Line, channel: str) -> Detector:
        """Return the detector for a channel."""
        formats = BY_NAME & self.all.names if is_internal(line.name, channel) else frozenset()
        if self.policies is not None:
            formats |= {each for each in self.all.names if self.policies.allows(line, channel, each)}
        return Detector(self.all.names - formats) if formats else self.all


class LineRedactor(LineEraser):
    """Replaces sensitive data in one line."""

    def __init__(self, engine: Engine, line: Line, detectors: _Detectors) -> None:
        super().__init__(engine, line, {"redacted": sorted(detectors.all.names)})
        self._scan = SensitiveScan(engine, line.tenant, detectors.all, detectors.policies)
        self._detectors = detectors
        self._known: dict[tuple[bytes, bytes], bytes] = {}

    async def _read(self) -> LineMarks:
        self._pending = {each.checkpoint async for each in self._scan.pending(self._line)}
        return await super()._read()

    def _answers(self, point: StepRef, row: Row) -> bool:  # noqa: ARG002
        return bool(self._scan.writes(self._line, row))

    async def _after(self, step: Step, point: StepRef, row: Row, *_: object) -> Mark:  # noqa: ARG002
        if point.id in self._pending or self._redacted(await self._engine.states.values(self._line, point)):
            return True
        return bool(await self._scan.step(self._line, row))

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
            internal, detector = is_internal(self._line.name, channel), self._detectors.of(self._line, channel)

            def replace(path: Path, name: str, text: str) -> str:  # noqa: ARG001
                return redact_text(detector, name, text)

            self._known[key, packed] = replace_texts(packed, (channel,), channel, replace, in_bytes=not internal)
        return self._known[key, packed]

    def _link_changes(self, old: PackedMap, put: Mapping[str, Packed]) -> list[Change]:
        if self._line.name != ARTIFACTS:
            return []
        changes, codec, line = list[Change](), self._engine.context.codec, SystemLine(self._engine, self._line)
        for id, packed in put.items():
            before, after = (ArtifactRecord.of(unpack(codec, each)) for each in (old[pack_name(id)], packed))
            now = self._engine.context.clock()
            changes += line.link_changes(before.links(id), after.links(id), now, after.content)
        return changes


def _rewrite_details(detectors: _Detectors) -> Rewrite:
    """Return what replaces sensitive data in the details of records."""

    def rewrite(row: Row, packed: bytes) -> tuple[Row, bytes]:
        detector = detectors.of(Line(str(row.key[0]), str(row.key[1])), "")

        def replace(path: Path, name: str, text: str) -> str:
            return text if is_line_name(path) else redact_text(detector, name, text)

        found = packed and find_any(detector, texts_of(packed), ANY_MARKER)
        return row, replace_texts(packed, (AUDITED,), "", replace) if found else packed

    return rewrite


async def _redact_reasons(engine: Engine, line: Line, detector: Detector) -> int:
    """Replace sensitive data in the reasons of pins and holds. Returns how many changed."""
    count = 0
    for row in await read_reasons(engine, line):
        key = (*row.key[:3], redact_text(detector, "", str(row.key[3])), *row.key[4:])
        if key != row.key:
            new = Put(REFS, row._replace(key=key))
            batch: list[Change] = [Expect(REFS, row.key, row.columns), Delete(REFS, row.key), new]
            count += await engine.context.backend.apply(batch) is None
    return count


async def redact_stored(
    engine: Engine, tenant: str, detector: Detector, kinds: frozenset[LineKind], progress: Progress | None
) -> RedactionReport:
    """Replace sensitive data in all lines of some kinds, and in records about them. `DeniedError` if a hold protects
    one that has some. Archived sessions, whose state is a checkpoint before the last, are left as they are, and
    named."""
    own, changed, pruned, records, left = Engine(engine.context), 0, 0, 0, list[str]()
    detectors = _Detectors(detector, policies_of(engine))
    scan = SensitiveScan(own, tenant, detector, detectors.policies)
    backend = engine.context.backend
    lines = [line async for line in lines_of_kinds(backend, tenant, kinds) if has_texts(line.name)]
    for number, line in enumerate(lines, 1):
        name = place_of_line(line.name)
        place = mask(name)
        if place != name:
            left.append(f"{place}: its name, by which it is found")
        try:
            found = await scan.whole(line)
            records += await _redact_reasons(own, line, detectors.of(line, "")) if found else 0
            if all(each.path.startswith(RECORD_PATHS) for each in found):
                continue
            if any(pin.reason == ARCHIVE_REASON for pin in await own.holds.pins(line)):
                left.append(f"{place}: the state of an archived session; resume it first, or delete it")
                continue
            pruned += await LineRedactor(own, line, detectors).erase()
            changed += 1
        except NotFoundError:
            pass  # deleted meanwhile
        finally:
            if progress is not None:
                progress(number, len(lines), place)
    rewriter = AuditRewriter(own, ErasureLedger(own, tenant), _rewrite_details(detectors), frozenset(lines))
    if Line(tenant, ACCESS) in lines:
        access = AccessRegistry(own, tenant)
        records += await access.rewrite_reasons(lambda _, reason: redact_text(detector, "", reason))
    records += await rewriter.run(tenant, f"{own.context.clock():020}-redacted")
    if changed or records:
        await forget_erased(engine, tenant)
        left += [*await backend.purge(), *await archived_segments(own, tenant)]
    return RedactionReport(changed, pruned, records, left)
