"""Backends that break one promise each, to see whether the suite notices."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.backends.conformance import child
from holdfast.backends.feed import Line, changed_lines
from holdfast.backends.interface import (
    Backend,
    Batch,
    BlockingCall,
    Capabilities,
    Change,
    Changes,
    Create,
    Delete,
    Ensure,
    Expect,
    Get,
    Put,
    Query,
    Row,
    Scan,
)
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import STEPS, TABLES, Key
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import InvalidError, UnavailableError

BROKEN: dict[str, tuple[Callable[[Backend], Backend], tuple[str, ...]]] = {}
"""By name: what to put around a store, and the tests that have to fail."""


def caught_by(*tests: str) -> Callable[[type[Wrapper]], type[Wrapper]]:
    def add(kind: type[Wrapper]) -> type[Wrapper]:
        BROKEN[kind.__name__] = kind, tests
        return kind

    return add


# Reading


class Answers(Wrapper):
    """Answers wrongly."""

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = await self.inner.read(queries)
        return [self.change(query, rows) for query, rows in zip(queries, found, strict=True)]

    def change(self, query: Query, rows: list[Row]) -> list[Row]:
        return self.scanned(query, rows) if isinstance(query, Scan) else rows

    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        return rows


def bound(scan: Scan, row: Row, bound: Key) -> bool:
    """Whether a row is at a bound of a scan by key."""
    values = row.key[len(scan.prefix) :]
    return bool(bound) and not scan.by and values[: len(bound)] == bound


@caught_by("test_a_backend_answers_as_the_model_does")
class AnswersNothing(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        return []


@caught_by("test_bounds", "test_text_is_ordered_by_its_utf_8_bytes")
class StartIsExclusive(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        return [row for row in rows if not bound(scan, row, scan.start)]


@caught_by("test_bounds", "test_text_is_ordered_by_its_utf_8_bytes")
class StopIsInclusive(Wrapper):
    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = []
        for query in queries:
            if isinstance(query, Scan) and query.stop and not query.by:
                (rows,) = await self.inner.read([query._replace(stop=(), limit=None)])
                width = len(query.stop)
                rest = [(row.key[len(query.prefix) :][:width], row) for row in rows]
                found.append([row for key, row in rest if key <= query.stop][: query.limit])
            else:
                found += await self.inner.read([query])
        return found


@caught_by("test_bounds", "test_by_index")
class LimitsBeforeReversing(Wrapper):
    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        forwards = [query._replace(reverse=False) if isinstance(query, Scan) else query for query in queries]
        found = await self.inner.read(forwards)
        backwards = [isinstance(query, Scan) and query.reverse for query in queries]
        return [rows[::-1] if back else rows for back, rows in zip(backwards, found, strict=True)]


@caught_by("test_numbers_are_ordered_by_value", "test_places_of_writes_may_be_negative")
class OrdersNumbersAsText(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        if scan.by:
            return rows
        return sorted(
            rows, key=lambda row: [str(v) if isinstance(v, int) else v for v in row.key], reverse=scan.reverse
        )


@caught_by("test_text_is_ordered_by_its_utf_8_bytes")
class OrdersTextByUTF16(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        def order(row: Row) -> list[Any]:
            return [value.encode("utf-16-be") if isinstance(value, str) else value for value in row.key]

        return rows if scan.by else sorted(rows, key=order, reverse=scan.reverse)


@caught_by("test_text_is_ordered_by_its_utf_8_bytes")
class OrdersTextWithoutCase(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        def order(row: Row) -> list[Any]:
            return [(value.lower(), value) if isinstance(value, str) else value for value in row.key]

        return rows if scan.by else sorted(rows, key=order, reverse=scan.reverse)


@caught_by("test_by_index", "test_by_index_where_columns_are_equal")
class OrdersIndexesByKey(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        return sorted(rows, reverse=scan.reverse) if scan.by else rows


@caught_by("test_by_index_where_columns_are_equal")
class OrdersEqualsBackwards(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        rows = sorted(rows, key=lambda row: row.key, reverse=not scan.reverse) if scan.by else rows
        return sorted(rows, key=lambda row: (row.key[:2], row.columns[:2]), reverse=scan.reverse) if scan.by else rows


@caught_by("test_get_leaves_out_what_is_not_there", "test_get_of_thousands")
class GetsOnlyTheFirst(Answers):
    def change(self, query: Query, rows: list[Row]) -> list[Row]:
        return rows[:1] if isinstance(query, Get) else rows


@caught_by("test_without_bodies", "test_json_means_what_it_meant")
class DropsColumnsWithBodies(Answers):
    def scanned(self, scan: Scan, rows: list[Row]) -> list[Row]:
        return rows if scan.bodies else [Row(row.key) for row in rows]


@caught_by("test_values_keep_their_types")
class GivesOtherTypes(Answers):
    def change(self, query: Query, rows: list[Row]) -> list[Row]:
        return [row._replace(body=bytearray(row.body)) for row in rows]  # type: ignore[arg-type]


@caught_by("test_every_query_gets_its_answer_in_its_place")
class MixesAnswers(Wrapper):
    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return (await self.inner.read(queries))[::-1]


@caught_by(
    "test_conditions_see_the_deletions_before_them",
    "test_compare_and_set_loses_no_update",
    "test_readers_see_whole_batches_of_one_moment",
    "test_what_is_acknowledged_is_seen_through_every_handle",
)
class ReadsAreStale(Wrapper):
    """A query that was asked before is answered as it was then."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.answers: dict[str, list[list[Row]]] = {}

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        asked = repr(queries)
        if asked not in self.answers:
            self.answers[asked] = await self.inner.read(queries)
        return self.answers[asked]


@caught_by("test_readers_see_whole_batches_of_one_moment")
class ReadsSeveralMoments(Wrapper):
    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = []
        for query in queries:
            found += await self.inner.read([query])
            await BlockingCall(lambda: time.sleep(0.002))
        return found


# Writing


class Rewrites(Wrapper):
    """Writes something else."""

    async def apply(self, batch: Batch) -> int | None:
        return await self.inner.apply([self.change(change) for change in batch])

    def change(self, change: Change) -> Change:
        raise NotImplementedError


@caught_by(
    "test_create_fails_where_the_key_is_taken",
    "test_of_tasks_that_create_one_key_one_wins",
    "test_of_threads_that_create_one_key_one_wins",
)
class CreateOverwrites(Rewrites):
    def change(self, change: Change) -> Change:
        return Put(*change) if isinstance(change, Create) else change


@caught_by("test_ensure_leaves_what_is_there")
class EnsureOverwrites(Rewrites):
    def change(self, change: Change) -> Change:
        return Put(*change) if isinstance(change, Ensure) else change


@caught_by("test_put_takes_the_place_of_what_was_there", "test_json_means_what_it_meant")
class PutLeavesWhatIsThere(Rewrites):
    def change(self, change: Change) -> Change:
        return Ensure(*change) if isinstance(change, Put) else change


@caught_by("test_names_that_look_alike_are_different", "test_a_name_is_any_text")
class CutsNamesAtNul(Rewrites):
    def change(self, change: Change) -> Change:
        if not isinstance(change, Create | Put | Ensure):
            return change
        row = change.row
        key = tuple(value.partition("\0")[0] if isinstance(value, str) else value for value in row.key)
        return type(change)(change.space, row._replace(key=key))


@caught_by("test_names_that_look_alike_are_different", "test_tenants_and_lines_are_apart")
class FoldsCase(Rewrites):
    def change(self, change: Change) -> Change:
        if not isinstance(change, Create | Put | Ensure):
            return change
        key = tuple(value.lower() if isinstance(value, str) else value for value in change.row.key)
        return type(change)(change.space, change.row._replace(key=key))


@caught_by("test_bodies_of_any_size", "test_a_batch_of_megabytes")
class CutsLongBodies(Rewrites):
    def change(self, change: Change) -> Change:
        if not isinstance(change, Create | Put | Ensure):
            return change
        return type(change)(change.space, change.row._replace(body=change.row.body[: 1 << 19]))


@caught_by("test_delete_removes_what_starts_so")
class DeletesLittle(Rewrites):
    def change(self, change: Change) -> Change:
        if isinstance(change, Delete) and len(change.prefix) < len(change.space.key):
            return Delete(change.space, (*change.prefix, *"?" * (len(change.space.key) - len(change.prefix))))
        return change


@caught_by("test_delete_removes_what_starts_so")
class DeletesMuch(Rewrites):
    def change(self, change: Change) -> Change:
        return Delete(change.space, change.prefix[:-1]) if isinstance(change, Delete) else change


@caught_by("test_expect", "test_compare_and_set", "test_expect_compares_every_column")
class ExpectIsIgnored(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        return await self.inner.apply([change for change in batch if not isinstance(change, Expect)])


@caught_by("test_expect_compares_every_column")
class ExpectComparesOneColumn(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        changed = []
        for change in batch:
            if isinstance(change, Expect) and change.columns:
                ((*found,),) = await self.inner.read([Get(change.space, [change.key])])
                if found and found[0].columns[0] == change.columns[0]:
                    change = change._replace(columns=found[0].columns)
            changed.append(change)
        return await self.inner.apply(changed)


@caught_by("test_conditions_see_the_changes_before_them", "test_conditions_see_the_deletions_before_them")
class ConditionsComeFirst(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        for place, change in enumerate(batch):
            if isinstance(change, Create):
                change = Expect(change.space, change.row.key, None)
            if isinstance(change, Expect) and await self.inner.apply([change]) is not None:
                return place
        rest = [Put(*change) if isinstance(change, Create) else change for change in batch]
        return await self.inner.apply([change for change in rest if not isinstance(change, Expect)])


@caught_by("test_a_batch_whose_condition_fails_leaves_no_trace")
class BatchesAreNotAtomic(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        for place, change in enumerate(batch):
            if await self.inner.apply([change]) is not None:
                return place
        return None


@caught_by("test_a_batch_whose_condition_fails_leaves_no_trace")
class NamesTheWrongPlace(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        refused = await self.inner.apply(batch)
        return None if refused is None else len(batch) - 1 - refused


@caught_by("test_readers_see_whole_batches_of_one_moment", "test_tasks_see_whole_batches_of_one_moment")
class HalvesAreSeen(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        half = len(batch) // 2
        refused = await self.inner.apply(batch[:half])
        if refused is None:
            await BlockingCall(lambda: time.sleep(0.002))
            refused = await self.inner.apply(batch[half:])
        return refused


@caught_by("test_a_cancelled_task_leaves_a_whole_batch_or_nothing")
class CancellingLeavesHalf(HalvesAreSeen):
    pass


@caught_by("test_create_stores_a_row_where_the_key_is_free", "test_of_threads_that_create_one_key_one_wins")
class LosesEveryThirdBatch(Wrapper):
    count = -1

    async def apply(self, batch: Batch) -> int | None:
        self.count += 1
        return None if self.count % 3 == 0 else await self.inner.apply(batch)


@caught_by(
    "test_of_threads_that_create_one_key_one_wins",
    "test_of_tasks_that_create_one_key_one_wins",
    "test_of_event_loops_that_create_one_key_one_wins",
    "test_compare_and_set_loses_no_update",
    "test_of_batches_that_exclude_each_other_one_is_made",
)
class LooksThenLeaps(Wrapper):
    """Tests conditions, and makes the changes a little later."""

    async def apply(self, batch: Batch) -> int | None:
        for place, change in enumerate(batch):
            if isinstance(change, Create):
                change = Expect(change.space, change.row.key, None)
            if isinstance(change, Expect) and await self.inner.apply([change]) is not None:
                return place
        await BlockingCall(lambda: time.sleep(0.002))
        rest = [Put(*change) if isinstance(change, Create) else change for change in batch]
        return await self.inner.apply([change for change in rest if not isinstance(change, Expect)])


@caught_by("test_an_empty_batch_comes_after_what_was_submitted")
class EmptyBatchesOvertake(Wrapper):
    async def apply(self, batch: Batch) -> int | None:
        if batch:
            await BlockingCall(lambda: time.sleep(0.01))
        return await self.inner.apply(batch)


# Changes


@caught_by("test_lines_that_change_are_named", "test_no_change_is_missed_while_many_write")
class NamesNothing(Wrapper):
    async def changes(self, since: str | None = None) -> Changes:
        return (await self.inner.changes(since))._replace(lines=[])


@caught_by("test_no_change_is_missed_while_many_write")
class TakesTheTokenLate(Wrapper):
    """What is written between the reading of the lines and of the token is never named."""

    async def changes(self, since: str | None = None) -> Changes:
        found = await self.inner.changes(since)
        await BlockingCall(lambda: time.sleep(0.002))
        return found._replace(token=(await self.inner.changes()).token)


@caught_by("test_no_change_is_missed_while_many_write")
class NumbersBeforeItCommits(Wrapper):
    """Numbers as from a sequence: a batch with a smaller number may be visible after one with a larger number."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.numbers = itertools.count(1)
        self.visible: list[tuple[int, Line]] = []
        self.reported = 0

    async def apply(self, batch: Batch) -> int | None:
        number = next(self.numbers)
        if number % 2:  # until a reader has seen a larger number; the last ones have none to wait for
            deadline = time.monotonic() + 0.05
            await BlockingCall(lambda: self._wait(number, deadline))
        refused = await self.inner.apply(batch)
        if refused is None:
            self.visible.extend((number, line) for line in changed_lines([batch]) or ())
        return refused

    async def changes(self, since: str | None = None) -> Changes:
        visible = list(self.visible)
        self.reported = last = max((number for number, _ in visible), default=0)
        lines = [line for number, line in visible if since is not None and number > int(since)]
        return Changes(lines, str(last), complete=True)

    def _wait(self, number: int, deadline: float) -> None:
        while self.reported < number and time.monotonic() < deadline:
            time.sleep(0.0005)


@caught_by("test_lines_that_change_are_named", "test_tidying_loses_no_change")
class NamesWhatIsThere(Wrapper):
    """Does not name lines that were deleted."""

    async def changes(self, since: str | None = None) -> Changes:
        found = await self.inner.changes(since)
        rows = await self.inner.read([Scan(space, ()) for space in TABLES])
        there = {row.key[:2] for each in rows for row in each}
        return found._replace(lines=[line for line in found.lines if line in there])


@caught_by("test_lines_that_change_are_named")
class NamesAllAgain(Wrapper):
    """Names every line of the store each time."""

    async def changes(self, since: str | None = None) -> Changes:
        found = await self.inner.changes(since)
        (rows,) = await self.inner.read([Scan(STEPS, ())])
        return found._replace(lines=list({(str(row.key[0]), str(row.key[1])) for row in rows}))


@caught_by("test_a_token_of_something_else_is_refused")
class TakesAnyToken(Wrapper):
    async def changes(self, since: str | None = None) -> Changes:
        try:
            return await self.inner.changes(since)
        except InvalidError:
            return await self.inner.changes()


# Life


@caught_by("test_a_closed_store_is_unavailable", "test_closing_waits_for_batches_under_way")
class CloseIsIgnored(Wrapper):
    async def close(self) -> None:
        """Stays open."""


@caught_by("test_closing_again_is_no_failure")
class ClosesOnce(Wrapper):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise UnavailableError("closed already")
        self.closed = True
        await self.inner.close()


@caught_by("test_size_grows_with_what_is_stored")
class HasNoSize(Wrapper):
    async def size(self) -> int:
        return 0


@caught_by("test_a_sound_store_passes_its_own_check")
class FindsFault(Wrapper):
    async def check(self) -> list[str]:
        return ["something is always wrong"]


@caught_by("test_tidying_changes_nothing")
class TidiesAway(Wrapper):
    async def tidy(self) -> None:
        await self.inner.apply([Delete(space, ()) for space in TABLES])


@caught_by("test_capabilities_say_what_the_suite_relies_on")
class HoldsLittle(Wrapper):
    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, max_body=100)


@caught_by(
    "test_everything_is_there_after_opening_again",
    "test_closing_waits_for_batches_under_way",
    "test_what_a_killed_process_was_acknowledged_is_there_and_whole",
    "test_what_another_process_was_acknowledged_is_seen",
    "test_of_processes_that_create_one_key_one_wins",
    "test_writers_in_several_processes_write_all_they_say",
    "test_what_is_acknowledged_is_seen_through_every_handle",
)
class BoastsAndForgets(Wrapper):
    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, durable=True, shared=True)


class FirstReadIsEmpty(Answers):
    """Finds nothing the first time, unless it has written before."""

    first = True

    async def apply(self, batch: Batch) -> int | None:
        self.first = False
        return await self.inner.apply(batch)

    def change(self, query: Query, rows: list[Row]) -> list[Row]:
        first, self.first = self.first, False
        return [] if first else rows


class Obliging(MemoryBackend):
    """Opens anything."""

    @classmethod
    async def open(cls, url: str, **options: Any) -> MemoryBackend:
        return cls()


# In another process


class AcknowledgesEarly(Wrapper):
    """A batch is stored when some more have come."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.waiting: list[Batch] = []

    async def apply(self, batch: Batch) -> int | None:
        self.waiting.append(batch)
        return await self.inner.apply(self.waiting.pop(0)) if len(self.waiting) > 4 else None


class StoresHalves(Wrapper):
    """A batch is stored in two goes."""

    async def apply(self, batch: Batch) -> int | None:
        half = len(batch) // 2
        refused = await self.inner.apply(batch[:half])
        time.sleep(0.002)
        return await self.inner.apply(batch[half:]) if refused is None else refused


CHILDREN: dict[str, type[Wrapper]] = {"early": AcknowledgesEarly, "halves": StoresHalves}


def command(name: str) -> list[str]:
    """Runs the suite's other process with a broken backend."""
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from tests.backends.broken import main; main({name!r})"
    return [sys.executable, "-c", code]


def main(name: str) -> None:
    async def opened(url: str, options: dict[str, Any]) -> Backend:
        return CHILDREN[name](await child.open_by_url(url, options))

    child.main(sys.argv[1:], opened=opened)
