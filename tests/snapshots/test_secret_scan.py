"""Secrets do not get into snapshots: by the names of fields, by known formats, anywhere in the object."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

import holdfast
from holdfast import snapshots
from holdfast.errors import SnapshotRefusedError
from tests.snapshots.greeter import Greeter
from tests.snapshots.kit import Scripted, add

KEYS = {
    "OpenAI": "sk-proj-" + "aB3_" * 10,
    "OpenAI, older": "sk-" + "aB3d" * 12,
    "Anthropic": "sk-ant-api03-" + "aB3-" * 20,
    "AWS": "AKIA" + "Z2Q7" * 4,
    "GitHub": "ghp_" + "aB3d" * 9,
    "GitHub, fine-grained": "github_pat_" + "aB3_" * 10,
    "GitLab": "glpat-" + "aB3-" * 5,
    "Slack": "xoxb-" + "1234567890-" * 2 + "abcdef",
    "Google": "AIza" + "aB3-d" * 7,
    "Stripe": "sk_live_" + "aB3d" * 6,
    "Hugging Face": "hf_" + "aB3d" * 9,
    "LangSmith": "lsv2_pt_" + "a1b2" * 8 + "_0123456789",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
    "PEM, PKCS 8": "-----BEGIN PRIVATE KEY-----\nMIIEow",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.hfsnap"


def agent_with(said: Any) -> Any:
    """An agent in whose thread something was said."""
    agent = create_agent(Scripted(lines=["well"]), [add], checkpointer=InMemorySaver())
    agent.update_state(THREAD, {"messages": said}, as_node="__start__")
    return agent


THREAD: Any = {"configurable": {"thread_id": "1"}}


def tool_with(description: str = "Log in.", default: str | None = None) -> Any:
    def log_in(password: str | None = default) -> str:
        return str(password)

    return tool("log_in", description=description)(log_in)


def login(args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "log_in", "args": args, "id": "1"}])


BY_NAME: list[tuple[Any, dict[str, Any], str, str]] = [
    (lambda text: Document("page", metadata={"api_key": text}), {}, "value.metadata.api_key", "api_key"),
    (lambda text: [HumanMessage("x", additional_kwargs={"api_key": text})], {}, "additional_kwargs.api_key", "api_key"),
    (lambda text: [login({"password": text})], {}, "value[0].tool_calls[0].args.password", "password"),
    (lambda text: [login({"form": [{"password": text}]})], {}, "args.form[0].password", "password"),
    (lambda text: [ToolMessage("x", tool_call_id="1", artifact={"client_secret": text})], {}, "client_secret", ""),
    (lambda text: create_agent(Scripted(lines=["x"]), [tool_with(default=text)]), {}, "properties.password", ""),
    (lambda text: agent_with([login({"password": text})]), {"config": THREAD}, "args.password", "password"),
]


def test_fields_with_names_of_secrets_are_refused(path: Path, subtests: pytest.Subtests) -> None:
    for make, options, where, name in BY_NAME:
        with subtests.test(where):
            path.unlink(missing_ok=True)
            with pytest.raises(SnapshotRefusedError) as raised:
                snapshots.snapshot(make("hunter2"), path, **options)
            at = raised.value.where
            assert at.endswith(where)
            assert "hunter2" not in str(raised.value)
            assert not path.exists()
            for allowed in (at, name or at.rpartition(".")[2]):
                snapshots.snapshot(make("hunter2"), path, not_secret=[allowed], overwrite=True, **options)
                assert b"hunter2" in gzip.decompress(path.read_bytes())
            snapshots.snapshot(make(""), path, overwrite=True, **options)  # nothing is there to be secret


IN_TEXT: list[tuple[Any, dict[str, Any], str]] = [
    (lambda key: ChatPromptTemplate.from_messages([("system", "Use " + brackets(key))]), {}, "template"),
    (lambda key: Scripted(lines=["x"], headers={"X-Custom": key}), {}, "headers.X-Custom"),
    (lambda key: Scripted(lines=["x"], headers={key: 1}), {}, "headers (a key)"),
    (lambda key: Scripted(lines=["x"]).bind(stop=[f"a {key}"]), {}, "stop[0]"),
    (lambda key: [HumanMessage(f"my key is {key}, keep it")], {}, "content[0].content"),
    (lambda key: [HumanMessage([{"type": "text", "text": key}])], {}, "content[0].content[0].text"),
    (lambda key: [SystemMessage("x", name=key)], {}, "content[0].name"),
    (lambda key: [login({"q": key})], {}, "args.q"),
    (lambda key: Document(key), {}, "page_content"),
    (lambda key: create_agent(Scripted(lines=["x"]), system_prompt=key), {}, "agent.system_prompt.content"),
    (lambda key: create_agent(Scripted(lines=["x"]), [tool_with(f"Use {key}.")]), {}, "schema.description"),
    (lambda key: agent_with([HumanMessage(key)]), {"config": THREAD}, "content"),
]


def brackets(text: str) -> str:
    return text.replace("{", "{{")


def test_keys_of_known_formats_are_refused_wherever_there_is_text(path: Path, subtests: pytest.Subtests) -> None:
    key = KEYS["GitHub"]
    for make, options, where in IN_TEXT:
        with subtests.test(where):
            path.unlink(missing_ok=True)
            with pytest.raises(SnapshotRefusedError, match="looks like a key") as raised:
                snapshots.snapshot(make(key), path, **options)
            at = raised.value.where
            assert at.endswith(where)
            assert key not in str(raised.value)
            assert not path.exists()
            snapshots.snapshot(make("ghp_short"), path, overwrite=True, **options)
            snapshots.snapshot(make(key), path, not_secret=[at], overwrite=True, **options)
            assert key.encode() in gzip.decompress(path.read_bytes())


def test_a_name_or_a_description_with_a_key_is_refused(path: Path) -> None:
    with pytest.raises(SnapshotRefusedError, match="looks like a key"):
        snapshots.snapshot(create_agent(Scripted(lines=["x"]), name=KEYS["AWS"]), path)
    with pytest.raises(SnapshotRefusedError) as raised:
        snapshots.snapshot([], path, description=f"with {KEYS['AWS']}")
    assert raised.value.where == "description"
    snapshots.snapshot([], path, description=f"with {KEYS['AWS']}", not_secret=["description"])


def test_every_known_format_is_recognized(path: Path, subtests: pytest.Subtests) -> None:
    for name, key in KEYS.items():
        for text in (key, f"it is {key}", f"KEY={key};", f"'{key}'"):
            with subtests.test(name, text=text), pytest.raises(SnapshotRefusedError):
                snapshots.snapshot([HumanMessage(text)], path)


def test_ordinary_text_is_no_key(path: Path) -> None:
    texts = [
        "Basic mathematics",
        "bearer instruments",
        "sk-learn-based-pipelines-for-classification-and-regression",
        "the task-proj-management-of-everything",
        "AKIAKI is a town, and ASIA a continent",
        "-----BEGIN CERTIFICATE-----",
        "ghp_ and hf_ are prefixes",
        "eyJ is how JSON begins in base64",
        "https://example.org/secret?password={password}",
    ]
    usage = {"token_usage": {"total_tokens": 5, "details": "x"}, "stop_token": "x", "password_rules": None}
    messages = [HumanMessage(text) for text in texts] + [AIMessage("x", response_metadata=usage)]
    snapshots.snapshot(messages, path)
    assert snapshots.restore(path) == messages


def test_agents_of_holdfast_have_none_in_their_conversations(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = Greeter().attach(store, "g1")
        agent.conversation.append(login({"password": "hunter2"}))
        with pytest.raises(SnapshotRefusedError) as raised:
            snapshots.snapshot(agent, path)
        assert raised.value.where.endswith("args.password")
        snapshots.snapshot(agent, path, not_secret=["password"])
        agent.conversation.append(HumanMessage(f"my key: {KEYS['OpenAI']}"))
        with pytest.raises(SnapshotRefusedError, match="looks like a key"):
            snapshots.snapshot(agent, path, not_secret=["password"], overwrite=True)
