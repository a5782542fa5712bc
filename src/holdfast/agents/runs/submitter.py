"""Who submitted a run: while that identity is frozen, the run is not begun, and nothing of it is stored."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Change, Expect, Get, Put, Row
from holdfast.backends.tables import LINES, REFS
from holdfast.engine.guard import Preconditions
from holdfast.engine.row_format import Line, subject_key
from holdfast.engine.subject_names import subject_of_name
from holdfast.errors import DeniedError
from holdfast.security.access.identity import Identity
from holdfast.security.access.registry import AccessRegistry
from holdfast.security.handle import StoreHandle


async def subject_of_new(handle: StoreHandle, line: Line, actor: str) -> list[Change]:
    """Return the change that assigns a thread that does not exist yet to the person who submits a run on it: what a
    worker saves there is not saved by that person, and a workflow saves no checkpoints."""
    if not (subject := subject_of_name(actor)):
        return []
    (rows,) = await handle.engine.context.backend.read([Get(LINES, [tuple(line)])])
    return [] if rows else [Put(REFS, Row(subject_key(line), (subject, handle.now())))]


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
                    hint="The store's owner can unfreeze it; the run waits for that, and goes on",
                    code="identity-frozen",
                )
        return [condition]

    return conditions
