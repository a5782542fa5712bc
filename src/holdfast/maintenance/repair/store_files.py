"""A store's own files, put in order where they are damaged, so that rows can be read and written again.

A SQLite file is salvaged into a new one. In a store of files or objects, what can be read of a thread is written anew.
What was damaged is kept in both cases.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from typing import NamedTuple

from holdfast.backends.interface import Backend, Put
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.backends.sqlite.salvage import Salvaged, salvage
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.composite_urls import store_path
from holdfast.backends.wrappers.replication import ReplicatingBackend
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.row_format import is_intact
from holdfast.errors import CorruptError
from holdfast.maintenance.verify.verifier import VerifyReport


class FileRepairReport(NamedTuple):
    """What was done to the files: how many rows could be kept, how many places could not be read, and where what was
    damaged is now."""

    rows: int
    unreadable: int
    damaged: list[str]


def salvage_file(url: str, *, dry_run: bool = False) -> Salvaged | None:
    """Replace a SQLite file that is too damaged to be opened by what can be read of it, or only see what that would be.
    None if the URL is not that of a SQLite file."""
    path = store_path(url) if url.startswith("sqlite:") else None
    if path is None:
        return None
    if not dry_run:
        return salvage(str(path), is_intact)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        return salvage(str(path), is_intact, into=f"{folder}/dry-run.db")


async def put_in_order(engine: Engine, tenant: str) -> FileRepairReport | None:
    """See to the store's own files, since they are what is wrong. None if there is nothing that can be done."""
    backend = _innermost(engine.context.backend)
    if isinstance(backend, SQLiteBackend):
        path = backend.path
        done = await backend.at_rest(lambda: salvage(path, is_intact))
        engine.context.cache.clear()
        return FileRepairReport(done.rows, len(done.holes) + done.refused, [done.damaged])
    if isinstance(backend, ObjectStoreBackend):
        stamp = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        shards = await backend.damaged(tenant)
        renewed = [await backend.renew(shard, stamp) for shard in shards]
        engine.context.cache.clear()
        rows = sum(len(each.remains.rows) for each in renewed)
        return (
            FileRepairReport(rows, len(shards), [f"{backend.url}/{each.kept}" for each in renewed]) if renewed else None
        )
    return None


async def rehearse(engine: Engine, tenant: str, scratch: str) -> tuple[Backend, FileRepairReport] | None:
    """A store in a new file, with what would be there once the files were put in order; and what that would do."""
    backend = _innermost(engine.context.backend)
    if isinstance(backend, SQLiteBackend):
        path = backend.path
        done = await backend.at_rest(lambda: salvage(path, is_intact, into=scratch))
        return await SQLiteBackend.open(f"sqlite:///{scratch}"), FileRepairReport(
            done.rows, len(done.holes) + done.refused, []
        )
    if not isinstance(backend, ObjectStoreBackend):
        return None
    shards = await backend.damaged(tenant)
    if not shards:
        return None
    target = await SQLiteBackend.open(f"sqlite:///{scratch}", synchronous="normal")
    kept = 0
    try:
        for shard in await backend.shards(tenant):
            found = (await backend.remains(shard)).rows
            await target.apply([Put(space, row) for space, row in found])
            kept += len(found) if shard in shards else 0
    except BaseException:
        await target.close()
        raise
    return target, FileRepairReport(kept, len(shards), [])


async def are_damaged(engine: Engine) -> bool:
    """Whether the store itself finds something wrong with its files. That a copy lags behind is nothing wrong."""
    return bool(await found_by(_innermost(engine.context.backend)))


async def found_by(backend: Backend) -> list[str]:
    """What a store finds when it checks itself."""
    try:
        return await backend.check()
    except CorruptError as error:
        return [str(error)]


def seem_damaged(report: VerifyReport) -> bool:
    """Whether what was found in threads speaks for it."""
    return any(each.code in (FindingCode.UNREADABLE_ROWS, FindingCode.INDEX_MISMATCH) for each in report.damage)


def copies_of(backend: Backend) -> list[Backend]:
    """The copies that a store keeps of itself."""
    found: list[Backend] = []
    while isinstance(backend, Wrapper):
        found += [backend.remote] if isinstance(backend, ReplicatingBackend) else []
        backend = backend.inner
    return found


def _innermost(backend: Backend) -> Backend:
    """The store inside of wrappers that have one only."""
    while isinstance(backend, Wrapper):
        backend = backend.inner
    return backend
