"""Graphs behave on a `HoldfastSaver` as they do on LangGraph's own savers, in all that can be seen."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from tests.interfaces.langgraph.records import with_tuples_as_lists
from tests.interfaces.langgraph.savers import OTHERS
from tests.interfaces.langgraph.scenarios import (
    approvals,
    basics,
    channels,
    commands,
    created_agents,
    deltas,
    durability,
    functional,
    interrupts,
    map_reduce,
    memories,
    multi_agent,
    streaming,
    subgraphs,
    travel,
    values,
)
from tests.interfaces.langgraph.sessions import SCENARIOS, Noted, Session, finish, play, record_of
from tests.support.nightly import mostly_nightly

# Importing them made the scenarios known.
FEATURES = (basics, commands, deltas, durability, functional, interrupts, subgraphs, travel, values)
PROGRAMS = (approvals, channels, created_agents, map_reduce, memories, multi_agent, streaming)
"""Programs of the kinds that people publish."""
MODULES = (*FEATURES, *PROGRAMS)


MODULE_NAMES = [each.__name__.rpartition(".")[2] for each in MODULES]
BY_MODULE = pytest.mark.parametrize("module", MODULES, ids=MODULE_NAMES)
CALLED = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def same(ours: list[Noted], theirs: list[Noted]) -> None:
    """Compare note by note, so that a failure shows the first difference and not two long records."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == other, f"note {number}: {other[0]}"
    assert len(ours) == len(theirs)


def test_every_module_has_scenarios() -> None:
    assert {function.__module__ for function in SCENARIOS.values()} == {module.__name__ for module in MODULES}


def names_of(module: ModuleType) -> list[str]:
    """The scenarios of a module."""
    return sorted(name for name, function in SCENARIOS.items() if function.__module__ == module.__name__)


@functools.cache
def yardstick(name: str, kind: str, asynchronous: bool) -> list[Noted]:
    """What a scenario shows on a saver of LangGraph's that keeps everything in memory."""
    return record_of(name, kind, Path("unused"), asynchronous=asynchronous)


def compared(name: str, kind: str, folder: Path, *, asynchronous: bool) -> None:
    """Compare what a scenario shows on a store of a kind with what it shows on LangGraph's saver in memory."""
    folder.mkdir()
    ours = record_of(name, kind, folder, asynchronous=asynchronous)
    same(ours, yardstick(name, "exact", asynchronous))


@BY_MODULE
def test_as_in_memory(module: ModuleType, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, name in enumerate(names_of(module)[::9]):  # the others, and each in the other way: by night
        asynchronous = number % 2 == 1
        with subtests.test(name, asynchronous=asynchronous):
            compared(name, "sqlite", tmp_path / name, asynchronous=asynchronous)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@CALLED
@BY_MODULE
def test_as_in_memory_in_every_way(
    module: ModuleType, asynchronous: bool, kind: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in names_of(module):
        with subtests.test(name):
            compared(name, kind, tmp_path / name, asynchronous=asynchronous)


@pytest.mark.nightly
@CALLED
@pytest.mark.parametrize("module", PROGRAMS, ids=MODULE_NAMES[len(FEATURES) :])
def test_programs_as_in_memory_on_postgresql(
    module: ModuleType, asynchronous: bool, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in names_of(module):
        with subtests.test(name):
            compared(name, "postgres", tmp_path / name, asynchronous=asynchronous)


def exact_as_theirs(name: str, *, asynchronous: bool) -> None:
    """Compare what a scenario shows on the exact saver with what it shows on LangGraph's own."""
    exact, theirs = (yardstick(name, kind, asynchronous) for kind in ("exact", "langgraph"))
    same(with_tuples_as_lists(exact), with_tuples_as_lists(theirs))


@pytest.mark.nightly
@pytest.mark.parametrize("asynchronous", mostly_nightly([False, True], daily=[False]), ids=["sync", "async"])
@pytest.mark.parametrize("module", mostly_nightly(MODULES, daily=[basics]), ids=MODULE_NAMES)
def test_an_exact_saver_shows_what_langgraphs_own_does(
    module: ModuleType, asynchronous: bool, subtests: pytest.Subtests
) -> None:
    for name in names_of(module):
        with subtests.test(name):
            exact_as_theirs(name, asynchronous=asynchronous)


ON_EVERY_STORE = {"a_subgraph_that_stops": True, "deltas_on_exit": False, "fan_out": False, "forks": True}
"""Scenarios that are run on every store; and whether with asyncio."""


def on_every_store() -> list[Any]:
    """Each of these scenarios on each store: in the ordinary run, one on each of two servers."""
    cases = itertools.product(("memory", *OTHERS), ON_EVERY_STORE)
    return mostly_nightly(cases, daily=[("postgres", "fan_out"), ("redis", "deltas_on_exit")])


@pytest.mark.parametrize(("kind", "name"), on_every_store())
def test_as_in_memory_on_every_store(kind: str, name: str, tmp_path: Path) -> None:
    compared(name, kind, tmp_path / name, asynchronous=ON_EVERY_STORE[name])


# SQLite's saver stores no answer that comes together with other writes, so that scenarios with several
# questions in a node look different on it.
@pytest.mark.parametrize("asynchronous", mostly_nightly([False, True], daily=[True]), ids=["sync", "async"])
@pytest.mark.parametrize("name", mostly_nightly([*ON_EVERY_STORE, "messages", "streams"], daily=["messages"]))
def test_as_on_sqlite(name: str, asynchronous: bool, tmp_path: Path) -> None:
    ours = record_of(name, "sqlite", tmp_path, asynchronous=asynchronous)
    theirs = record_of(name, "theirs", tmp_path, asynchronous=asynchronous)
    same(with_tuples_as_lists(ours), with_tuples_as_lists(theirs))


class Broken(InMemorySaver):
    """Wrong in one of the ways that a saver can be wrong in."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        if self.fault in options:
            options[self.fault] = None
        yield from map(self.damaged, super().list(config, **options))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        return None if found is None else self.damaged(found)

    def damaged(self, found: CheckpointTuple) -> CheckpointTuple:
        if self.fault == "writes":
            return found._replace(pending_writes=(found.pending_writes or [])[::-1])
        if self.fault == "parent":
            return found._replace(parent_config=None)
        if self.fault == "metadata":
            return found._replace(metadata={**found.metadata, "step": 0})
        if self.fault == "versions":
            versions: ChannelVersions = dict.fromkeys(found.checkpoint["channel_versions"], f"{9:032}.0")
            return found._replace(checkpoint={**found.checkpoint, "channel_versions": versions})
        return found


def test_a_wrong_saver_is_found_out(subtests: pytest.Subtests) -> None:
    name = "join_of_parallel_nodes"
    for fault in ("filter", "before", "limit", "writes", "parent", "metadata", "versions"):
        with subtests.test(fault):
            record = finish(play(Session(Broken(fault), asynchronous=False), name))
            with pytest.raises(AssertionError):
                same(record, yardstick(name, "langgraph", False))
