"""References to the checkpoints of a thread, or to the thread: tags, labels, pins, holds and the TTL."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.backends.runtime.drivers import operation
from holdfast.engine.engine import Engine
from holdfast.engine.ids import check_new_name
from holdfast.engine.lines import LABEL, TAG
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import Line, StepRef, check_name
from holdfast.engine.types import Revision, to_datetime
from holdfast.security.handle import StoreHandle
from holdfast.store.thread_access import needs
from holdfast.time_parser import Duration

if TYPE_CHECKING:
    from holdfast.engine.context import Apply
    from holdfast.engine.lines import LineIndex
    from holdfast.maintenance.pins import HoldInfo, PinInfo


class ThreadReferences:
    """Operations on the tags, labels, pins, holds and the TTL of a thread."""

    _handle: StoreHandle
    _line: Line

    # Tags, labels ---------------------------------------------------------------------------------------------

    @operation(changes=True)
    @needs("write")
    async def tag(self, tag: str, at: Revision = "HEAD", *, move: bool = False) -> None:
        """Tag a checkpoint: `get(at=tag)` finds it. One checkpoint of a thread can have it."""
        await self._refer(TAG, check_new_name(tag, "tag"), at, move=move)

    @operation(changes=True)
    @needs("write")
    async def untag(self, tag: str) -> None:
        """Remove a tag; the checkpoint stays."""
        await self._lines.drop_ref(self._line, TAG, check_name(tag, "tag"), apply=self._recorded("untag", tag=tag))

    @operation(may_lag=True)
    @needs("read")
    async def tags(self) -> dict[str, str]:
        """List the tags, with the ids of their checkpoints."""
        return dict(await self._lines.refs(self._line, TAG))

    @operation(changes=True)
    @needs("write")
    async def label(self, label: str, at: Revision = "HEAD") -> None:
        """Label a checkpoint. Any number of them can have one label; `log` finds them."""
        await self._refer(LABEL, check_name(label, "label"), at, move=True)

    @operation(changes=True)
    @needs("write")
    async def unlabel(self, label: str, at: Revision | None = None) -> None:
        """Remove a label from one checkpoint, or from all of the thread."""
        id = None if at is None else (await self._find(at)).id
        apply = self._recorded("unlabel", label=label, **({} if id is None else {"id": id}))
        await self._lines.drop_ref(self._line, LABEL, check_name(label, "label"), id, apply)

    @operation(may_lag=True)
    @needs("read")
    async def labels(self) -> dict[str, list[str]]:
        """List the labels, with the ids of their checkpoints."""
        found: dict[str, list[str]] = {}
        for label, id in await self._lines.refs(self._line, LABEL):
            found.setdefault(label, []).append(id)
        return found

    # Pins and holds --------------------------------------------------------------------------------------------

    @operation(changes=True)
    @needs("write")
    async def pin(self, at: Revision = "HEAD", *, reason: str = "") -> str:
        """Protect a checkpoint from pruning, for a reason; there may be several. Returns its id."""
        point = await self._find(at)
        stored = await self._engine.protect_text(self._line, check_name(reason, "reason"), "reason")
        apply = self._recorded("pin", id=point.id, reason=stored)
        await self._engine.holds.pin(self._line, point.id, stored, apply)
        return point.id

    @operation(changes=True)
    @needs("write")
    async def unpin(self, at: Revision = "HEAD", *, reason: str | None = None) -> str:
        """Remove a pin from a checkpoint, or all that it has. Returns its id. `NotFoundError` if it has none."""
        from holdfast.maintenance import pins

        id = (await self._find(at)).id
        return await pins.unpin(self._engine, self._line, id, reason, self._recorded("unpin", id=id))

    @operation(may_lag=True)
    @needs("read")
    async def pins(self) -> list[PinInfo]:
        """List the pinned checkpoints, with the reasons."""
        from holdfast.maintenance import pins

        return await pins.pins(self._engine, self._line)

    @operation(changes=True)
    @needs("admin")
    async def hold(self, *, reason: str = "") -> None:
        """Protect the thread, with its namespaces, from pruning and deletion: both raise `DeniedError` until it is
        released.

        There may be several holds, each with its reason. Saving works as always.
        """
        stored = await self._engine.protect_text(self._line, check_name(reason, "reason"), "reason")
        await self._engine.holds.hold(self._line, stored, self._recorded("hold", reason=stored))

    @operation(changes=True)
    @needs("admin")
    async def release(self, *, reason: str | None = None) -> None:
        """Remove a hold, or all that the thread has. `NotFoundError` if it has none."""
        from holdfast.maintenance import pins

        await pins.release(self._engine, self._line, reason, self._recorded("release"))

    @operation(may_lag=True)
    @needs("read")
    async def holds(self) -> list[HoldInfo]:
        """List the holds of the thread, with the reasons."""
        from holdfast.maintenance import pins

        return await pins.holds(self._engine, self._line.tenant, self._line)

    # TTL --------------------------------------------------------------------------------------------------------

    @operation(changes=True)
    @needs("delete")
    async def expire(self, ttl: Duration | None) -> None:
        """Set how long after its last change the thread may be deleted, by `maintenance.delete_stale`: `"30d"`; None
        for never."""
        from holdfast.engine.line_ttl import parse_ttl, set_ttl

        span = None if ttl is None else parse_ttl(self._line, ttl)
        await set_ttl(self._engine, self._line, span, self._recorded("expire", ttl=span or 0))

    @operation(may_lag=True)
    @needs("read")
    async def expires(self) -> datetime | None:
        """Return when the thread expires if it is not changed; None for never."""
        from holdfast.engine.line_ttl import read_ttls

        root = root_of(self._line)
        ttls = await read_ttls(self._engine.context.backend, [root])
        if root not in ttls:
            await self._lines.info(root)  # raises if there is none
            return None
        summaries = [await self._lines.summary(line) for line in await self._lines.family(root)]
        return to_datetime(max(each.updated for each in summaries) + ttls[root])

    # Inside ---------------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return self._handle.engine

    @property
    def _lines(self) -> LineIndex:
        return self._handle.engine.lines

    def _recorded(self, action: str, **detail: Any) -> Apply:
        """Return how to apply a change of the thread other than a save: together with its record."""
        from holdfast.security.audit.thread_audit import recorded

        return recorded(self._engine, self._line, action, detail)

    async def _find(self, at: Revision) -> StepRef:
        if at == "HEAD":
            return await self._lines.find(self._line, None)
        from holdfast.history.revisions import find_step

        return await find_step(self._engine, self._line, at)

    async def _refer(self, kind: str, name: str, at: Revision, *, move: bool) -> None:
        point = await self._find(at)
        action = "tag" if kind == TAG else "label"
        apply = self._recorded(action, id=point.id, **{action: name})
        await self._lines.set_ref(self._line, kind, name, point.id, move=move, apply=apply)
