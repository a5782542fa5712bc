"""A store's own files, put in order where they are damaged, so that rows can be read and written again.

A SQLite file is salvaged into a new one. In a store of files, the folder of a thread that cannot be read is moved
aside. What was damaged is kept in both cases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.files import Aside
from holdfast.backends.files import Files as FileStore
from holdfast.backends.port import Backend, Ensure
from holdfast.backends.sqlite import SQLite
from holdfast.backends.sqlite.salvage import salvage
from holdfast.backends.wrap import Wrapper
from holdfast.engine.core import Engine
from holdfast.engine.findings import Code
from holdfast.engine.records import is_sound
from holdfast.upkeep.verifying import Report


class Files(NamedTuple):
    """What was done to the files: how many rows could be kept, how many places could not be read, and where what was
    damaged is now."""

    rows: int
    unreadable: int
    damaged: list[str]


async def put_in_order(engine: Engine, report: Report, *, dry_run: bool) -> Files | None:
    """See to the store's own files, if they are what is wrong. None if there is nothing that can be done."""
    wrong = [each for each in report.damage if each.code in (Code.UNREADABLE_ROWS, Code.STORE_CHECK)]
    wrong += [each for each in report.damage if each.code is Code.INDEX_MISMATCH]
    backend = _innermost(engine.ground.backend)
    if not wrong:
        return None
    if isinstance(backend, SQLite):
        if dry_run:
            return Files(0, len(wrong), [])
        path = backend.path
        done = await backend.at_rest(lambda: salvage(path, is_sound))
        engine.ground.cache.clear()
        return Files(done.rows, len(done.holes) + done.refused, [done.damaged])
    if isinstance(backend, FileStore):
        threads = sorted({each.thread for each in wrong if each.thread and each.code is Code.UNREADABLE_ROWS})
        if dry_run or not threads:
            return Files(0, len(wrong), []) if threads else None
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        moved = [await backend.move_aside(report.tenant, name, stamp) for name in threads]
        kept = await _write_anew(backend, [each for each in moved if each is not None])
        engine.ground.cache.clear()
        return Files(kept, len(wrong), [str(each.path) for each in moved if each is not None])
    return None


async def finish(engine: Engine) -> Files | None:
    """Finish what an interrupted repair began."""
    backend = _innermost(engine.ground.backend)
    if not isinstance(backend, FileStore):
        return None
    found = backend.unfinished()
    return Files(await _write_anew(backend, found), 0, [str(each.path) for each in found]) if found else None


async def _write_anew(backend: FileStore, moved: Sequence[Aside]) -> int:
    """Write the rows of what was moved aside. What is there by now stays."""
    kept = 0
    for aside in moved:
        await backend.apply([Ensure(space, row) for space, row in aside.rows])
        backend.finish(aside)
        kept += len(aside.rows)
    return kept


def _innermost(backend: Backend) -> Backend:
    """The store inside of wrappers that have one only."""
    while isinstance(backend, Wrapper):
        backend = backend.inner
    return backend
