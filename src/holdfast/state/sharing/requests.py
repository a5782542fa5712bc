"""Request and response: questions that one process asks, and one of many others answers.

A request is work of one lane (`work_queue`): a responder holds it while its handler is at work, and if it dies, another
gets it. The answer is put and the request taken away in one commit, and only by who holds it: each request is answered
once. A request that was cancelled, or that is past its deadline, is handed out no more, and an answer to it is refused.
Answers stay for a minute beyond the deadline, for one that asked and was started anew; they go by themselves.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import trace_context
from holdfast.engine.model.scopes import Scope
from holdfast.errors import (
    ConflictError,
    HandlerError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
    UnsupportedError,
)
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, viewed
from holdfast.state.sharing import work_queue
from holdfast.state.sharing.heartbeats import Heartbeat, beating
from holdfast.state.sharing.polling import until
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.sharing.trimming import KEPT, trim
from holdfast.state.sharing.work_queue import LEASE, DueWork, RefusedWork, TakeWork, WorkClaim
from holdfast.state.writer import KeyWrite, commit
from holdfast.time_parsing import Duration, parse_nanoseconds

ASK, SERVE = "ask", "serve"
"""The keys of the requests' scope: one needs the right to write the first to ask, to read and write the second to
serve."""

TIMEOUT = 30.0
"""How many seconds one waits for an answer, unless told otherwise."""

_LANE = "call"
_KEPT = 60 * 10**9
_SWEPT = 8
"""How many requests that are long over are cleared away when another is asked."""


class Request:
    """A request that is to be answered. `value` is what was asked, `actor` who asked it."""

    def __init__(self, id: str, claim: WorkClaim, record: dict[str, Any], where: Scope) -> None:
        self.id = id
        self.value = record["value"]
        self.actor: str = record["actor"]
        self.correlation: str = record["correlation"]
        self._claim = claim
        self._deadline: int = record["deadline"]
        self._where = where

    @property
    def tries(self) -> int:
        """How often it was handed out, this time included."""
        return self._claim.tries

    def __repr__(self) -> str:
        return f"<Request {self.id}>"

    def causing(self) -> AbstractContextManager[str]:
        """All changes made in this block carry this request as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation, cause=self.id)


class _Answer(NamedTuple):
    """An answer: a value, or what went wrong."""

    ok: bool
    value: Any
    kind: str = ""


class RequestsOperations:
    """What can be done with requests. `Requests` and `AsyncRequests` have these as methods."""

    def __init__(self, place: SharedResource) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.own}>"

    @property
    def scope(self) -> Scope:
        """The scope that stands for them: who may write its key `ask` may ask, who may read and write its key `serve`
        may serve."""
        return self._place.scope

    # Asking -----------------------------------------------------------------------------------------------------

    @sync_and_async
    async def call(self, payload: Any, *, timeout: Duration = TIMEOUT) -> Any:
        """Ask, and wait for the answer, for so many seconds.

        `HandlerError` if the responder raised an error. `RequestTimeoutError` if no answer came in time; its code says
        more: `no-responder` if nobody took the request, `responder-died` if who had it gave no sign of life any more.
        The request is then cancelled.
        """
        return await self._wait(await self._ask(payload, timeout), timeout)

    @sync_and_async
    async def ask(self, payload: Any, *, timeout: Duration = TIMEOUT) -> str:
        """Ask, and do not wait. Returns the id by which to `wait` for the answer, in this process or another. After so
        many seconds nobody answers it any more."""
        return await self._ask(payload, timeout)

    @sync_and_async
    async def wait(self, id: str, *, timeout: Duration = TIMEOUT) -> Any:
        """The answer to a request. The same as `call` from here on. `NotFoundError` if there is no such request, or it
        was cancelled, or its answer was given over a minute after its time."""
        return await self._wait(id, timeout)

    @sync_and_async
    async def cancel(self, id: str) -> bool:
        """Take a request back: nobody answers it any more. False if it was answered, or is not there."""
        try:
            await self._cancelled(id)
        except _Answered:
            return False
        except NotFoundError:
            return False
        return True

    # Answering --------------------------------------------------------------------------------------------------

    @sync_and_async
    async def take(self, *, lease: Duration = LEASE, timeout: Duration | None = 0) -> Request | None:
        """A request to answer; None if there was none within so many seconds. It is this responder's for as long as
        the lease lasts, and another's after that."""
        return await self._take(lease, timeout)

    @sync_and_async
    async def answer(self, request: Request, value: Any) -> None:
        """Answer a request. `ConflictError` (code `lease-lost`) if it is not this responder's any more, or past its
        deadline."""
        await self._answer(request, _Answer(True, value))

    @sync_and_async
    async def fail(self, request: Request, error: BaseException | str) -> None:
        """Answer that it went wrong. Whoever asked gets a `HandlerError` with the name of the error and its text."""
        await self._answer(request, _failure(error))

    @sync_and_async
    async def extend(self, request: Request, lease: Duration = LEASE) -> None:
        """Have a request for so many seconds from now on. `ConflictError` (code `lease-lost`) if it is another's."""
        await self._extend(request, lease)

    @sync_and_async
    async def pending(self) -> int:
        """How many requests wait for a responder."""
        await self._place.may("read", SERVE)
        return await viewed(self._place.handle, self._place.own, lambda view: view.count(f"{_LANE}/ready/"))

    @sync_and_async
    async def trim(self, keep: int = KEPT) -> int:
        """Drop the history of requests but for the last so many steps, and give its room back. Nothing that is waiting,
        held or done is touched, and nothing gets quicker by it. Returns how many steps went."""
        return await trim(self._place, keep)

    # Inside -----------------------------------------------------------------------------------------------------

    async def _ask(self, payload: Any, timeout: Duration) -> str:
        handle, wait = self._place.for_(ASK), parse_nanoseconds(timeout, "timeout")
        token, trace = secrets.token_hex(8), trace_context.current_or_new()
        record = {
            "value": payload,
            "actor": handle.guard.actor,
            "correlation": trace.correlation,
            "deadline": handle.now() + wait,
        }
        packed, name = pack_value(handle, "value", record), ""

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal name
            # In order of asking; and nobody who did not ask it can guess the rest.
            name = f"{0 if view.point is None else view.point.seq + 1:012d}-{token}"
            end = _end(record["deadline"] + _KEPT, name)
            return [
                KeyWrite(_item(name), "ask", packed=packed),
                work_queue.put(handle, _LANE, name),
                KeyWrite(end, "ask", packed=pack_value(handle, end, True)),
                *await _swept(view),
            ]

        await commit(handle, {self._place.own: writes})
        return name

    async def _wait(self, id: str, timeout: Duration) -> Any:
        if type(id) is not str or not id or "/" in id:
            raise InvalidError("a request is named by the id that ask() returned", where=repr(id)[:80])
        await self._place.may("write", ASK)
        answer = await until(lambda: self._answered(id), timeout)
        if answer is None:
            try:
                raise await self._cancelled(id)
            except _Answered as came:
                answer = came.answer
        await self._place.may("write", ASK)  # or else whoever was cut off while waiting would still be told
        if not answer.ok:
            raise HandlerError(
                f"the responder raised {answer.kind or 'an error'}: {answer.value}",
                where=f"request {id} of {self._place.own}",
                kind=answer.kind,
                message=str(answer.value),
            )
        return answer.value

    async def _answered(self, id: str) -> _Answer | None:
        async def look(view: ScopeView) -> _Answer | None:
            found = await view.item(_given(id))
            if found is None and not await view.version(_item(id)):
                raise self._unknown(id)
            return None if found is None else _Answer(*found.value)

        return await viewed(self._place.handle, self._place.own, look)

    async def _cancelled(self, id: str) -> RequestTimeoutError:
        """Take a request back, and tell why it has no answer."""
        handle = self._place.for_(ASK)
        where = f"request {id} of {self._place.own}"
        told = RequestTimeoutError(
            "no responder took the request in time",
            where=where,
            hint="Start a responder, or allow more time",
            code="no-responder",
        )

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal told
            found = await view.item(_given(id))
            if found is not None:
                raise _Answered(_Answer(*found.value))
            if not await view.version(_item(id)):
                raise self._unknown(id)
            gone = [KeyWrite(_item(id), "delete")]
            gone += [KeyWrite(key, "delete") for key in [work_queue.ready(_LANE, id)] if await view.version(key)]
            # Of those that are held there are as many as responders at work.
            for key in await view.names(f"{_LANE}/held/"):
                time, name = key.split("/")[-2:]
                if name == id:
                    gone.append(KeyWrite(key, "delete"))
                    told = _died(where) if int(time) <= view.now else _slow(where)
            return gone

        await commit(handle, {self._place.own: writes})
        return told

    def _unknown(self, id: str) -> NotFoundError:
        return NotFoundError(
            "there is no such request: it was cancelled, or is long over", where=f"request {id} of {self._place.own}"
        )

    async def _take(self, lease: Duration, timeout: Duration | None) -> Request | None:
        await self._place.may("read", SERVE)
        taking = TakeWork(self._place.for_(SERVE), self._place.own, _LANE, lease, self._open)
        found = await until(taking.take, timeout)
        if found is None:
            return None
        await self._place.handle.guard.saw(self.scope, (SERVE,))
        claim, record = found
        return Request(claim.name, claim, record, self._place.own)

    async def _open(self, view: ScopeView, due: DueWork) -> dict[str, Any] | RefusedWork:
        """What was asked, unless it is too late to answer."""
        found = await view.item(_item(due.name))
        if found is None:
            return RefusedWork(())
        if found.value["deadline"] <= view.now:
            return RefusedWork([KeyWrite(_item(due.name), "delete")])
        record: dict[str, Any] = found.value
        return record

    async def _answer(self, request: Request, answer: _Answer) -> None:
        handle = self._place.for_(SERVE)
        key, claim = _given(request.id), self._claim(request)
        packed = pack_value(handle, key, list(answer))

        async def writes(view: ScopeView) -> list[KeyWrite]:
            await work_queue.check(view, claim, "request")
            if request._deadline <= view.now:
                raise ConflictError(
                    "the request is past its deadline, and is not answered any more",
                    where=f"request {request.id} of {self._place.own}",
                    hint="Answer sooner, or have those who ask allow more time",
                    code="lease-lost",
                )
            return [
                KeyWrite(claim.key, "delete"),
                KeyWrite(_item(request.id), "delete"),
                KeyWrite(key, "answer", packed=packed),
            ]

        await commit(handle, {self._place.own: writes})

    @sync_and_async
    async def _settle(self, request: Request, answer: _Answer) -> bool:
        """Answer with what became of a request; False if it was cancelled, or is another's by now."""
        try:
            try:
                await self._answer(request, answer)
            except (InvalidError, UnsupportedError) as error:  # it cannot be stored
                await self._answer(request, _failure(error))
        except ConflictError as conflict:
            if conflict.code != "lease-lost":
                raise
            return False
        return True

    async def _extend(self, request: Request, lease: Duration) -> None:
        await work_queue.extend(self._place.for_(SERVE), self._place.own, self._claim(request), lease, "request")

    def _claim(self, request: Request) -> WorkClaim:
        if getattr(request, "_where", None) != self._place.own:
            raise InvalidError("one answers a request that take() gave", where=repr(request)[:80])
        return request._claim


class Requests(SyncApi, RequestsOperations):
    """Requests and their answers: `store.sharing.requests("planner")`."""

    def serve(
        self,
        handler: Callable[[Any], Any],
        *,
        lease: Duration = LEASE,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> int:
        """Answer requests with what a function returns, until none came for so many seconds, or so many are answered;
        else for ever. Returns how many there were.

        If it raises, whoever asked is told. While it is at work, signs of life are given. What it changes carries the
        request as its cause.
        """
        served = 0
        with Heartbeat(lease) as heart:
            while limit is None or served < limit:
                request = self.take(lease=lease, timeout=timeout)
                if request is None:
                    break
                with heart.beating(lambda request=request: self._extend(request, lease)):  # type: ignore[misc]
                    try:
                        with request.causing():
                            answer = _Answer(True, handler(request.value))
                    except Exception as error:  # noqa: BLE001 - it is carried to who asked
                        answer = _failure(error)
                served += self._settle(request, answer)
        return served


class AsyncRequests(AsyncApi, RequestsOperations):
    """The same, for asyncio: operations are awaited."""

    async def serve(
        self,
        handler: Callable[[Any], Awaitable[Any]],
        *,
        lease: Duration = LEASE,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> int:
        """The same as `Requests.serve`; the function is awaited."""
        served = 0
        while limit is None or served < limit:
            request = await self.take(lease=lease, timeout=timeout)
            if request is None:
                break
            async with beating(lambda request=request: self._extend(request, lease), lease):  # type: ignore[misc]
                try:
                    with request.causing():
                        answer = _Answer(True, await handler(request.value))
                except Exception as error:  # noqa: BLE001 - it is carried to who asked
                    answer = _failure(error)
            served += await self._settle(request, answer)
        return served


class _Answered(ConflictError):
    """There is an answer already."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__("the request was answered")
        self.answer = answer


def _died(where: str) -> RequestTimeoutError:
    return RequestTimeoutError(
        "the responder that had the request died, and no other took it in time",
        where=where,
        hint="Start a responder, or allow more time",
        code="responder-died",
    )


def _slow(where: str) -> RequestTimeoutError:
    return RequestTimeoutError(
        "a responder has the request, and did not answer in time", where=where, hint="Allow it more time"
    )


def _failure(error: BaseException | str) -> _Answer:
    kind = type(error).__qualname__ if isinstance(error, BaseException) else ""
    return _Answer(False, str(error), kind)


def _item(name: str) -> str:
    return f"item/{name}"


def _given(name: str) -> str:
    return f"answer/{name}"


def _end(time: int, name: str) -> str:
    return f"end/{time:020d}/{name}"


async def _swept(view: ScopeView) -> list[KeyWrite]:
    """Clears away what is left of requests that are long over."""
    gone = []
    for key in await view.names("end/", _SWEPT):
        time, name = key.split("/")[1:]
        if int(time) > view.now:
            break
        left = [work_queue.ready(_LANE, name), _item(name), _given(name)]
        gone += [KeyWrite(each, "delete") for each in left if await view.version(each)]
        gone.append(KeyWrite(key, "delete"))
    return gone
