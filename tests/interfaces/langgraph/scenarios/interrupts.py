"""Runs that stop and go on: before and after nodes, in the middle of them, in several at once, in subgraphs."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.graph import START
from langgraph.types import Command, Interrupt, interrupt
from typing_extensions import TypedDict

from tests.interfaces.langgraph.scenarios.basics import LINE, Log, says
from tests.interfaces.langgraph.sessions import Session, on, scenario


class Answers(TypedDict, total=False):
    answers: Annotated[list[Any], operator.add]
    topic: str


def asks(*questions: Any) -> Any:
    """A node that asks each question in turn."""

    def node(state: Answers) -> Answers:
        return {"answers": [(str(question), interrupt(question)) for question in questions]}

    return node


@scenario
async def stops_before_and_after(s: Session) -> None:
    graph = s.graph(Log, {name: says(name) for name in "abc"}, LINE, interrupt_before=["b"], interrupt_after=["b"])
    await s.run("first", graph, {"log": ["in"]}, on("t"))
    await s.run("second", graph, None, on("t"))
    await s.update(graph, on("t"), {"log": ["between"]})
    await s.run("third", graph, None, on("t"))
    await s.run("over", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def stops_said_at_the_call(s: Session) -> None:
    graph = s.graph(Log, {name: says(name) for name in "abc"}, LINE)
    await s.run("before all", graph, {"n": 0}, on("t"), interrupt_before="*")
    await s.run("after a", graph, None, on("t"), interrupt_after=["a"])
    await s.run("before c", graph, None, on("t"), interrupt_before=["c"])
    await s.run("the rest", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def one_question(s: Session) -> None:
    graph = s.graph(Answers, {"ask": asks({"q": "sure?", "options": ("yes", "no")})}, ((START, "ask"),))
    await s.run("asks", graph, {"topic": "kelp"}, on("t"))
    await s.run("asks again", graph, None, on("t"))
    await s.run("answered", graph, Command(resume={"answer": ["yes", 1.0]}), on("t"))
    await s.run("a second time", graph, {"topic": "rock"}, on("t"))
    await s.run("with an update", graph, Command(resume="no", update={"topic": "stone"}), on("t"))
    await s.audit(graph, "t")


@scenario
async def several_questions_in_a_node(s: Session) -> None:
    graph = s.graph(
        Answers, {"ask": asks("one", "two", "three"), "last": asks("four")}, ((START, "ask"), ("ask", "last"))
    )
    await s.run("asks one", graph, {"topic": "kelp"}, on("t"))
    for number in range(1, 5):
        await s.run(f"answer {number}", graph, Command(resume=f"answer {number}"), on("t"))
    await s.audit(graph, "t")


@scenario
async def a_question_that_is_falsy(s: Session) -> None:
    graph = s.graph(Answers, {"ask": asks(None), "again": asks(0)}, ((START, "ask"), ("ask", "again")))
    await s.run("asks", graph, {"topic": ""}, on("t"))
    await s.run("answered", graph, Command(resume=False), on("t"))
    await s.run("answered again", graph, Command(resume=""), on("t"))
    await s.audit(graph, "t")


def by_value(found: Any) -> dict[Any, str]:
    """The ids of the open questions of a state."""
    questions: tuple[Interrupt[Any], ...] = found.interrupts
    return {question.value: question.id for question in questions}


@scenario
async def questions_of_parallel_nodes(s: Session) -> None:
    nodes = {"left": asks("left 1", "left 2"), "right": asks("right"), "done": lambda _: {"answers": ["done"]}}
    edges = ((START, "left"), (START, "right"), ("left", "done"), ("right", "done"))
    graph = s.graph(Answers, nodes, edges)
    await s.run_unnoted("both ask", graph, {"topic": "kelp"}, on("t"), durability="sync")
    ids = by_value(await s.state("both wait", graph, on("t")))
    await s.run_unnoted("right is answered", graph, Command(resume={ids["right"]: "R"}), on("t"), durability="sync")
    ids = by_value(await s.state("left waits", graph, on("t")))
    await s.run("left is answered", graph, Command(resume={ids["left 1"]: "L1"}), on("t"), durability="sync")
    await s.run("left is answered again", graph, Command(resume="L2"), on("t"), durability="sync")
    await s.audit(graph, "t")


@scenario
async def parallel_questions_answered_together(s: Session) -> None:
    nodes = {name: asks(name) for name in ("one", "two", "three")}
    graph = s.graph(Answers, nodes, [(START, name) for name in nodes])
    await s.run_unnoted("all ask", graph, {"topic": "kelp"}, on("t"))
    ids = by_value(await s.state("all wait", graph, on("t")))
    await s.run("answered", graph, Command(resume={id: f"to {value}" for value, id in ids.items()}), on("t"))
    await s.audit(graph, "t")


@scenario
async def a_question_beside_a_finished_node(s: Session) -> None:
    ran: list[str] = []

    def quick(_: Answers) -> Answers:
        ran.append("quick")
        return {"answers": ["quick"]}

    graph = s.graph(Answers, {"ask": asks("sure?"), "quick": quick}, ((START, "ask"), (START, "quick")))
    await s.run("asks", graph, {"topic": "kelp"}, on("t"))
    await s.run("asks again", graph, None, on("t"))
    await s.run("answered", graph, Command(resume="yes"), on("t"))
    s.note("ran", ran)
    await s.audit(graph, "t")


@scenario
async def questions_in_subgraphs(s: Session) -> None:
    inner = s.graph(Answers, {"deep": asks("deep 1", "deep 2")}, ((START, "deep"),), checkpointer=None)
    middle = s.graph(
        Answers, {"before": lambda _: {"answers": ["before"]}, "inner": inner, "shallow": asks("shallow")},
        ((START, "before"), ("before", "inner"), ("inner", "shallow")), checkpointer=None,
    )  # fmt: skip
    graph = s.graph(Answers, {"middle": middle, "last": asks("last")}, ((START, "middle"), ("middle", "last")))
    await s.run("asks", graph, {"topic": "kelp"}, on("t"))
    for number in range(1, 5):
        await s.run(f"answer {number}", graph, Command(resume=number), on("t"))
    await s.audit(graph, "t")


@scenario
async def an_answered_question_replayed(s: Session) -> None:
    graph = s.graph(Answers, {"ask": asks("one", "two")}, ((START, "ask"),))
    await s.run("asks", graph, {"topic": "kelp"}, on("t"))
    await s.run("one", graph, Command(resume="1"), on("t"))
    await s.run("two", graph, Command(resume="2"), on("t"))
    history = await s.history("all", graph, on("t"))
    waiting = next(state for state in history if state.next == ("ask",))
    await s.run("from before", graph, None, waiting.config)
    await s.run("answered otherwise", graph, Command(resume="eins"), on("t"))
    await s.run("answered otherwise again", graph, Command(resume="zwei"), on("t"))
    await s.audit(graph, "t")
