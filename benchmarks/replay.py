"""What recording costs: a chat with and without it, in time and in the size of the store; and how long a replay takes.
`python -m benchmarks.replay [TURNS]`."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import holdfast
from benchmarks.langgraph_prose import prose
from benchmarks.measure import Figure
from benchmarks.replayed_hooks import register
from holdfast import replay
from holdfast.langgraph import HoldfastSaver

_WAIT = 0.05
"""Seconds that a model takes, which the one here does not wait."""

_TURNS = 500


class State(TypedDict):
    """The state of the chat."""

    messages: Annotated[list[Any], add_messages]


class ProseModel(BaseChatModel):
    """A model that answers with some prose."""

    @property
    def _llm_type(self) -> str:
        return "prose"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:  # noqa: ARG002
        return ChatResult(generations=[ChatGeneration(message=AIMessage(prose(600, len(messages))))])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:  # noqa: ARG002
        for word in prose(600, len(messages)).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))


model = ProseModel()


def answer(state: State) -> dict[str, Any]:
    """Answer the last message."""
    return {"messages": [model.invoke([SystemMessage("Be brief."), *state["messages"]])]}


def graph(saver: Any = None) -> StateGraph[State, Any, Any, Any]:  # noqa: ARG001 - it is compiled by the caller
    """Return the graph of the chat."""
    built = StateGraph(State)
    built.add_node(answer)
    built.add_edge(START, "answer")
    return built


class _Chat:
    """A chat that is recorded, or not."""

    def __init__(self, path: Path, *, recorded: bool, streamed: bool) -> None:
        self.path = path
        self._streamed = streamed
        self._store = holdfast.open(path)
        saver = HoldfastSaver(self._store)
        self._graph = graph().compile(checkpointer=saver)
        self._config: Any = {"configurable": {"thread_id": "chat"}}
        if recorded:
            self._config["callbacks"] = [saver.recorder]
        self.times: list[float] = []
        """The seconds of processor time of each turn."""

    def take_turn(self, number: int) -> None:
        start = time.process_time()
        given: Any = {"messages": [("user", prose(200, number))]}
        if self._streamed:
            for _ in self._graph.stream(given, self._config, stream_mode="messages"):
                pass
        else:
            self._graph.invoke(given, self._config)
        self.times.append(time.process_time() - start)

    def close(self) -> int:
        """Return the size of the store."""
        self._store.close()
        return _size(self.path)


def _chats(directory: Path, turns: int, *, streamed: bool) -> tuple[_Chat, _Chat]:
    """Have a chat twice, turn by turn, so that a busy machine is busy for both: without recording, and with it."""
    kind = "streamed" if streamed else "plain"
    plain, recorded = (_Chat(directory / f"{n}-{kind}.db", recorded=bool(n), streamed=streamed) for n in (0, 1))
    for turn in range(turns):
        for chat in (plain, recorded) if turn % 2 else (recorded, plain):
            chat.take_turn(turn)
    return plain, recorded


def _size(path: Path) -> int:
    """Return the bytes of a store's pages that are in use: how many are free differs by chance."""
    connection = apsw.Connection(str(path))
    try:
        used = connection.pragma("page_count") - connection.pragma("freelist_count")
        return int(used * connection.pragma("page_size"))
    finally:
        connection.close()


def recording(turns: int = _TURNS) -> list[Figure]:
    """The cost of recording: of a turn with a model of 50 ms, by processor time, and of the size of a store."""
    figures = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for streamed in (False, True):
            kind = "streamed" if streamed else "plain"
            chats = _chats(directory, turns, streamed=streamed)
            small, large = (chat.close() for chat in chats)
            for part, name in ((slice(None), "a"), (slice(-turns // 5, None), "a late")):
                before, after = (statistics.median(chat.times[part]) for chat in chats)
                cost = 100 * (after - before) / (before + _WAIT)
                note = f"{before * 1e3:.2f} ms of processor time, recorded {after * 1e3:.2f} ms, and 50 ms of the model"
                figures.append(Figure(f"recording, {name} {kind} turn", cost, "% more", ceiling=3.0, note=note))
            size = 100 * (large / small - 1)
            note = f"{small / 1e6:.2f} MB, recorded {large / 1e6:.2f} MB"
            figures.append(Figure(f"recording, {turns} {kind} turns", size, "% larger", ceiling=30.0, note=note))
        with holdfast.open(directory / "1-plain.db") as store:
            report = replay.run(store, "benchmarks.replay:graph", thread="chat").check()
        note = f"{report.steps} steps, {report.calls} calls"
        figures.append(Figure("replay of that chat", report.seconds, "s", note=note))
    return figures


def hooks(calls: int = 1000) -> list[Figure]:
    """The time in which calls of a hook are replayed: at most twice the recorded time, and a second."""
    with tempfile.TemporaryDirectory() as name, holdfast.open(Path(name) / "agents.db") as store:
        register(store)
        state = store.state(agent="a")
        for number in range(calls):
            state.set(f"key-{number % 10}", number)
        start = time.perf_counter()
        found = replay.run_hooks(store, "benchmarks.replayed_hooks:register", limit=calls).check()
        seconds = time.perf_counter() - start
    recorded = sum(call.recorded_seconds for call in found.calls)
    note = f"recorded {recorded:.2f} s"
    return [Figure(f"replay of {calls} calls of a hook", seconds, "s", ceiling=2 * recorded + 1, note=note)]


CASES = (recording, hooks)


if __name__ == "__main__":
    for figure in [*hooks(), *recording(int(sys.argv[1]) if len(sys.argv) > 1 else _TURNS)]:
        sys.stdout.write(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.note})\n")
