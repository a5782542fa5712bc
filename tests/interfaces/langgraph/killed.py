"""Run by the tests of kills: a graph that tells which node it starts, and which writes are saved.

Each attempt is a process of its own. It is forked, since importing LangGraph takes longer than the graph.
"""

from __future__ import annotations

import operator
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START
from langgraph.types import Send
from typing_extensions import TypedDict

from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.sessions import Session, on
from tests.support.kills import count_kill

ROUNDS = 6
JOBS = 3


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    round: int


PHASES = ("begins", "starts\tplan", "saved\tplan", "starts\tjob", "saved\tjob", "starts\tend", "saved\tend")
"""How the lines begin that a graph tells: it may be killed right after each."""


class Fate:
    """Where a process ends: right after it told the first line that begins so."""

    phase = ""


def tell(*words: str) -> None:
    # One write, so that a line is told whole or is cut off at its end.
    line = "\t".join(words)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    if Fate.phase and line.startswith(Fate.phase):
        os.kill(os.getpid(), signal.SIGKILL)


class Telling(HoldfastSaver):
    """Tells of each task whose writes were saved."""

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, *path: str) -> None:
        super().put_writes(config, writes, task_id, *path)
        for channel, value in writes:
            if channel == "log":
                tell("saved", *value)


def work(name: str, seconds: float = 0.003) -> list[str]:
    tell("starts", name)
    time.sleep(seconds)
    return [name]


def plan(state: Log) -> Log:
    number = state.get("round", 0) + 1
    return {"log": work(f"plan {number}"), "round": number}


def do(job: dict[str, Any]) -> Log:
    # Some end long before others, so that many kills fall between the first writes that are saved and the last.
    return {"log": work(f"job {job['round']}.{job['job']}", 0.002 + 0.02 * job["job"])}


def conclude(state: Log) -> Log:
    return {"log": work(f"end {state['round']}")}


def graph_on(saver: HoldfastSaver) -> Any:
    return Session(saver, asynchronous=False).graph(
        Log,
        {"plan": plan, "do": do, "conclude": conclude},
        ((START, "plan"), ("do", "conclude")),
        branches={
            "plan": lambda state: [Send("do", {"round": state["round"], "job": job}) for job in range(JOBS)],
            "conclude": lambda state: END if state["round"] >= ROUNDS else "plan",
        },
    )


def attempt(url: str, thread: str) -> None:
    """Begin the graph of a thread, or go on with it, to its end."""
    store = HoldfastSaver.from_conn_string(url)
    with store, Telling(store.store) as saver:
        begun = saver.get_tuple(on(thread)) is not None
        tell("begins", "again" if begun else "anew")
        graph_on(saver).invoke(None if begun else {"log": ["in"]}, on(thread), durability="sync")
    tell("ends")


def attempt_and_kill(url: str, thread: str, after: float | None = None, phase: str = "") -> str:
    """Make an attempt in another process, and kill it after so many seconds, or in a phase. Returns what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, sys.stdout.fileno())
        Fate.phase = phase
        status = 1
        try:
            attempt(url, thread)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.readline()
        if after is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        said += told.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == -signal.SIGKILL or (code == 0 and not phase), f"it ended with {code}, and told {said!r}"
    count_kill(code != 0)
    return said


def main(url: str, thread: str, seed: int, attempts: int) -> None:
    """Kill a graph at random moments, in so many attempts, and then let it run to its end."""
    chance = random.Random(seed)
    longest = 0.1
    for left in reversed(range(attempts)):
        said = attempt_and_kill(url, thread, chance.uniform(0, longest) if left else None)
        sys.stdout.write(said)
        if "saved" not in said:
            longest *= 1.5  # a slow store: give it the time to get anywhere
        if said.endswith("ends\n"):
            return
        tell("", "killed")


def in_every_phase(url: str, thread: str) -> None:
    """Kill a graph once in every phase, and then let it run to its end."""
    for phase in PHASES:
        sys.stdout.write(attempt_and_kill(url, thread, phase=phase))
        tell("", "killed")
    sys.stdout.write(attempt_and_kill(url, thread))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        in_every_phase(*sys.argv[1:])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
