"""Plans how a part of a group is committed: the conditions and the updates of the documents of its lines, and the
changes of other collections.

A part is planned by what is cached of its lines, with conditions for what is not; or by what was read of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.batch_eval import Columns, Effect, Lookup, RowKey, condition_keys, evaluate
from holdfast.backends.feed import changed_lines
from holdfast.backends.mongodb.commit_group import CommitGroup, Part, find_lines
from holdfast.backends.mongodb.line_document import (
    EMPTIED,
    LAST,
    LINE_WIDTH,
    MOVED,
    PARTS_USED,
    QUIET,
    STAMPS,
    WROTE,
    LineUpdate,
    absent,
    embedded,
    embedded_row,
    embedded_rows,
    line_of,
    moved_rows,
    not_elsewhere,
    plan_moves,
    row_weight,
    with_columns,
)
from holdfast.backends.mongodb.reader import FindRequest, find, part_range
from holdfast.backends.mongodb.row_mapping import (
    BODY,
    PARTS,
    Document,
    build_id,
    id_range,
    read_key,
    to_document,
    to_row,
)
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import LINES, Key, Table
from holdfast.errors import UnavailableError

_CACHED_ROWS = 32
"""The number of rows of a line whose columns are cached."""

_MAX_ROWS = 256
"""The number of rows in the document of a line above which a save moves them."""
_MAX_BYTES = 512 << 10
"""The bytes of a document above which a save moves its rows. It is written anew with each save."""
_MAX_ROW_BYTES = 32 << 10
"""The largest row in the document of a line."""

_KEYS_PER_REQUEST = 1_000
"""The most keys in one operation."""

_MAX_BLIND_PUTS = 100
"""More rows than this are not put before it is read which of them exist."""

ALL_LINES: Key = ("", "", "")
"""Stands for the lock document of all groups that delete less than a line. No line has this key."""

Operation: TypeAlias = "DeleteMany | DeleteOne | InsertOne[Document] | ReplaceOne[Document] | UpdateOne"


@dataclass
class LineState:
    """What is cached of a line: the token of the group that changed it last, and columns of rows after that."""

    last: str = ""
    parts: bool = False
    """Whether any of its bodies was ever stored in parts."""
    rows: int = 0
    """How many rows its document has, at most; without those that others added."""
    weight: int = 0
    """How many bytes it has, at most."""
    cached: dict[RowKey, Columns | None] = field(default_factory=dict)


@dataclass
class View:
    """The data that parts are evaluated on."""

    documents: dict[Key, Document] = field(default_factory=dict)
    """The documents of lines; empty if there is none."""
    columns: dict[RowKey, Columns] = field(default_factory=dict)
    """Columns of rows that are in the collections of their tables."""
    present: set[RowKey] = field(default_factory=set)
    """Rows that are put, and are in the collections of their tables."""
    replaced: dict[RowKey, Document] = field(default_factory=dict)
    """The parts of bodies that may be replaced or deleted."""

    def lookup(self, space: Table, key: Key) -> Columns | None:
        """Return the columns of a row."""
        document = embedded_row(space, key, self.documents.get(line_of(key), {})) if space.embedded else None
        return self.columns.get((space, key)) if document is None else to_row(space, document).columns


@dataclass
class Plan:
    """How a part is committed."""

    part: Part
    outcomes: Sequence[int | None]
    effect: Effect
    filters: dict[Key, Document] = field(default_factory=dict)
    """The condition on the document of each line. One with nothing but the `_id` is to be created."""
    updates: dict[Key, LineUpdate] = field(default_factory=dict)
    operations: dict[Table, list[Operation]] = field(default_factory=dict)
    """The changes in other collections, by table."""
    useless: list[Operation] = field(default_factory=list)
    """The removals of parts of bodies."""
    states: dict[Key, LineState] = field(default_factory=dict)
    """What is cached afterwards."""

    @property
    def is_single(self) -> bool:
        """Whether one update is all."""
        return not (self.operations or self.useless or self.part.large_rows) and len(self.filters) == 1

    def statement(self, line: Key, group: CommitGroup, located: bool) -> tuple[Document, Document, bool]:
        """Return the filter and the update of a line's document, and whether it may be inserted."""
        condition, update = self.filters[line], self.updates[line]
        stamp = f"{STAMPS}.{_stamp_name(group.stamp)}"
        refused = [[number, at] for number, at in zip(self.part.numbers, self.outcomes, strict=True) if at is not None]
        update.set |= {f"{stamp}.number": group.stamp.number, f"{stamp}.refused": refused}
        if LAST in condition:
            update.set[LAST] = group.token
        reported = changed_lines(self.part.batches)
        if reported is not None and line not in reported:
            update.set[QUIET] = group.token
        if located:
            update.set[PARTS_USED] = True
        prefixes = {prefix for each in self.effect.deleted.values() for prefix in each if len(prefix) <= LINE_WIDTH}
        if line is not ALL_LINES and any(line[:width] in prefixes for width in range(LINE_WIDTH + 1)):
            update.set[EMPTIED] = True
        else:
            update.unset[EMPTIED] = ""
        operators = update.operators() | {"$currentDate": {f"{stamp}.at": True}}
        if LAST not in condition:
            operators["$inc"] = {WROTE: 1}
        is_new = condition.get(LAST, "") == {"$exists": False}
        if not is_new:
            condition = {**condition, f"{stamp}.number": {"$not": {"$gte": group.stamp.number}}}
        return {"_id": lock_id(line), **condition}, operators, is_new


async def read_view(collections: Collections, parts: Sequence[Part]) -> View:
    """Read the view of some parts."""
    lines = {line for part in parts for line in part.lines}
    wide = {prefix for part in parts for prefix in part.wide_deletes}
    requests = [
        FindRequest(collections.lines, [{"$match": {"_id": {"$in": [lock_id(line) for line in chunk]}}}], len(chunk))
        for chunk in _chunks([*lines, *([ALL_LINES] if wide else [])])
    ]
    bare = {LAST: 1, WROTE: 1, MOVED: 1, STAMPS: 1}
    requests += [
        FindRequest(collections.lines, [{"$match": {"_id": id_range(LINES, prefix)}}, {"$project": bare}])
        for prefix in wide
    ]
    spaces: list[Table] = [LINES] * len(requests)

    def ask(space: Table, matching: Document, projection: Document, keys: int) -> None:
        requests.append(FindRequest(collections.table(space), [{"$match": matching}, {"$project": projection}], keys))
        spaces.append(space)

    for space, keys in _group_by_table({place for part in parts for place in condition_keys(part.batches)}):
        for chunk in _chunks(keys):
            ask(space, {"_id": {"$in": [build_id(space, key) for key in chunk]}}, {BODY: 0, PARTS: 0}, len(chunk))
    columns = len(spaces)
    for space, keys in _group_by_table({place for part in parts for place in part.put}):
        for chunk in _chunks(keys):
            ask(space, {"_id": {"$in": [build_id(space, key) for key in chunk]}}, {PARTS: 1}, len(chunk))
    for space, prefixes in _group_by_table({place for part in parts for place in part.deleted}):
        for range_ in _id_ranges(space, prefixes):
            in_parts = {"_id": range_, PARTS: {"$exists": True}}
            ask(space, in_parts, {PARTS: 1}, len(range_.get("$in", "..")))
    async with collections.database.client.start_session(snapshot=True) as session:
        found = await find(session, requests)
    view = View({line: {} for line in lines})
    if wide:
        view.documents[ALL_LINES] = {}
    for number, (space, documents) in enumerate(zip(spaces, found, strict=True)):
        for document in documents:
            if space is LINES:
                if "begun" not in document:
                    line = _line_of_lock(document)
                    view.documents[line] = view.documents.get(line) or document
            elif number < columns:
                row = to_row(space, document)
                view.columns[space, row.key] = row.columns
            else:
                place = (space, read_key(space, document))
                view.present.add(place)
                if PARTS in document:
                    view.replaced[place] = document[PARTS]
    return view


def guess_plan(part: Part, lines: Mapping[Key, LineState]) -> Plan | None:
    """Plan a part by what is cached, and by conditions for what is not. None if its lines have to be read."""
    if part.wide_deletes or part.deletes_created or part.large_rows:
        return None
    states: dict[Key, LineState] = {}
    for line in part.lines:
        state = lines.get(line)
        if state is None and (LINES, line) not in part.created and not part.is_independent:
            return None
        states[line] = state or LineState()  # a line that is created is new
    if any(space.embedded and len(prefix) < len(space.key) for space, prefix in part.deleted):
        return None
    beside = {(space, key) for space, key in part.put | part.deleted if not space.embedded}
    if beside and any(state.parts for state in states.values()):
        return None
    if len(beside) > _MAX_BLIND_PUTS and any(states[line_of(key)].last for _, key in beside):
        return None
    conditions: dict[Key, list[Document]] = {line: [] for line in part.lines}
    assumed: dict[RowKey, Columns | None] = {}
    ask_all = part.is_independent

    def lookup(space: Table, key: Key) -> Columns | None:
        place, line = (space, key), line_of(key)
        state = states[line]
        if place in assumed:
            return assumed[place]
        if place in state.cached and not ask_all:
            return state.cached[place]
        columns = part.expected.get(place) if state.last or ask_all else None
        assumed[place] = columns
        if space.embedded and (state.last or ask_all):
            conditions[line].append(absent(space, key) if columns is None else with_columns(space, key, columns))
        return columns

    outcomes, effect = evaluate(part.batches, lookup)
    if any(outcome is not None for outcome in outcomes) or not (effect.written or effect.deleted):
        return None
    for space, key in assumed:
        if states[line_of(key)].last and not space.embedded and (space, key) in part.expected:
            return None  # only the line's token says that it is so
    plan = Plan(part, outcomes, effect)
    updates = {line: LineUpdate() for line in part.lines}
    if not _guess_rows(plan, states, updates, conditions):
        return None
    for line, update in updates.items():
        state, created = (
            states[line],
            len([key for space, key in effect.created if space.embedded and line_of(key) == line]),
        )
        removed = len([1 for space, key in part.deleted if space.embedded and line_of(key) == line])
        if state.rows + created > _MAX_ROWS or state.weight + update.weight > _MAX_BYTES:
            if state.last or created > _MAX_ROWS or update.weight > _MAX_BYTES:
                return None
        filter_: Document = {} if ask_all else {LAST: state.last or {"$exists": False}}
        found = conditions[line]
        if found and len({name for each in found for name in each}) == sum(map(len, found)):
            filter_ |= {name: value for each in found for name, value in each.items()}
        elif found:
            filter_["$and"] = found
        plan.filters[line], plan.updates[line] = filter_, update
        if ask_all:
            state.rows, state.weight = state.rows + created, state.weight + update.weight
        else:
            rows, weight = max(0, state.rows + created - removed), state.weight + update.weight
            plan.states[line] = LineState("", state.parts, rows, weight, state.cached)

    def known(space: Table, key: Key) -> Columns | None:
        place = (space, key)
        return assumed[place] if place in assumed else states[line_of(key)].cached.get(place)

    _cache_columns(plan, known, guessed=True)
    return plan


def _guess_rows(
    plan: Plan,
    states: Mapping[Key, LineState],
    updates: Mapping[Key, LineUpdate],
    conditions: Mapping[Key, list[Document]],
) -> bool:
    """Plan where rows are written. False if that has to be read."""
    effect, part = plan.effect, plan.part
    for space, prefixes in effect.deleted.items():
        if not space.embedded:
            plan.operations.setdefault(space, []).extend(
                DeleteMany({"_id": each}) for each in _id_ranges(space, prefixes)
            )
            continue
        for key in prefixes:
            if states[line_of(key)].last:
                conditions[line_of(key)].append(embedded(space, key))
            updates[line_of(key)].remove(space, key)
    for place, row in sorted(effect.written.items(), key=lambda item: item[0] not in effect.created):
        space, line = place[0], line_of(row.key)
        state = states[line]
        if space.embedded:
            if row_weight(row) > _MAX_ROW_BYTES:
                return False
            updates[line].put(space, row)
            if place not in effect.created and state.last:
                condition = not_elsewhere(space, row.key)
                if condition:
                    conditions[line].append(condition)
            continue
        operations = plan.operations.setdefault(space, [])
        document = to_document(space, row)
        # A line without a token is empty. If that guess is wrong, the insert fails.
        if state.last and place in part.only_ensured:
            found = document.pop("_id")
            operations.append(UpdateOne({"_id": found}, {"$setOnInsert": document}, upsert=True))
        elif not state.last or place in effect.created:
            operations.append(InsertOne(document))
        else:
            operations.append(ReplaceOne({"_id": document["_id"]}, document, upsert=True))
    return True


def plan_part(part: Part, view: View, located: dict[int, Document]) -> Plan:
    """Plan a part by what was read. Without filters if there is nothing to write."""
    outcomes, effect = evaluate(part.batches, view.lookup)
    plan = Plan(part, outcomes, effect)
    if not effect.written and not effect.deleted:
        return plan
    accepted = [batch for batch, refused in zip(part.batches, outcomes, strict=True) if refused is None]
    lines = set(view.documents) if part.wide_deletes else find_lines(accepted)
    for line in lines:
        document = view.documents[line]
        plan.filters[line] = {LAST: document.get(LAST) or {"$exists": False}}
        if document:
            plan.filters[line][WROTE] = document.get(WROTE)
        plan.updates[line] = LineUpdate()
    for space, prefixes in effect.deleted.items():
        _plan_deletions(plan, view, space, prefixes)
    _plan_rows(plan, view, located)
    plan.useless = list(_unused_parts(view, effect, part, located))
    for line in lines - {ALL_LINES}:
        _plan_move(plan, line, view.documents[line])
    _cache_columns(plan, view.lookup, guessed=False)
    return plan


def _plan_deletions(plan: Plan, view: View, space: Table, prefixes: Iterable[Key]) -> None:
    for prefix in prefixes if space.embedded else ():
        width = min(len(prefix), LINE_WIDTH)
        for line, update in plan.updates.items():
            if line[:width] != prefix[:width] or line is ALL_LINES:
                continue
            if len(prefix) <= LINE_WIDTH:
                update.empty(space)
                update.unmark(space)
                continue
            for document in embedded_rows(space, line, view.documents[line]):
                key = read_key(space, document)
                if key[: len(prefix)] == prefix:
                    update.remove(space, key)
    if space is LINES:
        return
    beside = [
        prefix
        for prefix in prefixes
        if not space.embedded
        or len(prefix) < LINE_WIDTH
        or space.name in view.documents[line_of(prefix)].get(MOVED, {})
    ]
    if beside:
        plan.operations.setdefault(space, []).extend(DeleteMany({"_id": each}) for each in _id_ranges(space, beside))


def _plan_rows(plan: Plan, view: View, located: dict[int, Document]) -> None:
    effect = plan.effect
    fresh = effect.created | (plan.part.put - view.present)
    weights: dict[Key, list[int]] = {}
    for (space, key), row in effect.written.items():
        if space.embedded:
            weights.setdefault(line_of(key), []).append(row_weight(row))
    full = {line for line, found in weights.items() if len(found) > _MAX_ROWS // 2 or sum(found) > _MAX_BYTES // 2}
    # Looking up missing keys is slow in MongoDB where much was deleted: so rows are inserted if possible.
    for place, row in sorted(effect.written.items(), key=lambda item: item[0] not in fresh):
        space, key = place
        line, parts = line_of(key), located.get(id(row))
        if space.embedded:
            update, stays = plan.updates[line], place in view.columns or place in view.present
            stays = stays and not effect.deletes(space, key)
            too_large = parts is not None or row_weight(row) > _MAX_ROW_BYTES or line in full
            if space is LINES or not (stays or too_large):
                update.put(space, row)
                continue
            update.remove(space, key)
            update.mark(space, key, view.documents[line])
        document = to_document(space, row, parts)
        is_fresh = place in fresh and place not in view.columns
        operation = InsertOne(document) if is_fresh else ReplaceOne({"_id": document["_id"]}, document, upsert=True)
        plan.operations.setdefault(space, []).append(operation)


def _plan_move(plan: Plan, line: Key, document: Document) -> None:
    """Plan to move rows out of the document of a line, if it has very many."""
    update = plan.updates[line]
    moves = plan_moves(update, line, document, _MAX_ROWS, _MAX_BYTES - update.weight)
    for space, rows in moves.documents.items():
        plan.operations.setdefault(space, []).extend(moved_rows(rows))
    created = len([key for space, key in plan.effect.created if space.embedded and line_of(key) == line])
    plan.states[line] = LineState(
        "", bool(document.get(PARTS_USED)), moves.rows + created, moves.weight + update.weight
    )


def _cache_columns(plan: Plan, lookup: Lookup, guessed: bool) -> None:
    """Prepare what is cached of the lines after a commit."""
    part, effect = plan.part, plan.effect
    for line, state in plan.states.items():
        expected = [(space, key) for space, key in part.expected if line_of(key) == line and not space.independent]
        if (LINES, line) in effect.written and not (guessed and (LINES, line) in part.only_ensured):
            expected.append((LINES, line))  # conditions will depend on it
        places = list(dict.fromkeys([*state.cached, *expected]))[-_CACHED_ROWS:]
        state.cached = {(space, key): effect.columns(space, key, lookup) for space, key in places}


def _unused_parts(view: View, effect: Effect, part: Part, located: dict[int, Document]) -> Iterator[Operation]:
    """Yield the removals of parts of bodies that are replaced or deleted, and of uploads that were not needed."""
    written = {id(row) for row in effect.written.values()}
    locations = [located[id(row)] for _, row in part.large_rows if id(row) not in written]
    mine: set[RowKey] = {place for place in view.replaced if line_of(place[1]) in part.lines or part.wide_deletes}
    locations += [view.replaced[place] for place in mine if place in effect.written or effect.deletes(*place)]
    for where in locations:
        yield DeleteMany({"_id": part_range(where["upload"], where["first"], where["count"])})


def _id_ranges(space: Table, prefixes: Iterable[Key]) -> Iterator[Document]:
    """Yield filters for the `_id`s that start with matching prefixes: whole keys together, others one by one."""
    whole = [prefix for prefix in prefixes if len(prefix) == len(space.key)]
    for chunk in _chunks(whole):
        yield {"$in": [build_id(space, key) for key in chunk]}
    for prefix in prefixes:
        if len(prefix) < len(space.key):
            yield id_range(space, prefix)


def _group_by_table(places: set[RowKey]) -> Iterator[tuple[Table, list[Key]]]:
    """Yield the keys of rows that may be in the collections of their tables."""
    spaces: dict[Table, list[Key]] = {}
    for space, key in places:
        if space is not LINES:
            spaces.setdefault(space, []).append(key)
    yield from spaces.items()


def _chunks(keys: list[Key]) -> Iterator[list[Key]]:
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        yield keys[start : start + _KEYS_PER_REQUEST]


def lock_id(line: Key) -> Document:
    return {"all": True} if line is ALL_LINES else build_id(LINES, line)


def _line_of_lock(document: Document) -> Key:
    found = document["_id"]
    return ALL_LINES if "all" in found else tuple(found.values())


def _stamp_name(stamp: GroupStamp) -> str:
    return f"{stamp.client}-{stamp.slot}"


def recorded_outcomes(view: View, part: Part, stamp: GroupStamp) -> list[Outcome] | None:
    """Return the recorded outcomes of a part; None if it was not committed."""
    lines = [*part.lines, *([ALL_LINES] if part.wide_deletes else [])]
    for line in lines:
        found = view.documents[line].get(STAMPS, {}).get(_stamp_name(stamp), {})
        number = found.get("number", 0)
        if number > stamp.number:
            raise UnavailableError(
                "a later group of writes by this client was committed before this one", hint="Check what was saved"
            )
        if number == stamp.number:
            refused = dict(found["refused"])
            return [refused.get(each) for each in part.numbers]
    return None
