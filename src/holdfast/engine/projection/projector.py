"""Readable rows beside the log, written in the same batch as their step.

They have the content of the latest checkpoint of a thread, and what every checkpoint changed, for people to query in
the database's own language. Nothing reads them back: the log is authoritative, and `build` rebuilds them from it.

The changes of a step are enough to update the rows of the checkpoint before it. For a step that follows another one, or
none, all rows are compared and rewritten. Either is done on condition that the thread's row in `heads` is the one
that was read; so of two writers, one reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Protocol

from holdfast.backends.batch_eval import same_columns
from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import (
    BEHIND,
    BRANCHES,
    BY_CHECKPOINT,
    CONVERSATION_HISTORY,
    EVENTS,
    HEADS,
    METADATA,
    READABLE,
    STATE_TRANSITIONS,
    STATE_VALUES,
    STEPS,
    TRANSITIONS,
    Key,
    Scalar,
    Table,
)
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.context import EngineContext
from holdfast.engine.display_reader import DisplayReader
from holdfast.engine.line_head import find_head, newest_query
from holdfast.engine.line_walk import lines_of_kinds
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.operations import EditList, KeepRun, Operation
from holdfast.engine.model.operations import Set as SetValue
from holdfast.engine.model.packed_state import Packed, as_items, unpack_name
from holdfast.engine.model.steps import Step
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import has_messages
from holdfast.engine.optimistic import Attempts
from holdfast.engine.projection.rendering import (
    CAP,
    CONVERSATION,
    LEFT_OUT,
    RenderedMessage,
    clean_text,
    is_hidden,
    key_text,
    messages,
    render_value,
    time_text,
    to_text,
)
from holdfast.engine.projection.rows import (
    NO_CHANNELS,
    NOBODY,
    Head,
    Piece,
    ProjectedStep,
    ProjectedThread,
    RowChanges,
    agent_columns,
    chain_to,
    clear_state,
    edit_pieces,
    entries_of,
    first_step,
    has_transitions,
    is_shown,
    operations_by_channel,
    transition_columns,
)
from holdfast.engine.row_format import AT_HEAD, Branch, Line, LineInfo, StepRef, open_step
from holdfast.engine.state_loader import StateLoader
from holdfast.errors import ConfigError, CorruptError

_PAGE = 256
"""How many steps are read at a time."""


_PATIENCE = 10
"""How often a thread may be rewritten while its rows are built. A node that is still missing then is lost."""

_FEW = 32
"""How many steps are read one by one."""

_WEIGHT = 600

LATE_SECONDS = 60.0
"""Rows that are missing for longer than this do not just follow: nobody has used the store, or they cannot be made."""


class StepFollower(Protocol):
    """Writes the readable rows of steps soon after they were saved."""

    def marks(self, line: Line, steps: Sequence[ProjectedStep]) -> list[Change]:
        """Return the changes, for the batch of some steps, that say that their rows are missing."""

    def add(self, line: Line, steps: Sequence[ProjectedStep]) -> None:
        """Write the rows of steps that were just saved, soon."""


class Projector:
    """Builds readable rows, where a store has them."""

    def __init__(self, context: EngineContext, lines: LineIndex, states: StateLoader) -> None:
        self.on: bool = bool(context.project)
        self.follower: StepFollower | None = None
        """Writes the rows of steps after they were saved, instead of with them."""
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._states = states

    # With a step ----------------------------------------------------------------------------------------------

    async def rows(self, line: Line, new_steps: Sequence[ProjectedStep]) -> RowChanges:
        """Return the changes that are applied together with steps of one thread."""
        if not is_shown(line):
            return RowChanges(line)
        try:
            return await self._rows(line, new_steps)
        except CorruptError:
            # A damaged thread can be saved to, and reads of it fail. It is shown again when it is repaired.
            return await self._step_rows(line, new_steps)

    async def _rows(self, line: Line, new_steps: Sequence[ProjectedStep]) -> RowChanges:
        thread = await self._stored(line, new_steps[0])
        if thread is None:
            # There were steps before the store had such rows, or a writer did not write them.
            await self.build(line)
            thread = await self._read(line, new_steps[0].info)
        at_head = [each for each in new_steps if each.point.beside == AT_HEAD]
        latest = max(at_head or new_steps, key=lambda each: (each.point.id, each.point.revision))
        chain = chain_to(new_steps, latest)
        parent = chain[0].parent
        follows = (parent.hash.hex() if parent is not None else "") == thread.hash
        rows = RowChanges(line)
        if not follows and not await self._fill(rows, thread, parent):
            await self.build(line)
            thread = await self._read(line, new_steps[0].info)
            follows = parent is not None and parent.hash.hex() == thread.hash
            rows = RowChanges(line)
        names = {**thread.names, **{each.branch: each.name for step in new_steps for each in step.branches}}
        named = thread._replace(names=names)
        if names != thread.names:
            await self._rename(rows, thread, named, {each.point.id for each in new_steps})
        for each in new_steps:
            self._describe(rows, named, each.point, each.step, None if each.parent is None else each.parent.id)
        await self._transitions(rows, new_steps)
        rows.after = named._replace(version=new_steps[-1].info.version)
        if at_head and latest.point.id >= thread.checkpoint:
            if follows:
                channels = await self._follow(rows, named, chain)
                self._head(rows, named, latest, channels)
            else:
                await self._show(rows, named, latest, new_steps)
            if rows.after is not None:
                rows.after = rows.after._replace(version=new_steps[-1].info.version)
        return rows

    def remember(self, rows: RowChanges) -> None:
        """Cache rows that were just stored."""
        if rows.after is not None:
            weight = _WEIGHT + 100 * (len(rows.after.channels) + len(rows.after.names))
            self._context.cache.put(("rows", rows.line), rows.after, weight)

    def forget(self, line: Line) -> None:
        """Drop the cached rows of a thread."""
        self._context.cache.drop(("rows", line))

    async def _stored(self, line: Line, first: ProjectedStep) -> ProjectedThread | None:
        """Return the rows of a thread; None if it has steps before some new ones, and no rows."""
        thread: ProjectedThread | None = self._context.cache.get(("rows", line))
        if thread is not None and thread.version == first.info.version:
            return thread
        thread = await self._read(line, first.info)
        if thread.row is None and first.point[:2] != (0, 0):
            (steps,) = await self._backend.read([first_step(line)])
            if steps:
                return None
        return thread

    async def _read(self, line: Line, info: LineInfo) -> ProjectedThread:
        """Read the rows of a thread; for state, which may have very many keys, without how each is shown."""
        values_scan = Scan(STATE_VALUES, tuple(line), limit=None if has_messages(line.name) else 0)
        heads, values, branches = await self._backend.read(
            [Get(HEADS, [tuple(line)]), values_scan, Scan(BRANCHES, tuple(line))]
        )
        names = {each.branch: each.name for each in map(Branch.of, branches)}
        channels = {str(row.key[2]): (str(row.columns[0]), int(row.columns[1])) for row in values}
        return ProjectedThread(Head.of(heads), channels, info.version, names)

    async def _step_rows(self, line: Line, new_steps: Sequence[ProjectedStep]) -> RowChanges:
        """Return the rows of steps only. No state is shown."""
        thread = await self._read(line, new_steps[0].info)
        rows = RowChanges(line, [Expect(HEADS, tuple(line), thread.row), *clear_state(line)])
        for each in new_steps:
            self._describe(rows, thread, each.point, each.step, None if each.parent is None else each.parent.id)
        await self._transitions(rows, new_steps)
        return rows

    async def _fill(self, rows: RowChanges, thread: ProjectedThread, point: StepRef | None) -> bool:
        """Write the rows of a step that was stored without any, and of those before it. False if there are many."""
        for _ in range(_FEW):
            if point is None:
                return True
            line = rows.line
            transitions, stored = await self._backend.read(
                [Get(TRANSITIONS, [(*line, point.id)]), Get(STEPS, [(*line, point.branch, point.seq)])]
            )
            if transitions or not stored or StepRef.of(stored[0]).pruned:
                return True
            step = open_step(line, stored[0], self._context.max_bytes)
            parent = await self._parent(line, step, {})
            self._describe(rows, thread, point, step, None if parent is None else parent.id)
            await self._stored_transitions(rows, point.id, point.id)
            rows.changes.append(Delete(BEHIND, (*line, point.id)))
            point = parent
        return False

    def _describe(
        self, rows: RowChanges, thread: ProjectedThread, point: StepRef, step: Step | None, parent: str | None
    ) -> None:
        """Write the rows of a step. Of a damaged one they have less."""
        changed = "null"
        if step is not None:
            names = [unpack_name(key) for key, _ in step.edit.put] + [unpack_name(key) for key in step.edit.removed]
            changed = to_text(sorted({name for name in names if not is_hidden(name)}))
        rows.put(
            TRANSITIONS,
            (point.id,),
            parent or "",
            thread.label(point.branch),
            point.branch,
            point.depth,
            clean_text(point.kind),
            time_text(point.time),
            changed if len(changed) <= CAP else "null",
        )
        if point.revision:
            rows.changes.append(Delete(METADATA, (*rows.line, point.id)))
        for key, text in entries_of(step.header) if step is not None else ():
            rows.put(METADATA, (point.id, key), text)

    async def _transitions(self, rows: RowChanges, new_steps: Sequence[ProjectedStep]) -> None:
        """Write the transitions that steps recorded."""
        if not has_transitions(rows.line):
            return
        if self.follower is not None:  # their events are stored, and may have been redacted since
            ids = [each.point.id for each in new_steps]
            await self._stored_transitions(rows, min(ids), max(ids))
            return
        for each in new_steps:
            self._put_transitions(rows, each.events)

    async def _stored_transitions(self, rows: RowChanges, first: str, last: str) -> None:
        """Write the transitions of the steps from an id to another one."""
        if has_transitions(rows.line):
            scan = Scan(EVENTS, tuple(rows.line), (first,), (last + "\0",))
            (events,) = await read_despite_damage(self._backend, [scan])
            self._put_transitions(rows, events)

    def _put_transitions(self, rows: RowChanges, events: Sequence[Row]) -> None:
        for event in events:
            columns = transition_columns(rows.line, event, self._context.max_bytes)
            if columns is not None:
                rows.put(STATE_TRANSITIONS, event.key[2:], *columns)

    def _head(
        self,
        rows: RowChanges,
        thread: ProjectedThread,
        latest: ProjectedStep,
        channels: Mapping[str, tuple[str, int]],
        values: Sequence[Change] | None = None,
    ) -> None:
        """Write the thread's own row, on condition that it is unchanged. `values` are the rows of its values, if they
        are not only those that change."""
        point = latest.point
        row = Head(
            *agent_columns(rows.line, rows.changes if values is None else values, thread.row),
            checkpoint=point.id,
            parent="" if latest.parent is None else latest.parent.id,
            kind=clean_text(point.kind),
            created=time_text(latest.info.created),
            time=time_text(point.time),
            steps=point.depth + 1,
            hash=point.hash.hex(),
            version=1 if thread.row is None else thread.row.version + 1,
        )
        rows.changes.append(Expect(HEADS, tuple(rows.line), thread.row))
        rows.put(HEADS, (), *row)
        rows.after = ProjectedThread(row, channels, latest.info.version, thread.names)

    async def _rename(
        self, rows: RowChanges, before: ProjectedThread, after: ProjectedThread, new_ids: Set[str]
    ) -> None:
        """Write the labels of steps again whose branches lost their names to others."""
        numbers = {0, *before.names}
        changed = {number for number in numbers if before.label(number) != after.label(number)}
        if not changed:
            return
        (transitions,) = await self._backend.read([Scan(TRANSITIONS, tuple(rows.line))])
        for row in transitions:
            if int(row.columns[2]) in changed and str(row.key[2]) not in new_ids:
                parent, _, number, *rest = row.columns
                rows.put(TRANSITIONS, row.key[2:], parent, after.label(int(number)), number, *rest)

    # Updating the state ----------------------------------------------------------------------------------------

    async def _follow(
        self, rows: RowChanges, thread: ProjectedThread, chain: Sequence[ProjectedStep]
    ) -> dict[str, tuple[str, int]]:
        """Write what steps changed that follow the checkpoint that is shown."""
        if not has_messages(rows.line.name):
            return await self._follow_state(rows, chain)
        view = DisplayReader(self._states, rows.line, chain[-1].loaded)
        channels = dict(thread.channels)
        for key, changes in operations_by_channel(chain).items():
            name = unpack_name(key)
            if is_hidden(name):
                continue
            channel = key_text(name)
            shown_as = channels.pop(channel, ("", 0))
            last, operation = changes[-1]
            if operation is None:
                rows.changes.append(Delete(STATE_VALUES, (*rows.line, channel)))
                rows.shorten(channel, shown_as, 0)
                continue
            kind, items, text = shown_as[0], 0, "null"
            edits = [(step, edit) for step, edit in changes if isinstance(edit, EditList)]
            new_length = None
            if kind == CONVERSATION and len(edits) == len(changes):
                new_length = await self._edit(rows, view, key, channel, shown_as[1], edits, chain)
            if new_length is not None:
                items = new_length
            elif kind != LEFT_OUT or isinstance(changes[0][1], SetValue | None):
                kind, items, text = await self._rewrite(rows, view, key, channel, shown_as, changes, chain)
            point = chain[last].point
            rows.put(STATE_VALUES, (channel,), kind, items, point.id, time_text(point.time), text)
            channels[channel] = (kind, items)
        return channels

    async def _follow_state(self, rows: RowChanges, chain: Sequence[ProjectedStep]) -> dict[str, tuple[str, int]]:
        """Write what steps changed of the keys and values of a scope."""
        loaded = chain[-1].loaded
        for key, changes in operations_by_channel(chain).items():
            name = unpack_name(key)
            if is_hidden(name):
                continue
            last, operation = changes[-1]
            if operation is None:
                rows.changes.append(Delete(STATE_VALUES, (*rows.line, key_text(name))))
                continue
            if isinstance(operation, SetValue):
                packed: Packed = operation.value
            else:
                only = tuple(step for step in loaded.tail if key in step[1].removed or key in dict(step[1].put))
                packed = await DisplayReader(self._states, rows.line, loaded.with_tail(only)).value(key)
            kind, text = render_value(packed)
            point = chain[last].point
            rows.put(STATE_VALUES, (key_text(name),), kind, 0, point.id, time_text(point.time), text)
        return {}

    async def _edit(
        self,
        rows: RowChanges,
        view: DisplayReader,
        key: bytes,
        channel: str,
        length: int,
        edits: Sequence[tuple[int, EditList]],
        chain: Sequence[ProjectedStep],
    ) -> int | None:
        """Write the messages that steps added, and move those whose number changed.

        Returns how many there are now; None if it is no conversation any more.
        """
        pieces: list[Piece] = [KeepRun(0, length)]
        for number, edit in edits:
            pieces = edit_pieces(pieces, edit, number)
        added: list[tuple[int, int]] = []
        moved: list[tuple[int, int]] = []
        total = 0
        for piece in pieces:
            if isinstance(piece, KeepRun):
                if piece.start != total:
                    moved += ((total + i, piece.start + i) for i in range(piece.length))
                total += piece.length
            else:
                added += ((total + i, piece.step) for i in range(piece.length))
                total += piece.length
        if not total:
            return None
        rendered = messages(channel, await view.items(key, [number for number, _ in added]))
        if rendered is None:
            return None
        for (number, step), message in zip(added, rendered, strict=True):
            rows.put_message(channel, number, message, chain[step].point)
        if moved:
            keys = [(*rows.line, channel, old) for _, old in moved]
            (old_rows,) = await self._backend.read([Get(CONVERSATION_HISTORY, keys)])
            columns = {row.key[3]: row.columns for row in old_rows}
            for number, old in moved:
                # Rows that are missing belong to another checkpoint by now, and the batch will be refused.
                if old in columns:
                    rows.put(CONVERSATION_HISTORY, (channel, number), *columns[old])
        rows.shorten(channel, (CONVERSATION, length), total)
        return total

    async def _rewrite(
        self,
        rows: RowChanges,
        view: DisplayReader,
        key: bytes,
        channel: str,
        shown_as: tuple[str, int],
        changes: Sequence[tuple[int, Operation | None]],
        chain: Sequence[ProjectedStep],
    ) -> tuple[str, int, str]:
        """Write all rows of a channel."""
        packed = await view.value(key)
        items = as_items(packed)
        rendered = messages(channel, await view.whole_items(items)) if items else None
        if rendered is None:
            rows.shorten(channel, shown_as, 0)
            kind, text = render_value(packed)
            return kind, 0, text
        last, operation = changes[-1]
        if isinstance(operation, SetValue):
            points = [chain[last].point] * len(rendered)
        else:
            points = await self._writers(rows.line, await view.origins(key), chain)
        for number, (message, point) in enumerate(zip(rendered, points, strict=True)):
            rows.put_message(channel, number, message, point)
        rows.shorten(channel, shown_as, len(rendered))
        return CONVERSATION, len(rendered), "null"

    # Rewriting the state ---------------------------------------------------------------------------------------

    async def _show(
        self,
        rows: RowChanges,
        thread: ProjectedThread,
        latest: ProjectedStep,
        new_steps: Sequence[ProjectedStep] = (),
    ) -> None:
        """Write the state of a step, whatever is shown now, unless a later one is."""
        line, view = rows.line, DisplayReader(self._states, rows.line, latest.loaded)
        target: dict[tuple[Table, Key], tuple[Scalar, ...]] = {}
        channels: dict[str, tuple[str, int]] = {}
        entries = [entry for entry in await view.channels() if not is_hidden(unpack_name(entry[0]))]
        origins = {origin for _, origin in entries}
        conversations: dict[bytes, list[RenderedMessage]] = {}
        for key, _ in entries:
            parts = as_items(await view.value(key)) if has_messages(line.name) else None
            rendered = messages(key_text(unpack_name(key)), await view.whole_items(parts)) if parts else None
            if rendered is not None:
                conversations[key] = rendered
                origins.update(await view.origins(key))
        points = await self._steps_at(line, origins, [*new_steps, latest])
        new_rows = RowChanges(line)
        for key, origin in entries:
            channel, point = key_text(unpack_name(key)), points[origin]
            kind, items, text = CONVERSATION, len(conversations.get(key, ())), "null"
            if key in conversations:
                for number, (message, by) in enumerate(zip(conversations[key], await view.origins(key), strict=True)):
                    new_rows.put_message(channel, number, message, points[by])
            else:
                kind, text = render_value(await view.value(key))
            new_rows.put(STATE_VALUES, (channel,), kind, items, point.id, time_text(point.time), text)
            if has_messages(line.name):
                channels[channel] = (kind, items)
        for change in new_rows.changes:
            if isinstance(change, Put):
                target[change.space, change.row.key] = change.row.columns
        heads, *tables = await self._backend.read(
            [Get(HEADS, [tuple(line)]), Scan(STATE_VALUES, tuple(line)), Scan(CONVERSATION_HISTORY, tuple(line))]
        )
        head = Head.of(heads)
        if head is not None and head.checkpoint > latest.point.id:
            rows.after = None  # another writer was quicker
            return
        for space, existing in zip((STATE_VALUES, CONVERSATION_HISTORY), tables, strict=True):
            for row in existing:
                if (space, row.key) not in target:
                    rows.changes.append(Delete(space, row.key))
                elif same_columns(space, target[space, row.key], row.columns):
                    del target[space, row.key]
        rows.changes += (Put(space, Row(key, columns)) for (space, key), columns in target.items())
        # With the row that was just read, and not the cached one.
        self._head(rows, thread._replace(row=head), latest, channels, new_rows.changes)

    async def _writers(
        self, line: Line, origins: Sequence[tuple[int, int]], chain: Sequence[ProjectedStep]
    ) -> list[StepRef]:
        points = await self._steps_at(line, set(origins), chain)
        return [points[origin] for origin in origins]

    async def _steps_at(
        self, line: Line, origins: Set[tuple[int, int]], chain: Sequence[ProjectedStep]
    ) -> dict[tuple[int, int], StepRef]:
        """Return the steps at positions. Pruned ones have no id, and those that never existed are empty."""
        points = {each.point[:2]: each.point for each in chain}
        missing = sorted(origins - points.keys())
        if missing:
            scans = [Scan(STEPS, (*line, branch), (seq,), (seq + 1,), bodies=False) for branch, seq in missing]
            if len(scans) > _FEW:
                scans = [Scan(STEPS, tuple(line), bodies=False)]
            for rows in await self._backend.read(scans):
                points = {point[:2]: point for point in map(StepRef.of, rows)} | points
        return {origin: points.get(origin, NOBODY) for origin in origins}

    # Whole threads --------------------------------------------------------------------------------------------

    async def build_all(self, tenant: str, after: str, again: bool, tell: Callable[[str, int], None] | None) -> int:
        """Build the rows of threads after a name: where they are not complete, or all of them again.

        Returns how many threads. `tell` is called with the name of each thread, and its number.
        """
        if not self.on:
            raise ConfigError(
                "the store was opened without readable rows", where=self._backend.url, hint="Open it with project=True"
            )
        count = number = 0
        async for line in lines_of_kinds(self._backend, tenant, after=after):
            number += 1
            if again or not (await self.is_complete(line) and await self._has_all_steps(line)):
                await self.build(line)
                count += is_shown(line)
            if tell is not None:
                tell(line.name, number)
        return count

    async def is_complete(self, line: Line) -> bool:
        """Return whether a thread's rows show its latest checkpoint, and none is marked as missing."""
        point = await self._lines.latest_step(line)
        heads, marks = await self._backend.read([Get(HEADS, [tuple(line)]), Scan(BEHIND, tuple(line), limit=1)])
        head = Head.of(heads)
        if point is None or head is None or not is_shown(line):
            return head is None and not marks and (point is None or not is_shown(line))
        return head.hash == point.hash.hex() and not marks

    async def lag(self, *place: str) -> tuple[int, float]:
        """Return how many steps of a tenant, or of one of its lines, are marked as missing in the rows, and for how
        many seconds the first has been."""
        (marks,) = await self._backend.read([Scan(BEHIND, place)])
        if not marks:
            return 0, 0.0
        return len(marks), max(0.0, (self._context.clock() - min(int(row.columns[0]) for row in marks)) / 1e9)

    async def _has_all_steps(self, line: Line) -> bool:
        """Return whether every checkpoint of a thread has its rows: some may have been saved without."""
        steps, transitions, branches = await self._backend.read(
            [
                Scan(STEPS, tuple(line), start=("\0",), by="id", bodies=False),
                Scan(TRANSITIONS, tuple(line)),
                Scan(BRANCHES, tuple(line)),
            ]
        )
        thread = ProjectedThread(None, NO_CHANNELS, 0, {each.branch: each.name for each in map(Branch.of, branches)})
        points = {point.id: point for point in map(StepRef.of, steps if is_shown(line) else ())}  # the last revisions
        return {str(row.key[2]): row.columns[1:6] for row in transitions} == {
            id: (thread.label(each.branch), each.branch, each.depth, clean_text(each.kind), time_text(each.time))
            for id, each in points.items()
        }

    async def build(self, line: Line) -> None:
        """Build all rows of a thread from its log. Those that are right already stay. Rows of a line that is not shown
        are removed."""
        if not is_shown(line):
            await self._backend.apply([Delete(table, tuple(line)) for table in (*READABLE, BEHIND)])
            return
        missing = 0
        attempts = Attempts("making readable rows", line, self._context.metrics)
        while True:
            await attempts.begin()
            self.forget(line)
            tip = await self._lines.load_tip(line)
            try:
                if tip is None or await self._build(line, tip.info):
                    return
            except MissingNode:
                self._context.cache.drop_all(line)  # it was rewritten meanwhile, or the node will be missing again
                missing += 1
                if missing > _PATIENCE:
                    raise

    async def _build(self, line: Line, info: LineInfo) -> bool:
        (marks,) = await self._backend.read([Scan(BEHIND, tuple(line))])
        names = {each.branch: each.name for each in await self._lines.branches(line)}
        thread = ProjectedThread(None, NO_CHANNELS, info.version, names)
        unchanged = self._lines.line_unchanged(line, info)
        ids: set[str] = set()
        start: Key = ("\0",)  # after the stubs of pruned steps
        while True:
            scan = Scan(STEPS, tuple(line), start=start, limit=_PAGE + 1, by="id")
            (steps,) = await read_despite_damage(self._backend, [scan])
            page = {StepRef.of(row).id: row for row in steps}  # the last revision of each id
            positions = {row.key[2:]: StepRef.of(row) for row in steps}
            rows = RowChanges(line)
            for row in page.values():
                point = StepRef.of(row)
                step, parent = None, None
                with suppress(CorruptError):  # its row is shown all the same
                    step = open_step(line, row, self._context.max_bytes)
                    parent = await self._parent(line, step, positions)
                rows.changes.append(Delete(METADATA, (*line, point.id)))
                self._describe(rows, thread, point._replace(revision=0), step, None if parent is None else parent.id)
            if page:
                rows.changes += (Delete(STATE_TRANSITIONS, (*line, id)) for id in page if has_transitions(line))
                await self._stored_transitions(rows, min(page), max(page))
            if await self._backend.apply([unchanged, *rows.changes]) is not None:
                return False
            ids |= page.keys()
            if len(steps) <= _PAGE:
                break
            last = StepRef.of(steps[-1])
            start = (last.id, last.revision)
        heads, transitions, newest = await self._backend.read(
            [Get(HEADS, [tuple(line)]), Scan(TRANSITIONS, tuple(line)), newest_query(line, bodies=True)]
        )
        head = [await find_head(self._backend, line, row, bodies=True) for row in newest]
        rows = RowChanges(line)
        missing_ids = await self._without_step(line, [str(row.key[2]) for row in transitions if row.key[2] not in ids])
        latest = StepRef.of(head[0]) if head and head[0].columns[0] else None
        shown = Head.of(heads)
        if latest is None or (shown is not None and shown.checkpoint > latest.id):
            # The checkpoint that is shown does not exist any more.
            rows.changes.append(Expect(HEADS, tuple(line), shown))
            rows.changes += clear_state(line)
            if await self._backend.apply([unchanged, *rows.changes]) is not None or latest is not None:
                return False
        else:
            await self._show_stored(rows, info, thread, head[0])
        rows.changes += (Delete(space, (*line, id)) for id in missing_ids for space in BY_CHECKPOINT)
        rows.changes += (Delete(BEHIND, row.key) for row in marks)
        if await self._backend.apply([unchanged, *rows.changes]) is not None:
            return False
        self.remember(rows)
        return True

    async def _without_step(self, line: Line, ids: Sequence[str]) -> list[str]:
        """Return those of some ids that no step has."""
        answers = await self._backend.read([Scan(STEPS, (*line, id), limit=1, by="id", bodies=False) for id in ids])
        return [id for id, steps in zip(ids, answers, strict=True) if not steps]

    async def _show_stored(self, rows: RowChanges, info: LineInfo, thread: ProjectedThread, row: Row) -> None:
        """Write the state of a stored step."""
        point, step = StepRef.of(row), open_step(rows.line, row, self._context.max_bytes)
        loaded = await self._states.get(rows.line, point)
        if loaded.form not in (0, info.form):
            loaded = await self._states.load(rows.line, point)
        parent = await self._parent(rows.line, step, {})
        await self._show(rows, thread, ProjectedStep(info, point, step, loaded, parent, ()))

    async def _parent(self, line: Line, step: Step, positions: Mapping[Key, StepRef]) -> StepRef | None:
        """Return the step that another one follows; `positions` has some by position."""
        if not step.header.parents:
            return None
        branch, seq, _ = step.header.parents[0]
        if (branch, seq) in positions:
            return positions[branch, seq]
        scan = Scan(STEPS, (*line, branch), (seq,), (seq + 1,), bodies=False, required=1)
        (rows,) = await self._backend.read([scan])
        return StepRef.of(rows[0]) if rows else None

    # After steps were pruned or copied --------------------------------------------------------------------------

    async def follow(self, line: Line) -> None:
        """Show a thread's latest checkpoint, if it is not shown."""
        self.forget(line)
        if self.on and not await self.is_complete(line):
            await self.build(line)
