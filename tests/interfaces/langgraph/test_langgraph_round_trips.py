"""What a turn of a chat asks of the store: on a server, each is a round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from holdfast.backends.interface import Backend, Batch, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.wrappers import Wrapper
from holdfast.langgraph import HoldfastSaver
from tests.engine.lines import store_on


class Chat(TypedDict):
    """Messages, and something that no step changes."""

    messages: Annotated[list[Any], add_messages]
    document: str


class Counted(Wrapper):
    """Counts what is asked of a store."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self.calls["read"] += 1
        return await self.inner.read(queries)

    async def apply(self, batch: Batch) -> int | None:
        self.calls["apply"] += 1
        return await self.inner.apply(batch)


def answer(state: Chat) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}


def test_a_turn_reads_once_and_writes_five_times() -> None:
    backend = Counted(MemoryBackend())
    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph: Any = builder.compile(checkpointer=HoldfastSaver(store_on(backend)))
    config: RunnableConfig = {"configurable": {"thread_id": "chat"}}
    graph.invoke({"messages": [HumanMessage("hello")], "document": "text " * 100}, config)
    backend.calls.clear()
    for turn in range(10):
        graph.invoke({"messages": [HumanMessage(f"question {turn}")]}, config)
    assert backend.calls == {"read": 10, "apply": 50}
