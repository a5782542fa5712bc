"""Readable rows beside the log, written in the same batch as the step that they tell of.

They say what the latest checkpoint of a thread holds, and what every checkpoint changed, for people to ask in the
database's own language. Nothing reads them back: the log is what counts, and `build` makes them of it again.

What a step changed is enough to bring the rows of the checkpoint before it up to date. A step that follows another one,
or none, has them written as they have to be, where they are not so already. Either is done on condition that the row of
the thread in `agent_states` is as it was when the rows were looked at; so of two writers, one looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace

from holdfast.backends.batch_eval import same_columns
from holdfast.backends.interface import Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import (
    AGENT_STATES,
    BRANCHES,
    CONVERSATIONS,
    METADATA,
    STATE_VALUES,
    STEPS,
    TRANSITIONS,
    Key,
    Scalar,
    Table,
)
from holdfast.engine.context import EngineContext
from holdfast.engine.display_reader import DisplayReader
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.operations import EditList, KeepRun, Operation
from holdfast.engine.model.operations import Set as SetValue
from holdfast.engine.model.packed_state import Packed, as_items, unpack_name
from holdfast.engine.model.steps import Step
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import has_messages
from holdfast.engine.projection.rendering import (
    CAP,
    CONVERSATION,
    LEFT_OUT,
    RenderedMessage,
    clean_text,
    key_text,
    messages,
    shown,
    time_text,
    to_text,
)
from holdfast.engine.projection.rows import (
    NO_CHANNELS,
    NOBODY,
    Piece,
    ProjectedStep,
    ProjectedThread,
    RowChanges,
    chain_to,
    edited,
    entries_of,
    first_step,
    is_hidden,
    newest_step,
    nothing_shown,
    touched,
)
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef, open_step
from holdfast.engine.state_loader import StateLoader
from holdfast.errors import ConfigError, ConflictError, CorruptError

_PAGE = 256
"""How many steps are read at a time."""

_ATTEMPTS = 100
"""How often rows are made again because the thread changed meanwhile."""

_PATIENCE = 10
"""How often a thread may be rewritten while rows are made of it. A node that is still missing then is lost."""

_FEW = 32
"""How many steps are looked up one by one."""

_WEIGHT = 600


class Projector:
    """Makes readable rows, where a store is to have them."""

    def __init__(self, context: EngineContext, lines: LineIndex, states: StateLoader) -> None:
        self.on = context.project
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._states = states

    # With a step ----------------------------------------------------------------------------------------------

    async def rows(self, line: Line, made: Sequence[ProjectedStep]) -> RowChanges:
        """The changes that are made together with steps of one thread."""
        try:
            return await self._rows(line, made)
        except CorruptError:
            # A damaged thread can be saved to, and says so when it is read. It is shown when it is whole again.
            return await self._unshown(line, made)

    async def _rows(self, line: Line, made: Sequence[ProjectedStep]) -> RowChanges:
        known = await self._known(line, made[0].info)
        if known is None:
            # There were steps before the store had such rows, or was used by someone who did not write them.
            await self.build(line)
            known = await self._look(line, made[0].info)
        latest = max(made, key=lambda each: (each.point.id, each.point.revision))
        chain = chain_to(made, latest)
        parent = chain[0].parent
        follows = (parent.hash.hex() if parent is not None else "") == known.hash
        rows = RowChanges(line)
        if not follows and not await self._fill(rows, known, parent):
            await self.build(line)
            known = await self._look(line, made[0].info)
            follows = parent is not None and parent.hash.hex() == known.hash
            rows = RowChanges(line)
        names = {**known.names, **{each.branch: each.name for step in made for each in step.branches}}
        named = known._replace(names=names)
        if names != known.names:
            await self._rename(rows, known, named, {each.point.id for each in made})
        for each in made:
            self._describe(rows, named, each.point, each.step, None if each.parent is None else each.parent.id)
        rows.after = named._replace(version=made[-1].info.version)
        if latest.point.id >= known.checkpoint:
            if follows:
                channels = await self._follow(rows, named, chain)
                self._head(rows, named, latest, channels)
            else:
                await self._show(rows, named, latest, made)
            if rows.after is not None:
                rows.after = rows.after._replace(version=made[-1].info.version)
        return rows

    def remember(self, rows: RowChanges) -> None:
        """Keep in mind what rows that were just stored say."""
        if rows.after is not None:
            weight = _WEIGHT + 100 * (len(rows.after.channels) + len(rows.after.names))
            self._context.cache.put(("rows", rows.line), rows.after, weight)

    def forget(self, line: Line) -> None:
        """Look again next time."""
        self._context.cache.drop(("rows", line))

    async def _known(self, line: Line, info: LineInfo) -> ProjectedThread | None:
        """What the rows of a thread say; None if it has steps and no rows."""
        known: ProjectedThread | None = self._context.cache.get(("rows", line))
        if known is not None and known.version == info.version:
            return known
        known = await self._look(line, info)
        if known.row is None:
            (steps,) = await self._backend.read([first_step(line)])
            if steps:
                return None
        return known

    async def _look(self, line: Line, info: LineInfo) -> ProjectedThread:
        """What the rows of a thread say, read anew. Of state, which has no conversations and perhaps a great many keys,
        not how each is shown."""
        shown = Scan(STATE_VALUES, tuple(line), limit=None if has_messages(line.name) else 0)
        heads, values, branches = await self._backend.read(
            [Get(AGENT_STATES, [tuple(line)]), shown, Scan(BRANCHES, tuple(line))]
        )
        names = {each.branch: each.name for each in map(Branch.of, branches)}
        channels = {str(row.key[2]): (str(row.columns[0]), int(row.columns[1])) for row in values}
        return ProjectedThread(heads[0].columns if heads else None, channels, info.version, names)

    async def _unshown(self, line: Line, made: Sequence[ProjectedStep]) -> RowChanges:
        """The rows that steps have of their own. No state is shown."""
        known = await self._look(line, made[0].info)
        rows = RowChanges(line, [Expect(AGENT_STATES, tuple(line), known.row), *nothing_shown(line)])
        for each in made:
            self._describe(rows, known, each.point, each.step, None if each.parent is None else each.parent.id)
        return rows

    async def _fill(self, rows: RowChanges, known: ProjectedThread, point: StepRef | None) -> bool:
        """Write the rows of a step that somebody stored without any, and of those before it. False if it is many."""
        for _ in range(_FEW):
            if point is None:
                return True
            line = rows.line
            told, stored = await self._backend.read(
                [Get(TRANSITIONS, [(*line, point.id)]), Get(STEPS, [(*line, point.branch, point.seq)])]
            )
            if told or not stored or StepRef.of(stored[0]).pruned:
                return True
            step = open_step(line, stored[0], self._context.max_bytes)
            parent = await self._parent(line, step, {})
            self._describe(rows, known, point, step, None if parent is None else parent.id)
            point = parent
        return False

    def _describe(
        self, rows: RowChanges, known: ProjectedThread, point: StepRef, step: Step | None, parent: str | None
    ) -> None:
        """The rows that a step has of its own. Of one that is damaged they say less."""
        changed = "null"
        if step is not None:
            names = [unpack_name(key) for key, _ in step.edit.put] + [unpack_name(key) for key in step.edit.removed]
            changed = to_text(sorted({name for name in names if not is_hidden(name)}))
        rows.put(
            TRANSITIONS,
            (point.id,),
            parent or "",
            known.label(point.branch),
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

    def _head(
        self, rows: RowChanges, known: ProjectedThread, latest: ProjectedStep, channels: Mapping[str, tuple[str, int]]
    ) -> None:
        """The thread's own row, on condition that it is as it was."""
        point = latest.point
        parent = "" if latest.parent is None else latest.parent.id
        kind, time = clean_text(point.kind), time_text(point.time)
        version = 1 if known.row is None else int(known.row[6]) + 1
        row = (point.id, parent, kind, time, point.depth + 1, point.hash.hex(), version)
        rows.changes.append(Expect(AGENT_STATES, tuple(rows.line), known.row))
        rows.put(AGENT_STATES, (), *row)
        rows.after = ProjectedThread(row, channels, latest.info.version, known.names)

    async def _rename(self, rows: RowChanges, before: ProjectedThread, after: ProjectedThread, fresh: Set[str]) -> None:
        """Branches may lose their names to others: show it at all their steps."""
        numbers = {0, *before.names}
        changed = {number for number in numbers if before.label(number) != after.label(number)}
        if not changed:
            return
        (found,) = await self._backend.read([Scan(TRANSITIONS, tuple(rows.line))])
        for row in found:
            if int(row.columns[2]) in changed and str(row.key[2]) not in fresh:
                parent, _, number, *rest = row.columns
                rows.put(TRANSITIONS, row.key[2:], parent, after.label(int(number)), number, *rest)

    # The state, brought up to date ----------------------------------------------------------------------------

    async def _follow(
        self, rows: RowChanges, known: ProjectedThread, chain: Sequence[ProjectedStep]
    ) -> dict[str, tuple[str, int]]:
        """Show what steps changed that follow the checkpoint that is shown."""
        if not has_messages(rows.line.name):
            return await self._follow_state(rows, chain)
        view = DisplayReader(self._states, rows.line, chain[-1].loaded)
        channels = dict(known.channels)
        for key, changes in touched(chain).items():
            name = unpack_name(key)
            if is_hidden(name):
                continue
            channel = key_text(name)
            was = channels.pop(channel, ("", 0))
            last, operation = changes[-1]
            if operation is None:
                rows.changes.append(Delete(STATE_VALUES, (*rows.line, channel)))
                self._shorten(rows, channel, was, 0)
                continue
            kind, items, text = was[0], 0, "null"
            edits = [(step, edit) for step, edit in changes if isinstance(edit, EditList)]
            grown = None
            if kind == CONVERSATION and len(edits) == len(changes):
                grown = await self._edit(rows, view, key, channel, was[1], edits, chain)
            if grown is not None:
                items = grown
            elif kind != LEFT_OUT or isinstance(changes[0][1], SetValue | None):
                kind, items, text = await self._rewrite(rows, view, key, channel, was, changes, chain)
            point = chain[last].point
            rows.put(STATE_VALUES, (channel,), kind, items, point.id, time_text(point.time), text)
            channels[channel] = (kind, items)
        return channels

    async def _follow_state(self, rows: RowChanges, chain: Sequence[ProjectedStep]) -> dict[str, tuple[str, int]]:
        """The same, for keys and values of a scope."""
        loaded = chain[-1].loaded
        for key, changes in touched(chain).items():
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
                alone = replace(loaded, tail=only, known=None, changed_keys=None)
                packed = await DisplayReader(self._states, rows.line, alone).value(key)
            kind, text = shown(packed)
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
        """Write the messages that steps brought, and move those that others made way for.

        Returns how many there are now; None if it is no conversation any more.
        """
        pieces: list[Piece] = [KeepRun(0, length)]
        for number, edit in edits:
            pieces = edited(pieces, edit, number)
        brought: list[tuple[int, int]] = []
        moved: list[tuple[int, int]] = []
        total = 0
        for piece in pieces:
            if isinstance(piece, KeepRun):
                if piece.start != total:
                    moved += ((total + i, piece.start + i) for i in range(piece.length))
                total += piece.length
            else:
                brought += ((total + i, piece.step) for i in range(piece.length))
                total += piece.length
        if not total:
            return None
        said = messages(channel, await view.items(key, [place for place, _ in brought]))
        if said is None:
            return None
        for (place, step), message in zip(brought, said, strict=True):
            self._say(rows, channel, place, message, chain[step].point)
        if moved:
            keys = [(*rows.line, channel, old) for _, old in moved]
            (found,) = await self._backend.read([Get(CONVERSATIONS, keys)])
            columns = {row.key[3]: row.columns for row in found}
            for place, old in moved:
                # Rows that are gone belong to another checkpoint by now, and the batch will be refused.
                if old in columns:
                    rows.put(CONVERSATIONS, (channel, place), *columns[old])
        self._shorten(rows, channel, (CONVERSATION, length), total)
        return total

    async def _rewrite(
        self,
        rows: RowChanges,
        view: DisplayReader,
        key: bytes,
        channel: str,
        was: tuple[str, int],
        changes: Sequence[tuple[int, Operation | None]],
        chain: Sequence[ProjectedStep],
    ) -> tuple[str, int, str]:
        """Show a channel anew."""
        packed = await view.value(key)
        listed = as_items(packed)
        said = messages(channel, await view.whole_items(listed)) if listed else None
        if said is None:
            self._shorten(rows, channel, was, 0)
            kind, text = shown(packed)
            return kind, 0, text
        last, operation = changes[-1]
        if isinstance(operation, SetValue):
            points = [chain[last].point] * len(said)
        else:
            points = await self._points(rows.line, await view.origins(key), chain)
        for place, (message, point) in enumerate(zip(said, points, strict=True)):
            self._say(rows, channel, place, message, point)
        self._shorten(rows, channel, was, len(said))
        return CONVERSATION, len(said), "null"

    def _say(self, rows: RowChanges, channel: str, place: int, message: RenderedMessage, point: StepRef) -> None:
        role, name, content, text = message
        rows.put(CONVERSATIONS, (channel, place), role, name, content, point.id, time_text(point.time), text)

    def _shorten(self, rows: RowChanges, channel: str, was: tuple[str, int], length: int) -> None:
        """Remove the messages from a place on."""
        kind, items = was
        if kind != CONVERSATION:
            return
        if not length:
            rows.changes.append(Delete(CONVERSATIONS, (*rows.line, channel)))
            return
        rows.changes += (Delete(CONVERSATIONS, (*rows.line, channel, place)) for place in range(length, items))

    # The state, shown anew ------------------------------------------------------------------------------------

    async def _show(
        self, rows: RowChanges, known: ProjectedThread, latest: ProjectedStep, made: Sequence[ProjectedStep] = ()
    ) -> None:
        """Show the state of a step, whatever is shown now, unless it is that of a later one."""
        line, view = rows.line, DisplayReader(self._states, rows.line, latest.loaded)
        wanted: dict[tuple[Table, Key], tuple[Scalar, ...]] = {}
        channels: dict[str, tuple[str, int]] = {}
        everything = [entry for entry in await view.channels() if not is_hidden(unpack_name(entry[0]))]
        origins = {origin for _, origin in everything}
        talks: dict[bytes, list[RenderedMessage]] = {}
        for key, _ in everything:
            listed = as_items(await view.value(key)) if has_messages(line.name) else None
            said = messages(key_text(unpack_name(key)), await view.whole_items(listed)) if listed else None
            if said is not None:
                talks[key] = said
                origins.update(await view.origins(key))
        points = await self._places(line, origins, [*made, latest])
        fresh = RowChanges(line)
        for key, origin in everything:
            channel, point = key_text(unpack_name(key)), points[origin]
            kind, items, text = CONVERSATION, len(talks.get(key, ())), "null"
            if key in talks:
                for place, (message, by) in enumerate(zip(talks[key], await view.origins(key), strict=True)):
                    self._say(fresh, channel, place, message, points[by])
            else:
                kind, text = shown(await view.value(key))
            fresh.put(STATE_VALUES, (channel,), kind, items, point.id, time_text(point.time), text)
            if has_messages(line.name):
                channels[channel] = (kind, items)
        for change in fresh.changes:
            if isinstance(change, Put):
                wanted[change.space, change.row.key] = change.row.columns
        heads, *found = await self._backend.read(
            [Get(AGENT_STATES, [tuple(line)]), Scan(STATE_VALUES, tuple(line)), Scan(CONVERSATIONS, tuple(line))]
        )
        if heads and str(heads[0].columns[0]) > latest.point.id:
            rows.after = None  # somebody was quicker
            return
        for space, there in zip((STATE_VALUES, CONVERSATIONS), found, strict=True):
            for row in there:
                if (space, row.key) not in wanted:
                    rows.changes.append(Delete(space, row.key))
                elif same_columns(space, wanted[space, row.key], row.columns):
                    del wanted[space, row.key]
        rows.changes += (Put(space, Row(key, columns)) for (space, key), columns in wanted.items())
        # What is there was looked at just now, and not when it was last heard of.
        self._head(rows, known._replace(row=heads[0].columns if heads else None), latest, channels)

    async def _points(
        self, line: Line, origins: Sequence[tuple[int, int]], chain: Sequence[ProjectedStep]
    ) -> list[StepRef]:
        points = await self._places(line, set(origins), chain)
        return [points[origin] for origin in origins]

    async def _places(
        self, line: Line, origins: Set[tuple[int, int]], chain: Sequence[ProjectedStep]
    ) -> dict[tuple[int, int], StepRef]:
        """The steps at places. What was pruned has no id, and what never was, nothing."""
        points = {each.point[:2]: each.point for each in chain}
        missing = sorted(origins - points.keys())
        if missing:
            scans = [Scan(STEPS, (*line, branch), (seq,), (seq + 1,), bodies=False) for branch, seq in missing]
            if len(scans) > _FEW:
                scans = [Scan(STEPS, tuple(line), bodies=False)]
            for found in await self._backend.read(scans):
                points = {point[:2]: point for point in map(StepRef.of, found)} | points
        return {origin: points.get(origin, NOBODY) for origin in origins}

    # For whole threads ---------------------------------------------------------------------------------------

    async def build_all(self, tenant: str, after: str, again: bool, tell: Callable[[str, int], None] | None) -> int:
        """Make the rows of threads, by name, that come after one: where they are not complete, or all of them again.

        Returns how many that were. `tell` is called with the name of each thread, and how many that makes.
        """
        if not self.on:
            raise ConfigError(
                "the store was opened without readable rows", where=self._backend.url, hint="Open it with project=True"
            )
        made = 0
        for number, line in enumerate(await self._lines.names(tenant, after=after), 1):
            if again or not (await self.is_complete(line) and await self._is_told(line)):
                await self.build(line)
                made += 1
            if tell is not None:
                tell(line.name, number)
        return made

    async def is_complete(self, line: Line) -> bool:
        """Whether a thread's rows tell of its latest checkpoint."""
        point = await self._lines.newest(line)
        (heads,) = await self._backend.read([Get(AGENT_STATES, [tuple(line)])])
        if point is None or not heads:
            return point is None and not heads
        return heads[0].columns[5] == point.hash.hex()

    async def _is_told(self, line: Line) -> bool:
        """Whether every checkpoint of a thread has its rows: others than the latest may have been saved without."""
        steps, found, branches = await self._backend.read(
            [
                Scan(STEPS, tuple(line), start=("\0",), by="id", bodies=False),
                Scan(TRANSITIONS, tuple(line)),
                Scan(BRANCHES, tuple(line)),
            ]
        )
        known = ProjectedThread(None, NO_CHANNELS, 0, {each.branch: each.name for each in map(Branch.of, branches)})
        points = {point.id: point for point in map(StepRef.of, steps)}  # of each id the last revision
        return {str(row.key[2]): row.columns[1:6] for row in found} == {
            id: (known.label(each.branch), each.branch, each.depth, clean_text(each.kind), time_text(each.time))
            for id, each in points.items()
        }

    async def build(self, line: Line) -> None:
        """Make all rows of a thread from its log. Those that are right already stay."""
        missing = 0
        for _ in range(_ATTEMPTS):
            self.forget(line)
            tip = await self._lines.look(line)
            try:
                if tip is None or await self._build(line, tip.info):
                    return
            except MissingNode:
                self._context.cache.forget(line)  # it was rewritten meanwhile, or else will be missing again
                missing += 1
                if missing > _PATIENCE:
                    raise
        raise ConflictError(
            "the thread kept changing while its readable rows were made", where=f"thread {line}", hint="Try again"
        )

    async def _build(self, line: Line, info: LineInfo) -> bool:
        names = {each.branch: each.name for each in await self._lines.branches(line)}
        known = ProjectedThread(None, NO_CHANNELS, info.version, names)
        unchanged = self._lines.unchanged(line, info)
        ids: set[str] = set()
        start: Key = ("\0",)  # after the stubs of pruned steps
        while True:
            scan = Scan(STEPS, tuple(line), start=start, limit=_PAGE + 1, by="id")
            (found,) = await self._backend.read([scan])
            page = {StepRef.of(row).id: row for row in found}  # of each id the last revision
            places = {row.key[2:]: StepRef.of(row) for row in found}
            rows = RowChanges(line)
            for row in page.values():
                point = StepRef.of(row)
                step, parent = None, None
                with suppress(CorruptError):  # what its row says is told all the same
                    step = open_step(line, row, self._context.max_bytes)
                    parent = await self._parent(line, step, places)
                rows.changes.append(Delete(METADATA, (*line, point.id)))
                self._describe(rows, known, point._replace(revision=0), step, None if parent is None else parent.id)
            if await self._backend.apply([unchanged, *rows.changes]) is not None:
                return False
            ids |= page.keys()
            if len(found) <= _PAGE:
                break
            last = StepRef.of(found[-1])
            start = (last.id, last.revision)
        heads, there, newest = await self._backend.read(
            [Get(AGENT_STATES, [tuple(line)]), Scan(TRANSITIONS, tuple(line)), newest_step(line)]
        )
        rows = RowChanges(line)
        gone = await self._gone(line, [str(row.key[2]) for row in there if row.key[2] not in ids])
        latest = StepRef.of(newest[0]) if newest and newest[0].columns[0] else None
        if latest is None or (heads and str(heads[0].columns[0]) > latest.id):
            # What is shown is not there, or not any more.
            rows.changes.append(Expect(AGENT_STATES, tuple(line), heads[0].columns if heads else None))
            rows.changes += nothing_shown(line)
            if await self._backend.apply([unchanged, *rows.changes]) is not None or latest is not None:
                return False
        else:
            await self._show_stored(rows, info, known, newest[0])
        rows.changes += (Delete(space, (*line, id)) for id in gone for space in (TRANSITIONS, METADATA))
        if await self._backend.apply([unchanged, *rows.changes]) is not None:
            return False
        self.remember(rows)
        return True

    async def _gone(self, line: Line, ids: Sequence[str]) -> list[str]:
        """Those of some ids that no step has."""
        found = await self._backend.read([Scan(STEPS, (*line, id), limit=1, by="id", bodies=False) for id in ids])
        return [id for id, steps in zip(ids, found, strict=True) if not steps]

    async def _show_stored(self, rows: RowChanges, info: LineInfo, known: ProjectedThread, row: Row) -> None:
        """Show the state of a step that is stored."""
        point, step = StepRef.of(row), open_step(rows.line, row, self._context.max_bytes)
        loaded = await self._states.hold(rows.line, point)
        if loaded.form not in (0, info.form):
            loaded = await self._states.load(rows.line, point)
        parent = await self._parent(rows.line, step, {})
        await self._show(rows, known, ProjectedStep(info, point, step, loaded, parent, ()))

    async def _parent(self, line: Line, step: Step, places: Mapping[Key, StepRef]) -> StepRef | None:
        """The step that another one follows; some are at hand, by their places."""
        if not step.header.parents:
            return None
        branch, seq, _ = step.header.parents[0]
        if (branch, seq) in places:
            return places[branch, seq]
        (found,) = await self._backend.read([Scan(STEPS, (*line, branch), (seq,), (seq + 1,), bodies=False)])
        return StepRef.of(found[0]) if found else None

    # When steps go --------------------------------------------------------------------------------------------

    async def follow(self, line: Line) -> None:
        """Show a thread's latest checkpoint, if that is not what is shown."""
        self.forget(line)
        if self.on and not await self.is_complete(line):
            await self.build(line)
