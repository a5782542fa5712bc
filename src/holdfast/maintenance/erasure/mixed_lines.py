"""Removing the steps of one person from a line that others share.

First a step is appended to each branch that has anything of the person: the state without what the person wrote. If
that removes channels, it names them, so that another one without any change follows it. Then the person's steps are
pruned, and all others whose states still contain something of them or that name what was removed; a stub with the hash
is left of each, so that the line still verifies. What others wrote stays in the new state, and in the history where the
person was not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.interface import Change, Delete, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import QUARANTINE, REFS, STEPS, WRITES
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.lines import At, OnBranch
from holdfast.engine.model.attribution import (
    MapMark,
    Mark,
    is_marked,
    mark_after,
    marked_keys,
    with_keys,
    without_marked,
)
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.operations import Set as SetValue
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, unpack, unpack_name
from holdfast.engine.model.steps import Step
from holdfast.engine.namespaces import agent_of, is_thread
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import ERASE, PIN, Branch, Line, StepRef, open_step
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import LineChange, SystemLine, audited_request
from holdfast.errors import ConflictError
from holdfast.maintenance.erasure.audit_rows import record_place
from holdfast.security.audit.thread_audit import recorded
from holdfast.state.artifacts.content import content_name
from holdfast.state.sessions.records import LINE as SESSIONS
from holdfast.state.sharing.topic import PUBLISH

_ATTEMPTS = 20

Position = tuple[int, int]


class _Tainted(Exception):
    """A branch ends with something of the person."""


@dataclass
class LineMarks:
    """The parts of a line that some steps wrote."""

    dropped: set[Position] = field(default_factory=set)
    """The steps themselves, and those whose states have something of theirs, or which name what was theirs."""
    ends: dict[int, tuple[StepRef, Mark]] = field(default_factory=dict)
    """By branch, its last step and what is marked of the state; of a branch without steps, where it starts."""
    answered: set[str] = field(default_factory=set)
    """The ids of steps that one of the person's follows, and that stay: pending writes after them are dropped."""
    since: int = 0
    """When the first of them was saved, in nanoseconds since 1970."""
    pruned: int = 0
    """Steps that were pruned before: nobody knows whose they were."""

    @property
    def tainted(self) -> dict[int, tuple[StepRef, Mark]]:
        """The ends of branches that have something of the person."""
        return {branch: end for branch, end in self.ends.items() if end[0][:2] in self.dropped}


class LineEraser:
    """Removes the steps of one person from one line."""

    def __init__(
        self,
        engine: Engine,
        line: Line,
        detail: Mapping[str, Any],
        mine: Set[Position] = frozenset(),
        is_mine: Callable[[str, bytes], bool] | None = None,
    ) -> None:
        """`mine` are the person's steps; and in lines of records, `is_mine` says whether an entry is, by its name and
        packed value. `detail` is for the record of it in the audit."""
        self._engine = engine
        self._line = line
        self._detail = detail
        self._mine = mine
        self._is_mine = is_mine

    async def erase(self) -> int:
        """Remove the steps. Returns the number of steps that were pruned. `DeniedError` if the line is held."""
        for _ in range(_ATTEMPTS):
            marks = await self._read()
            if not marks.dropped:
                return 0
            for branch, (point, mark) in marks.tainted.items():
                await self._append(branch, point, mark)
            await self._unpin(marks.dropped)
            try:
                return await self._prune()
            except _Tainted:
                continue  # somebody appended to a branch meanwhile
        raise ConflictError(
            "the thread kept changing while it was rewritten", where=f"thread {self._line}", hint="Try again"
        )

    async def _prune(self) -> int:
        count = since = 0

        async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:  # noqa: ARG001
            nonlocal count, since
            marks = await self._read()
            if marks.tainted:
                raise _Tainted
            count, since = len(marks.dropped), marks.since
            # Damaged rows of the line may have been the person's; and what was pending before a step of theirs is what
            # they answered to, or the answer.
            changes = [Delete(QUARANTINE, tuple(self._line))]
            changes += (Delete(WRITES, (*self._line, id)) for id in sorted(marks.answered))
            return RewritePlan(frozenset(marks.dropped), changes, erase=True)

        apply = recorded(self._engine, self._line, ERASE, lambda: {**self._detail, "dropped": count, "since": since})
        await self._engine.rewriter.rewrite(self._line, choose, apply)
        return count

    # Marks ------------------------------------------------------------------------------------------------------

    async def _read(self) -> LineMarks:
        """Go through all steps, branch by branch."""
        engine, found = self._engine, LineMarks()
        at: dict[Position, tuple[StepRef, Mark]] = {}
        by_id: dict[str, Mark] = {}
        answered: dict[Position, str] = {}
        for branch in (Branch(0, 0, 0, 0, ""), *await engine.lines.branches(self._line)):
            base = at.get((branch.base_branch, branch.base_length - 1)) if branch.base_length else None
            mark: Mark = False if base is None else base[1]
            if base is not None:
                found.ends[branch.branch] = base
            before = None if base is None else base[0]
            async for row in scan_rows(engine.context.backend, STEPS, (*self._line, branch.branch)):
                point = StepRef.of(row)
                if point.pruned:
                    mark, before = False, None
                    found.pruned += 1
                    continue
                step = open_step(self._line, row, engine.context.max_bytes)
                mark = await self._after(step, point, row, mark, before, at, by_id)
                if point[:2] in self._mine or is_marked(mark):
                    found.dropped.add(point[:2])
                    found.since = min(point.time, found.since or point.time)
                elif step.header.kind == ERASE and step.edit.removed and is_thread(self._line.name):
                    found.dropped.add(point[:2])
                at[point[:2]] = found.ends[branch.branch] = (point, mark)
                by_id[point.id] = mark
                if before is not None and self._answers(point, row):
                    answered[before[:2]] = before.id
                before = point
        found.answered = {id for position, id in answered.items() if position not in found.dropped}
        return found

    def _answers(self, point: StepRef, row: Row) -> bool:  # noqa: ARG002
        """Return whether pending writes before a step are to be dropped with it."""
        return point[:2] in self._mine

    async def _after(
        self,
        step: Step,
        point: StepRef,
        row: Row,  # noqa: ARG002 - for those who look for something else
        mark: Mark,
        before: StepRef | None,
        at: dict[Position, tuple[StepRef, Mark]],
        by_id: dict[str, Mark],
    ) -> Mark:
        """Return what of the state after a step is marked."""
        mine = point[:2] in self._mine
        edit: EditMap = step.edit
        new = mark
        if mine or is_marked(mark):
            states = self._engine.states
            values = None if before is None else await states.values(self._line, before)
            large = await states.load_large(self._line, frozenset(pointers(edit)))
            new = mark_after(mark, edit, mine, values, large, whole=is_message(self._line, step))
        put = {key for key, _ in edit.put}
        for parent in step.header.parents[1:]:  # a merge repeats what the other branch has
            other = at.get(parent[:2])
            if other is not None and (marked := marked_keys(other[1]) & put):
                new = with_keys(new, marked)
        if self._is_mine is not None:
            entries = {
                key
                for key, each in edit.put
                if isinstance(each, SetValue) and self._is_mine(unpack_name(key), each.value)
            }
            new = with_keys(new, entries) if entries else new
        if step.header.kind == "restore" and not mine:
            restored = self._engine.context.codec.unpack(step.header.metadata).get("restored")
            new = by_id.get(str(restored), new)
        return new

    # The new end of a branch ------------------------------------------------------------------------------------

    async def _append(self, branch: int, point: StepRef, mark: Mark) -> None:
        """Append a step with the state without what is marked. Nothing, if somebody was faster: it is tried again."""
        try:
            if not is_thread(self._line.name):
                await self._append_audited(point, mark)
                return
            at: At = point.id
            if point.branch != branch:  # it has no steps of its own
                names = {each.branch: each.name for each in await self._engine.lines.branches(self._line)}
                at = OnBranch(names[branch])
            edit = await self._edit(point, mark)

            async def compute(*_: object) -> EditMap:
                return edit

            request = AppendRequest(self._line, compute, at, OnConflict.REFUSE, kind=ERASE)
            request.is_limited = False
            await self._engine.writer.save(request)
        except ConflictError:
            return

    async def _append_audited(self, point: StepRef, mark: Mark) -> None:
        async def edit(parent: StepRef | None, _: LoadedState | None, __: int) -> LineChange:
            if parent is None or parent[:2] != point[:2]:
                raise ConflictError("the line was changed by another process", where=str(self._line))
            change = await self._edit(point, mark)
            put = {unpack_name(key): each.value for key, each in change.put if isinstance(each, SetValue)}
            removed = [unpack_name(key) for key in change.removed]
            events = [Event("change", "", ERASE, name) for name in (*put, *removed)]
            old = await self._engine.states.values(self._line, point)
            return LineChange(put, removed, events, self._link_changes(old, put))

        request = audited_request(self._engine, self._line, ERASE, "", edit)
        request.is_limited = False
        await self._engine.writer.save(request)

    async def _edit(self, point: StepRef, mark: Mark) -> EditMap:
        """Return the change of the state at a step that removes what is marked. Channels are written as a whole: to
        name what is removed of one, such as a key of a dict, would keep it."""
        old = await self._engine.states.values(self._line, point)
        clean = without_marked(old, mark)
        new = clean if isinstance(clean, dict) else {}
        changed = [(key, flatten(value)) for key, value in new.items() if is_marked(_mark_of(mark, key))]
        removed = tuple(key for key in old if key not in new)
        return EditMap(removed, tuple((key, SetValue(value)) for key, value in changed))

    def _link_changes(self, old: PackedMap, put: Mapping[str, Packed]) -> list[Change]:  # noqa: ARG002
        """Return the changes of the links by which new values are found."""
        return []

    async def _unpin(self, dropped: Set[Position]) -> None:
        """Remove the pins of steps that are pruned."""
        (pins,) = await self._engine.context.backend.read([Scan(REFS, (*self._line, PIN))])
        if not pins:
            return
        rows = scan_rows(self._engine.context.backend, STEPS, tuple(self._line), bodies=False)
        ids = {point.id async for row in rows if (point := StepRef.of(row))[:2] in dropped}
        changes: list[Change] = [Delete(REFS, row.key) for row in pins if str(row.columns[0]) in ids]
        if changes:
            await recorded(self._engine, self._line, "unpin")(changes)


def is_message(line: Line, step: Step) -> bool:
    """Return whether a step published a message, or recorded a durable step, which have nothing of those before."""
    return (step.header.kind == PUBLISH and not is_thread(line.name)) or agent_of(line) is not None


def _mark_of(mark: Mark, key: bytes) -> Mark:
    """Return the mark of a channel."""
    return mark.keys.get(key, mark.rest) if isinstance(mark, MapMark) else mark


# Lines of records ---------------------------------------------------------------------------------------------------

IsRecord = Callable[[Mapping[str, Any]], bool]
"""Returns whether a record is the person's."""


async def erase_records(
    engine: Engine,
    tenant: str,
    is_record: IsRecord,
    detail: Mapping[str, Any],
    lines: Container[Line] | None = None,
) -> int:
    """Prune the steps of both lines that contain records of a person; of one of them, if only that is among `lines`.
    Returns their number.

    The records are deleted before; but the steps of these lines still contain them, also those that were deleted long
    ago."""
    count = 0
    for name in (ARTIFACTS, SESSIONS):
        line = Line(tenant, name)
        if (lines is None or line in lines) and await engine.lines.load_tip(line) is not None:
            count += await _erase_line(engine, line, is_record, detail)
    return count


async def _erase_line(engine: Engine, line: Line, is_record: IsRecord, detail: Mapping[str, Any]) -> int:
    codec, names, places = engine.context.codec, set[str](), list[str]()
    current = await SystemLine(engine, line).read(lambda entries: entries.with_prefix(""))

    def is_mine(name: str, packed: bytes) -> bool:
        if name in current:
            return False  # it is still there: whoever it belongs to, or content that another artifact has too
        if name.startswith("\0"):
            return name in names
        fields = as_map(packed)
        record = None if fields is None else unpack(codec, fields)
        if not isinstance(record, Mapping) or not is_record(record):
            return False
        names.add(content_name(str(record.get("sha256", ""))))
        found = (record_place(line.name, name), *([str(record["scope"])] if line.name == SESSIONS else []))
        places.extend(each for each in found if each not in places)
        return True

    return await LineEraser(engine, line, {**detail, "places": places}, is_mine=is_mine).erase()
