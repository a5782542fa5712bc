"""Time travel: replays, forks, and states changed by hand."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START
from langgraph.types import StateUpdate

from tests.interfaces.langgraph.scenarios.basics import LINE, Log, says
from tests.interfaces.langgraph.sessions import Session, on, scenario


def line(s: Session, **options: Any) -> Any:
    return s.graph(Log, {name: says(name) for name in "abc"}, LINE, **options)


async def at(s: Session, graph: Any, *following: str, thread: str = "t") -> Any:
    """The latest checkpoint after which these nodes come."""
    history = await s.history("looking back", graph, on(thread))
    return next(state.config for state in history if state.next == following)


@scenario
async def replay(s: Session) -> None:
    graph = line(s)
    await s.run("run", graph, {"log": ["in"]}, on("t"))
    await s.run("from b", graph, None, await at(s, graph, "b"))
    await s.run("from the start", graph, None, await at(s, graph, "__start__"))
    await s.run("from the end", graph, None, await at(s, graph))
    await s.audit(graph, "t")


@scenario
async def new_input_at_an_older_checkpoint(s: Session) -> None:
    graph = line(s)
    await s.run("run", graph, {"log": ["in"]}, on("t"))
    await s.run("other input", graph, {"log": ["other"]}, await at(s, graph, "c"))
    await s.run("at the latest", graph, {"log": ["latest"]}, on("t"))
    await s.audit(graph, "t")


@scenario
async def forks(s: Session) -> None:
    graph = line(s)
    await s.run("run", graph, {"log": ["in"]}, on("t"))
    middle = await at(s, graph, "b")
    left = await s.update(graph, middle, {"log": ["left"], "n": 100})
    right = await s.update(graph, middle, {"log": ["right"], "n": 200})
    await s.run("right", graph, None, right)
    await s.run("left", graph, None, left)
    await s.state("the middle is as it was", graph, middle)
    copied = await s.update(graph, middle, None, as_node="__copy__")
    await s.run("copied", graph, None, copied)
    await s.audit(graph, "t")


@scenario
async def updates_as_nodes(s: Session) -> None:
    graph = line(s)
    await s.update(graph, on("t"), {"log": ["first of all"]})
    await s.state("not run yet", graph, on("t"))
    await s.update(graph, on("t"), {"log": ["as a"], "n": 1}, as_node="a")
    await s.state("before b", graph, on("t"))
    await s.run("go on", graph, None, on("t"))
    await s.update(graph, on("t"), None)
    await s.update(graph, on("t"), {"log": ["as b"]}, as_node="b")
    await s.update(graph, on("t"), None, as_node=END)
    await s.state("ended", graph, on("t"))
    await s.update(graph, on("t"), {"log": ["as input"]}, as_node="__input__")
    await s.run("go on with it", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def updates_in_bulk(s: Session) -> None:
    graph = line(s)
    steps = [
        [StateUpdate({"log": ["in"]}, "__input__")],
        [StateUpdate({"log": ["a1"], "n": 1}, "a")],
        [StateUpdate({"log": ["b1"]}, "b"), StateUpdate({"log": ["b2"]}, "b"), StateUpdate({"n": 7}, "b")],
    ]
    await s.bulk(graph, on("t"), steps)
    await s.state("then", graph, on("t"))
    await s.run("go on", graph, None, on("t"))
    await s.bulk(graph, await at(s, graph, "b"), [[StateUpdate({"log": ["late"]}, "b")]])
    await s.run("go on again", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def update_while_interrupted(s: Session) -> None:
    graph = line(s, interrupt_before=["b"])
    await s.run("stops", graph, {"log": ["in"]}, on("t"))
    await s.update(graph, on("t"), {"n": 50})
    await s.update(graph, on("t"), {"log": ["skip"]}, as_node="b")
    await s.run("b is skipped", graph, None, on("t"))
    await s.run("back, b is not", graph, None, await at(s, graph, "b"))
    await s.audit(graph, "t")


@scenario
async def deleted_threads(s: Session) -> None:
    graph = line(s)
    for thread in ("t", "u"):
        await s.run("run", graph, {"log": [thread]}, on(thread))
    if s.asynchronous:
        await s.saver.adelete_thread("t")
    else:
        s.saver.delete_thread("t")
    await s.audit(graph, "t")
    await s.audit(graph, "u")
    await s.run("anew", graph, {"log": ["anew"]}, on("t"))
    await s.audit(graph, "t")


@scenario
async def odd_names_of_threads(s: Session) -> None:
    graph = s.graph(Log, {"a": says("a")}, ((START, "a"),))
    for thread in ("", "a:b|c/d", "ünïcode \N{SLICE OF PIZZA}", "x" * 500, "%", "__main__", "a\nb"):
        await s.run("run", graph, {"log": [thread]}, on(thread))
        await s.audit(graph, thread)
