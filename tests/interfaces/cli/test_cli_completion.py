"""`holdfast completion`: real shells complete commands, and what is in the store."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.interfaces.cli.base import CliContext
from holdfast.interfaces.cli.completion_types import from_store
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]
Complete = Callable[[str], list[str]]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the program `holdfast`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(kit.COMPLETING)} "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def complete(url: str, programs: Path, tmp_path: Path) -> Complete:
    """What bash offers for a line."""
    script = tmp_path / "complete.sh"
    script.write_text(
        f"PATH={shlex.quote(str(programs))}:$PATH\n"
        + kit.run("completion", "bash").out
        + "\nCOMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$' \\t\\n\"\\'><=;|&(:@'\n"
        + '_holdfast_completion; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )

    def ask(line: str) -> list[str]:
        import subprocess

        done = subprocess.run(
            ["bash", str(script), line],
            env=kit.environment(HOLDFAST_STORE=url),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.replace("bash: compopt: not currently executing completion function\n", "") == ""
        return done.stdout.split()

    return ask


def test_bash_completes_commands_and_options(complete: Complete) -> None:
    assert complete("holdfast thr") == ["threads"]
    assert "--oneline" in complete("holdfast log --on")


def test_bash_completes_what_is_in_the_store(complete: Complete) -> None:
    assert complete("holdfast log ") == ["chat/anna", "t1", "t2"]
    assert complete("holdfast show t1 ") == [
        *("HEAD", "main", "other", "good", "c5", "c4", "c3", "c2", "c1", "c0", "b4", "b3")
    ]


def test_what_is_begun_narrows_what_bash_is_told(url: str) -> None:
    def told(line: str) -> list[str]:
        asked = kit.completed(_HOLDFAST_COMPLETE="bash_complete", HOLDFAST_STORE=url, HOLDFAST_LINE=line)
        return [each.removeprefix("plain,") for each in asked.out.split()]

    assert told("holdfast log t") == ["t1", "t2"]
    assert told("holdfast show t1 go") == ["good"]
    assert told("holdfast log t1 --branch o") == ["other"]
    assert told("holdfast show nope ") == []
    assert told("holdfast --color al") == ["always"]
    assert told("holdfast completion ") == ["bash", "zsh", "fish"]


@pytest.mark.nightly
def test_bash_completes_names_that_it_cuts_or_that_need_quotes(url: str, complete: Complete) -> None:
    with holdfast.open(url) as store:
        for name in ("user:1", "user:2", "two words", "a\nb", "we$ird"):
            store.thread(name).put({})
    assert complete("holdfast log user:") == ["1", "2"]
    assert complete("holdfast log user:1") == ["1"]
    assert complete("holdfast log tw") == ["two\\", "words"]
    assert complete("holdfast log we") == ["we\\$ird"]
    assert complete("holdfast log a") == []


@pytest.mark.nightly
def test_without_a_store_nothing_is_said(complete: Complete, tmp_path: Path) -> None:
    assert complete("holdfast --store nope.db log ") == []
    assert not (tmp_path / "nope.db").exists()
    (tmp_path / "bad.db").write_text("no database " * 100)
    assert complete("holdfast --store bad.db log ") == []
    assert complete("holdfast log --where ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(hf: Hf, shell: str) -> None:
    found = hf("completion", shell)
    assert found.code == 0
    assert "_HOLDFAST_COMPLETE" in found.out
    assert "holdfast" in found.out
    assert hf("completion", "csh").code == 2


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_scripts(hf: Hf, shell: str, tmp_path: Path) -> None:
    import subprocess

    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(hf("completion", shell).out)
    assert subprocess.run([shell, "-n", str(script)], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("instruction", "words"), [("zsh", "holdfast log t"), ("fish", "holdfast log t")])
def test_what_other_shells_ask_for(url: str, instruction: str, words: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": "2" if instruction == "zsh" else "t"}
    found = kit.completed(_HOLDFAST_COMPLETE=f"{instruction}_complete", HOLDFAST_STORE=url, **asked)
    assert "t1" in found.out
    assert "t2" in found.out
    assert found.err == ""


def test_a_store_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr("holdfast.interfaces.cli.completion_types._SECONDS", 0.05)
    monkeypatch.setattr(CliContext, "open", lambda _: time.sleep(120))
    began = time.monotonic()
    assert from_store(CliContext(), lambda _: ["a"]) == []
    assert time.monotonic() - began < 60


def test_bash_completes_in_a_terminal(url: str, programs: Path, tmp_path: Path) -> None:
    startup = tmp_path / "bashrc"
    startup.write_text("PS1='ready> '\n" + kit.run("completion", "bash").out)
    path = f"{programs}:{kit.environment()['PATH']}"
    with kit.Terminal(
        "bash", "--rcfile", startup, "-i", env={"PATH": path, "HOLDFAST_STORE": url, "HISTFILE": "/dev/null"}
    ) as terminal:
        terminal.expect("ready>")
        terminal.send("holdfast thr\t")
        terminal.expect("holdfast threads ")
        terminal.send("--no-pager --names t\t\t")
        terminal.expect("t1")
        terminal.send("1\r")
        terminal.expect("t1\nready>")
        terminal.send("exit\r")
        assert terminal.wait() == 0
