"""`langgraph dev`, LangGraph's own server, with the saver and the store that the guide shows in `langgraph.json`."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from langchain_core.messages import AIMessage, HumanMessage
from langgraph_sdk import get_client

import holdfast
from tests.docs.markdown import ROOT

AGENT = """
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt


async def say(state: MessagesState, runtime: Runtime):
    text = state["messages"][-1].content
    if text == "ask":
        text = interrupt("What?")
    await runtime.store.aput(("notes", "ada"), "latest", {"text": text})
    return {"messages": [AIMessage(f"You said {text}")]}


graph = StateGraph(MessagesState).add_node("say", say).add_edge(START, "say").compile()
"""


def write_project(folder: Path) -> None:
    """Write what the guide shows."""
    guide = (ROOT / "docs" / "guides" / "items.md").read_text(encoding="utf-8")
    section = guide.partition("## In `langgraph.json`")[2].partition("\n## ")[0]
    code, settings = (match.group(1) for match in re.finditer(r"```(?:python|json)\n(.*?)```", section, re.DOTALL))
    for name, text in (("memory.py", code), ("langgraph.json", settings), ("agent.py", AGENT)):
        (folder / name).write_text(text)


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Run `langgraph dev` in a folder; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", folder / "server.log"
    command = [str(Path(sys.executable).with_name("langgraph")), "dev", "--no-browser", "--no-reload"]
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, "--port", str(port)], cwd=folder, stdout=output, stderr=output) as server,
    ):
        try:
            while True:
                assert server.poll() is None, log.read_text()
                try:
                    if httpx.get(f"{url}/ok").is_success:
                        break
                except httpx.TransportError:
                    continue
            yield url
        finally:
            server.terminate()


def test_the_server_keeps_threads_and_items_in_a_store(tmp_path: Path) -> None:
    write_project(tmp_path)
    database = tmp_path / "agents.db"

    async def begin(url: str) -> str:
        async with get_client(url=url) as client:
            thread: str = (await client.threads.create())["thread_id"]
            for text in ("kelp", "ask"):
                said: Any = {"messages": [{"role": "user", "content": text}]}
                await client.runs.wait(thread, "agent", input=said)
            await client.store.put_item(["docs"], "a", {"n": 1})
            assert [item["key"] for item in (await client.store.search_items(["docs"]))["items"]] == ["a"]
        with holdfast.open(database, read_only=True) as store:  # while the server runs
            assert store.thread(thread).info().framework == "langgraph"
        return thread

    async def go_on(url: str, thread: str) -> list[Any]:
        async with get_client(url=url) as client:
            state = await client.threads.get_state(thread)
            assert state["next"] == ["say"]
            await client.runs.wait(thread, "agent", command={"resume": "rock"})
            history: list[Any] = await client.threads.get_history(thread, limit=100)
        return [len(history), [each["content"] for each in history[0]["values"]["messages"]]]

    with serve(tmp_path) as url:
        thread = asyncio.run(begin(url))
    with serve(tmp_path) as url:
        count, messages = asyncio.run(go_on(url, thread))
    assert messages == ["kelp", "You said kelp", "ask", "You said rock"]
    with holdfast.open(database) as store:
        assert [info.thread for info in store.threads()] == [thread]
        assert len(store.thread(thread).log()) == count
        found = store.thread(thread).get().state["messages"]
        assert [type(message) for message in found] == [HumanMessage, AIMessage] * 2
        assert [message.content for message in found] == messages
        assert store.state(items="notes.ada")["latest"] == {"text": "rock"}
        assert store.state(items="docs")["a"] == {"n": 1}
        assert store.maintenance.verify().ok
