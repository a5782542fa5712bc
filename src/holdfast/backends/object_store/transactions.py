"""Applies batches on several shards: a part is appended to the log of each, and one object commits them.

Until that object exists, readers ignore the parts, and no process writes after them. If the writer dies in between,
another process creates the object after a while, and aborts the transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack

from holdfast.backends.batch_eval import evaluate
from holdfast.backends.interface import Batch, key_of
from holdfast.backends.object_store.object_names import ShardNames, folder
from holdfast.backends.object_store.object_storage import check_deadline, clock, gather_limited
from holdfast.backends.object_store.query import QueryRunner, ShardViews
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import LogEntryDraft, RetryLimit, ShardView, ViewOutdated, fill_draft
from holdfast.backends.object_store.turns import LOSSES
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.backends.tables import Key
from holdfast.errors import OutcomeUnknownError

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5


def find_shards(batch: Batch) -> tuple[set[ShardNames], set[Key]]:
    """Find the shards that a batch names, and the prefixes that are shorter than a shard."""
    names: set[ShardNames] = set()
    wide: set[Key] = set()
    for change in batch:
        if len(start := key_of(change)) >= 2:
            names.add(_names(start))
        else:
            wide.add(start)
    return names, wide


class ShardTransactions:
    """Applies batches on several shards."""

    def __init__(self, shard_log: ShardLog, queues: ShardQueues, answers: QueryRunner) -> None:
        self._log = shard_log
        self._queues = queues
        self._queries = answers

    async def apply(self, batch: Batch, named: set[ShardNames], wide: set[Key]) -> int | None:
        """Apply a batch, as in `Backend.apply`."""
        pause = _FIRST_PAUSE
        retry_limit = RetryLimit()
        async with AsyncExitStack() as turn:
            for lost in itertools.count(1):
                check_deadline()
                names = set(named)
                for prefix in wide:
                    names.update(await self._queries.find_shards(prefix))
                done, refused = await self._attempt_locked(batch, sorted(names), wide, lost > 1, retry_limit)
                if done:
                    return refused
                if lost == LOSSES:
                    await turn.enter_async_context(self._log.turns.turn([folder(each) for each in names]))
                elif lost % LOSSES == 0:
                    await self._log.turns.renew([folder(each) for each in names])
                pause = _FIRST_PAUSE if lost >= LOSSES else min(2 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that clients do not retry in step
        raise AssertionError  # never reached

    async def _attempt_locked(
        self,
        batch: Batch,
        names: Sequence[ShardNames],
        wide: set[Key],
        one_by_one: bool,
        retry_limit: RetryLimit,
    ) -> tuple[bool, int | None]:
        """Try to apply a batch while no other task of this process writes to its shards."""
        async with AsyncExitStack() as stack:
            for each in names:
                queue = await stack.enter_async_context(self._queues.queue(each))
                await stack.enter_async_context(queue.lock)
            try:
                return await self._attempt(batch, names, wide, one_by_one)
            except ViewOutdated as outdated:
                retry_limit.check(outdated)
                for each in names:
                    self._log.forget_shard(folder(each))
                return False, None

    async def _attempt(
        self, batch: Batch, names: Sequence[ShardNames], wide: set[Key], one_by_one: bool
    ) -> tuple[bool, int | None]:
        """Try to apply a batch. Returns whether that succeeded, and the outcome."""
        views = dict(zip(names, await gather_limited([self._read_writable(each) for each in names]), strict=True))
        id = secrets.token_hex(16)
        refused, drafts = _draft_entries(batch, ShardViews(views), id)
        if refused is None and any(drafts.values()):
            return await self._commit(id, views, drafts, wide, one_by_one), None
        # A refusal, and that there is nothing to do, are answers too: they need a snapshot.
        refused, drafts = await self._queries.on_snapshot(set(names), lambda at: _draft_entries(batch, at, id))
        if refused is not None:
            return True, refused
        return not any(drafts.values()) and await self._are_all_shards(wide, names), None

    async def _read_writable(self, names: ShardNames) -> ShardView:
        view = await self._log.read_shard(folder(names), names)
        await self._log.make_writable(view)
        return view

    async def _are_all_shards(self, wide: set[Key], names: Collection[ShardNames]) -> bool:
        """Whether there are no other shards: one may be new, with a batch that these have a part of."""
        found = [await self._queries.find_shards(prefix) for prefix in wide]
        return all(each in names for in_prefix in found for each in in_prefix)

    async def _commit(
        self,
        id: str,
        views: dict[ShardNames, ShardView],
        drafts: dict[ShardNames, LogEntryDraft],
        wide: set[Key],
        one_by_one: bool,
    ) -> bool:
        """Append the parts, and commit them. False if another process wrote to a shard."""
        shard_log = self._log
        began = clock()
        if len(drafts) == 1:
            ((only, draft),) = drafts.items()
            draft.entry.transaction = ""
            return await self._are_all_shards(wide, views) and await self._queues.append(views[only], draft)
        adding = [shard_log.append(views[each], draft) for each, draft in drafts.items()]
        try:
            added = all(await gather_limited(adding, 1 if one_by_one else len(adding)))
            whole = added and await self._are_all_shards(wide, views)
        except BaseException:
            # So that others need not wait. If this fails too, they abort it after a while.
            await shard_log.decide(id, committed=False)
            raise
        committed = await shard_log.decide(id, whole)
        if clock() - began > shard_log.grace / 2:
            raise OutcomeUnknownError(
                "this process was paused for so long that it is unknown whether a batch was applied",
                where=shard_log.where,
                hint="Check whether it was before you repeat it",
            )
        for each in drafts:
            pending = views[each].pending
            if pending is not None and pending.entry.transaction == id:
                views[each].decide(pending, committed)
        return committed


def _draft_entries(batch: Batch, at: ShardViews, id: str) -> tuple[int | None, dict[ShardNames, LogEntryDraft]]:
    """Evaluate a batch. Returns its outcome, and its part for each shard.

    Shards without changes have a part too: until the transaction is decided, no process can write after it, so that
    conditions still hold.
    """
    (refused,), effect = evaluate([batch], at.columns)
    drafts = {each: LogEntryDraft(view, id) for each, view in at.views.items()}
    for each, draft in drafts.items():
        fill_draft(draft, at.views[each], effect)
    return refused, drafts


def _names(key: Key) -> ShardNames:
    return str(key[0]), str(key[1])
