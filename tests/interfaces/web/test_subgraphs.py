"""Subgraphs: what they are called, under their parents in lists, and linked in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

import holdfast
from holdfast.interfaces.web.pages import page_routes
from holdfast.interfaces.web.subgraphs import nest, thread_title
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.test_pages import get
from tests.interfaces.web.waiting_graphs import Chat


def chain(*nodes: Any, **options: Any) -> Any:
    """A graph of nodes, one after the other."""
    builder = StateGraph(Chat)
    for before, (name, node) in zip([START, *(name for name, _ in nodes)], nodes, strict=False):
        builder.add_node(name, node)
        builder.add_edge(before, name)
    builder.add_edge(nodes[-1][0], END)
    return builder.compile(**options)


def say(text: str) -> Any:
    """A node that adds a message."""
    return lambda _: {"messages": [AIMessage(text)]}


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[ServedStore]:
    """A thread whose graph has a graph in it, which has another one."""
    with holdfast.open(tmp_path / "a.db") as store:
        deep = chain(("look", say("I look.")))
        research = chain(("plan", say("I plan.")), ("search", deep))
        graph = chain(("model", say("I think.")), ("research", research), checkpointer=HoldfastSaver(store))
        graph.invoke({"messages": [HumanMessage("What is kelp?")]}, {"configurable": {"thread_id": "chat"}})
        store.thread("other").put({"n": 1})
        with ServedStore(store, page_routes) as served:
            yield served


def test_a_subgraph_is_called_by_its_nodes() -> None:
    assert thread_title("chat") == "chat"
    assert thread_title("chat␟research:6f-1|search:7a") == "chat ▸ research ▸ search"
    assert thread_title("a␟␟b␟x:1") == "a␟b ▸ x"
    with holdfast.open("memory://") as store:
        names = ("b␟x:1|y:2", "c␟z:1", "a", "b␟x:1", "b")
        for name in names:
            store.thread(name).put({"n": 1})
        listed = {each.thread: each for each in store.threads()}
        found = [each.thread for each in nest([listed[name] for name in names])]
        assert found == ["c␟z:1", "a", "b", "b␟x:1", "b␟x:1|y:2"]


def test_subgraphs_are_under_their_parents_and_linked(nested: ServedStore) -> None:
    text = get(nested, "/threads").text
    rows = re.findall(r'<th scope="row">(.*?)</th>', text)
    assert [re.sub("<[^>]*>", " ", each).split()[:2] for each in rows][-3:] == [
        ["chat", "langgraph"],
        ["↳", "research"],
        ["↳", "search"],
    ]
    assert "␟" not in re.sub("<[^>]*>", "", text)
    steps = [each.id for each in nested.store.thread("chat").log()]
    pages = [get(nested, f"/threads/chat/{id}").text for id in steps]
    links = [re.findall(r'<p class="call subgraph"><a href="([^"]*)">.*?class="fn">([^<]*)', page) for page in pages]
    assert [[node for _, node in each] for each in links] == [["research"], ["research"], [], []]
    address = links[0][0][0]
    inner = get(nested, address).text
    assert re.findall(r'<h1><a href="([^"]*)">([^<]*)</a> ▸ research', inner) == [("/threads/chat", "chat")]
    assert "I plan." in inner
    assert re.findall(r'subgraph"><a href="[^"]*">.*?class="fn">([^<]*)', inner) == ["search"]


def test_steps_are_named_by_their_nodes(nested: ServedStore) -> None:
    text = get(nested, "/threads/chat").text
    assert re.findall(r'class="node">([^<]*)', text) == ["research", "model", "start", "input"]
    log = nested.store.thread("chat")
    assert [each.kind for each in log.log()] == ["loop", "loop", "loop", "input"]
