"""A store that is served to LangGraph's own clients, with graphs and a worker."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient, SyncThreadsClient
from typing_extensions import TypedDict

import holdfast
from holdfast.interfaces.langgraph_server.app import graph_routes
from holdfast.interfaces.langgraph_server.background import client_work
from holdfast.interfaces.langgraph_server.graphs import load_graphs
from tests.interfaces.http.kit import ServedStore


class Chat(TypedDict, total=False):
    """The state of the graph `support`."""

    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    pause: float


class Settings(TypedDict, total=False):
    """What the graph `support` is given for a run."""

    tone: str


def plan(state: Chat, runtime: Runtime[Settings]) -> dict[str, Any]:
    """Say what is planned, and wait as long as the input says."""
    from langgraph.config import get_stream_writer

    get_stream_writer()({"progress": "planning"})
    time.sleep(state.get("pause", 0))
    return {"log": [f"planned {(runtime.context or {}).get('tone', 'plainly')}"]}


def reply(state: Chat) -> dict[str, Any]:
    """Answer the last message."""
    last = state["messages"][-1].content if state.get("messages") else "nothing"
    return {"messages": [AIMessage(f"You said {last}")], "log": ["replied"]}


def ask(state: Chat) -> dict[str, Any]:
    """Ask who approves."""
    return {"log": [f"approved by {interrupt({'question': 'Who approves?'})}"]}


def support() -> Any:
    """A graph of two nodes."""
    builder: Any = StateGraph(Chat, context_schema=Settings)
    builder.add_sequence([plan, reply])
    builder.add_edge(START, "plan")
    builder.add_edge("reply", END)
    return builder.compile(name="support")


def approval() -> Any:
    """A graph that asks between two nodes."""
    builder: Any = StateGraph(Chat)
    builder.add_sequence([plan, ask, reply])
    builder.add_edge(START, "plan")
    builder.add_edge("reply", END)
    return builder.compile(name="approval")


def nested() -> Any:
    """A graph with another in it, which asks."""
    builder: Any = StateGraph(Chat)
    builder.add_node("inner", approval())
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    return builder.compile(name="nested")


def logged(text: str) -> Any:
    """The input that adds a text to the log. The client's type of inputs takes no list of texts by its own type."""
    return {"log": [text]}


def values_of(threads: SyncThreadsClient, thread: str) -> Any:
    """The latest values of a thread, of which the client's type does not know the graph's fields."""
    return threads.get_state(thread)["values"]


GRAPHS = {"support": support, "approval": approval, "nested": nested}


class Clients:
    """A served store, and clients of it."""

    def __init__(self, served: ServedStore, store: holdfast.Store) -> None:
        self.served = served
        self.store = store
        self._opened: list[SyncLangGraphClient] = []
        self.owner = self.client(served.token)

    def client(self, token: str) -> SyncLangGraphClient:
        """Return a client with a token as its API key."""
        made = get_sync_client(url=self.served.url, api_key=token, timeout=60)
        self._opened.append(made)
        return made

    def close(self) -> None:
        """Close the clients."""
        for each in self._opened:
            each.close()

    def of(self, who: str) -> SyncLangGraphClient:
        """Return the client of an identity."""
        return self.client(self.store.access.issue_token(who).secret)


@contextmanager
def serving(
    store: holdfast.Store, names: Mapping[str, Any] | None = None, *, work: bool = True, **options: Any
) -> Iterator[Clients]:
    """Serve a store with graphs, and do their runs."""
    made = {name: make() for name, make in (GRAPHS if names is None else names).items()}
    graphs = load_graphs(store, [(name, f"kit:{name}", graph) for name, graph in made.items()])
    options = {"write": True, "name": "127.0.0.1", **options}
    with ExitStack() as stack:
        served = stack.enter_context(ServedStore(store, lambda server: graph_routes(server, graphs), **options))
        if work:
            private = bool(options.get("private_webhooks"))
            stack.enter_context(client_work(store, graphs, private_webhooks=private, concurrency=8))
        clients = Clients(served, store)
        stack.callback(clients.close)
        yield clients
