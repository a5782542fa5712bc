"""Batches about several shards: a part is added to the log of each, and one object decides that they count.

Until that object is there, readers leave the parts out, and nobody writes after them. A writer that dies in between
is waited for only so long: then somebody else creates the object, and says that the parts do not count.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack

from holdfast.backends.batch_eval import evaluate
from holdfast.backends.interface import Batch, Delete, Expect
from holdfast.backends.object_store.entries import LogEntryDraft, fill
from holdfast.backends.object_store.object_names import Names, folder
from holdfast.backends.object_store.object_storage import check_deadline, clock, together
from holdfast.backends.object_store.query import QueryRunner, ShardViews
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import ShardView
from holdfast.backends.object_store.staleness import StaleReadLimit, ViewOutdated
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.backends.tables import Key
from holdfast.errors import OutcomeUnknownError

_LONGEST_PAUSE = 0.5


def shards_of(batch: Batch) -> tuple[set[Names], set[Key]]:
    """The shards that a batch names, and the short prefixes whose shards it does not name."""
    names: set[Names] = set()
    wide: set[Key] = set()
    for change in batch:
        if isinstance(change, Delete):
            start = change.prefix
        else:
            start = change.key if isinstance(change, Expect) else change.row.key
        if len(start) >= 2:
            names.add(_names(start))
        else:
            wide.add(start)
    return names, wide


class ShardTransactions:
    """Makes batches about several shards."""

    def __init__(self, core: ShardLog, lanes: ShardQueues, answers: QueryRunner) -> None:
        self._core = core
        self._lanes = lanes
        self._answers = answers

    async def apply(self, batch: Batch, named: set[Names], wide: set[Key]) -> int | None:
        """Make a batch. As in the port."""
        pause, one_by_one = 0.01, False
        patience = StaleReadLimit()
        while True:
            check_deadline()
            names = set(named)
            for prefix in wide:
                names.update(await self._answers.shards_under(prefix))
            async with AsyncExitStack() as stack:
                for each in sorted(names):
                    lane = await stack.enter_async_context(self._lanes.lane(each))
                    await stack.enter_async_context(lane.lock)
                try:
                    done, refused = await self._attempt(batch, sorted(names), wide, one_by_one)
                except ViewOutdated as stale:
                    patience.bear(stale)
                    for each in names:
                        known = self._core.known(folder(each))
                        if known is not None:
                            self._core.forget(known)
                    done, refused = False, None
            if done:
                return refused
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come back at once
            pause, one_by_one = min(2 * pause, _LONGEST_PAUSE), True

    async def _attempt(
        self, batch: Batch, names: Sequence[Names], wide: set[Key], one_by_one: bool
    ) -> tuple[bool, int | None]:
        """Whether it was done, and what came of it."""
        views = dict(zip(names, await together([self._ready(each) for each in names]), strict=True))
        id = secrets.token_hex(16)
        refused, drafts = _drafted(batch, ShardViews(views), id)
        if refused is None and any(drafts.values()):
            return await self._make(id, views, drafts, wide, one_by_one), None
        # To be refused is also an answer, as is that there is nothing to do: it has to be right as of one moment.
        refused, drafts = await self._answers.at_once(set(names), lambda at: _drafted(batch, at, id))
        if refused is not None:
            return True, refused
        return not any(drafts.values()) and await self._none_came(wide, names), None

    async def _ready(self, names: Names) -> ShardView:
        view = await self._core.fresh(folder(names), names)
        await self._core.clear(view)
        return view

    async def _none_came(self, wide: set[Key], names: Collection[Names]) -> bool:
        """Whether there are no more shards than these: one may have come with a batch that these have a part of."""
        found = [await self._answers.shards_under(prefix) for prefix in wide]
        return all(each in names for of_one in found for each in of_one)

    async def _make(
        self,
        id: str,
        views: dict[Names, ShardView],
        drafts: dict[Names, LogEntryDraft],
        wide: set[Key],
        one_by_one: bool,
    ) -> bool:
        """Add the parts, and decide that they count. False if another got in between."""
        core = self._core
        began = clock()
        if len(drafts) == 1:
            ((only, draft),) = drafts.items()
            draft.entry.transaction = ""
            return await self._none_came(wide, views) and await self._lanes.append(views[only], draft)
        adding = [core.append(views[each], draft) for each, draft in drafts.items()]
        try:
            added = all(await together(adding, 1 if one_by_one else len(adding)))
            whole = added and await self._none_came(wide, views)
        except BaseException:
            # Nobody has to wait for what will not come. If this fails too, they wait, and find out.
            await core.decide(id, made=False)
            raise
        made = await core.decide(id, whole)
        if clock() - began > core.grace / 2:
            raise OutcomeUnknownError(
                "this process was paused for so long that it cannot be told whether a batch was made",
                where=core.where,
                hint="Look whether it was before you do it again",
            )
        for each in drafts:
            pending = views[each].pending
            if pending is not None and pending.entry.transaction == id:
                views[each].settle(pending, made)
        return made


def _drafted(batch: Batch, at: ShardViews, id: str) -> tuple[int | None, dict[Names, LogEntryDraft]]:
    """What becomes of a batch, and its part for each shard.

    There is one also where nothing is to be changed: a condition holds, and what was deleted stays away, until all is
    decided, since nobody can write after the part.
    """
    (refused,), effect = evaluate([batch], at.columns)
    drafts = {each: LogEntryDraft(view, id) for each, view in at.views.items()}
    for each, draft in drafts.items():
        fill(draft, at.views[each], effect)
    return refused, drafts


def _names(key: Key) -> Names:
    return str(key[0]), str(key[1])
