"""Threads of every framework in one store, marked with where they come from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.interfaces.web.pages import page_routes
from holdfast.langchain import HoldfastChatHistory
from holdfast.langgraph import HoldfastSaver
from holdfast.openai_agents import HoldfastSession
from holdfast.store.store import Store
from tests.interfaces.cli.kit import run
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.test_pages import get

MARKS = {"graph": "langgraph", "lc": "langchain", "openai": "openai-agents", "plain": "", "sentence": ""}


def fill(store: Store) -> None:
    builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": []}).add_edge(START, "say")
    graph = builder.compile(checkpointer=HoldfastSaver(store))
    graph.invoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "graph"}})
    HoldfastChatHistory("lc", store).add_user_message("hello")
    item: Any = {"role": "user", "content": "hello"}
    asyncio.run(HoldfastSession("openai", store).add_items([item]))
    store.thread("plain").put({"n": 1}, metadata={"source": "loop"})
    store.thread("sentence").put({"n": 1}, metadata={"framework": "what the user said, and more"})
    store.state(user="alice")["framework"] = "none"


@pytest.mark.parametrize("encrypted", [False, True])
def test_lists_say_which_framework_a_thread_is_of(encrypted: bool, tmp_path: Path) -> None:
    options: Any = {"encryption": Encryption(LocalKeys(b"k" * 32))} if encrypted else {}
    with holdfast.open(tmp_path / "a.db", **options) as store:
        fill(store)
        for page in (store.threads(), store.threads(preview=True), store.threads(order="updated")):
            assert {info.thread: info.framework for info in page} == MARKS
        assert store.thread("graph").info().framework == "langgraph"
        assert {info.framework for info in store.threads(kind="all") if info.kind != "thread"} == {""}
        store.thread("openai").restore(at="HEAD")
        store.thread("openai").fork("side", at="HEAD")
        assert {info.framework for info in store.threads(prefix="openai", preview=True)} == {"openai-agents"}
        store.maintenance.prune(["graph"], keep_last=1)
        assert store.thread("graph").info().framework == "langgraph"
    with holdfast.open("memory://") as other, holdfast.open(tmp_path / "a.db", **options) as store:
        if not encrypted:
            store.maintenance.copy_to(other)
            assert {info.thread: info.framework for info in other.threads(preview=True)} == MARKS


def test_the_command_line_http_and_pages_show_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        fill(store)
        with ServedStore(store, page_routes) as served:
            listed = served.get("/threads").json["items"]
            assert {each["thread"]: each["framework"] for each in listed} == MARKS
            assert served.get("/threads/lc").json["thread"]["framework"] == "langchain"
            page = get(served, "/threads").text
            assert page.count('<span class="chip">langgraph</span>') == 1
            assert "what the user said" not in page
            assert '<span class="chip">openai-agents</span>' in get(served, "/threads/openai").text
            assert 'class="chip">openai' not in get(served, "/threads/plain").text
    table = run("threads", store=str(path))
    assert table.lines[0].split()[:3] == ["NAME", "STATUS", "FRAMEWORK"]
    assert table.lines[1].split()[2] == "langgraph"
    records = run("threads", "--json", store=str(path)).records
    assert {each["thread"]: each["framework"] for each in records} == MARKS
    assert "Framework: langgraph\n" in run("log", "graph", store=str(path)).out
    assert "Framework" not in run("log", "plain", store=str(path)).out
    assert "FRAMEWORK" not in run("threads", "plain", store=str(path)).lines[0]


def test_the_adapters_are_small() -> None:
    """All together, with the import and the export of other frameworks' databases."""
    root = Path(holdfast.__file__).parent
    names = ["agent_framework", "google_adk", "langchain", "openai_agents", "pydantic_ai"]
    names += ["interfaces/conversations", "interfaces/peer_sessions"]
    names += [f"interfaces/langgraph/{name}" for name in ("item_store", "item_names", "node_cache")]
    names += [f"interfaces/langgraph/{name}" for name in ("databases", "peer_values", "transfer")]
    assert sum(len((root / f"{name}.py").read_text().splitlines()) for name in names) <= 2500
