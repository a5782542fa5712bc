"""Runnables, prompts, messages and histories: restored elsewhere, and equal."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import math
import subprocess
import sys
import threading
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core._api import LangChainDeprecationWarning
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from pydantic import SecretStr

from holdfast import __version__, snapshots
from holdfast.errors import (
    ConfigError,
    SnapshotError,
    SnapshotInvalidError,
    SnapshotRefusedError,
    SnapshotUnsupportedError,
)
from tests.snapshots.kit import KEY, SECRETS, Scripted, Unserializable, elsewhere, lines_of
from tests.support.cases import case
from tests.support.nightly import examples

MODEL = Scripted(lines=["yes", "no, maybe"])
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "You are {who}."), MessagesPlaceholder("past", optional=True), ("human", "{question}")]
)
ASKED = {"who": "an oracle", "question": "Shall I?"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "thing.hfsnap"


def through(value: Any, path: Path, **given: Any) -> Any:
    snapshots.snapshot(value, path, overwrite=True)
    return snapshots.restore(path, **given)


def test_a_chain_answers_as_before(path: Path) -> None:
    chain = PROMPT | MODEL | StrOutputParser()
    info = snapshots.snapshot(chain, path, description="the oracle")
    again = snapshots.restore(path, allow=[Scripted])
    assert again.invoke(ASKED) == chain.invoke(ASKED)
    assert again == chain
    assert (info.kind, info.type, info.description) == ("langchain", "RunnableSequence", "the oracle")
    assert info.classes == ("tests.snapshots.kit.Scripted",)
    assert info.secrets == ()
    assert info.versions["holdfast"] == __version__
    assert {"langchain", "langchain-core", "python"} <= info.versions.keys()
    assert dt.datetime.now(dt.UTC) - info.time < dt.timedelta(minutes=10)
    assert info == snapshots.info(path) == snapshots.verify(path)
    assert info.size == path.stat().st_size


KEPT: list[Any] = [
    PROMPT,
    PromptTemplate.from_template("Tell me of {what}."),
    PROMPT.pipe(RunnablePassthrough(), StrOutputParser()),
    RunnableParallel(one=StrOutputParser(), two=CommaSeparatedListOutputParser()),
    HumanMessage("hello", id="1", additional_kwargs={"n": [1, 2.5, None, True, {"x": "y"}]}),
    [SystemMessage("s"), AIMessage("a", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1"}])],
    [ToolMessage("done", tool_call_id="1", status="error")],
    Document("text", metadata={"page": 3}),
    [],
    HumanMessage("half \ud800", name="\ud800"),
]


def test_what_is_frozen_comes_back_equal(path: Path, subtests: pytest.Subtests) -> None:
    for value in KEPT:
        with case(subtests, value):
            again = through(value, path)
            assert again == value
            assert type(again) is type(value)


def test_a_bound_model_keeps_what_it_is_bound_to(path: Path) -> None:
    bound = MODEL.bind(stop=["x"], tools=["hammer"])
    assert through(bound, path, allow=[Scripted]).invoke("?").content == bound.invoke("?").content


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
def test_a_history_comes_back_as_one(path: Path) -> None:
    history = InMemoryChatMessageHistory(messages=[HumanMessage("hi"), AIMessage("ho")])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LangChainDeprecationWarning)
        again = through(history, path)
    assert type(again) is InMemoryChatMessageHistory
    assert again.messages == history.messages
    assert snapshots.info(path).kind == "history"


LOOKALIKES: list[Any] = [
    {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": {}},
    {"lc": 1, "type": "secret", "id": ["HOME"]},
    {"lc": 1, "type": "not_implemented", "id": ["x"]},
    {"lc": 2},
    {"__lc_escaped__": {"lc": 1}},
    {"__lc_escaped__": {"__lc_escaped__": {"lc": 1, "type": "secret", "id": ["HOME"]}}},
    {"deep": [{"lc": 1, "type": "secret", "id": ["HOME"]}]},
    {"$tuple": [1]},
]


def test_data_that_looks_like_an_object_stays_data(path: Path, subtests: pytest.Subtests) -> None:
    for data in LOOKALIKES:
        with case(subtests, data):
            message = HumanMessage(
                [{"type": "text", "text": "x", "data": data}], additional_kwargs={"data": data, **data}
            )
            document = Document("x", metadata=data)
            assert through([message, document], path, secrets={"HOME": "told"}) == [message, document]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["lc", "type", "id", "kwargs", "__lc_escaped__", "x"]) | st.text(), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(60))
@given(data=st.dictionaries(st.sampled_from(["lc", "__lc_escaped__", "type", "a"]), JSON), text=st.text())
def test_any_data_stays_data(data: dict[str, Any], text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.hfsnap"
    message = AIMessage(text, additional_kwargs=data)
    assert through([message], path) == [message]


# What cannot be kept --------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    pass


SELF: dict[str, Any] = {}
SELF["self"] = SELF
DEEP: list[Any] = []
for _ in range(150):
    DEEP = [{"a": DEEP}]


NOT_KEPT: list[tuple[Any, ...]] = [
    (lambda: PROMPT.pipe(RunnableLambda(str)), "value.last", "does not serialize"),
    (lambda: PROMPT | Unserializable(lines=[]), "value.last", "not serializable"),
    (lambda: [HumanMessage("", additional_kwargs={"when": dt.date.min})], "[0].additional_kwargs.when", "date"),
    (lambda: HumanMessage("", additional_kwargs={"x": (1,)}), "value.additional_kwargs.x", "as a list"),
    (lambda: HumanMessage("", additional_kwargs={"x": {1: 2}}), "value.additional_kwargs.x", "is not a string"),
    (lambda: HumanMessage("", additional_kwargs={"x": math.nan}), "value.additional_kwargs.x", "nan"),
    (lambda: HumanMessage("", additional_kwargs={"x": [math.inf]}), "kwargs.x[0]", "inf"),
    (lambda: HumanMessage("", additional_kwargs={"x": Colour.RED}), "kwargs.x", "Colour"),
    (lambda: HumanMessage("", additional_kwargs={"x": Word("a")}), "kwargs.x", "Word"),
    (lambda: HumanMessage("", additional_kwargs={"x": b"1"}), "kwargs.x", "bytes"),
    (lambda: HumanMessage("", additional_kwargs={"lc": 1, "x": HumanMessage("")}), "kwargs.x", "looks like"),
    (lambda: HumanMessage("", additional_kwargs={"lc": 1, "x": [HumanMessage("")]}), "kwargs.x[0]", "looks like"),
    (lambda: HumanMessage("", additional_kwargs={"lc": 1, "x": {"y": b"1"}}), "kwargs.x.y", "bytes"),
    (lambda: HumanMessage("", additional_kwargs=SELF), "additional_kwargs.self", "contains itself"),
    (lambda: len, "", "not supported by snapshots"),
    (lambda: {"a": 1}, "", "not supported by snapshots"),
    (lambda: ["text"], "", "not supported by snapshots"),
    (lambda: MODEL.with_fallbacks([MODEL]), "exceptions_to_handle", "tuple|type"),
]


def test_what_cannot_be_kept_is_named(path: Path, subtests: pytest.Subtests) -> None:
    for make, where, why in NOT_KEPT:
        with case(subtests, where, why):
            with pytest.raises(SnapshotUnsupportedError, match=why) as raised:
                snapshots.snapshot(make(), path)
            assert where in raised.value.where
            assert not path.exists()


def test_what_nests_too_deeply_is_refused_when_it_is_written(path: Path) -> None:
    with pytest.raises(SnapshotError, match="nest"):
        snapshots.snapshot(HumanMessage("", additional_kwargs={"x": DEEP}), path)
    assert not path.exists()


def test_templates_that_run_code_are_refused(path: Path) -> None:
    template = PromptTemplate(template="{{ x }}", template_format="jinja2", input_variables=["x"])
    with pytest.raises(SnapshotRefusedError, match="jinja2") as raised:
        snapshots.snapshot(template.pipe(StrOutputParser()), path)
    assert raised.value.where == "value.first.template_format"


class Elsewhere(BaseChatMessageHistory):
    messages: list[BaseMessage] = []

    def clear(self) -> None:
        """Nothing."""


def test_a_history_that_lies_elsewhere_is_refused(path: Path) -> None:
    with pytest.raises(SnapshotUnsupportedError, match="elsewhere"):
        snapshots.snapshot(Elsewhere(), path)


def test_threads_and_tools_belong_to_agents(path: Path) -> None:
    with pytest.raises(SnapshotInvalidError, match="threads"):
        snapshots.snapshot(PROMPT, path, config={"configurable": {"thread_id": "1"}})
    snapshots.snapshot(PROMPT, path)
    with pytest.raises(SnapshotInvalidError, match="apply only to agents"):
        snapshots.restore(path, tools=[len])
    with pytest.raises(SnapshotInvalidError, match="apply only to agents"):
        snapshots.restore(path, thread="1")


def test_a_description_is_a_text(path: Path, subtests: pytest.Subtests) -> None:
    wrong: list[Any] = [None, 5, "x" * 5000, "\ud800"]
    for description in wrong:
        with case(subtests, description), pytest.raises(SnapshotInvalidError, match="description"):
            snapshots.snapshot(PROMPT, path, description=description)


# Secrets --------------------------------------------------------------------------------------------------------


def test_a_secret_is_not_in_the_file_and_comes_from_whoever_restores(path: Path) -> None:
    chain = PROMPT | Scripted(lines=["x"], api_key=SecretStr(KEY))
    assert snapshots.snapshot(chain, path).secrets == ("SCRIPTED_API_KEY",)
    assert KEY not in str(lines_of(path))
    with pytest.raises(SnapshotInvalidError, match="SCRIPTED_API_KEY"):
        snapshots.restore(path, allow=[Scripted])
    again = snapshots.restore(path, allow=[Scripted], secrets={"SCRIPTED_API_KEY": "another", "MORE": "x"})
    assert again.last.api_key.get_secret_value() == "another"
    wrapped: Any = {"SCRIPTED_API_KEY": SecretStr("wrapped")}
    assert snapshots.restore(path, allow=[Scripted], secrets=wrapped).last.api_key.get_secret_value() == "wrapped"


def test_secrets_come_from_the_environment_only_if_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots.snapshot(Scripted(lines=["x"], api_key=SecretStr(KEY)), path)
    monkeypatch.setenv("SCRIPTED_API_KEY", "from outside")
    with pytest.raises(SnapshotInvalidError, match="not given"):
        snapshots.restore(path, allow=[Scripted])
    again = snapshots.restore(path, allow=[Scripted], secrets_from_env=True)
    assert again.api_key.get_secret_value() == "from outside"
    given_one = snapshots.restore(path, allow=[Scripted], secrets_from_env=True, secrets=SECRETS)
    assert given_one.api_key.get_secret_value() == KEY


LEAKS: list[tuple[Any, ...]] = [
    (lambda: Scripted(lines=["x"], api_key=SecretStr(KEY), headers={"X-Custom": f"Key {KEY}"}), "headers.X-Custom"),
    (lambda: Scripted(lines=[KEY], api_key=SecretStr(KEY)), "lines[0]"),
    (lambda: PromptTemplate.from_template(f"with {KEY}") | Scripted(lines=[], api_key=SecretStr(KEY)), "template"),
    (lambda: Scripted(lines=["x"], headers={"Authorization": "Bearer abc"}), "headers.Authorization"),
    (lambda: Scripted(lines=["x"], headers={"deep": {"password": "abc"}}), "headers.deep.password"),
    (lambda: MODEL.bind(openai_api_key="abc"), "kwargs.openai_api_key"),
    (lambda: Scripted(lines=["x"], headers={"x": SecretStr("abc")}), "headers.x"),
    (lambda: Scripted(lines=["x"], api_key=SecretStr(KEY), headers={f"x-{KEY}": 1}), "headers (a key)"),
]


def test_a_secret_that_would_get_into_the_file_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    for make, where in LEAKS:
        with case(subtests, where):
            with pytest.raises(SnapshotRefusedError) as raised:
                snapshots.snapshot(make(), path)
            assert where in raised.value.where
            assert KEY not in str(raised.value)
            assert not path.exists()


def test_secrets_that_are_given_are_looked_for_everywhere(path: Path) -> None:
    messages = [HumanMessage("my password is hunter2")]
    with pytest.raises(SnapshotRefusedError, match="secret PASSWORD") as raised:
        snapshots.snapshot(messages, path, secrets={"PASSWORD": "hunter2"})
    assert "hunter2" not in str(raised.value)
    with pytest.raises(SnapshotRefusedError, match="secret PASSWORD"):
        snapshots.snapshot([], path, secrets={"PASSWORD": "hunter2"}, description="with hunter2")
    with pytest.raises(SnapshotRefusedError, match="secret PASSWORD"):
        snapshots.snapshot(messages, path, secrets={"PASSWORD": SecretStr("hunter2")})
    for wrong in ("", 5, None):
        with pytest.raises(SnapshotInvalidError, match="not text"):
            snapshots.snapshot([], path, secrets={"PASSWORD": wrong})


def test_what_only_looks_like_a_secret_is_let_through_if_somebody_says_so(path: Path) -> None:
    model = Scripted(lines=["x"], headers={"password": "the field of a form"})
    snapshots.snapshot(model, path, not_secret=["password"])
    assert snapshots.restore(path, allow=[Scripted]) == model
    with pytest.raises(SnapshotInvalidError, match="list"):
        snapshots.snapshot(model, path, not_secret="password")


# Elsewhere, and otherwise ---------------------------------------------------------------------------------------


@pytest.mark.nightly  # by day, an agent with such a model goes on in another process
def test_another_process_answers_the_same(path: Path) -> None:
    chain = PROMPT | MODEL | StrOutputParser()
    snapshots.snapshot(chain, path)
    code = (
        "import sys\n"
        "from holdfast import snapshots\n"
        "from tests.snapshots.kit import Scripted\n"
        "chain = snapshots.restore(sys.argv[1], allow=[Scripted])\n"
        "sys.stdout.write(chain.invoke({'who': 'an oracle', 'question': 'Shall I?'}))\n"
    )
    done = elsewhere(code, path)
    assert done.stdout == chain.invoke(ASKED), done.stderr


def test_asyncio_has_the_same(path: Path) -> None:
    async def work() -> None:
        info = await snapshots.asnapshot(PROMPT, path)
        assert await snapshots.arestore(path) == PROMPT
        assert snapshots.info(path) == snapshots.verify(path) == info
        assert snapshots.exists(path)
        assert [each.info for each in snapshots.list(path.parent)] == [info]
        snapshots.delete(path)
        assert not snapshots.exists(path)

    asyncio.run(work())


def test_what_is_not_installed_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="langchain_core") as raised:
        snapshots.snapshot([], path)
    assert raised.value.code == "not-installed"


def test_versions_are_those_of_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "langchain":
            raise PackageNotFoundError(package)
        return "1.2.3"

    monkeypatch.setattr("holdfast.agents.snapshots.contents.version", version)
    versions = snapshots.snapshot([], path).versions
    assert "langchain" not in versions
    assert versions["langchain-core"] == "1.2.3"


def test_every_function_has_its_name_and_its_words() -> None:
    for name in ("snapshot", "asnapshot", "restore", "arestore", "info", "exists", "verify", "list", "delete"):
        function = getattr(snapshots, name)
        assert function.__name__ == name
        assert function.__doc__
    assert all(hasattr(snapshots, name) for name in snapshots.__all__)
    assert not hasattr(snapshots, "nonsense")


SECRET_SETTINGS: list[Any] = [
    {"api_keys": ["sk-1"]},
    {"api_keys": {"service": "sk-1"}},
    {"Authorization": ["sk-1"]},
    {"access_key": "sk-1"},
    {"hf_token": "sk-1"},
    {"Cookie": "sk-1"},
    {"connection_string": "sk-1"},
    {"base_url": "https://me:sk-1@host/"},
    {"base_url": "https://host/?a=b&api_key=sk-1"},
    {"X-Forwarded": "Bearer sk-1234567"},
]


def test_what_is_secret_by_its_name_or_form_is_refused_in_every_container(
    path: Path, subtests: pytest.Subtests
) -> None:
    for secret in SECRET_SETTINGS:
        with case(subtests, secret):
            (name,) = secret
            for thing in (Scripted(lines=[], headers=secret), MODEL.bind(**secret)):
                with pytest.raises(SnapshotRefusedError, match=name) as raised:
                    snapshots.snapshot(thing, path)
                assert "sk-1" not in str(raised.value)
                snapshots.snapshot(thing, path, not_secret=[name], overwrite=True)
                path.unlink()


@pytest.mark.parametrize(
    "settings",
    [
        {"properties": {"password": {"type": "string"}, "token": {"$ref": "#/x"}}},
        {"eos_token": "</s>", "max_tokens": "5", "token_limit": "9"},
        {"api_key": "", "password": None, "credentials": {}, "secrets": [True, 5]},
        {"base_url": "https://host:8080/a@b?q=1", "template": "https://{user}:{password}@host", "says": "basic needs"},
    ],
    ids=["schema", "tokens-of-models", "nothing-there", "addresses"],
)
def test_what_only_resembles_a_secret_is_kept(settings: dict[str, Any], path: Path) -> None:
    model = Scripted(lines=[], headers=settings)
    snapshots.snapshot(model, path)
    assert snapshots.restore(path, allow=[Scripted]).headers == settings


MADE_IN: list[int] = []


class Threaded(Scripted):
    """Tells in which thread it was made."""

    def model_post_init(self, context: Any) -> None:
        MADE_IN.append(threading.get_ident())


def test_objects_are_not_made_in_the_thread_of_a_loop(path: Path) -> None:
    snapshots.snapshot(Threaded(lines=["x"]), path)
    MADE_IN.clear()
    snapshots.restore(path, allow=[Threaded])
    asyncio.run(snapshots.arestore(path, allow=[Threaded]))
    here, there = MADE_IN
    assert here == threading.get_ident() != there


class Inside(Scripted):
    """Its secret is a part of a field."""

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"headers.api_key": "INSIDE_KEY"}


def test_a_secret_inside_of_a_field_is_refused_as_langchain_does_not_give_it_back(path: Path) -> None:
    with pytest.raises(SnapshotUnsupportedError, match="inside a field") as raised:
        snapshots.snapshot(Inside(lines=[], headers={"api_key": "sk-1234567", "x": "y"}), path)
    assert raised.value.where == "value.headers"
    snapshots.snapshot(Inside(lines=[], headers={"x": "y"}), path)


SCRIPT = """
import sys
from langchain_core.language_models import FakeListChatModel
from holdfast import snapshots

class Parrot(FakeListChatModel):
    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return cls.__module__.split(".")

snapshots.snapshot(Parrot(responses=["hello"]), sys.argv[1])
print(snapshots.info(sys.argv[1]).classes, snapshots.restore(sys.argv[1], allow=[Parrot]).invoke("x").content)
"""


@pytest.mark.nightly
def test_a_class_of_a_script_is_restored_by_the_script(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "('__main__.Parrot',) hello\n", done.stderr
    with pytest.raises(SnapshotRefusedError, match="__main__.Parrot are not allowed"):
        snapshots.restore(path)
