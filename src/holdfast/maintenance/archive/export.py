"""Exporting threads to a file: their rows, to be imported elsewhere; or their states, for other tools."""

from __future__ import annotations

import os
import shutil
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.backends.interface import BlockingCall, Delete, Get, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import EVENTS, LINES, STEPS, TABLES, Table
from holdfast.codec import plain_json
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.line_stream import LINE_TABLES, stream_line
from holdfast.engine.copy.short_lines import GROUP, read_short_lines, sound_lines
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, place_of
from holdfast.engine.integrity.check import LineRows
from holdfast.engine.line_walk import pages_of
from holdfast.engine.model.attribution import mark_after, only_marked
from holdfast.engine.model.json_diff import tree_of
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.packed_state import PackedMap, flatten
from holdfast.engine.namespaces import line_kind, short_name
from holdfast.engine.row_format import Line, StepRef, open_body, open_step
from holdfast.engine.step_info import StepInfo
from holdfast.engine.step_info import StepInfo as StepHead
from holdfast.engine.types import Checkpoint, Progress, to_datetime
from holdfast.maintenance.archive.format import (
    PURPOSE,
    VERSION,
    ArchiveFile,
    ArchiveHeader,
    ArchiveWriter,
    ThreadEnd,
    row_record,
    thread_record,
)
from holdfast.maintenance.erasure.audit_rows import SubjectRows, places_of, read_detail, record_place
from holdfast.maintenance.erasure.finder import SubjectData, SubjectFinder
from holdfast.maintenance.erasure.mixed_lines import is_message
from holdfast.security.audit.erasure_ledger import LedgerEntry, digest_subject
from holdfast.security.encryption.file_key import new_file_key
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.records import ArtifactRecords
from holdfast.state.sessions.records import LINE as SESSIONS
from holdfast.state.sessions.records import SessionRecords

_CACHE_BYTES = 8 << 20
_STATES = 32
"""The number of states that are read together."""


class ExportReport(msgspec.Struct, frozen=True):
    """The result of an export: the number of threads (namespaces are threads of their own), of rows or states, and of
    bytes before compression; and the names of threads that kept changing, whose newest checkpoints may be missing."""

    threads: int
    records: int
    bytes: int
    changing: tuple[str, ...] = ()


ToCheckpoint = Callable[[Line, StepHead], Checkpoint]
"""Makes a checkpoint from the information about a step."""


@asynccontextmanager
async def scratch_store(engine: Engine) -> AsyncIterator[Engine]:
    """Open a temporary store, which is removed at the end; of a process that is killed, by the next one."""
    folder = await BlockingCall(ScratchFolder)
    try:
        url = f"sqlite:///{folder.path / 'scratch.db'}"
        backend = await backend_for(url).open(url, synchronous="normal")
        try:
            yield Engine(
                EngineContext(backend, MemoryCache(_CACHE_BYTES), engine.context.codec, rows=engine.context.rows)
            )
        finally:
            await backend.close()
    finally:
        await BlockingCall(folder.remove)


async def export_threads(
    engine: Engine, lines: AsyncIterator[Line], total: int, file: ArchiveFile, progress: Progress | None
) -> ExportReport:
    """Write the rows of lines to a file, verified: of short ones together, in memory; any other is first copied to a
    scratch store. `total` is about how many there are."""
    done = threads = records = 0
    changing: list[str] = []
    key = await new_file_key(engine, PURPOSE)
    async with ArchiveWriter(file, key) as archive:
        sealed = None if key is None else dict(key.wrapped)
        await archive.write(ArchiveHeader(VERSION, datetime.now(UTC).isoformat(timespec="seconds"), sealed))
        async with scratch_store(engine) as scratch:
            async for page in pages_of(lines, GROUP):
                while page:
                    sound = await sound_lines(engine.context, await read_short_lines(engine.context, page))
                    for rows in sound.values():
                        if own := rows.get(LINES):  # it still exists
                            threads += 1
                            records += await _write(own[0], _each_row(rows), archive)
                    if not sound:
                        line = page[0]
                        report = await StoreCopier(engine, scratch).copy(line.tenant, [line])
                        if report.threads:
                            threads, changing = threads + 1, [*changing, *report.changing]
                            ((found,),) = await scratch.context.backend.read([Get(LINES, [tuple(line)])])
                            records += await _write(found, stream_line(scratch.context.backend, line), archive)
                            await scratch.context.backend.apply([Delete(table, tuple(line)) for table in TABLES])
                            scratch.context.cache.drop_all(line)
                    for line in sound or page[:1]:
                        done += 1
                        if progress is not None:
                            progress(done, max(done, total), line.name)
                    del page[: len(sound) or 1]
        await archive.seal(threads, records)
    return ExportReport(threads, records, archive.bytes, tuple(changing))


async def _each_row(rows: LineRows) -> AsyncIterator[tuple[Table, Row]]:
    for table in LINE_TABLES:
        for row in rows.get(table, ()):
            yield table, row


async def _write(own: Row, rows: AsyncIterator[tuple[Table, Row]], archive: ArchiveWriter) -> int:
    """Write a line, and return the number of its rows."""
    count = 0
    await archive.write(thread_record(own))
    async for table, row in rows:
        await archive.write(row_record(table, row))
        count += 1
    await archive.write(ThreadEnd(count))
    return count


# States alone -------------------------------------------------------------------------------------------------------


async def export_states(
    engine: Engine,
    lines: AsyncIterator[Line],
    total: int,
    file: ArchiveFile,
    to_checkpoint: ToCheckpoint,
    progress: Progress | None,
) -> ExportReport:
    """Write the state of every checkpoint to a file, one line of JSON each, the latest of a thread first."""
    done = records = 0
    async with ArchiveWriter(file) as archive:
        async for line in lines:
            async for document in _states(engine, line, to_checkpoint):
                await archive.write_line(msgspec.json.encode(document))
                records += 1
            done += 1
            if progress is not None:
                progress(done, max(done, total), line.name)
    return ExportReport(done, records, archive.bytes)


async def _states(engine: Engine, line: Line, to_checkpoint: ToCheckpoint) -> AsyncIterator[dict[str, Any]]:
    async for head, packed in stream_states(engine, line):
        checkpoint = to_checkpoint(line, head)
        yield {
            "thread": checkpoint.thread,
            "checkpoint": checkpoint.id,
            "parent": checkpoint.parent,
            "merged": checkpoint.merged,
            "branch": checkpoint.branch,
            "step": checkpoint.step,
            "time": checkpoint.time.isoformat(),
            "kind": checkpoint.kind,
            "hash": checkpoint.hash,
            "metadata": engine.context.codec.to_json(dict(checkpoint.metadata)),
            "state": tree_of(packed, {}),
        }


async def stream_states(engine: Engine, line: Line) -> AsyncIterator[tuple[StepHead, PackedMap]]:
    """Yield every state of a line, the latest first."""
    before = ""
    while True:
        found = await engine.lines.history(line, before=before, limit=_STATES)
        points = [StepRef.of(row) for row in found]
        states = await engine.states.series(line, points)
        for each in zip(await engine.step_info.describe(line, points, found), states, strict=True):
            yield each
        if len(found) < _STATES:
            return
        before = points[-1].id


# A temporary folder with data. What a process left that was killed, the next one removes -----------------------------


with suppress(ImportError):  # on Windows
    import fcntl

_PREFIX = "holdfast-scratch-"
_LOCK = "lock"


class ScratchFolder:
    """A folder that only this user can read, locked as long as the process lives."""

    path: Path

    def __init__(self) -> None:
        _remove_leftovers()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Another process may just take it for one that was left.
            if _acquire(self._lock) and (self.path / _LOCK).exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_leftovers() -> None:
    """Remove the folders of processes of this user that were killed."""
    if os.name == "nt":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _acquire(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _acquire(lock: int) -> bool:
    """Lock a file. Returns False if another process has it."""
    if os.name == "nt":
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
