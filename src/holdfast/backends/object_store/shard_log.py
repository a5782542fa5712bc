"""Reading and writing one shard: following its log, adding to it, folding it.

Nothing is believed from memory alone. Whoever reads asks for the next name of the log; that it is not there tells that
nothing was missed. Whoever writes creates that name.

**Pauses.** What was folded is deleted after the time of grace, and its names are free again. A process that was paused
for long could then find a name free, or create it, and believe what is not so. So an answer only counts if it came
within half the time of grace after the process last saw how the shard stood; else it looks anew, from the start.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.bodies import BodyReader
from holdfast.backends.object_store.compaction import KEPT, PendingDeletions, build, plan
from holdfast.backends.object_store.entries import LogEntryDraft
from holdfast.backends.object_store.formats import (
    DECISION,
    ENTRY,
    FOLD,
    LAYOUT,
    VERSION,
    Decision,
    FoldObject,
    Garbage,
    LogEntry,
    StoreMarker,
    base_of,
    decode,
    encode,
)
from holdfast.backends.object_store.object_names import Names
from holdfast.backends.object_store.object_storage import ObjectStorage, check_deadline, clock, together
from holdfast.backends.object_store.shard_view import EPOCH, ShardView
from holdfast.backends.object_store.staleness import CreatedTooLate, ObjectMissing, StaleReadLimit, ViewOutdated
from holdfast.errors import ConfigError, CorruptError, UnsupportedError

_FIRST_LOOK = 256 << 10
"""How much of a fold is asked for before it is known how long its index is."""

_AHEAD = 8
_ROW_BYTES = 700
_VIEW_BYTES = 4_000
_LISTED_DOOMED = 16
_POLL = 0.005


class CacheSizes(NamedTuple):
    """How many bytes to remember: of rows, and of objects."""

    rows: int = 64 << 20
    objects: int = 64 << 20


class ShardLog:
    """The shards of a store, in its loop."""

    def __init__(
        self, blobs: ObjectStorage, where: str, grace: float, patience: float = 5.0, room: CacheSizes | None = None
    ) -> None:
        self.blobs = blobs
        self.where = where
        self.grace = grace
        self.patience = patience
        """For how many seconds to wait for somebody else's transaction before it is declared void."""
        self._room = room or CacheSizes()
        self._views: OrderedDict[str, ShardView] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0
        self.bodies = BodyReader(blobs, self._room.objects)
        self._garbage: deque[tuple[str, str, Garbage]] = deque()
        """What no fold lists any more and this process has to delete, with the folder and a token of the life."""

    async def start(self) -> None:
        """See that the place is a store of this kind; make it one if it is empty."""
        data = await self.blobs.get(object_names.FORMAT)
        if data is None:
            await self.blobs.create(object_names.FORMAT, encode(LAYOUT, StoreMarker(VERSION)))
            return
        try:
            layout = decode(LAYOUT, StoreMarker, data, object_names.FORMAT)
        except CorruptError as error:
            raise ConfigError(
                "the place holds something else", where=self.where, hint="Name a bucket, prefix or directory of its own"
            ) from error
        if layout.version != VERSION:
            raise UnsupportedError(
                f"the layout has version {layout.version}", where=self.where, hint="Use a newer release of Holdfast"
            )

    # Knowing a shard

    def known(self, shard: str) -> ShardView | None:
        """What is remembered of a shard, which may be out of date."""
        view = self._views.get(shard)
        if view is None:
            return None
        if clock() - view.looked > self.grace / 4:
            self.forget(view)  # an answer to what is asked now might come too late
            return None
        self._views.move_to_end(shard)
        self._weigh(view)
        return view

    def forget(self, view: ShardView) -> None:
        """Have a shard read anew next time."""
        if self._views.get(view.folder) is view:
            del self._views[view.folder]
            self._weight -= self._weights.pop(view.folder)

    def _weigh(self, view: ShardView) -> None:
        weight = _VIEW_BYTES + _ROW_BYTES * view.rows
        self._weight += weight - self._weights.get(view.folder, 0)
        self._weights[view.folder] = weight
        while len(self._views) > 1 and self._weight > self._room.rows:
            folder, _ = self._views.popitem(last=False)
            self._weight -= self._weights.pop(folder)

    async def fresh(self, shard: str, names: Names | None = None) -> ShardView:
        """A shard as it is now: nothing that was acknowledged before the call is missing."""
        view = self.known(shard)
        if view is not None:
            if names is not None and not view.token:
                view.names = names
            try:
                await self.catch_up(view)
            except ViewOutdated:
                self.forget(view)
            else:
                return view
        return await self._load(shard, names)

    async def catch_up(self, view: ShardView) -> None:
        """Follow a shard's log to its end. Raises `ViewOutdated` if that is not possible any more."""
        began = clock()
        if began - view.looked > self.grace / 2:
            raise ViewOutdated
        ahead = 1
        while True:
            if view.pending is not None:
                pending = view.pending
                made = await self.decided(pending.entry.transaction)
                if made is None:
                    break  # as of now it does not count, and nothing can come after it
                view.settle(pending, made)
                continue
            if view.full or not view.token:
                if not await self._take(view, view.next_name()):
                    break
                continue
            names = [
                object_names.entry(view.folder, view.token, position)
                for position in range(view.position, min(view.position + ahead, EPOCH))
            ]
            found = await together([self.blobs.get(name) for name in names])
            ended = False
            for name, data in zip(names, found, strict=True):
                ended = data is None
                if data is None or not view.awaits(name):
                    break
                self._absorb(view, name, data)
            if ended:
                break  # it was not there when it was asked for, whatever has come since
            ahead = min(2 * ahead, _AHEAD)
        if clock() - view.looked > self.grace / 2:
            raise ViewOutdated
        view.looked = max(view.looked, began)

    def confirmed(self, view: ShardView, there: set[str], began: float) -> bool:
        """Whether names that were listed show that nothing is missing; `began` is when the listing did."""
        pending = view.pending
        awaited = view.next_name() if pending is None else object_names.transaction(pending.entry.transaction)
        born = not view.token or object_names.birth(view.folder) in there
        if awaited in there or not born or clock() - view.looked > self.grace / 2:
            return False
        view.looked = max(view.looked, began)
        return True

    async def decided(self, id: str) -> bool | None:
        """Whether a transaction counts; None while that is open."""
        name = object_names.transaction(id)
        data = await self.blobs.get(name)
        return None if data is None else decode(DECISION, Decision, data, name).made

    async def decide(self, id: str, made: bool) -> bool:
        """Decide whether a transaction counts, unless it was decided; returns what was."""
        name = object_names.transaction(id)
        data = encode(DECISION, Decision(id, made, secrets.token_bytes(8)))
        while not await self.blobs.create(name, data):
            found = await self.decided(id)
            if found is not None:
                return found
            # Of two that come at the same time, a storage may refuse both: then it is still open.
            check_deadline()
            await asyncio.sleep(_POLL)
        return made

    async def clear(self, view: ShardView) -> None:
        """Have a shard ready to be written: nothing open in its last entry, and room in its log."""
        pause = _POLL
        while True:
            pending = view.pending
            if pending is None:
                if not view.full:
                    return
                await self.fold(view)
                continue
            made = await self.decided(pending.entry.transaction)
            if made is None and clock() - pending.seen > self.patience:
                made = await self.decide(pending.entry.transaction, made=False)
            if made is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.2)
            else:
                view.settle(pending, made)

    async def _take(self, view: ShardView, name: str) -> bool:
        """Take a birth or a fold, if it is there."""
        data = await self.described(name) if view.token else await self.blobs.get(name)
        if name != view.next_name():
            return True  # somebody else took it meanwhile
        if data is None or (not view.token and _life(data, name) == view.buried):
            return False
        self._absorb(view, name, data)
        return True

    def _absorb(self, view: ShardView, name: str, data: bytes) -> None:
        if view.token and view.full:
            fold = decode(FOLD, FoldObject, data, name)
            if fold.removed:
                raise ViewOutdated  # nothing is left of this life
            view.follow(fold, base_of(data, name))
            return
        entry = decode(ENTRY, LogEntry, data, name)
        if entry.stub:
            raise ViewOutdated  # it lives for long already
        view.absorb(entry, base_of(data, name), clock())
        self.bodies.remember(name, entry.token, data)

    async def _load(self, shard: str, names: Names | None) -> ShardView:
        """Read a shard from the start."""
        patience = StaleReadLimit()
        for attempt in itertools.count():
            began = clock()
            try:
                view = await self._read(shard, names)
                view.looked = began
                await self.catch_up(view)
            except ViewOutdated as stale:
                patience.bear(stale)
                await asyncio.sleep(_POLL * attempt)
                continue
            self._views[shard] = view
            self._views.move_to_end(shard)
            self._weigh(view)
            return view
        raise AssertionError  # counting does not end

    async def _read(self, shard: str, names: Names | None) -> ShardView:
        first, listed = await asyncio.gather(
            self.blobs.get(object_names.birth(shard)),
            self.blobs.listed(object_names.folds(shard)),
            return_exceptions=False,
        )
        if first is None:
            return ShardView(names or ("", ""), shard)
        born = decode(ENTRY, LogEntry, first, object_names.birth(shard))
        view = ShardView(born.names, shard)
        life = object_names.life_of(born.token)
        tokens = [blob.name.rpartition("/")[2] for blob in listed]
        tokens = sorted((token for token in tokens if object_names.life_of(token) == life), key=object_names.number_of)
        if tokens:
            await self._read_folds(view, tokens[-1])
            if view.removed:
                unborn = ShardView(born.names, shard)
                unborn.buried = life
                return unborn
        elif born.stub:
            raise ViewOutdated
        else:
            self._absorb(view, object_names.birth(shard), first)
        await self._read_log(view)
        return view

    async def _read_folds(self, view: ShardView, token: str) -> None:
        name = object_names.fold(view.folder, token)
        data = await self.described(name)
        if data is None:
            raise ViewOutdated
        fold = decode(FOLD, FoldObject, data, name)
        names = [object_names.fold(view.folder, ref.token) for ref in fold.refs]
        older = await together([self.blobs.get(name, 0, ref.base) for name, ref in zip(names, fold.refs, strict=True)])
        indexes = []
        for older_name, older_data in zip(names, older, strict=True):
            if older_data is None:
                raise ObjectMissing(older_name)
            indexes.append((decode(FOLD, FoldObject, older_data, older_name), base_of(older_data, older_name)))
        view.load([*indexes, (fold, base_of(data, name))])

    async def _read_log(self, view: ShardView) -> None:
        """Read all of an epoch's log at once that a listing shows."""
        there = {blob.name for blob in await self.blobs.listed(object_names.log(view.folder, view.token))}
        names = []
        for position in range(view.position, EPOCH):
            name = object_names.entry(view.folder, view.token, position)
            if name not in there:
                break
            names.append(name)
        found = await together([self.blobs.get(name) for name in names])
        for name, data in zip(names, found, strict=True):
            if data is None or not view.awaits(name):
                break
            self._absorb(view, name, data)

    async def described(self, name: str) -> bytes | None:
        """The start of an object, up to its bodies at least."""
        token = name.rpartition("/")[2]
        whole = self.bodies.known(name, token)
        if whole is not None:
            return whole
        data = await self.blobs.get(name, 0, _FIRST_LOOK)
        if data is None or len(data) < _FIRST_LOOK:
            if data is not None:
                self.bodies.remember(name, token, data)
            return data
        base = base_of(data, name)
        if base > len(data):
            rest = await self.blobs.get(name, len(data), base - len(data))
            return None if rest is None else data + rest
        return data

    # Adding to a shard

    async def append(self, view: ShardView, draft: LogEntryDraft) -> bool:
        """Add an entry to a shard that is as the view was when it was drafted. False where it is not so any more.

        Raises `CreatedTooLate` where it was, but perhaps not to what the shard is now.
        """
        name = draft.name
        if view.full or view.pending is not None or name != view.next_name():
            return False  # a reader has met what others did meanwhile
        if not view.token:
            draft.entry.token = object_names.new_life()
        data = encode(ENTRY, draft.entry, draft.bodies)
        made = await self._create(view, name, data)
        if made and name == view.next_name():  # else a reader has met it meanwhile
            self._absorb(view, name, data)
        return made

    async def _create(self, view: ShardView, name: str, data: bytes) -> bool:
        """Create what comes next in a shard. Raises `ViewOutdated` or `CreatedTooLate` where the answer is too late to
        be believed."""
        looked, began = view.looked, clock()
        made = await self.blobs.create(name, data)
        if clock() - looked > self.grace / 2:
            raise CreatedTooLate(name) if made else ViewOutdated
        if made:
            view.looked = max(view.looked, began)
        return made

    async def counts(self, view: ShardView, name: str, entry: LogEntry) -> bool | None:
        """Whether an entry that was created late is part of a shard, which was just read anew; None if none can tell.

        One that is not part of it is deleted.
        """
        if entry.id in view.entries or entry.id in view.before:
            return True
        if object_names.life_of(entry.token) != object_names.life_of(view.token):
            return None
        fold_name = object_names.fold(view.folder, entry.token)
        data = await self.described(fold_name)
        if data is not None:
            counted = entry.id in decode(FOLD, FoldObject, data, fold_name).entries
        else:
            # What was folded is deleted before its fold, but for what is large. So what is there came too late.
            large = sum(written.length for written in entry.written) >= KEPT
            counted = large and name in {view.locate(row).name for _, row in view.everything()}
            if not counted and (large or await self.blobs.get(name, 0, 1) is None):
                return None
        if not counted:
            await self.blobs.delete([name])
        return counted

    async def fold(self, view: ShardView, removed: bool = False) -> bool:
        """Fold a shard's epoch, which is full; or have that be the end of its life. False if another was first."""
        name, planned = view.next_name(), plan(view)
        bodies = await self.bodies.fetch([view.locate(row) for _, row, _ in planned.carried])
        now = time.time()
        expired = [doomed for doomed in view.doomed if now - doomed.time > self.grace]
        await self.dispose(view.folder, view.token, [name for doomed in expired for name in doomed.names])
        waiting = view.doomed[len(expired) :]
        listed = waiting[max(0, len(waiting) - _LISTED_DOOMED + 1) :]
        if name != view.next_name():
            return False  # a reader has met another's fold meanwhile
        settled = [settled for settled in view.settled if now - settled.time <= self.grace]
        data = build(view, planned, bodies, now, PendingDeletions(listed, settled, removed))
        if not await self._create(view, name, data):
            await self.catch_up(view)
            return False
        if removed:
            self.forget(view)
            return True
        self.bodies.remember(name, view.token, data)
        for doomed in waiting[: len(waiting) - len(listed)]:
            self._garbage.append((view.folder, view.token, doomed))
        if name == view.next_name():
            self._absorb(view, name, data)
        while self._garbage and now - self._garbage[0][2].time > self.grace:
            folder, token, doomed = self._garbage.popleft()
            await self.dispose(folder, token, doomed.names)
        return True

    async def dispose(self, shard: str, token: str, names: Sequence[str]) -> None:
        """Delete objects of a shard's life. Of its birth a stub is left: it says which life the shard has."""
        # The logs first: `counts` relies on it.
        await self.blobs.delete([f"{shard}/{name}" for name in names if name.startswith("log/")])
        await self.blobs.delete(
            [f"{shard}/{name}" for name in names if not name.startswith("log/") and name != "birth"]
        )
        if "birth" not in names:
            return
        name = object_names.birth(shard)
        data = await self.blobs.get(name)
        if data is None:
            return
        born = decode(ENTRY, LogEntry, data, name)
        if not born.stub and object_names.life_of(born.token) == object_names.life_of(token):
            stub = LogEntry(born.names, born.token, born.id, "", False, True, [], [])
            await self.blobs.put(name, encode(ENTRY, stub))


def _life(birth: bytes, name: str) -> str:
    return object_names.life_of(decode(ENTRY, LogEntry, birth, name).token)
