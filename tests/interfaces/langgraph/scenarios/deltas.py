"""Delta channels: what is stored is what each step wrote, and now and then a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite, Send, interrupt
from typing_extensions import TypedDict

from tests.interfaces.langgraph.sessions import Session, on, scenario


def append(current: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """The order of writes shows."""
    return [*current, *(item for write in writes for item in write)]


def merge(current: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last to write a key wins."""
    merged = dict(current)
    for write in writes:
        merged.update(write)
    return merged


def talk(current: list[AnyMessage], writes: Sequence[list[AnyMessage]]) -> list[AnyMessage]:
    told: Any = current
    for write in writes:
        told = add_messages(told, write)  # type: ignore[arg-type]
    return told  # type: ignore[no-any-return]


class Delta(TypedDict, total=False):
    often: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=2)]
    seldom: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=50)]
    table: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=3)]
    n: int


CHANNELS = ("often", "seldom", "table")


def writes(name: str) -> Any:
    def node(state: Delta) -> Delta:
        number = len(state.get("seldom", []))
        return {"often": [name], "seldom": [(name, number)], "table": {name: number, "last": name}}

    return node


@scenario
async def deltas(s: Session) -> None:
    nodes = {name: writes(name) for name in "abc"}
    graph = s.graph(Delta, nodes, ((START, "a"), ("a", "b"), ("b", "c")))
    for turn in range(4):
        await s.run(f"turn {turn}", graph, {"often": [turn], "seldom": [turn]}, on("t"))
    await s.run("without", graph, {"n": 1}, on("t"))
    await s.audit(graph, "t", delta=CHANNELS)


@scenario
async def deltas_of_parallel_tasks(s: Session) -> None:
    def fan(state: Delta) -> list[Send]:
        return [Send("work", {"job": job}) for job in range(11)]

    def work(job: dict[str, Any]) -> Delta:
        return {"often": [job["job"]], "seldom": [job["job"]], "table": {"last": job["job"]}}

    nodes = {"plan": writes("plan"), "work": work, "left": writes("left"), "right": writes("right")}
    graph = s.graph(Delta, nodes, ((START, "plan"), (START, "left"), (START, "right")), branches={"plan": fan})
    for turn in range(3):
        await s.run(f"turn {turn}", graph, {"often": [turn]}, on("t"))
    await s.audit(graph, "t", delta=CHANNELS)


@scenario
async def deltas_on_exit(s: Session) -> None:
    nodes = {name: writes(name) for name in ("a", "l", "r", "z")}
    edges = ((START, "a"), ("a", "l"), ("a", "r"), ("l", "z"), ("r", "z"))
    graph = s.graph(Delta, nodes, edges, interrupt_before=["z"])
    for turn in range(3):
        await s.run(f"turn {turn}", graph, {"often": [turn], "seldom": [turn]}, on("t"), durability="exit")
        await s.run(f"rest of {turn}", graph, None, on("t"), durability="exit")
    await s.run("saved each step", graph, {"seldom": ["each"]}, on("t"), durability="sync")
    await s.audit(graph, "t", delta=CHANNELS)


@scenario
async def deltas_and_travel(s: Session) -> None:
    nodes = {name: writes(name) for name in "ab"}
    graph = s.graph(Delta, nodes, ((START, "a"), ("a", "b")))
    for turn in range(3):
        await s.run(f"turn {turn}", graph, {"often": [turn], "seldom": [turn]}, on("t"))
    history = await s.history("before", graph, on("t"))
    older = [state.config for state in history if state.next == ("b",)]
    await s.run("replayed", graph, None, older[1])
    fork = await s.update(graph, older[0], {"often": ["fork"], "table": {"fork": True}})
    await s.run("forked", graph, None, fork)
    await s.update(graph, on("t"), {"seldom": Overwrite(["only this"])}, as_node="a")
    await s.run("overwritten", graph, None, on("t"))
    await s.run("at the end", graph, {"seldom": ["late"]}, on("t"))
    await s.audit(graph, "t", delta=CHANNELS)


@scenario
async def deltas_and_questions(s: Session) -> None:
    def ask(state: Delta) -> Delta:
        return {"often": [interrupt("one"), interrupt("two")], "seldom": ["asked"]}

    graph = s.graph(Delta, {"a": writes("a"), "ask": ask, "b": writes("b")}, ((START, "a"), ("a", "ask"), ("ask", "b")))
    await s.run("asks", graph, {"often": ["in"]}, on("t"))
    await s.run("one", graph, Command(resume=1), on("t"))
    await s.run("two", graph, Command(resume=2, update={"seldom": ["meanwhile"]}), on("t"))
    await s.audit(graph, "t", delta=CHANNELS)


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], DeltaChannel(talk, snapshot_frequency=4)]


@scenario
async def deltas_of_messages(s: Session) -> None:
    def reply(state: Talk) -> Talk:
        count = len(state["messages"])
        return {"messages": [HumanMessage(f"reply {count}", id=f"{state['messages'][-1].id}+")]}

    graph = s.graph(
        Talk, {"reply": reply}, ((START, "reply"),),
        branches={"reply": lambda state: END if len(state["messages"]) % 4 == 0 else "reply"},
    )  # fmt: skip
    for turn in range(4):
        await s.run(f"turn {turn}", graph, {"messages": [HumanMessage(f"turn {turn}", id=f"turn-{turn}")]}, on("t"))
    await s.run(
        "one less", graph, {"messages": [RemoveMessage(id="turn-1"), HumanMessage("new", id="turn-0")]}, on("t")
    )
    await s.audit(graph, "t", delta=("messages",))


@scenario
async def deltas_in_a_subgraph(s: Session) -> None:
    inner = s.graph(Delta, {"x": writes("x"), "y": writes("y")}, ((START, "x"), ("x", "y")), checkpointer=True)
    graph = s.graph(Delta, {"child": inner, "after": writes("after")}, ((START, "child"), ("child", "after")))
    for turn in range(3):
        await s.run(f"turn {turn}", graph, {"often": [turn], "seldom": [turn]}, on("t"))
    await s.audit(graph, "t", delta=CHANNELS)
