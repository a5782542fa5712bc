"""Who submitted a run: while that identity is frozen, the run is not begun, and nothing of it is stored."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Change, Expect, Get
from holdfast.engine.guard import Preconditions
from holdfast.errors import DeniedError
from holdfast.security.access.identity import Identity
from holdfast.security.access.registry import AccessRegistry
from holdfast.security.handle import StoreHandle


def submitter_conditions(handle: StoreHandle, actor: str) -> Preconditions | None:
    """Return the condition of what a run stores: that its submitter is not frozen. None for the store's owner."""
    if not actor:
        return None
    condition = AccessRegistry(handle.engine, handle.tenant, "").not_frozen(Identity.parse(actor))
    assert isinstance(condition, Expect)  # noqa: S101 - of one row

    async def conditions(again: bool) -> Sequence[Change]:
        if again:
            (rows,) = await handle.engine.context.backend.read([Get(condition.space, [condition.key])])
            if rows:
                raise DeniedError(
                    f"{actor} is frozen, which submitted the run",
                    hint="The store's owner can unfreeze it; then retry the run",
                    code="identity-frozen",
                )
        return [condition]

    return conditions
