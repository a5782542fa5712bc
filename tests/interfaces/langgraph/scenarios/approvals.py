"""People in the loop: approvals of tools, edits, questions that are asked until the answer is right."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from tests.interfaces.langgraph.scenarios.chat_models import calls, scripted
from tests.interfaces.langgraph.sessions import Session, on, program


@tool
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}: {text}"


@tool
def look_up(name: str) -> str:
    """Look up an address."""
    return f"{name}@example.org"


@program
async def tools_that_need_approval(s: Session) -> None:
    middleware = HumanInTheLoopMiddleware(interrupt_on={"send_mail": True, "look_up": False})
    call = calls(("look_up", {"name": "ann"}), ("send_mail", {"to": "ann", "text": "hi"}))
    graph = create_agent(scripted(call, "done"), [send_mail, look_up], middleware=[middleware], checkpointer=s.saver)
    edited = {"name": "send_mail", "args": {"to": "bob", "text": "hello"}}
    for number, decision in enumerate(
        (
            {"type": "approve"},
            {"type": "edit", "edited_action": edited},
            {"type": "reject", "message": "not today"},
        )
    ):
        thread = f"thread {number}"
        await s.run("asks", graph, {"messages": [("user", "write to ann")]}, on(thread))
        await s.run("decided", graph, Command(resume={"decisions": [decision]}), on(thread))
        await s.run("asks again", graph, {"messages": [("user", "once more")]}, on(thread))
        await s.audit(graph, thread, ask=False)


@program
async def an_approval_in_a_tool(s: Session) -> None:
    ran: list[str] = []

    @tool
    def book_hotel(name: str) -> str:
        """Book a hotel."""
        answer = interrupt({"action": "book_hotel", "args": {"name": name}})
        ran.append(name)
        if answer["type"] == "accept":
            return f"booked {name}"
        return f"booked {answer['args']['name']} instead"

    def model(state: MessagesState) -> dict[str, Any]:
        asked = calls(("book_hotel", {"name": "Ritz"}))
        said = AIMessage("enjoy", id="end") if state["messages"][-1].type == "tool" else asked
        return {"messages": [said]}

    nodes = {"model": model, "tools": ToolNode([book_hotel])}
    builder = s.graph(
        MessagesState, {"model": model, "tools": nodes["tools"]}, ((START, "model"), ("tools", "model")),
        branches={"model": tools_condition},
    )  # fmt: skip
    for thread, answer in (("t", {"type": "accept"}), ("u", {"type": "edit", "args": {"name": "Plaza"}})):
        await s.run("asks", builder, {"messages": [("user", "book")]}, on(thread))
        await s.run("answered", builder, Command(resume=answer), on(thread))
        await s.audit(builder, thread, ask=False)
    s.note("ran", ran)


class Registration(TypedDict, total=False):
    name: str
    age: int
    log: Annotated[list[str], operator.add]


@program
async def a_question_until_the_answer_is_right(s: Session) -> None:
    def ask_age(_: Registration) -> Registration:
        question = "How old are you?"
        while True:
            answer = interrupt(question)
            if isinstance(answer, int) and answer > 0:
                return {"age": answer, "log": [question]}
            question = f"{answer!r} is no age. How old are you?"

    graph = s.graph(Registration, {"ask": ask_age}, ((START, "ask"),))
    await s.run("asks", graph, {"name": "ann"}, on("t"))
    for answer in ("old", -3, 41):
        await s.run(f"answered {answer}", graph, Command(resume=answer), on("t"))
    await s.audit(graph, "t", ask=False)


@dataclass
class Review:
    text: str = ""
    status: str = "draft"
    notes: Annotated[list[str], operator.add] = field(default_factory=list)


@program
async def review_and_revise(s: Session) -> None:
    def write(state: Review) -> dict[str, Any]:
        return {"text": f"{state.text or 'draft'} v{len(state.notes) + 1}"}

    def review(state: Review) -> Command[Any]:
        decision = interrupt({"text": state.text, "ask": "publish?"})
        if decision == "publish":
            return Command(goto="publish", update={"status": "approved"})
        return Command(goto="write", update={"notes": [decision], "status": "revise"})

    nodes = {
        "write": write,
        "review": (review, {"destinations": ("write", "publish")}),
        "publish": lambda state: {"status": f"published {state.text}"},
    }
    graph = s.graph(Review, nodes, ((START, "write"), ("write", "review")))
    await s.run("written", graph, {"text": ""}, on("t"))
    for decision in ("longer", "shorter", "publish"):
        await s.run(decision, graph, Command(resume=decision), on("t"))
    history = await s.history("all", graph, on("t"))
    first = [state for state in history if state.next == ("review",)][-1]
    await s.run("published at once, instead", graph, Command(resume="publish"), first.config)
    await s.audit(graph, "t", ask=False)


class Claims(TypedDict, total=False):
    claims: list[str]
    verdicts: Annotated[list[str], operator.add]


@program
async def approvals_in_parallel_subgraphs(s: Session) -> None:
    def check(state: dict[str, Any]) -> dict[str, Any]:
        return {"verdicts": [f"{state['claim']}: {interrupt(state['claim'])}"]}

    class Claim(Claims, total=False):
        claim: str

    inner = s.graph(
        Claim, {"prepare": lambda _: {"verdicts": []}, "check": check}, ((START, "prepare"), ("prepare", "check")),
        schemas={"output_schema": Claims}, checkpointer=None,
    )  # fmt: skip
    graph = s.graph(
        Claims,
        {"plan": lambda _: {}, "claim": inner, "end": lambda state: {"verdicts": [str(len(state["verdicts"]))]}},
        ((START, "plan"), ("claim", "end")),
        branches={"plan": lambda state: [Send("claim", {"claim": each, "verdicts": []}) for each in state["claims"]]},
    )  # fmt: skip
    await s.run_unnoted("all ask", graph, {"claims": ["a", "b", "c"]}, on("t"))
    state = await s.state("waiting", graph, on("t"))
    ids = {each.value: each.id for each in state.interrupts}
    await s.run_unnoted("one is answered", graph, Command(resume={ids["b"]: "no"}), on("t"))
    answers = {ids[name]: "yes" for name in ("a", "c")}
    await s.run("the others are", graph, Command(resume=answers), on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def an_essay_with_feedback(s: Session) -> None:
    """The workflow of the functional API's tutorial."""
    ran: list[str] = []

    def compose(topic: str, feedback: list[str]) -> str:
        ran.append(topic)
        return f"An essay about {topic}, {'; '.join(feedback) or 'first'}"

    write = task(compose)

    @task
    async def awrite(topic: str, feedback: list[str]) -> str:
        return compose(topic, feedback)

    def body(topic: str) -> dict[str, Any]:
        feedback: list[str] = []
        while True:
            essay = write(topic, feedback).result()
            said = interrupt({"essay": essay, "action": "approve or say what to change"})
            if said is True:
                return {"essay": essay, "rounds": len(feedback)}
            feedback = [*feedback, said]

    async def abody(topic: str) -> dict[str, Any]:
        feedback: list[str] = []
        while True:
            essay = await awrite(topic, feedback)
            said = interrupt({"essay": essay, "action": "approve or say what to change"})
            if said is True:
                return {"essay": essay, "rounds": len(feedback)}
            feedback = [*feedback, said]

    graph: Any = entrypoint(checkpointer=s.saver)(abody if s.asynchronous else body)
    await s.run("asks", graph, "kelp", on("t"))
    for answer in ("shorter", "with a title", True):
        await s.run(f"answered {answer}", graph, Command(resume=answer), on("t"))
    s.note("ran", ran)
    await s.audit(graph, "t", ask=False)
