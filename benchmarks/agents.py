"""Agents that live long: whether the last transition costs what the first did, and what an agent costs that is kept
nowhere.

What is compared is processor time, where other work of the machine would drown it; else the best of several rounds in
which the candidates take turns.
"""

from __future__ import annotations

import json
import pathlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

import holdfast
from benchmarks.measure import Figure, Result, Table, in_turns, turns
from holdfast import snapshots
from holdfast.agents import Autosave, Machine, PersistentAgent

_TRANSITIONS = 10_000
_MESSAGES = 5_000
_BLOCK = 500
_ROUNDS = 10_000
_TEXT = "The agent said something that is about as long as what agents say in one line of a chat. " * 4


class Worker(PersistentAgent, name="worker-of-benchmarks"):
    """Works and rests."""

    done: int = 0
    notes: list[str] = []  # noqa: RUF012 - each agent gets its own
    machine = Machine("idle", "busy")
    machine.add("work", "idle", "busy", action="act")
    machine.add("rest", "busy", "idle")

    def act(self, _: Any) -> None:
        """On the way: a transition of two steps."""
        self.done += 1

    def note(self, text: str) -> str:
        """Something that a method does."""
        self.done += 1
        return text


class Plain:
    """The same without any of it."""

    def __init__(self) -> None:
        self.done = 0
        self.notes: list[str] = []

    def note(self, text: str) -> str:
        """Something that a method does."""
        self.done += 1
        return text


def _message(number: int) -> dict[str, Any]:
    return {"role": "user" if number % 2 else "assistant", "content": f"{number}: {_TEXT}"}


def _lived(agent: Worker, transitions: int, messages: int) -> dict[str, list[float]]:
    """Let an agent live; returns the processor time of each transition and of each message that it saved."""
    spent: dict[str, list[float]] = {"transition": [], "message": []}
    every = transitions // messages
    for number in range(transitions):
        start = time.process_time_ns()
        agent.transition("work" if agent.state == "idle" else "rest", {"n": number})
        spent["transition"].append((time.process_time_ns() - start) / 1000)
        if number % every == 0:
            start = time.process_time_ns()
            agent.conversation.append(_message(number))
            agent.save()
            spent["message"].append((time.process_time_ns() - start) / 1000)
    return spent


def agents_long_lives() -> Result:
    """An agent with 10,000 transitions and 5,000 messages: the first and the last of them, and bringing it back."""
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/agents.db"
        with holdfast.open(url, synchronous="normal") as store:  # what is flushed is not what grows
            short, long = (Worker().attach(store, id) for id in ("short", "long"))
            short.start()
            long.start()
            _lived(short, _BLOCK, _BLOCK // 2)  # so that what is learned once is learned
            spent = _lived(long, _TRANSITIONS, _MESSAGES)
            steps, size = long.version, sum(each.stat().st_size for each in pathlib.Path(name).iterdir())
        early, late = ({what: _mean(each, part) for what, each in spent.items()} for part in (1, -1))

        def restored(id: str) -> None:
            with holdfast.open(url) as fresh:
                agent = fresh.agents.restore(id)
                assert agent.conversation.last(20)

        back = in_turns({id: lambda id=id: restored(id) for id in ("short", "long")}, rounds=5, repeats=2)  # type: ignore[misc]
    note = "processor time, µs: {:.0f} and {:.0f}"
    rows = [
        (f"{start:,} to {start + _BLOCK:,}", [f"{sum(spent['transition'][start : start + _BLOCK]) / _BLOCK:.0f}"])
        for start in (*range(0, _TRANSITIONS - _BLOCK, 2000), _TRANSITIONS - _BLOCK)
    ]
    return Result(
        [
            Figure(
                "agents: the last 500 of 10,000 transitions / the first 500",
                late["transition"] / early["transition"],
                "x",
                ceiling=1.5,
                goal=1.1,
                note=note.format(late["transition"], early["transition"]),
            ),
            Figure(
                "agents: the last 500 of 5,000 messages, each saved / the first 500",
                late["message"] / early["message"],
                "x",
                ceiling=1.5,
                goal=1.1,
                note=note.format(late["message"], early["message"]),
            ),
            Figure(
                "agents: opening and restoring one with 5,000 messages / with 250",
                back["long"] / back["short"],
                "x",
                ceiling=2,
                goal=1.2,
                note=f"ms: {back['long']:.1f} and {back['short']:.1f}; its last 20 messages are read",
            ),
            Figure("agents: bytes stored for each step", size / steps, "B"),
        ],
        tables=[Table("Transitions of one agent, processor time, µs each", ["µs"], rows)],
    )


def _mean(spent: list[float], part: int) -> float:
    """Of the first 500, or the last."""
    block = spent[:_BLOCK] if part > 0 else spent[-_BLOCK:]
    return sum(block) / len(block)


def agents_not_kept() -> list[Figure]:
    """An agent that is attached to no store, beside a plain class."""
    text = "x"

    def made(kind: type[Any]) -> Callable[[], object]:
        return lambda: [kind() for _ in range(_ROUNDS)]

    def made_and_used(kind: type[Any]) -> Callable[[], object]:
        return lambda: [kind().notes for _ in range(_ROUNDS)]

    def used(one: Any) -> dict[str, Callable[[], object]]:
        def attribute() -> None:
            for number in range(_ROUNDS):
                one.done = number
                one.done  # noqa: B018 - reading it is what is measured

        def method() -> None:
            for _ in range(_ROUNDS):
                one.note(text)

        return {"attributes": attribute, "methods": method}

    plain, agent = used(Plain()), used(Worker())
    jobs = {f"plain {what}": job for what, job in plain.items()} | {f"kept {what}": job for what, job in agent.items()}
    for who, kind in (("plain", Plain), ("kept", Worker)):
        jobs |= {f"{who} making": made(kind), f"{who} using": made_and_used(kind)}
    found = in_turns(jobs, rounds=15, repeats=2)

    def figure(what: str, name: str, ceiling: float, goal: float) -> Figure:
        times = found[f"kept {what}"], found[f"plain {what}"]
        note = "ns: {:.0f} and {:.0f}".format(*(each * 1e6 / _ROUNDS for each in times))
        return Figure(
            f"agents: {name} of one that is not attached / of a plain class",
            times[0] / times[1],
            "x",
            ceiling=ceiling,
            goal=goal,
            note=note,
        )

    return [
        figure("attributes", "setting and getting an attribute", 1.2, 1.05),
        figure("methods", "calling a method", 1.2, 1.05),
        figure("making", "making", 2, 1.05),
        figure("using", "making, and a list of its own that is first asked for,", 4, 1.05),
    ]


def agents_saved_by_themselves() -> list[Figure]:
    """What auto-save takes of an agent's loop: telling of a change, taking the state, the longest gap."""
    with tempfile.TemporaryDirectory() as name, holdfast.open(f"sqlite:///{name}/agents.db") as store:
        never = Worker().attach(store, "never")
        slow = Autosave(interval=3600, changes=10**9)
        told = Worker().attach(store, "told", autosave=slow)
        many = Worker().attach(store, "many")
        for each in (never, told, many):
            each.conversation.extend(_message(number) for number in range(_MESSAGES if each is many else 1))
            each.save()
        found = in_turns(
            {
                "never": lambda: _changed(never),
                "told": lambda: _changed(told),
                "few": lambda: [told.persister.capture() for _ in range(100)],
                "many": lambda: [many.persister.capture() for _ in range(100)],
            }
        )
        gaps = _gaps(store)
    return [
        Figure("agents: changed(), not saved by itself", found["never"], "µs"),
        Figure("agents: changed(), saved by itself", found["told"], "µs", ceiling=20),
        Figure(
            "agents: taking the state with 5,000 messages / with 1",
            found["many"] / found["few"],
            "x",
            ceiling=1.5,
            goal=1.1,
            note=f"µs: {found['many'] * 10:.0f} and {found['few'] * 10:.0f}",
        ),
        Figure(
            "agents: longest gap of a loop of 0.5 s, saved by itself",
            gaps["saved"],
            "ms",
            note=f"median of 5; {gaps['not saved']:.1f} ms if it is not saved",
        ),
    ]


def _changed(agent: Worker) -> None:
    for _ in range(1000):
        agent.mark_changed()


def _gaps(store: holdfast.Store) -> dict[str, float]:
    """The longest time between two rounds of an agent's loop, in milliseconds: of several runs, the median."""
    found: dict[str, list[float]] = {"saved": [], "not saved": []}
    for number, who in enumerate(turns(found, 5)):
        autosave = Autosave(interval=0.02, changes=20) if who == "saved" else None
        agent = Worker().attach(store, f"loop-{number}", autosave=autosave)
        agent.save()
        longest, last = 0.0, time.perf_counter()
        end = last + 0.5
        while last < end:
            with agent.change_block():
                agent.done += 1
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        found[who].append(longest * 1000)
        agent.stop()
    return {who: median(each) for who, each in found.items()}


@contextmanager
def _rewritten(folder: pathlib.Path, messages: list[Any]) -> Iterator[Callable[[int], object]]:
    """The whole state as JSON, in one row."""
    connection = sqlite3.connect(folder / "plain.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE agents (id TEXT PRIMARY KEY, state TEXT NOT NULL)")
    said = [*messages]

    def save(number: int) -> None:
        said.append(_message(number))
        with connection:
            state = json.dumps({"state": "idle", "messages": said})
            connection.execute("INSERT OR REPLACE INTO agents VALUES ('long', ?)", (state,))

    yield save
    connection.close()


@contextmanager
def _saver(folder: pathlib.Path, messages: list[Any]) -> Iterator[Callable[[int], object]]:
    """LangGraph's saver, given the state of the agent as a channel."""
    said = [*messages]
    with SqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        config: Any = {"configurable": {"thread_id": "long", "checkpoint_ns": ""}}

        def save(number: int) -> None:
            nonlocal config
            said.append(_message(number))
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": said}
            checkpoint["channel_versions"] = {"messages": str(number)}
            config = saver.put(config, checkpoint, {"step": number}, {"messages": str(number)})

        yield save


def agents_beside_others() -> Result:
    """One message more to an agent with 5,000, saved: Holdfast, all of it as JSON, LangGraph's SqliteSaver."""
    messages = [_message(number) for number in range(_MESSAGES)]
    with (
        tempfile.TemporaryDirectory() as name,
        holdfast.open(f"sqlite:///{name}/agents.db") as store,
        _rewritten(pathlib.Path(name), messages) as rewritten,
        _saver(pathlib.Path(name), messages) as saver,
    ):
        agent = Worker().attach(store, "long")
        agent.conversation.extend(messages)
        agent.save()

        def save(number: int) -> None:
            agent.conversation.append(_message(number))
            agent.save()

        candidates = {"Holdfast": save, "JSON, rewritten": rewritten, "SqliteSaver": saver}
        number = iter(range(_MESSAGES, 10**9))
        found = in_turns(
            {who: lambda job=job: job(next(number)) for who, job in candidates.items()},  # type: ignore[misc]
            rounds=10,
            repeats=2,
        )
        frozen = _frozen(agent, store, pathlib.Path(name))
    ours = found["Holdfast"]
    return Result(
        [
            Figure(
                f"agents: a message more to 5,000, saved, {who} / Holdfast",
                found[who] / ours,
                "x",
                floor=floor,
                note=f"ms: {found[who]:.2f} and {ours:.2f}",
            )
            for who, floor in (("JSON, rewritten", 3.0), ("SqliteSaver", 3.0))
        ]
        + [Figure(f"agents: {what} with 5,000 messages", value, "ms") for what, value in frozen.items()]
    )


def _frozen(agent: Worker, store: holdfast.Store, folder: pathlib.Path) -> dict[str, float]:
    """Frozen into a file, and thawed as another."""
    file, number = folder / "long.hfsnap", iter(range(1000))

    def thawed() -> None:
        snapshots.restore(file, store=store, agent_id=f"copy-{next(number)}")

    return in_turns(
        {
            "snapshot of one": lambda: snapshots.snapshot(agent, file, overwrite=True),
            "restoring a snapshot of one": lambda: snapshots.restore(
                file, store=store, agent_id=f"copy-{next(number)}"
            ),
        },
        rounds=3,
        repeats=1,
    )


CASES = (agents_long_lives, agents_not_kept, agents_saved_by_themselves, agents_beside_others)
