"""Conversations and durable agents of Pydantic AI."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import DeniedError, InvalidError
from holdfast.pydantic_ai import HoldfastConversationStore, HoldfastDurability
from holdfast.testing import ConversationSuite
from tests.frameworks.guides import run_example, run_guide


def request(text: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def texts(messages: Any) -> list[str]:
    return [str(part.content) for message in messages for part in message.parts]


def texts_of(store: Any, name: str = "chat") -> list[str]:
    found = asyncio.run(HoldfastConversationStore(store).load(name))
    return texts(found.messages) if found else []


class TestConversations(ConversationSuite):
    framework = "pydantic-ai"

    def add(self, store: Any, name: str, texts: list[str]) -> None:
        asyncio.run(HoldfastConversationStore(store).append(name, [request(text) for text in texts]))

    def read(self, store: Any, name: str) -> list[str]:
        return texts_of(store, name)

    def clear(self, store: Any, name: str) -> None:
        async def clear() -> None:
            conversations = HoldfastConversationStore(store)
            if found := await conversations.load(name):
                await conversations.branch(name, at=0, expected_revision=found.revision)

        asyncio.run(clear())


def test_the_guide_and_the_example_run(tmp_path: Path) -> None:
    run_guide("pydantic-ai.md", tmp_path)
    assert run_example("pydantic_desk") == [
        "question 1",
        "question 2",
        "step 1 of chat-1, from pydantic-ai",
        "step 0 of chat-1, from pydantic-ai",
        "done after 2 attempts: paid: receipt of 42; payments: 1",
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_all_operations_as_with_the_store_in_memory(tmp_path: Path, is_async: bool) -> None:
    """A conversation goes on, branches, goes back, is forked, listed and deleted."""

    async def use(store: Any) -> None:
        conversations = HoldfastConversationStore(store)
        agent = Agent(TestModel(), name="agent")
        assert await conversations.load("chat") is None
        first = await agent.run("one", conversation=Conversation(conversation_id="chat"))
        assert [entry.message for entry in await conversations.save(first, scope="alice")] == first.all_messages()
        loaded = await conversations.load("chat")
        assert loaded is not None
        assert (loaded.messages, loaded.usage) == (first.all_messages(), first.usage)
        window = await conversations.load("chat", limit=1)
        assert window is not None
        assert window.messages == loaded.messages[-1:]
        second = await agent.run("two", conversation=loaded)
        await conversations.save(second)
        with pytest.raises(ConversationConflict):
            await conversations.save(loaded)
        before = await conversations.load("chat")
        assert before is not None
        branch = await conversations.branch("chat", at=2, expected_revision=before.revision)
        await conversations.save(await agent.run("three", conversation=branch))
        record = await conversations.read_record("chat")
        assert record is not None
        assert (record.scope, len(record.branches)) == ("alice", 1)
        after = await conversations.load("chat")
        assert after is not None
        assert texts(after.messages)[::2] == ["one", "three"]

        back = await conversations.branch("chat", from_entry=record.branches[0], expected_revision=after.revision)
        assert texts(back.messages)[::2] == ["one", "two"]
        fork = await conversations.fork("chat", at=2, new_conversation_id="fork", scope="bob")
        assert texts(fork.messages) == texts(first.all_messages())
        with pytest.raises(ConversationConflict):
            await conversations.fork("chat", new_conversation_id="fork")
        assert [each.conversation_id for each in await conversations.list_conversations()] == ["fork", "chat"]
        assert [each.conversation_id for each in await conversations.list_conversations(scope="alice")] == ["chat"]
        await conversations.delete("chat", scope="bob")
        await conversations.delete("chat", scope="alice")
        assert [each.conversation_id for each in await conversations.list_conversations(limit=5)] == ["fork"]
        again = Conversation(conversation_id="chat", messages=[request("new")])
        await conversations.save(again)
        assert texts((await conversations.load("chat")).messages) == ["new"]  # type: ignore[union-attr]
        entries = await HoldfastConversationStore(store).load_entries("fork")
        assert entries is not None
        read = await HoldfastConversationStore(store).read_entry(entries[1].id)  # known to no object
        assert read == entries[1]
        with pytest.raises(LookupError):
            await conversations.read_entry("nonsense")
        missing = ConversationEntry(parent_id="nonsense", message=request("x"))
        again.messages.append(request("x"))
        record = await conversations.read_record("fork")
        assert record is not None
        with pytest.raises(ConversationConflict):
            await conversations.write_record(record, new_entries=[missing], expected_revision=record.revision)

    async def main() -> None:
        if is_async:
            async with holdfast.aopen(tmp_path / "a.db") as store:
                await use(store)
        else:
            with holdfast.open(tmp_path / "a.db") as store:
                await use(store)

    asyncio.run(main())
    with pytest.raises(InvalidError, match="open store"):
        HoldfastConversationStore("a.db")  # type: ignore[arg-type]


def test_one_of_two_that_start_a_conversation_has_started_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        one, two = HoldfastConversationStore(store), HoldfastConversationStore(store)

        async def start() -> None:
            chats = [Conversation(conversation_id="chat", messages=[request(text)]) for text in ("one", "two")]
            results = await asyncio.gather(one.save(chats[0]), two.save(chats[1]), return_exceptions=True)
            assert sorted(type(each).__name__ for each in results) == ["ConversationConflict", "list"]

        asyncio.run(start())
        assert len(store.thread("chat").get().state["messages"]) == 1


def test_every_part_reads_back_equal(tmp_path: Path) -> None:
    messages = [
        ModelRequest(
            [UserPromptPart(["look", BinaryContent(b"\0\xff", media_type="application/pdf")])], instructions="be brief"
        ),
        ModelResponse([TextPart("hm"), ToolCallPart("add", {"a": 1, "b": [1.5, None]}, "call-1")], model_name="m"),
        ModelRequest([ToolReturnPart("add", {"sum": 2.5}, "call-1")]),
    ]
    with holdfast.open(tmp_path / "a.db") as store:
        asyncio.run(HoldfastConversationStore(store).append("chat", messages))
        found = asyncio.run(HoldfastConversationStore(store).load("chat"))
        assert found is not None
        assert found.messages == messages


def test_crossings(tmp_path: Path) -> None:
    """Branches, prune, encryption, redaction, holds, copies and other stores know conversations as threads."""
    encryption = Encryption(LocalKeys(b"k" * 32))
    with (
        holdfast.open(f"file://{tmp_path}/files", encryption=encryption) as store,
        holdfast.open("memory://") as other,
    ):
        conversations = HoldfastConversationStore(store)

        async def fill() -> str:
            await conversations.append("chat", [request("one"), request("two")])
            found = await conversations.load("chat")
            assert found is not None
            await conversations.branch("chat", at=1, expected_revision=found.revision)
            record = await conversations.read_record("chat")
            assert record is not None
            tip: str = record.branches[0]
            return tip

        tip = asyncio.run(fill())
        store.maintenance.prune(keep_last=1)
        assert len(store.thread("chat").log()) == 1
        assert texts(entry.message for entry in asyncio.run(conversations.read_history(tip))) == ["one", "two"]
        store.maintenance.copy_to(other)
        assert texts_of(other) == ["one"]
        assert b"one" not in b"".join(path.read_bytes() for path in (tmp_path / "files").rglob("*") if path.is_file())

        thread = store.thread("chat")
        thread.fork("aside")
        thread.switch("aside")
        asyncio.run(conversations.append("chat", [request("aside")]))
        thread.switch("main")
        assert texts_of(store) == ["one"]
        thread.hold(reason="court")
        with pytest.raises(DeniedError):
            asyncio.run(conversations.delete("chat"))
        assert asyncio.run(conversations.load("chat")) is None
        assert thread.get("HEAD~1").state["messages"]

        alice = HoldfastConversationStore(store.as_identity(user="alice"))
        asyncio.run(alice.append("hers", [request("secret")]))
        bob = HoldfastConversationStore(store.as_identity(user="bob"))
        assert asyncio.run(bob.list_conversations()) == []
        assert asyncio.run(bob.load("hers")) is None
        with pytest.raises(DeniedError):
            asyncio.run(bob.append("hers", [request("mine")]))
        assert [each.conversation_id for each in asyncio.run(alice.list_conversations())] == ["hers"]


DESK = """
import os, sys
import holdfast
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from holdfast.pydantic_ai import HoldfastDurability

LEDGER, DIES = sys.argv[2], sys.argv[3]

def note(what):
    with open(LEDGER, "a") as ledger:
        ledger.write(what + "\\n")
    if what == DIES:
        os._exit(9)

def model(messages, info):
    if len(messages) == 1:
        note("ask")
        return ModelResponse([ToolCallPart("pay", {"order": "42"}, "c1"), ToolCallPart("ship", {}, "c2")])
    note("sum up")
    return ModelResponse([TextPart("sold")])

desk = Agent(FunctionModel(model), name="desk", capabilities=[HoldfastDurability()])

@desk.tool_plain
def pay(order: str) -> str:
    note("pay " + order)
    return "paid"

@desk.tool_plain(metadata={"holdfast": {"on_unknown": "retry"}})
def ship() -> str:
    note("ship")
    return "shipped"

@holdfast.workflow
def sell(order: str) -> str:
    return desk.run_sync(order).output

with holdfast.open(sys.argv[1]) as store:
    for each in store.runs.list(state="failed"):
        store.runs.retry(each.id)
    if not store.runs.list():
        store.runs.submit(None, ["order"], graph=sell)
    (run,) = store.runs.list()
    with store.worker(sell, lease="1s"):
        run = store.runs.wait(run.id, timeout=50)
    print(run.state, run.result, run.error)
"""


@pytest.mark.parametrize("dies", ["ask", "pay 42", "ship", "sum up"])
def test_a_worker_that_was_killed_repeats_only_what_may_be_repeated(tmp_path: Path, dies: str) -> None:
    """An outside ledger has what was called."""
    (tmp_path / "desk.py").write_text(DESK)

    def work(dies: str) -> str:
        command = [sys.executable, str(tmp_path / "desk.py"), str(tmp_path / "a.db"), str(tmp_path / "ledger"), dies]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    assert work(dies) == ""
    after = work("nothing")
    called = (tmp_path / "ledger").read_text().splitlines()
    if dies == "pay 42":
        assert after.startswith("failed")
        assert called == ["ask", "pay 42"]
        with holdfast.open(tmp_path / "a.db") as store:
            (run,) = store.runs.list()
            unknown = [step.key for step in store.runs.steps(run.id) if step.state == "unknown"]
            store.runs.resolve(run.id, unknown[0], result={"result": "paid", "kind": "tool_return"})
        assert work("nothing") == "done sold"
        assert (tmp_path / "ledger").read_text().splitlines() == ["ask", "pay 42", "ship", "sum up"]
    else:
        assert after == "done sold"
        every = ["ask", "pay 42", "ship", "sum up"]
        place = every.index(dies)
        assert called == [*every[: place + 1], *every[place:]]


def test_an_agent_runs_outside_of_a_run(tmp_path: Path) -> None:
    agent = Agent(
        FunctionModel(lambda messages, info: ModelResponse([TextPart("hi")])),
        capabilities=[HoldfastDurability(name="a")],
    )
    assert agent.run_sync("hello").output == "hi"


def test_credentials_are_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy replaces is read back as a message all the same."""
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", base64.b64encode(b"k" * 32).decode())
    secret = "ghp_" + "x7Kq2mWv9" * 4
    with holdfast.open(tmp_path / "a.db") as store:
        store.redaction.protect()
        asyncio.run(HoldfastConversationStore(store).append("chat", [request(f"my token is {secret}")]))
        (read,) = texts_of(store)
        assert read.startswith("my token is [token:github-token:")
        assert secret not in str(store.thread("chat").get().state)
