"""The history of delta channels, as LangGraph has them.

A delta channel's value is not stored with every step: it is the last stored one and what was written to the channel
since, along the parents. When steps are pruned, those two are carried over to the ones that stay. That is done here,
and not where graphs are, so that whoever prunes does it, also without LangGraph installed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.backends.interface import Change, Put
from holdfast.backends.tables import WRITES
from holdfast.codec import Codec
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.packed_state import Packed, PackedMap, flatten, pack_name, unpack
from holdfast.engine.pending_writes import PendingWriteRow, PendingWrites, write_row
from holdfast.engine.row_format import Branch, Line, StepRef
from holdfast.engine.state_loader import StateLoader
from holdfast.engine.step_info import StepInfoReader
from holdfast.errors import CorruptError, NotFoundError

KEPT = "__checkpoint__"
"""The channel that holds what a checkpoint of LangGraph has besides its channels."""

FOLLOWS = "follows"
"""The entry of it that names the parent, where that is not the step's."""

_PAGE = 32
"""How many steps are read at a time."""

_COUNTERS = "counters_since_delta_snapshot"
"""The entry of a checkpoint's metadata that names the delta channels whose values it does not hold."""


@dataclass
class ChannelHistory:
    """What a channel held, and what was written to it since: each as the task and the packed value, newest first."""

    writes: list[tuple[str, bytes]] = field(default_factory=list)
    seed: Packed | None = None


class UnreadDeltas(NamedTuple):
    """Delta channels whose values a step does not hold: what its metadata says of each, and its history."""

    counters: dict[str, Any]
    histories: dict[str, ChannelHistory]

    @property
    def metadata(self) -> dict[str, Any]:
        """The entry that tells of them in the metadata of a step."""
        return {_COUNTERS: self.counters} if self.counters else {}


class DeltaReader:
    """Reads the histories of channels."""

    def __init__(
        self, lines: LineIndex, states: StateLoader, heads: StepInfoReader, writes: PendingWrites, codec: Codec
    ) -> None:
        self._lines = lines
        self._states = states
        self._heads = heads
        self._writes = writes
        self._codec = codec

    async def history(self, line: Line, channels: Iterable[str], point: StepRef) -> dict[str, ChannelHistory]:
        """The history of each channel up to a checkpoint; what was written after it is not part of that."""
        found = {channel: ChannelHistory() for channel in channels}
        todo = dict(found)
        ancestor = False
        async for state, writes in self._walk(line, point):
            if ancestor:
                _collect(todo, state, writes)
            ancestor = True
            carried = [write for write in writes if not write.task]
            if carried:
                self._take(todo, carried)
                break
            if not todo:
                break
        return found

    async def carried(
        self, line: Line, points: Iterable[StepRef], branches: Iterable[Branch], dropped: Set[tuple[int, int]]
    ) -> list[Change]:
        """The changes that keep with the steps that stay what their delta channels need of those that go."""
        bases = {each.branch: (each.base_branch, each.base_length - 1) for each in branches}
        ids: set[str] | None = None
        changes: list[Change] = []
        points = list(points)
        for point in points:
            # What is shown to people of its metadata says whether it has such channels, and is at hand.
            if point.pruned or point[:2] in dropped or _COUNTERS not in point.metadata:
                continue
            needs = ((point.branch, point.seq - 1) if point.seq else bases.get(point.branch)) in dropped
            # Only these can have been said to follow another than they do.
            if not needs and (not point.depth or point.revision):
                if ids is None:
                    ids = {each.id for each in points if each[:2] in dropped}
                needs = self._named(await self._states.packed(line, point)) in ids
            if needs:
                changes += await self._carry(line, point)
        return changes

    async def unheld(self, line: Line, point: StepRef) -> UnreadDeltas:
        """The delta channels of a step whose values it does not hold."""
        if _COUNTERS not in point.metadata:
            return UnreadDeltas({}, {})
        (head,) = await self._heads.describe(line, [point])
        counters = dict(self._codec.unpack(head.header.metadata).get(_COUNTERS) or {})
        return UnreadDeltas(counters, await self.history(line, counters, point))

    def given(self, line: Line, unheld: UnreadDeltas, id: str) -> list[Change]:
        """The changes that give the histories of channels to a step, also to one that follows another."""
        writes: list[PendingWriteRow] = []
        for channel, history in unheld.histories.items():
            if history.seed is not None:
                writes.append(PendingWriteRow("", "", -1 - len(writes), channel, flatten(history.seed)))
            for task, packed in reversed(history.writes):
                writes.append(PendingWriteRow("", "", len(writes), channel, self._codec.pack([task, packed])))
        return [Put(WRITES, write_row(line, id, write)) for write in writes]

    async def _carry(self, line: Line, point: StepRef) -> list[Change]:
        return self.given(line, await self.unheld(line, point), point.id)

    def _named(self, state: PackedMap) -> str | None:
        """The parent that LangGraph named, where it is not the one in the store."""
        kept = state.get(pack_name(KEPT))
        return None if kept is None else unpack(self._codec, kept).get(FOLLOWS)

    def _take(self, todo: dict[str, ChannelHistory], carried: Sequence[PendingWriteRow]) -> None:
        """What was carried over from checkpoints that are gone."""
        for write in reversed(carried):
            history = todo.get(write.channel)
            if history is not None and write.place < 0:
                history.seed = write.packed
            elif history is not None:
                entry = self._codec.unpack(write.packed)
                if type(entry) is not list or tuple(map(type, entry)) != (str, bytes):
                    raise CorruptError("a write that was carried over is not one", where=f"channel {write.channel!r}")
                history.writes.append((entry[0], entry[1]))

    async def _walk(self, line: Line, point: StepRef) -> AsyncIterator[tuple[PackedMap, list[PendingWriteRow]]]:
        """The states of a checkpoint and of those before it, as LangGraph was told they follow, and their writes."""
        ahead: deque[tuple[StepRef, PackedMap, list[PendingWriteRow]]] = deque()
        seen: set[str] = set()
        while True:
            if not ahead:
                points = await self._lines.run_up(line, point, _PAGE)
                of_each = await self._writes.of_many(line, [each.id for each in points])
                ahead.extend(zip(points, await self._states.series(line, points), of_each, strict=True))
            at, state, pending = ahead.popleft()
            seen.add(at.id)
            yield state, pending
            parent = self._named(state)
            if parent is None:
                if ahead:
                    continue
                (head,) = await self._heads.describe(line, [at])
                parent = head.parent
            if not parent or parent in seen:  # whoever names parents may make them go round in a circle
                return
            ahead.clear()
            try:
                point = await self._lines.find(line, parent)
            except NotFoundError:
                return


def _collect(todo: dict[str, ChannelHistory], state: PackedMap, writes: Sequence[PendingWriteRow]) -> None:
    """What a checkpoint tells of histories: what was written after it, and what it holds itself."""
    for write in reversed(writes):
        if write.task and write.channel in todo:
            todo[write.channel].writes.append((write.task, write.packed))
    for channel in list(todo):
        value = state.get(pack_name(channel))
        if value is not None:
            todo.pop(channel).seed = value
