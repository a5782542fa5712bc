"""A saver that keeps references and nothing else: what a graph takes with it is LangGraph's own time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    copy_checkpoint,
    get_checkpoint_id,
)

Place = tuple[str, str]


class ReferenceSaver(BaseCheckpointSaver[int]):
    """Nothing is copied but the dicts that LangGraph alters, nothing is serialised, nothing is kept from harm.

    It does what the graphs measured here need, and it is no saver to use: a message that is altered in place is altered
    in every checkpoint that holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: defaultdict[Place, dict[str, CheckpointTuple]] = defaultdict(dict)
        self._writes: defaultdict[tuple[Place, str], dict[tuple[str, int], PendingWrite]] = defaultdict(dict)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        place = _place(config)
        steps = self._steps[place]
        # Ids grow with time, and a graph puts them in that order.
        id = get_checkpoint_id(config) or next(reversed(steps), None)
        return self._found(place, steps[id]) if id in steps else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - its name in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        assert config is not None
        assert filter is None
        assert before is None
        place = _place(config)
        for each in islice(reversed(self._steps[place].values()), limit):
            yield self._found(place, each)

    def _found(self, place: Place, step: CheckpointTuple) -> CheckpointTuple:
        writes = self._writes.get((place, step.checkpoint["id"]), {})
        return step._replace(checkpoint=copy_checkpoint(step.checkpoint), pending_writes=[*writes.values()])

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        del new_versions
        place = thread, namespace = _place(config)
        keys = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]}
        stored: RunnableConfig = {"configurable": keys}
        parent = config if get_checkpoint_id(config) else None
        self._steps[place][checkpoint["id"]] = CheckpointTuple(stored, checkpoint, metadata, parent)
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        del task_path
        kept = self._writes[_place(config), config["configurable"]["checkpoint_id"]]
        for index, (channel, value) in enumerate(writes):
            kept[task_id, WRITES_IDX_MAP.get(channel, index)] = (task_id, channel, value)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - its name in LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for each in self.list(config, filter=filter, before=before, limit=limit):
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)


def _place(config: RunnableConfig) -> Place:
    keys = config["configurable"]
    return keys["thread_id"], keys.get("checkpoint_ns", "")
