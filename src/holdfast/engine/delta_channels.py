"""The history of delta channels, as LangGraph has them.

A delta channel's value is not stored with every step: it is the last stored one and what was written to the channel
since, along the parents. When steps are pruned, those two are copied to the steps that remain. That is done here, so
that every prune does it, also without LangGraph installed.
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
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.pending_writes import PendingWrites
from holdfast.engine.row_format import Branch, Line, StepRef, write_row
from holdfast.engine.state_loader import StateLoader
from holdfast.engine.step_info import StepInfoReader
from holdfast.errors import CorruptError, NotFoundError

KEPT = "__checkpoint__"
"""The channel with the parts of a LangGraph checkpoint that are not channels."""

FOLLOWS = "follows"
"""The entry of that channel that names the parent, where it is not the step's."""

_PAGE = 32
"""How many steps are read at a time."""

_COUNTERS = "counters_since_delta_snapshot"
"""The entry of a checkpoint's metadata that names the delta channels without a stored value."""


@dataclass
class ChannelHistory:
    """The stored value of a channel, and the writes since: each as the task and the packed value, newest first."""

    writes: list[tuple[str, bytes]] = field(default_factory=list)
    seed: Packed | None = None


class UnreadDeltas(NamedTuple):
    """Delta channels without a stored value at a step: their entries in its metadata, and their histories."""

    counters: dict[str, Any]
    histories: dict[str, ChannelHistory]

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the entry for the metadata of a step."""
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
        """Return the history of each channel up to a checkpoint, without what was written after it."""
        histories = {channel: ChannelHistory() for channel in channels}
        todo = dict(histories)
        ancestor = False
        async for state, writes in self._walk(line, point):
            if ancestor:
                _collect(todo, state, writes)
            ancestor = True
            carried = [write for write in writes if not write.task]
            if carried:
                self._add_carried(todo, carried)
                break
            if not todo:
                break
        return histories

    async def carry_over(
        self, line: Line, points: Iterable[StepRef], branches: Iterable[Branch], dropped: Set[tuple[int, int]]
    ) -> list[Change]:
        """Return the changes that copy what delta channels need from dropped steps to the remaining ones."""
        bases = {each.branch: (each.base_branch, each.base_length - 1) for each in branches}
        ids: set[str] | None = None
        changes: list[Change] = []
        points = list(points)
        for point in points:
            # The readable metadata, which is in memory, says whether it has such channels.
            if point.pruned or point[:2] in dropped or _COUNTERS not in point.metadata:
                continue
            needs_history = ((point.branch, point.seq - 1) if point.seq else bases.get(point.branch)) in dropped
            # Only these can name another parent than they have.
            if not needs_history and (not point.depth or point.revision):
                if ids is None:
                    ids = {each.id for each in points if each[:2] in dropped}
                needs_history = self._named_parent(await self._states.packed(line, point)) in ids
            if needs_history:
                changes += await self._carry(line, point)
        return changes

    async def unread(self, line: Line, point: StepRef) -> UnreadDeltas:
        """Return the delta channels of a step without stored values."""
        if _COUNTERS not in point.metadata:
            return UnreadDeltas({}, {})
        (head,) = await self._heads.describe(line, [point])
        counters = dict(self._codec.unpack(head.header.metadata).get(_COUNTERS) or {})
        return UnreadDeltas(counters, await self.history(line, counters, point))

    def given(self, line: Line, unheld: UnreadDeltas, id: str) -> list[Change]:
        """Return the changes that store the histories of channels with a step, also with one that follows another."""
        writes: list[PendingWriteRow] = []
        for channel, history in unheld.histories.items():
            if history.seed is not None:
                writes.append(PendingWriteRow("", "", -1 - len(writes), channel, flatten(history.seed)))
            for task, packed in reversed(history.writes):
                writes.append(PendingWriteRow("", "", len(writes), channel, self._codec.pack([task, packed])))
        return [Put(WRITES, write_row(line, id, write)) for write in writes]

    async def _carry(self, line: Line, point: StepRef) -> list[Change]:
        return self.given(line, await self.unread(line, point), point.id)

    def _named_parent(self, state: PackedMap) -> str | None:
        """Return the parent that LangGraph named, where it is not the one in the store."""
        packed = state.get(pack_name(KEPT))
        return None if packed is None else unpack(self._codec, packed).get(FOLLOWS)

    def _add_carried(self, todo: dict[str, ChannelHistory], carried: Sequence[PendingWriteRow]) -> None:
        """Add what was copied from checkpoints that were dropped."""
        for write in reversed(carried):
            history = todo.get(write.channel)
            if history is not None and write.place < 0:
                history.seed = write.packed
            elif history is not None:
                entry = self._codec.unpack(write.packed)
                if type(entry) is not list or tuple(map(type, entry)) != (str, bytes):
                    raise CorruptError("a write that was carried over is malformed", where=f"channel {write.channel!r}")
                history.writes.append((entry[0], entry[1]))

    async def _walk(self, line: Line, point: StepRef) -> AsyncIterator[tuple[PackedMap, list[PendingWriteRow]]]:
        """Yield the states of a checkpoint and of its ancestors, as LangGraph names them, and their writes."""
        queue: deque[tuple[StepRef, PackedMap, list[PendingWriteRow]]] = deque()
        visited: set[str] = set()
        while True:
            if not queue:
                points = await self._lines.run_up(line, point, _PAGE)
                writes = await self._writes.of_many(line, points)
                queue.extend(zip(points, await self._states.series(line, points), writes, strict=True))
            at, state, pending = queue.popleft()
            visited.add(at.id)
            yield state, pending
            parent = self._named_parent(state)
            if parent is None:
                if queue:
                    continue
                (head,) = await self._heads.describe(line, [at])
                parent = head.parent
            if not parent or parent in visited:  # named parents may form a circle
                return
            queue.clear()
            try:
                point = await self._lines.find(line, parent)
            except NotFoundError:
                return


def _collect(todo: dict[str, ChannelHistory], state: PackedMap, writes: Sequence[PendingWriteRow]) -> None:
    """Add what a checkpoint contributes to histories: the writes after it, and its own value."""
    for write in reversed(writes):
        if write.task and write.channel in todo:
            todo[write.channel].writes.append((write.task, write.packed))
    for channel in list(todo):
        value = state.get(pack_name(channel))
        if value is not None:
            todo.pop(channel).seed = value
