"""Requests and responses: one process asks, and one of many others answers.

A request is work in a queue (`work_queue`): a responder holds it while its handler runs, and if it dies, another gets
it. The answer is stored and the request deleted in one commit, only by the responder that holds it: each request is
answered once. A request that was cancelled or is past its deadline is not handed out, and an answer to it is refused.
Answers are retained for a minute after the deadline, for a caller that was restarted, and then deleted automatically.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine import trace_context
from holdfast.engine.guard import Action
from holdfast.engine.model.scopes import Scope
from holdfast.errors import (
    ConflictError,
    HandlerError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
    UnsupportedError,
    VetoError,
)
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, StateItem, read_scope
from holdfast.state.sharing import work_queue
from holdfast.state.sharing.heartbeats import Heartbeat
from holdfast.state.sharing.resource import NOT_REMOTE, RETAINED_STEPS, SharedResource, wait_until
from holdfast.state.sharing.work_queue import LEASE, DueWork, RefusedWork, TakeWork, WorkClaim
from holdfast.state.writer import KeyWrite, commit
from holdfast.time_parser import Duration, parse_nanoseconds

ASK, SERVE = "ask", "serve"
"""The keys of the requests' scope: asking needs the right to write the first, serving to read and write the second."""

TIMEOUT = 30.0
"""How many seconds to wait for an answer by default."""

_QUEUE = "call"
_RETENTION = 60 * 10**9
_SWEEP_LIMIT = 8
"""How many old requests are deleted when another is made."""


class Request:
    """A request to answer. `value` is the payload, `actor` who sent it."""

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
        """Give all changes in this block this request as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation, cause=self.id)


class _Answer(NamedTuple):
    """An answer: a value or an error, and who asked."""

    ok: bool
    value: Any
    kind: str = ""
    asker: str = ""


@declare(not_remote=NOT_REMOTE)
class RequestsOperations:
    """Operations on requests. `Requests` and `AsyncRequests` have these as methods."""

    def __init__(self, place: SharedResource) -> None:
        self._resource = place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._resource.name}>"

    @property
    def scope(self) -> Scope:
        """The scope that decides who may use them: writing its key `ask` allows asking, reading and writing its key
        `serve` allows serving."""
        return self._resource.scope

    # Asking -----------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def call(self, payload: Any, *, timeout: Duration = TIMEOUT) -> Any:
        """Send a request, and wait for the answer.

        `HandlerError` if the responder raised an error. `RequestTimeoutError` if no answer came in time; its code says
        more: `no-responder` if nobody took the request, `responder-died` if the lease of the responder ended. The
        request is then cancelled.
        """
        return await self._wait(await self._ask(payload, timeout), timeout)

    @operation(changes=True)
    async def ask(self, payload: Any, *, timeout: Duration = TIMEOUT) -> str:
        """Send a request without waiting. Returns the id to `wait` for, in this process or another. After the
        timeout nobody answers it any more."""
        return await self._ask(payload, timeout)

    @operation
    async def wait(self, id: str, *, timeout: Duration = TIMEOUT) -> Any:
        """Wait for the answer to a request, as `call` does. `NotFoundError` if there is no such request, it was
        cancelled, or its answer was deleted. Another's request needs the right to read the key `serve`."""
        return await self._wait(id, timeout)

    @operation(changes=True)
    async def cancel(self, id: str) -> bool:
        """Cancel a request. False if it was answered, or does not exist. Another's request needs the right to write the
        key `serve`."""
        try:
            await self._cancel(id)
        except _AlreadyAnswered:
            return False
        except NotFoundError:
            return False
        return True

    # Answering --------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def take(self, *, lease: Duration = LEASE, timeout: Duration | None = 0) -> Request | None:
        """Take a request to answer; None if there was none before the timeout. It is this responder's until the
        lease ends, and another's after that."""
        return await self._take(lease, timeout)

    @operation(changes=True)
    async def answer(self, request: Request, value: Any) -> None:
        """Answer a request. `ConflictError` (code `lease-lost`) if it is not this responder's any more, or past its
        deadline."""
        await self._answer(request, _Answer(True, value))

    @operation(changes=True)
    async def fail(self, request: Request, error: BaseException | str) -> None:
        """Answer with an error. The caller gets a `HandlerError` with its name and text."""
        await self._answer(request, _failure(error))

    @operation(changes=True, not_in_scripts="It runs as long as there is work: call `take` and `answer` in a loop.")
    async def serve(
        self,
        handler: Callable[[Any], Any],
        *,
        lease: Duration = LEASE,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> int:
        """Answer requests with what a function returns, until none came for `timeout` seconds or `limit` are answered.
        Returns the number of answered requests.

        If the function raises, the caller gets a `HandlerError`. The lease is extended while the function runs. Its
        changes have the request as their cause.
        """
        served = 0
        with Heartbeat(lease) as heartbeat:
            while limit is None or served < limit:
                request = await self._take(lease, timeout)
                if request is None:
                    break
                extend = partial(self._extend, request, lease)
                try:
                    with request.causing():
                        answer = _Answer(True, await heartbeat.call(handler, request.value, extend))
                except Exception as error:  # noqa: BLE001 - it is sent to the caller
                    answer = _failure(error)
                served += await self._answer_if_held(request, answer)
        return served

    @operation(changes=True)
    async def extend(self, request: Request, lease: Duration = LEASE) -> None:
        """Extend the lease of a request. `ConflictError` (code `lease-lost`) if it is another's."""
        await self._extend(request, lease)

    @operation
    async def pending(self) -> int:
        """Return the number of requests that wait for a responder."""
        await self._resource.require("read", SERVE)
        return await read_scope(self._resource.handle, self._resource.name, lambda view: view.count(f"{_QUEUE}/ready/"))

    @operation(changes=True)
    async def trim(self, keep: int = RETAINED_STEPS) -> int:
        """Delete the history but for the last steps, and free its space. Requests and answers are not affected.
        Returns the number of deleted steps."""
        return await self._resource.trim_history(keep)

    # Inside -----------------------------------------------------------------------------------------------------

    async def _ask(self, payload: Any, timeout: Duration) -> str:
        handle, wait = self._resource.handle_for(ASK), parse_nanoseconds(timeout, "timeout")
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
            end = _end_key(record["deadline"] + _RETENTION, name)
            return [
                KeyWrite(_item_key(name), "ask", packed=packed),
                work_queue.put_work(handle, _QUEUE, name),
                KeyWrite(end, "ask", packed=pack_value(handle, end, True)),
                *await _sweep(view),
            ]

        await commit(handle, {self._resource.name: writes})
        return name

    async def _wait(self, id: str, timeout: Duration) -> Any:
        if type(id) is not str or not id or "/" in id:
            raise InvalidError("a request is named by the id that ask() returned", where=repr(id)[:80])
        await self._resource.require("write", ASK)
        answer = await wait_until(lambda: self._find_answer(id), timeout)
        if answer is None:
            try:
                raise await self._cancel(id)
            except _AlreadyAnswered as came:
                answer = came.answer
        await self._resource.require("write", ASK)  # or else whoever was cut off while waiting would still be told
        if not answer.ok:
            raise HandlerError(
                f"the responder raised {answer.kind or 'an error'}: {answer.value}",
                where=f"request {id} of {self._resource.name}",
                kind=answer.kind,
                message=str(answer.value),
            )
        return answer.value

    async def _find_answer(self, id: str) -> _Answer | None:
        async def look(view: ScopeView) -> _Answer | None:
            found = await view.item(_answer_key(id))
            await self._check_asker("read", id, view, found)
            return None if found is None else _Answer(*found.value)

        return await read_scope(self._resource.handle, self._resource.name, look)

    async def _cancel(self, id: str) -> RequestTimeoutError:
        """Cancel a request, and return why it has no answer."""
        handle = self._resource.handle_for(ASK)
        where = f"request {id} of {self._resource.name}"
        error = RequestTimeoutError(
            "no responder took the request in time",
            where=where,
            hint="Start a responder, or allow more time",
            code="no-responder",
        )

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal error
            found = await view.item(_answer_key(id))
            await self._check_asker("write", id, view, found)
            if found is not None:
                raise _AlreadyAnswered(_Answer(*found.value))
            gone = [KeyWrite(_item_key(id), "delete")]
            gone += [KeyWrite(key, "delete") for key in [work_queue.ready_key(_QUEUE, id)] if await view.version(key)]
            # Of those that are held there are as many as responders at work.
            for key in await view.all_keys(f"{_QUEUE}/held/"):
                time, name = key.split("/")[-2:]
                if name == id:
                    gone.append(KeyWrite(key, "delete"))
                    error = _died_error(where) if int(time) <= view.now else _slow_error(where)
            return gone

        await commit(handle, {self._resource.name: writes})
        return error

    async def _check_asker(self, action: Action, id: str, view: ScopeView, answer: StateItem | None) -> None:
        """Raise `NotFoundError` if there is no such request, and `DeniedError` if another asked it and the caller may
        not serve."""
        if answer is not None:
            asker = _Answer(*answer.value).asker
        elif (request := await view.item(_item_key(id))) is not None:
            asker = str(request.value["actor"])
        else:
            raise NotFoundError(
                "there is no such request: it was cancelled, or is long over",
                where=f"request {id} of {self._resource.name}",
            )
        if asker != self._resource.handle.guard.actor:
            await self._resource.require(action, SERVE)

    async def _take(self, lease: Duration, timeout: Duration | None) -> Request | None:
        await self._resource.require("read", SERVE)
        taking = TakeWork(self._resource.handle_for(SERVE), self._resource.name, _QUEUE, lease, self._load)
        found = await wait_until(taking.take, timeout)
        if found is None:
            return None
        await self._resource.handle.guard.saw(self.scope, (SERVE,))
        claim, record = found
        return Request(claim.name, claim, record, self._resource.name)

    async def _load(self, view: ScopeView, due: DueWork) -> dict[str, Any] | RefusedWork:
        """Return the record of a request, unless it is past its deadline."""
        found = await view.item(_item_key(due.name))
        if found is None:
            return RefusedWork(())
        if found.value["deadline"] <= view.now:
            return RefusedWork([KeyWrite(_item_key(due.name), "delete")])
        record: dict[str, Any] = found.value
        return record

    async def _answer(self, request: Request, answer: _Answer) -> None:
        handle = self._resource.handle_for(SERVE)
        key, claim = _answer_key(request.id), self._claim(request)
        packed = pack_value(handle, key, list(answer._replace(asker=request.actor)))

        async def writes(view: ScopeView) -> list[KeyWrite]:
            await work_queue.check_claim(view, claim, "request")
            if request._deadline <= view.now:
                raise ConflictError(
                    "the request is past its deadline, and is not answered any more",
                    where=f"request {request.id} of {self._resource.name}",
                    hint="Answer sooner, or have those who ask allow more time",
                    code="lease-lost",
                )
            return [
                KeyWrite(claim.key, "delete"),
                KeyWrite(_item_key(request.id), "delete"),
                KeyWrite(key, "answer" if answer.ok else "fail", packed=packed),
            ]

        await commit(handle, {self._resource.name: writes})

    async def _answer_if_held(self, request: Request, answer: _Answer) -> bool:
        """Answer a request; False if it was cancelled, or is another's by now."""
        try:
            try:
                await self._answer(request, answer)
            except (InvalidError, UnsupportedError, VetoError) as error:  # it cannot be stored
                await self._answer(request, _failure(error))
        except ConflictError as conflict:
            if conflict.code != "lease-lost":
                raise
            return False
        return True

    async def _extend(self, request: Request, lease: Duration) -> None:
        await work_queue.extend_claim(
            self._resource.handle_for(SERVE), self._resource.name, self._claim(request), lease, "request"
        )

    def _claim(self, request: Request) -> WorkClaim:
        if getattr(request, "_where", None) != self._resource.name:
            raise InvalidError("one answers a request that take() gave", where=repr(request)[:80])
        return request._claim


class Requests(SyncApi, RequestsOperations):
    """Requests and their answers: `store.sharing.requests("planner")`."""


class AsyncRequests(AsyncApi, RequestsOperations):
    """Requests for asyncio: operations are awaited, and so is the handler of `serve`."""


class _AlreadyAnswered(ConflictError):
    """There is an answer already."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__("the request was answered")
        self.answer = answer


def _died_error(where: str) -> RequestTimeoutError:
    return RequestTimeoutError(
        "the responder that had the request died, and no other took it in time",
        where=where,
        hint="Start a responder, or allow more time",
        code="responder-died",
    )


def _slow_error(where: str) -> RequestTimeoutError:
    return RequestTimeoutError(
        "a responder has the request, and did not answer in time", where=where, hint="Allow it more time"
    )


def _failure(error: BaseException | str) -> _Answer:
    kind = type(error).__qualname__ if isinstance(error, BaseException) else ""
    return _Answer(False, str(error), kind)


def _item_key(name: str) -> str:
    return f"item/{name}"


def _answer_key(name: str) -> str:
    return f"answer/{name}"


def _end_key(time: int, name: str) -> str:
    return f"end/{time:020d}/{name}"


async def _sweep(view: ScopeView) -> list[KeyWrite]:
    """Delete what is left of old requests."""
    gone = []
    for key in await view.all_keys("end/", _SWEEP_LIMIT):
        time, name = key.split("/")[1:]
        if int(time) > view.now:
            break
        left = [work_queue.ready_key(_QUEUE, name), _item_key(name), _answer_key(name)]
        gone += [KeyWrite(each, "delete") for each in left if await view.version(each)]
        gone.append(KeyWrite(key, "delete"))
    return gone
