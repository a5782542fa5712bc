"""The pager: which one, starting it, and letting people finish reading."""

from __future__ import annotations

import os
import subprocess

_QUIET = ("", "cat")


def pager_command() -> str:
    """The command that shows output page by page; empty if nobody wants one."""
    for name in ("HOLDFAST_PAGER", "PAGER"):
        given = os.environ.get(name)
        if given is not None:
            return "" if given.strip() in _QUIET else given
    return "less"


def start_pager() -> subprocess.Popen[str] | None:
    """A pager that waits for text on its stdin, or None if there is none."""
    command = pager_command()
    if not command:
        return None
    # As git has it: quit if it fits on a screen, pass colours on, leave the text on the screen.
    environment = {"LESS": "FRX", "LV": "-c", **os.environ}
    try:
        # By a shell, since a pager may come with options: the user's own variable says which.
        return subprocess.Popen(  # noqa: S602
            command,
            shell=True,
            stdin=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            bufsize=8192,
        )
    except OSError:
        return None


def end_pager(pager: subprocess.Popen[str]) -> None:
    """Wait until people have read to the end. Ctrl-C is for the pager then, and not for this program."""
    try:
        if pager.stdin is not None:
            pager.stdin.close()
    except BrokenPipeError:
        pass  # they had seen enough
    while True:
        try:
            pager.wait()
            return
        except KeyboardInterrupt:
            continue
