"""Repair of the files of a store, so that rows can be read and written again.

A SQLite file is salvaged into a new one. In a store of files or objects, the readable rows of a thread are written
again. The damaged files stay in both cases.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator

import msgspec

from holdfast.backends.interface import Backend, Put, Row
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.object_store.salvage import SalvagedShard
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.sqlite.salvage import LostRows, SalvageReport, salvage
from holdfast.backends.urls import url_to_path
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.replication import ReplicatingBackend
from holdfast.engine.checked_rows import CHECKSUMS, RowCodec, stored_mark
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import FindingCode
from holdfast.errors import CorruptError
from holdfast.maintenance.verify.verifier import VerifyReport


class FileRepairReport(msgspec.Struct, frozen=True):
    """The repair of files: the number of rows that were kept, of places that could not be read, and the paths of the
    damaged files; by thread, what was lost of its log."""

    rows: int
    unreadable: int
    damaged: list[str]
    lost: list[LostRows] = []
    """Rows that are gone, as far as they are known."""
    lost_entries: dict[str, list[str]] | None = None


def salvage_file(url: str, *, dry_run: bool = False) -> SalvageReport | None:
    """Replace a SQLite file that is too damaged to be opened by one with everything that can be read of it.

    With `dry_run`, only report what that would be. Returns None if the URL is not that of a SQLite file.
    """
    path = url_to_path(url) if url.startswith("sqlite:") else None
    if path is None:
        return None
    if not dry_run:
        return salvage(str(path), CHECKSUMS.is_intact, mark=_marker(CHECKSUMS))
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        return salvage(str(path), CHECKSUMS.is_intact, into=f"{folder}/dry-run.db", mark=_marker(CHECKSUMS))


def _marker(rows: RowCodec) -> Callable[[str, list[str]], Row]:
    return lambda tenant, tables: stored_mark(rows, tenant, tables, time.time_ns())


async def repair_files(engine: Engine, tenant: str) -> FileRepairReport | None:
    """Repair the files of a store. Returns None if that is not possible."""
    backend, rows = _innermost(engine.context.backend), engine.context.rows
    if isinstance(backend, SQLiteBackend):
        path = backend.path
        done = await backend.while_closed(lambda: salvage(path, rows.is_intact, mark=_marker(rows)))
        engine.context.cache.clear()
        return FileRepairReport(done.rows, len(done.holes) + done.refused, [done.damaged], done.lost)
    if isinstance(backend, ObjectStoreBackend):
        stamp = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        shards = await backend.damaged_shards(tenant)
        renewed = [await backend.rebuild(shard, stamp) for shard in shards]
        engine.context.cache.clear()
        if not renewed:
            return None
        count = sum(len(each.salvaged.rows) for each in renewed)
        copies = [f"{backend.url}/{each.copies}" for each in renewed]
        return FileRepairReport(
            count, len(shards), copies, lost_entries=_lost_entries(each.salvaged for each in renewed)
        )
    return None


async def dry_run_files(engine: Engine, tenant: str, scratch: str) -> tuple[Backend, FileRepairReport] | None:
    """Return a store in a new file with the rows that a repair of the files would keep, and its report."""
    backend, rows = _innermost(engine.context.backend), engine.context.rows
    if isinstance(backend, SQLiteBackend):
        path = backend.path
        done = await backend.while_closed(lambda: salvage(path, rows.is_intact, into=scratch, mark=_marker(rows)))
        return await SQLiteBackend.open(f"sqlite:///{scratch}"), FileRepairReport(
            done.rows, len(done.holes) + done.refused, [], done.lost
        )
    if not isinstance(backend, ObjectStoreBackend):
        return None
    shards = await backend.damaged_shards(tenant)
    if not shards:
        return None
    target = await SQLiteBackend.open(f"sqlite:///{scratch}", synchronous="normal")
    damaged: list[SalvagedShard] = []
    try:
        for shard in await backend.shards(tenant):
            found = await backend.salvage(shard)
            await target.apply([Put(space, row) for space, row in found.rows])
            damaged += [found] if shard in shards else []
    except BaseException:
        await target.close()
        raise
    return target, FileRepairReport(
        sum(len(each.rows) for each in damaged), len(shards), [], lost_entries=_lost_entries(iter(damaged))
    )


async def are_damaged(engine: Engine) -> bool:
    """Return whether the store's own check has findings. A copy that lags behind is not one."""
    return bool(await own_findings(_innermost(engine.context.backend)))


async def own_findings(backend: Backend) -> list[str]:
    """Return the findings of the store's own check."""
    try:
        return await backend.check()
    except CorruptError as error:
        return [str(error)]


def seem_damaged(report: VerifyReport) -> bool:
    """Return whether findings in threads suggest that the files are damaged."""
    return any(each.code in (FindingCode.UNREADABLE_ROWS, FindingCode.INDEX_MISMATCH) for each in report.damage)


def copies_of(backend: Backend) -> list[Backend]:
    """Return the copies of a replicated store."""
    found: list[Backend] = []
    while isinstance(backend, Wrapper):
        found += [backend.remote] if isinstance(backend, ReplicatingBackend) else []
        backend = backend.inner
    return found


def _lost_entries(salvaged: Iterator[SalvagedShard]) -> dict[str, list[str]]:
    """Return what was lost of the log of each thread."""
    return {each.names[1]: each.lost for each in salvaged if each.names is not None and each.lost}


def _innermost(backend: Backend) -> Backend:
    """Return the store inside of wrappers."""
    while isinstance(backend, Wrapper):
        backend = backend.inner
    return backend
