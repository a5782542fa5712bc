"""Transfers that were found half-done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import Placeholder, Revive
from holdfast.agents.transfer.offer import TRANSFER, Offer, recovered
from holdfast.agents.transfer.transfer import RECENT, TransferRun, acknowledge
from holdfast.errors import DeniedError, InvalidError, NotFoundError


async def recover_transfer(
    keeper: AgentPersister, how: Literal["back", "forward"], revive: Revive
) -> tuple[Literal["back", "forward"], bool]:
    """Resolve a transfer that was found half-done; returns how that was done, and whether the receiver was asked or
    told of it.

    What was received already is acknowledged, however it is to be resolved: the receiver holds the conversation, and
    may have gone on with it.
    """
    pending = keeper.data.pending
    if pending is None or pending.kind != TRANSFER:
        raise InvalidError("no transfer is under way", where=keeper.where)
    live = not isinstance(keeper.agent, Placeholder)
    data: Mapping[str, Any] = pending.data if isinstance(pending.data, Mapping) else {}
    reason = str(data.get("reason", ""))
    if pending.phase == "received":
        recent = tuple(await keeper.data.conversation.slice(-RECENT, None))
        offer = Offer(
            pending.correlation,
            pending.source,
            pending.target,
            "",
            int(data.get("messages", 0)),
            int(data.get("tokens", 0)),
            dict(keeper.data.context),
            reason,
            recent,
        )
        await acknowledge(keeper, offer, [recovered(keeper, pending, "forward", ran=live)])
        return "forward", live
    handing = TransferRun(keeper, pending.correlation, dict(data.get("context", {})), reason, revive, accept=not live)
    handing.found = pending
    offer = await handing.offer(pending.target)
    if how == "back":
        await handing.end("undone", offer, "")
        return "back", False
    try:
        await handing.rest(offer, pending.target)
    except (DeniedError, NotFoundError):
        if keeper.data.pending is not None:
            raise
        return "back", live  # it was refused, or there is nobody to hand it to: it stays where it was
    return "forward", live
