"""`RemoteGraph` of LangGraph: a graph that is served is a node of another, and is invoked and streamed as if it were
here."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client

from tests.interfaces.langgraph_server.kit import Chat, Clients, values_of
from tests.interfaces.langgraph_server.test_runs import new_thread


def remote(clients: Clients, name: str) -> RemoteGraph:
    """A graph that is served."""
    return RemoteGraph(name, sync_client=clients.owner)


def test_a_served_graph_is_invoked_and_streamed(clients: Clients) -> None:
    graph = remote(clients, "support")
    config: RunnableConfig = {"configurable": {"thread_id": new_thread(clients)}}
    values: Any = graph.invoke({"messages": [("user", "hello")]}, config)
    assert values["log"] == ["planned plainly", "replied"]
    updates = list(graph.stream({"log": ["more"]}, config, stream_mode="updates"))
    assert [list(each) for each in updates] == [["plan"], ["reply"]]
    state = graph.get_state(config)
    assert (state.next, state.values["log"][-3:]) == ((), ["more", "planned plainly", "replied"])
    assert len(list(graph.get_state_history(config, limit=20))) == 8
    changed = graph.update_state(config, {"log": ["by hand"]}, as_node="plan")
    assert graph.get_state(changed).next == ("reply",)
    assert {"plan", "reply"} <= set(graph.get_graph().nodes)

    async def awaited() -> Any:
        async with get_client(url=clients.served.url, api_key=clients.served.token) as client:
            return await RemoteGraph("support", client=client).ainvoke({"log": ["again"]}, config)

    assert asyncio.run(awaited())["log"][-1] == "replied"


def test_a_served_graph_is_a_node_of_another(clients: Clients) -> None:
    builder: Any = StateGraph(Chat)
    builder.add_node("served", remote(clients, "support"))
    builder.add_edge(START, "served")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": new_thread(clients)}}
    values = graph.invoke({"log": ["begun here"]}, config)
    assert values["log"][-2:] == ["planned plainly", "replied"]
    assert values_of(clients.owner.threads, config["configurable"]["thread_id"])["log"]


def test_a_question_of_a_served_graph_reaches_the_other(clients: Clients) -> None:
    served = remote(clients, "approval")
    builder: Any = StateGraph(Chat)
    builder.add_node("served", served)
    builder.add_edge(START, "served")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": new_thread(clients)}}
    asked = graph.invoke({"log": ["begun here"]}, config)
    assert asked["__interrupt__"][0].value == {"question": "Who approves?"}
    values: Any = served.invoke(Command(resume="Ada"), config)
    assert "approved by Ada" in values["log"]
