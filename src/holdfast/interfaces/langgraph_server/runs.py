"""Runs as LangGraph's clients submit, follow, await and cancel them: those of the store, done by its workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast._structs import decode_json
from holdfast.agents.runs.parts import Part, RunReader, listeners
from holdfast.agents.runs.record import PASSED, QUEUED, RUNNING, WAITING, Run
from holdfast.engine.namespaces import split_name
from holdfast.errors import ConflictError, InvalidError, NotFoundError, TransientError, UnsupportedError
from holdfast.interfaces.http.app import Server
from holdfast.interfaces.http.routes import Input, Route, RouteTable, input_type, names_in
from holdfast.interfaces.http.service import Service
from holdfast.interfaces.langgraph.client_runs import MODES, ClientRun, interrupt_json, to_command, to_json
from holdfast.interfaces.langgraph.protocol_stream import PROTOCOL_MODES
from holdfast.interfaces.langgraph_server.assistants import Limit, Object, Offset, find_assistant
from holdfast.interfaces.langgraph_server.graphs import assistant_id as id_of_graph
from holdfast.interfaces.langgraph_server.routes import ClientCall, Later, Reply
from holdfast.interfaces.langgraph_server.threads import (
    TEMPORARY,
    create_record,
    graph_of,
    note,
    of_graph,
    place,
    record_of,
    require,
    runs_on,
)
from holdfast.interfaces.langgraph_server.webhooks import WEBHOOK, check_webhook

RUNS = RouteTable()

Nodes = Literal["*"] | list[str] | None
Action = Literal["interrupt", "rollback"]

_STATUSES = {
    "queued": "pending",
    "running": "running",
    "waiting": "interrupted",
    "done": "success",
    "failed": "error",
    "cancelled": "interrupted",
}
_BUSY = {"reject": "refuse", "enqueue": "pass", "interrupt": "replace", "rollback": "replace"}
_CONFIG = ("configurable", "metadata", "tags", "recursion_limit", "max_concurrency", "run_name")

_SHORTEST, _LONGEST = 0.02, 0.25
"""The pauses between two looks for parts that a worker elsewhere stores, in seconds."""

_HERE = 1.0
"""The longest pause where the worker is in this process, and says when there are any."""

_MAX_BATCH = 100

_HEARTBEAT = 15.0
"""After so many seconds without a part a comment is sent, so that nothing on the way closes the connection."""

_CHECKED = 1.0
"""For how many seconds it counts that the caller of a stream may read the run."""

_MAX_EACH = 250
"""How many streams an identity may have open."""

_ABANDONED = timedelta(minutes=10)
"""How long after its end the thread of a run is deleted whose end nobody waited for."""

_SWEEP_EVERY, _PAGE_EVERY, _SWEPT = 60.0, 1.0, 50
"""The least times in seconds between two looks through all such threads, and between two pages of one; and how many
names a page has: a thread has two."""

_CALLED = timedelta(hours=2)
"""For how long the thread of a run whose webhook could not be called stays beyond that."""

_KEPT = timedelta(hours=1)
"""For how long after the end of a run its parts are kept at least."""


class RunRequest(Input):
    """What a client sends to have a graph run."""

    assistant_id: str
    input: Any = None
    command: Object | None = None
    config: Object | None = None
    context: Object | None = None
    metadata: Object | None = None
    stream_mode: str | list[str] | None = None
    stream_subgraphs: bool = False
    stream_resumable: bool | None = None
    interrupt_before: Nodes = None
    interrupt_after: Nodes = None
    checkpoint: Object | None = None
    checkpoint_id: str | None = None
    checkpoint_during: bool | None = None
    multitask_strategy: Literal["reject", "interrupt", "rollback", "enqueue"] | None = None
    if_not_exists: Literal["create", "reject"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    after_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    webhook: str | None = None
    feedback_keys: list[str] | None = None
    strict_resume: bool | None = None
    langsmith_tracer: Object | None = None


_REFUSED = {
    "feedback_keys": "They are for a service that this server does not use",
    "langsmith_tracer": "They are for a service that this server does not use",
}


def refuse(call: ClientCall, request: RunRequest) -> None:
    """Refuse what would have no effect, and a webhook that may not be called."""
    for name, hint in _REFUSED.items():
        if getattr(request, name):
            raise UnsupportedError(f"a run has no {name}", hint=hint)
    if request.webhook:
        check_webhook(request.webhook, private=call.service.options.private_webhooks)
    if unknown := (request.config or {}).keys() - set(_CONFIG):
        raise UnsupportedError(f"a config has no {min(unknown)}"[:100], hint=f"It may have {', '.join(_CONFIG)}")


def texts_in(given: str | Sequence[str] | None) -> list[str]:
    """Return the texts of a parameter that has one, or several, or several as JSON, as the client in JavaScript sends
    them."""
    if isinstance(given, str) and given.startswith("["):
        try:
            return decode_json(given, list[str])
        except msgspec.MsgspecError:
            raise InvalidError("this is no list of texts", where=repr(given)[:80]) from None
    return [given] if isinstance(given, str) else list(given or ())


def parse_modes(given: str | Sequence[str] | None) -> list[str]:
    """Return the modes that are to be streamed. `UnsupportedError` for others."""
    modes = texts_in(given)
    modes = [each for mode in modes for each in mode.split(",") if each]
    if unknown := set(modes) - set(MODES):
        raise UnsupportedError(f"no {min(unknown)!r} is streamed"[:100], hint=f"There are {', '.join(MODES)}")
    return modes


def submit(
    call: ClientCall,
    thread: str | None,
    request: RunRequest,
    *,
    streams: bool,
    protocol: bool = False,
    key: str | None = None,
) -> Run:
    """Submit a run; with the key of an earlier one, return that. Without a thread, it has one of its own."""
    refuse(call, request)
    assistant = find_assistant(call, request.assistant_id)
    if key is not None and thread is not None:
        known = RunReader(call.service.store).find(thread, key, call.caller.identity)
        if known is not None:
            return known
    if request.command:
        to_command(request.command)  # an error is the caller's
    modes = list(PROTOCOL_MODES) if protocol else parse_modes(request.stream_mode) or (["values"] if streams else [])
    given, about = request.config or {}, {"graph_id": assistant["graph_id"], "assistant_id": assistant["assistant_id"]}
    base = assistant["config"]
    config = {**base, **given}
    for part in ("configurable", "metadata"):
        if part in base or part in given:
            config[part] = {**base.get(part, {}), **given.get(part, {})}
    if not isinstance(config.get("configurable", {}), dict) or not isinstance(config.get("metadata", {}), dict):
        raise InvalidError("a config's configurable and metadata are objects")
    context = {**assistant["context"], **(request.context or {})} or None
    strategy = request.multitask_strategy or "enqueue"
    id = new_thread(str(uuid4()), request.on_completion) if thread is None else thread
    checkpoint = request.checkpoint_id or request.checkpoint
    wanted = ClientRun(
        assistant_id=assistant["assistant_id"],
        input=request.input,
        command=request.command,
        config=config,
        context=context,
        metadata=request.metadata or {},
        modes=modes,
        subgraphs=protocol or request.stream_subgraphs,
        protocol=protocol,
        interrupt_before=request.interrupt_before,
        interrupt_after=request.interrupt_after,
        checkpoint={} if not checkpoint else place(id, checkpoint)["configurable"],
        strategy=strategy,
        durability="exit" if request.durability == "exit" or request.checkpoint_during is False else "sync",
        strict_resume=bool(request.strict_resume),
        webhook=request.webhook or "",
    )
    if id.startswith(TEMPORARY) or request.webhook:
        _sweep(call)
    if thread is None or request.if_not_exists == "create":
        create_record(call, id, about)
    require(call, id)
    record = record_of(call, id)
    if record is None or not about.items() <= record.state["metadata"].items():
        note(call, id, about)
    others = runs_on(call, id)
    if strategy == "reject":
        for each in others:
            if each.state == WAITING:  # it is over for clients: the new run answers, or goes on without an answer
                call.store.runs.cancel(each.id)
    if strategy == "rollback":
        for each in others:
            if each.state in (QUEUED, RUNNING):
                roll_back(call, id, each.id)
    until = datetime.now(UTC) - _KEPT
    RunReader(call.service.store).drop_parts([each for each in others if each.ended and each.ended < until])
    submitted = call.store.runs.submit(
        id,
        wanted.as_input(),
        graph=assistant["graph_id"],
        idempotency_key=key,
        on_busy=_BUSY[strategy],  # type: ignore[arg-type]
        attempts=1,
        when=timedelta(seconds=request.after_seconds) if request.after_seconds else None,
        then=WEBHOOK if request.webhook else None,
    )
    listeners.notify(id)
    return submitted


def new_thread(id: str, on_completion: str | None) -> str:
    """Return the name of the thread of a run without one."""
    return id if on_completion == "keep" else f"{TEMPORARY}{id}"


_sweeps = WeakKeyDictionary[Service, tuple[float, str | None]]()
"""When the next look is due, and the page with which it goes on."""


def _sweep(call: ClientCall) -> None:
    """Delete the threads of runs without one that ended a while ago, and that nobody waited for: a page of them, and at
    a later call the next one; from the beginning again after a while."""
    store, now = call.service.store, time.monotonic()
    due, cursor = _sweeps.get(call.service, (0.0, None))
    if now < due:
        return
    page = store.threads(prefix=TEMPORARY, limit=_SWEPT, cursor=cursor)
    _sweeps[call.service] = (now + (_PAGE_EVERY if page.next else _SWEEP_EVERY), page.next)
    until = datetime.now(UTC) - _ABANDONED
    for thread in dict.fromkeys(split_name(each.thread)[0] for each in page):
        runs = runs_on(call, thread)
        if runs and all(run.state not in (QUEUED, RUNNING) and _last_use(run) < until for run in runs):
            with suppress(NotFoundError):  # another request was first
                store.thread(thread).delete()


def _last_use(run: Run) -> datetime:
    asked, ended = ClientRun.of(run.input), run.ended or run.created
    return ended + _CALLED if asked is not None and asked.webhook else ended


def _end_temporary(call: ClientCall, run: Run) -> None:
    """Delete the thread of a run that was submitted without one, and is over or asks something; one with a webhook is
    left to the sweep, since that gets what is there."""
    asked = ClientRun.of(run.input)
    if run.thread.startswith(TEMPORARY) and (asked is None or not asked.webhook):
        call.service.store.thread(run.thread).delete()


_endings = WeakKeyDictionary[Server, asyncio.Semaphore]()


async def _end_later(call: ClientCall, run: Run) -> None:
    """Delete the thread of such a run. One after the other: others wait for what their runs say."""
    async with _endings.setdefault(call.server, asyncio.Semaphore(1)):
        await call.server.work(partial(_end_temporary, call, run))


def roll_back(call: ClientCall, thread: str, id: str) -> None:
    """Cancel a run, and take the thread back to where it was before: what the run stored stays on a branch of its own.
    The record of the run is deleted."""
    runs, handle = call.store.runs, call.store.thread(thread)
    runs.cancel(id)
    listeners.notify(id)
    listeners.notify(id)
    made = [each.name for each in runs.events(id) if each.kind == "checkpoint"]
    if made:
        before = handle.find(made[0]).parent
        if before is None:
            state = record_of(call, thread)
            handle.delete()
            kept = {} if state is None else dict(state.state)
            create_record(call, thread, kept.pop("metadata", {}), **kept)
            return
        handle.fork(f"before-{id}", at=before)
        handle.switch(f"before-{id}")
    _delete(call, id)


def _delete(call: ClientCall, id: str) -> None:
    with suppress(NotFoundError):
        call.service.store.runs.delete(id)


def describe_run(run: Run, select: Sequence[str] | None = None) -> Object:
    """Return a run as the client's type says."""
    asked = ClientRun.of(run.input)
    found: Object = {
        "run_id": run.id,
        "thread_id": run.thread,
        "assistant_id": id_of_graph(run.graph) if asked is None else asked.assistant_id,
        "created_at": run.created.isoformat(),
        "updated_at": (run.ended or run.started or run.created).isoformat(),
        "status": _STATUSES[run.state],
        "metadata": {} if asked is None else asked.metadata,
        "kwargs": {} if asked is None else {"input": asked.input, "command": asked.command, "config": asked.config},
        "multitask_strategy": "enqueue" if asked is None else asked.strategy,
        "cancel_reason": run.error or None if run.state == "cancelled" else None,
    }
    return found if not select else {name: found[name] for name in select if name in found}


def find_run(call: ClientCall, thread: str, id: str) -> Run:
    """Return a run of a thread. `NotFoundError` if the caller may see none of that id there."""
    found = call.store.runs.get(_checked_id(id))
    if found.thread != thread:
        raise NotFoundError("the thread has no such run", where=f"run {id}"[:100])
    return found


def _checked_id(id: str) -> str:
    if not id.isalnum() or not id.isascii():
        raise NotFoundError("there is no such run", where=repr(id)[:80])
    return id


# Following --------------------------------------------------------------------------------------------------------


class _Streams:
    """How many streams are open, by caller."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def begin(self, call: ClientCall) -> None:
        """Count a stream. `TransientError` if there are too many."""
        who, most = call.caller.identity, call.service.options.max_streams
        if (who and self._counts.get(who, 0) >= _MAX_EACH) or sum(self._counts.values()) >= most:
            raise TransientError("too many streams are open", hint="Close some", code="rate-limited")
        self._counts[who] = self._counts.get(who, 0) + 1

    def end(self, call: ClientCall) -> None:
        """Count it no longer."""
        self._counts[call.caller.identity] -= 1


open_streams = _Streams()


def _look(call: ClientCall, run: Run, after: int, limit: int, *, checks: bool) -> tuple[Run, list[Part]]:
    if checks:
        find_run(call, run.thread, run.id)
    return RunReader(call.service.store).look(run, after, limit)


async def follow(call: ClientCall, run: Run, after: int, *, limit: int = 100) -> AsyncIterator[Part | Run | None]:
    """Yield the parts of a run after one as they come; None when none came for a while; and at the end the run."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(woken.set)

    listeners.add(run.id, wake)
    pause, told, checked, was_here = _SHORTEST, loop.time(), -_CHECKED, False
    try:
        while True:
            woken.clear()
            checks = loop.time() - checked >= _CHECKED
            checked = loop.time() if checks else checked
            run, found = await call.server.work(partial(_look, call, run, after, limit, checks=checks))
            for part in found:
                after = part.number
                yield part
            if found:
                pause, told = _SHORTEST, loop.time()
                continue
            if run.is_over or run.state == "waiting":
                yield run
                return
            is_here = listeners.is_done_here(run.id)
            was_here = was_here or is_here  # then its end is told, too
            try:
                await asyncio.wait_for(woken.wait(), _HERE if is_here else _LONGEST if was_here else pause)
                pause = _SHORTEST
            except TimeoutError:
                pause = min(2 * pause, _LONGEST)
            if loop.time() - told >= _HEARTBEAT:
                told = loop.time()
                yield None
    finally:
        listeners.remove(run.id, wake)


def sse(kind: str, data: bytes, number: int | str | None = None) -> bytes:
    """Return an event as it is sent."""
    id = b"" if number is None else f"id: {number}\n".encode()
    return id + b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def error_json(run: Run) -> Object:
    """Return the error of a run."""
    return {"error": run.error_code or "error", "message": run.error}


def stream_response(
    call: ClientCall, run: Run, after: int, modes: Sequence[str], *, cancels: bool = False, created: bool = False
) -> Later:
    """Return the stream of a run, after a part that the client has; of some modes only. If it `cancels`, the run ends
    when the client goes away."""

    async def events() -> AsyncIterator[bytes]:
        is_over = False
        try:
            if after == 0:
                yield sse("metadata", to_json({"run_id": run.id, "attempt": 1}), 0)
            async for each in follow(call, run, after):
                if each is None:
                    yield b": heartbeat\n\n"
                elif isinstance(each, Part):
                    if not modes or _mode_of(each.kind) & set(modes):
                        yield sse(each.kind, _sent(each), each.number)
                else:
                    is_over = True
                    if each.state == "failed":
                        yield sse("error", to_json(error_json(each)))
                    if created:
                        await _end_later(call, each)
        finally:
            open_streams.end(call)
            if cancels and not is_over:
                with suppress(NotFoundError, ConflictError):
                    await asyncio.shield(call.server.work(lambda: call.store.runs.cancel(run.id)))

    async def respond(request: Request) -> Response:  # noqa: ARG001
        open_streams.begin(call)
        where = f"/threads/{run.thread}/runs/{run.id}"
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "location": f"{where}/stream"}
        if created:
            headers["content-location"] = where
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    return Later(respond)


_TOOL_EVENTS = {
    "tool-started": ("on_tool_start", "input", "input"),
    "tool-output-delta": ("on_tool_event", "data", "delta"),
    "tool-finished": ("on_tool_end", "output", "output"),
    "tool-error": ("on_tool_error", "error", "message"),
}
"""The events of LangGraph's tools, and what the types of clients call them and what they have."""


def _sent(part: Part) -> bytes:
    """Return the data of a part as clients have it."""
    if part.kind.partition("|")[0] != "tools":
        return part.data
    given = msgspec.json.decode(part.data)
    event, name, field = _TOOL_EVENTS[given["event"]]
    about = {"event": event, "toolCallId": given["tool_call_id"], "name": given["tool_name"]}
    return msgspec.json.encode({**about, name: given.get(field)})


def _mode_of(kind: str) -> set[str]:
    base = kind.partition("|")[0]
    if base.startswith("messages/"):
        return {"messages"}
    return {"messages-tuple"} if base == "messages" else {base}


def final(call: ClientCall, run: Run) -> Any:
    """Return the values that a run came to."""
    if run.state == "failed":
        return {"__error__": error_json(run)}
    graph = graph_of(call, run.thread)
    with of_graph(run.thread):
        snapshot = graph.get_state({"configurable": {"thread_id": run.thread}})
    values = snapshot.values if isinstance(snapshot.values, dict) else {"values": snapshot.values}
    asked = [interrupt_json(each) for each in snapshot.interrupts]
    has_asked = run.state == "waiting" or run.error_code == PASSED
    return {**values, "__interrupt__": asked} if asked and has_asked else values


def join_response(call: ClientCall, run: Run, *, cancels: bool = False, created: bool = False) -> Later:
    """Return the values that a run comes to, when it is over or waits."""

    async def ended() -> Run:
        async for each in follow(call, run, 1 << 40):
            if isinstance(each, Run):
                return each
        raise NotFoundError("there is no such run")  # not reached: the last is the run

    async def respond(request: Request) -> Response:
        open_streams.begin(call)
        waiting = asyncio.create_task(ended())
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                if cancels:
                    await call.server.work(lambda: call.store.runs.cancel(run.id))
                return Response(status_code=499)  # which nobody gets
            body = to_json(await call.server.work(partial(final, call, waiting.result())))
            if created:
                await _end_later(call, waiting.result())
        finally:
            open_streams.end(call)
            gone.cancel()
            waiting.cancel()
        headers = {"cache-control": "no-store", "content-location": f"/threads/{run.thread}/runs/{run.id}"}
        return Response(body, media_type="application/json", headers=headers)

    return Later(respond)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Operations -------------------------------------------------------------------------------------------------------


def _add(path: str, function: Any) -> None:
    """Add an operation that takes a `RunRequest`."""
    params = input_type(function.__name__, "Params", [(name, str) for name in names_in(path)])
    RUNS.routes.append(
        Route("POST", path, function.__name__, function.__doc__, function, params, RunRequest, Any, 200, True)
    )


def create_run(call: ClientCall, thread_id: str | None = None, **given: Any) -> Any:
    """Submit a run, and return at once."""
    request = RunRequest(**given)
    run = submit(call, thread_id, request, streams=True)
    return Reply(describe_run(run), {"content-location": f"/threads/{run.thread}/runs/{run.id}"})


def stream_run(call: ClientCall, thread_id: str | None = None, **given: Any) -> Any:
    """Submit a run, and stream it."""
    request = RunRequest(**given)
    run = submit(call, thread_id, request, streams=True)
    return stream_response(call, run, 0, (), cancels=request.on_disconnect == "cancel", created=True)


def wait_for_run(call: ClientCall, thread_id: str | None = None, **given: Any) -> Any:
    """Submit a run, and return the values that it comes to."""
    request = RunRequest(**given)
    run = submit(call, thread_id, request, streams=False)
    return join_response(call, run, cancels=request.on_disconnect == "cancel", created=True)


def _add_cancel(path: str, function: Any, *body: tuple[Any, ...]) -> None:
    """Add an operation that has parameters in the query of a POST."""
    name, query = function.__name__, [("wait", int, 0), ("action", Action, "interrupt")]
    params = input_type(name, "Params", [*((each, str) for each in names_in(path)), *query[0 if not body else 1 :]])
    kind = input_type(name, "Request", body) if body else None
    RUNS.routes.append(Route("POST", path, name, function.__doc__, function, params, kind, Any, 200, True))


_add("/threads/{thread_id}/runs", create_run)
_add("/threads/{thread_id}/runs/stream", stream_run)
_add("/threads/{thread_id}/runs/wait", wait_for_run)
_add("/runs", create_run)
_add("/runs/stream", stream_run)
_add("/runs/wait", wait_for_run)


class _BatchRequest(RunRequest):
    """One of several runs."""

    thread_id: str | None = None
    assistantId: str | None = None  # noqa: N815 - the client in JavaScript sends it once more under this name


def create_runs(call: ClientCall, items: list[_BatchRequest]) -> Any:
    """Submit several runs, and return at once."""
    if len(items) > _MAX_BATCH:
        raise InvalidError(f"a batch has at most {_MAX_BATCH} runs, and this one has {len(items)}")
    for each in items:  # none is submitted if another is refused
        refuse(call, each)
        find_assistant(call, each.assistant_id)
        if each.thread_id is not None and each.if_not_exists != "create":
            require(call, each.thread_id)
    return [describe_run(submit(call, each.thread_id, each, streams=True)) for each in items]


_BATCH = (input_type("create_runs", "Params", []), cast(Any, list[_BatchRequest]), Any, 200, True)
RUNS.routes.append(Route("POST", "/runs/batch", "create_runs", "Submit several runs.", create_runs, *_BATCH))


@RUNS.get("/threads/{thread_id}/runs")
def list_runs(
    call: ClientCall,
    thread_id: str,
    *,
    limit: Limit = 10,
    offset: Offset = 0,
    status: str | None = None,
    select: Any = None,
) -> Any:
    """List the runs of a thread, the latest first."""
    require(call, thread_id)
    wanted = [each for each in runs_on(call, thread_id) if status in (None, _STATUSES[each.state])]
    chosen = [select] if isinstance(select, str) else select
    return [describe_run(each, chosen) for each in wanted[offset : offset + limit]]


@RUNS.get("/threads/{thread_id}/runs/{run_id}")
def get_run(call: ClientCall, thread_id: str, run_id: str) -> Any:
    """Return a run."""
    return describe_run(find_run(call, thread_id, run_id))


@RUNS.delete("/threads/{thread_id}/runs/{run_id}")
def delete_run(call: ClientCall, thread_id: str, run_id: str) -> Any:
    """Delete the record of a run that is over."""
    call.owned.runs.delete(find_run(call, thread_id, run_id).id)
    return {}


@RUNS.get("/threads/{thread_id}/runs/{run_id}/join")
def join_run(call: ClientCall, thread_id: str, run_id: str, *, cancel_on_disconnect: bool = False) -> Any:
    """Return the values that a run comes to."""
    if cancel_on_disconnect:
        call.require_write()
    return join_response(call, find_run(call, thread_id, run_id), cancels=cancel_on_disconnect)


@RUNS.get("/threads/{thread_id}/runs/{run_id}/stream")
def stream_of_run(
    call: ClientCall,
    thread_id: str,
    run_id: str,
    *,
    stream_mode: Any = None,
    cancel_on_disconnect: bool = False,
    last_event_id: str = "",
) -> Any:
    """Stream a run, from its beginning or after the part whose id the client has."""
    if cancel_on_disconnect:
        call.require_write()
    if last_event_id not in ("", "-1") and not (last_event_id.isdecimal() and len(last_event_id) < 12):
        raise InvalidError("this is not the id of an event", where=repr(last_event_id)[:80])
    run, modes = find_run(call, thread_id, run_id), parse_modes(stream_mode)
    after = 0 if last_event_id in ("", "-1") else int(last_event_id)
    return stream_response(call, run, after, modes, cancels=cancel_on_disconnect)


def cancel_run(
    call: ClientCall,
    thread_id: str,
    run_id: str,
    wait: int = 0,  # noqa: ARG001 - a run is cancelled at once
    action: Action = "interrupt",
) -> Any:
    """Cancel a run: whoever has it stores nothing more. With the action `rollback`, the thread goes back to where it
    was before."""
    return _cancel(call, [find_run(call, thread_id, run_id)], action)


def cancel_runs(
    call: ClientCall,
    action: Action = "interrupt",
    thread_id: str | None = None,
    run_ids: list[str] | None = None,
    status: Literal["pending", "running", "all"] | None = None,
) -> Any:
    """Cancel runs of a thread, those with some ids or a status; or all in a status."""
    if thread_id is None and status is None:
        raise InvalidError("nothing says which runs", hint="Name a thread, or a status")
    if thread_id is not None:
        require(call, thread_id)
        found: Sequence[Run] = runs_on(call, thread_id)
    else:
        found = [*call.store.runs.list(state="queued").all(), *call.store.runs.list(state="running").all()]
    wanted = [
        each
        for each in found
        if not each.is_over
        and (run_ids is None or each.id in run_ids)
        and status in (None, "all", _STATUSES[each.state])
    ]
    return _cancel(call, wanted, action)


def _cancel(call: ClientCall, runs: Sequence[Run], action: Action) -> Any:
    for each in runs:
        if action == "rollback":
            roll_back(call, each.thread, each.id)
        else:
            call.store.runs.cancel(each.id)
            listeners.notify(each.id)
    return {}


_add_cancel("/threads/{thread_id}/runs/{run_id}/cancel", cancel_run)
_add_cancel(
    "/runs/cancel",
    cancel_runs,
    ("thread_id", str | None, None),
    ("run_ids", list[str] | None, None),
    ("status", Literal["pending", "running", "all"] | None, None),
)
