"""Forged files with a valid seal: refused with a clear error, without side effects."""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langchain_core.prompts import PromptTemplate

from holdfast import snapshots
from holdfast.errors import ConfigError, HoldfastError, SnapshotCorruptError, SnapshotInvalidError, SnapshotRefusedError
from tests.snapshots.kit import Scripted, forged
from tests.support.cases import case
from tests.support.nightly import examples


def object_of(*id: Any, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": list(id), "kwargs": kwargs}


def restored(path: Path, content: Any, header: dict[str, Any] | None = None, **given: Any) -> Any:
    path.write_bytes(forged({"kind": "langchain", "content": content}, **(header or {})))
    return snapshots.restore(path, **given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.hfsnap"


MESSAGE = ("langchain", "schema", "messages", "HumanMessage")
SECRET = {"lc": 1, "type": "secret", "id": ["KEY"]}


def test_the_kit_makes_files_that_are_read(path: Path) -> None:
    assert restored(path, object_of(*MESSAGE, content="x")) == HumanMessage("x")


INJECTED: list[tuple[Any, ...]] = [
    (object_of("os", "system", command="true"), SnapshotRefusedError, "os.system"),
    (object_of("subprocess", "Popen", args=["true"]), SnapshotRefusedError, "subprocess.Popen"),
    (object_of("builtins", "eval", source="1"), SnapshotRefusedError, "builtins.eval"),
    (object_of("langchain_core", "load", "load", "importlib"), SnapshotRefusedError, "importlib"),
    (object_of("langchain_core", "messages", "human", "HumanMessages"), SnapshotRefusedError, "not allowed"),
    (object_of("langchain", "HumanMessage"), SnapshotRefusedError, "not allowed"),
    (object_of("langchain_core.messages.human", "HumanMessage"), SnapshotCorruptError, "not a valid class name"),
    (object_of("langchain", "..", "os", "system"), SnapshotCorruptError, "not a valid class name"),
    (object_of("langchain_core", "messages", "__class__"), SnapshotCorruptError, "not a valid class name"),
    (object_of("langchain_core", "__builtins__", "eval"), SnapshotCorruptError, "not a valid class name"),
    (object_of("HumanMessage"), SnapshotCorruptError, "not a valid LangChain object"),
    (object_of(), SnapshotCorruptError, "not a valid LangChain object"),
    (object_of(1, 2), SnapshotCorruptError, "not a valid class name"),
    (object_of(["langchain"], "x"), SnapshotCorruptError, "not a valid class name"),
    (object_of("langchain", "a\nb"), SnapshotCorruptError, "not a valid class name"),
    ({**object_of(*MESSAGE), "id": "HumanMessage"}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "kwargs": []}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "kwargs": None}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "more": 1}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "lc": True}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "lc": 1.0}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "lc": 2}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "type": "other"}, SnapshotCorruptError, "not a valid LangChain object"),
    ({**object_of(*MESSAGE), "type": None}, SnapshotCorruptError, "not a valid LangChain object"),
    ({"lc": 1}, SnapshotCorruptError, "not a valid LangChain object"),
    ({"lc": 1, "type": "not_implemented", "id": ["x", "y"], "repr": "y"}, SnapshotCorruptError, "only the name"),
    (object_of(*MESSAGE, content=SECRET), SnapshotRefusedError, "secret where none belongs"),
    ([SECRET], SnapshotRefusedError, "secret where none belongs"),
    (SECRET, SnapshotRefusedError, "secret where none belongs"),
    ({"lc": 1, "type": "secret", "id": ["KEY", "x"]}, SnapshotCorruptError, "not a valid marker of a secret"),
    ({"lc": 1, "type": "secret", "id": "KEY"}, SnapshotCorruptError, "not a valid marker of a secret"),
    ({"lc": True, "type": "secret", "id": ["KEY"]}, SnapshotCorruptError, "not a valid marker of a secret"),
    ([[object_of(*MESSAGE, content="x"), {"a": object_of("os", "system")}]], SnapshotRefusedError, "os.system"),
    (object_of(*MESSAGE), SnapshotInvalidError, "cannot create the object"),
    (object_of(*MESSAGE, content=5), SnapshotInvalidError, "cannot create the object"),
    (
        object_of("langchain", "prompts", "prompt", "PromptTemplate", template="{{x}}", template_format="jinja2"),
        SnapshotInvalidError,
        "[Jj]inja2",
    ),
    (object_of("langchain", "chat_models", "openai", "ChatOpenAI"), SnapshotRefusedError, "allow="),
    (object_of("langchain", "llms", "openai", "OpenAI"), SnapshotRefusedError, "allow="),
]


def test_an_injected_constructor_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    for content, error, why in INJECTED:
        with case(subtests, content):
            with pytest.raises(error, match=why) as raised:
                restored(path, content, {"secrets": ("KEY",)}, secrets={"KEY": "told to nobody"})
            assert isinstance(raised.value, HoldfastError)
            assert "told to nobody" not in str(raised.value)


def test_escaped_data_is_not_made_into_objects(path: Path) -> None:
    data = {"__lc_escaped__": object_of("os", "system", command="false")}
    message = restored(path, object_of(*MESSAGE, content="x", additional_kwargs=data))
    assert message.additional_kwargs == object_of("os", "system", command="false")


SCRIPTED = ("tests", "snapshots", "kit", "Scripted")


def test_a_secret_goes_only_to_classes_that_were_allowed_and_under_names_that_the_header_tells(path: Path) -> None:
    name = "SCRIPTED_API_KEY"
    secret = {"lc": 1, "type": "secret", "id": [name]}
    fine = object_of(*SCRIPTED, lines=["x"], api_key=secret)
    with pytest.raises(SnapshotRefusedError, match="not allowed"):
        restored(path, fine, {"secrets": (name,)}, secrets={name: "a"})
    with pytest.raises(SnapshotRefusedError, match="secret where none belongs"):
        restored(path, fine, secrets={name: "a"}, allow=[Scripted])
    with pytest.raises(SnapshotRefusedError, match="secret where none belongs"):
        restored(path, object_of(*SCRIPTED, lines=[secret]), {"secrets": (name,)}, secrets={name: "a"}, allow=Scripted)
    made = restored(path, fine, {"secrets": (name,)}, secrets={name: "a"}, allow=[Scripted])
    assert made.api_key.get_secret_value() == "a"


@pytest.mark.parametrize(
    ("field", "name"),
    [("name", "CLOUD_PASSWORD"), ("api_key", "CLOUD_PASSWORD"), ("name", "SCRIPTED_API_KEY")],
    ids=["both", "another-secret", "another-field"],
)
def test_a_secret_goes_only_to_the_field_whose_class_declares_it(
    field: str, name: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model with somebody else's address would be told any variable of the environment, as its name or user."""
    monkeypatch.setenv(name, "told to nobody")
    content = object_of(*SCRIPTED, lines=["x"], **{field: {"lc": 1, "type": "secret", "id": [name]}})
    with pytest.raises(SnapshotRefusedError, match=f"{name} in {field} of Scripted") as raised:
        restored(path, content, {"secrets": (name,)}, secrets_from_env=True, allow=[Scripted])
    assert "told to nobody" not in str(raised.value)


@pytest.mark.parametrize("lines", [None, 5, "raise"], ids=str)
def test_an_error_does_not_tell_the_secret(lines: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pydantic shows what it was given, cut in the middle: the start and the end of a key too."""
    key = "sk-" + "0123456789" * 6
    if lines == "raise":

        def init(self: Any, **kwargs: Any) -> None:
            raise RuntimeError(f"no connection with {key}")

        monkeypatch.setattr(Scripted, "__init__", init)
    secret = {"lc": 1, "type": "secret", "id": ["SCRIPTED_API_KEY"]}
    rest = {} if lines is None else {"lines": lines}
    with pytest.raises(SnapshotInvalidError, match="lines: |no connection with …") as raised:
        restored(
            path,
            object_of(*SCRIPTED, api_key=secret, **rest),
            {"secrets": ("SCRIPTED_API_KEY",)},
            secrets={"SCRIPTED_API_KEY": key},
            allow=[Scripted],
        )
    shown = "".join(traceback.format_exception(raised.value, limit=0))
    assert key[:8] not in shown
    assert key[-8:] not in shown


@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
def test_a_template_of_jinja2_that_pydantic_would_make_of_a_dict_is_refused(escaped: bool, path: Path) -> None:
    inner = {"template": "{{x}}", "template_format": "jinja2", "input_variables": ["x"]}
    suffix = object_of("langchain", "prompts", "prompt", "PromptTemplate", template="x", input_variables=[])
    content = object_of(
        *("langchain", "prompts", "few_shot_with_templates", "FewShotPromptWithTemplates"),
        examples=[{"x": "1"}],
        example_prompt={"__lc_escaped__": inner} if escaped else inner,
        suffix=suffix,
        input_variables=[],
    )
    with pytest.raises(SnapshotRefusedError, match="jinja2"):
        restored(path, content)


def agent_of(**changes: Any) -> dict[str, Any]:
    """An agent of create_agent's, in order but for the changes."""
    shape: dict[str, Any] = {
        "nodes": [],
        "edges": [],
        "channels": [],
        "middleware": [],
        "tools": {},
        "response_format": None,
    }
    agent: dict[str, Any] = {
        "model": object_of(*SCRIPTED, lines=["x"]),
        "system_prompt": None,
        "tools": [],
        "provider_tools": [],
        "response_format": None,
        "name": None,
        "interrupt_before": [],
        "interrupt_after": [],
        "debug": False,
        "config": {},
        "shape": shape,
    }
    thread = changes.pop("thread", None)
    return {"agent": {**agent, **changes}, "thread": thread}


def thread_of(**changes: Any) -> dict[str, Any]:
    """A thread, in order but for the changes of its checkpoint, or of `metadata` and `writes`."""
    rest = {"metadata": {"step": 1, "source": "loop", "parents": {}}, "writes": []}
    rest = {name: changes.pop(name, value) for name, value in rest.items()}
    empty: dict[str, Any] = {"channel_values": {}, "channel_versions": {}, "versions_seen": {}}
    checkpoint = {
        "v": 4,
        "id": "1f0a5b9e-0000-6000-8000-000000000000",
        "ts": "2026-01-02T03:04:05+00:00",
        **empty,
        **changes,
    }
    return {"thread": "1", "namespace": "", "checkpoint": checkpoint, **rest}


def restored_agent(path: Path, content: Any) -> Any:
    path.write_bytes(forged({"kind": "agent", "content": content}, kind="agent"))
    return snapshots.restore(path, allow=[Scripted], accept_changes=True)


def test_the_kit_makes_agents_that_are_made(path: Path) -> None:
    agent = restored_agent(path, agent_of(thread=thread_of(), config={"recursion_limit": 9, "tags": ["a"]}))
    said = agent.invoke({"messages": [("human", "hello")]}, {"configurable": {"thread_id": "1"}})
    assert said["messages"][-1].content.startswith("x (1 heard")


NO_AGENTS: list[Any] = [
    agent_of(model={"__lc_escaped__": "ollama:llama"}),
    agent_of(model={"__lc_escaped__": 5}),
    agent_of(model={"a": 1}),
    agent_of(model=object_of(*MESSAGE, content="x")),
    agent_of(model=object_of("langchain", "prompts", "prompt", "PromptTemplate", template="x", input_variables=[])),
    agent_of(system_prompt={"__lc_escaped__": 5}),
    agent_of(system_prompt=object_of(*MESSAGE, content="x")),
    agent_of(tools=[{"name": 5}]),
    agent_of(tools=[{"name": []}]),
    agent_of(shape={"middleware": [5]}),
    agent_of(shape={"middleware": [[]]}),
    agent_of(provider_tools=["x"]),
    agent_of(provider_tools=[None]),
    agent_of(provider_tools={"a": 1}),
    agent_of(config={"callbacks": "x"}),
    agent_of(config={"metadata": [1]}),
    agent_of(config={"tags": 5}),
    agent_of(config={"configurable": {"__pregel_send": 1}}),
    agent_of(config={"$tuple": [1]}),
    agent_of(thread=thread_of(v="x")),
    agent_of(thread=thread_of(channel_values=None)),
    agent_of(thread=thread_of(channel_versions={"a": [1]})),
    agent_of(thread=thread_of(versions_seen=5)),
    agent_of(thread=thread_of(metadata={})),
    agent_of(thread=thread_of(writes=[[1, 2, 3]])),
    agent_of(thread=thread_of(writes=[["a", [], 3]])),
]


def test_an_agent_that_is_none_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    for content in NO_AGENTS:
        with case(subtests, content), pytest.raises(SnapshotCorruptError):
            restored_agent(path, content)


@pytest.mark.parametrize("end", [b"", b"\\", b'"'], ids=["open", "backslash", "closed"])
def test_a_text_without_an_end_takes_no_longer_than_another(end: bytes, path: Path) -> None:
    path.write_bytes(forged(b"[" * 300 + b'"' + b'\\"' * 2_000_000 + end))
    began = time.monotonic()
    with pytest.raises(SnapshotCorruptError):
        snapshots.verify(path)
    assert time.monotonic() - began < 120  # each quote looked at again from every one before it: hours


def test_what_is_allowed_can_be_less(path: Path) -> None:
    prompt = object_of("langchain", "prompts", "prompt", "PromptTemplate", template="x", input_variables=[])
    assert isinstance(restored(path, prompt), PromptTemplate)
    with pytest.raises(SnapshotRefusedError, match="not allowed"):
        restored(path, prompt, allow="messages")
    assert restored(path, object_of(*MESSAGE, content="x"), allow="messages") == HumanMessage("x")


def test_what_langchain_lists_and_is_not_installed_is_named(path: Path) -> None:
    content = object_of("langchain", "chat_models", "openai", "ChatOpenAI", model="x")
    with pytest.raises(ConfigError, match="langchain_openai") as raised:
        restored(path, content, allow="all")
    assert raised.value.code == "not-installed"


class Local(Scripted):
    """Found under its name until a test hides it."""


def test_what_is_allowed_is_a_class_or_a_list_of_langchains(path: Path, subtests: pytest.Subtests) -> None:
    for allow in ["any", [int], [5], ["Scripted"]]:
        with case(subtests, allow), pytest.raises(SnapshotInvalidError, match="not a list|not a class"):
            restored(path, [], allow=allow)


def test_a_class_that_cannot_be_found_again_is_not_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored(path, [], allow=["core", Local])
    hidden = Local
    monkeypatch.delitem(globals(), "Local")
    with pytest.raises(SnapshotInvalidError, match="cannot be imported"):
        restored(path, [], allow=hidden)


NO_DOCUMENTS: list[Any] = [
    b"",
    b"[]",
    b"null",
    b"NaN",
    b"{}",
    b'{"kind":"langchain"}',
    b'{"kind":"langchain","content":[],"more":1}',
    b'{"kind":"langchain","kind":"langchain","content":[]}',
    b'{"kind":"agent","content":[]}',
    b'{"kind":null,"content":[]}',
    b'{"kind":"langchain","content":' + b"[" * 1000 + b"]" * 1000 + b"}",
    b"\xff\xfe",
]


def test_a_document_that_is_none_is_refused_by_verify_too(path: Path, subtests: pytest.Subtests) -> None:
    for document in NO_DOCUMENTS:
        with case(subtests, document):
            path.write_bytes(forged(document))
            for look in (snapshots.verify, snapshots.restore):
                with pytest.raises(SnapshotCorruptError):
                    look(path)


OTHER_CONTENT: list[Any] = [
    *(None, 5, "x", [5], {}, ["a"]),
    *({"agent": 1}, {"agent": None, "thread": None}, {"agent": {}, "thread": None}),
]


def test_content_of_another_kind_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    for kind in ["history", "agent"]:
        for content in OTHER_CONTENT:
            with case(subtests, kind, content):
                path.write_bytes(forged({"kind": kind, "content": content}, kind=kind))
                with pytest.raises(SnapshotCorruptError):
                    snapshots.restore(path)


def test_content_that_is_no_object_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    for content in [None, 5, "x", {}, {"a": 1}, [5], [{"lc_": 1}]]:
        with case(subtests, content), pytest.raises(SnapshotCorruptError, match="not a LangChain object"):
            restored(path, content)


def test_a_history_of_other_things_is_refused(path: Path) -> None:
    prompt = object_of("langchain", "prompts", "prompt", "PromptTemplate", template="x", input_variables=[])
    path.write_bytes(forged({"kind": "history", "content": [prompt]}, kind="history"))
    with pytest.raises(SnapshotCorruptError, match="values that are not messages"):
        snapshots.restore(path)


WORDS = [
    "lc",
    "type",
    "id",
    "kwargs",
    "constructor",
    "secret",
    "not_implemented",
    "langchain",
    "KEY",
    "content",
    "human",
]
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=examples(150))
@given(tree=TREES, kind=st.sampled_from(["langchain", "history", "agent"]))
def test_whatever_is_in_it_is_made_or_refused(tree: Any, kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "tree.hfsnap"
    path.write_bytes(forged({"kind": kind, "content": tree}, kind=kind, secrets=("KEY",)))
    try:
        made = snapshots.restore(path, secrets={"KEY": "told"})
    except HoldfastError:
        return
    assert "told" not in repr(made)
    assert getattr(made, "messages", made) == []


def test_nothing_is_run_or_imported(path: Path) -> None:
    """In a process of its own, with an eye on what it opens and starts."""
    code = (
        "import sys\n"
        "import langchain_core.load, langchain_core.documents, langchain_core.chat_history\n"
        "from holdfast import snapshots, errors\n"
        "snapshots.info(sys.argv[1])\n"
        "def watch(event, args):\n"
        "    if event in ('os.system', 'subprocess.Popen', 'socket.connect') or (\n"
        "        event == 'import' and args[0].startswith(('antigravity', 'this'))):\n"
        "        sys.stdout.write(event)\n"
        "sys.addaudithook(watch)\n"
        "try:\n"
        "    snapshots.restore(sys.argv[1], allow='all')\n"
        "except errors.SnapshotRefusedError as error:\n"
        "    sys.stdout.write('refused ' + error.where)\n"
    )
    content = [object_of("antigravity", "x"), object_of("this", "s"), object_of("os", "system", command="id")]
    path.write_bytes(forged({"kind": "langchain", "content": content}))
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "refused value[2]", done.stderr
