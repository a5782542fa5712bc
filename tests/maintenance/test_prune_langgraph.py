"""Threads of graphs are pruned by the store, which knows nothing of graphs: they go on as if nothing had been."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.savers import HOLDFAST, holdfast_saver
from tests.interfaces.langgraph.sessions import on
from tests.interfaces.langgraph.test_langgraph_kept_threads import deltas_on, state_of, turn
from tests.support.nightly import mostly_nightly


@pytest.fixture(params=mostly_nightly([*HOLDFAST], daily=["sqlite"]))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast_saver(request.param, tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    "rules",
    mostly_nightly([{"keep_last": 1}, {"keep_last": 3}, {"keep_where": "step:1..3"}], daily=[{"keep_last": 3}]),
    ids=str,
)
def test_delta_channels_are_carried_along(saver: HoldfastSaver, rules: dict[str, Any]) -> None:
    graph = deltas_on(saver)
    store: Any = saver.store
    for thread in ("pruned", "whole"):
        for number in range(4):
            turn(graph, thread, number)
    before = {each.config["configurable"]["checkpoint_id"]: each for each in graph.get_state_history(on("pruned"))}
    planned = store.maintenance.prune(threads="pruned", dry_run=True, **rules)
    report = store.maintenance.prune(threads="pruned", **rules)
    assert [each.thread for each in report.threads] == ["pruned", "pruned␟child"]
    assert (planned.dropped, planned.bytes) == (report.dropped, report.bytes)
    assert report.dropped > 5
    left = {each.config["configurable"]["checkpoint_id"]: each.values for each in graph.get_state_history(on("pruned"))}
    assert left == {id: before[id].values for id in left}, "every checkpoint that is left has the state it had"
    assert state_of(graph, "pruned") == state_of(graph, "whole")
    for number in range(4, 7):
        assert turn(graph, "pruned", number) == turn(graph, "whole", number)
        store.maintenance.prune(**rules, threads="pruned")
        assert state_of(graph, "pruned") == state_of(graph, "whole")


def test_also_by_a_program_that_has_no_langgraph(tmp_path: Path) -> None:
    with holdfast_saver("sqlite", tmp_path) as saver:
        graph = deltas_on(saver)
        for number in range(4):
            turn(graph, "t", number)
        expected = state_of(graph, "t")
        url = str(saver.store._handle.engine.context.backend.url)
        program = (
            "import sys\n"
            "sys.modules['langgraph'] = sys.modules['langchain_core'] = None\n"
            "import holdfast\n"
            f"with holdfast.open({url!r}) as store:\n"
            "    print(store.maintenance.prune(keep_last=1).dropped)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 5
        assert state_of(graph, "t") == expected
        turn(graph, "t", 4)
        assert 4 in state_of(graph, "t")[0]["often"]
