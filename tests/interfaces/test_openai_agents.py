"""Sessions of the OpenAI Agents SDK. Its own tests, with its runner, are run by `make adapters`: its release does not
get along with the OpenAI client that other packages here ask for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents.memory import OpenAIResponsesCompactionSession, SessionSettings

import holdfast
from holdfast.errors import InvalidError
from holdfast.openai_agents import HoldfastSession
from holdfast.testing import ConversationSuite


class TestOpenAISession(ConversationSuite):
    framework = "openai-agents"

    def add(self, store: Any, name: str, texts: list[str]) -> None:
        items: Any = [{"role": "user", "content": text} for text in texts]
        asyncio.run(HoldfastSession(name, store).add_items(items))

    def read(self, store: Any, name: str) -> list[str]:
        items: Any = asyncio.run(HoldfastSession(name, store).get_items())
        return [item["content"] for item in items]

    def clear(self, store: Any, name: str) -> None:
        asyncio.run(HoldfastSession(name, store).clear_session())


def test_limits_pops_and_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            session = HoldfastSession("chat", store, SessionSettings(limit=2))
            assert await session.pop_item() is None
            items: Any = [{"role": "user", "content": str(number)} for number in range(5)]
            await session.add_items(items)
            assert await session.get_items() == items[3:]
            assert await session.get_items(limit=4) == items[1:]
            assert await session.get_items(limit=0) == []
            popped = await asyncio.gather(session.pop_item(), session.pop_item(), session.add_items([items[0]]))
            assert popped[0] != popped[1] or popped[0] == items[0]
            assert len(await session.get_items(limit=9)) == 4

    asyncio.run(main())
    with pytest.raises(InvalidError, match="open store"):
        HoldfastSession("chat", "a.db")  # type: ignore[arg-type]


def test_a_compaction_keeps_what_it_replaces_in_the_history(tmp_path: Path) -> None:
    """With the SDK's own session around ours; `client` stands for OpenAI's server."""
    given: list[Any] = []

    class Responses:
        async def compact(self, **arguments: Any) -> Any:
            given.append(arguments)
            return SimpleNamespace(output=[{"role": "user", "content": "all of it"}])

    client: Any = SimpleNamespace(responses=Responses())

    async def main() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            inner = HoldfastSession("chat", store)
            session = OpenAIResponsesCompactionSession("chat", inner, client=client, compaction_mode="input")
            items: Any = [{"role": "assistant", "content": str(number)} for number in range(3)]
            await session.add_items(items)
            await session.run_compaction({"force": True})
            assert given[0]["input"] == items
            left: list[Any] = [*await inner.get_items()]
            assert [item["content"] for item in left] == ["all of it"]
            await session.add_items(items[:1])
            assert len(await session.get_items()) == 2
            kinds = [entry.kind for entry in await store.thread("chat").log()]
            assert kinds == ["update", "update", "clear", "update"]
            assert (await store.thread("chat").get(at="HEAD~3")).state["messages"] == items

    asyncio.run(main())
