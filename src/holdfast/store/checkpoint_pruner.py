"""Prunes threads as savers of frameworks request it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias

from holdfast.codec import Codec
from holdfast.engine.engine import Engine
from holdfast.engine.line_head import head_of
from holdfast.engine.lines import LABEL, TAG
from holdfast.engine.namespaces import is_thread
from holdfast.engine.rewrite.rewriter import Choose, RewritePlan
from holdfast.engine.row_format import Branch, Line, StepRef
from holdfast.security.audit.thread_audit import recorded

_Places: TypeAlias = set[tuple[int, int]]


class ThreadPruner:
    """Removes checkpoints of lines. What the delta channels of the others need is carried over to them."""

    def __init__(self, engine: Engine, codec: Codec) -> None:
        self._engine = engine
        self._codec = codec

    async def keep_latest(self, line: Line) -> None:
        """Remove all checkpoints but the latest, and those with a tag or a label."""

        async def others(points: Sequence[StepRef]) -> _Places:
            lines = self._engine.lines
            wanted = {id for kind in (TAG, LABEL) for _, id in await lines.refs(line, kind)}
            last = _last_revisions(points)
            head = head_of(points)
            wanted.add("" if head is None else head.id)
            return {point[:2] for point in points} - {last[id][:2] for id in wanted if id in last}

        await self._engine.rewriter.rewrite(line, _dropping(others), recorded(self._engine, line, "prune"))

    async def drop_runs(self, tenant: str, run_ids: Collection[str]) -> None:
        """Remove the checkpoints of some runs from all threads."""
        texts = [json.dumps(run_id, ensure_ascii=False)[1:-1] for run_id in run_ids]

        def is_candidate(point: StepRef) -> bool:
            """Return whether it may be one of them, by its readable metadata, which are cheap to read."""
            return any(text in point.metadata for text in texts)

        async def of_runs(line: Line, points: Sequence[StepRef]) -> _Places:
            last = _last_revisions(points).values()
            heads = await self._engine.step_info.describe(line, list(filter(is_candidate, last)))
            found = {
                head.point.id
                for head in heads
                if str(self._codec.unpack(head.header.metadata).get("run_id")) in run_ids
            }
            return {point[:2] for point in points if point.id in found}

        lines = [
            line
            async for line, point in self._engine.lines.every_step(tenant)
            if is_thread(line.name) and is_candidate(point)
        ]
        for line in dict.fromkeys(lines):
            apply = recorded(self._engine, line, "prune", {"runs": len(run_ids)})
            await self._engine.rewriter.rewrite(line, _dropping(partial(of_runs, line)), apply)


def _dropping(which: Callable[[Sequence[StepRef]], Awaitable[_Places]]) -> Choose:
    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        del branches  # what is to go does not depend on them
        return RewritePlan(frozenset(await which([point for point in points if not point.pruned])))

    return choose


def _last_revisions(points: Sequence[StepRef]) -> dict[str, StepRef]:
    return {point.id: point for point in sorted(points, key=lambda point: point.revision)}
