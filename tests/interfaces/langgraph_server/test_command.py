"""`holdfast serve --graph`: graphs by name, and those of a `langgraph.json`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

import holdfast
from holdfast.errors import ConfigError, HoldfastError
from holdfast.interfaces.cli.main import cli
from holdfast.interfaces.langgraph_server.graphs import places_in
from tests.interfaces.http.kit import SECONDS, ServedStore
from tests.interfaces.langgraph_server.kit import Clients

_CODE = """
from tests.interfaces.langgraph_server.kit import approval, support

graph = support()
build = lambda saver: approval()
"""


@contextmanager
def serving_command(folder: Path, *options: str) -> Iterator[SyncLangGraphClient]:
    """Serve a new store by the command, and yield a client of it."""
    (folder / "served_graphs.py").write_text(_CODE)
    with holdfast.open(folder / "agents.db") as store:
        store.thread("of-a-program").put({})
    command = [sys.executable, "-m", "holdfast", "serve", "agents.db", "--port", "0", "--json", *options]
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": root}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            token = Path(started["token_file"]).read_text()
            with get_sync_client(url=started["url"], api_key=token) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(SECONDS) == 0


def test_graphs_of_a_file_are_served(tmp_path: Path) -> None:
    declared = {"graphs": {"help": "./served_graphs.py:graph", "ask": {"path": "./served_graphs.py:build"}}}
    (tmp_path / "langgraph.json").write_text(json.dumps(declared))
    with serving_command(tmp_path, "--write", "--graph", "langgraph.json") as client:
        assert {each["graph_id"] for each in client.assistants.search()} == {"help", "ask"}
        thread = client.threads.create(graph_id="help")
        client.threads.update_state(thread["thread_id"], {"log": ["x"]}, as_node="plan")
        assert client.threads.get_state(thread["thread_id"])["next"] == ["reply"]


def test_places_of_graphs(tmp_path: Path) -> None:
    assert places_in(["a=app.py:graph", "app.py:other"]) == [("a", "app.py:graph"), ("", "app.py:other")]
    (tmp_path / "langgraph.json").write_text('{"graphs": {"m": "package.module:graph"}}')
    assert places_in([str(tmp_path / "langgraph.json")]) == [("m", "package.module:graph")]


@pytest.mark.parametrize("text", ["{}", "[]", '{"graphs": {"a": 1}}', "{"])
def test_a_file_without_graphs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "langgraph.json").write_text(text)
    with pytest.raises(HoldfastError, match="names no graphs"):
        places_in([str(tmp_path / "langgraph.json")])


def test_a_graph_that_cannot_be_found_is_refused(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({})
    result = CliRunner().invoke(cli, ["serve", str(tmp_path / "a.db"), "--write", "--graph", "a=missing.py:graph"])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be imported" in str(result.exception)


def test_browsers_have_the_pages_of_the_same_addresses(clients: Clients) -> None:
    served: ServedStore = clients.served
    page = served.request("GET", "/threads/none", token=None, headers={"Accept": "text/html"})
    assert page.status == 404
    assert page.json["code"] == "not-found"  # this server has no pages: the client's operation would say 401
    assert served.request("GET", "/threads/none", token=None).status == 401
    assert served.request("GET", "/threads/none").status == 404
