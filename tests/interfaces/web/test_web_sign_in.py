"""How `holdfast ui` lets its user in: by a file and by the terminal, and with nothing that others can read."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from tests.interfaces.http.kit import SECONDS

CODE = re.compile(r"\b[2-9A-HJ-NP-Z]{5}-[2-9A-HJ-NP-Z]{5}\b")


class RunningCommand(NamedTuple):
    """`holdfast ui`, with a home directory of its own, in a terminal of its own."""

    process: subprocess.Popen[bytes]
    terminal: int
    home: Path

    def read_until(self, pattern: str) -> str:
        """Return what the terminal shows, once it has a text."""
        shown, until = "", time.monotonic() + SECONDS
        while not re.search(pattern, shown):
            assert time.monotonic() < until, shown
            if select.select([self.terminal], [], [], 1)[0]:
                shown += os.read(self.terminal, 4096).decode()
        return shown

    def press_enter(self) -> None:
        os.write(self.terminal, b"\n")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with downloads, and a program that is started in the place of a browser, and notes what it is
    given."""
    home = tmp_path / "home"
    (home / "Downloads").mkdir(parents=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    opener = tools / "xdg-open"
    opener.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\nprintf "%s" "$*" > {tmp_path}/new\n'
                      f"mv {tmp_path}/new {tmp_path}/arguments\n")  # fmt: skip
    opener.chmod(0o755)
    return home


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    """A store with a thread."""
    with holdfast.open(tmp_path / "agents.db") as store:
        store.thread("chat").put({"n": 1})
    return tmp_path / "agents.db"


@contextmanager
def running_command(home: Path, file: Path, *options: str) -> Iterator[RunningCommand]:
    """Start `holdfast ui` in a terminal."""
    outer, inner = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"HOME": str(home), "PATH": f"{home.parent}/tools:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "ui", str(file), "--port", "0", *options],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment,
        preexec_fn=lambda: _own_terminal(inner),
    )
    os.close(inner)
    try:
        yield RunningCommand(process, outer, home)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
        os.close(outer)


def _own_terminal(terminal: int) -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def wait_for_file(path: Path) -> str:
    """The content of a file, once it is there."""
    until = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < until
    return path.read_text()


def mode_of(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_browser_is_given_a_file_and_no_secret(home: Path, store_file: Path) -> None:
    with running_command(home, store_file) as running:
        shown = running.read_until(CODE.pattern)
        page = Path(wait_for_file(home.parent / "arguments"))
        assert page.is_relative_to(home / "Downloads")
        assert not any(part.startswith(".") for part in page.relative_to(home).parts)
        assert (mode_of(page), mode_of(page.parent)) == (0o600, 0o700)
        (code,) = CODE.findall(page.read_text())
        (token_file,) = (home / ".local/state/holdfast").glob("*.token")
        assert (mode_of(token_file), mode_of(token_file.parent)) == (0o600, 0o700)
        token = token_file.read_text()
        assert token.startswith("hf_start_")
        process = Path("/proc", str(running.process.pid))
        seen = [
            (process / "cmdline").read_text(),
            (process / "environ").read_text(),
            (home.parent / "arguments").read_text(),
            (home.parent / "environment").read_text(),
        ]
        for secret in (code, token, *CODE.findall(shown)):
            assert not [text for text in seen if secret in text]
        assert token not in shown
    assert not page.exists()
    assert not token_file.exists()


def test_a_browser_signs_in_by_the_file_and_by_the_code_of_the_terminal(
    home: Path, store_file: Path, browser: Any
) -> None:
    with running_command(home, store_file) as running:
        shown = running.read_until(CODE.pattern)
        (url,) = re.findall(r"http://\w+\.localhost:\d+/", shown)
        own = browser.new_context()
        page = own.new_page()
        visited = list[str]()
        page.on("framenavigated", lambda frame: visited.append(frame.url))
        page.goto(Path(wait_for_file(home.parent / "arguments")).as_uri())
        page.wait_for_selector(".rail")
        assert page.url == url
        assert not CODE.search("".join(visited))
        page.goto(f"{url}threads/chat")
        page.wait_for_selector("h1 >> text=chat")
        page.reload()
        page.wait_for_selector("h1 >> text=chat")
        own.close()

        other = browser.new_context()
        page = other.new_page()
        page.goto(Path(wait_for_file(home.parent / "arguments")).as_uri())  # its code was used
        page.wait_for_selector("[role=alert]")
        running.press_enter()
        (code,) = CODE.findall(running.read_until(CODE.pattern))
        page.goto(f"{url}threads/chat")
        page.locator("#code").fill(code)
        page.locator("button.primary").click()
        page.wait_for_selector("h1 >> text=chat")
        other.close()


@pytest.mark.nightly
def test_without_a_terminal_no_code_is_shown_and_the_token_is_in_a_file(home: Path, store_file: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "ui", str(store_file), "--port", "0", "--no-browser"]
    environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    for option in ((), ("--json",)):
        with subprocess.Popen(
            [*command, *option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            (file,) = (home / "state/holdfast").glob("*.token")
            token = file.read_text()
            process.terminate()
            shown = "".join((first, *process.communicate(timeout=SECONDS)))
        assert str(file) in shown
        assert token not in shown
        assert not CODE.search(shown)
        assert json.loads(first)["token_file"] == str(file) if option else first.startswith("http://")


@pytest.mark.nightly
def test_plain_loopback_says_what_is_weaker(home: Path, store_file: Path) -> None:
    with running_command(home, store_file, "--no-browser", "--plain-loopback") as running:
        shown = running.read_until(CODE.pattern)
        assert re.search(r"^http://127\.0\.0\.1:\d+/\s*$", shown, re.MULTILINE)
        assert ".localhost" not in shown
        assert "every program that serves a port of this machine" in " ".join(shown.split())
    with running_command(home, store_file, "--no-browser", "--host", "127.0.0.2") as running:
        assert "--plain-loopback" in running.read_until("holdfast explain|plain-loopback")
