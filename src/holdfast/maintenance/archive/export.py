"""Exporting threads to a file: their rows, to be imported elsewhere; or their states, for other tools."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.backends.interface import BlockingCall, Delete, Get, Row
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import LINES, TABLES, Table
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.line_stream import LINE_TABLES, stream_line
from holdfast.engine.copy.short_lines import GROUP, LineRows, read_short_lines, sound_lines
from holdfast.engine.engine import Engine
from holdfast.engine.line_walk import pages_of
from holdfast.engine.model.json_diff import tree_of
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.step_info import StepInfo as StepHead
from holdfast.engine.types import Checkpoint, Progress
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
from holdfast.security.encryption.file_key import new_file_key

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
                    sound = await sound_lines(await read_short_lines(engine.context, page))
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
