"""The history of delta channels.

A delta channel's value is not stored with every checkpoint: it is the last stored one and what was written to the
channel since, along the parents. When checkpoints are pruned, those two are carried over to the ones that stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.backends.port import Change, Put
from holdfast.backends.spaces import WRITES
from holdfast.codec import Codec
from holdfast.engine.core import Engine
from holdfast.engine.records import Line, Point
from holdfast.engine.writes import Write, write_row
from holdfast.errors import Corrupt, NotFound
from holdfast.langgraph import contents
from holdfast.model.packed import Packed, PackedMap, flatten, pack_name, unpack

_PAGE = 32
"""How many checkpoints are read at a time."""

_COUNTERS = "counters_since_delta_snapshot"
"""The entry of a checkpoint's metadata that names the delta channels whose values it does not hold."""


@dataclass
class History:
    """What a channel held, and what was written to it since: each as the task and the packed value, newest first."""

    writes: list[tuple[str, bytes]] = field(default_factory=list)
    seed: Packed | None = None


class Deltas:
    """Reads the histories of channels."""

    def __init__(self, engine: Engine, codec: Codec) -> None:
        self._engine = engine
        self._codec = codec

    async def history(self, line: Line, channels: Iterable[str], point: Point) -> dict[str, History]:
        """The history of each channel up to a checkpoint; what was written after it is not part of that."""
        found = {channel: History() for channel in channels}
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

    async def carry(self, line: Line, point: Point) -> list[Change]:
        """The changes that keep with a checkpoint what its delta channels need of those before it."""
        (head,) = await self._engine.heads.describe(line, [point])
        channels = self._codec.unpack(head.header.metadata).get(_COUNTERS) or ()
        writes: list[Write] = []
        for channel, history in (await self.history(line, channels, point)).items():
            if history.seed is not None:
                writes.append(Write("", "", -1 - len(writes), channel, flatten(history.seed)))
            for task, packed in reversed(history.writes):
                writes.append(Write("", "", len(writes), channel, self._codec.pack([task, packed])))
        return [Put(WRITES, write_row(line, point.id, write)) for write in writes]

    async def follows(self, line: Line, point: Point) -> str | None:
        """The parent that LangGraph named, where it is not the one in the store."""
        return self._named(await self._engine.states.packed(line, point))

    def _named(self, state: PackedMap) -> str | None:
        kept = state.get(pack_name(contents.KEPT))
        return None if kept is None else contents.follows(unpack(self._codec, kept))

    def _take(self, todo: dict[str, History], carried: Sequence[Write]) -> None:
        """What was carried over from checkpoints that are gone."""
        for write in reversed(carried):
            history = todo.get(write.channel)
            if history is not None and write.place < 0:
                history.seed = write.packed
            elif history is not None:
                entry = self._codec.unpack(write.packed)
                if type(entry) is not list or tuple(map(type, entry)) != (str, bytes):
                    raise Corrupt("a write that was carried over is not one", where=f"channel {write.channel!r}")
                history.writes.append((entry[0], entry[1]))

    async def _walk(self, line: Line, point: Point) -> AsyncIterator[tuple[PackedMap, list[Write]]]:
        """The states of a checkpoint and of those before it, as LangGraph was told they follow, and their writes."""
        lines, states, writes = self._engine.lines, self._engine.states, self._engine.writes
        ahead: deque[tuple[Point, PackedMap, list[Write]]] = deque()
        seen: set[str] = set()
        while True:
            if not ahead:
                points = await lines.run_up(line, point, _PAGE)
                of_each = await writes.of_many(line, [each.id for each in points])
                ahead.extend(zip(points, await states.series(line, points), of_each, strict=True))
            at, state, pending = ahead.popleft()
            seen.add(at.id)
            yield state, pending
            parent = self._named(state)
            if parent is None:
                if ahead:
                    continue
                (head,) = await self._engine.heads.describe(line, [at])
                parent = head.parent
            if not parent or parent in seen:  # whoever names parents may make them go round in a circle
                return
            ahead.clear()
            try:
                point = await lines.find(line, parent)
            except NotFound:
                return


def _collect(todo: dict[str, History], state: PackedMap, writes: Sequence[Write]) -> None:
    """What a checkpoint tells of histories: what was written after it, and what it holds itself."""
    for write in reversed(writes):
        if write.task and write.channel in todo:
            todo[write.channel].writes.append((write.task, write.packed))
    for channel in list(todo):
        value = state.get(pack_name(channel))
        if value is not None:
            todo.pop(channel).seed = value
