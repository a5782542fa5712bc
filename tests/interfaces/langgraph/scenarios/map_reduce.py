"""Work that is spread over many tasks and collected again: map-reduce, trees, deferred nodes, retries of parts."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langgraph.func import entrypoint, task
from langgraph.graph import END, START
from langgraph.types import Command, RetryPolicy, Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.interfaces.langgraph.sessions import Session, on, program


class Section(BaseModel):
    title: str
    words: int = 0


class Report(TypedDict, total=False):
    topic: str
    sections: list[Section]
    finished: Annotated[list[str], operator.add]
    report: str


@program
async def orchestrator_and_workers(s: Session) -> None:
    def plan(state: Report) -> Report:
        return {"sections": [Section(title=f"{state['topic']} {n}", words=n * 10) for n in range(1, 5)]}

    def write(job: dict[str, Any]) -> dict[str, Any]:
        return {"finished": [f"{job['section'].title}: {job['section'].words} words"]}

    def collect(state: Report) -> Report:
        return {"report": "\n".join(state["finished"])}

    graph = s.graph(
        Report, {"plan": plan, "write": write, "collect": collect},
        ((START, "plan"), ("write", "collect"), ("collect", END)),
        branches={"plan": lambda state: [Send("write", {"section": section}) for section in state["sections"]]},
    )  # fmt: skip
    await s.run("one", graph, {"topic": "kelp"}, on("t"))
    await s.run("in pieces", graph, {"topic": "tides"}, on("u"), interrupt_before=["write"])
    await s.update(graph, on("u"), {"sections": [Section(title="only")]}, as_node="plan")
    await s.run("in pieces, on", graph, None, on("u"))
    await s.audit(graph, "t", ask=False)
    await s.audit(graph, "u", ask=False)


class Tree(TypedDict, total=False):
    depth: int
    thoughts: Annotated[list[tuple[str, float]], operator.add]
    beam: list[str]
    answer: str


@program
async def a_tree_of_thoughts(s: Session) -> None:
    def expand(seed: dict[str, Any]) -> dict[str, Any]:
        path = seed["path"]
        return {"thoughts": [(f"{path}{letter}", (len(path) * 7 + ord(letter)) % 5 / 4) for letter in "ab"]}

    def prune(state: Tree) -> Command[Any]:
        depth = state.get("depth", 0) + 1
        newest = [each for each in state["thoughts"] if len(each[0]) == depth]
        beam = [path for path, _ in sorted(newest, key=lambda each: (-each[1], each[0]))[:2]]
        if depth == 4:
            return Command(goto=END, update={"answer": beam[0], "depth": depth, "beam": beam})
        return Command(goto=[Send("expand", {"path": path}) for path in beam], update={"depth": depth, "beam": beam})

    nodes = {"start": lambda _: {"depth": 0}, "expand": expand, "prune": (prune, {"destinations": ("expand", END)})}
    graph = s.graph(
        Tree, nodes, ((START, "start"), ("expand", "prune")),
        branches={"start": lambda _: [Send("expand", {"path": ""})]},
    )  # fmt: skip
    await s.run("one", graph, {"thoughts": []}, on("t"))
    await s.audit(graph, "t", ask=False)


class Spread(TypedDict, total=False):
    items: list[int]
    results: Annotated[list[Any], operator.add]


@program
async def a_deferred_node_after_branches_of_any_length(s: Session) -> None:
    def collect(state: Spread) -> Spread:
        return {"results": [("collected", len(state["results"]))]}

    nodes: dict[str, Any] = {
        "spread": lambda _: {},
        "short": lambda job: {"results": [("short", job["item"])]},
        "long": lambda job: Command(goto=Send("longer", {"item": job["item"] * 10}), update={"results": ["long"]}),
        "longer": lambda job: {"results": [("longer", job["item"])]},
        "collect": (collect, {"defer": True}),
        "end": lambda state: {"results": [len(state["results"])]},
    }

    def choose(state: Spread) -> list[Send]:
        return [Send("long" if item % 2 else "short", {"item": item}) for item in state["items"]]

    edges = (
        (START, "spread"), ("short", "collect"), ("long", "collect"), ("longer", "collect"), ("collect", "end"),
    )  # fmt: skip
    graph = s.graph(Spread, nodes, edges, branches={"spread": choose}, interrupt_before=["collect"])
    await s.run("spread", graph, {"items": [1, 2, 3, 4]}, on("t"))
    await s.run("collected", graph, None, on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def parts_that_are_tried_again(s: Session) -> None:
    tries: dict[int, int] = {}
    policy = RetryPolicy(initial_interval=0.001, max_attempts=3, jitter=False, retry_on=(TimeoutError,))

    def fetch(number: int) -> dict[str, int]:
        tries[number] = tries.get(number, 0) + 1
        if number % 2 and tries[number] < 3:
            raise TimeoutError(f"{number} is slow")
        return {"number": number, "tries": tries[number]}

    retried: Any = task(retry_policy=policy)

    async def afetch(number: int) -> dict[str, int]:
        return fetch(number)

    get, aget = retried(fetch), retried(afetch)

    def body(numbers: list[int]) -> Any:
        return {"pages": [future.result() for future in [get(number) for number in numbers]]}

    async def abody(numbers: list[int]) -> Any:
        return {"pages": [await future for future in [aget(number) for number in numbers]]}

    graph: Any = entrypoint(checkpointer=s.saver)(abody if s.asynchronous else body)
    await s.run("one", graph, [1, 2, 3], on("t"))
    await s.run("two", graph, [3, 4, 5], on("t"))
    s.note("tries", sorted(tries.items()))
    await s.audit(graph, "t", ask=False)
