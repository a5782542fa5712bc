"""The guide's table has every method of the client, once."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from langgraph_sdk.client import SyncLangGraphClient

from tests.interfaces.langgraph_server.kit import Clients

_GUIDE = Path(__file__).parents[3] / "docs/guides/langgraph-clients.md"


def test_every_method_of_the_client_is_in_the_table(clients: Clients) -> None:
    client: SyncLangGraphClient = clients.owner
    methods = [
        f"{name}.{method}"
        for name in ("assistants", "threads", "runs", "crons", "store")
        for method, _ in inspect.getmembers(getattr(client, name), inspect.ismethod)
        if not method.startswith("_")
    ]
    listed = []
    for row in re.findall(r"^\| (`\w+\..*?) \|", _GUIDE.read_text(), re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", row)
        listed += [first, *(f"{first.partition('.')[0]}.{each}" for each in others)]
    assert sorted(listed) == sorted(methods)
    assert len(methods) > 30
