"""A line at a moment, from all that backups know of it.

The backup before the moment has what the line had then, except for what was removed meanwhile. Those after it have what
was added meanwhile and not removed since. The audit says what was removed, and when; and when something came from
elsewhere. Pruned steps return if a backup has them. Where a line had a step that no backup has, its state is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, count
from typing import Literal, NamedTuple, TypeAlias

from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FOLDS,
    LINES,
    LINKS,
    NODES,
    OBJECTS,
    REFS,
    STEPS,
    WRITES,
    Key,
    Scalar,
    Table,
)
from holdfast.codec import Codec
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import ERASE, RUNNING, Branch, Line, LineInfo, StepRef, info_of, info_row, is_about_step
from holdfast.history.thread_status import INTERRUPT, RESUME
from holdfast.maintenance.backup.reader import TABLES_BY_NAME, LineRow, LineRows
from holdfast.security.audit.removals import RECORDED_KINDS, ArrivalRecord, BranchEnd, RemovalRecord
from holdfast.security.audit.retain import REMOVE

Change: TypeAlias = Literal["arrive", "prune", "delete", "replace", "erase"]
CHANGES: Mapping[str, Change] = {
    "prune": "prune",
    "delete": "delete",
    REMOVE: "delete",
    "delete-branch": "delete",
    ERASE: "erase",
}
"""What actions in the audit do to lines. Others replace names, or remove them."""
Place: TypeAlias = tuple[int, int]
_LAST = (1 << 63) - 1


class HistoryEvent(NamedTuple):
    """A change of a line that its steps do not show, as the audit has it: what came from elsewhere, or was removed."""

    time: int
    change: Change
    record: RemovalRecord | ArrivalRecord

    @property
    def is_whole(self) -> bool:
        """Whether the line came or went with it."""
        return not self.record.had if isinstance(self.record, ArrivalRecord) else self.record.is_whole

    @property
    def ranges(self) -> Sequence[tuple[int, int, int]] | None:
        """The steps that it may be about, from one number to another of a branch; None, if it may be about any."""
        if isinstance(self.record, ArrivalRecord) or self.is_whole:
            return None
        deleted = self.record.branches if self.change == "delete" else ()
        return [*self.record.steps, *((each[0], 0, _LAST) for each in deleted)]

    def effect(self, place: Place, time: int) -> Change | None:
        """Return what it did to a step of this time. Later steps may have the same place."""
        if time > self.time:
            return None
        if isinstance(self.record, ArrivalRecord):
            is_new = dict(self.record.had).get(place[0], 0) <= place[1]
            # The line that came is all there was, whether or not there is a record of the deletion before it.
            return (
                "arrive" if is_new and any(_had(self.record.has, place, time)) else "delete" if self.is_whole else None
            )
        if self.is_whole and self.change != "delete":
            return self.change
        had = _had(self.record.ends, place, time)
        if self.is_whole or (had and not any(had)):  # a branch before it or after it had the same number
            return "delete" if any(had) else None
        since = {branch: created for branch, _, _, created, _ in self.record.branches}.get(place[0])
        if self.change == "delete" and since is not None and (had or since <= time):
            return "delete"
        if not any(each[0] == place[0] and each[1] <= place[1] <= each[2] for each in self.record.steps):
            return None
        # A restore removes from a line that others share what was erased since, and no more.
        return "delete" if self.change == "erase" else self.change


def _had(ends: Iterable[BranchEnd], place: Place, time: int) -> Sequence[bool]:
    """Return whether branches that ended so had a step of a place and time; nothing, if none is that of the place."""
    return [each.had(place[1], time) for each in ends if each.branch == place[0]]


class _Chosen(NamedTuple):
    step: StepRef
    row: LineRow


class _End(NamedTuple):
    """A step that a branch may have ended with: its number, its time, whether the backup before the moment has it, and
    whether none has its content."""

    seq: int
    time: int
    is_first: bool
    is_lost: bool


class _Ends(NamedTuple):
    """What a branch may have ended with, in order; and for each the first time of it and all after it."""

    steps: Sequence[_End]
    first_times: Sequence[int]


_NO_ENDS = _Ends((), ())


class LineHistory:
    """A line of one origin, as several backups have it, the oldest first."""

    def __init__(
        self,
        line: Line,
        sources: Sequence[LineRows],
        times: Sequence[int],
        events: Iterable[HistoryEvent],
        *,
        has_first: bool,
    ) -> None:
        """`times` are those of the backups; `has_first` says whether the first of them was made before the moments that
        are asked for."""
        self._line = line
        self._sources = sources
        self._next_time = next(iter(times[has_first:]), None)
        self._first = sources[0] if has_first else LineRows()
        self._later = sources[1:] if has_first else sources
        created = _info(sources[0].row).created
        known = list(events)
        self._events = sorted((each for each in known if each.record.created == created), key=lambda each: each.time)
        self._known_effects: dict[tuple[Place, int], Sequence[tuple[int, Change]]] = {}
        self._recorded_ends = dict.fromkeys(
            ((end.branch, seq), since)
            for event in self._events
            for end in (event.record.ends if isinstance(event.record, RemovalRecord) else ())
            for seq, since in enumerate(end.times, end.length - len(end.times))
        )
        """The last steps of branches when something was removed, by place and time: many records name the same."""
        self._step_times = [each.time for each in self._events if each.ranges != []]
        self._branch_events = [each for each in self._events if each.ranges is None or each.record.branches]  # type: ignore[union-attr]
        self._created = created
        others = {each.record.created for each in known if each.record.created != created}
        self._others = [time for each in others for time in _appearances(known, each)]
        """When there was another line of the name: by then, this one was gone, recorded or not."""
        self._steps = [_steps_of(line, source) for source in sources]
        hashes = {(place, each.step.hash) for steps in self._steps for place, each in steps.items()}
        self._is_ambiguous = len(hashes) > len({place for place, _ in hashes})
        """Whether backups have several steps of the same place."""
        self._in_first = {place: each.step.hash for place, each in self._steps[0].items()} if has_first else {}
        self._all_ends: Mapping[int, _Ends] | None = None
        self._by_place = self._events_by_place()

    # Steps --------------------------------------------------------------------------------------------------------

    def exists(self, time: int) -> bool:
        """Return whether the store had the line at a time."""
        own = (each for each in _appearances(self._events, self._created) if each <= time)
        since = max(own, default=self._created)
        if any(since < each <= time for each in self._others):
            return False
        return existed(self._events, self._created, time, is_first=bool(self._first.tables))

    def was_deleted(self) -> bool:
        """Return whether there is a record of its deletion."""
        return any(each.is_whole and each.change in ("delete", "erase") for each in self._events)

    def known_until(self, time: int) -> int:
        """Return the last time up to this one at which the state of every branch is known."""
        while lost := self._lost_ends(time):
            came = [each.time for each in self._events if each.change == "arrive" and min(lost) <= each.time <= time]
            time = max((min(lost), *came)) - 1
            if self.exists(time) and all(
                self._end(branch, ends, time) < 0 for branch, ends in self._ends(time).items()
            ):
                return self._created - 1
        return time

    def _status(self, step: StepRef, time: int) -> str:
        """Return whether the store had a step at a time: it is `there`, `pruned`, `deleted`, or `later`."""
        is_first = self._in_first.get(step[:2]) == step.hash
        return _is_there(self._effects(step[:2], step.time), time, is_first, step.time)

    def _effects(self, place: Place, since: int) -> Sequence[tuple[int, Change]]:
        """Return what happened to a step that was saved at a time, in order."""
        known = self._known_effects.get((place, since))
        if known is None:
            found = ((each.time, each.effect(place, since)) for each in self._events_about(place))
            known = _settle((when, effect) for when, effect in found if effect is not None)
            self._known_effects[place, since] = known
        return known

    def _events_about(self, place: Place) -> Iterable[HistoryEvent]:
        """Return the events that may be about a step of a place, in order."""
        found = self._by_place.get(None, {}) | self._by_place.get(place, {})
        return (found[number] for number in sorted(found))

    def _events_by_place(self) -> Mapping[Place | None, dict[int, HistoryEvent]]:
        """Return the events by the places that they are about, and by their numbers; under None those that may be about
        any. To look at all of them for each step would take steps times events."""
        places = [*(place for steps in self._steps for place in steps), *(place for place, _ in self._recorded_ends)]
        lengths = dict[int, int]()
        for branch, seq in places:
            lengths[branch] = max(lengths.get(branch, 0), seq + 1)
        found: dict[Place | None, dict[int, HistoryEvent]] = {}
        for number, event in enumerate(self._events):
            if (ranges := event.ranges) is None:
                found.setdefault(None, {})[number] = event
            for branch, first, last in ranges or ():
                for seq in range(first, min(last + 1, lengths.get(branch, 0))):
                    found.setdefault((branch, seq), {})[number] = event
        return found

    def _went_with_line(self, step: StepRef, time: int) -> bool:
        """Return whether the last event about a step up to a time took all of the line."""
        every = self._events_about(step[:2])
        events = [each for each in every if each.time <= time and each.effect(step[:2], step.time)]
        return bool(events) and events[-1].is_whole

    def _lost_ends(self, time: int) -> list[int]:
        """Return the times of the steps that branches ended with at a time, and that no backup has."""
        every, found, ended = self._ends(time), list[int](), set[int]()
        for branch, ends in every.items():
            at = self._end(branch, ends, time)
            if at >= 0:
                ended.add(branch)
                found += [self._first_lost(branch, ends, at, time)] if ends.steps[at].is_lost else []
        for each in self._branches(time):
            if each.branch not in ended:  # one without steps of its own ends where it starts
                base = (end for end in every.get(each.base_branch, _NO_ENDS).steps if end.seq == each.base_length - 1)
                if any(end.is_lost and self._is_end_there(each.base_branch, end, time) for end in base):
                    found.append(each.created)
        return [each for each in found if each <= time]

    def _ends(self, time: int) -> Mapping[int, _Ends]:
        """Return what branches may have ended with by a time. Unless there are several steps of the same place, it is
        always the same."""
        if self._all_ends is not None:
            return self._all_ends
        chosen, found = self._union(time if self._is_ambiguous else None), dict[int, list[_End]]()
        for place, (step, _) in chosen.items():
            is_first = self._in_first.get(place) == step.hash
            end = _End(step.seq, step.time, is_first, step.pruned and place not in self._in_first)
            found.setdefault(step.branch, []).append(end)
        for (branch, seq), since in self._recorded_ends:
            if (branch, seq) not in chosen or chosen[branch, seq].step.time != since:
                found.setdefault(branch, []).append(_End(seq, since, False, True))
        ends = dict[int, _Ends]()
        for branch, steps in found.items():
            steps.sort(key=lambda each: each.seq)
            times = accumulate((-1 if each.is_first else each.time for each in reversed(steps)), min)
            ends[branch] = _Ends(steps, [*times][::-1])
        if not self._is_ambiguous:
            self._all_ends = ends
        return ends

    def _end(self, branch: int, ends: _Ends, time: int) -> int:
        """Return where the step is that a branch ended with at a time; -1 if it had none."""
        at = bisect_right(ends.first_times, time) - 1
        while at >= 0 and not self._is_end_there(branch, ends.steps[at], time):
            at -= 1
        return at

    def _is_end_there(self, branch: int, end: _End, time: int) -> bool:
        return _is_there(self._effects((branch, end.seq), end.time), time, end.is_first, end.time) == "there"

    def _first_lost(self, branch: int, ends: _Ends, at: int, time: int) -> int:
        """Return the time of the first of the lost steps that a branch ended with, one after another. They are looked
        at together as long as nothing happened to the steps since: then each was the end of the branch in its turn."""
        happened = bisect_right(self._step_times, time)
        since, end = self._step_times[happened - 1] if happened else -1, ends.steps[at]
        while at and not self._is_ambiguous:
            before = ends.steps[at - 1]
            follows = before.seq == end.seq - 1 and since < before.time < end.time
            if not (follows and before.is_lost and self._is_end_there(branch, before, time)):
                break
            at, end = at - 1, before
        return end.time

    def _union(self, time: int | None) -> dict[Place, _Chosen]:
        """Return the steps and stubs that a line had by a time, and those that were removed before; or all."""
        chosen = dict[Place, _Chosen]()
        for steps in self._steps:
            for branch in {place[0] for place in steps}:
                self._add_branch(branch, steps, chosen, time)
        return {
            place: each
            for place, each in sorted(chosen.items())
            if time is None or self._in_first.get(place) == each.step.hash or self._status(each.step, time) != "later"
        }

    def _add_branch(
        self, branch: int, steps: Mapping[Place, _Chosen], chosen: dict[Place, _Chosen], time: int | None
    ) -> None:
        """Add what a backup has of a branch. Its number may be that of another branch before it, or its end another."""
        other: int | None = None
        for seq in count():
            place = (branch, seq)
            if place not in steps:
                break
            each, known = steps[place], chosen.get(place)
            if known is not None and known.step.hash != each.step.hash and other is None:
                if time is not None and self._status(each.step, time) == "later":
                    return
                other = seq
                for later in [one for one in chosen if one[0] == branch and one[1] >= seq]:
                    del chosen[later]
                known = None
            if known is None or (known.step.pruned and not each.step.pruned):
                chosen[place] = each

    # The line at a moment -------------------------------------------------------------------------------------------

    async def at(self, time: int, codec: Codec) -> LineRows:
        """Return the line at a time at which its steps are known."""
        chosen = self._union(time)
        branches = self._branches(time)
        created = {each.branch: each.created for each in branches}
        dropped = set[Place]()
        for place, each in list(chosen.items()):
            if self._status(each.step, time) != "deleted":
                continue
            if each.step.time < created.get(place[0], 0) or self._went_with_line(each.step, time):
                del chosen[place]  # of a branch before it that had the same number, or of the line before it came back
            elif not each.step.pruned:
                dropped.add(place)
        starts = {(each.base_branch, each.base_length - 1) for each in branches}
        stored = {place[0] for place, each in chosen.items() if not each.step.pruned}
        for place, each in sorted(chosen.items(), reverse=True):
            # What a branch has after its last step is not needed any more.
            is_last = place[0] in stored and (place[0], place[1] + 1) not in chosen
            if is_last and each.step.pruned and place not in self._in_first and place not in starts:
                del chosen[place]
        left = {place: each.step.id for place, each in chosen.items() if place not in dropped and each.step.id}
        ids = set(left.values())
        ends = {id for (branch, seq), id in left.items() if (branch, seq + 1) not in left}
        found = LineRows()
        found.row = self._line_row(chosen, ids)
        numbers = {place[0] for place in chosen} - {0}
        every = self._branch_rows(self._sources).values()
        kept = {each.branch: each for each in every if each.branch in numbers}
        kept |= {each.branch: each for each in branches if self._starts(each, chosen)}
        self._set(found, BRANCHES, ((each[:1], each[1:], b"") for each in kept.values()))
        found.tables[STEPS.name] = {place: each.row for place, each in chosen.items()}
        if not dropped and (source := self._only_source(chosen)) is not None:
            found.tables |= {table.name: dict(source.tables.get(table.name, {})) for table in (NODES, OBJECTS, FOLDS)}
            found.row = _line_row(self._line, _info(found.row)._replace(form=_info(source.row).form))
        else:
            for table in (NODES, OBJECTS, FOLDS):
                found.tables[table.name] = {
                    key: row for each in self._sources for key, row in _table(each, table).items()
                }
        found.tables[FOLDS.name] = {key: row for key, row in found.tables[FOLDS.name].items() if key in chosen}
        if dropped or self._only_source(chosen) is None:
            found = await _rewrite(self._line, found, frozenset(dropped), codec)
        self._set(found, REFS, ((key, columns, b"") for key, columns in self._refs(time, ids)[0].items()))
        self._set_rest(found, time, ids, ends)
        found.size = sum(len(row.body) for rows in found.tables.values() for row in rows.values())
        return found

    def _line_row(self, chosen: Mapping[Place, _Chosen], ids: set[str]) -> Row:
        infos = [_info(each.row) for each in self._sources]
        last = next((each for each in (*reversed(infos[1:]), infos[0]) if each.switched_from in ids), None)
        stubs = sum(each.step.pruned for each in chosen.values())
        switched_from = "" if last is None else last.switched_from
        form = max(each.form for each in infos) + 2  # a rewrite removes the forms next to it
        return _line_row(self._line, infos[-1]._replace(form=form, pruned=stubs, switched_from=switched_from))

    def _only_source(self, chosen: Mapping[Place, _Chosen]) -> LineRows | None:
        """Return a backup that has all the steps as they are, if there is one."""
        for source, steps in zip(self._sources, self._steps, strict=True):
            if all(place in steps and steps[place].step == each.step for place, each in chosen.items()):
                return source
        return None

    # Branches -------------------------------------------------------------------------------------------------------

    def _branch_rows(self, sources: Iterable[LineRows]) -> dict[tuple[int, int], Branch]:
        """Return branches by number and time of creation."""
        rows = [row for source in sources for row in _table(source, BRANCHES).items()]
        branches = [Branch.of(Row((*self._line, *key), row.columns)) for key, row in rows]
        return {(each.branch, each.created): each for each in branches}

    def _branches(self, time: int) -> list[Branch]:
        """Return the branches that the line had at a time, by the names that they had then."""
        first, later = self._branch_rows([self._base(time)]), self._branch_rows(self._later[:1])
        (events, is_deleted), recorded = (
            self._events_until_known(self._branch_events, time),
            dict[tuple[int, int], Branch](),
        )
        known = {} if is_deleted else first | later
        for event in reversed(events):
            for branch in [Branch(*each) for each in getattr(event.record, "branches", ())]:
                key = (branch.branch, branch.created)
                if event.time > time:
                    recorded[key] = branch  # the first record after the time has what it was then
                elif event.change == "delete" and key not in later:
                    known.pop(key, None)
        known |= recorded
        found = [branch for key, branch in sorted(known.items()) if key in first or branch.created <= time]
        arrived = [each.record for each in events if each.change == "arrive" and each.time > time]
        if arrived and not is_deleted:  # to the line as it was
            had = dict(arrived[0].had) if isinstance(arrived[0], ArrivalRecord) else {}
            found = [branch for branch in found if branch.branch in had]
        return list({each.branch: each for each in found}.values())

    def _base(self, time: int) -> LineRows:
        """Return what the line was before its events up to a time; empty, if all of it has come anew since."""
        has_come = any(each.is_whole and each.change == "arrive" and each.time <= time for each in self._events)
        return LineRows() if has_come else self._first

    def _events_until_known(self, events: Sequence[HistoryEvent], time: int) -> tuple[Sequence[HistoryEvent], bool]:
        """Return those of some events up to the next time at which all is known of the line, and whether that is its
        deletion, whose record says what it had. Otherwise a backup has it."""
        for number, event in enumerate(events):
            if self._next_time is not None and event.time > self._next_time:
                return events[:number], False
            if event.is_whole and event.change == "delete" and event.time > time:
                return events[: number + 1], True
        return events, False

    def _starts(self, branch: Branch, chosen: Mapping[Place, _Chosen]) -> bool:
        """Return whether a branch has steps, or can be continued."""
        base = chosen.get((branch.base_branch, branch.base_length - 1))
        return (branch.branch, 0) in chosen or bool(branch.name and base is not None and not base.step.pruned)

    # References and the rest ----------------------------------------------------------------------------------------

    def knows_refs(self, time: int) -> bool:
        """Return whether all references at a time are known: of none that are gone it is unknown since when."""
        return self._refs(time, {each.step.id for each in self._union(time).values()})[1]

    def _refs(self, time: int, ids: set[str]) -> tuple[dict[Key, tuple[Scalar, ...]], bool]:
        """Return the references that the line had at a time, and whether they are known."""
        first, is_exact = _table(self._base(time), REFS), True
        last = _table(self._later[0], REFS) if self._later else {}
        records: dict[Key, list[tuple[HistoryEvent, tuple[Scalar, ...]]]] = {}
        events, is_deleted = self._events_until_known(self._events, time)
        for event in events:
            for kind, name, step, *columns in getattr(event.record, "refs", ()):
                records.setdefault((kind, name, step), []).append((event, tuple(columns)))
        known = {key: row.columns for source in self._sources for key, row in _table(source, REFS).items()}
        # The records of an erasure have no names: those of steps that were erased went with them.
        is_erased = any(event.change == "erase" for event in self._events)
        refs = dict[Key, tuple[Scalar, ...]]()
        for key in known.keys() | records.keys():
            own = None if key not in last else last[key].columns
            before = None if key not in first else first[key].columns
            if key[0] not in RECORDED_KINDS:
                columns = own if self._later else before
            elif later := [columns for event, columns in records.get(key, ()) if event.time > time]:
                columns = later[0] if later[0] == before or int(later[0][1]) <= time else None
            elif is_deleted:
                columns = None
            elif own is not None and (own == before or int(own[1]) <= time):
                columns = own
            else:
                # What a prune removed returns with its step.
                earlier = [event for event, _ in records.get(key, ()) if event.change != "prune"]
                columns = None if earlier else before
                pruned = [columns for event, columns in records.get(key, ()) if event.change == "prune"]
                if columns is not None and not (pruned or is_erased) and columns[0] in ids | {""}:
                    is_exact = False
            if columns is not None and (not is_about_step(Row((*self._line, *key), columns)) or columns[0] in ids):
                refs[key] = columns
            elif columns is not None and not is_erased:
                is_exact = False  # its step is not known
        return refs, is_exact

    def _set_rest(self, found: LineRows, time: int, ids: set[str], ends: set[str]) -> None:
        """Set pending writes, events and links. `ends` are the steps that nothing followed yet."""
        later = {each.step.id for steps in self._steps for each in steps.values()} - ids - {""}
        last, first, newest = self._sources[-1], self._first, max(ids, default="")
        events = {
            key: row
            for each in self._sources
            for key, row in _table(each, EVENTS).items()
            if str(key[0]) <= newest and key[0] not in later  # those of later steps that were pruned have no id there
        }
        found.tables[EVENTS.name] = events
        found.tables[WRITES.name] = self._writes(ids, ends, later)
        links, known = _table(last, LINKS), _table(first, LINKS)
        if self._line.name == ARTIFACTS:
            gone = {
                row.columns[4]
                for key, row in events.items()
                if key not in _table(first, EVENTS) and row.columns[3] == "delete"
            }
            kept = {key: row for key, row in links.items() if key in known or int(row.columns[0]) <= time}
            kept |= {key: row for key, row in known.items() if key not in links and gone.isdisjoint(key)}
        else:
            kept = {key: row for key, row in links.items() if later.isdisjoint((key[1], row.columns[1]))}
            kept |= {key: row for key, row in known.items() if row.columns[1] in ids or key[0] == RUNNING}
        found.tables[LINKS.name] = kept

    def _writes(self, ids: set[str], ends: set[str], later: set[str]) -> dict[Key, LineRow]:
        """Return the pending writes that a line had, which have no time: those of a step are as the next backup has
        them. Answers to a question belong to the step that follows, and so does what their tasks wrote."""
        first, missing = _table(self._first, WRITES), set(ids)
        rows = {key: row for key, row in _table(self._sources[-1], WRITES).items() if key[0] not in later | ids}
        for source in self._later:
            own = missing & {
                StepRef.of(Row((*self._line, *key), row.columns)).id for key, row in _table(source, STEPS).items()
            }
            rows |= {key: row for key, row in _table(source, WRITES).items() if key[0] in own}
            missing -= own
        answered = {
            key[:2]
            for key, row in rows.items()
            if key[0] in ends and row.columns[1] == RESUME and first.get(key) != row
        }
        rows = {key: row for key, row in rows.items() if key[:2] not in answered or row.columns[1] == INTERRUPT}
        return rows | {key: row for key, row in first.items() if key[0] in missing | ends}

    def _set(self, found: LineRows, table: Table, rows: Iterable[tuple[Key, tuple[Scalar, ...], bytes]]) -> None:
        stored = [CHECKSUMS.encode(table, Row((*self._line, *key), columns, body)) for key, columns, body in rows]
        found.tables[table.name] = {row.key[2:]: LineRow(row.columns, row.body) for row in stored}


def existed(events: Iterable[HistoryEvent], created: int, time: int, *, is_first: bool = False) -> bool:
    """Return whether a line that was created at a time existed at another."""
    own = sorted((each.time, each.change) for each in events if each.is_whole and each.record.created == created)
    return _is_there(_settle(own), time, is_first, created) == "there"


def _appearances(events: Iterable[HistoryEvent], created: int) -> list[int]:
    """Return the times at which a line that was created at one of them came to be in the store, as far as is known."""
    own = sorted(
        (each for each in events if each.is_whole and each.record.created == created), key=lambda each: each.time
    )
    arrived = [each.time for each in own if each.change == "arrive"]
    return arrived if own and own[0].change == "arrive" else [created, *arrived]


def _settle(effects: Iterable[tuple[int, Change]]) -> Sequence[tuple[int, Change]]:
    """Return what happened to something; what was erased has never been there."""
    found = list(effects)
    return [(0, "delete")] if any(change == "erase" for _, change in found) else found


def _is_there(effects: Sequence[tuple[int, Change]], time: int, is_first: bool, since: int) -> str:
    """Return whether something is `there` at a time, `pruned`, `deleted` or only `later`, given what happened to it in
    order, whether the backup before the time has it, and since when it is."""
    if before := bisect_right(effects, time, key=lambda each: each[0]):
        return {"arrive": "there", "prune": "pruned", "delete": "deleted"}[effects[before - 1][1]]
    if is_first:
        return "there"
    came_later = bool(effects) and effects[0][1] == "arrive"
    return "there" if since <= time and not came_later else "later"


def _table(rows: LineRows, table: Table) -> Mapping[Key, LineRow]:
    return rows.tables.get(table.name, {})


def _steps_of(line: Line, rows: LineRows) -> dict[Place, _Chosen]:
    found = {key: StepRef.of(Row((*line, *key), row.columns)) for key, row in _table(rows, STEPS).items()}
    return {step[:2]: _Chosen(step, rows.tables[STEPS.name][key]) for key, step in sorted(found.items())}


def _info(row: Row) -> LineInfo:
    return info_of(CHECKSUMS.decode(LINES, row))


def _line_row(line: Line, info: LineInfo) -> Row:
    return CHECKSUMS.encode(LINES, info_row(line, info))


async def _rewrite(line: Line, rows: LineRows, dropped: frozenset[Place], codec: Codec) -> LineRows:
    """Return a line of which the steps are of several backups in one form, without some of them, as a prune leaves it.
    Their hashes stay the same."""
    scratch = Engine(EngineContext(MemoryBackend(), codec=codec))
    stored = scratch.context.stored
    await stored.apply([Put(LINES, rows.row)])
    for name, found in rows.tables.items():
        await stored.apply([Put(TABLES_BY_NAME[name], row.stored(name, (*line, *key))) for key, row in found.items()])

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:  # noqa: ARG001
        return RewritePlan(dropped)

    await scratch.rewriter.rewrite(line, choose if dropped else None)
    tables = (LINES, BRANCHES, STEPS, FOLDS, NODES, OBJECTS)
    (info,), *parts = await stored.read([Scan(table, tuple(line)) for table in tables])
    result = LineRows()
    result.row, form = info, info.columns[2]
    for table, part in zip(tables[1:], parts, strict=True):
        result.tables[table.name] = {
            row.key[2:]: LineRow(row.columns, row.body) for row in part if table is not NODES or row.key[2] == form
        }
    return result
