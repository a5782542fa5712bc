"""Writes the answers into `docs/guides/mistakes.md`: what Holdfast says to each mistake of the page.

`python -m tools.mistakes`; a mistake is the first cell of a row, code or a command. `tests/docs/test_mistakes.py` fails
while the page says something else, or if an answer does not say what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.errors import HoldfastError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "mistakes.md"

_ROW = re.compile(r"^\| `(?P<typed>.+?)` \|.*$")
_FOLDER = re.compile(r"/\S*/mistakes-\w+")


class Answer(NamedTuple):
    """What is wrong, and what to do."""

    what: str
    hint: str


@dataclass
class Point:
    """A value of a class."""

    x: int = 1


class Client:
    """An object with a connection, which is no data."""


def things(url: str) -> dict[str, Any]:
    """Return the names that the mistakes use: a store, a thread with two checkpoints, the state of an agent."""
    from holdfast.agents import PersistentAgent

    store = holdfast.open(url)
    thread = store.thread("chat-1")
    thread.put({"messages": ["hello"], "count": 1}, tag="asked", id="c0")
    thread.put({"messages": ["hello", "you"], "count": 2}, id="c1")
    agent_state = store.state(agent="researcher")
    agent_state["plan"] = {"goal": "tides"}
    circle: dict[str, Any] = {}
    circle["me"] = circle

    async def ask() -> str:
        return "answer"

    return {
        "holdfast": holdfast,
        "asyncio": asyncio,
        "store": store,
        "thread": thread,
        "state": agent_state,
        "writer": store.as_identity(agent="writer"),
        "Point": Point,
        "client": Client(),
        "circle": circle,
        "ask": ask,
        "PersistentAgent": PersistentAgent,
    }


def answer(typed: str, folder: Path) -> Answer:
    """Return what Holdfast says to a mistake."""
    if typed.startswith("holdfast "):
        return _of_command(typed, folder)
    names = things("memory://")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is never awaited: that is the mistake
            exec(typed, names)
    except HoldfastError as error:
        return Answer(_plain(f"{error.what} (at {error.where})" if error.where else error.what), _plain(error.hint))
    except (AttributeError, TypeError) as error:
        what, _, hint = str(error).partition(": " if ". Here it is" not in str(error) else ". ")
        if "Did you mean" in what:
            what, _, hint = what.partition(". ")
        return Answer(_plain(what), _plain(hint))
    finally:
        names["store"].close()
    raise AssertionError(f"{typed} is no mistake")


def _of_command(typed: str, folder: Path) -> Answer:
    from holdfast.interfaces.cli.main import main

    things(f"sqlite:///{folder}/agents.db")["store"].close()
    (folder / "notes.txt").write_text("Notes about tides.\n" * 40)
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        code = main(shlex.split(typed)[1:])
    if not code:
        raise AssertionError(f"{typed} is no mistake")
    lines = told.getvalue().splitlines()
    what = next((line.partition("] ")[2] or line.partition(": ")[2] for line in lines if line.startswith("error")), "")
    hint = next((line.partition("hint: ")[2] for line in lines if line.startswith("  hint: ")), "")
    return Answer(_plain(what or lines[0]), _plain(hint or " ".join(lines[1:])))


def _plain(text: str) -> str:
    """Return a text for a cell of a table: in one line, and the same in every folder."""
    text = _FOLDER.sub("~/agents", " ".join(text.split())).replace(f"{Client.__module__}:", "app:")
    return re.sub(r"0x[0-9a-f]+", "0x…", text).replace("|", "\\|")


def rewritten(page: str) -> Iterator[str]:
    """Yield the lines of a page, with the answers of today."""
    for line in page.splitlines():
        found = _ROW.match(line)
        if found is None:
            yield line
            continue
        with tempfile.TemporaryDirectory(prefix="mistakes-") as name, contextlib.chdir(name):
            for variable in [each for each in os.environ if each.startswith("HOLDFAST_")]:
                del os.environ[variable]
            if "HOLDFAST_STORE" not in found["typed"] and "without a store" not in line:
                os.environ["HOLDFAST_STORE"] = "agents.db"
            given = answer(found["typed"], Path(name))
        yield f"| `{found['typed']}` | {given.what} | {given.hint} |"


def typed(page: str) -> list[str]:
    """Return the mistakes of a page."""
    return [found["typed"] for line in page.splitlines() if (found := _ROW.match(line))]


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    PAGE.write_text("\n".join(rewritten(PAGE.read_text(encoding="utf-8"))) + "\n", encoding="utf-8")
