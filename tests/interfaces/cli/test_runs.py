"""`holdfast runs` and `holdfast work`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.interfaces.cli.runs import find_target
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]

CODE = """
import holdfast

@holdfast.step
def double(number):
    return 2 * number

@holdfast.workflow
def add(one, other=1):
    if other < 0:
        raise ValueError("too small")
    return double(one) + double(other)
"""

AGENT = """
from holdfast.agents import PersistentAgent

class Desk(PersistentAgent, name="cli-runs-desk"):
    def run(self, order):
        return order
"""


@pytest.fixture
def code(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file with a workflow, under a name that no other test imports."""
    path = tmp_path / f"{request.node.name.replace('[', '_').rstrip(']')}_code.py"
    path.write_text(CODE)
    return f"{path}:add"


def test_runs_are_submitted_done_and_shown(hf: Hf, code: str) -> None:
    assert "There are no runs" in hf("runs").err
    id = hf("runs", "submit", "add", "--input", "[1, 2]", "--thread", "sums").out.strip()
    assert "queued" in hf("runs", "list", "--thread", "sums").out
    worked = hf("work", code, "--once")
    assert worked.code == 0, worked.err
    assert "add on sums: done" in worked.out
    shown = hf("runs", "show", id, "--json").records
    assert (shown[0]["state"], shown[0]["result"]) == ("done", 6)
    assert [each["key"] for each in shown[1:]] == ["000001 double", "000002 double"]
    followed = hf("runs", "follow", id)
    assert [set(line.split()) & {"step", "done"} for line in followed.lines] == [{"step"}, {"step"}, {"done"}]


def test_runs_are_cancelled_and_retried(hf: Hf, code: str) -> None:
    failing = hf("runs", "submit", "add", "--input", '{"one": 1, "other": -1}', "--key", "k").out.strip()
    assert hf("runs", "submit", "add", "--input", '{"one": 1, "other": -1}', "--key", "k").out.strip() == failing
    assert hf("runs", "cancel", failing, "--yes").code == 0
    assert "cancelled" in hf("runs", "list", "--state", "cancelled").out
    assert hf("runs", "retry", failing).code == 0
    assert hf("runs", "delete", failing, "--yes").code != 0  # it is not over
    assert "add on" in hf("work", f"add={code}", "--once").out
    assert hf("runs", "answer", failing, '"yes"').code != 0
    assert hf("runs", "cancel", failing, "--yes").code == 0
    assert "is deleted" in hf("runs", "delete", failing, "--yes").err
    assert "no run" in hf("runs", "delete", failing, "--yes").err
    assert failing not in hf("runs", "list").out
    assert hf("runs", "submit", "add", "--input", "{").code == 2
    assert hf("work", "nothing_here.py:graph", "--once").code != 0


def test_a_worker_stops_at_a_signal(url: str, code: str) -> None:
    words = kit.command("--store", url, "work", code)
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=kit.environment(), text=True) as worker:
        try:
            assert worker.stderr is not None
            assert "Waiting for runs of add" in worker.stderr.readline()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(kit.SECONDS) == 0
        finally:
            worker.kill()


def test_runs_that_failed_in_a_worker_are_alerted_elsewhere(hf: Hf, url: str, code: str) -> None:
    with holdfast.open(url) as store:
        store.alerts.evaluate()
        for other in (1, -1):
            store.runs.submit("sums", [1, other], graph="add", attempts=1)
        words = kit.command("--store", url, "work", code, "--once")
        assert subprocess.run(words, env=kit.environment(), check=False).returncode == 0
        store.alerts.evaluate()
        (alert,) = [each for each in store.alerts.list() if each.rule == "run-failed"]
        assert (alert.state, alert.message) == ("firing", "1 runs failed: holdfast runs list --state failed")


def test_a_step_is_resolved(hf: Hf, url: str, code: str) -> None:
    failing = hf("runs", "submit", "add", "--input", '["x", 1]').out.strip()
    step = Path(code.rpartition(":")[0])
    step.write_text(step.read_text().replace("return 2 * number", "return number - 1"))
    assert hf("work", code, "--once").code == 0
    (failed,) = hf("runs", "show", failing, "--json").records[1:]
    assert failed["state"] == "failed"
    assert hf("runs", "resolve", failing, failed["key"]).code == 2
    assert "resolved" in hf("runs", "resolve", failing, failed["key"], "--result", "7").err
    (done,) = hf("runs", "show", failing, "--json").records[1:]
    assert (done["state"], done["result"]) == ("done", 7)


def test_a_limit_of_all_workers_is_set_shown_and_removed(hf: Hf, code: str) -> None:
    assert "There are no limits" in hf("runs", "limits").err
    hf("runs", "submit", "add", "--input", "[1]")
    assert "Runs of add: at most 0 at a time." in hf("runs", "limit", "0", "--graph", "add").err
    assert hf("work", code, "--once").out == ""
    assert hf("runs", "limits", "--json").records == [{"graph": "add", "most": 0, "running": 0}]
    assert "All runs: at most 5 at a time." in hf("runs", "limit", "5").err
    assert "all" in hf("runs", "limits").out
    assert "Runs of add have no limit." in hf("runs", "limit", "--graph", "add", "--remove").err
    assert "done" in hf("work", code, "--once").out
    assert hf("runs", "limit").code == hf("runs", "limit", "3", "--remove").code == 2


def test_an_agent_is_submitted_and_done(hf: Hf, url: str, tmp_path: Path) -> None:
    path = tmp_path / "cli_runs_agent.py"
    path.write_text(AGENT)
    with holdfast.open(url) as store:
        store.agents.create(find_target(f"{path}:Desk"), "desk-1")
    id = hf("runs", "submit", "--agent", "desk-1", "--input", '["o"]').out.strip()
    worked = hf("work", f"{path}:Desk", "--once")
    assert "cli-runs-desk on desk-1: done" in worked.out
    assert hf("runs", "list", "--agent", "desk-1", "--json").records[0]["id"] == id
    assert hf("runs", "submit").code == 2
