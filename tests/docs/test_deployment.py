"""The units, the crontab and the compose file of the guide on deployment are valid, and their commands run."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import holdfast
from tests.docs.markdown import ROOT, split
from tests.interfaces.cli import kit
from tests.support.cases import case

GUIDE = ROOT / "docs" / "guides" / "deployment.md"
APP = """
from typing import TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict):
    n: int


builder = StateGraph(State)
builder.add_node("add", lambda state: {"n": state["n"] + 1})
builder.add_edge(START, "add")
graph = builder.compile(name="graph")
"""
LASTING = ("work", "serve", "backup follow")
"""Commands that run until they are told to stop."""


def files() -> dict[str, str]:
    """The files that the guide shows, by name."""
    found = {}
    for block in split(GUIDE)[0]:
        if name := re.match(r"# (\S+)\n", block.text):
            found[name[1]] = block.text
    return found


FILES = files()
UNITS = {Path(name).name: text for name, text in FILES.items() if name.startswith("/etc/systemd/")}


def commands() -> list[list[str]]:
    """The arguments of `holdfast` in units, the crontab and the compose file."""
    lines = re.findall(r"/bin/holdfast (.*)", "\n".join([*UNITS.values(), FILES["/etc/cron.d/agents"]]))
    services = yaml.safe_load(FILES["compose.yaml"])["services"].values()
    return [*map(shlex.split, lines), *(each["command"] for each in services if "command" in each)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    holdfast_command = str(Path(sys.executable).with_name("holdfast"))
    for name, text in UNITS.items():
        (tmp_path / name).write_text(text.replace("/usr/local/agents/bin/holdfast", holdfast_command))
    names = sorted(UNITS)
    assert len(names) >= 6
    verify = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in names)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    broken = tmp_path / "broken.service"
    broken.write_text("[Service]\nExecStart=relative\n")
    assert subprocess.run([*verify[:3], str(broken)], capture_output=True, check=False).returncode != 0


def test_each_timer_has_its_service() -> None:
    timers = [name for name in UNITS if name.endswith(".timer")]
    assert timers
    assert [name for name in timers if name.replace(".timer", ".service") not in UNITS] == []


def test_the_compose_file_names_what_it_has() -> None:
    compose: dict[str, Any] = yaml.safe_load(FILES["compose.yaml"])
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", {})) <= set(compose["services"]), name
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"], name
        assert {"image", "build"} & set(service), name
    recipe = FILES["Containerfile"]
    assert compose["x-agents"]["build"]["dockerfile"] == "Containerfile"
    stages = re.findall(r"^FROM \S+(?: AS (\w+))?", recipe, re.MULTILINE)
    assert set(re.findall(r"--from=(\w+)", recipe)) <= set(stages)


@pytest.mark.time_limit(180)
def test_the_commands_run(tmp_path: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", store := f"sqlite:///{tmp_path / 'agents.db'}")
    monkeypatch.setenv("HOLDFAST_BACKUPS", str(tmp_path / "backups"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with holdfast.open(store) as opened:
        opened.thread("chat-1").put({"messages": ["hello"]})
    found = {" ".join(arguments): arguments for arguments in commands()}
    lasting = {name: arguments for name, arguments in found.items() if name.startswith(LASTING)}
    assert len(lasting) >= 4
    assert len(found) - len(lasting) >= 5
    for name in sorted(found.keys() - lasting.keys()):  # a backup is made before the drill
        with case(subtests, name):
            result = kit.run(*found[name], store=None)
            assert result.code == 0, result.err
    started = {name: _start(arguments) for name, arguments in lasting.items()}
    for name, process in started.items():
        with case(subtests, name), process:
            assert process.stdout is not None
            printed = process.stdout.readline()  # it says that it has begun
            process.send_signal(signal.SIGTERM)
            printed += process.communicate()[0]
            assert process.returncode in (0, -signal.SIGTERM), printed  # both are a clean end for systemd


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    port = ("--port", "0") if arguments[0] == "serve" else ()
    command = [sys.executable, "-m", "holdfast", *arguments, *port]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
