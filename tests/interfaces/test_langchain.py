"""Histories of LangChain's conversations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

import holdfast
from holdfast.langchain import HoldfastChatHistory
from holdfast.testing import ConversationSuite


class TestChatHistory(ConversationSuite):
    framework = "langchain"

    def add(self, store: Any, name: str, texts: list[str]) -> None:
        HoldfastChatHistory(name, store).add_messages([HumanMessage(text) for text in texts])

    def read(self, store: Any, name: str) -> list[str]:
        return [str(message.content) for message in HoldfastChatHistory(name, store).messages]

    def clear(self, store: Any, name: str) -> None:
        HoldfastChatHistory(name, store).clear()


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_a_chain_has_its_history(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        answer: Any = RunnableLambda(lambda messages: AIMessage(f"{len(messages)} messages"))
        chain = RunnableWithMessageHistory(answer, lambda session_id: HoldfastChatHistory(session_id, store))
        config: Any = {"configurable": {"session_id": "chat"}}
        assert chain.invoke([HumanMessage("Hello")], config).content == "1 messages"
        assert asyncio.run(chain.ainvoke([HumanMessage("Again")], config)).content == "3 messages"
        history = HoldfastChatHistory("chat", store)
        assert [message.type for message in history.messages] == ["human", "ai", "human", "ai"]
        assert store.thread("chat").get().metadata["framework"] == "langchain"
        history.messages = [HumanMessage("only")]
        assert asyncio.run(history.aget_messages()) == [HumanMessage("only")]
