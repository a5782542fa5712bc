"""The plan of a restore for each line: compares what the backup and the store have of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from holdfast.backends.interface import Get, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.append import AppendRequest
from holdfast.engine.copy.line_stream import every_line
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import CONTENT_KINDS, line_kind, root_of, short_name
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import ConflictError, NotFoundError
from holdfast.history import branches
from holdfast.history.branches import SWITCH
from holdfast.history.comparison import ComparedPoint, compare_packed
from holdfast.history.revisions import resolve
from holdfast.maintenance.backup.recovery_point import RecoveryPoint
from holdfast.maintenance.backup.restore_report import RestoreAction, RestoredLine, Selection, describe
from holdfast.security.handle import StoreHandle

_DIFF_LINES = 20
"""How many lines of a difference are shown."""


class RestorePlan:
    """Says what a restore does with lines, and builds the steps that set agents and scopes back."""

    def __init__(self, engine: Engine, source: Engine, *, in_place: bool) -> None:
        self._engine = engine
        self._source = source
        self._in_place = in_place
        self.actions: dict[Line, RestoreAction] = {}
        self.reverts: dict[Line, AppendRequest] = {}
        self.conflicts: set[Line] = set()
        """The threads of which the store has another history, and which are to be restored beside it."""
        self.besides: Mapping[Line, Line] = {}
        """The lines of these under their other names."""

    def lines(self, action: RestoreAction) -> list[Line]:
        """Return the lines with which something is done."""
        return [line for line, what in self.actions.items() if what == action]

    async def add(self, lines: Sequence[Line]) -> None:
        """Decide on some lines."""
        for line in lines:
            self.actions[line] = await self._action(line)
        for line in lines:
            if root_of(line) in self.conflicts:
                self.actions[line] = "beside"

    async def _action(self, line: Line) -> RestoreAction:
        backend = self._engine.context.backend
        (existing,) = await backend.read([Get(LINES, [tuple(line)])])
        if not existing:
            return "create"
        kind = line_kind(line.name)
        if kind not in CONTENT_KINDS:
            return "left out"
        theirs, own = await steps_of(self._source, line), await steps_of(self._engine, line)
        (wanted,) = await self._source.context.backend.read([Get(LINES, [tuple(line)])])
        shared = theirs.items() & own.items()
        if existing[0].body != wanted[0].body or (len(shared) < len(theirs) and len(shared) < len(own)):
            return await self._conflict(line)
        if len(shared) == len(theirs) == len(own):
            return "same"
        if len(shared) == len(own):
            return "extend"
        if not self._in_place:
            newer = len(own) - len(shared)
            raise ConflictError(
                f"the store has {newer} checkpoint{'s' if newer > 1 else ''} of this thread that the backup lacks",
                where=f"thread {line} in {backend.url}",
                hint="Restore in place, which keeps them on their branch; under another name; or into another store",
                code="restore-conflict",
            )
        if kind == "session":
            return "newer"
        return await (self._switch(line) if kind == "thread" else self._revert(line))

    async def _conflict(self, line: Line) -> RestoreAction:
        """Decide on a line of which the store has another history: it was deleted, and created again."""
        if not self._in_place:
            raise ConflictError(
                "the store has another history of this thread",
                where=f"thread {line} in {self._engine.context.backend.url}",
                hint="Restore it in place, under another name, or into another store",
                code="restore-conflict",
            )
        match line_kind(line.name):
            case "thread":
                self.conflicts.add(root_of(line))
                return "beside"
            case "session":
                return "newer"
        return await self._revert(line)

    async def _switch(self, line: Line) -> RestoreAction:
        """Decide on a thread that has gone on: HEAD may be at the right step already."""
        wanted = await resolve(self._source, line, "HEAD")
        try:
            await resolve(self._engine, line, wanted.id)
        except NotFoundError:  # it was pruned here
            return await self._conflict(line)
        for each in await branches.describe(self._engine, line):
            if each.is_current and each.head is not None:
                is_back = each.ahead == 1 and each.head.kind == SWITCH and each.base is not None
                if each.head.id == wanted.id or (is_back and each.base is not None and each.base.id == wanted.id):
                    return "same"
        return "switch"

    async def _revert(self, line: Line) -> RestoreAction:
        from holdfast.agents.recovery import rollback  # slow to import
        from holdfast.agents.storage.agent_line import AgentLine
        from holdfast.state import history

        point = await resolve(self._source, line, "HEAD")
        handle, scope = StoreHandle(self._engine, line.tenant), Scope.of_line(line.name)
        if scope is not None:
            request = await history.restore_request(handle, scope, self._source, point)
        else:
            agent = AgentLine(handle, short_name(line.name))
            request = await rollback.restore_request(agent, self._source, point)
        if request is None:
            return "same"
        self.reverts[line] = request
        return "revert"

    # Reports ------------------------------------------------------------------------------------------------------

    async def describe(self, line: Line, *, steps: int | None, compare: bool) -> RestoredLine:
        """Return the entry of a line in the report; with the difference of the states, if it is to be compared."""
        action = self.actions[line]
        if action == "create" and steps is not None:
            return describe(line, action, steps)._replace(added=steps)
        theirs, own = await steps_of(self._source, line), await steps_of(self._engine, line)
        newer = len(own.keys() - theirs.keys()) if action in ("switch", "revert", "newer", "left out", "beside") else 0
        added = len(theirs.keys() - own.keys()) if action in ("create", "extend") else 0
        if action == "beside":
            newer, added = len(own), len(theirs)
        as_name = short_name(self.besides[line].name) if line in self.besides else ""
        found = describe(line, action, len(theirs), newer)._replace(added=added, as_name=as_name)
        if compare and action in ("switch", "revert", "extend", "beside"):
            found = found._replace(changes=await self._differences(line))
        return found

    async def _differences(self, line: Line) -> tuple[str, ...]:
        """Return the difference between the state that the store has of a line and that of the backup."""
        old, old_state = await _latest(self._engine, line)
        new, new_state = await _latest(self._source, line)
        diff = await compare_packed(self._engine, old, old_state, new, new_state)
        lines = ["".join(text for _, text in each) for each in diff.without_internal().lines()]
        more = len(lines) - _DIFF_LINES
        return (*lines[:_DIFF_LINES], f"… {more} more lines") if more > 0 else tuple(lines)

    async def kept(self, selection: Selection, point: RecoveryPoint) -> list[RestoredLine]:
        """Return the lines of the store that are selected, and were created after the backup: they stay."""
        if selection.names is not None:
            return []
        known = {entry.line for entry in point.entries if entry.columns} | point.damaged.keys() | self.actions.keys()
        return [
            describe(line, "kept", newer=(await self._engine.lines.summary(line)).steps)
            for line in await every_line(self._engine.context.backend, selection.tenant)
            if line not in known and line_kind(line.name) in CONTENT_KINDS and selection.includes_line(line)
        ]


async def _latest(engine: Engine, line: Line) -> tuple[ComparedPoint, PackedMap]:
    (rows,) = await engine.context.backend.read([Scan(STEPS, tuple(line), limit=1, bodies=False)])
    if not rows:
        return ComparedPoint(line, None), {}
    point = await resolve(engine, line, "HEAD")
    return ComparedPoint(line, point), await engine.lines.read_step(line, point, partial(engine.states.packed, line))


async def steps_of(engine: Engine, line: Line) -> Mapping[tuple[int, int], bytes]:
    """Return the hashes of the steps of a line by position."""
    found: dict[tuple[int, int], bytes] = {}
    async for row in scan_rows(engine.context.stored, STEPS, tuple(line), bodies=False):
        step = StepRef.of(row)
        found[step.branch, step.seq] = step.hash
    return found
