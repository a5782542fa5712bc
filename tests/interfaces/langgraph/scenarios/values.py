"""Values of many types in channels, in inputs of tasks, in questions and answers."""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core.documents import Document
from langgraph.graph import START
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tests.interfaces.langgraph.sessions import Session, on, scenario


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mood(StrEnum):
    CALM = "calm"


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class Step:
    name: str
    tries: int = 0
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Plan:
    steps: list[Step]
    goal: str = "none"


class Tool(BaseModel):
    name: str
    weight: float = Field(default=1.0, ge=0)
    colour: Colour = Colour.RED
    made: datetime | None = None


class Anything(TypedDict, total=False):
    value: Any
    seen: Annotated[list[Any], operator.add]


SCALARS: list[Any] = [
    None, True, False, 0, -1, 2**63 - 1, 1.5, -0.0, float("inf"), "", "ünï\N{SLICE OF PIZZA}", b"\x00\xff",
]  # fmt: skip
CONTAINERS: list[Any] = [
    [], {}, (), [1, [2, (3, {"four": 4})]], {"b": 1, "a": {"z": [], "y": None}}, (1, "two"), {1, 2, 3},
    frozenset({"x"}), deque([1, 2]), {"": 1, "dots.and/more": 2},
]  # fmt: skip
LIBRARY: list[Any] = [
    datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC), datetime(2024, 1, 1), date(2024, 2, 29), time(1, 2, 3),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))), timedelta(days=-1, seconds=5),
    UUID("12345678-1234-5678-1234-567812345678"), Decimal("1.10"), IPv4Address("10.0.0.1"), Path("a/b"),
    ZoneInfo("UTC"),
]  # fmt: skip
OWN: list[Any] = [
    Colour.BLUE, Level.HIGH, Mood.CALM, Point(1.5), Step("look", 2, {"a"}), Plan([Step("one"), Step("two", 1)], "kelp"),
    Tool(name="saw", colour=Colour.BLUE, made=datetime(2024, 1, 1, tzinfo=UTC)),
    Document("page", id="d", metadata={"page": 3}), Send("pass", {"value": Point(2.0, 3.0)}),
]  # fmt: skip


async def passed(s: Session, values: list[Any]) -> None:
    """Have each value go through an input, a node's write, a question and an answer, and an update by hand."""

    def give(state: Anything) -> Anything:
        return {"value": state["value"], "seen": [state["value"]]}

    def ask(state: Anything) -> Anything:
        return {"seen": [interrupt(state["value"])]}

    graph = s.graph(Anything, {"pass": give, "ask": ask}, ((START, "pass"), ("pass", "ask")))
    for number, value in enumerate(values):
        thread = f"thread {number}"
        await s.run("given", graph, {"value": value}, on(thread))
        await s.run("answered", graph, Command(resume=value), on(thread))
        await s.update(graph, on(thread), {"value": [value], "seen": [{"k": value}]}, as_node="ask")
        await s.audit(graph, thread, ask=False)


@scenario
async def scalars(s: Session) -> None:
    await passed(s, SCALARS)


@scenario
async def containers(s: Session) -> None:
    await passed(s, CONTAINERS)


@scenario
async def values_of_the_library(s: Session) -> None:
    await passed(s, LIBRARY)


@scenario
async def values_of_own_classes(s: Session) -> None:
    await passed(s, OWN)


class Typed(TypedDict, total=False):
    plan: Plan
    tools: Annotated[list[Tool], operator.add]
    points: set[Point]
    colours: dict[Colour, Point]


@scenario
async def a_schema_of_own_classes(s: Session) -> None:
    def more(state: Typed) -> Typed:
        tools = state.get("tools", [])
        plan = Plan([*state["plan"].steps, Step(f"step {len(tools)}")], "on")
        return {"plan": plan, "tools": [Tool(name=f"tool {len(tools)}")], "points": {Point(float(len(tools)))}}

    graph = s.graph(Typed, {"a": more, "b": more}, ((START, "a"), ("a", "b")))
    await s.run("one", graph, {"plan": Plan([])}, on("t"))
    await s.run("two", graph, {"plan": Plan([Step("given")]), "points": {Point(1.0), Point(2.0)}}, on("t"))
    await s.audit(graph, "t")


@scenario
async def values_mutated_in_place(s: Session) -> None:
    """A node may change what it was given; only what it returns is a write, yet the change stays in memory."""

    def mutate(state: dict[str, Any]) -> dict[str, Any]:
        state["value"]["list"].append(len(state["value"]["list"]))
        return {"value": state["value"], "seen": [list(state["value"]["list"])]}

    nodes = dict.fromkeys(("a", "b", "c"), mutate)
    graph = s.graph(Anything, nodes, ((START, "a"), ("a", "b"), ("b", "c")))
    await s.run("run", graph, {"value": {"list": [], "big": "x" * 200_000}}, on("t"), durability="sync")
    await s.run("again", graph, {"seen": ["again"]}, on("t"), durability="sync")
    await s.audit(graph, "t")
