"""Nodes that say where to go: Send, and Command with goto, update and the parent graph."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.graph import END, START
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.sessions import Session, on, scenario


class Done(TypedDict, total=False):
    done: Annotated[list[Any], operator.add]


class Jobs(Done, total=False):
    jobs: list[int]


def spread(state: Jobs) -> list[Send]:
    return [Send("work", {"job": job, "of": ("a", "tuple")}) for job in state["jobs"]]


@scenario
async def fan_out(s: Session) -> None:
    def work(job: dict[str, Any]) -> Jobs:
        return {"done": [(job["job"], job["of"])]}

    nodes = {"plan": lambda _: {"done": ["planned"]}, "work": work, "sum": lambda state: {"done": [len(state["done"])]}}
    graph = s.graph(Jobs, nodes, ((START, "plan"), ("work", "sum")), branches={"plan": spread})
    await s.run("first", graph, {"jobs": [3, 1, 2]}, on("t"))
    await s.run("none", graph, {"jobs": []}, on("t"))
    await s.run("many", graph, {"jobs": list(range(12))}, on("t"))
    await s.run("stopped", graph, {"jobs": [8, 9]}, on("t"), interrupt_before=["work"])
    await s.run("and on", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def fan_out_with_a_failure(s: Session) -> None:
    ran: list[int] = []
    broken = [True]

    def work(job: dict[str, Any]) -> Jobs:
        ran.append(job["job"])
        return {"done": [job["job"]]}

    def fail(job: dict[str, Any]) -> Jobs:
        if broken[0]:
            raise RuntimeError(f"job {job['job']} is stuck")
        return work(job)

    async def stuck(job: dict[str, Any]) -> Jobs:
        if broken[0]:
            await s.until_written(on("t"), 3)
        return fail(job)

    def stuck_without_asyncio(job: dict[str, Any]) -> Jobs:
        if broken[0]:
            s.wait_until_written(on("t"), 3)
        return fail(job)

    def choose(state: Jobs) -> list[Send]:
        return [Send("stuck" if job == 2 else "work", {"job": job}) for job in state["jobs"]]

    nodes = {
        "plan": lambda _: {"done": ["planned"]},
        "work": work,
        "stuck": stuck if s.asynchronous else stuck_without_asyncio,
        "sum": lambda state: {"done": [len(state["done"])]},
    }
    graph = s.graph(Jobs, nodes, ((START, "plan"), ("work", "sum"), ("stuck", "sum")), branches={"plan": choose})
    await s.run("one fails", graph, {"jobs": [1, 2, 3, 4]}, on("t"))
    s.note("ran", sorted(ran))
    assert sorted(ran) == [1, 3, 4]
    await s.run("it fails again", graph, None, on("t"))
    s.note("ran", sorted(ran))
    broken[0] = False
    await s.run("it does not", graph, None, on("t"))
    assert sorted(ran) == [1, 2, 3, 4], "a task that had finished ran again"
    await s.audit(graph, "t")


@scenario
async def going_by_command(s: Session) -> None:
    def choose(state: Log) -> Command[Any]:
        if state.get("n", 0) > 3:
            return Command(goto=END, update={"log": ["enough"]})
        return Command(goto=["b", Send("c", {"n": 10})], update={"log": ["on"], "n": state.get("n", 0) + 1})

    nodes = {
        "a": (choose, {"destinations": ("b", "c", END)}),
        "b": lambda _: Command(goto="a", update=[("log", ["b"]), ("log", ["b again"])]),
        "c": lambda state: {"log": [f"c {state['n']}"]},
    }
    graph = s.graph(Log, nodes, ((START, "a"),))
    await s.run("run", graph, {"log": []}, on("t"))
    await s.audit(graph, "t")


@scenario
async def commands_as_input(s: Session) -> None:
    graph = s.graph(Log, {name: says(name) for name in "abc"}, ((START, "a"), ("a", "b")), interrupt_before=["b"])
    await s.run("first", graph, {"n": 0}, on("t"))
    await s.run("updated", graph, Command(update={"n": 10, "log": ["given"]}), on("t"))
    await s.run("sent elsewhere", graph, Command(goto="c", update={"log": ["to c"]}), on("t"))
    await s.run("sent with a value", graph, Command(goto=Send("c", {"n": 99})), on("t"))
    await s.audit(graph, "t")


@scenario
async def commands_to_the_parent(s: Session) -> None:
    leave = Command(graph=Command.PARENT, goto="other", update={"log": ["from below"]})
    inner = s.graph(Log, {"x": says("x"), "y": lambda _: leave}, ((START, "x"), ("x", "y")), checkpointer=None)
    nodes = {"child": inner, "other": says("other"), "beside": lambda _: {"log": ["beside"]}}
    graph = s.graph(Log, nodes, ((START, "child"), ("child", "beside")))
    await s.run("run", graph, {"log": ["in"]}, on("t"))
    await s.run("again", graph, {"log": ["in"]}, on("t"))
    await s.audit(graph, "t")


@scenario
async def sends_to_subgraphs(s: Session) -> None:
    do = lambda state: {"done": [sum(state["jobs"])]}  # noqa: E731
    inner = s.graph(Jobs, {"do": do}, ((START, "do"),), schemas={"output_schema": Done}, checkpointer=None)
    nodes = {"plan": lambda _: {"done": ["planned"]}, "child": inner}
    branches = {"plan": lambda state: [Send("child", {"jobs": [job, job]}) for job in state["jobs"]]}
    graph = s.graph(Jobs, nodes, ((START, "plan"),), branches=branches)
    await s.run("run", graph, {"jobs": [1, 2, 3]}, on("t"), durability="sync")
    await s.audit(graph, "t")
