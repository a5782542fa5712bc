"""Which checkpoints of LangGraph's threads are to go."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias

from holdfast.codec import Codec
from holdfast.engine.core import Engine
from holdfast.engine.lines import NAME, TAG
from holdfast.engine.records import Branch, Line, Point
from holdfast.engine.rewrite import Choice, Choose
from holdfast.langgraph.deltas import Deltas

_Places: TypeAlias = set[tuple[int, int]]


class Pruner:
    """Prunes lines, and keeps with the checkpoints that stay what their delta channels need of the others."""

    def __init__(self, engine: Engine, codec: Codec) -> None:
        self._engine = engine
        self._codec = codec
        self._deltas = Deltas(engine, codec)

    async def keep_latest(self, line: Line) -> None:
        """Keep the latest checkpoint, and those that have a name or a tag."""

        async def others(points: Sequence[Point]) -> _Places:
            lines = self._engine.lines
            wanted = {id for kind in (NAME, TAG) for _, id in await lines.refs(line, kind)}
            last = _last_revisions(points)
            wanted.add(max(last, default=""))
            return {point[:2] for point in points} - {last[id][:2] for id in wanted if id in last}

        await self._engine.rewriter.rewrite(line, self._dropping(line, others))

    async def drop_runs(self, tenant: str, run_ids: Collection[str]) -> None:
        """Drop the checkpoints that belong to some runs, of all lines."""
        texts = [json.dumps(run_id, ensure_ascii=False)[1:-1] for run_id in run_ids]

        def is_candidate(point: Point) -> bool:
            """Whether it may be one of them: what is kept for people to read says so, and is quickly looked at."""
            return any(text in point.metadata for text in texts)

        async def of_runs(line: Line, points: Sequence[Point]) -> _Places:
            last = _last_revisions(points).values()
            heads = await self._engine.heads.describe(line, list(filter(is_candidate, last)))
            found = {
                head.point.id
                for head in heads
                if str(self._codec.unpack(head.header.metadata).get("run_id")) in run_ids
            }
            return {point[:2] for point in points if point.id in found}

        lines = [line async for line, point in self._engine.lines.every_step(tenant) if is_candidate(point)]
        for line in dict.fromkeys(lines):
            await self._engine.rewriter.rewrite(line, self._dropping(line, partial(of_runs, line)))

    def _dropping(self, line: Line, which: Callable[[Sequence[Point]], Awaitable[_Places]]) -> Choose:
        async def choose(points: Sequence[Point], branches: Sequence[Branch]) -> Choice:
            there = [point for point in points if not point.pruned]
            dropped = await which(there)
            ids = {point.id for point in there if point[:2] in dropped}
            bases = {each.branch: (each.base_branch, each.base_length - 1) for each in branches}
            changes = []
            for point in there:
                if point[:2] in dropped:
                    continue
                parent = (point.branch, point.seq - 1) if point.seq else bases.get(point.branch)
                # Only these can have been said to follow another than they do.
                named = await self._deltas.follows(line, point) if not point.depth or point.revision else None
                if parent in dropped or named in ids:
                    changes += await self._deltas.carry(line, point)
            return Choice(frozenset(dropped), changes)

        return choose


def _last_revisions(points: Sequence[Point]) -> dict[str, Point]:
    return {point.id: point for point in sorted(points, key=lambda point: point.revision)}
