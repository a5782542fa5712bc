"""Channels and reducers of one's own, and the rarer ones of LangGraph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, Self

from langgraph.channels import AnyValue, EphemeralValue, LastValue, Topic
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyChannelError, InvalidUpdateError
from langgraph.graph import END, START
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, RetryPolicy, Send
from pydantic import BaseModel, Field, ValidationError, field_validator
from typing_extensions import TypedDict

from tests.interfaces.langgraph.sessions import Session, on, program


class Window(BaseChannel[list[Any], Any, dict[str, Any]]):
    """Keeps the last few values, and how many there were: what it saves is not what it shows."""

    def __init__(self, typ: Any, size: int = 3) -> None:
        super().__init__(typ)
        self.size = size
        self.items: list[Any] = []
        self.count = 0

    @property
    def ValueType(self) -> Any:
        return list

    @property
    def UpdateType(self) -> Any:
        return self.typ

    def checkpoint(self) -> Any:
        return {"items": list(self.items), "count": self.count}

    def from_checkpoint(self, checkpoint: Any) -> Self:
        new = self.__class__(self.typ, self.size)
        new.key = self.key
        if isinstance(checkpoint, dict):
            new.items, new.count = list(checkpoint["items"]), checkpoint["count"]
        return new

    def get(self) -> list[Any]:
        if not self.count:
            raise EmptyChannelError
        return [self.count, *self.items]

    def update(self, values: Sequence[Any]) -> bool:
        self.items = [*self.items, *values][-self.size :]
        self.count += len(values)
        return bool(values)


class Sensors(TypedDict, total=False):
    readings: Annotated[int, Window(int, 2)]
    any_of: Annotated[str, AnyValue]
    once: Annotated[str, EphemeralValue]
    topic: Annotated[list[str], Topic(str, accumulate=True)]
    mail: Annotated[list[str], Topic(str)]


@program
async def channels_of_every_kind(s: Session) -> None:
    def read(name: str) -> Any:
        def node(state: dict[str, Any]) -> dict[str, Any]:
            shown = f"{name}: {state.get('once')} {state.get('mail')} {len(state.get('topic', []))}"
            return {"readings": len(shown), "any_of": "same", "once": name, "topic": shown, "mail": name}

        return node

    nodes = {name: read(name) for name in ("a", "b", "end")}
    graph = s.graph(Sensors, nodes, ((START, "a"), ("a", "b"), ("b", "end")), interrupt_before=["end"])
    for turn in range(3):
        await s.run(f"turn {turn}", graph, {"readings": turn, "once": "given", "topic": "in"}, on("t"))
        await s.run(f"turn {turn}, on", graph, None, on("t"))
    await s.audit(graph, "t", ask=False)


def merge_documents(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    """Merge deeply; None removes."""
    merged = dict(old or {})
    for key, value in (new or {}).items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge_documents(merged.get(key), value)
        else:
            merged[key] = value
    return merged


class Reduced(TypedDict, total=False):
    tree: Annotated[dict[str, Any], merge_documents]
    best: Annotated[int, lambda old, new: max(old, new)]
    tags: Annotated[set[str], operator.or_]
    last: Annotated[list[int], lambda old, new: [*old, *new][-3:]]
    counts: Annotated[dict[int, int], lambda old, new: {k: old.get(k, 0) + new.get(k, 0) for k in {**old, **new}}]


@program
async def reducers_of_ones_own(s: Session) -> None:
    def work(job: dict[str, Any]) -> Any:
        number = job["number"]
        tree = {"jobs": {str(number): {"done": True}, "0": None}}
        return {"tree": tree, "best": number, "tags": {f"t{number % 2}"}, "last": [number], "counts": {number % 3: 1}}

    graph = s.graph(
        Reduced, {"plan": lambda _: {"best": 0}, "work": work, "end": lambda _: {"tree": {"ended": {"at": 1}}}},
        ((START, "plan"), ("work", "end")),
        branches={"plan": lambda _: [Send("work", {"number": number}) for number in range(5)]},
    )  # fmt: skip
    await s.run("one", graph, {"tree": {"jobs": {"9": {"done": False}}}, "best": -1}, on("t"))
    await s.run("two", graph, {"tree": {"jobs": None}, "tags": {"again"}}, on("t"))
    await s.audit(graph, "t", ask=False)


class Address(BaseModel):
    street: str
    zip: str = Field(pattern=r"^\d{5}$")


class Order(BaseModel):
    id: int
    address: Address | None = None
    lines: Annotated[list[dict[str, float]], operator.add] = Field(default_factory=list)
    status: Literal["new", "paid", "sent"] = "new"

    @field_validator("id")
    @classmethod
    def positive(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("an id is positive")
        return value


@program
async def validated_states(s: Session) -> None:
    def pay(state: Order) -> dict[str, Any]:
        return {"status": "paid", "lines": [{"price": state.id / 2}]}

    def send(state: Order) -> dict[str, Any]:
        assert state.address is not None
        return {"status": "sent", "address": Address(street=state.address.street.upper(), zip="00000")}

    graph = s.graph(Order, {"pay": pay, "send": send}, ((START, "pay"), ("pay", "send")), interrupt_before=["send"])
    try:
        await s.invoke(graph, {"id": -1}, on("refused"))
    except ValidationError as error:
        s.note("refused", str(error))
    s.record.extend(("refused, saved", s.ids.stored(each)) for each in await s.listed(on("refused")))
    await s.run("paid", graph, {"id": 7, "address": {"street": "quay", "zip": "12345"}}, on("t"))
    await s.update(graph, on("t"), {"address": Address(street="pier", zip="54321")}, as_node="pay")
    await s.run("sent", graph, None, on("t"))
    await s.run("as a model", graph, Order(id=8, lines=[{"price": 1.0}]), on("u"))
    await s.audit(graph, "t", ask=False)
    await s.audit(graph, "u", ask=False)


@dataclass
class Position:
    x: int = 0
    y: int = 0


@dataclass
class Robot:
    at: Position = field(default_factory=Position)
    trail: Annotated[list[Position], operator.add] = field(default_factory=list)
    battery: float = 1.0


@program
async def nested_dataclasses_in_a_loop(s: Session) -> None:
    def move(state: Robot) -> dict[str, Any]:
        at = Position(state.at.x + 1, state.at.y + state.at.x)
        return {"at": at, "trail": [at], "battery": round(state.battery - 0.25, 2)}

    graph = s.graph(
        Robot, {"move": move}, ((START, "move"),),
        branches={"move": lambda state: END if state.battery <= 0 else "move"},
    )  # fmt: skip
    await s.run("until empty", graph, Robot(), on("t"))
    await s.run("charged", graph, {"battery": 0.5}, on("t"))
    await s.audit(graph, "t", ask=False)


@program
async def graphs_of_pregel_nodes(s: Session) -> None:
    """The API below StateGraph: channels by hand."""
    one = NodeBuilder().subscribe_only("a").do(s.node(lambda text: text + text)).write_to("b", "log")
    two = NodeBuilder().subscribe_to("b").do(s.node(lambda given: f"{given['b']}!")).write_to("c", "log")
    graph: Any = Pregel(
        nodes={"one": one, "two": two},
        channels={
            "a": EphemeralValue(str),
            "b": LastValue(str),
            "c": LastValue(str),
            "log": Topic(str, accumulate=True),
        },
        input_channels=["a"],
        output_channels=["b", "c", "log"],
        checkpointer=s.saver,
    )
    await s.run("one", graph, {"a": "kelp"}, on("t"))
    await s.run("two", graph, {"a": "tide"}, on("t"))
    await s.audit(graph, "t", ask=False)


class Attempts(TypedDict):
    log: Annotated[list[str], operator.add]
    tries: NotRequired[int]


class Busy(Exception): ...


@program
async def policies_of_retries(s: Session) -> None:
    tries: dict[str, int] = {}

    def flaky(name: str, error: type[Exception], times: int) -> Any:
        def node(_: Attempts) -> dict[str, Any]:
            tries[name] = tries.get(name, 0) + 1
            if tries[name] <= times:
                raise error(f"{name} {tries[name]}")
            return {"log": [f"{name} after {tries[name]}"]}

        return node

    def policy(error: type[Exception], most: int) -> RetryPolicy:
        return RetryPolicy(retry_on=error, max_attempts=most, initial_interval=0.001, jitter=False)

    nodes = {
        "busy": (flaky("busy", Busy, 3), {"retry_policy": [policy(KeyError, 2), policy(Busy, 5)]}),
        "down": (flaky("down", ConnectionError, 3), {"retry_policy": policy(ConnectionError, 2)}),
        "end": lambda state: {"log": ["end"], "tries": len(state["log"])},
    }
    graph = s.graph(Attempts, nodes, ((START, "busy"), ("busy", "down"), ("down", "end")))
    await s.run("down fails", graph, {"log": []}, on("t"))
    await s.run("and works", graph, None, on("t"))
    s.note("tries", tries)
    await s.audit(graph, "t", ask=False)


class Single(TypedDict, total=False):
    value: int


@program
async def two_writers_of_one_value(s: Session) -> None:
    nodes = {"a": lambda _: {"value": 1}, "b": lambda _: {"value": 2}}
    graph = s.graph(Single, nodes, ((START, "a"), (START, "b")))
    try:
        await s.invoke(graph, {"value": 0}, on("t"))
        raise AssertionError("two writers of one value were accepted")
    except InvalidUpdateError:
        s.note("refused", "InvalidUpdateError")
    await s.update(graph, on("t"), {"value": 5}, as_node="a")
    await s.run("sent to one", graph, Command(goto="b"), on("t"))
    await s.audit(graph, "t", ask=False)
