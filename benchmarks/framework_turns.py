"""A turn of a chat in the sessions of a framework, beside ours: CPU and bytes per turn.

Run it where the framework is installed, as `make adapters` does:

    build/adapters/adk/bin/python -m benchmarks.framework_turns google-adk [TURNS]

A turn is a question and an answer, as two calls, as the framework's runner makes them; then the session is read. Bytes
are those of the folder when the store is closed. Other than in `benchmarks.run`, there are no floors: machines that run
those do not have these frameworks.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import holdfast
from benchmarks.langgraph_prose import prose

Turn = Callable[[str, str], Awaitable[None]]
Make = Callable[[Path, Any], Awaitable[Turn]]
"""Makes what adds a turn to a session and reads it, in a folder; with a store if it is ours."""


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


async def _adk_database(folder: Path, _: Any) -> Turn:
    from google.adk.sessions.database_session_service import DatabaseSessionService

    return await _adk(DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/adk.db"))


async def _adk_ours(_: Path, store: Any) -> Turn:
    from holdfast.google_adk import HoldfastSessionService

    return await _adk(HoldfastSessionService(store))


async def _maf(provider: Any) -> Turn:
    from agent_framework import Message

    async def turn(asked: str, answered: str) -> None:
        await provider.get_messages("chat")
        await provider.save_messages("chat", [Message("user", [asked]), Message("assistant", [answered])])

    return turn


async def _maf_files(folder: Path, _: Any) -> Turn:
    from agent_framework import FileHistoryProvider

    return await _maf(FileHistoryProvider(folder))


async def _maf_ours(_: Path, store: Any) -> Turn:
    from holdfast.agent_framework import HoldfastHistoryProvider

    return await _maf(HoldfastHistoryProvider(store))


FRAMEWORKS: dict[str, tuple[Make, Make]] = {
    "google-adk": (_adk_database, _adk_ours),
    "agent-framework": (_maf_files, _maf_ours),
}


async def measure(make: Make, turns: int, is_ours: bool) -> tuple[float, float]:
    """Return the milliseconds of CPU and the bytes per turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = await holdfast.aopen(folder / "agents.db") if is_ours else None
        turn = await make(folder, store)
        before = time.process_time()
        for number in range(turns):
            await turn(prose(300, 2 * number), prose(1200, 2 * number + 1))
        taken = time.process_time() - before
        if store is not None:
            await store.close()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return taken * 1000 / turns, size / turns


def main(framework: str, turns: int = 500) -> None:
    """Measure a framework, and print what a turn takes."""
    for who, make, is_ours in zip(("theirs", "ours"), FRAMEWORKS[framework], (False, True), strict=True):
        cpu, size = asyncio.run(measure(make, turns, is_ours))
        print(f"{framework}, {turns} turns, {who}: {cpu:.2f} ms of CPU and {size:,.0f} bytes per turn", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
