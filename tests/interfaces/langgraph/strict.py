"""Run by the tests of strict mode, in a process of its own: LangGraph reads the setting when it is imported."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.graph import START
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.interfaces.langgraph.savers import asaver_of, saver_of
from tests.interfaces.langgraph.sessions import Session, finish, on


@dataclass
class Known:
    """Named in the schema of the graph."""

    text: str


class Model(BaseModel):
    """Named in the schema of the graph, as what a list holds."""

    text: str


class Colour(Enum):
    """Named in the schema of the graph, as a part of a union."""

    RED = "red"


@dataclass
class Unknown:
    """Put into a channel whose type says nothing of it."""

    text: str


class UnknownModel(BaseModel):
    text: str


class UnknownColour(Enum):
    BLUE = "blue"


class State(TypedDict, total=False):
    known: Known
    models: list[Model]
    colour: Colour | None
    message: HumanMessage
    anything: Any
    steps: int


UNKNOWN = (Unknown, UnknownModel, UnknownColour)


def start(_: State) -> State:
    return {
        "known": Known("k"),
        "models": [Model(text="m")],
        "colour": Colour.RED,
        "message": HumanMessage("h", id="h"),
        "anything": [Unknown("u"), UnknownModel(text="u"), UnknownColour.BLUE, {"deep": (Unknown("d"),)}],
        "steps": 1,
    }


def go_on(state: State) -> State:
    return {"steps": state["steps"] + 1, "known": Known(state["known"].text + interrupt("well?"))}


def instances(value: Any) -> list[str]:
    """The classes that must not be there, and are."""
    if isinstance(value, UNKNOWN):
        return [type(value).__name__]
    if isinstance(value, dict):
        return [name for item in value.values() for name in instances(item)]
    if isinstance(value, list | tuple):
        return [name for item in value for name in instances(item)]
    return []


async def observe(session: Session) -> list[tuple[str, Any]]:
    graph = session.graph(State, {"start": start, "go on": go_on}, ((START, "start"), ("start", "go on")))
    await session.invoke(graph, {"steps": 0}, on("t"))
    stopped = (await session.state("stopped", graph, on("t"))).values
    await session.invoke(graph, Command(resume="!"), on("t"))
    values = (await session.state("ended", graph, on("t"))).values
    await session.update(graph, on("t"), {"steps": 10}, as_node="start")
    updated = (await session.state("updated", graph, on("t"))).values
    history = await session.history("all", graph, on("t"))
    kept = ("known", "models", "colour", "message")
    return [
        ("kept", {name: repr(values[name]) for name in kept}),
        ("kept when stopped", {name: type(stopped[name]).__name__ for name in kept}),
        ("revived", instances([stopped, values, updated, [state.values for state in history]])),
        ("anything", repr(values["anything"])),
        ("steps", [stopped["steps"], values["steps"], updated["steps"]]),
        ("next", list(stopped and history[0].next)),
    ]


async def with_asyncio(kind: str, folder: Path) -> list[tuple[str, Any]]:
    async with asaver_of(kind, folder) as saver:
        return await observe(Session(saver, asynchronous=True))


def observed(folder: Path, kinds: Sequence[str]) -> dict[str, Any]:
    """What a graph shows on each kind of saver, without asyncio and with it."""
    seen: dict[str, Any] = {}
    for kind in kinds:
        for called in ("sync", "async"):
            place = folder / f"{kind} {called}"
            place.mkdir()
            if called == "async":
                seen[place.name] = dict(asyncio.run(with_asyncio(kind, place)))
            else:
                with saver_of(kind, place) as saver:
                    seen[place.name] = dict(finish(observe(Session(saver, asynchronous=False))))
    return seen


if __name__ == "__main__":
    # Classes in data are named by their module, and `__main__` is another one for whoever reads them.
    from tests.interfaces.langgraph import strict

    print(json.dumps(strict.observed(Path(sys.argv[1]), sys.argv[2:])))
