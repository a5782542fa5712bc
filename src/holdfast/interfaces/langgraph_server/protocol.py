"""The protocol of `threads.stream`: events with a channel and a namespace, made from what is stored of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from holdfast.errors import DeniedError, InvalidError, NotFoundError
from holdfast.interfaces.http.routes import Input
from holdfast.interfaces.langgraph.client_runs import to_json
from holdfast.interfaces.langgraph.protocol_stream import checkpoint_envelope
from holdfast.interfaces.langgraph_server.routes import ClientCall
from holdfast.interfaces.langgraph_server.thread_events import Moment, follow_thread

CHANNELS = ("values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom")

_ENDS = {"done": "completed", "failed": "failed"}
"""How the protocol calls the ends of runs. One that asks something, or was cancelled, is `interrupted`."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class Wanted(Input):
    """Which events a client asks for: those of some channels, in namespaces that begin with one of some, and not more
    than `depth` further down; those after a number."""

    channels: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]
    namespaces: Annotated[list[list[str]], msgspec.Meta(max_length=1000)] | None = None
    depth: Count | None = None
    since: Count | None = None

    def check(self) -> None:
        """Raise `InvalidError` if there is no such channel."""
        for each in self.channels:
            if each not in CHANNELS and not each.startswith("custom:"):
                raise InvalidError(f"there is no channel {each!r}"[:80], hint=f"There are {', '.join(CHANNELS)}")

    def matches(self, event: Event) -> bool:
        """Return whether it asks for an event."""
        channel = "input" if event.method == "input.requested" else event.method
        if channel not in self.channels and not (event.name and f"custom:{event.name}" in self.channels):
            return False
        return not self.namespaces or any(_is_below(event.namespace, each, self.depth) for each in self.namespaces)


def _is_below(namespace: Sequence[str], prefix: Sequence[str], depth: int | None) -> bool:
    """Return whether a namespace begins with a prefix, whose parts may be names of nodes without the ids of tasks."""
    return (
        len(prefix) <= len(namespace)
        and all(each in (part, part.partition(":")[0]) for each, part in zip(prefix, namespace, strict=False))
        and (depth is None or len(namespace) - len(prefix) <= depth)
    )


class Event(NamedTuple):
    """An event of the protocol."""

    number: int
    order: int
    """Of several with a number."""
    method: str
    namespace: list[str]
    time: int
    data: Any
    node: str | None = None
    name: str = ""
    """Of a custom event that has one."""

    @property
    def id(self) -> str:
        """The id by which clients know it."""
        return f"{self.number}.{self.order}" if self.order else str(self.number)

    def encode(self) -> bytes:
        """Return it as it is sent."""
        node = {} if self.node is None else {"node": self.node}
        params = {"namespace": self.namespace, "timestamp": self.time, **node, "data": self.data}
        whole = {"type": "event", "event_id": self.id, "seq": self.number, "method": self.method, "params": params}
        return to_json(whole)


async def follow_events(call: ClientCall, thread: str, after: int | None) -> Any:
    """Yield the events of a thread after one, of all channels; None when none came for a while."""
    asked = set[str]()
    async for moment in follow_thread(call, thread, after):
        if moment is None:
            yield None
            continue
        for each in events_of(moment, asked):
            yield each


def events_of(moment: Moment, asked: set[str]) -> Iterator[Event]:
    """Yield the events of a moment of a thread. What was `asked` is told once."""
    number, run, part = moment.number, moment.run, moment.part
    if part is None:
        when = (run.ended if moment.is_end else run.started) or run.created
        data: dict[str, Any] = {"event": "running", "graph_name": run.graph}
        if moment.is_end:
            data["event"] = _ENDS.get(run.state, "interrupted")
            if run.state == "failed":
                data["error"] = run.error or run.error_code
        yield Event(number, 0, "lifecycle", [], int(when.timestamp() * 1000), data)
        return
    mode, *namespace = part.kind.split("|")
    for index, (method, raw, node, name) in enumerate(_converted(mode, part.data, asked)):
        yield Event(number, index, method, namespace, part.time // 1_000_000, raw, node, name)


_Converted = tuple[str, Any, str | None, str]


def _converted(mode: str, data: bytes, asked: set[str]) -> Iterator[_Converted]:
    """Yield the method and the data of the events of a part, and perhaps a node, and a name. What the protocol does not
    have, as messages of `runs.stream`, yields none."""
    if mode in ("tasks", "tools", "lifecycle"):
        yield mode, msgspec.Raw(data), None, ""
        return
    found = msgspec.json.decode(data)
    if mode == "values":
        yield from _questions(found.pop("__interrupt__", ()) if isinstance(found, dict) else (), asked)
        if found or not isinstance(found, dict):
            yield mode, found, None, ""
    elif mode == "updates" and isinstance(found, dict):
        for node, values in found.items():
            if node == "__interrupt__":
                yield from _questions(values, asked)
            else:
                yield mode, values if isinstance(values, dict) else {"__root__": values}, node, ""
    elif mode == "custom":
        yield mode, {"payload": found}, None, ""
    elif mode.startswith("custom:"):
        name = mode.removeprefix("custom:")
        yield "custom", {"name": name, "payload": found}, None, name
    elif mode == "input":
        yield from _questions([{"id": found["interrupt_id"], "value": found["payload"]}], asked)
    elif mode == "checkpoints":
        yield mode, checkpoint_envelope(found) if "config" in found else found, None, ""
    elif mode == "messages" and isinstance(found[0], dict) and "event" in found[0]:
        yield mode, *_message(*found), ""


def _questions(given: Sequence[Mapping[str, Any]], asked: set[str]) -> Iterator[_Converted]:
    for each in given:
        if each["id"] not in asked:
            asked.add(each["id"])
            # The client in Python reads the second name.
            yield (
                "input.requested",
                {"interrupt_id": each["id"], "payload": each["value"], "value": each["value"]},
                None,
                "",
            )


def _message(event: dict[str, Any], about: dict[str, str]) -> tuple[dict[str, Any], str | None]:
    if event["event"] == "message-start" and about:
        names = {key.removeprefix("ls_").removesuffix("_name"): value for key, value in about.items()}
        event = {**event, "metadata": {**names, **event.get("metadata", {})}}
    return event, about.get("langgraph_node")


# Commands ---------------------------------------------------------------------------------------------------------

ErrorCode = Literal[
    "invalid_argument", "unknown_command", "unknown_error", "no_such_run", "no_such_checkpoint", "permission_denied",
    "not_supported", "no_such_interrupt", "no_such_subscription",
]  # fmt: skip


def success(id: int, result: Any, **meta: Any) -> dict[str, Any]:
    """Return the answer to a command."""
    return {"type": "success", "id": id, "result": result, **({"meta": meta} if meta else {})}


def failure(id: int | None, code: ErrorCode, message: str) -> dict[str, Any]:
    """Return the answer to a command that was refused; without an id, the end of a stream."""
    return {"type": "error", "id": id, "error": code, "message": message}


def gone(error: NotFoundError | DeniedError) -> dict[str, Any]:
    """Return the last frame of the stream of a thread that is there no longer, or not for the caller."""
    return failure(None, "no_such_run" if isinstance(error, NotFoundError) else "permission_denied", str(error))
