"""Scripts replay runs, agents and hooks, with the code and the recordings that their host names, and no others.

The table of cases has what they return.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import replay
from holdfast.errors import ConfigError, DeniedError, InvalidError, NotFoundError, TooLargeError
from holdfast.scripts import Sandbox

LANGUAGES = ("lua", "javascript")


def pick(language: str, lua: str, javascript: str) -> str:
    return lua if language == "lua" else javascript


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@pytest.mark.parametrize("language", LANGUAGES)
def test_scripts_replay_with_what_the_host_named(language: Any, store: holdfast.Store, tmp_path: Path) -> None:
    lua = "return holdfast.replay.{}"
    javascript = "return await holdfast.replay.{}"
    with Sandbox(
        language, store, code={"named": "tests.none:graph"}, recordings={"file": tmp_path / "none.replay"}
    ) as given:
        for call, error in (
            ("run_hooks(store, 'os:system')", DeniedError),
            ("run_agent(store, 'a', 'os:system')", DeniedError),
            ("run(store, 'os:system')", DeniedError),
            ("run('/etc/passwd', 'named')", DeniedError),
            ("compare('/etc/passwd', '/etc/passwd')", DeniedError),
            ("run('file', 'named')", NotFoundError),
            ("run(5, 'named')", InvalidError),
            (
                "run_hooks(store, 'named', OPTION)".replace("OPTION", pick(language, "{env = {}}", "{env: {}}")),
                InvalidError,
            ),
            (
                "run_hooks(store, 'named', OPTION)".replace(
                    "OPTION", pick(language, "{limit = 1001}", "{limit: 1001}")
                ),
                TooLargeError,
            ),
        ):
            with pytest.raises(error):
                given.run(pick(language, lua, javascript).format(call))
    with Sandbox(language, store.as_identity("agent:me"), code={"named": "tests.none:graph"}) as given:
        for call in ("run(store, 'named')", "run_agent(store, 'a', 'named')", "run_hooks(store, 'named')"):
            with pytest.raises(InvalidError, match="identity cannot replay"):
                given.run(pick(language, lua, javascript).format(call))


@pytest.mark.nightly
@pytest.mark.parametrize("language", LANGUAGES)
def test_scripts_replay_a_graph(language: Any, store: holdfast.Store, tmp_path: Path) -> None:
    from tests.interfaces.langgraph.test_replay import GRAPH, record

    record(store, "chat", 1)
    replay.record(store, "chat", tmp_path / "chat.replay")
    expected = replay.run(store, GRAPH, thread="chat")
    with Sandbox(
        language,
        store,
        timeout=300,
        code={"graph": GRAPH, "broken": "tests.store.replayed_hooks:register"},
        recordings={"chat": tmp_path / "chat.replay"},
    ) as given:

        def run(call: str) -> Any:
            options = re.sub(r"(\w+)=", pick(language, r"\1 = ", r"\1: "), call)
            return given.run(pick(language, "return holdfast.replay.", "return await holdfast.replay.") + options)

        for source in ("store, 'graph', {thread='chat'}", "'chat', 'graph'"):
            found = run(f"run({source})")
            assert (found["steps"], found["calls"]) == (expected.steps, expected.calls)
            assert found["matches"]
        edited = pick(language, "{['2:tools#0'] = 'none'}", "{'2:tools#0': 'none'}")
        changed = run("run(store, 'graph', {thread='chat', changes=" + edited + "})")
        assert changed["divergence"]["step"] == 2
        assert run("compare(store, 'chat', {thread='chat'})")["matches"]
        with pytest.raises(ConfigError, match="cannot be imported") as stopped:
            run("run(store, 'broken', {thread='chat'})")
        assert "Traceback" not in str(stopped.value)
