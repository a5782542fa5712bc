"""The suite that checks a backend against `holdfast.backends.interface`.

The test file of a backend provides a store, and inherits the tests::

    class TestSQLite(BackendConformance):
        @pytest.fixture
        def stores(self, tmp_path: Path) -> Stores:
            return Stores(f"sqlite:///{tmp_path}/store.db")

`BackendConformance` runs everything, through the sync driver and through asyncio. `SyncConformance` runs everything
through the sync driver. `ShortConformance` runs the part that finds most faults in the least time.

Tests of what a backend does not claim (`durable`, `shared`, `fresh`, `words`, `times` of `Capabilities`) are skipped,
or left out where a class names it in `lacks`.
"""

from __future__ import annotations

from holdfast._hints import install
from holdfast.errors import ConfigError

try:
    import hypothesis  # noqa: F401 - to report early that it is missing
    import pytest
except ImportError as error:
    raise ConfigError(f"the conformance suite needs {error.name}", where=__name__, hint=install("testing")) from error

from holdfast.backends.conformance.changes import ChangeFeed
from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.kit import Drive, Suite
from holdfast.backends.conformance.lifetime import Lifetime
from holdfast.backends.conformance.processes import Processes
from holdfast.backends.conformance.races import Races
from holdfast.backends.conformance.reads import Reads
from holdfast.backends.conformance.values import Values
from holdfast.backends.conformance.words import WordsFound
from holdfast.backends.conformance.writes import Writes
from holdfast.backends.runtime.drivers import run


class BackendConformance(Reads, Values, Writes, WordsFound, Races, ChangeFeed, Lifetime, Processes, Histories):
    """All tests, through both drivers. A subclass provides the fixture `stores`."""


class SyncOnly(Suite):
    """Runs a backend's coroutines through the sync driver, and not through asyncio as well."""

    @pytest.fixture
    def drive(self) -> Drive:
        """The sync driver."""
        return run


class SyncConformance(SyncOnly, BackendConformance):
    """All tests, through the sync driver: for a backend whose waits are tested with both drivers elsewhere."""


class WrapperConformance(SyncOnly, Histories, Lifetime):
    """The tests of what stands before stores that pass all of them, such as a cache or a pooler: whatever it could get
    wrong. How values are kept and ordered is up to the stores behind it; random histories have the odd ones."""

    histories = 6
    kills = 1
    watched = 10

    handles = Races.handles

    test_every_query_gets_its_answer_in_its_place = Reads.test_every_query_gets_its_answer_in_its_place
    test_rows_are_counted_as_they_are_read = Reads.test_rows_are_counted_as_they_are_read
    test_every_space_keeps_its_rows = Values.test_every_space_keeps_its_rows
    test_bodies_of_any_size = Values.test_bodies_of_any_size
    test_tenants_and_lines_are_apart = Values.test_tenants_and_lines_are_apart
    test_ensure_leaves_what_is_there = Writes.test_ensure_leaves_what_is_there
    test_delete_removes_what_starts_so = Writes.test_delete_removes_what_starts_so
    test_a_batch_whose_condition_fails_leaves_no_trace = Writes.test_a_batch_whose_condition_fails_leaves_no_trace
    test_conditions_see_the_changes_before_them = Writes.test_conditions_see_the_changes_before_them
    test_conditions_see_the_deletions_before_them = Writes.test_conditions_see_the_deletions_before_them
    test_a_batch_of_thousands = Writes.test_a_batch_of_thousands
    test_words_are_found_as_the_rows_say = WordsFound.test_words_are_found_as_the_rows_say
    test_compare_and_set_loses_no_update = Races.test_compare_and_set_loses_no_update
    test_of_batches_that_exclude_each_other_one_is_made = Races.test_of_batches_that_exclude_each_other_one_is_made
    test_readers_see_whole_batches_of_one_moment = Races.test_readers_see_whole_batches_of_one_moment
    test_what_is_acknowledged_is_seen_through_every_handle = (
        Races.test_what_is_acknowledged_is_seen_through_every_handle
    )
    test_a_cancelled_task_leaves_a_whole_batch_or_nothing = Races.test_a_cancelled_task_leaves_a_whole_batch_or_nothing
    test_an_empty_batch_comes_after_what_was_submitted = Races.test_an_empty_batch_comes_after_what_was_submitted
    test_lines_that_change_are_named = ChangeFeed.test_lines_that_change_are_named
    test_deleted_tenants_are_named_or_the_answer_is_incomplete = (
        ChangeFeed.test_deleted_tenants_are_named_or_the_answer_is_incomplete
    )
    test_a_token_is_valid_when_the_store_is_opened_again = (
        ChangeFeed.test_a_token_is_valid_when_the_store_is_opened_again
    )
    test_changes_are_named_through_every_handle = ChangeFeed.test_changes_are_named_through_every_handle
    test_no_change_is_missed_while_many_write = ChangeFeed.test_no_change_is_missed_while_many_write
    test_what_a_killed_process_was_acknowledged_is_there_and_whole = (
        Processes.test_what_a_killed_process_was_acknowledged_is_there_and_whole
    )


class ShortConformance(WrapperConformance, Values):
    """The tests in which stores differ: for a slow store, or for one that is made of stores that pass all tests.

    Random histories cover the plain cases of reading and writing. Values, opening and closing are tested in full;
    of conditions, large batches, races, words and crashes there is one test of each kind. All of it is inherited, as
    from `BackendConformance`: a subclass provides the fixture `stores`, and may set `histories`, `watched` and `kills`.

    It does not prove that a backend conforms. Run it often, and `BackendConformance` before a release: only that tests
    competing tasks and event loops, several processes that write at the same time, and cancelled readers.
    """

    test_get_of_thousands = Reads.test_get_of_thousands
    test_by_index = Reads.test_by_index
    test_by_index_where_columns_are_equal = Reads.test_by_index_where_columns_are_equal
    test_text_is_ordered_by_its_utf_8_bytes = Reads.test_text_is_ordered_by_its_utf_8_bytes
    test_numbers_are_ordered_by_value = Reads.test_numbers_are_ordered_by_value
    test_places_of_writes_may_be_negative = Reads.test_places_of_writes_may_be_negative
    test_bytes_are_ordered_as_they_are = Reads.test_bytes_are_ordered_as_they_are
    test_expect_compares_every_column = Writes.test_expect_compares_every_column
    test_a_batch_of_megabytes = Writes.test_a_batch_of_megabytes
    test_words_are_looked_for_or_refused = WordsFound.test_words_are_looked_for_or_refused
    test_a_word_is_any_text_without_spaces = WordsFound.test_a_word_is_any_text_without_spaces
    test_words_of_tenants_and_lines_are_apart = WordsFound.test_words_of_tenants_and_lines_are_apart
    test_pages = WordsFound.test_pages
    test_of_threads_that_create_one_key_one_wins = Races.test_of_threads_that_create_one_key_one_wins
    test_odd_names_are_named_as_they_are = ChangeFeed.test_odd_names_are_named_as_they_are
    test_a_token_of_something_else_is_refused = ChangeFeed.test_a_token_of_something_else_is_refused
