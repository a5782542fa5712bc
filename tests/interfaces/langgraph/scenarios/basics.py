"""Plain graphs: state classes, reducers, joins, loops, errors, retries."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.channels import UntrackedValue
from langgraph.graph import END, START, MessagesState
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.managed import RemainingSteps
from langgraph.runtime import Runtime
from langgraph.types import Overwrite, RetryPolicy
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.interfaces.langgraph.sessions import Session, on, scenario


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int


def says(name: str) -> Any:
    """A node that adds its name to the log, and counts."""

    def node(state: Log) -> Log:
        return {"log": [name], "n": state.get("n", 0) + 1}

    return node


LINE = ((START, "a"), ("a", "b"), ("b", "c"))


@scenario
async def a_line_of_nodes(s: Session) -> None:
    graph = s.graph(Log, {name: says(name) for name in "abc"}, LINE)
    await s.run("first", graph, {"log": ["in"]}, on("t"))
    await s.run("again", graph, {"log": ["more"]}, on("t"))
    await s.run("without input", graph, None, on("t"))
    await s.run("elsewhere", graph, {"n": 40}, on("u"))
    await s.state("never seen", graph, on("nobody"))
    await s.audit(graph, "t")
    await s.audit(graph, "u")
    for options in ({"limit": 2}, {"filter": {"source": "input"}}, {"filter": {"step": 2}, "limit": 1}):
        await s.history(f"history {options}", graph, on("t"), **options)


@scenario
async def streams(s: Session) -> None:
    graph = s.graph(Log, {name: says(name) for name in "abc"}, LINE)
    modes = ["values", "updates", "checkpoints", "tasks", "debug"]
    await s.stream("events", graph, {"log": ["in"]}, on("t"), stream_mode=modes)
    await s.stream("events again", graph, {"log": ["in"]}, on("t"), stream_mode=modes)
    await s.audit(graph, "t")


@scenario
async def metadata_of_configs(s: Session) -> None:
    graph = s.graph(Log, {"a": says("a"), "b": says("b")}, ((START, "a"), ("a", "b")))
    ann = {"metadata": {"user": "ann", "tries": 2, "ratio": 0.5, "ok": True, "deep": {"x": [1]}}, "tags": ["one"]}
    await s.run("ann", graph, {"n": 0}, {**on("t", model="small", size=3), **ann})
    await s.run("bob", graph, {"n": 0}, {**on("t", model="large"), "metadata": {"user": "bob"}, "run_name": "run"})
    await s.audit(graph, "t")
    for wanted in ({"user": "ann"}, {"user": "bob", "step": 1}, {"tries": 2}, {"ok": True}, {"model": "small"}):
        found = await s.listed(on("t"), filter=wanted)
        s.note(f"filtered {wanted}", [each.checkpoint["id"] for each in found])


def words_differ(state: MessagesState) -> dict[str, Any]:
    last = state["messages"][-1]
    return {"messages": [AIMessage(f"you said {last.text}", id=f"ai-{len(state['messages'])}")]}


def tools(state: MessagesState) -> dict[str, Any]:
    call = {"name": "look", "args": {"what": ["kelp", 1.5, None]}, "id": "call-1", "type": "tool_call"}
    number = len(state["messages"])
    return {
        "messages": [
            AIMessage("", id=f"ask-{number}", tool_calls=[call], usage_metadata=usage(number)),
            ToolMessage("found", id=f"tool-{number}", tool_call_id="call-1", artifact={"raw": (1, 2)}, status="error"),
        ]
    }


def usage(number: int) -> Any:
    return {"input_tokens": number, "output_tokens": 2, "total_tokens": number + 2}


@scenario
async def messages(s: Session) -> None:
    graph = s.graph(MessagesState, {"reply": words_differ, "tools": tools}, ((START, "reply"), ("reply", "tools")))
    content: Any = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    await s.run("hello", graph, {"messages": [SystemMessage("be kind", id="s"), ("user", "hello")]}, on("t"))
    await s.run("picture", graph, {"messages": [HumanMessage(content, id="h", name="ann")]}, on("t"))
    await s.run("other words", graph, {"messages": [HumanMessage("changed", id="h")]}, on("t"))
    await s.run("one less", graph, {"messages": [RemoveMessage(id="s")]}, on("t"))
    await s.update(graph, on("t"), {"messages": [AIMessage("by hand", id="x", additional_kwargs={"a": {"b": 1}})]})
    everything = RemoveMessage(id=REMOVE_ALL_MESSAGES)
    await s.run("anew", graph, {"messages": [everything, HumanMessage("anew", id="n")]}, on("t"))
    await s.audit(graph, "t")


@dataclass
class Notes:
    text: str = ""
    marks: Annotated[list[int], operator.add] = field(default_factory=list)


@scenario
async def dataclass_state(s: Session) -> None:
    def write(state: Notes) -> dict[str, Any]:
        return {"text": state.text + "!", "marks": [len(state.marks)]}

    def again(state: Notes) -> Notes:
        return Notes(text=state.text + "?", marks=[7])

    graph = s.graph(Notes, {"write": write, "again": again}, ((START, "write"), ("write", "again")))
    await s.run("given an object", graph, Notes("hello", [1]), on("t"))
    await s.run("given a dict", graph, {"text": "bye"}, on("t"))
    await s.audit(graph, "t")


class Item(BaseModel):
    name: str
    price: float = 1.0


class Basket(BaseModel):
    items: Annotated[list[Item], operator.add] = []
    owner: str | None = None


@scenario
async def pydantic_state(s: Session) -> None:
    def add(state: Basket) -> dict[str, Any]:
        return {"items": [Item(name=f"item {len(state.items)}", price=len(state.items) / 4)]}

    def own(state: Basket) -> Basket:
        return Basket(owner=(state.owner or "") + state.items[-1].name)

    graph = s.graph(Basket, {"add": add, "own": own}, ((START, "add"), ("add", "own")))
    await s.run("first", graph, {"items": [{"name": "apple"}]}, on("t"))
    await s.run("model", graph, Basket(owner="ann"), on("t"))
    await s.audit(graph, "t")


class Private(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    secret: str


class Asked(TypedDict):
    question: str


class Everything(Private, Asked, total=False):
    answer: str


class Answered(TypedDict):
    answer: str


@scenario
async def input_and_output_schemas(s: Session) -> None:
    def think(state: Asked) -> Private:
        return {"secret": state["question"].upper(), "log": ["thought"]}

    def answer(state: Private) -> Answered:
        return {"answer": f"{state['secret']}!"}

    schemas: dict[str, Any] = {"input_schema": Asked, "output_schema": Answered}
    nodes = {"think": think, "answer": answer}
    graph = s.graph(Everything, nodes, ((START, "think"), ("think", "answer")), schemas=schemas)
    await s.run("asked", graph, {"question": "why"}, on("t"))
    await s.audit(graph, "t")


@scenario
async def join_of_parallel_nodes(s: Session) -> None:
    nodes = {name: says(name) for name in ("left", "right", "join", "last")}
    nodes["left"], nodes["right"] = (lambda _: {"log": ["left"]}), (lambda _: {"log": ["right"]})
    nodes["far"] = lambda _: {"log": ["far"]}
    edges = ((START, "left"), (START, "right"), ("right", "far"), (["left", "far"], "join"), ("join", "last"))
    graph = s.graph(Log, nodes, edges, interrupt_before=["last"])
    # LangGraph hands the set that the join goes on filling to the saver, which may be behind by then.
    await s.run("until last", graph, {"n": 1}, on("t"), durability="sync")
    await s.run("last", graph, None, on("t"), durability="sync")
    await s.run("and again", graph, {"n": 1}, on("t"), durability="sync")
    await s.audit(graph, "t")


@scenario
async def deferred_node(s: Session) -> None:
    nodes: dict[str, Any] = {name: (lambda _, name=name: {"log": [name]}) for name in ("a", "b", "c")}
    nodes["end"] = (lambda state: {"log": [f"end after {len(state['log'])}"]}, {"defer": True})
    edges = ((START, "a"), ("a", "b"), ("a", "end"), ("b", "c"), ("c", "end"))
    graph = s.graph(Log, nodes, edges)
    await s.run("run", graph, {"log": []}, on("t"))
    await s.audit(graph, "t")


class Counted(TypedDict):
    n: int
    left: RemainingSteps
    by_hand: Annotated[int, UntrackedValue]


@scenario
async def loop_until_too_long(s: Session) -> None:
    def count(state: Counted) -> dict[str, Any]:
        return {"n": state["n"] + (1 if state["left"] > 0 else 100)}

    graph = s.graph(
        Counted,
        {"count": count},
        ((START, "count"),),
        branches={"count": lambda state: END if state["n"] >= 6 else "count"},
    )
    await s.run("too long", graph, {"n": 0}, {**on("t"), "recursion_limit": 3})
    await s.run("go on", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def untracked_value(s: Session) -> None:
    def give(state: Counted) -> dict[str, Any]:
        return {"by_hand": 7, "n": state["n"] + 1}

    def take(state: Counted) -> dict[str, Any]:
        return {"n": state["n"] + state.get("by_hand", 1000)}

    nodes = {"give": give, "take": take, "late": take}
    edges = ((START, "give"), ("give", "take"), ("take", "late"))
    graph = s.graph(Counted, nodes, edges, interrupt_before=["late"])
    await s.run("until late", graph, {"n": 0, "by_hand": 1}, on("t"))
    await s.run("late", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def errors_of_nodes(s: Session) -> None:
    broken = [True]

    def fail(_: Log) -> Log:
        if broken[0]:
            raise ValueError("out of order", 7)
        return {"log": ["mended"]}

    nodes = {"a": says("a"), "b": fail, "c": says("c")}
    graph = s.graph(Log, nodes, LINE)
    await s.run("fails", graph, {"n": 0}, on("t"))
    await s.run("fails again", graph, None, on("t"))
    broken[0] = False
    await s.run("goes on", graph, None, on("t"))
    broken[0] = True
    await s.run("fails with new input", graph, {"log": ["new"]}, on("t"))
    await s.update(graph, on("t"), {"log": ["instead"]}, as_node="b")
    await s.run("goes on after an update", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def retries(s: Session) -> None:
    tries: list[int] = []

    def fail_twice(state: Log) -> Log:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return {"log": [f"after {len(tries)}"]}

    policy = RetryPolicy(initial_interval=0.001, max_attempts=5, jitter=False)
    graph = s.graph(Log, {"a": (fail_twice, {"retry_policy": policy}), "b": says("b")}, ((START, "a"), ("a", "b")))
    await s.run("run", graph, {"n": 0}, on("t"))
    s.note("tries", tries)
    await s.audit(graph, "t")


@scenario
async def no_store(s: Session) -> None:
    def look(_: Log, runtime: Runtime[None]) -> Log:
        return {"log": [f"store: {runtime.store}"]}

    graph = s.graph(Log, {"look": look}, ((START, "look"),))
    await s.run("run", graph, {"log": []}, on("t"))
    await s.audit(graph, "t")


@scenario
async def overwriting_a_reducer(s: Session) -> None:
    nodes = {"a": says("a"), "b": lambda _: {"log": Overwrite(["fresh"])}, "c": says("c")}
    graph = s.graph(Log, nodes, LINE)
    await s.run("run", graph, {"log": ["old"]}, on("t"))
    await s.update(graph, on("t"), {"log": Overwrite(["by hand"])}, as_node="a")
    await s.run("go on", graph, None, on("t"))
    await s.audit(graph, "t")
