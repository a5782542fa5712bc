"""Transfers of an agent that there were: told by the rows that rode in its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.transfer.offer import TRANSFER, Phase, Transfer
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import EVENTS
from holdfast.engine import validation
from holdfast.engine.row_format import open_event
from holdfast.engine.types import to_datetime

_PAGE = 256
_PHASES: Mapping[str, Phase] = {phase: phase for phase in get_args(Phase)}


async def transfers(line: AgentLine, limit: int = 100) -> list[Transfer]:
    """The transfers from and to an agent, the latest first, each as far as its line tells of it."""
    count = validation.count(limit, "limit")
    found: dict[str, Transfer] = {}
    stop: tuple[Any, ...] = ()
    while len(found) < count:
        query = Scan(EVENTS, tuple(line.line), stop=stop, reverse=True, limit=_PAGE)
        (rows,) = await line.handle.engine.ground.backend.read([query])
        for row in rows:
            if row.columns[1] == TRANSFER and str(row.columns[3]) in _PHASES:
                transfer = _opened(line, row)
                # The latest row of a transfer tells how far it got.
                found.setdefault(transfer.id, transfer)
        if len(rows) < _PAGE:
            break
        stop = rows[-1].key[2:]
    return list(found.values())[:count]


def _opened(line: AgentLine, row: Row) -> Transfer:
    id, number = str(row.key[2]), int(row.key[3])
    time, _, actor, action, _, _, correlation, _, _ = row.columns
    packed = open_event(line.line, id, number, row.body, line.handle.engine.ground.max_bytes)
    detail: Mapping[str, Any] = line.handle.codec.unpack(packed)
    return Transfer(
        str(correlation),
        str(detail["from"]),
        str(detail["to"]),
        _PHASES[str(action)],
        to_datetime(int(time)),
        int(detail["messages"]),
        int(detail["tokens"]),
        str(detail["reason"]),
        str(detail.get("error", "")),
        str(actor),
    )
