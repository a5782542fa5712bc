"""Runs that are cancelled, and runs without asyncio inside an event loop."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START

from tests.interfaces.langgraph.savers import HOLDFAST, OTHERS, holdfast_saver
from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.sessions import Session, on

NODES = [f"node {number}" for number in range(8)]
EDGES = list(zip([START, *NODES], NODES, strict=False))


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *((kind, seed) for kind in HOLDFAST for seed in (1, 2)),
        *(pytest.param(kind, 4, marks=[] if kind == "postgres" else pytest.mark.nightly) for kind in OTHERS),
    ],
)
def test_a_cancelled_run_goes_on(kind: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        async with holdfast_saver(kind, tmp_path) as saver:
            graph = Session(saver, asynchronous=True).graph(Log, {name: says(name) for name in NODES}, EDGES)
            cancelled = 0
            for number in range(50):  # a run may end before it is cancelled
                cancelled += await run_one(saver, graph, on(f"t{number}"))
                if cancelled >= 3:
                    return
            raise AssertionError(f"only {cancelled} of 50 runs were cancelled")

    async def run_one(saver: Any, graph: Any, config: Any) -> int:
        """Run a graph to its end, cancelled again and again on the way. Returns how often."""
        cancelled = 0
        for _ in range(25 if kind in OTHERS else 100):
            begun = await saver.aget_tuple(config)
            running = asyncio.create_task(graph.ainvoke(None if begun else {"log": ["in"]}, config))
            if kind in OTHERS:
                await asyncio.sleep(chance.choice([0.0, 0.003, 0.01, 0.03]))  # a server takes its time
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            running.cancel()
            try:
                await running
            except asyncio.CancelledError:
                cancelled += 1
                # LangGraph leaves tasks behind that go on saving, if it is cancelled while it waits for them.
                while left := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(left)
                await check(graph, config)
            else:
                break
        begun = await saver.aget_tuple(config)
        await graph.ainvoke(None if begun else {"log": ["in"]}, config)
        assert (await graph.aget_state(config)).values == {"log": ["in", *NODES], "n": len(NODES)}
        return cancelled

    async def check(graph: Any, config: Any) -> None:
        """What is there is a whole line of checkpoints."""
        history = [state async for state in graph.aget_state_history(config)]
        for state in history:
            log = state.values.get("log", [])
            assert log == ["in", *NODES][: len(log)]
        ids = {state.config["configurable"]["checkpoint_id"] for state in history}
        parents = [state.parent_config for state in history if state.parent_config]
        assert all(parent["configurable"]["checkpoint_id"] in ids for parent in parents)

    asyncio.run(main())


@pytest.mark.parametrize("kind", HOLDFAST)
def test_without_asyncio_in_an_event_loop(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast_saver(kind, tmp_path) as saver:
            asynchronous = Session(saver, asynchronous=True).graph(Log, {"a": says("a")}, ((START, "a"),))
            graph = Session(saver, asynchronous=False).graph(Log, {"a": says("a")}, ((START, "a"),))
            assert graph.invoke({"log": ["one"]}, on("t")) == {"log": ["one", "a"], "n": 1}
            assert await asynchronous.ainvoke({"log": ["two"]}, on("t")) == {"log": ["one", "a", "two", "a"], "n": 2}
            assert graph.get_state(on("t")).values["n"] == 2
            assert len(list(saver.list(on("t")))) == 6

    asyncio.run(main())
