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


class DailyConformance(SyncOnly, Reads, Values, Writes, WordsFound, Races, ChangeFeed, Lifetime, Histories):
    """All tests through the sync driver, but fewer of several processes: all of these run by night, and on SQLite."""

    histories = 6
    kills = 1
    watched = 15

    test_of_processes_that_create_one_key_one_wins = Processes.test_of_processes_that_create_one_key_one_wins
    test_what_a_killed_process_was_acknowledged_is_there_and_whole = (
        Processes.test_what_a_killed_process_was_acknowledged_is_there_and_whole
    )
