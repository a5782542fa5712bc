"""Stores that are served to LangGraph's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.langgraph_server.kit import Clients, serving


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """A store in SQLite that is served for changes: each test has threads of its own."""
    file: Path = tmp_path_factory.mktemp("clients") / "agents.db"
    with holdfast.open(file) as store, serving(store) as clients:
        yield clients
