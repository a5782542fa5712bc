"""Calling a saver by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.sessions import on


def made(id: str, values: Any = None, versions: Any = None, **more: Any) -> Any:
    """A checkpoint."""
    values = {} if values is None else values
    return {
        "v": 4,
        "id": id,
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1) if versions is None else versions,
        "versions_seen": {},
        "updated_channels": None,
        **more,
    }


class Caller:
    """Calls a saver's methods by name, sync or async."""

    def __init__(self, saver: HoldfastSaver, asynchronous: bool) -> None:
        self.saver = saver
        self.asynchronous = asynchronous

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self.asynchronous:
            return getattr(self.saver, name)(*args, **kwargs)
        return asyncio.run(getattr(self.saver, f"a{name}")(*args, **kwargs))

    def put(self, id: str, values: Any = None, *, parent: str | None = None, thread: Any = "t", **more: Any) -> Any:
        namespace, metadata = more.pop("namespace", ""), more.pop("metadata", {"source": "loop", "step": 1})
        new = more.pop("new", None)
        config = on(thread, checkpoint_ns=namespace, checkpoint_id=parent)
        checkpoint = made(id, values, **more)
        return self.call("put", config, checkpoint, metadata, checkpoint["channel_versions"] if new is None else new)

    def get(self, id: str | None = None, thread: Any = "t", namespace: str = "") -> CheckpointTuple:
        found = self.call("get_tuple", on(thread, checkpoint_ns=namespace, checkpoint_id=id))
        assert found is not None, id
        return found  # type: ignore[no-any-return]

    def values(self, id: str | None = None, thread: Any = "t", namespace: str = "") -> Any:
        return self.get(id, thread, namespace).checkpoint["channel_values"]

    def listed(self, config: Any, **question: Any) -> list[CheckpointTuple]:
        if not self.asynchronous:
            return list(self.saver.list(config, **question))

        async def all_of_them() -> list[CheckpointTuple]:
            return [each async for each in self.saver.alist(config, **question)]

        return asyncio.run(all_of_them())

    def ids(self, config: Any, **question: Any) -> list[str]:
        return [each.checkpoint["id"] for each in self.listed(config, **question)]


def parent_of(found: CheckpointTuple) -> str | None:
    return found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None


def write(saver: Caller, writes: list[Any], task: str = "task", path: str = "", id: str = "1") -> None:
    saver.call("put_writes", on("t", checkpoint_id=id), writes, task, path)
