"""The demo does what it shows: an agent is killed in a tool, goes on without running a tool twice, and is forked."""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit
from tests.support.nightly import mostly_nightly

ROOT = Path(__file__).resolve().parent.parent


def facts(printed: str) -> dict[str, str]:
    """The lines of the form `name   value`."""
    return dict(re.findall(r"^ {3}(\S+(?: \S+)*) {2,}(\S.*?) *$", printed, re.MULTILINE))


def run(directory: Path, modules: int) -> str:
    """Run the demo in a directory. Returns what it printed."""
    plain = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"}}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        cwd=directory,
        env={**plain, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", "DEMO_MODULES": str(modules)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# All in one test, since a run takes a while: three processes load LangGraph, one after the other.
@pytest.mark.time_limit(180)
@pytest.mark.parametrize(("modules", "ratio"), mostly_nightly([(9, 2.5), (24, 5), (75, 20)], daily=[(9, 2.5)]))
def test_the_demo_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: int, ratio: float
) -> None:
    printed = run(tmp_path, modules)
    log = [line.split() for line in (tmp_path / "build/demo-tools.log").read_text(encoding="utf-8").splitlines()]
    check_kill_and_resume(facts(printed), log, calls=modules * 4)
    check_fork(tmp_path / "build/demo.db", printed)
    check_figures(printed, ratio)
    check_form(printed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "build/demo.db")
    check_commands(printed)


def check_kill_and_resume(said: dict[str, str], log: list[list[str]], calls: int) -> None:
    killed, resumed = list(dict.fromkeys(process for process, _, _ in log))[:2]
    assert re.match(rf"{killed}, killed\b", said["this process"])
    assert said["another process"] == f"{resumed}, ended by itself"

    call = said["it was in the call"]
    assert re.fullmatch(r"\w+/part-[012]", call)
    assert [killed, "started", call] in log
    assert next(each for process, _, each in log if process == resumed) == said["it called first"] == call

    finished = Counter(each for process, what, each in log if what == "finished" and process in (killed, resumed))
    started = Counter(each for process, what, each in log if what == "started" and process in (killed, resumed))
    assert len(finished) == calls
    assert set(finished.values()) == {1}
    assert [each for each, count in started.items() if count > 1] == [call]
    assert said["finished twice"] == "none"
    assert said["tools that ran"] == f"{len(finished)}, for {len(finished)} calls of the agent"


def check_fork(database: Path, printed: str) -> None:
    with holdfast.open(f"sqlite:///{database.as_posix()}") as store:
        assert len(store.thread("guide").branches()) == 2
        planned, brief = (store.thread("guide").get(at=name) for name in ("as planned", "brief"))
        steps = store.thread("guide").info().steps
    assert (planned.state["plan"]["style"], brief.state["plan"]["style"]) == ("full", "brief")
    assert planned.state["plan"]["todo"] == brief.state["plan"]["todo"] == []
    assert planned.branch != brief.branch
    assert f"guide  {steps} checkpoints, 2 branches" in printed
    assert re.search(r"plan\.style +full +brief", printed)


def check_figures(printed: str, at_least: float) -> None:
    found = re.search(r"size of the file +([\d.,]+) MB +([\d.,]+) MB +([\d.,]+) ×", printed)
    assert found is not None
    ours, theirs, ratio = (float(figure.replace(",", "")) for figure in found.groups())
    assert ratio == pytest.approx(theirs / ours, rel=0.05)
    assert ratio > at_least


def check_commands(printed: str) -> None:
    """What it says to look at can be looked at."""
    commands = re.findall(r"^[│ ]*holdfast (\S.*?)[│ ]*$", printed, re.MULTILINE)
    assert len(commands) == 5
    check_pages(commands.pop(0))
    for command in commands:
        done = kit.run(*shlex.split(command))
        assert done.code == 0, (command, done.err)
        assert done.out


def check_pages(command: str) -> None:
    """It can be looked at in the browser."""
    assert command == "ui"
    arguments = [sys.executable, "-m", "holdfast", command, "--no-browser", "--port", "0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(Path.cwd() / "state")}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    assert re.fullmatch(r"http://\w+\.localhost:\d+/\n", line)


def check_form(printed: str) -> None:
    """It reads well in a file, too, and shows how far it is."""
    assert re.search(r"^  working: \d+ of \d+ tool calls$", printed, re.MULTILINE)
    assert "  run 2 of 2: with SqliteSaver" in printed.splitlines()
    assert "\x1b" not in printed
    assert "\r" not in printed
    assert max(map(len, printed.splitlines())) <= 80
