"""LangGraph's client in JavaScript, under Node: its calls, and `threads.stream` of the release with events."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests import servers
from tests.interfaces.langgraph_server.kit import Clients, serving

_FOLDER = Path(__file__).parent / "javascript"
_CLIENT, _WITH_EVENTS = "@langchain/langgraph-sdk", "langgraph-sdk-events"


def _run(packages: Path, script: str, clients: Clients, sdk: str, **settings: str) -> dict[str, Any]:
    """Run a script of ours where the packages are found. Returns what it printed last."""
    place = packages / script
    shutil.copy(_FOLDER / script, place)
    known = {"HOLDFAST_URL": clients.served.url, "HOLDFAST_TOKEN": clients.served.token, "HOLDFAST_SDK": sdk}
    environment = {"PATH": os.environ["PATH"], **known, **settings}
    done = subprocess.run(["node", place], env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == [], json.dumps(found["failed"], indent=1)
    return found


def test_a_chat_with_a_question(clients: Clients) -> None:
    found = _run(servers.javascript(installs=False), "suite.mjs", clients, _CLIENT, HOLDFAST_ONLY="questions")
    assert found["total"] >= 15


@pytest.mark.nightly
@pytest.mark.parametrize("sdk", [_CLIENT, _WITH_EVENTS])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_client_in_javascript(kind: str, sdk: str, tmp_path: Path) -> None:
    packages = servers.javascript(installs=True)
    with (
        holdfast.open(tmp_path / "agents.db" if kind == "sqlite" else servers.postgres()) as store,
        serving(store) as clients,
    ):
        other = store.access.issue_token("user:other").secret
        found = _run(packages, "suite.mjs", clients, sdk, HOLDFAST_OTHER=other)
        assert found["total"] >= 120, found["calls"]


@pytest.mark.nightly
@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_streams_of_threads_in_javascript(transport: str, clients: Clients) -> None:
    packages = servers.javascript(installs=True)
    found = _run(packages, "events.mjs", clients, _WITH_EVENTS, HOLDFAST_TRANSPORT=transport)
    assert found["parts"] >= 5
