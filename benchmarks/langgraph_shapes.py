"""How costs grow: direct calls on threads of several lengths, and graphs that fan out to several widths."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack

from benchmarks.langgraph_checks import check_messages
from benchmarks.langgraph_log import counted
from benchmarks.langgraph_savers import ASYNC_SAVERS, ASYNC_SQLITE, ON_DISK, OURS, REFERENCE, SAVERS, SQLITE, Saver
from benchmarks.langgraph_work import Fan, Line, chat
from benchmarks.measure import Cost, Figure, Job, Meter, Result, Row, cost, costs, turns, typical
from benchmarks.store_cases import folder

_LENGTHS = (10, 100, 1000)
_WIDTHS = (1, 8, 64)
_CALLS = 30
_TURNS = 6
_COUNTED = 4
_FLOORS = {(1000, "put of one more"): 2.3, (1000, "get_tuple"): 4}


class _Thread:
    """A thread of some length, to which one message more is put again and again."""

    def __init__(self, saver: Saver, length: int) -> None:
        self.saver = saver
        self.messages = chat((length + _CALLS + _COUNTED) // 2 + 2)
        self.length = length
        self._line = Line(saver, f"{length} messages")
        self._line.put({"messages": self.messages[:length], "step": 0}, "messages", "step")

    def put(self) -> Cost:
        self.length += 1
        values = {"messages": self.messages[: self.length], "step": self.length}
        put = self._line.next(values, "messages", "step")
        return cost(lambda: self.saver.put(*put))

    def get(self) -> None:
        assert self.saver.get_tuple(self._line.config) is not None

    def check(self) -> None:
        found = self.saver.get_tuple(self._line.config)
        assert found is not None
        check_messages(found.checkpoint["channel_values"]["messages"], self.messages[: self.length])


def calls_on_threads_of_several_lengths() -> Result:
    """put and get_tuple on threads of 10, 100 and 1,000 messages"""
    figures, rows = [], []
    with folder() as place, ExitStack() as stack:
        paths = {name: f"{place}/{name}.db" for name in SAVERS}
        savers = {name: stack.enter_context(SAVERS[name](path)) for name, path in paths.items()}
        for length in _LENGTHS:
            threads = {name: _Thread(saver, length) for name, saver in savers.items()}
            taken: dict[str, list[Cost]] = {name: [] for name in threads}
            for name in turns(threads, _CALLS):
                taken[name].append(threads[name].put())
            puts = {name: typical(found) for name, found in taken.items()}
            gets = {name: typical(found) for name, found in costs(_gets(threads), _CALLS).items()}
            for name, thread in threads.items():
                if name != REFERENCE:
                    thread.check()
            commits = {name: _count(paths[name], thread.put) for name, thread in threads.items() if name in ON_DISK}
            for what, found in (("put of one more", puts), ("get_tuple", gets)):
                note = f"{found[SQLITE].wall:.2f} ms against {found[OURS].wall:.2f} ms"
                ratio = found[SQLITE].wall / found[OURS].wall
                floor = _FLOORS.get((length, what))
                figures.append(
                    Figure(f"{length} messages: {what}, SqliteSaver / Holdfast", ratio, "x", floor, note=note)
                )
                for name, each in found.items():
                    counts = commits.get(name) if found is puts else None
                    rows.append(Row(f"{length} messages, {what}", name, *each, counts))
    return Result(figures, rows)


def _gets(threads: dict[str, _Thread]) -> dict[str, Job]:
    return {name: thread.get for name, thread in threads.items()}


def _count(path: str, job: Job) -> float:
    with counted(path) as count:
        for _ in range(_COUNTED):
            job()
    return count.commits / _COUNTED


def graphs_that_fan_out() -> Result:
    """Graphs that send to 1, 8 and 64 parallel nodes, sync and async"""
    figures, rows = [], []
    with folder() as place:
        for width in _WIDTHS:
            for what, theirs, found, commits in (
                ("", SQLITE, *_fan_out(place, width)),
                (", async", ASYNC_SQLITE, *asyncio.run(_afan_out(place, width))),
            ):
                name = f"fan-out to {width}{what}"
                mine = found[OURS].wall - found[REFERENCE].wall
                other = found[theirs].wall - found[REFERENCE].wall
                note = f"{other:.2f} ms against {mine:.2f} ms, LangGraph's own {found[REFERENCE].wall:.2f} ms"
                figures.append(Figure(f"{name}: {theirs} adds / Holdfast adds", other / mine, "x", note=note))
                rows += [Row(f"{name}, per turn", who, *each, commits.get(who)) for who, each in found.items()]
    return Result(figures, rows)


def _fan_out(place: str, width: int) -> tuple[dict[str, Cost], dict[str, float]]:
    with ExitStack() as stack:
        paths = {name: f"{place}/{name} {width}.db" for name in SAVERS}
        fans = {name: Fan(stack.enter_context(SAVERS[name](path)), width) for name, path in paths.items()}
        jobs: dict[str, Job] = {name: fan.turn for name, fan in fans.items()}
        found = {name: typical(taken) for name, taken in costs(jobs, _TURNS).items()}
        for fan in fans.values():
            assert len(fan.graph.get_state(fan.config).values["found"]) == width * (_TURNS + 1)
        return found, {name: _count(paths[name], fan.turn) for name, fan in fans.items() if name in ON_DISK}


async def _afan_out(place: str, width: int) -> tuple[dict[str, Cost], dict[str, float]]:
    async with AsyncExitStack() as stack:
        paths = {name: f"{place}/{name} async {width}.db" for name in ASYNC_SAVERS}
        fans = {
            name: Fan(await stack.enter_async_context(ASYNC_SAVERS[name](path)), width) for name, path in paths.items()
        }
        taken: dict[str, list[Cost]] = {name: [] for name in fans}
        for fan in fans.values():
            await fan.aturn()  # fills caches
        for name in turns(fans, _TURNS):
            with Meter() as meter:
                await fans[name].aturn()
            taken[name].append(meter.cost)
        commits = {}
        for name, fan in fans.items():
            assert len((await fan.graph.aget_state(fan.config)).values["found"]) == width * (_TURNS + 1)
            if name in ON_DISK:
                with counted(paths[name]) as count:
                    for _ in range(_COUNTED):
                        await fan.aturn()
                commits[name] = count.commits / _COUNTED
        return {name: typical(found) for name, found in taken.items()}, commits


CASES = (calls_on_threads_of_several_lengths, graphs_that_fan_out)
