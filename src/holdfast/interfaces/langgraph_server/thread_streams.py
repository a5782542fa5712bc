"""Streams of threads: `threads.stream`, as events over HTTP or with commands over a WebSocket, and `join_stream`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any, cast
from urllib.parse import unquote
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast._structs import convert, decode_json
from holdfast.errors import DeniedError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.interfaces.http.app import Server
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.routes import Route, RouteTable, input_type
from holdfast.interfaces.langgraph.client_runs import to_json
from holdfast.interfaces.langgraph_server.assistants import Object
from holdfast.interfaces.langgraph_server.commands import Command, perform
from holdfast.interfaces.langgraph_server.graphs import ServedGraphs
from holdfast.interfaces.langgraph_server.protocol import Event, Wanted, failure, follow_events, gone, success
from holdfast.interfaces.langgraph_server.routes import ClientCall, Later
from holdfast.interfaces.langgraph_server.runs import describe_run, error_json, open_streams, sse, texts_in
from holdfast.interfaces.langgraph_server.thread_events import follow_thread
from holdfast.interfaces.langgraph_server.threads import require

THREAD_STREAMS = RouteTable()

_ABSENT_PAUSE = 0.25
"""How long a subscription waits before it looks again for a thread that is not there yet, in seconds."""

_SETTLE = 0.03
"""How long a client must be silent before events are sent for a subscription, in seconds: it may make several at once,
and take the end of a run that it gets before all of them are made for the end of the others."""

_REFUSED = 4000
"""A WebSocket is closed with this and the status of the error: browsers see no other one."""


def _event_id(text: str) -> int | None:
    """Return the number in the id of an event; 0 for the beginning, None without one."""
    number = text.partition(".")[0]
    if text in ("-", "-1"):
        return 0
    if text and not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise InvalidError("this is not the id of an event", where=repr(text)[:80])
    return int(number) if text else None


def _response(call: ClientCall, body: AsyncIterator[bytes]) -> Later:
    async def counted() -> AsyncIterator[bytes]:
        try:
            async for each in body:
                yield each
        finally:
            open_streams.end(call)

    async def respond(request: Request) -> Response:  # noqa: ARG001
        open_streams.begin(call)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(counted(), media_type="text/event-stream", headers=headers)

    return Later(respond)


# threads.stream over HTTP -----------------------------------------------------------------------------------------


def stream_events(call: ClientCall, thread_id: str, *, last_event_id: str = "", **given: Any) -> Any:
    """Stream the events of a thread, run after run."""
    wanted = Wanted(**given)
    wanted.check()
    require(call, thread_id)
    known = [each for each in (wanted.since, _event_id(last_event_id)) if each is not None]

    async def events() -> AsyncIterator[bytes]:
        try:
            async for each in follow_events(call, thread_id, max(known, default=None)):
                if each is None:
                    yield b": heartbeat\n\n"
                elif wanted.matches(each):
                    yield sse(each.method, each.encode(), each.id)
        except (NotFoundError, DeniedError) as error:
            yield sse("error", to_json(gone(error)))

    return _response(call, events())


def run_command(call: ClientCall, thread_id: str, **given: Any) -> Any:
    """Do what a command says."""
    return perform(call, thread_id, Command(**given))


def _add(path: str, function: Any, body: Any, *query: tuple[Any, ...]) -> None:
    name = function.__name__
    params = input_type(name, "Params", [("thread_id", str), *query])
    THREAD_STREAMS.routes.append(Route("POST", path, name, function.__doc__, function, params, body, Any, 200, False))


_add("/threads/{thread_id}/stream/events", stream_events, Wanted, ("last_event_id", str, ""))
_add("/threads/{thread_id}/commands", run_command, Command)  # which of them write is known when it is read


# threads.join_stream ----------------------------------------------------------------------------------------------

_MODES = ("run_modes", "lifecycle")


@THREAD_STREAMS.get("/threads/{thread_id}/stream")
def join_thread(call: ClientCall, thread_id: str, *, stream_mode: Any = None, last_event_id: str = "") -> Any:
    """Stream what the runs of a thread stream, one after the other; or only where they begin and end."""
    modes = texts_in(stream_mode) or ["run_modes"]
    if unknown := set(modes) - set(_MODES):
        raise UnsupportedError(
            f"a thread does not stream {min(unknown)!r}"[:100],
            hint=f"There are {', '.join(_MODES)}; runs that are asked for updates stream those",
        )
    require(call, thread_id)
    after, has_parts = _event_id(last_event_id), "run_modes" in modes

    async def events() -> AsyncIterator[bytes]:
        try:
            async for each in follow_thread(call, thread_id, after):
                if each is None:
                    yield b": heartbeat\n\n"
                elif each.part is not None:
                    if has_parts:
                        yield sse(each.part.kind, each.part.data, each.number)
                elif not each.is_end:
                    yield sse("metadata", to_json({"run_id": each.run.id, "attempt": 1}), each.number)
                else:
                    if each.run.state == "failed":
                        yield sse("error", to_json({"run_id": each.run.id, **error_json(each.run)}), each.number)
                    ended = describe_run(each.run, ["run_id", "thread_id", "status"])
                    yield sse("run_done", to_json(ended), each.number)
        except (NotFoundError, DeniedError) as error:
            yield sse("error", to_json({"error": error.code, "message": str(error)}))

    return _response(call, events())


# threads.stream over a WebSocket ----------------------------------------------------------------------------------


def socket_route(server: Server, graphs: ServedGraphs) -> BaseRoute:
    """Return the route for WebSockets: events and commands over one connection. Whoever connects has a token in a
    header: a browser's cookie does not count."""

    async def serve(socket: WebSocket) -> None:
        try:
            caller = await server.authenticate(cast(Request, socket))
            call = ClientCall(server.service, caller, graphs, server)
            if caller.session:
                raise InvalidError("a browser's session opens no WebSocket", hint="Use the transport sse")
            open_streams.begin(call)
        except HoldfastError as error:
            await socket.close(_REFUSED + to_problem(error).status)  # before it is accepted: the answer is a 403
            return
        try:
            await socket.accept()
            await _Socket(socket, call, unquote(socket.path_params["thread_id"])).run()
        finally:
            open_streams.end(call)

    return WebSocketRoute("/threads/{thread_id}/stream/events", serve)


class _Subscription:
    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.after = (-1, 0) if wanted.since is None else (wanted.since, sys.maxsize)


class _Socket:
    """A WebSocket: its subscriptions, and what sends them the events of the thread, in order. When another one is made,
    the events are gone through again for it; clients know those that they have by their ids."""

    def __init__(self, socket: WebSocket, call: ClientCall, thread: str) -> None:
        self._socket = socket
        self._call = call
        self._thread = thread
        self._all: dict[str, _Subscription] = {}
        self._sender: asyncio.Task[None] | None = None
        self._is_due = False
        """Whether there are subscriptions for which nothing is sent yet."""

    async def run(self) -> None:
        """Answer commands until the client goes away."""
        try:
            while True:
                reader = asyncio.ensure_future(self._socket.receive_text())
                if self._is_due and not (await asyncio.wait({reader}, timeout=_SETTLE))[0]:
                    self._sender, self._is_due = asyncio.create_task(self._send_events()), False
                waited = {reader} | ({self._sender} if self._sender else set[Any]())
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if self._sender is not None and self._sender.done():
                    reader.cancel()
                    await self._socket.close(1000 if self._sender.exception() is None else 1011)
                    return
                await self._answer(reader.result())
        except (WebSocketDisconnect, KeyError):  # KeyError: a message that is not a text
            pass
        finally:
            await self._stop()

    async def _answer(self, text: str) -> None:
        server = self._call.server
        try:
            await server.authenticate(cast(Request, self._socket))  # its token may have been revoked; and it is counted
            command = decode_json(text, Command)
            if command.method == "subscription.subscribe":
                await self._subscribe(command)
                return
            if command.method == "subscription.unsubscribe":
                found = self._all.pop(str(command.params.get("subscription_id")), None)
                missing = failure(command.id, "no_such_subscription", "there is no such subscription")
                await self._send(missing if found is None else success(command.id, {}))
                return
            answer = await server.work(partial(perform, self._call, self._thread, command))
        except (msgspec.DecodeError, RecursionError) as error:
            answer = failure(None, "invalid_argument", f"the command is wrong: {error}"[:300])
        except HoldfastError as error:
            await self._socket.close(_REFUSED + to_problem(error).status)
            raise WebSocketDisconnect from None
        await self._send(answer)

    async def _subscribe(self, command: Command) -> None:
        try:
            wanted = convert(command.params, Wanted)
            wanted.check()
        except (msgspec.ValidationError, InvalidError) as error:
            await self._send(failure(command.id, "invalid_argument", str(error)[:300]))
            return
        await self._stop()
        id = uuid4().hex
        self._all[id] = _Subscription(wanted)
        await self._send(success(command.id, {"subscription_id": id}))
        self._is_due = True

    async def _send_events(self) -> None:
        first = min((each.after[0] for each in self._all.values()), default=-1)
        after = None if first < 0 else first
        while True:
            try:
                async for event in follow_events(self._call, self._thread, after):
                    if event is not None:
                        await self._send_event(event)
                return  # the token has ended
            except DeniedError as error:
                await self._send(gone(error))
                return
            except NotFoundError as error:
                if any(each.after[0] >= 0 for each in self._all.values()):
                    await self._send(gone(error))
                    return
                await asyncio.sleep(_ABSENT_PAUSE)  # a command may make the thread

    async def _send_event(self, event: Event) -> None:
        new = [each for each in self._all.values() if each.after < (event.number, event.order)]
        for each in new:
            each.after = (event.number, event.order)
        if any(each.wanted.matches(event) for each in new):
            await self._socket.send_text(event.encode().decode())

    async def _send(self, answer: Object) -> None:
        await self._socket.send_text(to_json(answer).decode())

    async def _stop(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            with suppress(asyncio.CancelledError):
                await self._sender
            self._sender = None
