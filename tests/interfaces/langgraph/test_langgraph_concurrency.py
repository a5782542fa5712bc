"""One saver, and copies of it, used by many threads and event loops at a time."""

from __future__ import annotations

import asyncio
import copy
import operator
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.graph import START
from typing_extensions import TypedDict

from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.savers import HOLDFAST, OTHERS, holdfast_saver
from tests.interfaces.langgraph.sessions import Session, on
from tests.support.nightly import mostly_nightly

THREADS = 8
LOOPS = 3
TURNS = 2

building = threading.Lock()
"""Python 3.11 cannot parse in several threads: "AST constructor recursion depth mismatch", now and then."""


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int


@pytest.fixture(params=mostly_nightly(HOLDFAST, daily=["sqlite"]))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast_saver(request.param, tmp_path) as opened:
        yield opened


def graph_on(saver: HoldfastSaver, *, asynchronous: bool) -> Any:
    def says(name: str) -> Callable[[Log], Log]:
        return lambda state: {"log": [f"{name} {len(state['log'])}"], "n": state.get("n", 0) + 1}

    session = Session(saver, asynchronous=asynchronous)
    edges = ((START, "a"), ("a", "b"), ("b", "c"))
    with building:
        return session.graph(Log, {name: says(name) for name in "abc"}, edges)


def expected(thread: str) -> list[str]:
    log: list[str] = []
    for turn in range(TURNS):
        log.append(f"{thread} turn {turn}")
        for name in "abc":
            log.append(f"{name} {len(log)}")
    return log


def take_turns(saver: HoldfastSaver, thread: str) -> list[str]:
    """Run a graph a few times, in a thread of its own, and return all that it logged."""
    graph = graph_on(saver, asynchronous=False)
    log: list[str] = []
    for turn in range(TURNS):
        log = graph.invoke({"log": [f"{thread} turn {turn}"]}, on(thread))["log"]
    assert graph.get_state(on(thread)).values["log"] == log
    return log


async def take_turns_together(saver: HoldfastSaver, threads: list[str]) -> list[list[str]]:
    graph = graph_on(saver, asynchronous=True)

    async def one(thread: str) -> list[str]:
        for turn in range(TURNS):
            await graph.ainvoke({"log": [f"{thread} turn {turn}"]}, on(thread))
        state = await graph.aget_state(on(thread))
        log: list[str] = state.values["log"]
        return log

    return await asyncio.gather(*map(one, threads))


def copies_of(saver: HoldfastSaver) -> list[HoldfastSaver]:
    """The saver itself and what LangGraph may make of it."""
    allowing = saver.with_allowlist([("some.module", "SomeClass")])
    assert isinstance(allowing, HoldfastSaver)
    return [saver, copy.copy(saver), allowing, copy.copy(copy.copy(saver))]


@pytest.mark.nightly
@pytest.mark.parametrize("saver", mostly_nightly([*HOLDFAST, *OTHERS], daily=("postgres",)), indirect=True)
def test_threads_and_event_loops(saver: HoldfastSaver) -> None:
    savers = copies_of(saver)
    alone = [f"alone {number}" for number in range(THREADS)]
    together = [[f"loop {loop} thread {number}" for number in range(3)] for loop in range(LOOPS)]
    with ThreadPoolExecutor(THREADS + LOOPS) as pool:
        looping = [
            pool.submit(asyncio.run, take_turns_together(savers[number % 4], names))
            for number, names in enumerate(together)
        ]
        running = [pool.submit(take_turns, savers[number % 4], name) for number, name in enumerate(alone)]
        logs = [each.result() for each in running]
        looped = [each.result() for each in looping]
    assert logs == [expected(name) for name in alone]
    assert looped == [[expected(name) for name in names] for names in together]
    graph = graph_on(saver, asynchronous=False)
    for name in [*alone, *(name for names in together for name in names)]:
        history = list(graph.get_state_history(on(name)))
        assert len(history) == TURNS * 5, name
        parents = [state.parent_config and state.parent_config["configurable"]["checkpoint_id"] for state in history]
        ids = [state.config["configurable"]["checkpoint_id"] for state in history]
        assert parents == [*ids[1:], None], "the thread has branched, or lost a step"


def test_one_saver_in_several_event_loops_in_turn(saver: HoldfastSaver) -> None:
    for number in range(3):
        names = [f"loop {number} thread {each}" for each in range(3)]
        assert asyncio.run(take_turns_together(saver, names)) == [expected(name) for name in names]
    assert take_turns(saver, "without a loop") == expected("without a loop")


def watched(saver: HoldfastSaver) -> tuple[HoldfastSaver, list[str]]:
    """A copy of a saver that notes the id of each checkpoint once it is told to be saved."""
    acknowledged: list[str] = []

    class Watched(HoldfastSaver):
        def put(self, *arguments: Any, **named: Any) -> Any:
            config = HoldfastSaver.put(self, *arguments, **named)
            acknowledged.append(config["configurable"]["checkpoint_id"])
            return config

        async def aput(self, *arguments: Any, **named: Any) -> Any:
            config = await HoldfastSaver.aput(self, *arguments, **named)
            acknowledged.append(config["configurable"]["checkpoint_id"])
            return config

    return Watched(saver.store), acknowledged


@pytest.mark.parametrize("called", ["sync", "async"])
def test_two_runs_on_one_thread(saver: HoldfastSaver, called: str) -> None:
    saver, acknowledged = watched(saver)
    runs = 4

    together = threading.Barrier(runs)

    def run_in_a_thread(number: int) -> Any:
        graph = graph_on(saver, asynchronous=False)
        together.wait(timeout=120)
        return graph.invoke({"log": [f"run {number}"]}, on("shared"))

    async def run_all() -> list[Any]:
        graph = graph_on(saver, asynchronous=True)
        return await asyncio.gather(
            *(graph.ainvoke({"log": [f"run {number}"]}, on("shared")) for number in range(runs))
        )

    for _ in range(3):
        if called == "async":
            results = asyncio.run(run_all())
        else:
            with ThreadPoolExecutor(runs) as pool:
                results = list(pool.map(run_in_a_thread, range(runs)))
        for number, result in enumerate(results):
            assert f"run {number}" in result["log"]
            assert sorted(item[0] for item in result["log"][-3:]) == ["a", "b", "c"]
    assert len(acknowledged) == len(set(acknowledged)) == 3 * runs * 5
    listed = {each.checkpoint["id"]: each for each in saver.list(on("shared"))}
    assert listed.keys() == set(acknowledged)
    for id in acknowledged:
        found = saver.get_tuple(on("shared", checkpoint_id=id))
        assert found is not None, "a checkpoint that was acknowledged is gone"
        assert found.checkpoint == listed[id].checkpoint
        parent = found.parent_config
        assert parent is None or parent["configurable"]["checkpoint_id"] in listed
