"""Pipelines: items that go through stages, each handed on once.

All of a pipeline is one line: for each stage a lane of work (`work_queue`), the items' values, the results, and the
items that went wrong too often. Handing an item on takes it away here and puts it there in one commit, by who holds it
only: whichever process dies when, an item is in one place, and a stage's result is handed on once. A handler may be
called again for an item, if its worker died before it was done with it. What is rewritten at each step is a few short
keys; the cost does not grow with what went through before, and finished items are not kept unless they are results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import trace_context, validation
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, viewed
from holdfast.state.sharing import work_queue
from holdfast.state.sharing.heartbeats import Heartbeat, beating
from holdfast.state.sharing.polling import until
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.sharing.trimming import KEPT, trim
from holdfast.state.sharing.work_queue import LEASE, DueWork, RefusedWork, TakeWork, WorkClaim
from holdfast.state.writer import KeyWrite, commit
from holdfast.time_parsing import Duration, parse_nanoseconds, parse_seconds

TRIES = 5
"""How often an item is tried at a stage, unless told otherwise."""

_STAGES, _MOST = "stages", 1000


class PipelineStats(NamedTuple):
    """How many items are where. `waiting` are those that are ready or will be later, by stage; `working` are held by a
    worker, or were, if that one died."""

    waiting: dict[str, int]
    working: dict[str, int]
    dead: int
    results: int


class PipelineResult(NamedTuple):
    """What became of an item at the last stage."""

    id: str
    value: Any
    correlation: str


class DeadItem(NamedTuple):
    """An item that was tried too often: at which stage, what it was to be made of, and what went wrong last."""

    id: str
    stage: str
    value: Any
    error: str
    tries: int
    time: datetime


class PipelineTask:
    """An item at a stage, held by a worker. `value` is what the stage before made of it."""

    def __init__(self, claim: WorkClaim, stage: str, record: dict[str, Any], where: Scope) -> None:
        self.id = claim.name
        self.stage = stage
        self.value = record["value"]
        self.correlation: str = record["correlation"]
        self._claim = claim
        self._where = where

    @property
    def tries(self) -> int:
        """How often it was tried at this stage, this time included."""
        return self._claim.tries

    def __repr__(self) -> str:
        return f"<Task {self.id} at {self.stage!r}>"

    def causing(self) -> AbstractContextManager[str]:
        """All changes made in this block carry this item as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation, cause=self.id)


class PipelineOperations:
    """What can be done with a pipeline. `Pipeline` and `AsyncPipeline` have these as methods."""

    def __init__(self, place: SharedResource, stages: Sequence[str], tries: int) -> None:
        names = [check_key(stage, "name of the stage") for stage in validation.require_several(stages, "stage")]
        if not names or len(set(names)) < len(names) or any("/" in name for name in names):
            raise InvalidError("a pipeline has one stage or more, each with a name of its own and no slash in it")
        if validation.require_count(tries, "number of tries") < 1:
            raise InvalidError("an item is tried once at least")
        self.stages = tuple(names)
        self._place = place
        self._tries = tries

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.own}>"

    @property
    def scope(self) -> Scope:
        """The scope that stands for the pipeline. Its keys are the stages: who may write the first one may put items,
        who may read and write a stage may work there; who may read the whole scope sees results and what went wrong."""
        return self._place.scope

    # Putting items in ---------------------------------------------------------------------------------------------

    @sync_and_async
    async def put(self, item: Any, *, delay: Duration | None = None) -> str:
        """Put an item in, to be worked on now or later. Returns its id."""
        return (await self._put([item], delay))[0]

    @sync_and_async
    async def put_many(self, items: Iterable[Any], *, delay: Duration | None = None) -> list[str]:
        """Put items in, all or none. Returns their ids."""
        return await self._put(list(validation.require_several(items, "item")), delay)

    # Working ------------------------------------------------------------------------------------------------------

    @sync_and_async
    async def take(self, stage: str, *, lease: Duration = LEASE, timeout: Duration | None = 0) -> PipelineTask | None:
        """An item to work on at a stage; None if there was none within so many seconds. It is this worker's for as long
        as the lease lasts, and another's after that."""
        self._at(stage)
        await self._place.may("read", stage)
        taking = TakeWork(self._place.for_(stage), self._place.own, _lane(stage), lease, self._opened)
        found = await until(taking.take, timeout)
        if found is None:
            return None
        await self._place.handle.guard.saw(self.scope, (stage,))
        return PipelineTask(found[0], stage, found[1], self._place.own)

    @sync_and_async
    async def done(self, task: PipelineTask, result: Any = MISSING) -> None:
        """Hand an item on to the next stage, with what this one made of it; without a result, as it is. After the last
        stage it is among the results. `ConflictError` (code `lease-lost`) if it is not this worker's any more."""
        await self._done(task, result)

    @sync_and_async
    async def fail(
        self,
        task: PipelineTask,
        error: BaseException | str = "",
        *,
        delay: Duration | None = None,
        retry: bool = True,
    ) -> bool:
        """Give an item back that went wrong, to be tried again, at once or later. One that was tried too often, or is
        not to be tried again, is put with the dead ones. Returns whether it is tried again."""
        return await self._fail(task, error, delay, retry)

    @sync_and_async
    async def extend(self, task: PipelineTask, lease: Duration = LEASE) -> None:
        """Have an item for so many seconds from now on. `ConflictError` (code `lease-lost`) if it is another's."""
        await self._extend(task, lease)

    # What became of items -----------------------------------------------------------------------------------------

    @sync_and_async
    async def results(self, after: str = "", limit: int = 100) -> list[PipelineResult]:
        """A page of results, in the order in which the items were put in, after the one with an id."""
        found = await self._page("result/", after, limit)
        return [PipelineResult(id, record["value"], record["correlation"]) for id, record in found]

    @sync_and_async
    async def dead(self, after: str = "", limit: int = 100) -> list[DeadItem]:
        """A page of the items that were tried too often, in the same order."""
        return [
            DeadItem(
                id, record["stage"], record["value"], record["error"], record["tries"], to_datetime(record["time"])
            )
            for id, record in await self._page("dead/", after, limit)
        ]

    @sync_and_async
    async def forget(self, ids: Iterable[str]) -> int:
        """Take results, and items that were tried too often, away: whoever has read them has no more use for them.
        Returns how many there were."""
        wanted = [check_key(id, "id of an item") for id in validation.require_several(ids, "id")]
        handle, gone = self._place.for_(self.stages[-1]), 0

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal gone
            keys = [f"{where}/{id}" for id in wanted for where in ("result", "dead")]
            found = [KeyWrite(key, "delete") for key in keys if await view.version(key)]
            gone = len(found)
            if not found:
                raise work_queue.NoWork("there are none")
            return found

        try:
            await commit(handle, {self._place.own: writes})
        except work_queue.NoWork:
            return 0
        return gone

    @sync_and_async
    async def requeue(self, id: str) -> None:
        """Have an item that was tried too often tried again, at the stage where it was. Raises `NotFoundError`."""
        name = check_key(id, "id of the item")
        handle = self._place.for_(self.stages[0])

        async def writes(view: ScopeView) -> list[KeyWrite]:
            found = await view.item(f"dead/{name}")
            if found is None:
                raise NotFoundError(
                    "there is no such item among those that were tried too often", where=f"{name} of {self._place.own}"
                )
            stage, record = found.value["stage"], _record(found.value)
            self._at(stage)
            return [
                KeyWrite(f"dead/{name}", "delete"),
                KeyWrite(_item(name), "put", packed=pack_value(handle, "item", record)),
                work_queue.put(handle, _lane(stage), name),
            ]

        await commit(handle, {self._place.own: writes})

    @sync_and_async
    async def stats(self) -> PipelineStats:
        """How many items are where."""
        await self._place.handle.guard.allow("read", self.scope, ())

        async def look(view: ScopeView) -> PipelineStats:
            waiting, working = {}, {}
            for stage in self.stages:
                lane = _lane(stage)
                waiting[stage] = await view.count(f"{lane}/ready/") + await view.count(f"{lane}/later/")
                working[stage] = await view.count(f"{lane}/held/")
            return PipelineStats(waiting, working, await view.count("dead/"), await view.count("result/"))

        return await viewed(self._place.handle, self._place.own, look)

    @sync_and_async
    async def trim(self, keep: int = KEPT) -> int:
        """Drop the history of items but for the last so many steps, and give its room back. Nothing that is waiting,
        held or done is touched, and nothing gets quicker by it. Returns how many steps went."""
        return await trim(self._place, keep)

    # Inside -------------------------------------------------------------------------------------------------------

    def _at(self, stage: object) -> int:
        if stage not in self.stages:
            raise InvalidError(f"there is no stage {stage!r}", where=str(self._place.own), hint=f"See {self.stages}")
        return self.stages.index(stage)

    async def _put(self, items: list[Any], delay: Duration | None) -> list[str]:
        if not 0 < len(items) <= _MOST:
            raise InvalidError(f"1 to {_MOST} items are put in at a time, not {len(items)}")
        first = self.stages[0]
        handle, trace, names = self._place.for_(first), trace_context.current_or_new(), list[str]()
        wait = 0 if delay is None else parse_nanoseconds(delay, "delay", positive=True)
        packed = [
            pack_value(handle, "item", {"value": item, "correlation": trace.correlation, "cause": trace.cause})
            for item in items
        ]

        async def writes(view: ScopeView) -> list[KeyWrite]:
            start = 0 if view.point is None else view.point.seq + 1
            names[:] = [f"{start:012d}-{number:03d}" for number in range(len(items))]
            made = await self._stages_kept(view)
            for name, value in zip(names, packed, strict=True):
                made.append(KeyWrite(_item(name), "put", packed=value))
                made.append(work_queue.put(handle, _lane(first), name, due=view.now + wait if wait else 0))
            return made

        await commit(handle, {self._place.own: writes})
        return names

    async def _stages_kept(self, view: ScopeView) -> list[KeyWrite]:
        """Note the stages with the first item; later they have to be the same."""
        found = await view.item(_STAGES)
        if found is None:
            return [KeyWrite(_STAGES, "begin", packed=pack_value(self._place.handle, _STAGES, list(self.stages)))]
        if tuple(found.value) != self.stages:
            raise ConflictError(
                f"the pipeline has other stages: {', '.join(found.value)}",
                where=str(self._place.own),
                hint="Give the same stages everywhere, or begin a pipeline of another name",
            )
        return []

    async def _opened(self, view: ScopeView, due: DueWork) -> dict[str, Any] | RefusedWork:
        """What there is to know of an item, unless its workers died too often."""
        found = await view.item(_item(due.name))
        if found is None:
            return RefusedWork(())
        record: dict[str, Any] = found.value
        if due.lost and due.tries >= self._tries:
            stage = due.key.split("/")[1]
            return RefusedWork(self._buried(view, due.name, stage, record, "its worker died", due.tries))
        return record

    def _buried(
        self, view: ScopeView, name: str, stage: str, record: dict[str, Any], error: str, tries: int
    ) -> list[KeyWrite]:
        told = {**record, "stage": stage, "error": error, "tries": tries, "time": view.now}
        key = f"dead/{name}"
        return [
            KeyWrite(_item(name), "delete"),
            KeyWrite(key, "bury", packed=pack_value(self._place.handle, key, told)),
        ]

    async def _done(self, task: PipelineTask, result: Any) -> None:
        handle, claim = self._place.for_(task.stage), self._claim(task)
        after = self._at(task.stage) + 1

        async def writes(view: ScopeView) -> list[KeyWrite]:
            record = await self._held(view, claim)
            if result is not MISSING:
                record = {**record, "value": result}
            made = [KeyWrite(claim.key, "delete")]
            if after < len(self.stages):
                if result is not MISSING:
                    made.append(KeyWrite(_item(task.id), "done", packed=pack_value(handle, "item", record)))
                return [*made, work_queue.put(handle, _lane(self.stages[after]), task.id)]
            key = f"result/{task.id}"
            return [
                *made,
                KeyWrite(_item(task.id), "delete"),
                KeyWrite(key, "done", packed=pack_value(handle, key, record)),
            ]

        await commit(handle, {self._place.own: writes})

    async def _fail(self, task: PipelineTask, error: BaseException | str, delay: Duration | None, retry: bool) -> bool:
        handle, claim = self._place.for_(task.stage), self._claim(task)
        again = retry and claim.tries < self._tries
        told = f"{type(error).__qualname__}: {error}" if isinstance(error, BaseException) else error
        wait = 0 if delay is None else parse_nanoseconds(delay, "delay", positive=True)

        async def writes(view: ScopeView) -> list[KeyWrite]:
            record = await self._held(view, claim)
            gone = KeyWrite(claim.key, "delete")
            if not again:
                return [gone, *self._buried(view, task.id, task.stage, record, told, claim.tries)]
            due = view.now + wait if wait else 0
            return [gone, work_queue.put(handle, claim.lane, task.id, claim.tries, due)]

        await commit(handle, {self._place.own: writes})
        return again

    async def _extend(self, task: PipelineTask, lease: Duration) -> None:
        await work_queue.extend(self._place.for_(task.stage), self._place.own, self._claim(task), lease, "item")

    async def _held(self, view: ScopeView, claim: WorkClaim) -> dict[str, Any]:
        await work_queue.check(view, claim, "item")
        found = await view.item(_item(claim.name))
        assert found is not None  # noqa: S101 - it goes with what holds it
        return _record(found.value)

    async def _page(self, prefix: str, after: str, limit: int) -> list[tuple[str, Any]]:
        await self._place.handle.guard.allow("read", self.scope, ())
        last = prefix + check_key(after, "id of an item") if after else ""
        page = validation.require_count(limit, "limit")
        found = await viewed(
            self._place.handle, self._place.own, lambda view: view.items(prefix, after=last, limit=page)
        )
        await self._place.handle.guard.saw(self.scope, ())
        return [(item.key[len(prefix) :], item.value) for item in found]

    def _claim(self, task: PipelineTask) -> WorkClaim:
        if getattr(task, "_where", None) != self._place.own:
            raise InvalidError("one is done with an item that take() gave", where=repr(task)[:80])
        return task._claim

    @sync_and_async
    async def _settle(self, task: PipelineTask, result: Any, error: Exception | None, delay: Duration) -> bool:
        """Hand an item on, or give it back; False if it is another's by now."""
        try:
            if error is None:
                try:
                    await self._done(task, result)
                except (InvalidError, UnsupportedError) as refused:  # it cannot be stored
                    error = refused
            if error is not None:
                await self._fail(task, error, parse_seconds(delay) * 2 ** (task.tries - 1) or None, True)
        except ConflictError as conflict:
            if conflict.code != "lease-lost":
                raise
            return False
        return error is None


class Pipeline(SyncApi, PipelineOperations):
    """A pipeline: `store.sharing.pipeline("ingest", ["fetch", "parse", "store"])`."""

    def work(
        self,
        stage: str,
        handler: Callable[[Any], Any],
        *,
        lease: Duration = LEASE,
        delay: Duration = 1.0,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> int:
        """Work at a stage: call a function with each item's value, and hand on what it returns; until no item came for
        so many seconds, or so many are done; else for ever. Returns how many were handed on.

        If it raises, the item is tried again after `delay` seconds, then twice as many, and so on. While it is at work,
        signs of life are given. What it changes carries the item as its cause.
        """
        worked = done = 0
        with Heartbeat(lease) as heart:
            while limit is None or worked < limit:
                task = self.take(stage, lease=lease, timeout=timeout)
                if task is None:
                    break
                result, failed = None, None
                with heart.beating(lambda task=task: self._extend(task, lease)):  # type: ignore[misc]
                    try:
                        with task.causing():
                            result = handler(task.value)
                    except Exception as error:  # noqa: BLE001 - it is kept with the item
                        failed = error
                done += self._settle(task, result, failed, delay)
                worked += 1
        return done


class AsyncPipeline(AsyncApi, PipelineOperations):
    """The same, for asyncio: operations are awaited."""

    async def work(
        self,
        stage: str,
        handler: Callable[[Any], Awaitable[Any]],
        *,
        lease: Duration = LEASE,
        delay: Duration = 1.0,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> int:
        """The same as `Pipeline.work`; the function is awaited."""
        worked = done = 0
        while limit is None or worked < limit:
            task = await self.take(stage, lease=lease, timeout=timeout)
            if task is None:
                break
            result, failed = None, None
            async with beating(lambda task=task: self._extend(task, lease), lease):  # type: ignore[misc]
                try:
                    with task.causing():
                        result = await handler(task.value)
                except Exception as error:  # noqa: BLE001 - it is kept with the item
                    failed = error
            done += await self._settle(task, result, failed, delay)
            worked += 1
        return done


def _lane(stage: str) -> str:
    return f"stage/{stage}"


def _item(name: str) -> str:
    return f"item/{name}"


def _record(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("value", "correlation", "cause")}
