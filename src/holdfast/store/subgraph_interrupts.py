"""Interrupts of subgraphs, as the graphs around them show them.

A graph keeps the interrupts of its subgraphs beside its own checkpoint, with ids that depend on the names of the nodes
that asked. Where such a node is called otherwise now, the graph shows the ids under which the subgraph will look for
the answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.codec import Codec
from holdfast.engine.engine import Engine
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.row_format import Line
from holdfast.errors import UnsupportedError
from holdfast.store.graph_schemas import INTERRUPTS, GraphSchemas

NewIds = Callable[[Line], Awaitable[Mapping[str, str]]]
"""Returns the ids that interrupts after the latest checkpoint of a subgraph have now, by the stored ones. Raises
`UnsupportedError` if the subgraph cannot be resumed."""


class SubgraphInterrupts:
    """Gives interrupts of subgraphs their new ids in the rows of the graphs around them."""

    def __init__(self, engine: Engine, codec: Codec, schemas: GraphSchemas, new_ids: NewIds) -> None:
        self._engine: Final = engine
        self._codec: Final = codec
        self._schemas: Final = schemas
        self._new_ids: Final = new_ids

    async def rename(self, line: Line, rows: Sequence[PendingWriteRow], *, resume: bool) -> list[PendingWriteRow]:
        """Return the rows of a checkpoint with the ids that interrupts have now. To resume it is refused where one of
        its subgraphs cannot be resumed."""
        tasks = {row.task for row in rows if row.channel == INTERRUPTS}
        ids: dict[str, str] = {}
        for subgraph in await self._at_work(line, tasks) if tasks else ():
            try:
                ids.update(await self._new_ids(subgraph))
            except UnsupportedError:
                if resume:  # before the graph writes anything
                    raise
        return [self._renamed(row, ids) for row in rows] if ids else list(rows)

    async def _at_work(self, line: Line, tasks: Iterable[str]) -> list[Line]:
        """Return the namespaces of the subgraphs that some tasks of a graph run, if nodes in them were renamed."""
        thread, namespace = split_name(line.name)
        start = f"{namespace}|" if namespace else ""
        found: list[Line] = []
        for node in self._schemas.nodes_with_renamed(namespace):
            prefix = thread_name(thread, f"{start}{node}")
            # One that keeps its state between calls has no task in its namespace.
            ends = ("|", *(f":{task}" for task in tasks))
            for each in await self._engine.lines.names(line.tenant, prefix):
                rest = each.name.removeprefix(prefix)
                if not rest or rest.startswith(ends):
                    found.append(each)
        return found

    def _renamed(self, row: PendingWriteRow, ids: Mapping[str, str]) -> PendingWriteRow:
        if row.channel != INTERRUPTS:
            return row
        value: Any = self._codec.unpack(row.packed)
        if not isinstance(value, list | tuple):
            return row
        from copy import copy

        changed = []
        for each in value:
            new = ids.get(getattr(each, "id", ""))
            if new is not None:
                each = copy(each)
                each.id = new
            changed.append(each)
        return row._replace(packed=self._codec.pack(type(value)(changed)))


def changed_ids(codec: Codec, before: PendingWriteRow, after: Iterable[PendingWriteRow]) -> dict[str, str]:
    """Return the ids that the interrupts of a row have now, by the stored ones."""
    old = _ids(codec, before)
    return {each: new for row in after for each, new in zip(old, _ids(codec, row), strict=True) if each and each != new}


def _ids(codec: Codec, row: PendingWriteRow) -> list[str]:
    value = codec.unpack(row.packed)
    return [str(getattr(each, "id", "")) for each in value] if isinstance(value, list | tuple) else []
