"""Checkpoints and histories of the Microsoft Agent Framework."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    AgentResponse,
    AgentSession,
    Content,
    InMemoryCheckpointStorage,
    Message,
    SessionContext,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowEvent,
    WorkflowMessage,
)

import holdfast
from holdfast.agent_framework import HoldfastCheckpointStorage, HoldfastHistoryProvider
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import DeniedError, InvalidError
from holdfast.testing import ConversationSuite
from tests.frameworks.guides import run_example, run_guide


@dataclass
class Question:
    text: str


class TestHistory(ConversationSuite):
    framework = "agent-framework"

    def add(self, store: Any, name: str, texts: list[str]) -> None:
        messages = [Message("user", [text]) for text in texts]
        asyncio.run(HoldfastHistoryProvider(store).save_messages(name, messages))

    def read(self, store: Any, name: str) -> list[str]:
        return [message.text for message in asyncio.run(HoldfastHistoryProvider(store).get_messages(name))]

    def clear(self, store: Any, name: str) -> None:
        asyncio.run(HoldfastHistoryProvider(store).clear(name))


def test_the_guide_and_the_example_run(tmp_path: Path) -> None:
    run_guide("agent-framework.md", tmp_path)
    assert run_example("maf_review") == [
        "['Kelp holds fast: fine']",
        "['Kelp holds fast: too short']",
        "6 checkpoints",
        "['main']",
    ]


def checkpoint(id: str, before: str | None, second: int, workflow: str = "flow", **state: Any) -> WorkflowCheckpoint:
    answer = AgentResponse(messages=[Message("assistant", [Content.from_text("hi")])], response_id="r1")
    event = WorkflowEvent.request_info("q1", "asker", Question("Who?"), str)
    return WorkflowCheckpoint(
        workflow,
        "hash",
        checkpoint_id=id,
        previous_checkpoint_id=before,
        timestamp=datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC).isoformat(),
        messages={"a": [WorkflowMessage(data=answer, source_id="a", target_id="b", original_request_info_event=event)]},
        state={"_executor_state": {"a": {"cache": [Message("user", ["hello"])], "seen": {1, 2}}}, **state},
        pending_request_info_events={"q1": event},
        iteration_count=second,
        metadata={"n": second},
    )


def plain(value: Any) -> Any:
    """A checkpoint as it is compared: the framework's own classes have no equality."""
    if isinstance(value, WorkflowCheckpoint):
        return plain(value.to_dict())
    if isinstance(value, WorkflowMessage | WorkflowEvent | Message | AgentResponse):
        return {"class": type(value).__name__, **plain(value.to_dict())}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


async def use(storage: Any) -> list[Any]:
    """Use a storage of checkpoints; return all that it answers."""
    answers: list[Any] = [await storage.get_latest(workflow_name="flow"), await storage.delete("nonsense")]
    for each in (
        checkpoint("c", None, 1, x=1),
        checkpoint("b", "c", 2, x=2),
        checkpoint("d", "c", 4, x=3),
        checkpoint("e", "b", 3, x=4),
        checkpoint("f", None, 5, "other"),
    ):
        answers.append(await storage.save(each))
    answers += [await storage.list_checkpoint_ids(workflow_name=name) for name in ("flow", "other", "nonsense")]
    answers += [plain(await storage.load(id)) for id in "cbdef"]
    answers += [plain(each) for each in await storage.list_checkpoints(workflow_name="flow")]
    answers.append(plain(await storage.get_latest(workflow_name="flow")))
    with pytest.raises(WorkflowCheckpointException):
        await storage.load("nonsense")
    answers += [await storage.delete("d"), await storage.delete("d"), await storage.delete("f")]
    answers += [await storage.list_checkpoint_ids(workflow_name=name) for name in ("flow", "other")]
    answers.append(plain(await storage.get_latest(workflow_name="flow")))
    return answers


@pytest.mark.parametrize("is_async", [False, True])
def test_checkpoints_are_answered_as_by_the_storage_in_memory(tmp_path: Path, is_async: bool) -> None:
    async def main() -> Any:
        if is_async:
            async with holdfast.aopen(tmp_path / "a.db") as store:
                return await use(HoldfastCheckpointStorage(store))
        with holdfast.open(tmp_path / "a.db") as store:
            return await use(HoldfastCheckpointStorage(store))

    assert asyncio.run(main()) == asyncio.run(use(InMemoryCheckpointStorage()))
    for kind in (HoldfastCheckpointStorage, HoldfastHistoryProvider):
        with pytest.raises(InvalidError, match="open store"):
            kind("a.db")  # type: ignore[arg-type]


def test_crossings(tmp_path: Path) -> None:
    """Branches, prune, encryption, copies, identities, and a process that knows nothing yet."""
    encryption = Encryption(LocalKeys(b"k" * 32))
    with (
        holdfast.open(f"file://{tmp_path}/files", encryption=encryption) as store,
        holdfast.open("memory://") as other,
    ):
        storage = HoldfastCheckpointStorage(store)
        for each in (checkpoint("c", None, 1), checkpoint("b", "c", 2), checkpoint("d", "c", 3, secret="kelp")):
            asyncio.run(storage.save(each))
        assert len(store.thread("flow").branches()) == 2
        assert asyncio.run(storage.delete("b"))
        store.maintenance.prune(keep_last=1)
        store.maintenance.copy_to(other)
        for each in (store, other):
            again = HoldfastCheckpointStorage(each)
            assert asyncio.run(again.list_checkpoint_ids(workflow_name="flow")) == ["c", "d"]
            assert asyncio.run(again.load("d")).state["secret"] == "kelp"
        assert b"kelp" not in b"".join(path.read_bytes() for path in (tmp_path / "files").rglob("*") if path.is_file())

        alice = HoldfastCheckpointStorage(store.as_identity(user="alice"))
        asyncio.run(alice.save(checkpoint("h", None, 1, "hers")))
        bob = HoldfastCheckpointStorage(store.as_identity(user="bob"))
        with pytest.raises(WorkflowCheckpointException):
            asyncio.run(bob.load("h"))
        with pytest.raises(DeniedError):
            asyncio.run(bob.save(checkpoint("i", "h", 2, "hers")))
        store.erasure.erase("alice")
        assert asyncio.run(HoldfastCheckpointStorage(store).list_checkpoint_ids(workflow_name="hers")) == []


def test_an_agent_s_run_is_in_the_history(tmp_path: Path) -> None:
    """As the framework calls a provider around a run."""

    async def main() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            provider = HoldfastHistoryProvider(store, store_outputs=False)
            session = AgentSession(session_id="chat")
            context = SessionContext(session_id="chat", input_messages=[])
            for text in ("one", "two"):
                context = SessionContext(session_id="chat", input_messages=[Message("user", [text])])
                around: dict[str, Any] = {"agent": None, "session": session, "context": context, "state": {}}
                await provider.before_run(**around)
                context._response = AgentResponse(messages=[Message("assistant", ["not stored"])])
                await provider.after_run(**around)
            assert [message.text for message in context.get_messages()] == ["one"]
            assert [message.text for message in await provider.get_messages("chat")] == ["one", "two"]
            assert await provider.get_messages(None) == []

    asyncio.run(main())


def test_credentials_are_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy replaces is read back as a message all the same."""
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", base64.b64encode(b"k" * 32).decode())
    secret = "ghp_" + "x7Kq2mWv9" * 4
    with holdfast.open(tmp_path / "a.db") as store:
        store.redaction.protect()
        provider, storage = HoldfastHistoryProvider(store), HoldfastCheckpointStorage(store)
        asyncio.run(provider.save_messages("chat", [Message("user", [f"my token is {secret}"])]))
        asyncio.run(storage.save(checkpoint("c", None, 1, token=secret)))
        assert asyncio.run(storage.load("c")).state["token"].startswith("[token:")
        read = asyncio.run(provider.get_messages("chat"))[0].text
        assert read.startswith("my token is [token:github-token:")
        assert secret not in str(store.thread("chat").get().state)
