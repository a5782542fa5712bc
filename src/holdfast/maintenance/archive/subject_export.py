"""Exporting the data of one person, as JSON that people and other tools can read."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.backends.interface import Get
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.codec import plain_json
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, place_of
from holdfast.engine.model.attribution import mark_after, only_marked
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.packed_state import PackedMap, flatten
from holdfast.engine.namespaces import line_kind, short_name
from holdfast.engine.row_format import Line, StepRef, open_body, open_step
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import Progress, to_datetime
from holdfast.maintenance.archive.export import stream_states
from holdfast.maintenance.archive.format import ArchiveFile, ArchiveWriter
from holdfast.maintenance.erasure.audit_rows import SubjectRows, places_of, read_detail, record_place
from holdfast.maintenance.erasure.finder import SubjectData, SubjectFinder
from holdfast.maintenance.erasure.mixed_lines import is_message
from holdfast.security.audit.erasure_ledger import LedgerEntry, digest_subject
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.records import ArtifactRecords
from holdfast.state.sessions.records import LINE as SESSIONS
from holdfast.state.sessions.records import SessionRecords


class SubjectExportReport(msgspec.Struct, frozen=True):
    """The result of an export: how many records of each kind it has, and the number of bytes."""

    subject: str
    records: Mapping[str, int]
    bytes: int


class SubjectExporter:
    """Writes the data of one person, a JSON document a line."""

    def __init__(
        self, handle: StoreHandle, subject: str, metadata_keys: Sequence[str], progress: Progress | None = None
    ) -> None:
        self._handle = StoreHandle(handle.engine, handle.tenant)
        self._engine: Engine = handle.engine
        self._subject = subject
        self._finder = SubjectFinder(handle.engine, handle.tenant, self._is_subject, metadata_keys=metadata_keys)
        self._keys = tuple(metadata_keys)
        self._progress = progress

    def _is_subject(self, name: str) -> bool:
        return name == self._subject

    async def find(self) -> SubjectData:
        """Find what is to be exported."""
        return await self._finder.find(self._progress)

    async def export(self, found: SubjectData, file: ArchiveFile) -> SubjectExportReport:
        """Write what was found to a file."""
        counts: dict[str, int] = {}
        async with ArchiveWriter(file) as archive:
            async for kind, document in self._documents(found):
                await archive.write_line(msgspec.json.encode({"type": kind, **document}))
                counts[kind] = counts.get(kind, 0) + 1
                if self._progress is not None:
                    self._progress(sum(counts.values()), None, kind)
        return SubjectExportReport(self._subject, counts, archive.bytes)

    async def _documents(self, found: SubjectData) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for line in found.lines:
            async for document in self._states(line):
                yield line_kind(line.name), document
        for line, steps in found.steps.items():
            async for document in self._written(line, steps):
                yield f"part of {line_kind(line.name)}", document
        for id in found.artifacts:
            yield "artifact", await self._artifact(id)
        for id in found.sessions:
            record = await SessionRecords(self._handle).get(id)
            yield "session record", {"id": id, **self._plain(vars(record))}
        async for document in self._audit(found):
            yield "audit", document

    # Lines ------------------------------------------------------------------------------------------------------

    async def _states(self, line: Line) -> AsyncIterator[dict[str, Any]]:
        """Yield every state of a line, the latest first, and what is pending after it."""
        async for head, state in stream_states(self._engine, line):
            document = self._describe(line, head) | {"state": self._plain_state(state)}
            (pending,) = await self._engine.writes.of_many(line, [head.point])
            if pending:
                document["pending"] = [[each.channel, plain_json.to_plain(each.packed)] for each in pending]
            yield document

    async def _written(self, line: Line, steps: set[tuple[int, int]]) -> AsyncIterator[dict[str, Any]]:
        """Yield what the steps of a person wrote."""
        states = self._engine.states
        for position in sorted(steps):
            ((row,),) = await self._engine.context.backend.read([Get(STEPS, [(*line, *position)])])
            point = StepRef.of(row)
            step = open_step(line, row, self._engine.context.max_bytes)
            before: PackedMap = {}
            if step.header.parents:
                (found,) = await self._engine.context.backend.read([Get(STEPS, [(*line, *step.header.parents[0][:2])])])
                if found and not StepRef.of(found[0]).pruned:
                    before = await states.values(line, StepRef.of(found[0]))
            large = await states.load_large(line, frozenset(pointers(step.edit)))
            mark = mark_after(False, step.edit, True, before, large, whole=is_message(line, step), whole_texts=True)
            written = only_marked(await states.values(line, point), mark)
            (head,) = await self._engine.step_info.describe(line, [point], [row])
            content = self._plain_state(written) if isinstance(written, dict) else {}
            yield self._describe(line, head) | {"written": content}

    def _describe(self, line: Line, head: StepInfo) -> dict[str, Any]:
        metadata = self._engine.context.codec.unpack(head.header.metadata)
        return {
            "name": short_name(line.name),
            "checkpoint": head.point.id,
            "time": to_datetime(head.point.time).isoformat(),
            "metadata": self._plain(metadata),
        }

    def _plain_state(self, state: PackedMap) -> Any:
        return plain_json.to_plain(flatten(dict(state)))

    def _plain(self, value: Mapping[str, Any]) -> Any:
        return self._engine.context.codec.to_plain(dict(value))

    # Records ----------------------------------------------------------------------------------------------------

    async def _artifact(self, id: str) -> dict[str, Any]:
        records = ArtifactRecords(self._handle)
        record = await records.get(id)
        fields = {name: value for name, value in vars(record).items() if name not in ("small", "token")}
        content = b"" if record.uri else await records.pieces(id, record).read_all()
        try:
            text = {"text": content.decode()}
        except UnicodeDecodeError:
            text = {"base64": b64encode(content).decode()}
        return {"id": id, **self._plain(fields), **text}

    async def _audit(self, found: SubjectData) -> AsyncIterator[dict[str, Any]]:
        """Yield the records of the audit about the person."""
        tenant = self._handle.tenant
        salt = os.urandom(32)
        entry = LedgerEntry(0, salt, digest_subject(salt, self._subject), frozenset(), "", metadata_keys=self._keys)
        names = {place for line in found.lines for place in places_of(line.name)}
        names |= {record_place(ARTIFACTS, id) for id in found.artifacts}
        names |= {record_place(SESSIONS, id) for id in found.sessions}
        subject = SubjectRows(entry.with_places(dict.fromkeys(names, 0)))
        async for row in scan_rows(self._engine.context.backend, EVENTS, (tenant,)):
            if subject.includes(row, read_detail(self._engine, row)):
                time, kind, actor, action, target, outcome = row.columns[:6]
                place, _, key = str(target).rpartition(BETWEEN)
                document = {
                    "time": to_datetime(int(time)).isoformat(),
                    "kind": kind,
                    "actor": actor,
                    "action": action,
                    "place": place_of(place or str(row.key[1])),
                    "key": key,
                    "outcome": outcome,
                }
                if row.body:
                    packed = open_body(row, self._engine.context.max_bytes)
                    document["detail"] = plain_json.to_plain(packed)
                yield document
