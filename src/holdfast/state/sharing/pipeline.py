"""Pipelines: items that pass through stages, each handed on once.

A pipeline is one line: a queue of work for each stage (`work_queue`), the values of the items, the results, and the
items that failed too often. An item is removed from one queue and put into the next in one commit, by the worker that
holds it: whichever process dies when, an item is in one queue, and a stage's result is handed on once. A handler may be
called again for an item, if its worker died before it was done. Each step rewrites a few short keys; its cost does not
grow with the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine import trace_context, validation
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.pages import Page, paged
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError, VetoError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.sharing import work_queue
from holdfast.state.sharing.resource import NOT_REMOTE, RETAINED_STEPS, SharedOperations, SharedResource, wait_until
from holdfast.state.sharing.work_queue import LEASE, DueWork, HeldWork, RefusedWork, WorkClaim, take_work
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds, parse_seconds

R = TypeVar("R", "PipelineResult", "DeadItem")

_STAGES, _MAX_ITEMS = "stages", 1000


class PipelineStats(msgspec.Struct, frozen=True):
    """The numbers of items. `waiting` are ready now or later, by stage; `working` are held by a worker, which may
    have died."""

    waiting: dict[str, int]
    working: dict[str, int]
    dead: int
    results: int


class PipelineResult(msgspec.Struct, frozen=True):
    """The result of an item at the last stage."""

    id: str
    value: Any
    correlation: str


class DeadItem(msgspec.Struct, frozen=True):
    """An item that was tried too often: its stage, its value there, and the last error."""

    id: str
    stage: str
    value: Any
    error: str
    tries: int
    time: datetime


class PipelineTask(HeldWork):
    """An item at a stage, held by a worker. `value` is the result of the stage before."""

    def __init__(self, claim: WorkClaim, stage: str, record: dict[str, Any], where: Scope) -> None:
        super().__init__(claim, record, where)
        self.stage = stage

    def __repr__(self) -> str:
        return f"<Task {self.id} at {self.stage!r}>"


@declare(not_remote=NOT_REMOTE)
class PipelineOperations(SharedOperations):
    """Operations on a pipeline. `Pipeline` and `AsyncPipeline` have these as methods.

    The keys of its scope are the stages: writing the first one allows putting items, reading and writing a stage allows
    working there; reading the whole scope shows results and dead items.
    """

    def __init__(self, resource: SharedResource, stages: Sequence[str], tries: int) -> None:
        super().__init__(resource)
        names = [check_key(stage, "name of the stage") for stage in validation.require_several(stages, "stage")]
        if not names or len(set(names)) < len(names) or any("/" in name for name in names):
            raise InvalidError("a pipeline has one stage or more, each with a name of its own and no slash in it")
        if validation.require_count(tries, "number of tries") < 1:
            raise InvalidError("attempts must be at least 1")
        self.stages: tuple[str, ...] = tuple(names)
        self._tries = tries

    # Putting items in ---------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def put(self, item: Any, *, delay: Duration | None = None) -> str:
        """Put an item in, to be worked on now or later. Returns its id."""
        return (await PipelineOperations.put_many(self, [item], delay=delay))[0]

    @operation(changes=True)
    async def put_many(self, items: Iterable[Any], *, delay: Duration | None = None) -> list[str]:
        """Put items in, all or none. Returns their ids."""
        items = list(validation.require_several(items, "item"))
        if not 0 < len(items) <= _MAX_ITEMS:
            raise InvalidError(f"the number of items must be from 1 to {_MAX_ITEMS}, not {len(items)}")
        first, handle = self.stages[0], self._resource.handle
        trace, names = trace_context.current_or_new(), list[str]()
        wait = 0 if delay is None else parse_nanoseconds(delay, "delay", positive=True)
        packed = [
            pack_value(handle, "item", {"value": item, "correlation": trace.correlation, "cause": trace.cause})
            for item in items
        ]

        async def writes(view: ScopeView) -> list[KeyWrite]:
            start = 0 if view.point is None else view.point.seq + 1
            names[:] = [f"{start:012d}-{number:03d}" for number in range(len(items))]
            made = await self._check_stages(view)
            for name, value in zip(names, packed, strict=True):
                made.append(KeyWrite(_item_key(name), "put", packed=value))
                made.append(work_queue.put_work(handle, _queue_name(first), name, due=view.now + wait if wait else 0))
            return made

        await self._write(first, writes)
        return names

    # Working ------------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def take(self, stage: str, *, lease: Duration = LEASE, timeout: Duration | None = 0) -> PipelineTask | None:
        """Take an item to work on at a stage; None if there was none before the timeout. It is this worker's until
        the lease ends, and another's after that."""
        self._stage_index(stage)
        await self._resource.require("read", stage)
        handle = self._resource.handle_for(stage)
        take = partial(take_work, handle, self._resource.name, _queue_name(stage), lease, self._load)
        found = await wait_until(take, timeout)
        if found is None:
            return None
        await self._resource.handle.guard.saw(self.scope, (stage,))
        return PipelineTask(found[0], stage, found[1], self._resource.name)

    @operation(changes=True, not_in_scripts="It runs as long as there is work: call `take` and `done` in a loop.")
    async def work(
        self,
        stage: str,
        handler: Callable[[Any], Any],
        *,
        lease: Duration = LEASE,
        delay: Duration = 1.0,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> int:
        """Call a function with the value of each item at a stage, and hand on what it returns, until no item came for
        `timeout` seconds or `limit` were tried. Returns the number of items handed on.

        If the function raises, the item is tried again after `delay` seconds, then after twice as many, and so on. The
        lease is extended while the function runs. Its changes have the item as their cause.
        """
        tried = done = 0
        while limit is None or tried < limit:
            task = await PipelineOperations.take(self, stage, lease=lease, timeout=timeout)
            if task is None:
                break
            result, failure = None, None
            extend = partial(PipelineOperations.extend, self, task, lease)
            heartbeat = work_queue.heartbeat_of(self._resource.handle, lease, extend)
            try:
                with task.causing():
                    result = await work_queue.HandlerCall(handler, task.value, heartbeat)
            except Exception as error:  # noqa: BLE001 - it is stored with the item
                failure = error
            done += await self._finish(task, result, failure, delay)
            tried += 1
        return done

    @operation(changes=True)
    async def done(self, task: PipelineTask, result: Any = MISSING) -> None:
        """Hand an item on to the next stage, with the result of this one; without a result, unchanged. After the
        last stage it is among the results. `ConflictError` (code `lease-lost`) if it is not this worker's any more."""
        handle, claim = self._resource.handle, work_queue.claim_of(task, self._resource.name)
        after = self._stage_index(task.stage) + 1

        async def writes(view: ScopeView) -> list[KeyWrite]:
            record = await self._claimed_record(view, claim)
            if result is not MISSING:
                record = {**record, "value": result}
            made = [KeyWrite(claim.key, "delete")]
            if after < len(self.stages):
                if result is not MISSING:
                    made.append(KeyWrite(_item_key(task.id), "done", packed=pack_value(handle, "item", record)))
                return [*made, work_queue.put_work(handle, _queue_name(self.stages[after]), task.id)]
            key = f"result/{task.id}"
            return [
                *made,
                KeyWrite(_item_key(task.id), "delete"),
                KeyWrite(key, "done", packed=pack_value(handle, key, record)),
            ]

        await self._write(task.stage, writes)

    @operation(changes=True)
    async def fail(
        self,
        task: PipelineTask,
        error: BaseException | str = "",
        *,
        delay: Duration | None = None,
        retry: bool = True,
    ) -> bool:
        """Return an item that failed, to be tried again, at once or later. One that was tried too often, or is not
        to be tried again, is put with the dead ones. Returns whether it is tried again."""
        handle, claim = self._resource.handle, work_queue.claim_of(task, self._resource.name)
        again = retry and claim.tries < self._tries
        told = f"{type(error).__qualname__}: {error}" if isinstance(error, BaseException) else error
        wait = 0 if delay is None else parse_nanoseconds(delay, "delay", positive=True)

        async def writes(view: ScopeView) -> list[KeyWrite]:
            record = await self._claimed_record(view, claim)
            gone = KeyWrite(claim.key, "delete")
            if not again:
                return [gone, *self._bury(view, task.id, task.stage, record, told, claim.tries)]
            due = view.now + wait if wait else 0
            return [gone, work_queue.put_work(handle, claim.queue, task.id, claim.tries, due)]

        await self._write(task.stage, writes)
        return again

    @operation(changes=True)
    async def extend(self, task: PipelineTask, lease: Duration = LEASE) -> None:
        """Extend the lease of an item. `ConflictError` (code `lease-lost`) if it is another's."""
        claim = work_queue.claim_of(task, self._resource.name)
        await work_queue.extend_claim(self._resource.handle_for(task.stage), self._resource.name, claim, lease, "item")

    # What became of items -----------------------------------------------------------------------------------------

    @operation
    async def results(self, *, limit: int = 100, cursor: str | None = None) -> Page[PipelineResult]:
        """List results in the order in which the items were put in, a page of them."""

        def result(id: str, record: Any) -> PipelineResult:
            return PipelineResult(id, record["value"], record["correlation"])

        return await self._page("result/", result, limit=validation.require_count(limit, "limit"), cursor=cursor)

    @operation
    async def dead(self, *, limit: int = 100, cursor: str | None = None) -> Page[DeadItem]:
        """List the items that were tried too often, in the same order, a page of them."""

        def item(id: str, record: Any) -> DeadItem:
            time = to_datetime(record["time"])
            return DeadItem(id, record["stage"], record["value"], record["error"], record["tries"], time)

        return await self._page("dead/", item, limit=validation.require_count(limit, "limit"), cursor=cursor)

    @operation(changes=True)
    async def forget(self, ids: Iterable[str]) -> int:
        """Delete results and dead items that are not needed any more. Returns their number."""
        names = [check_key(id, "id of an item") for id in validation.require_several(ids, "id")]
        gone = 0

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal gone
            keys = [f"{where}/{id}" for id in names for where in ("result", "dead")]
            found = [KeyWrite(key, "delete") for key in keys if await view.version(key)]
            gone = len(found)
            if not found:
                raise work_queue.NoWork("there are none")
            return found

        try:
            await self._write(self.stages[-1], writes)
        except work_queue.NoWork:
            return 0
        return gone

    @operation(changes=True)
    async def requeue(self, id: str) -> None:
        """Try a dead item again, at the stage where it failed. Raises `NotFoundError`."""
        name = check_key(id, "id of the item")
        handle = self._resource.handle

        async def writes(view: ScopeView) -> list[KeyWrite]:
            found = await view.item(f"dead/{name}")
            if found is None:
                raise NotFoundError(
                    "there is no such item among those that used up their attempts",
                    where=f"{name} of {self._resource.name}",
                )
            stage, record = found.value["stage"], _record(found.value)
            self._stage_index(stage)
            return [
                KeyWrite(f"dead/{name}", "delete"),
                KeyWrite(_item_key(name), "put", packed=pack_value(handle, "item", record)),
                work_queue.put_work(handle, _queue_name(stage), name),
            ]

        await self._write(self.stages[0], writes)

    @operation
    async def stats(self) -> PipelineStats:
        """Return the numbers of items."""
        await self._resource.handle.guard.allow("read", self.scope, ())

        async def look(view: ScopeView) -> PipelineStats:
            waiting, working = {}, {}
            for stage in self.stages:
                lane = _queue_name(stage)
                waiting[stage] = await view.count(f"{lane}/ready/") + await view.count(f"{lane}/later/")
                working[stage] = await view.count(f"{lane}/held/")
            return PipelineStats(waiting, working, await view.count("dead/"), await view.count("result/"))

        return await self._read(look)

    @operation(changes=True)
    async def trim(self, keep: int = RETAINED_STEPS) -> int:
        """Delete the history but for the last steps, and free its space. Items and results are not affected. Returns
        the number of deleted steps."""
        return await self._resource.trim_history(keep)

    # Inside -------------------------------------------------------------------------------------------------------

    def _stage_index(self, stage: object) -> int:
        if stage not in self.stages:
            raise InvalidError(
                f"there is no stage {stage!r}", where=str(self._resource.name), hint=f"See {self.stages}"
            )
        return self.stages.index(stage)

    async def _check_stages(self, view: ScopeView) -> list[KeyWrite]:
        """Store the stages with the first item; later they must be the same."""
        found = await view.item(_STAGES)
        if found is None:
            return [KeyWrite(_STAGES, "begin", packed=pack_value(self._resource.handle, _STAGES, list(self.stages)))]
        if tuple(found.value) != self.stages:
            raise ConflictError(
                f"the pipeline has other stages: {', '.join(found.value)}",
                where=str(self._resource.name),
                hint="Give the same stages everywhere, or begin a pipeline of another name",
            )
        return []

    async def _load(self, view: ScopeView, due: DueWork) -> dict[str, Any] | RefusedWork:
        """Return the record of an item, unless its workers died too often."""
        found = await view.item(_item_key(due.name))
        if found is None:
            return RefusedWork(())
        record: dict[str, Any] = found.value
        if due.lost and due.tries >= self._tries:
            stage = due.key.split("/")[1]
            return RefusedWork(self._bury(view, due.name, stage, record, "its worker died", due.tries))
        return record

    def _bury(
        self, view: ScopeView, name: str, stage: str, record: dict[str, Any], error: str, tries: int
    ) -> list[KeyWrite]:
        told = {**record, "stage": stage, "error": error, "tries": tries, "time": view.now}
        key = f"dead/{name}"
        return [
            KeyWrite(_item_key(name), "delete"),
            KeyWrite(key, "bury", packed=pack_value(self._resource.handle, key, told)),
        ]

    async def _claimed_record(self, view: ScopeView, claim: WorkClaim) -> dict[str, Any]:
        await work_queue.check_claim(view, claim, "item")
        found = await view.item(_item_key(claim.name))
        assert found is not None  # noqa: S101 - it goes with what holds it
        return _record(found.value)

    @paged
    async def _page(self, prefix: str, build: Callable[[str, Any], R], *, limit: int, cursor: str | None) -> Page[R]:
        await self._resource.handle.guard.allow("read", self.scope, ())
        last = "" if cursor is None else prefix + check_key(cursor, "cursor")
        found = await self._read(lambda view: view.items(prefix, after=last, limit=limit + 1))
        await self._resource.handle.guard.saw(self.scope, ())
        return Page.cut([build(item.key[len(prefix) :], item.value) for item in found], limit, lambda each: each.id)

    async def _finish(self, task: PipelineTask, result: Any, error: Exception | None, delay: Duration) -> bool:
        """Hand an item on, or return it; False if it is another's by now."""
        try:
            if error is None:
                try:
                    await PipelineOperations.done(self, task, result)
                except (InvalidError, UnsupportedError, VetoError) as refused:  # it cannot be stored
                    error = refused
            if error is not None:
                pause = parse_seconds(delay) * 2 ** (task.tries - 1)
                await PipelineOperations.fail(self, task, error, delay=pause or None)
        except ConflictError as conflict:
            if conflict.code != "lease-lost":
                raise
            return False
        return error is None


class Pipeline(SyncApi, PipelineOperations):
    """A pipeline: `store.sharing.pipeline("ingest", ["fetch", "parse", "store"])`."""


class AsyncPipeline(AsyncApi, PipelineOperations):
    """A pipeline for asyncio: operations are awaited, and so is the handler of `work`."""


def _queue_name(stage: str) -> str:
    return f"stage/{stage}"


def _item_key(name: str) -> str:
    return f"item/{name}"


def _record(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("value", "correlation", "cause")}
