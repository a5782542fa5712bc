"""When things are saved: before the next step, while it runs, or when the run ends."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START
from langgraph.types import Command, Durability, interrupt

from tests.interfaces.langgraph.scenarios.basics import LINE, Log, says
from tests.interfaces.langgraph.sessions import Session, on, scenario


async def saved(s: Session, durability: Durability) -> None:
    broken = [True]

    def fail(_: Log) -> Log:
        if broken[0]:
            raise ValueError("out of order")
        return {"log": [interrupt("mended?")]}

    nodes: dict[str, Any] = {"a": says("a"), "b": fail, "c": says("c")}
    graph = s.graph(Log, nodes, LINE)
    inner = s.graph(Log, nodes, LINE, checkpointer=None)
    outer = s.graph(Log, {"child": inner, "after": says("after")}, ((START, "child"), ("child", "after")))
    for thread, each in (("flat", graph), ("nested", outer)):
        broken[0] = True
        await s.run("fails", each, {"log": ["in"]}, on(thread), durability=durability)
        broken[0] = False
        await s.run("asks", each, None, on(thread), durability=durability)
        await s.run("ends", each, Command(resume="yes"), on(thread), durability=durability)
        await s.run("once more", each, {"log": ["more"]}, on(thread), durability=durability)
        await s.audit(each, thread)


@scenario
async def saved_before_the_next_step(s: Session) -> None:
    await saved(s, "sync")


@scenario
async def saved_while_the_next_step_runs(s: Session) -> None:
    await saved(s, "async")


@scenario
async def saved_on_exit(s: Session) -> None:
    await saved(s, "exit")
