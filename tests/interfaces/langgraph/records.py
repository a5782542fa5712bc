"""What a run showed, as plain data that is the same for every saver that behaves the same.

Ids of checkpoints, tasks, interrupts and messages are random; each becomes the number of its first
appearance, so that who refers to whom is still compared. All that is left out is left out here:

- Times become `<time>`, once they were seen to be one.
- A channel's version becomes its count. Savers choose what versions look like, and LangGraph only
  asks that they grow.
- A config keeps the keys that address a checkpoint. `InMemorySaver` hands back the config it was
  given, with whatever else a caller put there.
- An exception becomes its `repr`, which is what LangGraph's serializer stores of it.
- `InMemorySaver` keeps a delta channel's snapshot by the channel's version, so it comes back in later
  checkpoints too, until the channel is written. There it is left out; the steps before it are enough.
- Which of a pydantic model's fields were set is not compared: LangGraph's serializer sets them all.
- Messages of pending writes have no ids where LangGraph chose them: it sets them when it applies the write,
  which a saver may have stored by then or not.
- Keys of the dicts that LangGraph itself makes (configs, metadata, channel values) have no order.
  Those in values of channels keep theirs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import PregelTask, Send, StateSnapshot
from pydantic import BaseModel

ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")
AN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")

LONG = 10_000
"""Texts of more characters than this hold no ids."""


class Ids:
    """Numbers ids by their first appearance."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.leave_out_chosen = False
        """Whether ids of messages that LangGraph chose are left out."""

    def text(self, text: str) -> str:
        """The text, with each id in it replaced by its number."""
        if len(text) > LONG:
            return text
        return AN_ID.sub(lambda found: f"<{self.known.setdefault(found[0], len(self.known))}>", text)

    def rank(self, text: str) -> tuple[int, ...]:
        """Where a text stands among others, by the ids in it that were seen before."""
        return tuple(self.known.get(found, len(self.known)) for found in AN_ID.findall(text))

    def plain(self, value: Any) -> Any:
        """A value of a channel, with its exact type."""
        if isinstance(value, Enum):
            return kind(value), value.name
        if type(value) is str:
            return self.text(value)
        if value is None or type(value) in (bool, int, bytes):
            return value
        if type(value) is float:
            return "float", repr(value)
        if isinstance(value, StateSnapshot):
            return self.snapshot(value)
        if isinstance(value, PregelTask):
            return self.task(value)
        if isinstance(value, _DeltaSnapshot):
            return kind(value), self.plain(value.value)
        if isinstance(value, dict):
            return kind(value), [(self.plain(key), self.plain(item)) for key, item in value.items()]
        if isinstance(value, Send):
            return kind(value), value.node, self.plain(value.arg), self.plain(value.timeout)
        if isinstance(value, list | tuple):
            return kind(value), [self.plain(item) for item in value]
        if isinstance(value, set | frozenset):
            return kind(value), [self.plain(item) for item in sorted(value, key=repr)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return kind(value), [(name, self.plain(getattr(value, name))) for name in names]
        if isinstance(value, BaseModel):
            held = {**value.__dict__, **(value.__pydantic_extra__ or {})}
            if self.leave_out_chosen and isinstance(value, BaseMessage) and AN_ID.fullmatch(value.id or ""):
                held["id"] = None
            return kind(value), [(name, self.plain(item)) for name, item in held.items()]
        if isinstance(value, BaseException):
            return repr(value)
        if isinstance(value, datetime):
            return kind(value), value.isoformat(), str(value.tzinfo), value.fold
        return kind(value), self.text(repr(value))

    def written(self, value: Any) -> Any:
        """A value that a task wrote."""
        self.leave_out_chosen = True
        try:
            return self.plain(value)
        finally:
            self.leave_out_chosen = False

    def unordered(self, values: Mapping[str, Any] | None) -> Any:
        """A dict that LangGraph made."""
        if values is None:
            return None
        return {self.text(key): self.plain(values[key]) for key in sorted(values)}

    def config(self, config: Mapping[str, Any] | None) -> Any:
        if config is None:
            return None
        return self.unordered({k: v for k, v in config["configurable"].items() if k in ADDRESS})

    def task(self, task: PregelTask) -> dict[str, Any]:
        state = self.config(task.state) if isinstance(task.state, dict) else self.plain(task.state)
        return {
            "name": task.name,
            "path": self.plain(task.path),
            "id": self.text(task.id),
            "error": self.plain(task.error),
            "interrupts": self.plain(task.interrupts),
            "result": self.written(task.result),
            "state": state,
        }

    def snapshot(self, state: StateSnapshot) -> dict[str, Any]:
        """What `get_state` told."""
        return {
            "config": self.config(state.config),
            "parent": self.config(state.parent_config),
            "values": self.values(state.values),
            "next": state.next,
            "tasks": [self.task(task) for task in state.tasks],
            "interrupts": self.plain(state.interrupts),
            "metadata": self.unordered(state.metadata),
            "created": time(state.created_at),
        }

    def values(self, values: Any) -> Any:
        """All channels of a state: a dict by their names, or the one value of a graph that has one."""
        return self.unordered(values) if isinstance(values, dict) else self.plain(values)

    def stored(self, found: CheckpointTuple) -> dict[str, Any]:
        """What a saver gave."""
        checkpoint = dict(found.checkpoint)
        versions, seen = checkpoint.pop("channel_versions"), checkpoint.pop("versions_seen")
        assert isinstance(versions, dict)
        assert isinstance(seen, dict)
        return {
            "config": self.config(found.config),
            "parent": self.config(found.parent_config),
            "values": self.values(checkpoint.pop("channel_values")),
            "versions": counts(versions),
            "seen": {node: counts(seen[node]) for node in sorted(seen)},
            "time": time(checkpoint.pop("ts")),
            "checkpoint": self.unordered(checkpoint),
            "metadata": self.unordered(found.metadata),
            "writes": [(self.text(task), channel, self.written(value)) for task, channel, value in pending(found)],
        }


def with_tuples_as_lists(record: Any) -> Any:
    """A record of a saver that keeps tuples, as LangGraph's serializer leaves it, which makes lists of them."""
    if isinstance(record, dict):
        return {key: with_tuples_as_lists(item) for key, item in record.items()}
    if isinstance(record, list):
        return [with_tuples_as_lists(item) for item in record]
    if isinstance(record, tuple):
        return tuple(with_tuples_as_lists(item) for item in record)
    return "builtins.list" if record == "builtins.tuple" else record


def without_echoes(listed: list[CheckpointTuple]) -> list[CheckpointTuple]:
    """Checkpoints of one namespace, each with the snapshots that were saved with it."""
    versions = {each.checkpoint["id"]: each.checkpoint["channel_versions"] for each in listed}
    heard = []
    for each in listed:
        parent = each.parent_config["configurable"]["checkpoint_id"] if each.parent_config else ""
        before, now = versions.get(parent, {}), each.checkpoint["channel_versions"]
        values = {
            channel: value
            for channel, value in each.checkpoint["channel_values"].items()
            if not isinstance(value, _DeltaSnapshot) or now[channel] != before.get(channel)
        }
        heard.append(each._replace(checkpoint={**each.checkpoint, "channel_values": values}))
    return heard


def pending(found: CheckpointTuple) -> list[tuple[str, str, Any]]:
    return list(found.pending_writes or ())


def kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def time(text: object) -> str | None:
    if text is None:
        return None
    assert isinstance(text, str)
    assert datetime.fromisoformat(text).tzinfo is not None
    return "<time>"


def counts(versions: Mapping[str, object]) -> dict[str, int]:
    return {channel: int(str(versions[channel]).split(".")[0]) for channel in sorted(versions)}
