"""A thread of 10,000 messages: what one more message costs, and what loading costs a process that has just started."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.langgraph_checks import check_messages, check_saver
from benchmarks.langgraph_cold import Load, load_cold
from benchmarks.langgraph_log import counted
from benchmarks.langgraph_savers import MEMORY, ON_DISK, OURS, REFERENCE, SAVERS, SQLITE, Saver, disk
from benchmarks.langgraph_work import Line, chat
from benchmarks.measure import Cost, Figure, Result, Row, cost, turns, typical
from benchmarks.store_cases import folder

_MESSAGES = 10_000
_APPENDS = 30
_COUNTED = 3
_LOADS = 5


class _Thread:
    """A thread that was given its messages in a few puts, and gets the last ones one by one."""

    def __init__(self, saver: Saver) -> None:
        self.saver = saver
        self.messages = chat(_MESSAGES // 2 + _APPENDS)
        self._line = Line(saver, "long")
        self.length = 0
        for length in range(500, _MESSAGES - _APPENDS, 500):
            self._put(length)
        self._put(_MESSAGES - _APPENDS)

    def _put(self, length: int) -> None:
        self._line.put({"messages": self.messages[:length]}, "messages")
        self.length = length

    def append(self) -> Cost:
        """What a put of one message more takes; making its arguments is not counted."""
        self.length += 1
        put = self._line.next({"messages": self.messages[: self.length]}, "messages")
        return cost(lambda: self.saver.put(*put))

    def check(self) -> None:
        found = self.saver.get_tuple(self._line.config)
        assert found is not None
        check_messages(found.checkpoint["channel_values"]["messages"], self.messages[: self.length])


def thread_of_10000_messages() -> Result:
    """One message more in a thread of 10,000, and loading it in a new process"""
    with folder() as place:
        paths = {name: f"{place}/{name}.db" for name in SAVERS if name != REFERENCE}
        commits: dict[str, float] = {}
        with ExitStack() as stack:
            savers = {name: stack.enter_context(SAVERS[name](path)) for name, path in paths.items()}
            for saver in savers.values():
                check_saver(saver)
            threads = {name: _Thread(saver) for name, saver in savers.items()}
            taken: dict[str, list[Cost]] = {name: [] for name in threads}
            for name in turns(threads, _APPENDS):
                taken[name].append(threads[name].append())
            for thread in threads.values():
                thread.check()
            for name, thread in threads.items():
                if name in ON_DISK:
                    with counted(paths[name]) as count:
                        for _ in range(_COUNTED):
                            thread.append()
                    commits[name] = count.commits / _COUNTED
        puts = {name: typical(found) for name, found in taken.items()}
        slowest = {name: max(each.wall for each in found) for name, found in taken.items()}
        sizes = {name: disk(path) for name, path in paths.items() if name in ON_DISK}
        loads: dict[str, list[Load]] = {name: [] for name in sizes}
        for name in turns(loads, _LOADS):
            loads[name].append(load_cold(name, paths[name], "long"))
        assert len({load[2:] for found_loads in loads.values() for load in found_loads}) == 1, "not the same found"
    best = {name: min(found_loads) for name, found_loads in loads.items()}
    return Result(
        [
            Figure(
                f"10,000 messages: put of one more, {theirs} / Holdfast",
                puts[theirs].wall / puts[OURS].wall,
                "x",
                floor,
                None,
                f"{puts[theirs].wall:.1f} ms against {puts[OURS].wall:.1f} ms;"
                f" the slowest {slowest[theirs]:.0f} against {slowest[OURS]:.0f}",
                goal,
            )
            for theirs, floor, goal in ((SQLITE, 5, 10), (MEMORY, 3, None))
        ]
        + [
            Figure(
                "10,000 messages: cold load, SqliteSaver / Holdfast",
                best[SQLITE].wall / best[OURS].wall,
                "x",
                1.3,
                None,
                f"{best[SQLITE].wall:.0f} ms against {best[OURS].wall:.0f} ms",
                goal=1.5,
            )
        ],
        [
            Row("10,000 messages, put of one more", name, *each, commits.get(name), sizes.get(name))
            for name, each in puts.items()
        ]
        + [Row("10,000 messages, cold load", name, each.wall, each.cpu) for name, each in best.items()],
    )


CASES = (thread_of_10000_messages,)
