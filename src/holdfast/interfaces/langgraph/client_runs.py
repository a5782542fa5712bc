"""Runs that a client of LangGraph submitted: what it asked for is the input of the run, and what the graph streams is
stored as it comes, so that whoever serves the store can pass it on, and go on after the last part that a client has.

A worker knows such a run by its input. It may be in another process than the server, and on another machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, cast
from uuid import uuid4

import msgspec
from langchain_core.messages import BaseMessage, BaseMessageChunk, message_chunk_to_message
from langgraph.types import Command, Interrupt, Send

from holdfast._structs import convert
from holdfast.agents.runs.parts import PartLog
from holdfast.agents.runs.record import CLIENT
from holdfast.agents.runs.steps import RunSteps, current_steps
from holdfast.errors import InvalidError, UnsupportedError
from holdfast.interfaces.langgraph.protocol_stream import protocol_chunks

MODES = (
    *("values", "updates", "messages", "messages-tuple", "custom"),
    *("events", "debug", "tasks", "checkpoints", "tools"),
)
"""What can be streamed."""

_OWN = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
"""What the run says itself, and no config of a client."""


_STRICT = "__pregel_strict_resume"
"""What tells LangGraph to refuse an answer to a question that nobody asks."""


class ClientRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a client asked for."""

    assistant_id: str
    input: Any = None
    command: dict[str, Any] | None = None
    config: dict[str, Any] = {}
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    modes: list[str] = []
    subgraphs: bool = False
    protocol: bool = False
    """Whether it streams what `threads.stream` has: see `protocol_stream`."""
    interrupt_before: str | list[str] | None = None
    interrupt_after: str | list[str] | None = None
    checkpoint: dict[str, Any] = {}
    strategy: str = "enqueue"
    durability: Literal["sync", "exit"] = "sync"
    strict_resume: bool = False
    webhook: str = ""

    def as_input(self) -> dict[str, Any]:
        """Return the input of the run."""
        return {CLIENT: msgspec.to_builtins(self)}

    @classmethod
    def of(cls, given: Any) -> ClientRun | None:
        """Return what is asked for by an input; None if no client submitted it."""
        if not isinstance(given, Mapping) or list(given) != [CLIENT]:
            return None
        return convert(given[CLIENT], cls)


# Commands ---------------------------------------------------------------------------------------------------------


class _Send(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    input: Any = None


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    resume: Any = None
    goto: str | _Send | list[str | _Send] | None = None
    graph: None = None
    """`RemoteGraph` sends the whole command."""


def to_command(given: Any) -> Command[Any]:
    """Return the command that a client sent: to resume, to change the state, to go on elsewhere."""
    try:
        found = convert(given, _Command)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the command is wrong: {error}"[:300]) from None
    goto = found.goto if isinstance(found.goto, list) else [] if found.goto is None else [found.goto]
    places = [Send(each.node, each.input) if isinstance(each, _Send) else each for each in goto]
    return Command(update=found.update, resume=found.resume, goto=places)


# JSON -------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Encode a value: messages and other models by their fields, what has no form in JSON as text."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (RecursionError, TypeError) as error:
        raise UnsupportedError(f"a value cannot be sent as JSON: {error}"[:200]) from None


def _plain(value: Any) -> Any:
    for name in ("model_dump", "to_dict", "dict", "_asdict"):
        if callable(convert := getattr(value, name, None)) and not isinstance(value, type):
            return convert()
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    return repr(value) if not isinstance(value, Sequence | Mapping) else list(value)


def interrupt_json(interrupt: Interrupt) -> dict[str, Any]:
    """Return an interrupt, with the schema of its answer if it has one."""
    schema = getattr(interrupt, "response_schema", None)
    return {"value": interrupt.value, "id": interrupt.id, **({} if schema is None else {"response_schema": schema})}


# Running ----------------------------------------------------------------------------------------------------------


class FollowedGraph:
    """A graph that a worker runs: as it is, or as the client asked that submitted the run."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._needs_loop = any(_is_async(node) for node in getattr(graph, "nodes", {}).values())

    def stream(self, given: Any, config: Any, **options: Any) -> Iterator[Any]:
        """Run it, and yield after each of its steps."""
        steps, request = _requested()
        if request is None or steps is None:
            return cast("Iterator[Any]", self._graph.stream(given, config, **options))
        return self._follow(steps, request, given, config)

    def astream(self, given: Any, config: Any, **options: Any) -> AsyncIterator[Any]:
        """Run it likewise, awaited."""
        if _requested()[1] is not None:
            raise UnsupportedError(
                "runs of LangGraph's clients need a worker of a synchronous store",
                hint="holdfast work app.py:graph, or holdfast.open(…).worker(graph)",
            )
        return cast("AsyncIterator[Any]", self._graph.astream(given, config, **options))

    def _follow(self, steps: RunSteps, request: ClientRun, given: Any, config: Any) -> Iterator[Any]:
        log = PartLog(steps.table, steps.held)
        told = _Messages(log) if "messages" in request.modes else None
        names: dict[str, str] = {}
        try:
            parts = self._parts(request, given, config)
            try:
                for namespace, mode, chunk in parts:
                    kind = "|".join((mode, *namespace)) if request.subgraphs else mode
                    if mode == "messages":
                        if "messages-tuple" in request.modes:
                            log.add("messages" if not namespace else kind, to_json(chunk))
                        if told is not None:
                            told.add(*chunk)
                    elif mode in request.modes:
                        if mode == "tools":  # only the first event of a call names its tool
                            names.setdefault(chunk["tool_call_id"], chunk.get("tool_name", ""))
                            chunk = {**chunk, "tool_name": names[chunk["tool_call_id"]]}
                        log.add(kind, to_json(chunk))
                    if mode == "values" and not namespace:
                        yield chunk
            finally:
                parts.close()
        finally:
            log.close()

    def _parts(self, request: ClientRun, given: Any, config: Any) -> Any:
        """Yield what the graph streams: the namespace, the mode, and the chunk."""
        modes = {"messages" if each == "messages-tuple" else each for each in request.modes} | {"values"}
        is_new = given is not None  # otherwise a checkpoint has the input, and it goes on from there
        work = None if not is_new else to_command(request.command) if request.command else request.input
        options: dict[str, Any] = {
            "stream_mode": sorted(modes - {"events"}),
            "subgraphs": True,
            "durability": request.durability,
            "interrupt_before": request.interrupt_before or None,
            "interrupt_after": request.interrupt_after or None,
        }
        if request.context is not None:
            options["context"] = request.context
        whole = merged_config(request, config)
        if is_new:
            whole["configurable"] |= request.checkpoint
        if request.strict_resume:
            whole["configurable"][_STRICT] = True
        if request.protocol:
            del options["stream_mode"], options["subgraphs"]
            yield from protocol_chunks(self._graph, work, whole, options, _in_loop if self._needs_loop else None)
            return
        stream: Any
        if "events" in request.modes:
            stream = self._events(work, whole, options)
        elif self._needs_loop:
            stream = self._graph.astream(work, whole, **options)
        else:
            stream = self._graph.stream(work, whole, **options)
        for part in stream if hasattr(stream, "__next__") else _in_loop(stream):
            if request.subgraphs or not part[0] or part[1] == "messages":
                yield part if request.subgraphs else ((), *part[1:])

    async def _events(self, work: Any, config: Any, options: dict[str, Any]) -> AsyncIterator[Any]:
        config["run_id"] = uuid4()
        async for event in self._graph.astream_events(work, config, version="v2", **options):
            yield (), "events", event
            if event["event"] == "on_chain_stream" and event["run_id"] == str(config["run_id"]):
                yield event["data"]["chunk"]


def _requested() -> tuple[RunSteps | None, ClientRun | None]:
    steps = current_steps.get()
    if not steps or not steps.held.stored.input:
        return None, None
    return steps, ClientRun.of(steps.table.handle.codec.unpack(steps.held.stored.input))


def merged_config(request: ClientRun, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run: what the client said, and above that what the worker says."""
    given = request.config
    kept = {key: value for key, value in given.get("configurable", {}).items() if key not in _OWN and key[:2] != "__"}
    about = {"assistant_id": request.assistant_id, **request.metadata}
    return {
        **{key: value for key, value in given.items() if key not in ("configurable", "metadata")},
        "configurable": {**kept, "assistant_id": request.assistant_id, **config["configurable"]},
        "metadata": {**given.get("metadata", {}), **about, **config["metadata"], "run_id": config["metadata"]["run"]},
    }


def _is_async(node: Any) -> bool:
    bound = getattr(node, "bound", None)
    return getattr(bound, "func", False) is None and getattr(bound, "afunc", None) is not None


def _in_loop(stream: AsyncIterator[Any]) -> Iterator[Any]:
    """Yield what an asynchronous iterator yields, in a loop of its own."""
    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    part = runner.run(_next(stream))
                except StopAsyncIteration:
                    return
                yield part
        finally:
            runner.run(stream.aclose())  # type: ignore[attr-defined]


async def _next(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream)


class _Messages:
    """Messages as the mode `messages` has them: whole, as far as they have come, each time that more does."""

    def __init__(self, log: PartLog) -> None:
        self._log = log
        self._begun: dict[str, BaseMessage] = {}

    def add(self, message: BaseMessage, metadata: Mapping[str, Any]) -> None:
        """Add a message, or a chunk of one."""
        id = str(message.id)
        if id not in self._begun:
            self._log.add("messages/metadata", to_json({id: {"metadata": metadata}}))
        if isinstance(message, BaseMessageChunk):
            before = self._begun.get(id)
            whole = message if before is None else cast(Any, before) + message
            self._begun[id] = whole
            self._log.add("messages/partial", to_json([message_chunk_to_message(whole)]))
        else:
            self._begun[id] = message
            self._log.add("messages/complete", to_json([message]))
