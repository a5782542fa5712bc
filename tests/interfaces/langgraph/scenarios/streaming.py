"""Streams in every mode: of nodes, of models, of subgraphs, of the functional API, and events."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState
from langgraph.types import Command, StreamWriter, interrupt
from typing_extensions import TypedDict

from tests.interfaces.langgraph.scenarios.chat_models import calls, scripted
from tests.interfaces.langgraph.sessions import Session, on, program

MODES = ["values", "updates", "checkpoints", "tasks", "debug", "messages", "custom"]


class Progress(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    done: float


def reports(name: str) -> Any:
    """A node that streams its progress."""

    def node(_: Progress, writer: StreamWriter) -> Progress:
        for part in (0.5, 1.0):
            writer({"node": name, "progress": part})
        return {"log": [name], "done": 1.0}

    return node


@program
async def streams_in_each_mode(s: Session) -> None:
    nodes = {"a": reports("a"), "ask": lambda _: {"log": [interrupt("go on?")]}, "b": reports("b")}
    graph = s.graph(Progress, nodes, ((START, "a"), ("a", "ask"), ("ask", "b")))
    for mode in MODES:
        await s.stream(f"{mode}, first", graph, {"log": [mode]}, on(mode), stream_mode=mode)
        await s.stream(f"{mode}, resumed", graph, Command(resume="yes"), on(mode), stream_mode=mode)
        await s.audit(graph, mode, ask=False)


@program
async def streams_of_subgraphs(s: Session) -> None:
    inner = s.graph(
        Progress, {"x": reports("x"), "ask": lambda _: {"log": [interrupt("deep?")]}}, ((START, "x"), ("x", "ask")),
        checkpointer=None,
    )  # fmt: skip
    graph = s.graph(Progress, {"child": inner, "end": reports("end")}, ((START, "child"), ("child", "end")))
    options: dict[str, Any] = {"subgraphs": True, "stream_mode": MODES}
    await s.stream("first", graph, {"log": ["in"]}, on("t"), **options)
    await s.stream("resumed", graph, Command(resume="yes"), on("t"), **options)
    await s.audit(graph, "t", ask=False)


@program
async def streams_of_tokens(s: Session) -> None:
    model = scripted("a few words to stream", "and more")

    def chat(state: MessagesState) -> Any:
        get_stream_writer()(f"{len(state['messages'])} messages")
        return {"messages": [model.invoke(state["messages"])]}

    async def achat(state: MessagesState) -> Any:
        get_stream_writer()(f"{len(state['messages'])} messages")
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = s.graph(MessagesState, {"chat": achat if s.asynchronous else chat}, ((START, "chat"),))
    for turn in ("one", "two"):
        events = await tokens(s, graph, {"messages": [("user", turn)]}, on("t"))
        assert sum(mode == "messages" for mode, _ in events) > 1, "the words did not come one by one"
    await s.audit(graph, "t", ask=False)


async def tokens(s: Session, graph: Any, given: Any, config: Any) -> list[Any]:
    """Stream, and note the words without what LangGraph tells of the run."""
    options: dict[str, Any] = {"stream_mode": ["messages", "custom", "updates"], "durability": s.durability}
    if s.asynchronous:
        events = [event async for event in graph.astream(given, config, **options)]
    else:
        events = list(graph.stream(given, config, **options))
    for mode, event in events:
        s.note(mode, (event[0].content, event[1]["langgraph_node"]) if mode == "messages" else event)
    return events


@program
async def streams_of_an_agent(s: Session) -> None:
    @tool
    def measure(depth: int) -> str:
        """Measure the water."""
        get_stream_writer()({"measuring": depth})
        return f"{depth} m"

    graph = create_agent(scripted(calls(("measure", {"depth": 3})), "deep"), [measure], checkpointer=s.saver)
    await tokens(s, graph, {"messages": [("user", "how deep?")]}, on("t"))
    await tokens(s, graph, {"messages": [("user", "and now?")]}, on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def streams_of_a_workflow(s: Session) -> None:
    def step(number: int) -> int:
        get_stream_writer()(f"step {number}")
        return number + 1

    run_step = task(step)

    @task
    async def arun_step(number: int) -> int:
        return step(number)

    def body(number: int, *, previous: int | None = None, writer: StreamWriter) -> Any:
        writer("started")
        for _ in range(2):
            number = run_step(number).result()
        return entrypoint.final(value={"number": number, "previous": previous}, save=number)

    async def abody(number: int, *, previous: int | None = None, writer: StreamWriter) -> Any:
        writer("started")
        for _ in range(2):
            number = await arun_step(number)
        return entrypoint.final(value={"number": number, "previous": previous}, save=number)

    graph: Any = entrypoint(checkpointer=s.saver)(abody if s.asynchronous else body)
    for number in (1, 10):
        await s.stream(f"from {number}", graph, number, on("t"), stream_mode=["custom", "updates", "values"])
    await s.audit(graph, "t", ask=False)
