"""What a graph streams for `threads.stream` of LangGraph's clients: the events of LangGraph's third version of streams.

The chunks that come out are those of the modes of `stream`, with the namespace of the graph before them, so that the
parts that are stored of a run are the same whichever way it was asked for. Only messages differ, which come in blocks
of their content, and two modes are new: `lifecycle`, of subgraphs, and `input`, the questions of a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage

from holdfast.errors import UnsupportedError

PROTOCOL_MODES = (
    *("values", "updates", "messages-tuple", "tools", "custom", "tasks", "checkpoints"),
    *("lifecycle", "input"),
)
"""All modes that such a run streams."""

Chunk = tuple[tuple[str, ...], str, Any]
"""A namespace, a mode, and what is streamed."""

_KEPT = ("langgraph_node", "run_id", "ls_provider", "ls_model_name", "ls_model_type")
"""What is kept of the metadata of a message, which comes with every piece of it."""


def protocol_chunks(
    graph: Any,
    work: Any,
    config: Mapping[str, Any],
    options: dict[str, Any],
    in_loop: Callable[[Any], Iterator[Any]] | None,
) -> Iterator[Chunk]:
    """Run a graph and yield what it streams; one with coroutine functions by `in_loop`, otherwise None."""
    try:
        from langgraph.stream import StreamTransformer
    except ImportError as error:
        raise UnsupportedError(
            "this version of LangGraph has no streams of events", hint="pip install -U 'langgraph>=1.2'"
        ) from error

    untold = list[Any]()

    class Tasks(StreamTransformer):
        """Keeps the events of tasks, which LangGraph only tells as those of lifecycles."""

        before_builtins = True
        required_stream_modes = ("values", "updates", "messages", "tools", "custom", "tasks", "checkpoints")

        def init(self) -> dict[str, Any]:
            return {}

        def process(self, event: Any) -> bool:
            if not self.scope and event["method"] == "tasks":
                untold.append(event)
            return True

    # LangGraph says once in a process that this may change.
    warnings.filterwarnings("ignore", message="The v3 streaming protocol on Pregel is experimental")
    options = {**options, "version": "v3", "transformers": [Tasks]}
    chunks = _Chunks()
    if in_loop is not None:
        for event in in_loop(_async_events(graph, work, config, options)):
            for each in (*_taken(untold), event):
                yield from chunks.of(each)
    else:
        with graph.stream_events(work, config, **options) as run:
            for event in run:
                for each in (*_taken(untold), event):
                    yield from chunks.of(each)
    for each in _taken(untold):
        yield from chunks.of(each)
    yield from chunks.rest()


async def _async_events(graph: Any, work: Any, config: Any, options: dict[str, Any]) -> AsyncIterator[Any]:
    run = await graph.astream_events(work, config, **options)
    try:
        async for event in run:
            yield event
    finally:
        await run.abort()


def _taken(events: list[Any]) -> list[Any]:
    taken = events[:]
    events.clear()
    return taken


class _Chunks:
    """Makes chunks of events. A checkpoint comes before the values that it has, so that clients know where they are;
    LangGraph tells it right after them."""

    def __init__(self) -> None:
        self._held: Chunk | None = None
        self._asked = set[str]()
        self._begun = dict[str, str]()

    def of(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """Yield the chunks of an event, and those that were held until it came."""
        method, params = event["method"], event["params"]
        namespace, data = tuple(params["namespace"]), params["data"]
        held, self._held = self._held, None
        if held is not None and (method, namespace) == ("checkpoints", held[0]):
            yield namespace, method, checkpoint_envelope(data)
            yield held
            return
        if held is not None:
            yield held
        if method == "values":
            self._held = (namespace, method, data)
            for each in params.get("interrupts") or ():
                if each.id not in self._asked:
                    self._asked.add(each.id)
                    yield namespace, "input", {"interrupt_id": each.id, "payload": each.value}
        elif method == "checkpoints":
            yield namespace, method, checkpoint_envelope(data)
        elif method == "lifecycle":
            fields = dict(data)
            yield tuple(fields.pop("namespace")), method, fields
        elif method == "messages":
            yield from self._messages(namespace, *data)
        elif method != "updates" or "__interrupt__" not in data:
            yield namespace, method, data

    def rest(self) -> Iterator[Chunk]:
        """Yield what is still held."""
        if self._held is not None:
            yield self._held

    def _messages(self, namespace: tuple[str, ...], payload: Any, metadata: Mapping[str, Any]) -> Iterator[Chunk]:
        about = {key: str(metadata[key]) for key in _KEPT if metadata.get(key) is not None}
        if isinstance(payload, Mapping):
            if payload.get("role") == "tool":
                return
            run = about.get("run_id", "")
            if payload["event"] == "message-start":
                self._begun[run] = payload["id"]
            id = self._begun.get(run)
            # Several may come at a time: clients tell them apart by this.
            yield namespace, "messages", ({**payload, **({"message_id": id} if id else {})}, about)
        elif isinstance(payload, BaseMessage) and not isinstance(payload, AIMessageChunk | ToolMessage):
            from langchain_core.language_models._compat_bridge import message_to_events

            for each in message_to_events(payload, message_id=payload.id):
                yield namespace, "messages", ({**each, "message_id": payload.id}, about)


def checkpoint_envelope(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the protocol says of a checkpoint."""
    where = data["config"]["configurable"]
    parent = (data.get("parent_config") or {}).get("configurable", {}).get("checkpoint_id")
    about = data["metadata"] or {}
    found = {"id": where["checkpoint_id"], "step": about.get("step", 0), "source": about.get("source", "loop")}
    return {**found, **({} if parent is None else {"parent_id": parent})}
