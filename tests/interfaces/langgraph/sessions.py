"""A session runs graphs on a saver, with or without asyncio, and keeps a record of all that can be seen.

Scenarios are written once, as coroutines. Without asyncio nothing in them ever waits, so no event loop
is needed to run them; with it, nodes are coroutines too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.types import Durability

from tests.interfaces.langgraph.records import ADDRESS, Ids, pending, without_echoes
from tests.interfaces.langgraph.savers import asaver_of, saver_of

PATIENCE = 120.0
"""Seconds to wait for what must happen."""

Noted = tuple[str, Any]


class Session:
    def __init__(self, saver: BaseCheckpointSaver[Any], *, asynchronous: bool) -> None:
        self.saver = saver
        self.asynchronous = asynchronous
        self.ids = Ids()
        self.record: list[Noted] = []
        self.durability: Durability | None = None
        """When graphs save, unless a call says otherwise; LangGraph's default if None."""

    # Building

    def node(self, function: Callable[..., Any]) -> Any:
        """A node's function, as a coroutine where there is asyncio."""
        if not self.asynchronous or inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        async def node(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            return function(*arguments, **named)

        return node

    def graph(
        self,
        schema: Any,
        nodes: Mapping[str, Any],
        edges: Iterable[tuple[Any, str]] = (),
        *,
        branches: Mapping[str, Callable[..., Any]] | None = None,
        schemas: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compile a graph on the session's saver. A node is a function, a runnable, or one of them with options."""
        builder: Any = StateGraph(schema, **(schemas or {}))
        for name, node in nodes.items():
            what, more = node if isinstance(node, tuple) else (node, {})
            builder.add_node(name, what if isinstance(what, Runnable) else self.node(what), **more)
        for start, end in edges:
            builder.add_edge(start, end)
        for start, choose in (branches or {}).items():
            builder.add_conditional_edges(start, choose)
        return builder.compile(**{"checkpointer": self.saver, **options})

    # Running

    async def invoke(self, graph: Any, given: Any, config: Any, **options: Any) -> Any:
        options = {"durability": self.durability, **options}
        if self.asynchronous:
            return await graph.ainvoke(given, config, **options)
        return graph.invoke(given, config, **options)

    async def run(self, label: str, graph: Any, given: Any, config: Any, **options: Any) -> None:
        """Invoke, and note what came of it and the state afterwards."""
        result: Any
        try:
            result = await self.invoke(graph, given, config, **options)
        except Exception as error:
            result = error
        self.note(label, result)
        await self.state(f"{label}, then", graph, latest(config))

    async def run_unnoted(self, label: str, graph: Any, given: Any, config: Any, **options: Any) -> None:
        """The same, where what comes of it is in no order: questions of nodes that run at the same time."""
        await self.invoke(graph, given, config, **options)
        await self.state(f"{label}, then", graph, latest(config))

    async def stream(self, label: str, graph: Any, given: Any, config: Any, **options: Any) -> list[Any]:
        options = {"durability": self.durability, **options}
        if self.asynchronous:
            events = [event async for event in graph.astream(given, config, **options)]
        else:
            events = list(graph.stream(given, config, **options))
        for event in events:
            self.note(label, without_times(event))
        return events

    async def state(self, label: str, graph: Any, config: Any, *, subgraphs: bool = True) -> Any:
        if self.asynchronous:
            found = await graph.aget_state(config, subgraphs=subgraphs)
        else:
            found = graph.get_state(config, subgraphs=subgraphs)
        self.record.append((label, self.ids.snapshot(found)))
        return found

    async def history(self, label: str, graph: Any, config: Any, **options: Any) -> list[Any]:
        if self.asynchronous:
            found = [state async for state in graph.aget_state_history(config, **options)]
        else:
            found = list(graph.get_state_history(config, **options))
        self.record.extend((label, self.ids.snapshot(state)) for state in found)
        return found

    async def update(self, graph: Any, config: Any, values: Any, **options: Any) -> Any:
        if self.asynchronous:
            written = await graph.aupdate_state(config, values, **options)
        else:
            written = graph.update_state(config, values, **options)
        self.record.append(("updated", self.ids.config(written)))
        return written

    async def bulk(self, graph: Any, config: Any, supersteps: Sequence[Sequence[Any]]) -> Any:
        if self.asynchronous:
            written = await graph.abulk_update_state(config, supersteps)
        else:
            written = graph.bulk_update_state(config, supersteps)
        self.record.append(("updated in bulk", self.ids.config(written)))
        return written

    # The saver itself

    async def found(self, config: Any) -> CheckpointTuple | None:
        if self.asynchronous:
            return await self.saver.aget_tuple(config)
        return self.saver.get_tuple(config)

    async def listed(self, config: Any, **options: Any) -> list[CheckpointTuple]:
        if self.asynchronous:
            return [each async for each in self.saver.alist(config, **options)]
        return list(self.saver.list(config, **options))

    async def until_written(self, config: Any, count: int) -> None:
        """Wait until the latest checkpoint has so many tasks whose writes are saved."""
        deadline = time.monotonic() + PATIENCE
        while tasks_written(await self.saver.aget_tuple(config)) < count:
            assert time.monotonic() < deadline, "the writes of the other tasks are not there"
            await asyncio.sleep(0.002)

    def wait_until_written(self, config: Any, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while tasks_written(self.saver.get_tuple(config)) < count:
            assert time.monotonic() < deadline, "the writes of the other tasks are not there"
            time.sleep(0.002)

    # The record

    def note(self, label: str, value: Any) -> None:
        self.record.append((label, self.ids.values(value)))

    async def audit(self, graph: Any, thread: str, *, delta: Sequence[str] = (), ask: bool = True) -> None:
        """Note all that is known of a thread: the history as LangGraph tells it, and what the saver has.

        `ask` lists the checkpoints in other ways, too; with `delta`, the histories of those channels are noted.
        """
        config = on(thread)
        await self.state("state at last", graph, config)
        await self.history("history", graph, config)
        everything = await self.listed(config)
        by_namespace: dict[str, list[CheckpointTuple]] = {}
        for each in everything:
            by_namespace.setdefault(each.config["configurable"]["checkpoint_ns"], []).append(each)
        for namespace in sorted(by_namespace, key=lambda name: (self.ids.rank(name), name)):
            inside = on(thread, checkpoint_ns=namespace)
            listed = await self.audit_namespace(inside, by_namespace[namespace])
            if ask:
                await self.ask(inside, listed)
            if delta:
                for each in listed:
                    await self.audit_delta(each, delta)

    async def audit_namespace(self, config: Any, expected: list[CheckpointTuple]) -> list[CheckpointTuple]:
        stored = self.ids.stored
        listed = await self.listed(config)
        assert [stored(each) for each in listed] == [stored(each) for each in expected]
        heard = without_echoes(listed) if isinstance(self.saver, InMemorySaver) else listed
        self.record.extend(("listed", stored(each)) for each in heard)
        latest = await self.found(config)
        assert latest is not None
        assert stored(latest) == stored(listed[0])
        for each in listed:
            found = await self.found(each.config)
            assert found is not None
            assert stored(found) == stored(each), "get_tuple and list do not agree"
            assert [stored(one) for one in await self.listed(each.config)] == [stored(each)]
        return listed

    async def ask(self, config: Any, listed: list[CheckpointTuple]) -> None:
        """Note how the checkpoints of a namespace are listed with filters, bounds and limits."""
        questions: list[dict[str, Any]] = [
            {"filter": {"source": "loop"}},
            {"filter": {"source": "input"}, "limit": 1},
            {"filter": {"step": 1}},
            {"filter": {"source": "loop", "step": 0}},
            {"filter": {"source": "nowhere"}},
            {"filter": {}},
            {"filter": {"user": "ann"}},
            {"limit": 0},
            {"limit": 2},
            *({"before": each.config, "limit": 2} for each in listed),
            *({"before": each.config, "filter": {"source": "loop"}} for each in listed[:2]),
        ]
        for question in questions:
            answer = [self.ids.text(each.checkpoint["id"]) for each in await self.listed(config, **question)]
            self.record.append((f"list {self.ids.plain(question)}", answer))

    async def audit_delta(self, each: CheckpointTuple, channels: Sequence[str]) -> None:
        if self.asynchronous:
            histories = await self.saver.aget_delta_channel_history(config=each.config, channels=channels)
        else:
            histories = self.saver.get_delta_channel_history(config=each.config, channels=channels)
        for channel in channels:
            history = histories[channel]
            writes = [(self.ids.text(task), name, self.ids.plain(value)) for task, name, value in history["writes"]]
            seed = self.ids.plain(history["seed"]) if "seed" in history else "none"
            self.record.append((f"delta of {channel}", (self.ids.text(each.checkpoint["id"]), seed, writes)))


Scenario = Callable[[Session], Coroutine[Any, Any, None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Have a scenario run on every kind of saver."""
    assert function.__name__ not in SCENARIOS
    SCENARIOS[function.__name__] = function
    return function


def program(function: Scenario) -> Scenario:
    """Have a program run as a scenario, each step saved before the next: LangGraph fills lists that it has given to
    the saver, and a saver that is behind may find more in them."""

    @functools.wraps(function)
    async def run(session: Session) -> None:
        session.durability = "sync"
        await function(session)

    return scenario(run)


def tasks_written(found: CheckpointTuple | None) -> int:
    return len({task for task, _, _ in pending(found)}) if found else 0


def on(thread: str, **more: Any) -> RunnableConfig:
    """A config that names a thread."""
    return {"configurable": {"thread_id": thread, **more}}


def latest(config: Mapping[str, Any]) -> RunnableConfig:
    """A config that names the latest checkpoint of the thread of a config."""
    return on(config["configurable"]["thread_id"])


def without_times(event: Any) -> Any:
    """A streamed event, without the moment it happened, and with the configs in it cut down to addresses."""
    if isinstance(event, tuple):
        return tuple(without_times(part) for part in event)
    if isinstance(event, list):
        return [without_times(part) for part in event]
    if not isinstance(event, dict):
        return event
    cut = {key: without_times(value) for key, value in event.items() if key != "timestamp"}
    for key in ("config", "parent_config"):
        if isinstance(config := cut.get(key), dict) and "configurable" in config:
            cut[key] = {name: config["configurable"][name] for name in ADDRESS if name in config["configurable"]}
    return cut


def finish(coroutine: Coroutine[Any, Any, list[Noted]]) -> list[Noted]:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        noted: list[Noted] = end.value
        return noted
    raise AssertionError("something waits that must not")


def record_of(name: str, kind: str, folder: Path, *, asynchronous: bool) -> list[Noted]:
    """Run a scenario on a saver of a kind."""

    async def with_asyncio() -> list[Noted]:
        async with asaver_of(kind, folder) as saver:
            return await play(Session(saver, asynchronous=True), name)

    if asynchronous:
        return asyncio.run(with_asyncio())
    with saver_of(kind, folder) as saver:
        return finish(play(Session(saver, asynchronous=False), name))


async def play(session: Session, name: str) -> list[Noted]:
    await SCENARIOS[name](session)
    assert session.record, "nothing was noted"
    return session.record
