"""Parts of the suite for backends that run by day; by night, the same stores have to pass all of it."""

from __future__ import annotations

from holdfast.backends.conformance.changes import ChangeFeed
from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.lifetime import Lifetime
from holdfast.backends.conformance.processes import Processes
from holdfast.backends.conformance.races import Races
from holdfast.backends.conformance.reads import Reads
from holdfast.backends.conformance.suite import SyncOnly
from holdfast.backends.conformance.values import Values
from holdfast.backends.conformance.words import WordsFound
from holdfast.backends.conformance.writes import Writes
from holdfast.testing import ShortConformance


class DailyConformance(SyncOnly, Reads, Values, Writes, WordsFound, Races, ChangeFeed, Lifetime, Histories):
    """All tests through the sync driver, but fewer of several processes: all of these run by night, and on SQLite."""

    histories = 6
    kills = 1
    watched = 15

    test_of_processes_that_create_one_key_one_wins = Processes.test_of_processes_that_create_one_key_one_wins
    test_what_a_killed_process_was_acknowledged_is_there_and_whole = (
        Processes.test_what_a_killed_process_was_acknowledged_is_there_and_whole
    )


class WrappedConformance(SyncOnly, Histories, Lifetime):
    """For what stands before stores that pass all tests, such as a cache or a pooler: whatever it could get wrong.

    How values are kept and ordered is up to the stores behind it; random histories have the odd ones.
    """

    histories = ShortConformance.histories
    kills = ShortConformance.kills
    watched = ShortConformance.watched

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
