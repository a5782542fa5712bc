"""32 at a time on one PostgreSQL server: threads and asyncio tasks, each with a graph and a thread of its own."""

from __future__ import annotations

import asyncio
import gc
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.runnables import RunnableConfig

from benchmarks import servers
from benchmarks.langgraph_checks import check_messages
from benchmarks.langgraph_savers import OURS, REFERENCE, Saver
from benchmarks.langgraph_work import Agent, Line, Put, chat
from benchmarks.measure import Cost, Figure, Meter, Result, Row, missing, turns
from benchmarks.server_savers import ASYNC, ASYNC_POSTGRES, POSTGRES, THREADED
from benchmarks.servers import Missing

_WIDTH = 32
_ROUNDS = 12
_REPEATS = 3

_SERVER_FLOOR = 1.5
"""Of what the server's processes spend."""


def _threads(name: str, url: str) -> Cost:
    with THREADED[name](url) as saver, ThreadPoolExecutor(_WIDTH) as workers:
        agents = [Agent(saver, f"agent {number}", _ROUNDS) for number in range(_WIDTH)]

        def work(agent: Agent, rounds: int) -> None:
            for _ in range(rounds):
                agent.turn()

        list(workers.map(lambda agent: work(agent, 1), agents))  # opens connections, fills caches
        gc.collect()
        with Meter() as meter:
            list(workers.map(lambda agent: work(agent, _ROUNDS - 1), agents))
        for agent in agents:
            found = agent.graph.get_state(agent.config).values["messages"]
            if name == REFERENCE:
                assert found == agent.messages
            else:
                check_messages(found, agent.messages)
    return meter.cost


async def _tasks(name: str, url: str) -> Cost:
    async with ASYNC[name](url) as saver:
        agents = [Agent(saver, f"agent {number}", _ROUNDS) for number in range(_WIDTH)]

        async def work(agent: Agent, rounds: int) -> None:
            for _ in range(rounds):
                await agent.aturn()

        await asyncio.gather(*(work(agent, 1) for agent in agents))
        gc.collect()
        with Meter() as meter:
            await asyncio.gather(*(work(agent, _ROUNDS - 1) for agent in agents))
        for agent in agents:
            state = await agent.graph.aget_state(agent.config)
            if name == REFERENCE:
                assert state.values["messages"] == agent.messages
            else:
                check_messages(state.values["messages"], agent.messages)
    return meter.cost


class _Calls:
    """The calls of such a graph, made by hand: LangGraph's own time is left out."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver
        messages = chat(_ROUNDS + 2)
        self._states: list[dict[str, Any]] = [
            {"messages": messages[: 2 * turn + 2], "plan": f"answer {turn}"} for turn in range(_ROUNDS)
        ]
        lines = [Line(saver, f"agent {number}") for number in range(_WIDTH)]
        self.plans = [[(line.next(state, *state), line.config) for state in self._states] for line in lines]

    def work(self, plan: list[tuple[Put, RunnableConfig]]) -> None:
        for turn, (put, stored) in enumerate(plan):
            self._saver.put(*put)
            self._saver.put_writes(stored, [("messages", self._states[turn]["messages"][-1:])], f"task {turn}")
            assert self._saver.get_tuple({"configurable": {**stored["configurable"]}}) is not None

    async def awork(self, plan: list[tuple[Put, RunnableConfig]]) -> None:
        for turn, (put, stored) in enumerate(plan):
            await self._saver.aput(*put)
            await self._saver.aput_writes(stored, [("messages", self._states[turn]["messages"][-1:])], f"task {turn}")
            assert await self._saver.aget_tuple({"configurable": {**stored["configurable"]}}) is not None


def _thread_calls(name: str, url: str) -> Cost:
    with THREADED[name](url) as saver, ThreadPoolExecutor(_WIDTH) as workers:
        calls = _Calls(saver)
        gc.collect()
        with Meter() as meter:
            list(workers.map(calls.work, calls.plans))
    return meter.cost


async def _task_calls(name: str, url: str) -> Cost:
    async with ASYNC[name](url) as saver:
        calls = _Calls(saver)
        gc.collect()
        with Meter() as meter:
            await asyncio.gather(*map(calls.awork, calls.plans))
    return meter.cost


def _run_tasks(name: str, url: str) -> Cost:
    return asyncio.run(_tasks(name, url))


def _run_task_calls(name: str, url: str) -> Cost:
    return asyncio.run(_task_calls(name, url))


def _ratio(what: str, theirs: float, ours: float, done: int, floor: float, goal: float) -> Figure:
    note = f"{theirs / done:.2f} ms against {ours / done:.2f} ms"
    return Figure(what, theirs / ours, "x", floor, None, note, goal)


def many_at_a_time_on_postgres() -> Result:
    """32 threads, and 32 asyncio tasks, on one PostgreSQL server"""
    try:
        server = servers.postgres()
    except Missing as why:
        return Result([missing("32 at a time on PostgreSQL", why)])
    figures: list[Figure] = []
    rows: list[Row] = []
    for what, each, run, theirs, floor, cpu_floor, cpu_goal in (
        ("32 threads, graphs", "turn", _threads, POSTGRES, 0.8, 0.65, 1),
        ("32 tasks, graphs", "turn", _run_tasks, ASYNC_POSTGRES, 1.6, 1.2, 1.5),
        ("32 threads, calls", "call", _thread_calls, POSTGRES, 1.1, 0.9, 1),
        ("32 tasks, calls", "call", _run_task_calls, ASYNC_POSTGRES, 1.6, 1.8, 1.5),
    ):
        done = _WIDTH * (_ROUNDS - 1 if each == "turn" else 3 * _ROUNDS)
        taken: dict[str, list[Cost]] = {}
        spent: dict[str, list[float]] = {}
        for name in turns((OURS, theirs, REFERENCE), _REPEATS):
            url, before = server.fresh(), servers.postgres_cpu()
            taken.setdefault(name, []).append(run(name, url))
            after = servers.postgres_cpu()
            if before is not None and after is not None:
                spent.setdefault(name, []).append(after - before)
        wall = {name: statistics.median(found.wall for found in found_) for name, found_ in taken.items()}
        rates = {name: done / wall[name] * 1000 for name in wall}
        note = (
            f"{rates[OURS]:,.0f} {each}s a second against {rates[theirs]:,.0f}; without a store {rates[REFERENCE]:,.0f}"
        )
        figures.append(Figure(f"{what}: Holdfast / {theirs}", rates[OURS] / rates[theirs], "x", floor, None, note, 3))
        cpu = {name: min(found.cpu for found in found_) for name, found_ in taken.items()}
        figures.append(
            _ratio(f"{what}: client CPU, {theirs} / Holdfast", cpu[theirs], cpu[OURS], done, cpu_floor, cpu_goal)
        )
        if spent:
            used = {name: min(found) for name, found in spent.items()}
            name = f"{what}: server CPU, {theirs} / Holdfast"
            figures.append(_ratio(name, used[theirs], used[OURS], done, _SERVER_FLOOR, 2))
        for name, found_ in taken.items():
            middle = statistics.median(found.cpu for found in found_)
            rows.append(Row(f"{what} on PostgreSQL, per {each}", name, wall[name] / done, middle / done))
    return Result(figures, rows)


CASES = (many_at_a_time_on_postgres,)
