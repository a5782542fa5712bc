"""`holdfast replay` records, runs and compares."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit
from tests.interfaces.langgraph.test_replay import GRAPH, record


@pytest.mark.nightly
def test_a_thread_is_recorded_run_and_compared(tmp_path: Path) -> None:
    url, file = str(tmp_path / "agents.db"), tmp_path / "chat.replay"
    with holdfast.open(url) as store:
        record(store, "chat", 1)
    assert kit.run("replay", "record", "chat", file, store=url).code == 0
    done = kit.run("replay", "run", file, "--graph", GRAPH)
    assert (done.code, done.out.startswith("chat: as recorded (")) == (0, True), done
    changed = kit.run("--json", "replay", "run", "chat", "--graph", GRAPH, "--change", '2:tools#0="none"', store=url)
    assert changed.code == 6
    assert changed.records[0]["divergence"]["step"] == 2
    assert kit.run("replay", "compare", file, file).code == 0
    assert kit.run("replay", "run", "--open", "--graph", GRAPH, store=url).out == ""
    missing = kit.run("--json", "replay", "run", "chat", "--graph", "tests.none:graph", store=url)
    assert (missing.code, missing.error["code"]) == (1, "config")


def test_a_source_is_needed() -> None:
    assert kit.run("replay", "run", "--graph", GRAPH).code == 2
    assert kit.run("replay", "run", "chat", "--open", "--graph", GRAPH).code == 2
