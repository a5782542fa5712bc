"""The index of words: which words each step brought, in rows that are written in the step's own batch.

Whether a store keeps it is a mark in the store itself, one for each tenant, so that whoever writes there knows. It is
set before the rows of older steps are made: from then on writers add theirs, and `build` makes what is missing. A
search trusts the index once that is done.

A step brings the text in what it changed. Where the step before it was pruned, it brings all that was not there at the
last one before that is left: text that came with pruned steps is found as long as a state has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import REFS, STEPS, WORDS, Key, Scalar, WordList
from holdfast.engine.branch_graph import Position
from holdfast.engine.context import EngineContext
from holdfast.engine.display_reader import DisplayReader
from holdfast.engine.lines import LineIndex, index_key
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.operations import EditMap, LoadLarge
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.model.steps import Step
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import is_thread
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
from holdfast.errors import ConflictError, CorruptError, UnsupportedError

MOST = 20_000
"""How many words of one step are indexed."""

_MOST_BYTES = 400_000
"""How many bytes they have together. PostgreSQL takes a megabyte, and counts more than the words."""

MANY = "more" * (LONGEST // 4 + 1)
"""Stands in the index for all the words of a step that brought too many. No word is as long."""

BUILDING, ON = "building", "on"
"""What the mark says: that writers add rows, and that every step has its row."""

_PAGE = 256
"""How many steps are read at a time."""

_CLEARED = 100
"""Of how many threads the rows are removed at a time."""

_ATTEMPTS = 100
"""How often rows are made again because the thread was rewritten meanwhile."""

_Mark: TypeAlias = "tuple[Scalar, ...]"

Progress: TypeAlias = "Callable[[int, int | None, str], None]"
"""Told from time to time how much is done, of how much if that is known, and what was done last."""


class IndexReport(NamedTuple):
    """What `build` did: how many threads it looked at, and how many steps got their words."""

    threads: int
    steps: int


class TextIndexer:
    """Makes and keeps the index of words, where a store is to have one."""

    def __init__(self, context: EngineContext, lines: LineIndex, states: StateLoader) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._states = states

    # With a step ----------------------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Whether any tenant is known to have an index."""
        return bool(self._lines.indexed)

    async def rows(self, line: Line, made: Iterable[ProjectedStep]) -> list[Change]:
        """The rows that are written together with steps of one thread."""
        if line.tenant not in self._lines.indexed or not is_thread(line.name):
            return []  # search finds threads
        changes: list[Change] = []
        for each in made:
            try:
                found = await self._texts(line, each.step.edit, each.loaded, edited_texts(each.step.edit))
            except MissingNode:
                raise  # it was rewritten meanwhile
            except CorruptError:
                continue  # a damaged thread can be saved to; once it is whole again, `build` finds what is missing
            changes.append(Put(WORDS, _row(line, each.point, found)))
        return changes

    # What a step brought --------------------------------------------------------------------------------------

    async def brought(
        self, line: Line, point: StepRef, step: Step, *, pruned: bool = True, gone: Set[tuple[int, int]] = frozenset()
    ) -> list[ExtractedText]:
        """The text that a step brought, and nothing that was there before. `gone` are the places of steps that are
        about to be pruned; unless `pruned`, none was before."""
        if not step.header.parents:
            return await self._found(line, point, step)
        parent = await self._parent(line, step, gone) if pruned or replaced(step.edit) else None
        if parent is None and pruned:
            return await self._since_last(line, point, gone)
        return await self._found(line, point, step, parent)

    async def _found(
        self, line: Line, point: StepRef, step: Step, parent: StepRef | None = None
    ) -> list[ExtractedText]:
        """What a step brought. Without its parent, this may be too much: of lists that are small enough to be stored
        anew, all that is in them."""
        before: dict[bytes, Packed] = {}
        if parent is not None and (keys := replaced(step.edit)):
            view = DisplayReader(self._states, line, await self._states.hold(line, parent))
            olds = {key: await view.find(key) for key in keys}
            before = {key: old for key, old in olds.items() if old is not None}
        looked_at = {*edited_texts(step.edit), *edited_items(step.edit)}
        loaded = await self._states.hold(line, point) if looked_at else LoadedState(EMPTY, 0)
        return await self._texts(line, step.edit, loaded, looked_at, before)

    async def _parent(self, line: Line, step: Step, gone: Set[tuple[int, int]]) -> StepRef | None:
        """The step that another one follows, unless it was pruned or is about to be."""
        place = step.header.parents[0][:2]
        if place in gone:
            return None
        (rows,) = await self._backend.read([Scan(STEPS, (*line, *place), bodies=False)])
        return None if not rows or StepRef.of(rows[0]).pruned else StepRef.of(rows[0])

    async def _since_last(self, line: Line, point: StepRef, gone: Set[tuple[int, int]]) -> list[ExtractedText]:
        """The text that is there at a step, and was not at the last one before it that is left."""
        before = await self._last_left(line, point, gone)
        old = {} if before is None else await self._states.values(line, before)
        new = await self._states.values(line, point)
        loaded = LoadedState(EMPTY, 0, known=(new, ()))
        edit = diff_maps(old, new)
        return await self._texts(line, edit, loaded, {*edited_texts(edit), *edited_items(edit)}, old)

    async def _last_left(self, line: Line, point: StepRef, gone: Set[tuple[int, int]]) -> StepRef | None:
        layout = await self._lines.layout(line)
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
        looked_at: Iterable[bytes],
        before: Mapping[bytes, Packed] = MappingProxyType({}),
    ) -> list[ExtractedText]:
        """The text that an edit brings, given the state after it, and the channels of it that are to be looked at."""
        view, fresh = DisplayReader(self._states, line, loaded), dict(loaded.fresh)
        fresh.update(await self._states.large(line, {each for each in pointers(edit) if each not in fresh}))
        after = {key: await view.value(key) for key in looked_at}

        async def found(load: LoadLarge) -> list[ExtractedText]:
            return list(texts(edit, ChannelsAroundEdit(before, after), load))

        return await self._states.with_large(line, replace(loaded, fresh=fresh), found)

    # The mark -------------------------------------------------------------------------------------------------

    async def state(self, tenant: str) -> str:
        """What the mark of a tenant says; empty if there is none, or the store cannot look for words."""
        mark = await self._mark(tenant) if self._backend.capabilities.words else None
        return "" if mark is None else str(mark[0])

    async def _mark(self, tenant: str) -> _Mark | None:
        (rows,) = await self._backend.read([Get(REFS, [index_key(tenant)])])
        self._lines.note_index(tenant, bool(rows))
        return rows[0].columns if rows else None

    async def _set_mark(self, tenant: str, was: _Mark | None, state: str) -> bool:
        """Set the mark, unless somebody else did."""
        key = index_key(tenant)
        fresh = Row(key, (state, self._context.clock()))
        if await self._backend.apply([Expect(REFS, key, was), Put(REFS, fresh)]) is not None:
            return False
        self._lines.note_index(tenant, True)
        return True

    async def drop(self, tenant: str) -> bool:
        """Keep no index any more, and remove what there is of it. False if there was none."""
        was = await self._mark(tenant)
        await self._backend.apply([Delete(REFS, index_key(tenant))])
        self._lines.note_index(tenant, False)
        await self._clear(tenant)
        return was is not None

    async def _clear(self, tenant: str) -> None:
        """Remove all rows, as long as nobody begins to make new ones."""
        lines, unmarked = await self._lines.names(tenant), Expect(REFS, index_key(tenant), None)
        for start in range(0, len(lines), _CLEARED):
            gone = [Delete(WORDS, tuple(line)) for line in lines[start : start + _CLEARED]]
            if await self._backend.apply([unmarked, *gone]) is not None:
                return

    # For whole threads ----------------------------------------------------------------------------------------

    async def build(self, tenant: str, tell: Progress | None = None) -> IndexReport:
        """Make the rows that are missing, remove those of steps that are gone, and keep the index from then on.

        Begun again it goes on where it ended. Writers go on meanwhile.
        """
        if not self._backend.capabilities.words:
            raise UnsupportedError(
                "this store cannot keep an index of words",
                where=self._backend.url,
                hint="Searching works without, and reads every checkpoint it looks at",
            )
        mark = await self._mark(tenant)
        if mark is None:
            # What is left from an index that was dropped meanwhile may be out of date.
            await self._clear(tenant)
            await self._set_mark(tenant, None, BUILDING)
            mark = await self._mark(tenant)
        steps = 0
        seen: set[Line] = set()
        while mark is not None:
            steps += await self._build_all(tenant, seen, tell)
            if await self._set_mark(tenant, mark, ON):
                # Whoever began a thread before there was a mark, and has ended since.
                steps += await self._build_all(tenant, seen, tell)
                return IndexReport(len(seen), steps)
            # Others build it too, and were first; or it was dropped, and perhaps begun anew.
            mark = await self._mark(tenant)
            seen.clear()
        raise ConflictError(
            "the index was removed while it was made", where=self._backend.url, hint="Call index() again to have one"
        )

    async def _build_all(self, tenant: str, seen: set[Line], tell: Progress | None) -> int:
        """Make the rows of all threads that were not seen before."""
        steps = 0
        while todo := [line for line in await self._by_age(tenant) if line not in seen]:
            total = len(seen) + len(todo)
            for line in todo:
                of_line = None if tell is None else partial(tell, len(seen), total)
                steps += await self.build_line(line, tell=of_line)
                seen.add(line)
                if tell is not None:
                    tell(len(seen), total, line.name)
        return steps

    async def _by_age(self, tenant: str) -> list[Line]:
        """All threads, the one that was changed last at the end: stores show first what they were given last."""
        found: list[tuple[int, Line]] = []
        after = ""
        while some := await self._lines.listing(tenant, "", after, _PAGE):
            found += ((each.updated, each.line) for each in some)
            after = some[-1].line.name
        return [line for _, line in sorted(found)]

    async def follow(self, line: Line) -> None:
        """Make the rows of a thread that came to be otherwise than step by step, if there is an index."""
        if await self.state(line.tenant):
            await self.build_line(line, renew=False)

    async def build_line(self, line: Line, *, renew: bool = True, tell: Callable[[str], None] | None = None) -> int:
        """Make the rows of a thread that are missing, and remove those that are of no step. Returns how many steps got
        theirs. Of a long thread, `tell` is told how far it is.

        With `renew`, those who write to the thread look at it anew, and so see that there is an index.
        """
        made = swept = 0
        for _ in range(_ATTEMPTS):
            tip = await self._lines.look(line) if is_thread(line.name) else None
            if tip is None:
                return made
            try:
                count, whole = await self._build(line, tip.info, renew=renew, tell=tell)
            except MissingNode:
                self._context.cache.forget(line)  # it was rewritten meanwhile, or else will be missing again
                swept += 1
                if swept > 10:
                    raise
                continue
            made += count
            if whole:
                return made
        raise ConflictError(
            "the thread kept changing while its words were indexed", where=f"thread {line}", hint="Try again"
        )

    async def _build(
        self, line: Line, info: LineInfo, *, renew: bool, tell: Callable[[str], None] | None
    ) -> tuple[int, bool]:
        """How many steps got their rows, and whether all have."""
        missing, stale = await self._compared(line)
        if not missing and not stale:
            return 0, True
        first = self._lines.renewed(line, info) if renew else [self._lines.unchanged(line, info)]
        if await self._backend.apply([*first, *(Delete(WORDS, key) for key in stale)]) is not None:
            return 0, False
        info = info._replace(version=info.version + renew)
        self._context.cache.drop(("line", line))
        made = 0
        for start in range(0, len(missing), _PAGE):
            if tell is not None and start:
                tell(f"{line.name}: {start:,} of {len(missing):,} steps")
            keys = missing[start : start + _PAGE]
            (rows,) = await self._backend.read([Get(STEPS, keys)])
            found: list[Change] = []
            for row in rows:
                point = StepRef.of(row)
                try:
                    step = open_step(line, row, self._context.max_bytes)
                    brought = await (self.brought if info.pruned else self._found)(line, point, step)
                except MissingNode:
                    raise
                except CorruptError:
                    continue  # what cannot be read cannot be found either
                found.append(Put(WORDS, _row(line, point, brought)))
            if await self._backend.apply([self._lines.unchanged(line, info), *found]) is not None:
                return made, False
            made += len(found)
        return made, True

    async def _compared(self, line: Line) -> tuple[list[Key], list[Key]]:
        """The keys of steps that have no row, and of rows that have no step."""
        steps, rows = await self._backend.read(
            [Scan(STEPS, tuple(line), bodies=False), Scan(WORDS, tuple(line), bodies=False)]
        )
        there, indexed = [row.key for row in steps if not StepRef.of(row).pruned], {row.key for row in rows}
        return [key for key in there if key not in indexed], sorted(indexed.difference(there))

    # When steps go --------------------------------------------------------------------------------------------

    async def after_prune(
        self, line: Line, dropped: Set[tuple[int, int]], kept: Sequence[tuple[StepRef, Step]]
    ) -> list[Change]:
        """The changes that go together with the pruning of steps: `kept` are those that stay and follow one that goes.

        To be asked for before the steps go, while all states can be read.
        """
        if not is_thread(line.name) or not await self.state(line.tenant):
            return []
        changes: list[Change] = [Delete(WORDS, (*line, *place)) for place in sorted(dropped)]
        for point, step in kept:
            changes.append(Put(WORDS, _row(line, point, await self.brought(line, point, step, gone=dropped))))
        return changes


def step_words(found: Iterable[ExtractedText]) -> set[str]:
    """The words of a step as they are indexed."""
    words = words_of(each.text for each in found)
    if len(words) <= MOST and sum(map(len, words)) * 4 <= _MOST_BYTES:
        return words
    kept: set[str] = set()
    room = _MOST_BYTES
    for word in sorted(words)[:MOST]:
        room -= len(word.encode()) + 1
        if room < 0:
            break
        kept.add(word)
    return kept if len(kept) == len(words) else kept | {MANY}


def _row(line: Line, point: StepRef, found: Iterable[ExtractedText]) -> Row:
    return Row((*line, point.branch, point.seq), (point.time, WordList(" ".join(sorted(step_words(found))))))
