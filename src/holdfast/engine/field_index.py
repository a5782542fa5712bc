"""The index of the fields of threads: writes its rows with the steps, rebuilds them, and finds threads by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, TypeAlias

from holdfast.backends.interface import Change, Delete, Expect, Get, Scan, key_of
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, FIELDS, LINES, STEPS, Key
from holdfast.engine.append_batch import PreparedStep
from holdfast.engine.context import EngineContext
from holdfast.engine.fields import (
    FIELD_LINE,
    FieldChange,
    FieldValue,
    added_rows,
    candidate_values,
    is_certain,
    is_covered,
    is_metadata,
    metadata_entries,
    named_values,
    new_entries,
    own_key,
    removed_rows,
    thread_key,
    value_of,
)
from holdfast.engine.line_walk import lines_of_kinds
from holdfast.engine.lines import LineIndex
from holdfast.engine.metadata_filter import MetadataFilter
from holdfast.engine.namespaces import is_thread
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Branch, Line, StepRef, info_of

if TYPE_CHECKING:
    from holdfast.engine.integrity.check import LineRows

FieldTerm: TypeAlias = tuple[FieldValue, ...]
"""Values, of which a thread must have one."""

_PAGE = 256
"""How many threads of a value are read at a time."""

_KNOWN_WEIGHT = 200


def _uncovered(stored: Set[FieldValue], wanted: Set[FieldValue]) -> set[FieldValue]:
    """Return the values that the index has of a thread and should not have."""
    return {value for value in stored - wanted if not is_covered(value, wanted)}


def _is_indexed(line: Line, rows: LineRows, wanted: Set[FieldValue], by_value: Set[Key]) -> bool:
    """Return whether the index has the values of a thread: in its own rows, and in those by value."""
    stored = {value for value in map(value_of, rows.get(FIELDS, ())) if is_metadata(value)}
    is_whole = wanted <= stored and all(thread_key(line, value) in by_value for value in wanted)
    return is_whole and not _uncovered(stored, wanted)


class FieldIndex:
    """The index of one store."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines

    # With the steps -------------------------------------------------------------------------------------------

    async def rows(self, steps: Sequence[PreparedStep]) -> list[Change]:
        """Return the changes that add the values of steps that are about to be stored."""
        changes: dict[Key, Change] = {}
        values: dict[Line, Set[FieldValue]] = {}  # of threads, after the steps so far
        for each in steps:
            entries = new_entries(each.line, each.point, each.parent)
            name = await self._context.rows.field_names(each.line.tenant) if entries else None
            if name is not None:
                known = values.get(each.line)
                if known is None:
                    known = frozenset() if each.parent is None else await self._known(each.line, each.info.version)
                change = named_values(name, entries, known)
                values[each.line] = (known | change.added) - change.removed
                made = change.rows(each.line)
                changes |= {key_of(row): row for row in made}
                if made:
                    self._context.cache.drop(("fields", each.line))  # read again, once they are stored
        return list(changes.values())

    async def _known(self, line: Line, version: int) -> frozenset[FieldValue]:
        """Return the values that a thread has. Whatever removes one changes the version of the line."""
        key = ("fields", line)
        cached: tuple[int, frozenset[FieldValue]] | None = self._context.cache.get(key)
        if cached is not None and cached[0] == version:
            return cached[1]
        (rows,) = await self._backend.read([Scan(FIELDS, tuple(line))])
        known = frozenset(map(value_of, rows))
        self._context.cache.put(key, (version, known), _KNOWN_WEIGHT * (1 + len(known)))
        return known

    @staticmethod
    def replace(line: Line, field: str, old: str, new: str) -> list[Change]:
        """Return the changes that replace the value of a field of the store's own; an empty value is none."""
        removed = removed_rows(line, [FieldValue(field, old)] if old and old != new else ())
        return removed + added_rows(line, [FieldValue(field, new)] if new and old != new else ())

    # From the log ---------------------------------------------------------------------------------------------

    async def refresh(self, line: Line) -> None:
        """Give a thread the values of metadata that its checkpoints have, and no others."""
        if not is_thread(line.name):
            return
        attempts = Attempts("indexing fields", line, self._context.metrics)
        while True:
            await attempts.begin()
            conditions, change = await self._difference(line)
            if not any(change):
                return
            if await self._backend.apply([*conditions, *change.rows(line)]) is None:
                self._context.cache.drop(("line", line))
                return

    async def is_right(self, line: Line) -> bool:
        """Return whether a thread has the values that its checkpoints have. While a store is converted, the index is
        not used."""
        if self._context.rows.converts or not is_thread(line.name):
            return True
        return not any((await self._difference(line))[1])

    async def wrong_lines(self, short: Mapping[Line, LineRows]) -> Set[Line]:
        """Return those of some lines, with their rows, that seem not to have the values of their checkpoints."""
        if self._context.rows.converts:
            return frozenset()
        wanted = {
            line: await self._values_of(line.tenant, [StepRef.of(row) for row in rows.get(STEPS, ())])
            for line, rows in short.items()
            if is_thread(line.name) and LINES in rows
        }
        keys = [thread_key(line, value) for line, values in wanted.items() for value in values]
        (found,) = await self._backend.read([Get(FIELDS, keys)]) if keys else ([],)
        there = {row.key for row in found}
        return {line for line, values in wanted.items() if not _is_indexed(line, short[line], values, there)}

    async def _difference(self, line: Line) -> tuple[list[Change], FieldChange]:
        """Return the change that a thread needs, on conditions. A value that lacks one of its rows is added."""
        infos, branches, own = await self._backend.read(
            [Get(LINES, [tuple(line)]), Scan(BRANCHES, tuple(line)), Scan(FIELDS, tuple(line))]
        )
        stored = {value for value in map(value_of, own) if is_metadata(value)}
        if not infos:
            return [Expect(LINES, tuple(line), None)], FieldChange(set(), stored)
        points = [StepRef.of(row) async for row in scan_rows(self._backend, STEPS, tuple(line), bodies=False)]
        wanted = await self._values_of(line.tenant, points)
        (found,) = await self._backend.read([Get(FIELDS, [thread_key(line, value) for value in sorted(wanted)])])
        whole = {value_of(row) for row in found} & stored
        removed = _uncovered(stored, wanted)
        info = info_of(infos[0])
        numbers = [0, *(Branch.of(row).branch for row in branches)]
        lengths = dict.fromkeys(numbers, 0) | {point.branch: point.seq + 1 for point in points}
        conditions = [
            *(self._lines.new_version(line, info) if removed else [self._lines.line_unchanged(line, info)]),
            Expect(BRANCHES, (*line, numbers[-1] + 1), None),
            *(Expect(STEPS, (*line, number, length), None) for number, length in lengths.items()),
        ]
        return conditions, FieldChange(wanted - whole, removed)

    async def rows_of(self, line: Line, points: Sequence[StepRef]) -> list[Change]:
        """Return the changes that add the values of all steps of a line."""
        return added_rows(line, await self._values_of(line.tenant, points)) if is_thread(line.name) else []

    async def after_prune(self, line: Line, dropped: Set[tuple[int, int]]) -> list[Change]:
        """Return the changes of the index when steps are removed, on condition that none is added."""
        (own,) = await self._backend.read([Scan(FIELDS, tuple(line))]) if is_thread(line.name) else ([],)
        stored = {value for value in map(value_of, own) if is_metadata(value)}
        if not stored:
            return []
        steps = scan_rows(self._backend, STEPS, tuple(line), bodies=False)
        points = [point async for row in steps if (point := StepRef.of(row))[:2] not in dropped]
        wanted = await self._values_of(line.tenant, points)
        return FieldChange(wanted - stored, stored - wanted).rows(line)

    async def _values_of(self, tenant: str, points: Sequence[StepRef]) -> set[FieldValue]:
        """Return the values of steps, also of those that have a later revision: what is found by them is checked."""
        name = await self._context.rows.field_names(tenant)
        entries = {entry for point in points if not point.pruned for entry in metadata_entries(point.metadata)}
        return set() if name is None else named_values(name, entries).added

    async def strays(self, tenant: str) -> list[Line]:
        """Return the lines that the index names under a value that they do not have themselves."""
        strays: dict[Line, None] = {}
        start: Key = ()
        while True:
            scan = Scan(FIELDS, (tenant, FIELD_LINE), start, limit=4 * _PAGE)
            (rows,) = await self._backend.read([scan])
            lines = {row.key: Line(tenant, str(row.key[4])) for row in rows}
            (own,) = await self._backend.read([Get(FIELDS, [own_key(lines[row.key], value_of(row)) for row in rows])])
            known = {row.key for row in own}
            strays |= {lines[row.key]: None for row in rows if own_key(lines[row.key], value_of(row)) not in known}
            if len(rows) < 4 * _PAGE:
                return list(strays)
            *most, last = map(str, rows[-1].key[2:])
            start = (*most, last + "\0")

    async def repair(self, line: Line) -> None:
        """Give a thread the rows that it should have, and remove it from under values that it does not have."""
        await self.refresh(line)
        async for row in scan_rows(self._backend, FIELDS, (line.tenant, FIELD_LINE)):
            if row.key[4] == line.name:
                await self._backend.apply([Expect(FIELDS, own_key(line, value_of(row)), None), Delete(FIELDS, row.key)])

    async def rebuild(self, tenant: str) -> None:
        """Build the rows of all threads again, after entries got other names in the index."""
        if self._context.rows.hides_names:
            await self._backend.apply([Delete(FIELDS, (tenant,))])
            return
        async for line in lines_of_kinds(self._backend, tenant):
            await self.refresh(line)

    # Finding threads ------------------------------------------------------------------------------------------

    async def terms(self, tenant: str, wanted: Sequence[Sequence[MetadataFilter]]) -> list[FieldTerm]:
        """Return terms that every thread satisfies with a checkpoint that passes one filter of each group. Groups of
        which the index cannot tell are left out."""
        name = await self._context.rows.field_names(tenant) if wanted and not self._context.rows.converts else None
        if name is None:
            return []
        terms: list[FieldTerm] = []
        for group in wanted:
            values = [candidate_values(name, each) for each in group]
            if values and all(values):
                terms.append(tuple(dict.fromkeys(value for each in values for value in each)))
        return await self._without_empty(tenant, terms)

    async def _without_empty(self, tenant: str, terms: Sequence[FieldTerm]) -> list[FieldTerm]:
        """Return terms without the values that mark threads, where no thread is marked."""
        marks = list(dict.fromkeys(value for term in terms for value in term if not is_certain(value)))
        found = await self._backend.read([Scan(FIELDS, (tenant, FIELD_LINE, *value), limit=1) for value in marks])
        empty = {value for value, rows in zip(marks, found, strict=True) if not rows}
        return [tuple(value for value in term if value not in empty) for term in terms]

    async def threads(
        self, tenant: str, terms: Sequence[FieldTerm], start: str, limit: int
    ) -> tuple[dict[str, bool], bool]:
        """Return threads that satisfy all terms, by name, from a name on; and whether there may be more. True if a
        thread certainly has a value of each, so that it need not be checked."""
        found: dict[str, bool] = {}
        page = limit if len(terms) == 1 else _PAGE
        while True:
            # Of a term with few threads all are read at once, and the others are asked about those.
            read = [await self._read_term(tenant, term, start, page) for term in terms]
            names, bound = min(read, key=lambda each: (each[1] is not None, len(each[0])))
            if len(terms) > 1:
                names = await self.satisfy([Line(tenant, name) for name in names], terms)
            for name, certain in names.items():
                found[name] = certain
                if len(found) == limit:
                    return found, True
            if bound is None:
                return found, False
            start = bound + "\0"

    async def _read_term(
        self, tenant: str, term: FieldTerm, start: str, page: int
    ) -> tuple[dict[str, bool], str | None]:
        """Return threads of a term by name, from a name on, and whether they certainly have a value of it; and the last
        one, if there may be more."""
        scans = [Scan(FIELDS, (tenant, FIELD_LINE, *value), (start,), limit=page) for value in term]
        answers = await self._backend.read(scans)
        bound = min((str(rows[-1].key[4]) for rows in answers if len(rows) == page), default=None)
        names: dict[str, bool] = {}
        for value, rows in zip(term, answers, strict=True):
            certain = is_certain(value)
            for row in rows:
                name = str(row.key[4])
                names[name] = certain or names.get(name, False)
        return {name: names[name] for name in sorted(names) if bound is None or name <= bound}, bound

    async def satisfy(self, lines: Sequence[Line], terms: Sequence[FieldTerm]) -> dict[str, bool]:
        """Return the names of those threads that satisfy all terms. True if one certainly has a value of each."""
        keys = {(line.name, value): thread_key(line, value) for line in lines for term in terms for value in term}
        (rows,) = await self._backend.read([Get(FIELDS, list(keys.values()))])
        values: dict[str, set[FieldValue]] = {}
        for row in rows:
            values.setdefault(str(row.key[4]), set()).add(value_of(row))
        found: dict[str, bool] = {}
        for line in lines:
            own = values.get(line.name, set())
            had = [own.intersection(term) for term in terms]
            if all(had):
                found[line.name] = all(any(map(is_certain, each)) for each in had)
        return found
