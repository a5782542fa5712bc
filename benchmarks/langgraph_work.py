"""What the savers are given: a chat, a graph that fans out, and calls as a graph would make them."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from benchmarks.langgraph_prose import prose
from benchmarks.langgraph_savers import Saver

DOCUMENT = prose(200_000, -1)

Graph = CompiledStateGraph[Any, Any, Any, Any]


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


def chat(turns: int) -> list[BaseMessage]:
    """Question and answer: 0.3 and 1.2 KB a turn."""
    messages: list[BaseMessage] = []
    for turn in range(turns):
        messages.append(HumanMessage(prose(300, 2 * turn), id=str(uuid.UUID(int=2 * turn))))
        messages.append(AIMessage(prose(1200, 2 * turn + 1), id=str(uuid.UUID(int=2 * turn + 1))))
    return messages


class _Chat(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]
    document: str


class Chat:
    """One node that answers from a script. Each has messages of its own, so that no saver sees another's."""

    def __init__(self, saver: Saver, turns: int) -> None:
        self.messages = chat(turns)
        self.config = thread("chat")
        self.turns = 0
        self.result: Any = None
        builder = StateGraph(_Chat)
        builder.add_node("answer", self._answer)
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        self.graph: Graph = builder.compile(checkpointer=saver)

    def _answer(self, state: _Chat) -> dict[str, Any]:
        return {"messages": [self.messages[len(state["messages"])]]}

    def turn(self) -> None:
        """One question and its answer. The first one brings the document. The result is kept until the next one, as
        programs do."""
        given: dict[str, Any] = {"messages": [self.messages[2 * self.turns]]}
        if self.turns == 0:
            given["document"] = DOCUMENT
        self.result = self.graph.invoke(given, self.config, durability="sync")
        self.turns += 1


class _Small(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]
    plan: str


class Agent:
    """A small agent of two nodes, which plans and answers, with a thread of its own."""

    def __init__(self, saver: Saver, name: str, turns: int) -> None:
        self.messages = chat(turns)
        self.config = thread(name)
        self.turns = 0
        self.result: Any = None
        builder = StateGraph(_Small)
        builder.add_node("plan", lambda state: {"plan": f"answer {len(state['messages'])}"})
        builder.add_node("answer", lambda state: {"messages": [self.messages[len(state["messages"])]]})
        builder.add_edge(START, "plan")
        builder.add_edge("plan", "answer")
        builder.add_edge("answer", END)
        self.graph: Graph = builder.compile(checkpointer=saver)

    def turn(self) -> None:
        self.result = self.graph.invoke(self._next(), self.config, durability="sync")

    async def aturn(self) -> None:
        self.result = await self.graph.ainvoke(self._next(), self.config, durability="sync")

    def _next(self) -> dict[str, Any]:
        self.turns += 1
        return {"messages": [self.messages[2 * self.turns - 2]]}


class _Fan(TypedDict):
    found: Annotated[list[str], operator.add]


class _Task(TypedDict):
    number: int


class Fan:
    """One node sends to as many parallel nodes as are asked for, and each finds something."""

    def __init__(self, saver: Saver, width: int) -> None:
        self._texts = [prose(300, number) for number in range(width)]
        self.config = thread(f"fan {width}")
        builder = StateGraph(_Fan)
        builder.add_node("plan", lambda _: {})
        builder.add_node("search", self._search, input_schema=_Task)
        builder.add_edge(START, "plan")
        builder.add_conditional_edges(
            "plan", lambda _: [Send("search", {"number": number}) for number in range(width)], ["search"]
        )
        builder.add_edge("search", END)
        self.graph: Graph = builder.compile(checkpointer=saver)

    def _search(self, state: _Task) -> dict[str, Any]:
        return {"found": [self._texts[state["number"]]]}

    def turn(self) -> None:
        self.graph.invoke({"found": []}, self.config, durability="sync")

    async def aturn(self) -> None:
        await self.graph.ainvoke({"found": []}, self.config, durability="sync")


class Put(NamedTuple):
    """The arguments of one `put`."""

    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions


class Line:
    """Checkpoints of one thread, each with the one before it as parent, as a graph would make them."""

    def __init__(self, saver: Saver, name: str) -> None:
        self.config = thread(name)
        self._saver = saver
        self._versions: dict[str, Any] = {}
        self._step = -1

    def next(self, values: dict[str, Any], *changed: str) -> Put:
        """The next checkpoint, of which these channels changed. Lists are copied, as a graph's reducers do."""
        config, self._step = self.config, self._step + 1
        new = {name: self._saver.get_next_version(self._versions.get(name), None) for name in changed}
        self._versions |= new
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self._step))
        checkpoint["channel_values"] = {
            name: [*value] if isinstance(value, list) else value for name, value in values.items()
        }
        checkpoint["channel_versions"] = {**self._versions}
        self.config = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
        return Put(config, checkpoint, {"source": "loop", "step": self._step, "parents": {}}, new)

    def put(self, values: dict[str, Any], *changed: str) -> None:
        self._saver.put(*self.next(values, *changed))
