"""Writing threads to a file: as they are, to be imported elsewhere; or their states, for other tools to read."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import BlockingCall, Delete, Get
from holdfast.backends.paging import scan_rows
from holdfast.backends.registry import backend_for
from holdfast.backends.tables import LINES, TABLES
from holdfast.engine.cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.engine import Engine
from holdfast.engine.model.json_diff import tree_of
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.step_info import StepInfo as StepHead
from holdfast.engine.types import Checkpoint
from holdfast.maintenance.archive.format import (
    EXPORTED,
    VERSION,
    ArchiveHeader,
    ArchiveWriter,
    Place,
    Progress,
    ThreadBegin,
    ThreadEnd,
    row_record,
)

_CACHE_BYTES = 8 << 20
_STATES = 32
"""How many states are read together."""


class ExportReport(NamedTuple):
    """What an export wrote: how many threads (namespaces are threads of their own), how many rows or states of them,
    how many bytes before compression; and the names of threads that kept changing meanwhile, whose newest checkpoints
    may be missing."""

    threads: int
    records: int
    bytes: int
    changing: tuple[str, ...] = ()


Show = Callable[[Line, StepHead], Checkpoint]
"""Makes a checkpoint of what is known of a step."""


@asynccontextmanager
async def passing(engine: Engine) -> AsyncIterator[Engine]:
    """A store for what is on its way, which is removed in the end."""
    made: BlockingCall[tempfile.TemporaryDirectory[str]] = BlockingCall(
        lambda: tempfile.TemporaryDirectory(prefix="holdfast-")
    )
    folder = await made
    try:
        url = f"sqlite:///{Path(folder.name) / 'passing.db'}"
        backend = await backend_for(url).open(url, synchronous="normal")
        try:
            yield Engine(EngineContext(backend, cache=MemoryCache(_CACHE_BYTES), codec=engine.context.codec))
        finally:
            await backend.close()
    finally:
        await BlockingCall(folder.cleanup)


async def export_threads(engine: Engine, lines: Sequence[Line], place: Place, tell: Progress | None) -> ExportReport:
    """Write lines to a file, as they are. Each is copied first, and so compared and verified, and then written."""
    threads = records = 0
    changing: list[str] = []
    sink = ArchiveWriter(place)
    try:
        await sink.write(ArchiveHeader(VERSION, datetime.now(UTC).isoformat(timespec="seconds")))
        async with passing(engine) as between:
            for number, line in enumerate(lines, 1):
                copied = await StoreCopier(engine, between).copy(line.tenant, [line])
                if copied.threads:  # it was not deleted meanwhile
                    threads, changing = threads + 1, [*changing, *copied.changing]
                    records += await _write(between, line, sink)
                    await between.context.backend.apply([Delete(space, tuple(line)) for space in TABLES])
                    between.context.cache.drop_all(line)
                if tell is not None:
                    tell(number, len(lines), line.name)
        await sink.seal(threads, records)
        await sink.finish()
    finally:
        sink.close()
    return ExportReport(threads, records, sink.bytes, tuple(changing))


async def _write(between: Engine, line: Line, sink: ArchiveWriter) -> int:
    backend, count = between.context.backend, 0
    ((found,),) = await backend.read([Get(LINES, [tuple(line)])])
    await sink.write(ThreadBegin(line.tenant, line.name, tuple(int(column) for column in found.columns)))
    for space in EXPORTED:
        async for row in scan_rows(backend, space, tuple(line)):
            await sink.write(row_record(space, row))
            count += 1
    await sink.write(ThreadEnd(count))
    return count


# States alone -------------------------------------------------------------------------------------------------------


async def export_states(
    engine: Engine, lines: Sequence[Line], place: Place, show: Show, tell: Progress | None
) -> ExportReport:
    """Write the state of every checkpoint to a file, each as one line of JSON, from a thread's latest to its first."""
    threads = records = 0
    sink = ArchiveWriter(place)
    try:
        for number, line in enumerate(lines, 1):
            threads += 1
            async for document in _states(engine, line, show):
                await sink.write_line(msgspec.json.encode(document))
                records += 1
            if tell is not None:
                tell(number, len(lines), line.name)
        await sink.finish()
    finally:
        sink.close()
    return ExportReport(threads, records, sink.bytes)


async def _states(engine: Engine, line: Line, show: Show) -> AsyncIterator[dict[str, Any]]:
    before = ""
    while True:
        found = await engine.lines.history(line, before=before, limit=_STATES)
        points = [StepRef.of(row) for row in found]
        states = await engine.states.series(line, points)
        for head, packed in zip(await engine.step_info.describe(line, points, found), states, strict=True):
            shown = show(line, head)
            yield {
                "thread": shown.thread,
                "checkpoint": shown.id,
                "parent": shown.parent,
                "merged": shown.merged,
                "branch": shown.branch,
                "step": shown.step,
                "time": shown.time.isoformat(),
                "kind": shown.kind,
                "hash": shown.hash,
                "metadata": engine.context.codec.to_json(dict(shown.metadata)),
                "state": tree_of(packed, {}),
            }
        if len(found) < _STATES:
            return
        before = points[-1].id
