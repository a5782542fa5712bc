"""The figures that users were promised, one line for each, with its ceiling.

Cached reads, isolation checks, and what it takes to serialize an agent are measured where their cases are: `state`,
`state_checks` and `cases`.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

import holdfast
from benchmarks.measure import Figure, Job, in_turns, missing, percentiles, turns
from benchmarks.servers import STORES, Missing
from holdfast.engine.model.scopes import check_key
from holdfast.hooks import AddAuditFields, CountChanges, Validate
from holdfast.langgraph import HoldfastSaver

_VALUE = {"status": "working", "plan": ["search", "read", "answer"], "budget": 12.5}
_MODEL_SECONDS = 0.3
_TURNS = 6
_MEGABYTES = 32
_PEAK = pathlib.Path("/proc/self/clear_refs")


def typical_write_and_key() -> list[Figure]:
    """A durable set of a key, and what the check of a key takes of it"""
    with tempfile.TemporaryDirectory() as name, holdfast.open(f"sqlite:///{name}/state.db") as store:
        state = store.state(agent="researcher")
        times = percentiles({"set": lambda: state.set("plan", _VALUE)}, 300)["set"]
    keys = [f"research/plans/{number}" for number in range(100)]
    best = in_turns({"key": lambda: [check_key(key) for key in keys]})
    return [
        Figure("promise: a durable write", times[len(times) // 2] / 1000, "ms", ceiling=10),
        Figure("promise: handling of a key", best["key"] * 10, "µs", ceiling=100),
    ]


def no_hook_registered() -> list[Figure]:
    """A set with no hook registered, beside one without the layer of hooks"""
    with holdfast.open("memory://") as plain, holdfast.open("memory://") as hooked:
        hooked.hooks.add(CountChanges(), "state.*")
        hooked.hooks.remove(hooked.hooks.list()[0].name)
        jobs: dict[str, Job] = {}
        for name, store in (("plain", plain), ("hooked", hooked)):
            state = store.state(agent="researcher")
            state.batch({f"key {number}": _VALUE for number in range(100)})
            jobs[name] = partial(_set_some, state)
        best = in_turns(jobs, rounds=20)
    note = f"{best['hooked'] * 10:.0f} us against {best['plain'] * 10:.0f}"
    ratio = best["hooked"] / best["plain"]
    return [Figure("promise: a set with no hook registered / without hooks", ratio, "x", None, 1.1, note, goal=1.02)]


def _set_some(state: Any) -> None:
    for number in range(100):
        state.set(f"key {number}", _VALUE)


class _State(TypedDict):
    question: str
    answer: str


def _agent(saver: HoldfastSaver | None, name: str) -> Callable[[], object]:
    """Return a function that makes one turn of an agent whose model takes 300 ms."""

    def answer(state: _State) -> dict[str, str]:
        time.sleep(_MODEL_SECONDS)
        return {"answer": state["question"].upper() * 50}

    builder = StateGraph(_State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": name}}
    return lambda: graph.invoke({"question": "what is to be done?", "answer": ""}, config)


def persistence_of_an_agent() -> list[Figure]:
    """What persistence adds to an agent whose model takes 300 ms: nothing else, with hooks, with everything"""
    absent = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        agents = {"no saver": _agent(None, "none")}
        for kind in ("plain", "hooks", "everything"):
            project = kind == "everything"
            store = stack.enter_context(holdfast.open(f"sqlite:///{name}/{kind}.db", project=project))
            if kind != "plain":
                for hook in (Validate(max_bytes=1 << 20), AddAuditFields({"team": "search"}), CountChanges()):
                    store.hooks.add(hook, "checkpoint.save")
            # What an identity does is audited.
            agents[kind] = _agent(
                HoldfastSaver(store.as_identity(agent="researcher") if kind == "everything" else store), kind
            )
        try:
            place = stack.enter_context(STORES["postgresql"](None))
            agents["on PostgreSQL"] = _agent(
                HoldfastSaver(stack.enter_context(holdfast.open(place.url, **place.options))), "on PostgreSQL"
            )
        except Missing as why:
            absent.append(missing("promise: all persistence on PostgreSQL, more of an agent's run", why))
        spent: dict[str, list[float]] = {kind: [] for kind in agents}
        for turn in agents.values():
            turn()
        for kind in turns(agents, _TURNS):
            start = time.perf_counter()
            agents[kind]()
            spent[kind].append(time.perf_counter() - start)
    taken = {kind: sorted(each)[len(each) // 2] for kind, each in spent.items()}

    def more(what: str, one: str, other: str, ceiling: float) -> Figure:
        percent = 100 * (taken[one] / taken[other] - 1)
        note = f"{taken[one] * 1000:.0f} ms against {taken[other] * 1000:.0f} ms a turn"
        return Figure(f"promise: {what}, more of an agent's run", percent, "%", ceiling=ceiling, note=note)

    return [
        more("hooks", "hooks", "plain", 2),
        more("audit, hooks and readable rows", "everything", "plain", 5),
        more("all persistence", "everything", "no saver", 5),
        *(absent or [more("all persistence on PostgreSQL", "on PostgreSQL", "no saver", 5)]),
    ]


def memory_of_a_state() -> list[Figure]:
    """The memory that saving and reading a state takes, beside its size: in a process of its own"""
    if not _PEAK.exists():
        return [missing("promise: memory of a state while it is saved", "there is no /proc")]
    figures = []
    with tempfile.TemporaryDirectory() as name:
        for kind in ("messages", "text", "entries"):
            for what in ("saved", "saved again", "read"):
                ran = subprocess.run(
                    [sys.executable, "-c", _CHILD, f"{name}/{kind}.db", kind, what, str(_MEGABYTES)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                figures.append(
                    Figure(
                        f"promise: memory while {kind} are {what} / their size",
                        float(ran.stdout) / _MEGABYTES,
                        "x",
                        ceiling=4,
                        note=f"{_MEGABYTES} MB",
                    )
                )
    return figures


_CHILD = """
import gc, pathlib, sys
import holdfast

path, kind, what, size = *sys.argv[1:4], int(sys.argv[4]) << 20


def resident(field):
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


store = holdfast.open(f"sqlite:///{path}")
if what != "read":
    one = 1 << 20 if kind == "text" else 2000
    values = [f"{number:09} " * (one // 10) for number in range(size // one)]
    if kind == "messages":
        state = {"messages": [{"role": "user", "content": each} for each in values], "turn": 1}
    else:
        state = {f"{kind} {number}": each for number, each in enumerate(values)} | {"turn": 1}
        state = {"memory": state, "turn": 1} if kind == "entries" else state
    del values
store.thread("warm").put({"messages": ["a"]})
store.thread("warm").get()
if what == "saved again":
    store.thread("large").put(state)
    state["turn"] = 2
gc.collect()
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
if what != "read":
    store.thread("large").put(state)
else:
    state = store.thread("large").get()
print(resident("VmHWM") - before)
"""


CASES = (typical_write_and_key, no_hook_registered, persistence_of_an_agent, memory_of_a_state)
