"""What deletes what nobody needs, and what checks what is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.entries import LogEntryDraft
from holdfast.backends.object_store.formats import FOLD, IN_FOLD, FoldObject, decode, missing
from holdfast.backends.object_store.object_storage import clock, together, within
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import BodyLookup, ShardView
from holdfast.backends.object_store.staleness import StaleReadLimit, ViewOutdated
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.errors import CorruptError, HoldfastError, UnsupportedError

_CHECKED_BYTES = 16 << 20
_SURELY_OVER = 600.0
"""After so many seconds, whoever wrote that a life has ended has also deleted its birth, or never will."""
_SURELY_AT_ONCE = 10.0


class _Times(NamedTuple):
    now: float
    grace: float

    def over(self, then: float) -> bool:
        """Whether the time of grace is over."""
        return self.now - then > self.grace


class GarbageCollector:
    """Goes through all shards."""

    def __init__(self, core: ShardLog, lanes: ShardQueues, timeout: float) -> None:
        self._core = core
        self._lanes = lanes
        self._timeout = timeout

    async def size(self) -> int:
        """How many bytes all objects have."""
        with within(self._timeout):
            return sum(blob.size for blob in await self._core.blobs.listed(""))

    async def check(self) -> list[str]:
        """Read everything anew, and say what is damaged or missing."""
        found: list[str] = []
        for shard in await self._shards():
            with within(self._timeout):
                try:
                    await self.check_shard(shard)
                except (CorruptError, UnsupportedError) as error:
                    found.append(str(error))
        return found

    async def tidy(self, grace: float | None = None) -> None:
        """Write anew what holds deleted rows, and delete what nobody needs since the time of grace."""
        times = _Times(time.time(), self._core.grace if grace is None else grace)
        with within(self._timeout):
            decided = await self._core.blobs.listed(object_names.TRANSACTIONS)
        needed: set[str] = set()
        failed: HoldfastError | None = None
        for shard in await self._shards():
            with within(self._timeout):
                try:
                    needed |= await self._tidy(shard, times)
                except (CorruptError, UnsupportedError) as error:
                    failed = error  # the others can be tidied all the same
        with within(self._timeout):
            if failed is None:
                old = [blob.name for blob in decided if times.over(blob.modified)]
                await self._core.blobs.delete([name for name in old if name.rpartition("/")[2] not in needed])
            await self._core.blobs.sweep(times.now - max(times.grace, 60.0))
        if failed is not None:
            raise failed

    async def _shards(self) -> list[str]:
        """The folders of all shards."""
        blobs = self._core.blobs
        with within(self._timeout):
            tenants = [name for name in await blobs.folders("") if object_names.is_tenant(name)]
            lines = await together([blobs.folders(tenant) for tenant in tenants])
        pairs = zip(tenants, lines, strict=True)
        return [f"{tenant}/{line}" for tenant, of_one in pairs for line in of_one if object_names.is_line(line)]

    # Checking

    async def check_shard(self, shard: str) -> None:
        """Read all of a shard anew. `CorruptError` if something of it is damaged or missing."""
        patience = StaleReadLimit()
        while True:
            core = ShardLog(self._core.blobs, self._core.where, self._core.grace)  # one that remembers nothing
            names = [blob.name for blob in await core.blobs.listed(shard)]
            tokens = [_token(name, shard) for name in names]
            view = await core.fresh(shard)
            if not view.token and await self._lacks_birth(view):
                raise missing(object_names.birth(shard))
            life = object_names.life_of(view.token)
            later = [token for token in tokens if token and life == object_names.life_of(token)]
            if any(object_names.number_of(token) > view.epoch for token in later):
                raise CorruptError("a fold is missing", where=shard, hint="Restore it from a backup or a mirror")
            log = f"{object_names.log(shard, view.token)}/"
            if any(int(name[len(log) :]) >= view.position for name in names if name.startswith(log)):
                raise CorruptError(
                    "an entry of a log is missing", where=shard, hint="Restore it from a backup or a mirror"
                )
            located = [view.locate(row) for _, row in view.everything()]
            try:
                for chunk in _chunks(located):
                    await core.bodies.fetch(chunk)
            except ViewOutdated as stale:
                patience.bear(stale)
            else:
                return

    async def _lacks_birth(self, view: ShardView) -> bool:
        """Whether a shard that seems not to be born has objects of a life that has not ended."""
        blobs = self._core.blobs
        listed = [blob.name for blob in await blobs.listed(view.folder)]
        if object_names.birth(view.folder) in listed:
            return False
        ended: set[str] = set()
        lives: set[str] = set()
        for name in listed:
            token = _token(name, view.folder)
            # Of a single entry, a writer that came much too late is the cause.
            if not name.startswith(f"{object_names.folds(view.folder)}/"):
                lives |= {object_names.life_of(token)} if name == object_names.entry(view.folder, token, 1) else set()
                continue
            lives.add(object_names.life_of(token))
            data = await self._core.described(name)
            try:
                if data is not None and decode(FOLD, FoldObject, data, name).removed:
                    ended.add(object_names.life_of(token))
            except (CorruptError, UnsupportedError):
                continue
        return bool(lives - ended)

    # Tidying

    async def _tidy(self, shard: str, times: _Times) -> set[str]:
        """Tidy one shard. Returns the transactions of which it still has to be known what was decided."""
        view = await self._core.fresh(shard)
        names = view.names
        async with self._lanes.lane(names) as lane, lane.lock:
            patience = StaleReadLimit()
            while True:
                try:
                    view = await self._core.fresh(shard)
                    return await self._tidy_held(view, times)
                except ViewOutdated as stale:
                    patience.bear(stale)
                    self._core.forget(view)

    async def _tidy_held(self, view: ShardView, times: _Times) -> set[str]:
        core = self._core
        if not view.token:
            await self._tidy_remains(view, times)
            return set()
        await core.clear(view)
        if view.dropped or (not view.rows and view.position):
            await self._end_epoch(view)
        if not view.rows and not view.position and times.over(view.folded) and await self._removed(view):
            await self._tidy_remains(ShardView(view.names, view.folder), times)
            return set()
        await self._delete_unneeded(view, times)
        recent = [settled for settled in view.settled if not times.over(settled.time)]
        return {*view.transactions, *(id for settled in recent for id in settled.names)}

    async def _end_epoch(self, view: ShardView) -> None:
        """Have the epoch end, and fold it."""
        if await self._ended(view):
            await self._core.clear(view)

    async def _ended(self, view: ShardView) -> bool:
        draft = LogEntryDraft(view, last=True)
        ended = await self._core.append(view, draft)
        if not ended:
            await self._core.catch_up(view)  # somebody writes: another time
        return ended

    async def _removed(self, view: ShardView) -> bool:
        """End the life of a shard in which nothing is. Who wants to write then begins another."""
        began = clock()
        if not (await self._ended(view) and await self._core.fold(view, removed=True)):
            return False
        # From here on nobody can go on with this life, nor begin another before its birth is deleted. So what is
        # deleted is this birth, unless this process is paused just here: then it is left to others.
        if clock() - began < _SURELY_AT_ONCE:
            await self._core.blobs.delete_once(object_names.birth(view.folder))
        return True

    async def _tidy_remains(self, view: ShardView, times: _Times) -> None:
        """Delete what is left of lives that ended."""
        blobs = self._core.blobs
        listed = await blobs.listed(view.folder)
        birth = object_names.birth(view.folder)
        if all(blob.name != birth for blob in listed):
            if await self._lacks_birth(view):
                raise missing(birth)
            # The fold that tells that a life has ended goes last: without it, its birth would be missed.
            old = sorted(blob.name for blob in listed if times.over(blob.modified))
            for kind in ("log", "fold"):
                await blobs.delete([name for name in old if name.startswith(f"{view.folder}/{kind}/")])
            return
        # Somebody begins a new life; or has ended one, and may still be about to delete its birth.
        ended = [blob.modified for blob in listed if _life(blob.name, view.folder) == view.buried != ""]
        if ended and times.now - max(ended) > max(_SURELY_OVER, times.grace):
            await blobs.delete_once(birth)

    async def _delete_unneeded(self, view: ShardView, times: _Times) -> None:
        core = self._core
        expired = [name for doomed in view.doomed if times.over(doomed.time) for name in doomed.names]
        waiting = {name for doomed in view.doomed if not times.over(doomed.time) for name in doomed.names}
        waiting |= _needed(view)
        listed = await core.blobs.listed(view.folder)
        folded = {blob.name.rpartition("/")[2]: blob.modified for blob in listed if "/fold/" in blob.name}
        quiet = times.over(view.folded)
        unneeded = [name for name in expired if name not in waiting]
        for blob in listed:
            name, token = blob.name[len(view.folder) + 1 :], _token(blob.name, view.folder)
            if name in waiting or name in expired or token == view.token or not times.over(blob.modified):
                continue
            # Unneeded since some fold up to the latest one; an entry, since the fold of its own epoch.
            other_life = bool(token) and object_names.life_of(token) != object_names.life_of(view.token)
            if quiet or other_life or (name.startswith("log/") and times.over(folded.get(token, 0.0))):
                unneeded.append(name)
        await core.dispose(view.folder, view.token, unneeded)


def _token(name: str, folder: str) -> str:
    """The token in the name of an object in a shard's folder; empty for its birth, which has none."""
    parts = name[len(folder) + 1 :].split("/")
    return parts[1] if len(parts) > 1 else ""


def _life(name: str, folder: str) -> str:
    return object_names.life_of(_token(name, folder))


def _needed(view: ShardView) -> set[str]:
    """The names, in the shard's folder, of what is needed besides the log of the epoch."""
    names = {object_names.fold("", ref.token)[1:] for ref in view.refs}
    if not view.epoch:
        names.add("birth")
    for (_, entry), holder in view.holders.items():
        name = object_names.fold("", holder.token) if entry == IN_FOLD else object_names.entry("", holder.token, entry)
        names.add(name[1:])
    return names


def _chunks(located: list[BodyLookup]) -> Iterator[list[BodyLookup]]:
    """Bodies in portions that fit into memory."""
    chunk: list[BodyLookup] = []
    size = 0
    for one in sorted(located, key=lambda one: (one.name, one.place.offset)):
        chunk.append(one)
        size += one.place.length
        if size > _CHECKED_BYTES:
            yield chunk
            chunk, size = [], 0
    yield chunk
