"""The commands of `threads.stream`: to begin a run, to answer what a graph asks, to read and fork a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import BoundedSemaphore
from typing import Any, Literal

import msgspec

from holdfast._structs import convert
from holdfast.agents.runs.record import RUNNING
from holdfast.errors import ConflictError, DeniedError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.interfaces.http.routes import Input
from holdfast.interfaces.langgraph_server.assistants import Object, find_assistant
from holdfast.interfaces.langgraph_server.protocol import ErrorCode, failure, success
from holdfast.interfaces.langgraph_server.routes import ClientCall
from holdfast.interfaces.langgraph_server.runs import RunRequest, submit
from holdfast.interfaces.langgraph_server.shapes import checkpoint_json
from holdfast.interfaces.langgraph_server.thread_events import last_number
from holdfast.interfaces.langgraph_server.threads import graph_of, of_graph, place, record_of, require, runs_on

_ABOUT_TO_ASK, _PAUSE = 2.0, 0.02
"""For how long an answer waits for its question, and the pauses between two looks, in seconds: a client has a question
before its thread does, where the graph that asks is in another one."""

_MOST_WAITING = 4
"""How many answers may wait at a time: each has one of the server's threads."""


class _NoSuchInterruptError(InvalidError):
    """What is answered is not asked."""


_CODES: tuple[tuple[type[HoldfastError], ErrorCode], ...] = (
    (_NoSuchInterruptError, "no_such_interrupt"),
    (NotFoundError, "no_such_run"),
    (DeniedError, "permission_denied"),
    (UnsupportedError, "not_supported"),
    (InvalidError, "invalid_argument"),
    (ConflictError, "invalid_argument"),
)
"""The codes of the protocol for our errors. Others are answered as everywhere: a client tries again."""


class Command(msgspec.Struct, kw_only=True):
    """A command of a client."""

    id: int
    method: str
    params: Object = {}


def perform(call: ClientCall, thread: str, command: Command) -> Object:
    """Do what a command says, and return the answer."""
    known = _COMMANDS.get(command.method)
    if known is None:
        message = _REFUSED.get(command.method)
        if message is None:
            return failure(command.id, "unknown_command", f"there is no command {command.method!r}"[:80])
        return failure(command.id, "not_supported", message)
    kind, function, changes = known
    try:
        if changes:
            call.require_write()
            call.server.authenticator.check_csrf(call.caller, "")  # of a browser's cookie, which has no place here
        try:
            given = convert(command.params, kind)
        except msgspec.ValidationError as error:
            raise InvalidError(f"the command is wrong: {error}"[:300]) from None
        through = last_number(call, thread) if changes else 0
        result = function(call, thread, given)
    except HoldfastError as error:
        for kind_of_error, code in _CODES:
            if isinstance(error, kind_of_error):
                return failure(command.id, code, str(error))
        raise
    return success(command.id, result, thread_id=thread, **({"applied_through_seq": through} if changes else {}))


class _Start(Input):
    assistant_id: str
    input: Any = None
    config: Object | None = None
    metadata: Object | None = None
    multitaskStrategy: Literal["reject", "interrupt", "rollback", "enqueue"] | None = None  # noqa: N815 - its name
    langsmith_tracer: Object | None = None


def _start(call: ClientCall, thread: str, given: _Start) -> Object:
    config, checkpoint = _split(given.config)
    request = RunRequest(
        assistant_id=given.assistant_id,
        input=given.input,
        config=config,
        metadata=given.metadata,
        checkpoint=checkpoint,
        multitask_strategy=given.multitaskStrategy,
        if_not_exists="create",
        langsmith_tracer=given.langsmith_tracer,
    )
    graph = call.graphs.of(find_assistant(call, given.assistant_id)["graph_id"], call.store)
    if given.input is not None and checkpoint is None and _pending(call, thread, graph):
        request.command, request.input = {"resume": given.input}, None
    return {"run_id": submit(call, thread, request, streams=True, protocol=True).id}


def _split(config: Object | None) -> tuple[Object | None, Object | None]:
    """Return a config without what names a checkpoint, and that."""
    if not config or not isinstance(fields := config.get("configurable", {}), dict):
        return config, None
    named = {key: value for key, value in fields.items() if key.startswith("checkpoint_") and value}
    rest = {key: value for key, value in fields.items() if not key.startswith("checkpoint_") and key != "thread_id"}
    return {**config, "configurable": rest}, named if named.get("checkpoint_id") else None


def _pending(call: ClientCall, thread: str, graph: Any = None) -> list[str]:
    """Return the ids of what a graph asks on a thread; none if there is no thread."""
    try:
        require(call, thread)
        call.store.thread(thread).info()
    except NotFoundError:
        return []
    with of_graph(thread):
        asks = graph_of(call, thread) if graph is None else graph
        return [each.id for each in asks.get_state(place(thread)).interrupts]


class _Answer(msgspec.Struct):
    interrupt_id: str
    response: Any = None
    namespace: list[str] = []


class _Respond(Input):
    interrupt_id: str | None = None
    response: Any = None
    namespace: list[str] | None = None
    responses: list[_Answer] | None = None
    update: Any = None
    goto: Any = None
    config: Object | None = None
    metadata: Object | None = None


_waiting = BoundedSemaphore(_MOST_WAITING)


def _asked(call: ClientCall, thread: str, wanted: set[str]) -> list[str]:
    """Return the ids of what a graph asks on a thread. Waits a while for some, while a run goes on."""
    deadline, waits = time.monotonic() + _ABOUT_TO_ASK, False
    try:
        while True:
            goes_on = any(each.state == RUNNING for each in runs_on(call, thread))  # before the question is looked for
            asked = _pending(call, thread)
            if not goes_on or wanted <= {*asked} or time.monotonic() > deadline:
                return asked
            waits = waits or _waiting.acquire(blocking=False)
            if not waits:
                return asked
            time.sleep(_PAUSE)
    finally:
        if waits:
            _waiting.release()


def _respond(call: ClientCall, thread: str, given: _Respond) -> Object:
    answers = given.responses or []
    if given.interrupt_id is not None:
        answers = [*answers, _Answer(given.interrupt_id, given.response)]
    if not answers:
        raise InvalidError("the command answers nothing", hint="Give it an interrupt_id, or responses")
    require(call, thread)
    answered = {each.interrupt_id for each in answers}
    if unknown := answered.difference(asked := _asked(call, thread, answered)):
        if asked:
            raise _NoSuchInterruptError(f"the thread does not ask {min(unknown)!r}"[:100])
        raise InvalidError("the thread asks nothing", where=f"thread {thread!r}"[:100])
    record = record_of(call, thread)
    known = {} if record is None else record.state["metadata"]
    command = {"resume": {each.interrupt_id: each.response for each in answers}}
    command |= {key: value for key in ("update", "goto") if (value := getattr(given, key)) is not None}
    config, _ = _split(given.config)
    request = RunRequest(
        assistant_id=known.get("assistant_id") or known.get("graph_id") or call.graphs.names[0],
        command=command,
        config=config,
        metadata=given.metadata,
    )
    submit(call, thread, request, streams=True, protocol=True)
    return {}


class _Get(Input):
    namespace: list[str] | None = None
    keys: list[str] | None = None


def _get(call: ClientCall, thread: str, given: _Get) -> Object:
    found = _states(call, thread, given.namespace)[0]
    where = checkpoint_json(found.config)
    values = found.values
    if given.keys is not None and isinstance(values, dict):
        values = {key: values[key] for key in given.keys if key in values}
    named = {} if where is None else {"checkpoint": {"id": where["checkpoint_id"], "ns": where["checkpoint_ns"]}}
    return {"values": values, **named}


def _states(
    call: ClientCall, thread: str, namespace: list[str] | None, limit: int = 0, before: str | None = None
) -> Any:
    """Return the latest state of a thread or a graph in it, or, with a limit, its history."""
    require(call, thread)
    where = place(thread, {"checkpoint_ns": "|".join(namespace or ())})
    graph = graph_of(call, thread)
    with of_graph(thread):
        if not limit:
            return [graph.get_state(where)]
        earlier = None if before is None else place(thread, before)
        return list(graph.get_state_history(where, limit=limit, before=earlier))


class _Checkpoints(Input):
    namespace: list[str] | None = None
    limit: int = 10
    before: str | None = None


def _list_checkpoints(call: ClientCall, thread: str, given: _Checkpoints) -> Object:
    found = [
        {
            "id": each.config["configurable"]["checkpoint_id"],
            "timestamp": each.created_at,
            "step": (each.metadata or {}).get("step", 0),
            "metadata": each.metadata or {},
        }
        for each in _states(call, thread, given.namespace, max(1, given.limit), given.before)
    ]
    return {"checkpoints": found}


class _Fork(Input):
    checkpoint_id: str
    input: Any = None
    config: Object | None = None


def _fork(call: ClientCall, thread: str, given: _Fork) -> Object:
    require(call, thread)
    record = record_of(call, thread)
    known = {} if record is None else record.state["metadata"]
    config, _ = _split(given.config)
    request = RunRequest(
        assistant_id=known.get("assistant_id") or known.get("graph_id") or call.graphs.names[0],
        input=given.input,
        config=config,
        checkpoint_id=given.checkpoint_id,
    )
    return {"run_id": submit(call, thread, request, streams=True, protocol=True).id, "thread_id": thread}


_Known = tuple[type[Input], Callable[[ClientCall, str, Any], Object], bool]

_COMMANDS: dict[str, _Known] = {
    "run.start": (_Start, _start, True),
    "input.respond": (_Respond, _respond, True),
    "state.fork": (_Fork, _fork, True),
    "state.get": (_Get, _get, False),
    "state.listCheckpoints": (_Checkpoints, _list_checkpoints, False),
}
"""What each command takes, what does it, and whether it changes something."""

_REFUSED = {
    "input.inject": "A message is an input of the next run: run.start",
    "agent.getTree": "The graph is read by assistants.get_graph, and what goes on by the channel lifecycle",
    "subscription.subscribe": "Over HTTP, events are streamed by POST /threads/{thread_id}/stream/events",
    "subscription.unsubscribe": "Over HTTP, close the stream of events",
    "subscription.reconnect": "Open the stream again, with `since`: no event is lost",
}
"""What is refused, with what to do in place of it."""
