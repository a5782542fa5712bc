"""`threads.stream` and `threads.join_stream` of the clients in Python: events of a thread, run after run."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk import get_client

from tests.interfaces.langgraph_server.kit import Clients

TURN = {"messages": [{"role": "user", "content": "hello"}]}


def _key(clients: Clients) -> dict[str, str]:
    """The token for WebSockets, over which the client does not send its API key."""
    return {"x-api-key": clients.served.token}


def _kinds(events: list[dict[str, Any]]) -> list[str]:
    return [each["method"] for each in events]


@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_a_run_is_begun_and_followed(clients: Clients, transport: Any) -> None:
    stream = clients.owner.threads.stream
    with stream(str(uuid4()), assistant_id="support", transport=transport, headers=_key(clients)) as thread:
        started = thread.run.start(input=TURN)
        assert started["run_id"]
        events = list(_until_end(thread.events))
        assert thread.output["log"] == ["planned plainly", "replied"]
    assert {"lifecycle", "values", "updates", "custom", "messages", "checkpoints", "tasks"} == set(_kinds(events))
    numbers = [each["seq"] for each in events]
    assert numbers == sorted(set(numbers))
    values = [each["params"]["data"] for each in events if each["method"] == "values"]
    assert values[-1]["messages"][-1]["content"] == "You said hello"
    custom = next(each for each in events if each["method"] == "custom")
    assert custom["params"]["data"] == {"payload": {"progress": "planning"}}
    updates = [each["params"] for each in events if each["method"] == "updates"]
    assert [each["node"] for each in updates] == ["plan", "reply"]
    told = [each["params"]["data"]["event"] for each in events if each["method"] == "messages"]
    assert told[0] == "message-start"
    assert told[-1] == "message-finish"


def _until_end(events: Any) -> Any:
    for each in events:
        yield each
        data = each["params"]["data"]
        if (
            each["method"] == "lifecycle"
            and not each["params"]["namespace"]
            and data["event"] in ("completed", "failed")
        ):
            return


@pytest.mark.parametrize("transport", ["sse", "websocket"])
def test_a_question_is_answered(clients: Clients, transport: Any) -> None:
    async def run() -> Any:
        async with (
            get_client(url=clients.served.url, api_key=clients.served.token) as client,
            client.threads.stream(
                str(uuid4()), assistant_id="nested", transport=transport, headers=_key(clients)
            ) as thread,
        ):
            await thread.run.start(input=TURN)
            async for _ in thread.values:
                pass
            while not thread.interrupted:
                await asyncio.sleep(0.01)
            asked = thread.interrupts[0]
            assert asked["value"] == {"question": "Who approves?"}
            assert asked["namespace"][0].startswith("inner:")
            await thread.run.respond("Bob")
            return await thread.output

    for _ in range(3):  # the answer often comes before the run that asks has ended
        assert asyncio.run(run())["log"] == ["planned plainly", "approved by Bob", "replied"]
