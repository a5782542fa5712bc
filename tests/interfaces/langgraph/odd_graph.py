"""A graph whose nodes use models and tools in less usual ways: with retries, timeouts, closed streams, in parallel.

Its models and tools answer only in the process that records.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from typing import Annotated, Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import RetryPolicy
from pydantic import BaseModel, Field

from holdfast import replay

LIVE = {"models": False, "fails": False, "hangs": False}
"""Whether models and tools answer, whether `flaky` fails, and whether `slow` hangs."""

_count = itertools.count(1)


class OddModel(BaseChatModel):
    """A model that answers, fails or never ends, as its input says; only async, and without streams of its own."""

    @property
    def _llm_type(self) -> str:
        return "odd"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[each.__name__ for each in tools], **kwargs)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        assert LIVE["models"], "a model was called"
        text, number = str(messages[-1].content), next(_count)
        if text == "hang" or (text == "slow" and LIVE["hangs"]):
            await asyncio.Event().wait()
        if text == "fail" and number % 3:
            raise ConnectionError(f"try {number}")
        if text == "flaky" and LIVE["fails"]:
            raise ValueError("flaky")
        await asyncio.sleep(0.001 * (number % 3))  # parallel calls end in another order than they begin
        calls = [{"name": "Answer", "args": {"value": number}, "id": f"{number}"}] if "tools" in kwargs else []
        message = AIMessage(f"{text} {number}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


class StreamingModel(OddModel):
    """One that streams, and never ends after some chunks if it is asked to hang."""

    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        assert LIVE["models"], "a model was called"
        for part in ("one ", f"{next(_count)} ", "three"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=part))
        if messages[-1].content == "hang":
            await asyncio.Event().wait()


class Answer(BaseModel):
    """An answer."""

    value: int


class State(BaseModel):
    """The state, of a class."""

    messages: Annotated[list[Any], add_messages] = Field(default_factory=list)
    notes: Annotated[list[str], operator.add] = Field(default_factory=list)


model, streaming = OddModel(), StreamingModel()


@tool
async def hanging(query: str) -> str:
    """Hang."""
    assert LIVE["models"], "a tool was called"
    await asyncio.Event().wait()
    return query


class Client:
    """A client of a service."""

    @replay.recorded
    def fetch(self, parts: list[str]) -> dict[str, Any]:
        """Ask the service. What it draws and asks inside is part of the call."""
        assert LIVE["models"], "a service was called"
        parts.append("asked")
        return {"drawn": str(replay.uuid4()), "parts": parts}


async def retried(state: State) -> dict[str, Any]:
    """Retried by LangGraph until the model answers."""
    return {"notes": [str((await model.ainvoke([HumanMessage("fail")])).content)]}


async def timed_out(state: State) -> dict[str, Any]:
    """Give up on a model, a stream and a tool that hang."""
    notes: list[str] = []
    for call in (
        lambda: model.ainvoke([*state.messages, HumanMessage("hang")]),
        lambda: _collect(streaming.astream([HumanMessage("hang")]), notes),
        lambda: hanging.ainvoke({"query": "q"}),
    ):
        try:
            await asyncio.wait_for(call(), 0.05 if LIVE["models"] else 3600)
        except TimeoutError:
            notes.append("timed out")
    return {"notes": notes}


async def _collect(stream: Any, notes: list[str]) -> None:
    async for chunk in stream:
        notes.append(str(chunk.content))


async def parallel(state: State) -> dict[str, Any]:
    """Call models at the same time, with equal inputs, in a batch, and in two more forms."""
    questions: list[Any] = [HumanMessage("same"), HumanMessage("same"), HumanMessage("other")]
    answers = await asyncio.gather(*(model.ainvoke([each]) for each in questions))
    answers += await model.abatch([[each] for each in questions])
    structured = await model.with_structured_output(Answer).ainvoke("value")
    chunks = [chunk.content async for chunk in model.astream("whole")]
    return {"notes": [str(each.content) for each in answers] + [repr(structured), str(chunks)]}


async def closed(state: State) -> dict[str, Any]:
    """Close a stream early, and change what a service was given and returned."""
    notes: list[str] = []
    async for chunk in streaming.astream("go"):
        notes.append(str(chunk.content))
        if len(notes) == 2:
            break
    parts = ["first"]
    found = Client().fetch(parts)
    parts.append("later")
    found["parts"] = "changed"
    return {"notes": [*notes, str(found)], "messages": [("ai", "noted")]}


async def flaky(state: State) -> dict[str, Any]:
    """Fail as a whole, with the error of a model."""
    return {"notes": [str((await model.ainvoke([HumanMessage("flaky")])).content)]}


async def slow(state: State) -> dict[str, Any]:
    """Be cancelled with the run."""
    return {"notes": [str((await model.ainvoke([HumanMessage("slow")])).content)]}


def build(saver: Any = None) -> Any:
    """Return the graph."""
    graph = StateGraph(State)
    graph.add_node(retried, retry_policy=RetryPolicy(initial_interval=0.01, max_attempts=9))
    for node in (timed_out, parallel, closed, flaky, slow):
        graph.add_node(node)
    names = ["retried", "timed_out", "parallel", "closed", "flaky", "slow"]
    graph.add_edge(START, names[0])
    for a, b in itertools.pairwise(names):
        graph.add_edge(a, b)
    return graph.compile(checkpointer=saver)
