"""Graphs behave on a `HoldfastSaver` as they do on LangGraph's own savers, in all that can be seen."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from tests.langgraph.records import with_tuples_as_lists
from tests.langgraph.savers import HOLDFAST, OTHERS
from tests.langgraph.scenarios import (
    basics,
    commands,
    deltas,
    durability,
    functional,
    interrupts,
    subgraphs,
    travel,
    values,
)
from tests.langgraph.sessions import SCENARIOS, Noted, Session, finish, play, record_of

# Importing them made the scenarios known.
MODULES = (basics, commands, deltas, durability, functional, interrupts, subgraphs, travel, values)
NAMES = sorted(SCENARIOS)
CALLED = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def same(ours: list[Noted], theirs: list[Noted]) -> None:
    """Compare note by note, so that a failure shows the first difference and not two long records."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == other, f"note {number}: {other[0]}"
    assert len(ours) == len(theirs)


def test_every_module_has_scenarios() -> None:
    assert {function.__module__ for function in SCENARIOS.values()} == {module.__name__ for module in MODULES}


@functools.cache
def yardstick(name: str, kind: str, asynchronous: bool) -> list[Noted]:
    """What a scenario shows on a saver of LangGraph's that keeps everything in memory."""
    return record_of(name, kind, Path("unused"), asynchronous=asynchronous)


@pytest.mark.parametrize("kind", [*HOLDFAST, "serialized"])
@CALLED
@pytest.mark.parametrize("name", NAMES)
def test_as_in_memory(name: str, asynchronous: bool, kind: str, tmp_path: Path) -> None:
    ours = record_of(name, kind, tmp_path, asynchronous=asynchronous)
    if kind != "serialized":
        same(ours, yardstick(name, "exact", asynchronous))
    theirs = yardstick(name, "langgraph", asynchronous)
    same(with_tuples_as_lists(ours), with_tuples_as_lists(theirs))


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", ["a_subgraph_that_stops", "deltas_on_exit", "fan_out", "forks"])
def test_as_in_memory_on_every_store(name: str, kind: str, tmp_path: Path) -> None:
    asynchronous = name < "b" or name > "f"  # some in this way, some in the other
    same(record_of(name, kind, tmp_path, asynchronous=asynchronous), yardstick(name, "exact", asynchronous))


# SQLite's saver stores no answer that comes together with other writes, so that scenarios with several
# questions in a node look different on it.
@CALLED
@pytest.mark.parametrize("name", ["a_subgraph_that_stops", "deltas_on_exit", "fan_out", "forks", "messages", "streams"])
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


@pytest.mark.parametrize("fault", ["filter", "before", "limit", "writes", "parent", "metadata", "versions"])
def test_a_wrong_saver_is_found_out(fault: str) -> None:
    name = "join_of_parallel_nodes"
    record = finish(play(Session(Broken(fault), asynchronous=False), name))
    with pytest.raises(AssertionError):
        same(record, yardstick(name, "langgraph", False))
