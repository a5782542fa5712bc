"""The tools of the Model Context Protocol, with the official client."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_connected_server_and_client_session
from mcp.types import TextContent

import holdfast
from holdfast.interfaces.mcp.tools import CHANGES, OWNER_READS, READS, build_server

Work = Callable[[ClientSession], Awaitable[Any]]


def with_client(store: Any, work: Work, *, write: bool = False) -> None:
    async def main() -> None:
        server = build_server(store, write=write)
        async with create_connected_server_and_client_session(server._mcp_server) as client:
            await work(client)

    asyncio.run(main())


async def call(client: ClientSession, tool: str, **arguments: Any) -> Any:
    """The answer of a tool, or the text of its error."""
    result = await client.call_tool(tool, arguments)
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text if result.isError else json.loads(content.text)


def fill(store: holdfast.Store) -> None:
    store.thread("chat").put({"messages": ["hello"], "mood": "calm"}, tag="start")
    store.thread("chat").update({"mood": "cross"})
    store.thread("other").put({"messages": ["refund"]})


def test_an_assistant_reads_a_store(tmp_path: Path) -> None:
    async def work(client: ClientSession) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {*READS, *OWNER_READS}
        assert all(tool.annotations and tool.annotations.readOnlyHint and tool.description for tool in tools)
        assert [each["thread"] for each in (await call(client, "list_threads"))["threads"]] == ["chat", "other"]
        assert [each["thread"] for each in await call(client, "search", query="refund")] == ["other"]
        assert (await call(client, "show_state", thread="chat"))["state"]["mood"] == "cross"
        assert (await call(client, "show_state", thread="chat", at="start", path="mood"))["value"] == "calm"
        assert len(await call(client, "log", thread="chat", limit=1)) == 1
        assert "calm" in await call(client, "diff", thread="chat", a="HEAD~1")
        assert await call(client, "blame", thread="chat", path="mood")
        assert await call(client, "timeline", thread="chat")
        assert await call(client, "thread_status", thread="chat")
        assert (await call(client, "explain", code="no-store"))["code"] == "no-store"
        assert isinstance(await call(client, "verify"), dict)
        assert isinstance(await call(client, "verify", thread="chat"), dict)
        assert "not-found" in await call(client, "show_state", thread="none")
        assert "nothing at" in await call(client, "show_state", thread="chat", path="x.y")

    with holdfast.open(tmp_path / "a.db") as store:
        fill(store)
        steps = len(store.thread("chat").log())
        with_client(store, work)
        assert len(store.thread("chat").log()) == steps


def test_changes_are_offered_only_on_demand_and_made_only_with_a_confirmation(tmp_path: Path) -> None:
    async def work(client: ClientSession) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} >= set(CHANGES)
        assert "confirm=true" in await call(client, "restore", thread="chat", at="start")
        await call(client, "restore", thread="chat", at="start", confirm=True)
        assert (await call(client, "show_state", thread="chat", path="mood"))["value"] == "calm"
        await call(client, "tag", thread="chat", tag="again", confirm=True)
        await call(client, "fork", thread="chat", name="draft", at="start", confirm=True)
        assert "confirm=true" in await call(client, "answer", thread="chat", value="yes")

    with holdfast.open(tmp_path / "a.db") as store:
        fill(store)
        with_client(store, work, write=True)
        assert {branch.name for branch in store.thread("chat").branches()} == {"main", "draft"}
        assert "again" in store.thread("chat").tags()


def test_an_identity_sees_its_own(tmp_path: Path) -> None:
    async def work(client: ClientSession) -> None:
        assert {tool.name for tool in (await client.list_tools()).tools} == set(READS)
        assert [each["thread"] for each in (await call(client, "list_threads"))["threads"]] == ["mine"]
        denied = await call(client, "show_state", thread="chat")
        assert "[not-found]" in denied, "nor is told whether there is one"

    with holdfast.open(tmp_path / "a.db") as store:
        fill(store)
        alice = store.as_identity(user="alice")
        alice.thread("mine").put({"n": 1})
        with_client(alice, work)


@pytest.mark.nightly
def test_the_command_serves_stdin_and_stdout(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        fill(store)
    words = ["-m", "holdfast", "--store", str(tmp_path / "a.db"), "mcp"]

    async def main() -> None:
        server = StdioServerParameters(command=sys.executable, args=words)
        async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            assert [each["thread"] for each in (await call(client, "list_threads"))["threads"]] == ["chat", "other"]

    asyncio.run(main())


def test_the_command_serves_http_to_this_machine_only(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        fill(store)
        store.as_identity(user="alice").thread("mine").put({"n": 1}, tag="start")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "holdfast", "--store", str(tmp_path / "a.db"), "mcp", "--as", "user:alice", "--write", "--http"]

    async def use() -> None:
        async with (
            streamable_http_client(f"http://127.0.0.1:{port}/mcp") as (read, write, _),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            assert {tool.name for tool in (await client.list_tools()).tools} == {*READS, *CHANGES}
            assert [each["thread"] for each in (await call(client, "list_threads"))["threads"]] == ["mine"]
            assert (await call(client, "show_state", thread="mine"))["state"] == {"n": 1}
            assert "not-found" in await call(client, "tag", thread="chat", tag="mine", confirm=True)
            await call(client, "tag", thread="mine", tag="again", confirm=True)

    with subprocess.Popen([sys.executable, *words, str(port)], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            assert f"http://127.0.0.1:{port}/mcp serves the store" in server.stderr.readline()
            reached = None
            while reached is None:
                assert server.poll() is None
                try:
                    reached = httpx.post(f"http://127.0.0.1:{port}/mcp", headers={"Host": "elsewhere.example"}, json={})
                except httpx.ConnectError:
                    continue
            assert reached.status_code == 421, "a page of another site, under a name of its own for this address"
            with warnings.catch_warnings(action="ignore", category=ResourceWarning):
                asyncio.run(use())
                gc.collect()  # streams that the client leaves open
        finally:
            server.terminate()
    with holdfast.open(tmp_path / "a.db") as store:
        assert "again" in store.thread("mine").tags()
        actions = {record.action for record in store.audit.query(actor="user:alice")}
        assert actions >= {"read", "tag"}, actions
