"""A turn of a chat in the sessions of other frameworks, beside ours: CPU and bytes per turn, over 500 turns.

A turn is a question and an answer, as two calls, as a framework's runner makes them; before, the session is read. Both
sides make blocks of turns by turns, in one process, and flush every commit, as they are set up by themselves. Bytes are
those of the files when they are closed; without the history, after `prune(keep_last=1)`, since no other keeps one.

A framework that is not installed here is measured in its environment of `make adapters`:

    build/adapters/adk/bin/python -m benchmarks.framework_turns google-adk [TURNS]
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from benchmarks.langgraph_prose import prose
from benchmarks.measure import Figure, Result, Row, missing, turns

_TURNS, _BLOCK = 500, 50
_ADAPTERS = Path(__file__).parents[1] / "build" / "adapters"

Turn = Callable[[str, str], Awaitable[None]]
Make = Callable[[Path, Any], Any]
"""Makes a session in a folder; with a store if it is ours."""


def _openai_sqlite(folder: Path, _: Any) -> Any:
    from agents import SQLiteSession

    return SQLiteSession("chat", folder / "openai.db")


def _openai_ours(_: Path, store: Any) -> Any:
    from holdfast.openai_agents import HoldfastSession

    return HoldfastSession("chat", store)


async def _openai(session: Any) -> Turn:
    async def turn(asked: str, answered: str) -> None:
        await session.get_items()
        await session.add_items([{"role": "user", "content": asked}])
        await session.add_items([{"role": "assistant", "content": answered}])

    return turn


def _langchain_sql(folder: Path, _: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):  # it says that it will move
        from langchain_community.chat_message_histories import SQLChatMessageHistory

        return SQLChatMessageHistory("chat", connection=f"sqlite:///{folder}/langchain.db")


def _langchain_ours(_: Path, store: Any) -> Any:
    from holdfast.langchain import HoldfastChatHistory

    return HoldfastChatHistory("chat", store)


async def _langchain(history: Any) -> Turn:
    from langchain_core.messages import AIMessage, HumanMessage

    async def turn(asked: str, answered: str) -> None:
        len(history.messages)
        history.add_messages([HumanMessage(asked)])
        history.add_messages([AIMessage(answered)])

    return turn


def _adk_database(folder: Path, _: Any) -> Any:
    from google.adk.sessions.database_session_service import DatabaseSessionService

    return DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/adk.db")


def _adk_ours(_: Path, store: Any) -> Any:
    from holdfast.google_adk import HoldfastSessionService

    return HoldfastSessionService(store)


async def _adk(service: Any) -> Turn:
    from google.adk.events.event import Event
    from google.genai import types

    names = {"app_name": "app", "user_id": "user", "session_id": "chat"}
    await service.create_session(**names)

    async def turn(asked: str, answered: str) -> None:
        session = await service.get_session(**names)
        for author, text in (("user", asked), ("agent", answered)):
            content = types.Content(role=author, parts=[types.Part(text=text)])
            await service.append_event(session, Event(author=author, content=content))

    return turn


def _maf_files(folder: Path, _: Any) -> Any:
    from agent_framework import FileHistoryProvider

    return FileHistoryProvider(folder)


def _maf_ours(_: Path, store: Any) -> Any:
    from holdfast.agent_framework import HoldfastHistoryProvider

    return HoldfastHistoryProvider(store)


async def _maf(provider: Any) -> Turn:
    from agent_framework import Message

    async def turn(asked: str, answered: str) -> None:
        await provider.get_messages("chat")
        await provider.save_messages("chat", [Message("user", [asked]), Message("assistant", [answered])])

    return turn


class Framework(NamedTuple):
    """What is compared, the module and the environment that have it, and the bounds of theirs divided by ours."""

    who: str
    module: str
    lock: str
    theirs: Make
    ours: Make
    use: Callable[[Any], Awaitable[Turn]]
    is_async: bool
    cpu: float
    bytes: float


FRAMEWORKS = {
    "openai-agents": Framework(
        "OpenAI's SQLiteSession", "agents", "openai", _openai_sqlite, _openai_ours, _openai, False, 0.8, 0.6
    ),
    "langchain": Framework(
        "LangChain's SQLChatMessageHistory",
        "langchain_community",
        "",
        _langchain_sql,
        _langchain_ours,
        _langchain,
        False,
        3.0,
        0.6,
    ),
    "google-adk": Framework(
        "ADK's DatabaseSessionService", "google.adk", "adk", _adk_database, _adk_ours, _adk, True, 1.5, 0.75
    ),
    "agent-framework": Framework(
        "Agent Framework's FileHistoryProvider",
        "agent_framework",
        "agent-framework",
        _maf_files,
        _maf_ours,
        _maf,
        True,
        1.0,
        0.5,
    ),
}


async def measure(name: str, count: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds and the bytes per turn of a framework's session and of ours."""
    framework = FRAMEWORKS[name]
    with tempfile.TemporaryDirectory() as place:
        folders = {who: Path(place) / who for who in ("theirs", "ours")}
        for folder in folders.values():
            folder.mkdir()
        path = folders["ours"] / "agents.db"
        store: Any = await holdfast.aopen(path) if framework.is_async else holdfast.open(path)
        makes = {"theirs": framework.theirs, "ours": framework.ours}
        sessions = {who: make(folders[who], store) for who, make in makes.items()}
        made = {who: await framework.use(session) for who, session in sessions.items()}
        taken = {who: {"cpu": 0.0, "wall": 0.0} for who in made}
        done = dict.fromkeys(made, 0)
        for who in turns(made, count // _BLOCK):
            cpu, wall = time.process_time(), time.perf_counter()
            for number in range(done[who], done[who] + _BLOCK):
                await made[who](prose(300, 2 * number), prose(1200, 2 * number + 1))
            taken[who]["cpu"] += (time.process_time() - cpu) * 1000 / count
            taken[who]["wall"] += (time.perf_counter() - wall) * 1000 / count
            done[who] += _BLOCK
        engine = getattr(sessions["theirs"], "engine", None)
        for each in (sessions["theirs"], engine, store):
            if close := getattr(each, "close", None) or getattr(each, "dispose", None):
                waiting = close()
                if waiting is not None:
                    await waiting
        for who, folder in folders.items():
            taken[who]["bytes"] = _size(folder) / count
        with holdfast.open(path) as kept:
            kept.maintenance.prune(keep_last=1)
        taken["ours"]["pruned"] = _size(folders["ours"]) / count
    return taken


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder, when all that is in their logs is in databases."""
    for path in folder.glob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and "-shm" not in each.name)


def _is_here(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _run(name: str) -> dict[str, dict[str, float]]:
    """Measure a framework, where it is installed."""
    framework = FRAMEWORKS[name]
    python = Path(sys.executable)
    if not _is_here(framework.module):
        python = _ADAPTERS / framework.lock / "bin" / "python"
        if not framework.lock or not python.exists():
            raise FileNotFoundError(f"{framework.module} is not installed: run make adapters")
    command = [str(python), "-m", "benchmarks.framework_turns", name, str(_TURNS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def turns_of_frameworks() -> Result:
    """CPU and bytes of a turn in the sessions of other frameworks, beside ours, over 500 turns"""
    figures, rows = [], []
    for name, framework in FRAMEWORKS.items():
        what = f"turn of {name}: {framework.who} / ours"
        try:
            found = _run(name)
        except FileNotFoundError as error:
            figures += [missing(f"{what}, {unit}", error) for unit in ("CPU", "bytes", "bytes without the history")]
            continue
        theirs, ours = found["theirs"], found["ours"]
        for unit, key, mine, floor in (
            ("CPU", "cpu", "cpu", framework.cpu),
            ("bytes", "bytes", "bytes", framework.bytes),
            ("bytes without the history", "bytes", "pruned", 1.0),
        ):
            note = f"{theirs[key]:,.2f} against {ours[mine]:,.2f}"
            goal = 1.0 if floor < 1 else None
            figures.append(Figure(f"{what}, {unit}", theirs[key] / ours[mine], "x", floor, None, note, goal))
        for who, each in ((framework.who, theirs), ("Holdfast", ours)):
            rows.append(Row(f"turn of {name}", who, each["wall"], each["cpu"], disk=each["bytes"] * _TURNS))
    return Result(figures, rows)


CASES = (turns_of_frameworks,)


def main(name: str, count: int = _TURNS) -> None:
    """Measure a framework, and print what a turn takes, as JSON."""
    print(json.dumps(asyncio.run(measure(name, count))))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
