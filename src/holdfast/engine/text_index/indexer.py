"""The text index: the words that each step added, in rows that are written in the step's own batch.

Whether a store has an index is a mark in the store itself, one for each tenant, so that all writers know. It is set
before the rows of older steps are written: from then on writers add theirs, and `build` adds the missing ones. A search
uses the index once that is finished.

A step adds the text in its changes. Where the step before it was pruned, it adds all text that the last remaining one
before does not have: text of pruned steps is found as long as a state has it.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import REFS, STEPS, WORDS, Key, Scalar, WordList
from holdfast.engine.branch_graph import Position
from holdfast.engine.checked_rows import clear_refused, read_despite_damage
from holdfast.engine.context import EngineContext
from holdfast.engine.display_reader import DisplayReader
from holdfast.engine.line_walk import LineSet, lines_of_kinds, pages_of
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.operations import EditMap, LoadLarge
from holdfast.engine.model.packed_state import Packed, PackedMap
from holdfast.engine.model.steps import Step
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import index_key, is_thread
from holdfast.engine.optimistic import Attempts
from holdfast.engine.projection.rows import ProjectedStep
from holdfast.engine.row_format import Line, LineInfo, StepRef, open_step
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.engine.text_index.extract import (
    ChannelsAroundEdit,
    ExtractedText,
    edited_items,
    edited_texts,
    replaced,
    texts,
)
from holdfast.engine.text_index.tokenize import LONGEST, words_of
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, CorruptError, UnsupportedError

MAX_WORDS = 20_000
"""The largest number of words of a step that are indexed."""

_MAX_BYTES = 400_000
"""The largest number of bytes of them. PostgreSQL accepts a megabyte, and counts more than the words."""

MANY = "more" * (LONGEST // 4 + 1)
"""Marks a step that added too many words. No word is as long."""

BUILDING, ON = "building", "on"
"""The states of the mark: writers add rows, and every step has its row."""

_PAGE = 256
"""How many steps are read at a time."""

_CLEAR_PAGE = 100
"""Of how many threads the rows are removed at a time."""


_Mark: TypeAlias = "tuple[Scalar, ...]"


class IndexReport(msgspec.Struct, frozen=True):
    """The result of `build`: how many threads it checked, and how many steps got their words."""

    threads: int
    steps: int


class TextIndexer:
    """Builds and updates the text index, where a store has one."""

    def __init__(self, context: EngineContext, lines: LineIndex, states: StateLoader) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._states = states

    # With a step ----------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Return whether any tenant has an index, as far as is cached."""
        return bool(self._lines.indexed)

    async def rows(self, line: Line, steps: Iterable[ProjectedStep]) -> list[Change]:
        """Return the rows that are written together with steps of one thread."""
        if line.tenant not in self._lines.indexed or not is_thread(line.name):
            return []  # only threads are searched
        changes: list[Change] = []
        for each in steps:
            try:
                added = await self._texts(line, each.step.edit, each.loaded, edited_texts(each.step.edit))
            except MissingNode:
                raise  # it was rewritten meanwhile
            except CorruptError:
                continue  # a damaged thread can be saved to; once it is repaired, `build` adds what is missing
            changes.append(Put(WORDS, _row(line, each.point, added)))
        return changes

    # What a step brought --------------------------------------------------------------------------------------

    async def brought(
        self, line: Line, point: StepRef, step: Step, *, pruned: bool = True, gone: Set[tuple[int, int]] = frozenset()
    ) -> list[ExtractedText]:
        """Return the text that a step added, and nothing that was there before. `gone` are the positions of steps that
        are about to be pruned; unless `pruned`, none was before."""
        if not step.header.parents:
            return await self._added_text(line, point, step)
        parent = await self._parent(line, step, gone) if pruned or replaced(step.edit) else None
        if parent is None and pruned:
            return await self._since_last(line, point, gone)
        return await self._added_text(line, point, step, parent)

    async def _added_text(
        self, line: Line, point: StepRef, step: Step, parent: StepRef | None = None
    ) -> list[ExtractedText]:
        """Return the text that a step added. Without its parent, this may be too much: all text of lists that are small
        enough to be stored as a whole."""
        before: dict[bytes, Packed] = {}
        if parent is not None and (keys := replaced(step.edit)):
            view = DisplayReader(self._states, line, await self._states.get(line, parent))
            olds = {key: await view.find(key) for key in keys}
            before = {key: old for key, old in olds.items() if old is not None}
        channels = {*edited_texts(step.edit), *edited_items(step.edit)}
        loaded = await self._states.get(line, point) if channels else LoadedState(EMPTY, 0)
        return await self._texts(line, step.edit, loaded, channels, before)

    async def _parent(self, line: Line, step: Step, gone: Set[tuple[int, int]]) -> StepRef | None:
        """Return the step that another one follows, unless it was pruned or is about to be."""
        place = step.header.parents[0][:2]
        if place in gone:
            return None
        (rows,) = await self._backend.read([Scan(STEPS, (*line, *place), bodies=False, required=1)])
        return None if not rows or StepRef.of(rows[0]).pruned else StepRef.of(rows[0])

    async def _since_last(self, line: Line, point: StepRef, gone: Set[tuple[int, int]]) -> list[ExtractedText]:
        """Return the text at a step that the last remaining one before it does not have."""
        old, new = await self._states_around(line, point, gone)
        loaded = LoadedState(EMPTY, 0, known=(new, ()))
        edit = diff_maps(old, new)
        return await self._texts(line, edit, loaded, {*edited_texts(edit), *edited_items(edit)}, old)

    async def _states_around(
        self, line: Line, point: StepRef, gone: Set[tuple[int, int]]
    ) -> tuple[PackedMap, PackedMap]:
        """Return the states of the last remaining step before a step, and of that itself."""
        before = await self._last_remaining(line, point, gone)
        old = {} if before is None else await self._states.values(line, before)
        return old, await self._states.values(line, point)

    async def edit(self, line: Line, point: StepRef, step: Step, *, pruned: bool) -> EditMap:
        """Return what a step changed; where those before it were pruned, as `pruned` says they may be, with all that
        these changed."""
        if not (pruned and step.header.parents) or await self._parent(line, step, frozenset()) is not None:
            return step.edit
        return diff_maps(*await self._states_around(line, point, frozenset()))

    async def _last_remaining(self, line: Line, point: StepRef, gone: Set[tuple[int, int]]) -> StepRef | None:
        layout = await self._lines.branch_graph(line)
        for stretch in layout.stretches(Position(point.branch, point.seq)):
            stop = stretch.seq if stretch.branch == point.branch else stretch.seq + 1
            while stop > 0:
                scan = Scan(STEPS, (*line, stretch.branch), (), (stop,), reverse=True, limit=_PAGE, bodies=False)
                (rows,) = await self._backend.read([scan])
                for each in map(StepRef.of, rows):
                    if not each.pruned and each[:2] not in gone:
                        return each
                stop = StepRef.of(rows[-1]).seq if len(rows) == _PAGE else 0
        return None

    async def _texts(
        self,
        line: Line,
        edit: EditMap,
        loaded: LoadedState,
        channels: Iterable[bytes],
        before: Mapping[bytes, Packed] = MappingProxyType({}),
    ) -> list[ExtractedText]:
        """Return the text that an edit adds, given the state after it, and the channels of it to read."""
        view, values = DisplayReader(self._states, line, loaded), dict(loaded.fresh)
        values.update(await self._states.load_large(line, {each for each in pointers(edit) if each not in values}))
        after = {key: await view.value(key) for key in channels}

        async def extract(load: LoadLarge) -> list[ExtractedText]:
            return list(texts(edit, ChannelsAroundEdit(before, after), load))

        return await self._states.with_large(line, replace(loaded, fresh=values), extract)

    # The mark -------------------------------------------------------------------------------------------------

    async def state(self, tenant: str) -> str:
        """Return the state of a tenant's index; empty if there is none, or the store cannot have one."""
        mark = await self._mark(tenant) if self._backend.capabilities.words else None
        return "" if mark is None else str(mark[0])

    async def _mark(self, tenant: str) -> _Mark | None:
        (rows,) = await self._backend.read([Get(REFS, [index_key(tenant)])])
        self._lines.note_index(tenant, bool(rows))
        return rows[0].columns if rows else None

    async def _set_mark(self, tenant: str, was: _Mark | None, state: str) -> bool:
        """Set the mark, unless another process did."""
        key = index_key(tenant)
        mark = Row(key, (state, self._context.clock()))
        if await self._backend.apply([Expect(REFS, key, was), Put(REFS, mark)]) is not None:
            return False
        self._lines.note_index(tenant, True)
        return True

    async def drop(self, tenant: str) -> bool:
        """Remove the index. False if there was none."""
        was = await self._mark(tenant)
        await self._backend.apply([Delete(REFS, index_key(tenant))])
        self._lines.note_index(tenant, False)
        await self._clear(tenant)
        return was is not None

    async def _clear(self, tenant: str) -> None:
        """Remove all rows, unless another process starts to build the index."""
        unmarked = Expect(REFS, index_key(tenant), None)
        async for lines in pages_of(lines_of_kinds(self._backend, tenant), _CLEAR_PAGE):
            gone = [Delete(WORDS, tuple(line)) for line in lines]
            if await self._backend.apply([unmarked, *gone]) is not None:
                return

    # For whole threads ----------------------------------------------------------------------------------------

    async def build(self, tenant: str, tell: Progress | None = None) -> IndexReport:
        """Add the rows that are missing, remove those of steps that do not exist any more, and update the index from
        then on.

        A build that was interrupted resumes. Writers continue meanwhile.
        """
        if not self._backend.capabilities.words:
            raise UnsupportedError(
                "this store does not support a text index",
                where=self._backend.url,
                hint="Search without one, which reads every checkpoint",
            )
        if not self._context.rows.may_be_clear("words"):
            raise clear_refused("words")
        mark = await self._mark(tenant)
        if mark is None:
            # What remains of an index that was dropped may be out of date.
            await self._clear(tenant)
            await self._set_mark(tenant, None, BUILDING)
            mark = await self._mark(tenant)
        steps = 0
        done = LineSet()
        while mark is not None:
            steps += await self._build_all(tenant, done, tell)
            if await self._set_mark(tenant, mark, ON):
                # Threads of writers that did not see the mark yet.
                steps += await self._build_all(tenant, done, tell)
                return IndexReport(len(done), steps)
            # Another process built it, and was first; or it was dropped, and perhaps started again.
            mark = await self._mark(tenant)
            done = LineSet()
        raise ConflictError(
            "the index was removed while it was made", where=self._backend.url, hint="Call index() again to have one"
        )

    async def _build_all(self, tenant: str, done: LineSet, tell: Progress | None) -> int:
        """Add the rows of all threads that were not done before."""
        steps = 0
        while todo := await self._by_age(tenant, done):
            total = len(done) + len(todo)
            for name in todo:
                line = Line(tenant, name)
                of_line = None if tell is None else partial(tell, len(done), total)
                steps += await self.build_line(line, tell=of_line)
                done.add(line)
                if tell is not None:
                    tell(len(done), total, line.name)
        return steps

    async def _by_age(self, tenant: str, done: LineSet) -> list[str]:
        """Return the names of threads that are not done, the one that was changed last at the end: stores return first
        what was added last."""
        times, names = array("q"), list[str]()  # little for each: there may be very many
        async for page in pages_of(lines_of_kinds(self._backend, tenant, frozenset({"thread"})), _PAGE):
            todo = [line for line in page if line not in done]
            for each in await self._lines.list_named(todo) if todo else ():
                times.append(each.updated)
                names.append(each.line.name)
        order = array("q", sorted(range(len(names)), key=times.__getitem__))
        return [names[place] for place in order]

    async def follow(self, line: Line) -> None:
        """Add the rows of a thread that was not written step by step, if there is an index."""
        if await self.state(line.tenant):
            await self.build_line(line, renew=False)

    async def build_line(self, line: Line, *, renew: bool = True, tell: Callable[[str], None] | None = None) -> int:
        """Add the rows of a thread that are missing, and remove those of no step. Returns how many steps got theirs.
        `tell` is called with the progress on a long thread.

        With `renew`, writers to the thread read its row again, and so see that there is an index.
        """
        indexed = rewrites = 0
        attempts = Attempts("indexing words", line, self._context.metrics)
        while True:
            await attempts.begin()
            tip = await self._lines.load_tip(line) if is_thread(line.name) else None
            if tip is None:
                return indexed
            try:
                count, whole = await self._build(line, tip.info, renew=renew, tell=tell)
            except MissingNode:
                self._context.cache.drop_all(line)  # it was rewritten meanwhile, or the node will be missing again
                rewrites += 1
                if rewrites > 10:
                    raise
                continue
            indexed += count
            if whole:
                return indexed

    async def _build(
        self, line: Line, info: LineInfo, *, renew: bool, tell: Callable[[str], None] | None
    ) -> tuple[int, bool]:
        """Return how many steps got their rows, and whether all have."""
        missing, stale = await self._compare(line)
        if not missing and not stale:
            return 0, True
        first = self._lines.new_version(line, info) if renew else [self._lines.line_unchanged(line, info)]
        if await self._backend.apply([*first, *(Delete(WORDS, key) for key in stale)]) is not None:
            return 0, False
        info = info._replace(version=info.version + renew)
        self._context.cache.drop(("line", line))
        indexed = 0
        for start in range(0, len(missing), _PAGE):
            if tell is not None and start:
                tell(f"{line.name}: {start:,} of {len(missing):,} steps")
            keys = missing[start : start + _PAGE]
            (rows,) = await read_despite_damage(self._backend, [Get(STEPS, keys)])
            changes: list[Change] = []
            for row in rows:
                point = StepRef.of(row)
                try:
                    step = open_step(line, row, self._context.max_bytes)
                    brought = await (self.brought if info.pruned else self._added_text)(line, point, step)
                except MissingNode:
                    raise
                except CorruptError:
                    continue  # what cannot be read cannot be found either
                changes.append(Put(WORDS, _row(line, point, brought)))
            if await self._backend.apply([self._lines.line_unchanged(line, info), *changes]) is not None:
                return indexed, False
            indexed += len(changes)
        return indexed, True

    async def _compare(self, line: Line) -> tuple[list[Key], list[Key]]:
        """Return the keys of steps that have no row, and of rows that have no step."""
        steps, rows = await self._backend.read(
            [Scan(STEPS, tuple(line), bodies=False), Scan(WORDS, tuple(line), bodies=False)]
        )
        there, indexed = [row.key for row in steps if not StepRef.of(row).pruned], {row.key for row in rows}
        return [key for key in there if key not in indexed], sorted(indexed.difference(there))

    # When steps go --------------------------------------------------------------------------------------------

    async def after_prune(
        self, line: Line, dropped: Set[tuple[int, int]], kept: AsyncIterator[tuple[StepRef, Step]]
    ) -> list[Change]:
        """Return the changes of the index when steps are pruned: `kept` are those that remain and follow one that does
        not.

        To be called before the steps are removed, while all states can be read.
        """
        if not is_thread(line.name) or not await self.state(line.tenant):
            return []
        changes: list[Change] = [Delete(WORDS, (*line, *place)) for place in sorted(dropped)]
        async for point, step in kept:
            changes.append(Put(WORDS, _row(line, point, await self.brought(line, point, step, gone=dropped))))
        return changes


def step_words(extracted: Iterable[ExtractedText]) -> set[str]:
    """Return the words of a step as they are indexed."""
    words = words_of(each.text for each in extracted)
    if len(words) <= MAX_WORDS and sum(map(len, words)) * 4 <= _MAX_BYTES:
        return words
    kept: set[str] = set()
    capacity = _MAX_BYTES
    for word in sorted(words)[:MAX_WORDS]:
        capacity -= len(word.encode()) + 1
        if capacity < 0:
            break
        kept.add(word)
    return kept if len(kept) == len(words) else kept | {MANY}


def _row(line: Line, point: StepRef, extracted: Iterable[ExtractedText]) -> Row:
    return Row((*line, point.branch, point.seq), (point.time, WordList(" ".join(sorted(step_words(extracted))))))
