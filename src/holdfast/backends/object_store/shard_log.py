"""Reads and writes shards: follows their logs, appends entries, and folds them.

The cache alone is never trusted. A reader requests the next name of the log; if it does not exist, the reader is up to
date. A writer creates that name.

**Pauses.** Folded objects are deleted after the grace period, and their names are free again. A process that was paused
for long could then find a name free, or create it, and draw the wrong conclusion. So an answer is only valid if it
comes within half the grace period after the process last read the shard; else the shard is read again from the start.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.compaction import LARGE_ENTRY, PendingDeletions, build_fold, plan_fold
from holdfast.backends.object_store.formats import (
    DECISION,
    ENTRY,
    FOLD,
    LAYOUT,
    VERSION,
    BodyLocation,
    BodyObject,
    Decision,
    FoldObject,
    Garbage,
    LogEntry,
    StoreMarker,
    bodies_start,
    checksum,
    damaged_error,
    decode,
    encode,
)
from holdfast.backends.object_store.object_names import ShardNames
from holdfast.backends.object_store.object_storage import PAGE, ObjectStorage, check_deadline, clock, gather_limited
from holdfast.backends.object_store.shard_view import (
    EPOCH_ENTRIES,
    BodyLookup,
    CreatedTooLate,
    LogEntryDraft,
    ObjectMissing,
    RetryLimit,
    ShardView,
    UndecidedEntry,
    ViewOutdated,
)
from holdfast.backends.object_store.turns import ShardTurns
from holdfast.backends.runtime.group_commit import copy_error
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.errors import ConfigError, CorruptError, DeniedError, UnsupportedError

_FIRST_READ = 256 << 10
"""How many bytes of a fold are read before the length of its index is known."""

_MAX_READ_AHEAD = 8
_ROW_BYTES = 700
_VIEW_BYTES = 4_000
_MAX_LISTED_GARBAGE = 16
_POLL_SECONDS = 0.005
_DAMAGE_SECONDS = 1.0
"""How long a damaged shard is not read again."""


class CacheSizes(NamedTuple):
    """The sizes of the caches in bytes: of rows, and of objects."""

    rows: int = 64 << 20
    objects: int = 64 << 20


class ShardLog:
    """The shards of a store, in its loop."""

    def __init__(
        self,
        storage: ObjectStorage,
        where: str,
        grace: float,
        transaction_timeout: float = 5.0,
        cache_sizes: CacheSizes | None = None,
    ) -> None:
        self.storage = storage
        self.where = where
        self.grace = grace
        self.transaction_timeout = transaction_timeout
        """How many seconds to wait for the transaction of another process before it is aborted."""
        self._cache_sizes = cache_sizes or CacheSizes()
        self._views: OrderedDict[str, ShardView] = OrderedDict()
        self._damaged: dict[str, tuple[Exception, float]] = {}
        """Damaged shards, with the error and its time. Who reads around damage asks hundreds of times."""
        self._weights: dict[str, int] = {}
        self._weight = 0
        self.bodies: BodyReader = BodyReader(storage, self._cache_sizes.objects)
        self.turns: ShardTurns = ShardTurns(storage)
        self._garbage: deque[tuple[str, str, Garbage]] = deque()
        """Garbage that no fold lists any more and this process has to delete, with the folder and a token."""

    async def start(self) -> None:
        """Check the version of the store, and that its storage creates no object that exists; create it if there is
        none."""
        data = await self.storage.get(object_names.FORMAT)
        if data is None:
            data = encode(LAYOUT, StoreMarker(VERSION))
            await self.storage.create(object_names.FORMAT, data)
        try:
            layout = decode(LAYOUT, StoreMarker, data, object_names.FORMAT)
        except CorruptError as error:
            raise ConfigError(
                "the location contains other data, not a store",
                where=self.where,
                hint="Use a bucket, prefix or directory that contains nothing else",
            ) from error
        if layout.version != VERSION:
            raise UnsupportedError(
                f"the layout has version {layout.version}", where=self.where, hint="Use a newer release of Holdfast"
            )
        await self._check_conditions(data)

    async def _check_conditions(self, data: bytes) -> None:
        """Refuse a storage on which writers would overwrite each other. If it does, this replaced equal bytes."""
        try:
            refused = await self.storage.refuses_existing(object_names.FORMAT, data)
        except DeniedError:
            return  # this user reads only
        if not refused:
            raise ConfigError(
                "the service ignores conditional writes (If-None-Match): writers would overwrite each other's saves",
                where=self.where,
                hint="Use a service, or a release of it, that honours them; see the guide about object storage",
            )

    # Reading a shard

    def cached(self, shard: str) -> ShardView | None:
        """Return a shard from the cache, which may be out of date."""
        view = self._views.get(shard)
        if view is None:
            return None
        if clock() - view.read_at > self.grace / 4:
            self.forget(view)  # the answer to a request might come too late
            return None
        self._views.move_to_end(shard)
        self._update_weight(view)
        return view

    def forget_shard(self, shard: str) -> None:
        """Remove all that is known of a shard."""
        self._damaged.pop(shard, None)
        if shard in self._views:
            self.forget(self._views[shard])

    def forget(self, view: ShardView) -> None:
        """Remove a shard from the cache."""
        if self._views.get(view.folder) is view:
            del self._views[view.folder]
            self._weight -= self._weights.pop(view.folder)

    def _update_weight(self, view: ShardView) -> None:
        weight = _VIEW_BYTES + _ROW_BYTES * view.rows
        self._weight += weight - self._weights.get(view.folder, 0)
        self._weights[view.folder] = weight
        while len(self._views) > 1 and self._weight > self._cache_sizes.rows:
            folder, _ = self._views.popitem(last=False)
            self._weight -= self._weights.pop(folder)

    async def read_shard(self, shard: str, names: ShardNames | None = None) -> ShardView:
        """Return a shard that is up to date: nothing that was acknowledged before the call is missing."""
        view = self.cached(shard)
        if view is not None:
            if names is not None and not view.token:
                view.names = names
            try:
                await self.catch_up(view)
            except (ViewOutdated, CorruptError):  # a repair may have replaced what this process has read
                self.forget(view)
            else:
                return view
        return await self._load(shard, names)

    async def catch_up(self, view: ShardView) -> None:
        """Read the log of a shard to its end. Raises `ViewOutdated` if that is not possible any more."""
        began = clock()
        if began - view.read_at > self.grace / 2:
            raise ViewOutdated
        ahead = 1
        while True:
            pending = view.pending
            if pending is not None:
                committed = await self.read_decision(pending.entry.transaction)
                if committed is None:
                    break  # it is not committed yet, and nothing can follow it
                view.decide(pending, committed)
            elif view.full or not view.token:
                if not await self._take_next(view, view.next_name()):
                    break
            else:
                positions = range(view.position, min(view.position + ahead, EPOCH_ENTRIES))
                names = [object_names.entry(view.folder, view.token, position) for position in positions]
                if not await self._add_entries(view, names) and view.pending is None:
                    break  # the first that is missing did not exist when it was requested
                ahead = min(2 * ahead, _MAX_READ_AHEAD)
        if clock() - view.read_at > self.grace / 2:
            raise ViewOutdated
        view.read_at = max(view.read_at, began)

    def confirm(self, view: ShardView, there: set[str], began: float) -> bool:
        """Whether a listing that started at `began` shows that a view is up to date."""
        pending = view.pending
        awaited = view.next_name() if pending is None else object_names.transaction(pending.entry.transaction)
        first = not view.token or object_names.first_object(view.folder) in there
        if awaited in there or not first or clock() - view.read_at > self.grace / 2:
            return False
        view.read_at = max(view.read_at, began)
        return True

    async def read_decision(self, id: str) -> bool | None:
        """Whether a transaction is committed; None while it is undecided."""
        name = object_names.transaction(id)
        data = await self.storage.get(name)
        return None if data is None else decode(DECISION, Decision, data, name).committed

    async def decide(self, id: str, committed: bool) -> bool:
        """Commit or abort a transaction, unless it is decided. Returns whether it is committed."""
        name = object_names.transaction(id)
        data = encode(DECISION, Decision(id, committed, secrets.token_bytes(8)))
        while not await self.storage.create(name, data):
            found = await self.read_decision(id)
            if found is not None:
                return found
            # Of two at the same time, a storage may refuse both: then it is still undecided.
            check_deadline()
            await asyncio.sleep(_POLL_SECONDS)
        return committed

    async def make_writable(self, view: ShardView) -> None:
        """Make a shard ready to be written: its last entry is decided, its epoch is not full, and nobody waits for a
        turn."""
        pause = _POLL_SECONDS
        if view.appended >= EPOCH_ENTRIES and not view.full:
            view.appended = 0
            if await self.turns.is_requested(view.folder):
                await self.turns.give_way(view.folder)
                await self.catch_up(view)
        while True:
            pending = view.pending
            if pending is None:
                if not view.full:
                    return
                await self.fold(view)
                continue
            committed = await self.read_decision(pending.entry.transaction)
            if committed is None and clock() - pending.read_at > self.transaction_timeout:
                committed = await self.decide(pending.entry.transaction, committed=False)
            if committed is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.2)
            else:
                view.decide(pending, committed)

    async def _take_next(self, view: ShardView, name: str) -> bool:
        """Add the first object or the next fold to a view, if it exists."""
        data = await self.read_description(name) if view.token else await self.storage.get(name)
        if name != view.next_name():
            return True  # another task has added it
        if data is None or (not view.token and _generation(data, name) == view.ended_generation):
            return False
        self._add(view, name, data)
        return True

    async def _add_entries(self, view: ShardView, names: Sequence[str]) -> bool:
        """Add entries of the log to a view, up to one that does not exist or whose transaction is undecided.

        Returns whether all of them exist.
        """
        found = await gather_limited([self.storage.get(name) for name in names])
        there = list(itertools.takewhile(lambda data: data is not None, found))
        entries = [decode(ENTRY, LogEntry, data or b"", name) for name, data in zip(names, there, strict=False)]
        pending = view.pending
        before = [] if pending is None else [pending.entry]
        ids = [entry.transaction for entry in (*before, *entries) if entry.transaction]
        decisions = dict(zip(ids, await gather_limited([self.read_decision(id) for id in ids]), strict=True))
        if pending is not None and (committed := decisions[pending.entry.transaction]) is not None:
            view.decide(pending, committed)
        for name, data, entry in zip(names, there, entries, strict=False):
            if name != view.next_name():
                return True  # another task has added it
            if view.pending is not None:  # it was decided, or nothing would follow it
                raise ObjectMissing(object_names.transaction(view.pending.entry.transaction))
            undecided = self._add_entry(view, name, data or b"", entry)
            committed = decisions.get(entry.transaction)
            if undecided is not None and committed is not None:
                view.decide(undecided, committed)
        return len(there) == len(names)

    def _add(self, view: ShardView, name: str, data: bytes) -> None:
        if not view.token or not view.full:
            self._add_entry(view, name, data, decode(ENTRY, LogEntry, data, name))
            return
        fold = decode(FOLD, FoldObject, data, name)
        if fold.removed:
            raise ViewOutdated  # this generation has ended
        view.add_fold(fold, bodies_start(data, name))

    def _add_entry(self, view: ShardView, name: str, data: bytes, entry: LogEntry) -> UndecidedEntry | None:
        """Add an entry to a view. Returns it if it is part of a transaction."""
        if entry.stub:
            raise ViewOutdated  # its content is in a fold
        view.add_entry(entry, bodies_start(data, name), clock())
        self.bodies.cache(name, entry.token, data)
        return view.pending

    async def _load(self, shard: str, names: ShardNames | None) -> ShardView:
        """Read a shard without the cache."""
        error, found_at = self._damaged.pop(shard, (None, 0.0))
        if error is not None and clock() - found_at < _DAMAGE_SECONDS:
            self._damaged[shard] = error, found_at
            raise copy_error(error)
        try:
            return await self._load_now(shard, names)
        except CorruptError as error:
            self._damaged[shard] = copy_error(error), clock()
            raise

    async def _load_now(self, shard: str, names: ShardNames | None) -> ShardView:
        retry_limit = RetryLimit()
        for attempt in itertools.count():
            began = clock()
            try:
                view, listed = await self._read(shard, names)
                view.read_at = began
                await self.catch_up(view)
                await self._check_complete(view, listed)
            except ViewOutdated as outdated:
                retry_limit.check(outdated)
                await asyncio.sleep(_POLL_SECONDS * attempt)
                continue
            self._views[shard] = view
            self._views.move_to_end(shard)
            self._update_weight(view)
            return view
        raise AssertionError  # never reached

    async def _read(self, shard: str, names: ShardNames | None) -> tuple[ShardView, list[str]]:
        """Read the folds and the log of a shard, and return also the names of its objects that a listing showed."""
        birth = object_names.first_object(shard)
        data, page = await asyncio.gather(self.storage.get(birth), self.storage.list_page(shard))
        listed = [info.name for info in page]
        if data is None:
            return ShardView(names or ("", ""), shard), listed
        if len(page) == PAGE:
            listed = [info.name for info in await self.storage.list_objects(object_names.folds(shard))]
        first = decode(ENTRY, LogEntry, data, birth)
        view = ShardView(first.names, shard)
        generation = object_names.generation_of(first.token)
        folds = f"{object_names.folds(shard)}/"
        tokens = [object_names.token_of(name, shard) for name in listed if name.startswith(folds)]
        last = max((token for token in tokens if object_names.generation_of(token) == generation), default="")
        if last:
            await self._read_folds(view, last)
            if view.removed:
                empty = ShardView(first.names, shard)
                empty.ended_generation = generation
                return empty, listed
        elif first.stub:
            raise ObjectMissing(object_names.fold(shard, first.token))
        else:
            self._add_entry(view, birth, data, first)
        after = f"{object_names.log(shard, view.token)}/!"  # before all numbers; some services skip a folder's own name
        while len(page) == PAGE:
            page = await self.storage.list_page(shard, after)
            listed += [info.name for info in page]
            after = listed[-1]
        there = set(listed)
        entries = [object_names.entry(shard, view.token, number) for number in range(view.position, EPOCH_ENTRIES)]
        await self._add_entries(view, list(itertools.takewhile(there.__contains__, entries)))
        return view, listed

    async def _check_complete(self, view: ShardView, listed: Sequence[str]) -> None:
        """Raise `ObjectMissing` if an object was listed that follows what could be read: one between is missing."""
        if not view.token:
            if not view.ended_generation and await self.lacks_first_object(view.folder, listed):
                raise ObjectMissing(object_names.first_object(view.folder))
            return
        generation = object_names.generation_of(view.token)
        end = (view.epoch, view.position)
        tokens = {name: object_names.token_of(name, view.folder) for name in listed}
        own = [name for name, token in tokens.items() if object_names.generation_of(token) == generation]
        if any(object_names.order_of(name, view.folder) >= end for name in own):
            pending = view.pending
            raise ObjectMissing(
                view.next_name() if pending is None else object_names.transaction(pending.entry.transaction)
            )

    async def lacks_first_object(self, shard: str, listed: Sequence[str]) -> bool:
        """Whether a shard without a first object has objects of a generation that has not ended."""
        if object_names.first_object(shard) in listed:
            return False
        ended: set[str] = set()
        generations: set[str] = set()
        for name in listed:
            token = object_names.token_of(name, shard)
            if name.startswith(f"{object_names.folds(shard)}/"):
                generations.add(object_names.generation_of(token))
                data = await self.read_description(name)
                try:
                    if data is not None and decode(FOLD, FoldObject, data, name).removed:
                        ended.add(object_names.generation_of(token))
                except (CorruptError, UnsupportedError):
                    continue
            elif name == object_names.entry(shard, token, 1):
                # A single other entry may be that of a writer that came too late.
                generations.add(object_names.generation_of(token))
        return bool(generations - ended)

    async def _read_folds(self, view: ShardView, token: str) -> None:
        name = object_names.fold(view.folder, token)
        data = await self.read_description(name)
        if data is None:
            raise ViewOutdated
        fold = decode(FOLD, FoldObject, data, name)
        names = [object_names.fold(view.folder, ref.token) for ref in fold.refs]
        older = await gather_limited(
            [self.storage.get(name, 0, ref.base) for name, ref in zip(names, fold.refs, strict=True)]
        )
        indexes = []
        for older_name, older_data in zip(names, older, strict=True):
            if older_data is None:
                raise ObjectMissing(older_name)
            indexes.append((decode(FOLD, FoldObject, older_data, older_name), bodies_start(older_data, older_name)))
        view.load_folds([*indexes, (fold, bodies_start(data, name))])

    async def read_description(self, name: str) -> bytes | None:
        """Read at least the header and the description of an object."""
        token = name.rpartition("/")[2]
        whole = self.bodies.cached(name, token)
        if whole is not None:
            return whole
        data = await self.storage.get(name, 0, _FIRST_READ)
        if data is None or len(data) < _FIRST_READ:
            if data is not None:
                self.bodies.cache(name, token, data)
            return data
        base = bodies_start(data, name)
        if base > len(data):
            rest = await self.storage.get(name, len(data), base - len(data))
            return None if rest is None else data + rest
        return data

    # Writing a shard

    async def append(self, view: ShardView, draft: LogEntryDraft) -> bool:
        """Append an entry to a shard. False if the shard has changed since the entry was drafted.

        Raises `CreatedTooLate` if it was created, but perhaps to a log that is not used any more.
        """
        name = draft.name
        if view.full or view.pending is not None or name != view.next_name():
            return False  # another task has read further entries
        if not view.token:
            draft.entry.token = object_names.new_generation()
        data = encode(ENTRY, draft.entry, draft.bodies)
        created = await self._create(view, name, data)
        view.appended += created
        if created and name == view.next_name():  # else another task has read it
            self._add(view, name, data)
        return created

    async def _create(self, view: ShardView, name: str, data: bytes) -> bool:
        """Create the next object of a shard. Raises `ViewOutdated` or `CreatedTooLate` if the answer comes too late."""
        read_at, began = view.read_at, clock()
        created = await self.storage.create(name, data)
        if clock() - read_at > self.grace / 2:
            raise CreatedTooLate(name) if created else ViewOutdated
        if created:
            view.read_at = max(view.read_at, began)
        return created

    async def is_counted(self, view: ShardView, name: str, entry: LogEntry) -> bool | None:
        """Whether an entry that was created late is part of a shard, which was just read; None if that is unknown.

        One that is not part of it is deleted.
        """
        if entry.id in view.entries or entry.id in view.previous_entries:
            return True
        if object_names.generation_of(entry.token) != object_names.generation_of(view.token):
            if name != object_names.first_object(view.folder):  # else it may be that of another generation
                await self.storage.delete([name])
            return None
        fold_name = object_names.fold(view.folder, entry.token)
        data = await self.read_description(fold_name)
        if data is not None:
            counted = entry.id in decode(FOLD, FoldObject, data, fold_name).entries
        else:
            # Folded entries are deleted before their fold, except large ones. So one that exists came too late.
            large = sum(written.length for written in entry.written) >= LARGE_ENTRY
            counted = large and name in {view.locate(row).name for _, row in view.all_rows()}
            if not counted and (large or await self.storage.get(name, 0, 1) is None):
                return None
        if not counted:
            await self.storage.delete([name])
        return counted

    async def fold(self, view: ShardView, removed: bool = False) -> bool:
        """Fold a full epoch, or end the generation with it. False if another process was first."""
        name, planned = view.next_name(), plan_fold(view)
        bodies = await self.bodies.fetch([view.locate(row) for _, row, _ in planned.carried])
        now = time.time()
        expired = [garbage for garbage in view.garbage if now - garbage.time > self.grace]
        await self.delete_objects(view.folder, view.token, [name for garbage in expired for name in garbage.names])
        waiting = view.garbage[len(expired) :]
        listed = waiting[max(0, len(waiting) - _MAX_LISTED_GARBAGE + 1) :]
        if name != view.next_name():
            return False  # another task has read the fold of another process
        settled = [settled for settled in view.decided_transactions if now - settled.time <= self.grace]
        data = build_fold(view, planned, bodies, now, PendingDeletions(listed, settled, removed))
        view.appended = 0
        created, requested = await asyncio.gather(self._create(view, name, data), self.turns.is_requested(view.folder))
        if not created:
            await self.catch_up(view)
        elif not removed:
            await self._finish_fold(view, name, data, waiting[: len(waiting) - len(listed)])
        if requested:
            await self.turns.give_way(view.folder)
        if created and removed:
            self.forget(view)
        return created

    async def _finish_fold(self, view: ShardView, name: str, data: bytes, unlisted: Sequence[Garbage]) -> None:
        """Add a fold that was created to its view, and delete old garbage. `unlisted` is not in the fold any more."""
        self.bodies.cache(name, view.token, data)
        for garbage in unlisted:
            self._garbage.append((view.folder, view.token, garbage))
        if name == view.next_name():
            self._add(view, name, data)
        while self._garbage and time.time() - self._garbage[0][2].time > self.grace:
            folder, token, garbage = self._garbage.popleft()
            await self.delete_objects(folder, token, garbage.names)

    async def delete_objects(self, shard: str, token: str, names: Sequence[str]) -> None:
        """Delete objects of a generation. The first object is replaced by a stub, which names the generation."""
        # The logs first: `is_counted` relies on it.
        await self.storage.delete([f"{shard}/{name}" for name in names if name.startswith("log/")])
        await self.storage.delete(
            [f"{shard}/{name}" for name in names if not name.startswith("log/") and name != "birth"]
        )
        if "birth" not in names:
            return
        name = object_names.first_object(shard)
        data = await self.storage.get(name)
        if data is None:
            return
        first = decode(ENTRY, LogEntry, data, name)
        if not first.stub and object_names.generation_of(first.token) == object_names.generation_of(token):
            stub = LogEntry(first.names, first.token, first.id, b"", "", False, True, [], [])
            await self.storage.put(name, encode(ENTRY, stub))


def _generation(birth: bytes, name: str) -> str:
    return object_names.generation_of(decode(ENTRY, LogEntry, birth, name).token)


_GAP = 32 << 10
"""Ranges of an object that are this close are read as one."""
_MAX_WHOLE = 512 << 10
"""Objects up to this size are read whole, and cached."""


class BodyReader:
    """Reads bodies, and caches objects: small objects whole, larger ones in as few ranges as possible.

    `max_bytes` is the size of the cache.
    """

    def __init__(self, storage: ObjectStorage, max_bytes: int) -> None:
        self.storage = storage
        self._objects = MemoryCache(max_bytes)
        """By name and token: the first object of each generation has the same name."""

    def cached(self, name: str, token: str) -> bytes | None:
        """Return an object from the cache, if it is there."""
        data: bytes | None = self._objects.get((name, token))
        return data

    def cache(self, name: str, token: str, data: bytes) -> None:
        """Cache an object, unless it would replace too many others."""
        if len(data) <= self._objects.max_bytes // 8:
            self._objects.put((name, token), data, len(data))

    async def fetch(self, lookups: Sequence[BodyLookup]) -> list[bytes]:
        """Read bodies. Raises `ViewOutdated` if an object does not exist any more."""
        by_name: dict[str, list[BodyLookup]] = {}
        for one in lookups:
            if one.location.length:
                by_name.setdefault(one.name, []).append(one)
        ranges: list[_Range] = []
        found: dict[tuple[str, BodyLocation], bytes] = {}
        for name, same_object in by_name.items():
            body_object, locations = same_object[0].body_object, [one.location for one in same_object]
            data = self.cached(name, body_object.token)
            if data is not None:
                found.update(
                    ((name, location), _slice_body(data, body_object.base + location.offset, location, name))
                    for location in locations
                )
            elif body_object.base + body_object.size <= _MAX_WHOLE:
                ranges.append(_Range(name, body_object, 0, body_object.base + body_object.size, locations))
            else:
                ranges += _merge_ranges(name, body_object, sorted(set(locations), key=lambda location: location.offset))
        read = await gather_limited([self.storage.get(one.name, one.start, one.stop - one.start) for one in ranges])
        for range_, data in zip(ranges, read, strict=True):
            if data is None:
                raise ObjectMissing(range_.name)
            if range_.start == 0:
                self.cache(range_.name, range_.body_object.token, data)
            base = range_.body_object.base - range_.start
            for location in range_.locations:
                found[range_.name, location] = _slice_body(data, base + location.offset, location, range_.name)
        return [found[one.name, one.location] if one.location.length else b"" for one in lookups]


@dataclass
class _Range:
    """A range of an object that is read in one request."""

    name: str
    body_object: BodyObject
    start: int
    stop: int
    locations: list[BodyLocation]


def _slice_body(data: bytes, start: int, location: BodyLocation, name: str) -> bytes:
    body = data[start : start + location.length]
    if len(body) != location.length or checksum(body) != location.check:
        raise damaged_error(name)
    return body


def _merge_ranges(name: str, body_object: BodyObject, locations: list[BodyLocation]) -> list[_Range]:
    """Merge sorted locations into ranges of the object."""
    ranges: list[_Range] = []
    for location in locations:
        start = body_object.base + location.offset
        if ranges and start - ranges[-1].stop <= _GAP:
            ranges[-1].stop = start + location.length
            ranges[-1].locations.append(location)
        else:
            ranges.append(_Range(name, body_object, start, start + location.length, [location]))
    return ranges
