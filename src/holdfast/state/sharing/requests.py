"""Requests and responses: one process asks, and one of many others answers.

A request is work in a queue (`work_queue`): a responder holds it while its handler runs, and if it dies, another gets
it. The answer is stored and the request deleted in one commit, only by the responder that holds it: each request is
answered once. A request that was cancelled or is past its deadline is not handed out, and an answer to it is refused.
Answers are retained for a minute after the deadline, for a caller that was restarted, and then deleted automatically.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
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
from holdfast.state.reader import ScopeView, StateItem
from holdfast.state.sharing import work_queue
from holdfast.state.sharing.resource import NOT_REMOTE, RETAINED_STEPS, SharedOperations, wait_until
from holdfast.state.sharing.work_queue import LEASE, DueWork, HeldWork, RefusedWork, WorkClaim, take_work
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds

ASK, SERVE = "ask", "serve"
"""The keys of the requests' scope: asking needs the right to write the first, serving to read and write the second."""

TIMEOUT = 30.0
"""How many seconds to wait for an answer by default."""

_QUEUE = "call"
_RETENTION = 60 * 10**9
_SWEEP_LIMIT = 8
"""How many old requests are deleted when another is made."""


class Request(HeldWork):
    """A request to answer. `value` is the payload, `actor` who sent it."""

    def __init__(self, claim: WorkClaim, record: dict[str, Any], where: Scope) -> None:
        super().__init__(claim, record, where)
        self.actor: str = record["actor"]
        self._deadline: int = record["deadline"]


class _Answer(NamedTuple):
    """An answer: a value or an error, and who asked."""

    ok: bool
    value: Any
    kind: str = ""
    asker: str = ""


@declare(not_remote=NOT_REMOTE)
class RequestsOperations(SharedOperations):
    """Operations on requests. `Requests` and `AsyncRequests` have these as methods.

    Writing the key `ask` of its scope allows asking, reading and writing the key `serve` allows serving.
    """

    # Asking -----------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def call(self, payload: Any, *, timeout: Duration = TIMEOUT) -> Any:
        """Send a request, and wait for the answer.

        `HandlerError` if the responder raised an error. `RequestTimeoutError` if no answer came in time; its code says
        more: `no-responder` if nobody took the request, `responder-died` if the lease of the responder ended. The
        request is then cancelled.
        """
        id = await RequestsOperations.ask(self, payload, timeout=timeout)
        return await RequestsOperations.wait(self, id, timeout=timeout)

    @operation(changes=True)
    async def ask(self, payload: Any, *, timeout: Duration = TIMEOUT) -> str:
        """Send a request without waiting. Returns the id to `wait` for, in this process or another. After the
        timeout nobody answers it any more."""
        handle, wait = self._resource.handle, parse_nanoseconds(timeout, "timeout")
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

        await self._write(ASK, writes)
        return name

    @operation
    async def wait(self, id: str, *, timeout: Duration = TIMEOUT) -> Any:
        """Wait for the answer to a request, as `call` does. `NotFoundError` if there is no such request, it was
        cancelled, or its answer was deleted. Another's request needs the right to read the key `serve`."""
        if type(id) is not str or not id or "/" in id:
            raise InvalidError("a request must be given by the id that ask() returned", where=repr(id)[:80])
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

    @operation(changes=True)
    async def cancel(self, id: str) -> bool:
        """Cancel a request. False if it was answered, or does not exist. Another's request needs the right to write the
        key `serve`."""
        try:
            await self._cancel(id)
        except (_AlreadyAnswered, NotFoundError):
            return False
        return True

    # Answering --------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def take(self, *, lease: Duration = LEASE, timeout: Duration | None = 0) -> Request | None:
        """Take a request to answer; None if there was none before the timeout. It is this responder's until the
        lease ends, and another's after that."""
        await self._resource.require("read", SERVE)
        handle = self._resource.handle_for(SERVE)
        found = await wait_until(partial(take_work, handle, self._resource.name, _QUEUE, lease, self._load), timeout)
        if found is None:
            return None
        await self._resource.handle.guard.saw(self.scope, (SERVE,))
        return Request(*found, self._resource.name)

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
        while limit is None or served < limit:
            request = await RequestsOperations.take(self, lease=lease, timeout=timeout)
            if request is None:
                break
            extend = partial(RequestsOperations.extend, self, request, lease)
            heartbeat = work_queue.heartbeat_of(self._resource.handle, lease, extend)
            try:
                with request.causing():
                    answer = _Answer(True, await work_queue.HandlerCall(handler, request.value, heartbeat))
            except Exception as error:  # noqa: BLE001 - it is sent to the caller
                answer = _failure(error)
            served += await self._answer_if_held(request, answer)
        return served

    @operation(changes=True)
    async def extend(self, request: Request, lease: Duration = LEASE) -> None:
        """Extend the lease of a request. `ConflictError` (code `lease-lost`) if it is another's."""
        claim = work_queue.claim_of(request, self._resource.name)
        await work_queue.extend_claim(self._resource.handle_for(SERVE), self._resource.name, claim, lease, "request")

    @operation
    async def pending(self) -> int:
        """Return the number of requests that wait for a responder."""
        await self._resource.require("read", SERVE)
        return await self._read(lambda view: view.count(f"{_QUEUE}/ready/"))

    @operation(changes=True)
    async def trim(self, keep: int = RETAINED_STEPS) -> int:
        """Delete the history but for the last steps, and free its space. Requests and answers are not affected.
        Returns the number of deleted steps."""
        return await self._resource.trim_history(keep)

    # Inside -----------------------------------------------------------------------------------------------------

    async def _find_answer(self, id: str) -> _Answer | None:
        async def look(view: ScopeView) -> _Answer | None:
            found = await view.item(_answer_key(id))
            await self._check_asker("read", id, view, found)
            return None if found is None else _Answer(*found.value)

        return await self._read(look)

    async def _cancel(self, id: str) -> RequestTimeoutError:
        """Cancel a request, and return why it has no answer."""
        where = f"request {id} of {self._resource.name}"
        reason = _NO_RESPONDER

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal reason
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
                    reason = _DIED if int(time) <= view.now else _SLOW
            return gone

        await self._write(ASK, writes)
        return reason(where=where)

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
        key, claim = _answer_key(request.id), work_queue.claim_of(request, self._resource.name)
        packed = pack_value(self._resource.handle, key, list(answer._replace(asker=request.actor)))

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

        await self._write(SERVE, writes)

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


class Requests(SyncApi, RequestsOperations):
    """Requests and their answers: `store.sharing.requests("planner")`."""


class AsyncRequests(AsyncApi, RequestsOperations):
    """Requests for asyncio: operations are awaited, and so is the handler of `serve`."""


class _AlreadyAnswered(ConflictError):
    """There is an answer already."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__("the request was answered")
        self.answer = answer


_MORE = "Start a responder, or allow more time"
_NO_RESPONDER = partial(RequestTimeoutError, "no responder took the request in time", hint=_MORE, code="no-responder")
_DIED = partial(
    RequestTimeoutError,
    "the responder that had the request died, and no other took it in time",
    hint=_MORE,
    code="responder-died",
)
_SLOW = partial(
    RequestTimeoutError, "a responder has the request, and did not answer in time", hint="Allow it more time"
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
