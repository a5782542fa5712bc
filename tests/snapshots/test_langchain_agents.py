"""Agents of `langchain.agents.create_agent`: restored with their thread, and continued."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import SecretStr

import holdfast
from holdfast import snapshots
from holdfast.agents.snapshots.langchain_agents import wrappers
from holdfast.errors import SnapshotCorruptError, SnapshotInvalidError, SnapshotRefusedError, SnapshotUnsupportedError
from holdfast.langgraph import HoldfastSaver
from tests.snapshots import kit
from tests.snapshots.kit import (
    KEY,
    SECRETS,
    Scripted,
    Toolbox,
    Weather,
    add,
    forged,
    lines_of,
    look,
    other_add,
    set_at,
    wrap,
)
from tests.support.cases import case
from tests.support.nightly import mostly_nightly

THREAD: Any = {"configurable": {"thread_id": "1"}}
MODEL = Scripted(lines=["hello", "call add", "done", "bye"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.hfsnap"


def say(agent: Any, text: str, thread: Any = THREAD) -> list[tuple[str, Any, Any]]:
    """Say something to an agent, and see all that it has in its thread by then."""
    said = agent.invoke({"messages": [HumanMessage(text)]}, thread)["messages"]
    return [(message.type, message.content, getattr(message, "tool_calls", None)) for message in said]


def restored(path: Path, **given: Any) -> Any:
    return snapshots.restore(path, **{"allow": [Scripted], "tools": [add], **given})


def test_an_agent_goes_on_with_its_thread(path: Path) -> None:
    agent = create_agent(MODEL, [add], system_prompt="Be kind.", checkpointer=InMemorySaver(), name="helper")
    say(agent, "one")
    info = snapshots.snapshot(agent, path, config=THREAD, description="half way")
    assert (info.kind, info.name, info.tools) == ("agent", "helper", ("add",))
    again = restored(path)
    assert say(again, "two") == say(agent, "two")
    assert say(again, "three") == say(agent, "three")
    assert again.name == "helper"
    # The snapshot is still what it was.
    assert say(restored(path), "two") != say(agent, "two")


@pytest.mark.nightly
def test_an_agent_goes_on_in_another_process(path: Path) -> None:
    agent = create_agent(
        Scripted(lines=MODEL.lines, api_key=SecretStr(KEY)),
        [add],
        system_prompt="Be kind.",
        checkpointer=InMemorySaver(),
    )
    say(agent, "one")
    snapshots.snapshot(agent, path, config=THREAD)
    assert KEY not in str(lines_of(path))
    code = (
        "import json, sys\n"
        "from holdfast import snapshots\n"
        "from tests.snapshots.kit import Scripted, add\n"
        "from tests.snapshots.test_langchain_agents import say\n"
        "agent = snapshots.restore(sys.argv[1], allow=[Scripted], tools=[add], secrets_from_env=True)\n"
        "sys.stdout.write(json.dumps([say(agent, 'two'), say(agent, 'three')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps([say(agent, "two"), say(agent, "three")]))


def test_a_thread_moves_into_a_store_of_holdfasts(path: Path, tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db") as one, holdfast.open(f"sqlite:///{tmp_path}/b.db") as two:
        agent = create_agent(MODEL, [add], checkpointer=HoldfastSaver(one))
        say(agent, "one")
        snapshots.snapshot(agent, path, config=THREAD)
        there: Any = {"configurable": {"thread_id": "moved"}}
        again = restored(path, checkpointer=HoldfastSaver(two), thread="moved")
        assert say(again, "two", there) == say(agent, "two")
        with pytest.raises(SnapshotInvalidError, match="has a thread 'moved' already"):
            restored(path, checkpointer=HoldfastSaver(two), thread="moved")


def test_an_agent_that_waits_for_an_answer_still_waits(path: Path) -> None:
    agent = create_agent(Scripted(lines=["call ask", "thanks"]), [ask], checkpointer=InMemorySaver())
    waiting = agent.invoke({"messages": [HumanMessage("go")]}, THREAD)
    assert waiting["__interrupt__"][0].value == "how many?"
    snapshots.snapshot(agent, path, config=THREAD)
    again = restored(path, tools=[ask])
    assert again.get_state(THREAD).next == agent.get_state(THREAD).next == ("tools",)
    assert again.get_state(THREAD).interrupts == agent.get_state(THREAD).interrupts
    answers = [each.invoke(Command(resume=5), THREAD)["messages"] for each in (again, agent)]
    assert [[m.content for m in said] for said in answers] == [
        ["go", "", "5", "thanks (3 heard, tools ['ask'])"] for _ in range(2)
    ]


@tool
def ask(a: int, b: int) -> int:
    """Ask somebody."""
    return int(interrupt("how many?"))


def test_what_runs_were_configured_with_is_not_told(path: Path) -> None:
    agent = create_agent(MODEL, [add], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}, "metadata": {"session_token": "sk-1"}}
    say(agent, "one", config)
    with pytest.raises(SnapshotRefusedError, match="session_token") as raised:
        snapshots.snapshot(agent, path, config=THREAD)
    assert raised.value.where == "thread.metadata.session_token"


def test_an_agent_without_thread(path: Path) -> None:
    agent = create_agent(MODEL, [add], interrupt_before=["tools"], debug=False)
    snapshots.snapshot(agent, path)
    again = restored(path)
    assert again.checkpointer is None
    assert again.interrupt_before_nodes == ["tools"]
    assert say(again, "one", None) == say(agent, "one", None)
    with pytest.raises(SnapshotInvalidError, match="has no thread"):
        restored(path, thread="1")
    with pytest.raises(SnapshotInvalidError, match="no checkpointer"):
        snapshots.snapshot(agent, path, config=THREAD, overwrite=True)


def test_a_thread_that_is_not_there(path: Path) -> None:
    agent = create_agent(MODEL, [add], checkpointer=InMemorySaver())
    with pytest.raises(SnapshotInvalidError, match="no such thread"):
        snapshots.snapshot(agent, path, config=THREAD)


def test_what_it_was_configured_with_comes_along(path: Path) -> None:
    agent = create_agent(MODEL, [add]).with_config({"tags": ["a"], "metadata": {"team": "x"}, "recursion_limit": 50})
    snapshots.snapshot(agent, path)
    config = restored(path).config
    assert config["tags"] == ["a"]
    assert config["metadata"]["team"] == "x"
    assert config["recursion_limit"] == 50
    called = create_agent(MODEL).with_config({"callbacks": [BaseCallbackHandler()]})
    with pytest.raises(SnapshotUnsupportedError, match="callbacks") as raised:
        snapshots.snapshot(called, path, overwrite=True)
    assert raised.value.where == "config.callbacks"


def test_tools_of_the_provider_are_data(path: Path) -> None:
    agent = create_agent(MODEL, [add, {"type": "web_search", "lc": 1}])
    snapshots.snapshot(agent, path)
    again = restored(path)
    assert say(again, "one", None) == say(agent, "one", None)
    assert "web_search" in say(again, "one", None)[1][1]


# Code that is given again -------------------------------------------------------------------------------------


def test_tools_have_to_be_given_again(path: Path) -> None:
    info = snapshots.snapshot(create_agent(MODEL, [add]), path)
    assert info.tools == ("add",)
    with pytest.raises(SnapshotInvalidError, match="not given: add"):
        restored(path, tools=[])
    with pytest.raises(SnapshotInvalidError, match=r"tools \(add\)"):
        restored(path, tools=[other_add])
    with pytest.raises(SnapshotInvalidError, match=r"tools \(ask\)"):
        restored(path, tools=[add, ask])
    assert say(restored(path, tools=[other_add], accept_changes=True), "x", None)


def test_middleware_has_to_be_given_again(path: Path) -> None:
    agent = create_agent(MODEL, [add], middleware=[look, wrap, kit.wrap_too])
    info = snapshots.snapshot(agent, path)
    assert info.middleware == ("look", "wrap", "wrap_too")
    with pytest.raises(SnapshotInvalidError, match="not given: look"):
        restored(path, middleware=[wrap, kit.wrap_too])
    again = restored(path, middleware=[look, wrap, kit.wrap_too])
    assert say(again, "one", None) == say(agent, "one", None)
    snapshots.snapshot(create_agent(MODEL, [add], middleware=[look]), path, overwrite=True)
    with pytest.raises(SnapshotInvalidError, match="middleware"):
        restored(path, middleware=[look, wrap])


SETTINGS: list[tuple[Any, Any]] = [
    (lambda: ModelCallLimitMiddleware(run_limit=3), lambda: ModelCallLimitMiddleware(run_limit=4)),
    (
        lambda: HumanInTheLoopMiddleware(interrupt_on={"add": True}),
        lambda: HumanInTheLoopMiddleware(interrupt_on={"add": {"allowed_decisions": ["approve"]}}),
    ),
    (
        lambda: SummarizationMiddleware(MODEL, trigger=("messages", 4)),
        lambda: SummarizationMiddleware(Scripted(lines=["another"]), trigger=("messages", 4)),
    ),
    (
        lambda: SummarizationMiddleware(MODEL, trigger=("messages", 4)),
        lambda: SummarizationMiddleware(MODEL, trigger=("messages", 5)),
    ),
    (lambda: ToolRetryMiddleware(retry_on=(OSError,)), lambda: ToolRetryMiddleware(retry_on=(ValueError,))),
    (lambda: kit.Prefix("a"), lambda: kit.Prefix("b")),
    (lambda: PIIMiddleware("email", strategy="hash"), lambda: PIIMiddleware("email", strategy="redact")),
    (lambda: ContextEditingMiddleware(edits=[ClearToolUsesEdit(keep=1)]), ContextEditingMiddleware),
]


@pytest.mark.parametrize(("make", "other"), mostly_nightly(SETTINGS, daily=[SETTINGS[1], SETTINGS[5]]))
def test_middleware_with_other_settings_is_noticed(make: Any, other: Any, path: Path) -> None:
    agent = create_agent(MODEL, [add], middleware=[make()])
    snapshots.snapshot(agent, path, overwrite=True)
    say(agent, "used meanwhile", None)
    assert say(restored(path, middleware=[make()]), "one", None)
    with pytest.raises(SnapshotInvalidError, match=rf"settings \({re.escape(other().name)}\)"):
        restored(path, middleware=[other()])
    assert restored(path, middleware=[other()], accept_changes=True)


@pytest.mark.nightly
def test_settings_of_middleware_are_the_same_in_another_process(path: Path) -> None:
    middleware = [SummarizationMiddleware(MODEL, trigger=[("messages", 4), ("tokens", 9)]), kit.Prefix({"b", "a", "c"})]
    snapshots.snapshot(create_agent(MODEL, [add], middleware=middleware), path)
    code = (
        "import sys\n"
        "from langchain.agents.middleware import SummarizationMiddleware\n"
        "from holdfast import snapshots\n"
        "from tests.snapshots.kit import Prefix, Scripted, add\n"
        "from tests.snapshots.test_langchain_agents import MODEL\n"
        "summary = SummarizationMiddleware(MODEL, trigger=[('messages', 4), ('tokens', 9)])\n"
        "middleware = [summary, Prefix({'c', 'a', 'b'})]\n"
        "snapshots.restore(sys.argv[1], allow=[Scripted], tools=[add], middleware=middleware)\n"
        "sys.stdout.write('the same')\n"
    )
    done = kit.elsewhere(code, path)
    assert done.stdout == "the same", done.stderr


def test_tools_may_come_from_middleware(path: Path) -> None:
    agent = create_agent(MODEL, middleware=[Toolbox()])
    assert snapshots.snapshot(agent, path).tools == ("add",)
    again = restored(path, tools=[], middleware=[Toolbox()])
    assert say(again, "one", None) == say(agent, "one", None)


class Counting(AgentState[Any]):
    count: int


class Context(TypedDict):
    user: str


def test_a_schema_of_the_state_has_to_be_given_again(path: Path) -> None:
    agent = create_agent(MODEL, [add], state_schema=Counting, context_schema=Context)
    snapshots.snapshot(agent, path)
    with pytest.raises(SnapshotInvalidError, match="channels"):
        restored(path)
    restored(path, state_schema=Counting, context_schema=Context)


SCHEMA = {"title": "Weather", "type": "object", "properties": {"sky": {"type": "string"}}, "description": "x"}


def test_a_format_that_is_data_comes_along(path: Path) -> None:
    snapshots.snapshot(create_agent(MODEL, [add], response_format=SCHEMA), path)
    again = restored(path)
    snapshots.snapshot(again, path, overwrite=True)
    with pytest.raises(SnapshotInvalidError, match="response_format"):
        restored(path, response_format=Weather)


@pytest.mark.parametrize(
    "form", [Weather, ToolStrategy(Weather), ProviderStrategy(Weather)], ids=["auto", "tool", "own"]
)
def test_a_format_that_is_code_has_to_be_given_again(form: Any, path: Path) -> None:
    snapshots.snapshot(create_agent(MODEL, [add], response_format=form), path)
    with pytest.raises(SnapshotInvalidError, match="response_format="):
        restored(path)
    restored(path, response_format=form)
    with pytest.raises(SnapshotInvalidError, match="differ"):
        restored(path, response_format=SCHEMA)


def test_what_langchain_refuses_is_told(path: Path) -> None:
    snapshots.snapshot(create_agent(MODEL, [add]), path)
    with pytest.raises(SnapshotInvalidError, match="cannot create the agent"):
        restored(path, middleware=[look, look])


# What is refused ------------------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_kept_is_named(path: Path) -> None:
    with pytest.raises(SnapshotUnsupportedError, match="Unserializable") as raised:
        snapshots.snapshot(create_agent(kit.Unserializable(lines=["x"])), path)
    assert raised.value.where == "model"


def test_a_model_with_settings_bound_to_it(path: Path) -> None:
    bound: Any = MODEL.bind(stop=["."])
    agent = create_agent(bound, [add])
    snapshots.snapshot(agent, path)
    assert say(restored(path), "one") == say(agent, "one")


def test_a_secret_in_the_conversation_is_refused(path: Path) -> None:
    model = Scripted(lines=[MODEL.lines[0]], api_key=SecretStr(KEY))
    agent = create_agent(model, [add], checkpointer=InMemorySaver())
    say(agent, f"my key is {KEY}")
    with pytest.raises(SnapshotRefusedError, match="SCRIPTED_API_KEY"):
        snapshots.snapshot(agent, path, config=THREAD)
    assert not path.exists()


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: create_agent(MODEL, [{"type": "mcp", "authorization": "Bearer x"}]), "tools[0].authorization"),
        (lambda: create_agent(MODEL).with_config({"metadata": {"api_key": "x"}}), "config.metadata.api_key"),
    ],
    ids=["provider-tool", "config"],
)
def test_settings_that_look_secret_are_refused(make: Any, where: str, path: Path) -> None:
    with pytest.raises(SnapshotRefusedError) as raised:
        snapshots.snapshot(make(), path)
    assert raised.value.where == where


def test_a_graph_of_another_making_is_refused(path: Path) -> None:
    builder = StateGraph(Counting)
    builder.add_node("model", lambda state: {"count": 1})
    builder.set_entry_point("model")
    with pytest.raises(SnapshotUnsupportedError, match="not created by"):
        snapshots.snapshot(builder.compile(), path)
    other = StateGraph(Counting)
    other.add_node("only", lambda state: {"count": 1})
    other.set_entry_point("only")
    with pytest.raises(SnapshotUnsupportedError, match="not created by"):
        snapshots.snapshot(other.compile(), path)


def test_a_channel_of_differences_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = create_agent(MODEL, [add], checkpointer=InMemorySaver())
    say(agent, "one")
    monkeypatch.setitem(agent.channels, "slow", DeltaChannel(lambda old, new: old, list))
    with pytest.raises(SnapshotUnsupportedError, match="slow stores only differences"):
        snapshots.snapshot(agent, path, config=THREAD)


def test_a_state_that_cannot_be_kept_is_named(path: Path) -> None:
    agent = create_agent(MODEL, [add], checkpointer=InMemorySaver(), state_schema=Counting)
    say(agent, "one")
    saver: Any = agent.checkpointer
    found = saver.get_tuple(THREAD)
    found.checkpoint["channel_values"]["client"] = object()
    saver.get_tuple = lambda config: found
    with pytest.raises(SnapshotUnsupportedError) as raised:
        snapshots.snapshot(agent, path, config=THREAD)
    assert raised.value.where == "thread.checkpoint.channel_values.client"


def test_a_handler_that_is_not_finished_has_no_middleware() -> None:
    def handler() -> object:
        return later

    assert wrappers(handler) == []
    later = None


def test_a_store_of_langgraphs_is_the_agents(path: Path) -> None:
    snapshots.snapshot(create_agent(MODEL, [add]), path)
    store = InMemoryStore()
    assert restored(path, store=store).store is store
    with pytest.raises(SnapshotInvalidError, match="is not one"):
        restored(path, agent_id="x")


GOLDEN = Path(__file__).parents[1] / "golden" / "snapshot-v1-agent.hfsnap"


def test_the_golden_agent_goes_on() -> None:
    assert snapshots.verify(GOLDEN).tools == ("add",)
    # A newer LangChain may draw its graphs otherwise; the file has to be read all the same.
    agent = snapshots.restore(GOLDEN, allow=[Scripted], tools=[add], secrets=SECRETS, accept_changes=True)
    assert say(agent, "two")[:3] == [
        ("human", "one", None),
        ("ai", "hello (2 heard, tools ['add'])", []),
        ("human", "two", None),
    ]
    assert say(agent, "three")[-1][1].startswith("bye")


def test_a_langchain_that_makes_agents_otherwise_is_told_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.snapshots.langchain_agents._CLOSURE_NAMES", ("model", "gears"))
    with pytest.raises(SnapshotUnsupportedError, match="gears"):
        snapshots.snapshot(create_agent(MODEL), path)


def tampered(path: Path, change: Any) -> None:
    """Change what an agent's snapshot holds, and seal it anew."""
    header, document, _ = lines_of(path)
    change(document["content"])
    path.write_bytes(forged(document, kind="agent", secrets=tuple(header["secrets"])))


CHANGES = [
    set_at("thread", to=5),
    set_at("thread", to=[]),
    set_at("thread", "writes", to=[5]),
    set_at("thread", "checkpoint", to={}),
    set_at("thread", "checkpoint", to=[]),
    set_at("thread", "thread", to=5),
    set_at("thread", "metadata", to={"$tuple": 5}),
    set_at("thread", "more", to=5),
    set_at("agent", "model", to=5),
    set_at("agent", "model", to=None),
    set_at("agent", "tools", to=[5]),
    set_at("agent", "tools", to=[{}]),
    set_at("agent", "tools", to={}),
    set_at("agent", "debug", to=1),
    set_at("agent", "name", to=5),
    set_at("agent", "config", to={"$bytes": 5}),
    set_at("agent", "config", to=[]),
    set_at("agent", "shape", to={}),
    set_at("agent", "shape", "middleware", to=5),
    set_at("agent", "response_format", to={}),
    set_at("agent", "provider_tools", to=[5]),
    set_at("agent", "provider_tools", to={"$int": "x"}),
    set_at("agent", "interrupt_before", to=[5]),
    set_at("agent", "system_prompt", to={"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}}),
    set_at("agent", "system_prompt", to={}),
]


def test_an_agent_that_somebody_tampered_with_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    agent = create_agent(MODEL, [add], checkpointer=InMemorySaver())
    say(agent, "one")
    snapshots.snapshot(agent, path, config=THREAD)
    sound = path.read_bytes()
    for change in CHANGES:
        with case(subtests, change):
            path.write_bytes(sound)
            tampered(path, change)
            with pytest.raises((SnapshotCorruptError, SnapshotInvalidError, SnapshotRefusedError)):
                restored(path)
