"""Memory beyond a thread: the store, the cache of nodes, summaries, context."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langchain_core.runnables import RunnableConfig
from langgraph.cache.memory import InMemoryCache
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy
from typing_extensions import TypedDict

from tests.interfaces.langgraph.sessions import Session, on, program


@program
async def memory_of_a_user_across_threads(s: Session) -> None:
    store = InMemoryStore()

    def remember(state: MessagesState, config: RunnableConfig, *, store: BaseStore) -> dict[str, Any]:
        namespace = ("memories", config["configurable"]["user_id"])
        known = sorted(item.value["fact"] for item in store.search(namespace))
        said = state["messages"][-1].text
        if said.startswith("remember "):
            store.put(namespace, f"fact {len(known)}", {"fact": said.removeprefix("remember ")})
        return {"messages": [AIMessage(f"I know: {', '.join(known) or 'nothing'}")]}

    graph = s.graph(MessagesState, {"remember": remember}, ((START, "remember"),), store=store)
    for thread, user, said in (
        ("one", "ann", "remember kelp"),
        ("two", "ann", "what do you know?"),
        ("two", "ann", "remember tides"),
        ("three", "bob", "and of me?"),
        ("one", "ann", "and now?"),
    ):
        await s.run(said, graph, {"messages": [("user", said)]}, on(thread, user_id=user))
    for thread in ("one", "two", "three"):
        await s.audit(graph, thread, ask=False)


class Expensive(TypedDict, total=False):
    x: int
    y: int
    log: Annotated[list[str], operator.add]


@program
async def nodes_with_a_cache(s: Session) -> None:
    ran: list[int] = []

    def square(state: Expensive) -> Expensive:
        ran.append(state["x"])
        return {"y": state["x"] ** 2, "log": [f"{state['x']} squared"]}

    policy = CachePolicy(key_func=lambda state: str(state["x"]), ttl=None)
    nodes = {"square": (square, {"cache_policy": policy}), "end": lambda state: {"log": [str(state["y"])]}}
    graph = s.graph(Expensive, nodes, ((START, "square"), ("square", "end")), cache=InMemoryCache())
    for number in (3, 3, 4, 3):
        await s.run(f"{number}", graph, {"x": number}, on("t"))
    await s.stream("streamed", graph, {"x": 4}, on("u"), stream_mode=["updates", "values"])
    assert ran == [3, 4], "the cache was not used"
    await s.audit(graph, "t", ask=False)
    await s.audit(graph, "u", ask=False)


@program
async def tasks_with_a_cache(s: Session) -> None:
    ran: list[int] = []
    cached: Any = task(cache_policy=CachePolicy(ttl=None))

    def multiply(number: int) -> int:
        ran.append(number)
        return number * 10

    async def amultiply(number: int) -> int:
        return multiply(number)

    slow, aslow = cached(multiply), cached(amultiply)

    def body(numbers: list[int]) -> list[int]:
        return [future.result() for future in [slow(number) for number in numbers]]

    async def abody(numbers: list[int]) -> list[int]:
        return [await future for future in [aslow(number) for number in numbers]]

    make = entrypoint(checkpointer=s.saver, cache=InMemoryCache(), store=InMemoryStore())
    graph: Any = make(abody if s.asynchronous else body)
    await s.run("one", graph, [1, 2], on("t"))
    await s.run("two", graph, [2, 1, 3], on("t"))
    s.note("ran", sorted(ran))
    await s.audit(graph, "t", ask=False)


class SummaryState(MessagesState, total=False):
    summary: str


@program
async def a_summary_instead_of_old_messages(s: Session) -> None:
    def chat(state: SummaryState) -> dict[str, Any]:
        known = [SystemMessage(f"Summary: {state['summary']}")] if state.get("summary") else []
        return {"messages": [AIMessage(f"{len(known)} + {len(state['messages'])} messages")]}

    def summarize(state: SummaryState) -> dict[str, Any]:
        old = state["messages"][:-2]
        summary = f"{state.get('summary', '')}[{len(old)}: {old[0].text}]"
        return {"summary": summary, "messages": [RemoveMessage(id=str(each.id)) for each in old]}

    graph = s.graph(
        SummaryState, {"chat": chat, "summarize": summarize}, ((START, "chat"), ("summarize", END)),
        branches={"chat": lambda state: "summarize" if len(state["messages"]) > 4 else END},
    )  # fmt: skip
    for number in range(5):
        await s.run(f"turn {number}", graph, {"messages": [("user", f"word {number}")]}, on("t"))
    await s.audit(graph, "t", ask=False)


@dataclass
class Customer:
    name: str
    language: str = "en"


@program
async def context_of_a_run(s: Session) -> None:
    def greet(state: MessagesState, runtime: Runtime[Customer]) -> dict[str, Any]:
        store = runtime.store
        assert store is not None
        assert get_store() is store
        store.put(("seen", runtime.context.name), "last", {"language": runtime.context.language})
        last = trim_messages(state["messages"], max_tokens=3, token_counter=len, strategy="last", start_on="human")
        return {"messages": [AIMessage(f"{runtime.context.language}: {runtime.context.name}, {len(last)}")]}

    graph = s.graph(
        MessagesState, {"greet": greet}, ((START, "greet"),), schemas={"context_schema": Customer},
        store=InMemoryStore(),
    )  # fmt: skip
    for number, customer in enumerate((Customer("ann"), Customer("bob", "de"), Customer("ann", "fr"))):
        message = HumanMessage(f"hello {number}", id=f"h{number}")
        await s.run(f"{customer}", graph, {"messages": [message]}, on("t"), context=customer)
    await s.audit(graph, "t", ask=False)
