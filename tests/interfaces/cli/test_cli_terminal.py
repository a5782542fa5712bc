"""The command line in a real terminal: colours, pager, progress, prompts, Ctrl-C."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit
from tests.support.nightly import mostly_nightly

RED = "\x1b[1;31m"
LESS = pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")


@pytest.fixture
def long(url: str) -> str:
    """A store whose thread `long` has many checkpoints."""
    with holdfast.open(url) as store, store.transaction() as together:
        for number in range(600):
            together.put("long", {"number": number}, id=f"{number:04}")
    return url


def test_colours_in_a_terminal_and_not_in_a_pipe(url: str) -> None:
    with kit.in_terminal("--no-pager", "log", "t1", "--oneline", "--store", url) as terminal:
        assert terminal.wait() == 0
    assert "\x1b[33mc5\x1b[0m" in terminal.text
    assert "\x1b" not in kit.spawn("log", "t1", "--store", url).out
    assert "\x1b[33mc5" in kit.spawn("log", "t1", "--oneline", "--color", "always", "--store", url).out


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_no_colours_where_nobody_wants_them(url: str, env: dict[str, str]) -> None:
    with kit.in_terminal("--no-pager", "log", "t1", "--graph", "--store", url, env=env) as terminal:
        assert terminal.wait() == 0
    assert "\x1b" not in terminal.text
    with kit.in_terminal("--no-pager", "--color", "never", "log", "t1", "--store", url) as terminal:
        assert terminal.wait() == 0
    assert "\x1b" not in terminal.text


def test_errors_are_red_in_a_terminal() -> None:
    with kit.in_terminal("threads", "--store", "nope.db") as terminal:
        assert terminal.wait() == 10
    assert terminal.text.startswith(f"{RED}error[no-store]:\x1b[0m ")


@LESS
def test_a_pager_that_people_leave_early(long: str) -> None:
    with kit.in_terminal("log", "long", "--oneline", "--store", long) as terminal:
        terminal.expect("0599")
        terminal.expect(":")
        assert "0500" not in terminal.text
        terminal.send("q")
        assert terminal.wait() == 0
    assert "rror" not in terminal.text


@LESS
def test_what_fits_on_the_screen_is_not_paged(url: str) -> None:
    with kit.in_terminal("threads", "--store", url) as terminal:
        assert terminal.wait() == 0
    assert "chat/anna" in terminal.plain


@pytest.mark.nightly
def test_the_pager_is_the_users_own(long: str, tmp_path: Path) -> None:
    for env in ({"HOLDFAST_PAGER": "sed s/^/paged:/", "PAGER": "false"}, {"PAGER": "sed s/^/paged:/"}):
        with kit.in_terminal("log", "t1", "--oneline", "--store", long, env=env) as terminal:
            assert terminal.wait() == 0
        assert all("paged:" in line for line in terminal.plain.splitlines())
    for env in ({"HOLDFAST_PAGER": ""}, {"PAGER": "cat"}):
        with kit.in_terminal("log", "t1", "--oneline", "--store", long, env=env) as terminal:
            assert terminal.wait() == 0
        assert "c5" in terminal.plain
    with kit.in_terminal("log", "t1", "--json", "--store", long, env={"PAGER": "sed s/^/paged:/"}) as terminal:
        assert terminal.wait() == 0
    assert "paged" not in terminal.text
    assert kit.spawn("log", "t1", "--store", long, env={"PAGER": "sed s/^/paged:/"}).out.startswith("checkpoint")


@pytest.mark.nightly
def test_a_pager_that_reads_nothing(long: str) -> None:
    with kit.in_terminal("log", "long", "--store", long, env={"PAGER": "true"}) as terminal:
        assert terminal.wait() == 0
    assert terminal.text == ""


@pytest.mark.parametrize("columns", mostly_nightly([20, 40, 60, 200], daily=[20, 60]))
def test_tables_fit_the_terminal(url: str, columns: int) -> None:
    with holdfast.open(url) as store:
        store.thread("a-very-long-name/" + "x" * 100).put({})
        store.thread("日本語" * 20).put({})
    with kit.in_terminal("threads", "--no-pager", "--store", url, columns=columns) as terminal:
        assert terminal.wait() == 0
    from holdfast.interfaces.cli.formatting import width

    lines = terminal.plain.splitlines()
    table = [line for line in lines[:6] if not line.startswith("(")]
    assert len(table) == 6
    left_out = " ".join(lines[6:])
    assert left_out.startswith("(no room for ") is (columns < 60), "no column is left out unsaid"
    assert ("UPDATED" in table[0]) is ("UPDATED" not in left_out)
    assert max(map(width, lines)) <= columns
    assert "t1" in terminal.plain
    if columns == 200:
        assert "x" * 100 in terminal.plain
        assert "x" * 100 in kit.spawn("threads", "--store", url).out


def test_ctrl_c(long: str) -> None:
    with kit.halted("verify", "--store", long, after=1) as terminal:
        terminal.expect("halted")
        terminal.send("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    with holdfast.open(long) as store:
        assert store.thread("long").get().id == "0599"


TRIAL = """
import sys, time
import click
from holdfast.interfaces.cli import main as program
from holdfast.interfaces.cli.base import command, yes_option

@command("trial")
@yes_option
def trial(session):
    with session.progress("Trying") as tell:
        for done in range(5):
            tell(done + 1, 5, "thing \\x1b[31m")
            time.sleep(0.02)
    with session.progress("Counting") as tell:
        tell(7, None, "things")
    session.out.line("Before.")
    session.confirm("Destroy it?")
    session.out.line("Destroyed.")

program._load = lambda name: trial
sys.exit(program.main(["trial", *sys.argv[1:]]))
"""


def trial(*arguments: str, **settings: int) -> kit.Terminal:
    import sys

    return kit.Terminal(sys.executable, "-c", TRIAL, *arguments, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("answer", "code", "said"), [("y", 0, "Destroyed."), ("n", 1, "Nothing was changed.")])
def test_questions(answer: str, code: int, said: str) -> None:
    with trial() as terminal:
        terminal.expect("Destroy it? [y/N]:")
        terminal.send(f"{answer}\r")
        assert terminal.wait() == code
    assert said in terminal.text


def test_ctrl_c_is_an_answer_too() -> None:
    with trial() as terminal:
        terminal.expect("Destroy it? [y/N]:")
        assert terminal.interrupt() == 130
    assert "Destroyed" not in terminal.text
    assert "Traceback" not in terminal.text


def test_progress_in_a_terminal() -> None:
    with trial("--yes") as terminal:
        assert terminal.wait() == 0
    assert "Trying  [########################]  5/5" in terminal.text
    assert "Counting: 7 things" in terminal.text
    assert "\r\x1b[K" in terminal.text
    with trial("--yes", columns=30) as terminal:
        assert terminal.wait() == 0
    drawn = re.findall(r"\r([^\r\x1b]+)\x1b\[K", terminal.text)
    assert drawn
    assert max(map(len, drawn)) < 30
    with trial("--yes", "--quiet") as terminal:
        assert terminal.wait() == 0
    assert "Trying" not in terminal.text


def test_in_tmux(long: str, tmp_path: Path) -> None:
    """As people use it: a pager over a screen, left with q, and the shell goes on."""
    if shutil.which("tmux") is None or shutil.which("less") is None:
        pytest.skip("tmux or less is not installed")
    tmux = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "tmux")]
    env = kit.environment(TERM="screen", PS1="$ ", ENV="/dev/null")

    def screen(wanted: str) -> str:
        until = time.monotonic() + kit.SECONDS
        shown = ""
        while time.monotonic() < until:
            shown = subprocess.run(
                [*tmux, "capture-pane", "-p"], env=env, capture_output=True, text=True, check=True
            ).stdout
            if wanted in shown:
                return shown
            time.sleep(0.05)
        raise AssertionError(f"{wanted!r} did not come, but {shown!r}")

    def keys(*pressed: str) -> None:
        subprocess.run([*tmux, "send-keys", *pressed], env=env, check=True)

    words = " ".join(kit.command("log", "long", "--oneline", "--store", long))
    subprocess.run([*tmux, "new-session", "-d", "-x", "100", "-y", "20", "sh"], env=env, check=True)
    try:
        # One line for both: what is typed behind a q may be read by the pager still.
        keys(f"{words}; echo status $?", "Enter")
        assert "number=590" in screen("number=590")
        keys("G")
        screen("number=0 ")
        keys("q")
        screen("status 0")
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, check=False, capture_output=True)
