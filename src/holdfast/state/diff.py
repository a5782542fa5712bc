"""Differences between a scope's state at two moments."""

from __future__ import annotations

from typing import Any

from holdfast.engine.model.json_diff import NOTHING, Edit, Kind
from holdfast.engine.model.scopes import Scope
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.types import to_datetime
from holdfast.history.comparison import ComparedPoint, differences, differences_given
from holdfast.history.diff_result import Diff, DiffSide
from holdfast.security.handle import StoreHandle
from holdfast.state.history import When, moment_of, point_at
from holdfast.state.reader import ScopeView, live_tip, read_line_at


class _ScopeSide:
    """The scope at a step, without the keys that had expired by a time."""

    def __init__(self, handle: StoreHandle, line: Line, point: StepRef | None, moment: int) -> None:
        self._handle, self._line = handle, line
        self.point, self._moment = point, moment

    async def expired(self) -> dict[str, int]:
        return await read_line_at(self._handle, self._line, self.point, ScopeView.expired, self._moment, migrate=False)

    async def tree(self, key: str) -> object:
        """Return the value of a key in JSON form."""
        item = await read_line_at(
            self._handle, self._line, self.point, lambda view: view.item(key), self._moment, migrate=False
        )
        return NOTHING if item is None else self._handle.codec.to_json(item.value)

    async def is_mark(self) -> bool:
        """Whether its only key starts with a dollar: in JSON, such a state has a form of its own."""
        keys = await read_line_at(
            self._handle, self._line, self.point, lambda view: view.keys(limit=2), self._moment, migrate=False
        )
        return len(keys) == 1 and keys[0].startswith("$")

    async def state(self) -> dict[str, Any]:
        items = await read_line_at(self._handle, self._line, self.point, ScopeView.items, self._moment, migrate=False)
        return {item.key: item.value for item in items}

    def to_side(self, scope: Scope) -> DiffSide:
        point = self.point
        if point is None:
            return DiffSide(str(scope), "", 0, 0, None)
        return DiffSide(str(scope), point.id, point.branch, point.depth, to_datetime(point.time))


async def diff(handle: StoreHandle, scope: Scope, a: When, b: When | None) -> Diff:
    """Return the keys that differ, and where. Reads only what differs, and what expires."""
    await handle.guard.allow("read", scope, ())
    line = handle.line(scope)
    point = await point_at(handle, line, a)
    old = _ScopeSide(handle, line, point, moment_of(handle, a, point))
    if b is None:
        tip = await live_tip(handle, scope)
        new = _ScopeSide(handle, line, None if tip is None else tip.point, handle.now())
    else:
        point = await point_at(handle, line, b)
        new = _ScopeSide(handle, line, point, moment_of(handle, b, point))
    edits = await _edits(handle, line, old, new)
    await handle.guard.saw(scope, ())
    return Diff(handle.codec, old.to_side(scope), new.to_side(scope), edits)


async def _edits(handle: StoreHandle, line: Line, old: _ScopeSide, new: _ScopeSide) -> list[Edit]:
    if await old.is_mark() or await new.is_mark():
        return await differences_given(handle.engine, line, await old.state(), await new.state())
    found = await differences(handle.engine, ComparedPoint(line, old.point), ComparedPoint(line, new.point), large=True)
    lapsed = {*await old.expired(), *await new.expired()}
    # Keys have no order of their own, and what is kept of their expiry is no key.
    edits = [edit for edit in found if edit.path and not _is_internal(edit) and edit.path[0] not in lapsed]
    return edits + [edit for key in sorted(lapsed) if (edit := await _expiry_edit(old, new, key)) is not None]


def _is_internal(edit: Edit) -> bool:
    return str(edit.path[0]).startswith("\0")


async def _expiry_edit(old: _ScopeSide, new: _ScopeSide, key: str) -> Edit | None:
    """Return the edit of a key that had expired at one of two times, or at both."""
    was, is_ = await old.tree(key), await new.tree(key)
    if was is is_:
        return None
    kind: Kind = "add" if was is NOTHING else "remove"
    return Edit(kind, (key,), (key,), "/" + key.replace("~", "~0").replace("/", "~1"), was, is_)
