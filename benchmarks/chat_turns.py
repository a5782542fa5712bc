"""A turn of a chat without a graph: beside OpenAI's session and LangChain's history, and as the chat grows."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import holdfast
from benchmarks.langgraph_prose import prose
from benchmarks.measure import Figure, Job, Result, Row, cost, in_turns, missing, turns
from holdfast.codec import default_codec

_TURNS, _ROUNDS = 50, 12
_SHORT, _LONG = 20, 4000
_MANY = 1000
_OURS = "Holdfast"


def _turn(number: int) -> list[dict[str, str]]:
    """A question and its answer."""
    asked = {"role": "user", "content": prose(300, 2 * number)}
    return [asked, {"role": "assistant", "content": prose(1200, 2 * number + 1)}]


def _append(thread: Any, chat: list[list[dict[str, str]]]) -> None:
    for each in chat:
        thread.append("messages", *each)


def _openai_session(folder: pathlib.Path, chat: list[Any]) -> Job:
    from agents import SQLiteSession

    session = SQLiteSession("chat", folder / "openai.db")

    async def add() -> None:
        for each in chat:
            await session.add_items(each)

    return lambda: asyncio.run(add())


def _langchain_history(folder: pathlib.Path, chat: list[list[dict[str, str]]]) -> Job:
    with warnings.catch_warnings(action="ignore"):  # it says that it will move
        from langchain_community.chat_message_histories import SQLChatMessageHistory
        from langchain_core.messages import AIMessage, HumanMessage

        history = SQLChatMessageHistory("chat", connection=f"sqlite:///{folder}/langchain.db")

    def add() -> None:
        for asked, answered in chat:
            history.add_messages([HumanMessage(asked["content"]), AIMessage(answered["content"])])

    return add


_PEERS: dict[str, tuple[Callable[[pathlib.Path, list[list[dict[str, str]]]], Job], float, float]] = {
    "OpenAI's SQLiteSession": (_openai_session, 0.35, 0.8),
    "LangChain's SQLChatMessageHistory": (_langchain_history, 1.5, 2),
}
"""How each adds a chat, and the bound and the goal of its CPU divided by ours."""


def turn_beside_others() -> Result:
    """CPU of adding a turn of two plain messages to a SQLite file, beside other libraries for chats"""
    figures: list[Figure] = []
    chat = [_turn(number) for number in range(_TURNS)]
    with tempfile.TemporaryDirectory() as name, holdfast.open(f"sqlite:///{name}/chat.db") as store:
        folder = pathlib.Path(name)
        jobs: dict[str, Job] = {_OURS: partial(_append, store.thread("chat"), chat)}
        for who, (make, _, _) in _PEERS.items():
            try:
                jobs[who] = make(folder, chat)
            except ImportError as error:
                figures.append(missing(f"chat turn: {who} / ours", error))
        best = {who: (float("inf"), float("inf")) for who in jobs}
        for job in jobs.values():
            job()
        for who in turns(jobs, _ROUNDS):
            taken = cost(jobs[who])
            best[who] = min(best[who][0], taken.wall / _TURNS), min(best[who][1], taken.cpu / _TURNS)
    for who, (_, floor, goal) in _PEERS.items():
        if who in best:
            note = f"{best[who][1] * 1000:.0f} us of CPU against {best[_OURS][1] * 1000:.0f}"
            figures.append(
                Figure(f"chat turn: {who} / ours", best[who][1] / best[_OURS][1], "x", floor, None, note, goal=goal)
            )
    return Result(figures, [Row("chat turn", who, *each) for who, each in best.items()])


def growth_of_a_turn() -> list[Figure]:
    """Adding a turn to a long chat beside a short one; reading after it beside reading after a put"""
    chat = [_turn(number) for number in range(32)]  # with one fold
    with holdfast.open("memory://") as store:
        long, read = store.thread("long"), store.thread("read")
        long.put({"messages": [message for number in range(_LONG // 2) for message in _turn(number)]})

        def start_again() -> None:
            store.thread("short").put({"messages": [message for each in chat[: _SHORT // 2] for message in each]})
            _append(store.thread("short"), chat)

        jobs: dict[str, Job] = {"short": start_again, "long": lambda: _append(long, chat)}
        best = in_turns(jobs, rounds=8, repeats=1)
        read.put({"messages": [message for number in range(_MANY // 2) for message in _turn(number)]})
        state = read.get().state
        after = {
            "append": lambda: read.append("messages", *chat[0]),
            "put": lambda: read.put({"messages": state["messages"]}),
        }
        times = dict.fromkeys(after, float("inf"))
        for how in turns(after, 20):
            after[how]()
            times[how] = min(times[how], cost(read.get).wall)
    return [
        Figure(f"chat turn: at {_LONG} messages / at {_SHORT}", best["long"] / best["short"], "x", ceiling=1.4),
        Figure(f"read of {_MANY} messages: after an append / a put", times["append"] / times["put"], "x", ceiling=1.3),
    ]


def plain_messages_again() -> list[Figure]:
    """Packing a chat of plain dicts again with two more, beside packing all of them"""
    messages = [message for number in range(_MANY // 2) for message in _turn(number)]
    _, seen = default_codec.pack_cached(messages.copy(), None)
    more = [*messages, *_turn(_MANY)]
    best = in_turns(
        {"all": lambda: default_codec.pack_items(more), "new": lambda: default_codec.pack_cached(more.copy(), seen)}
    )
    note = f"{best['all'] * 1000:.0f} us against {best['new'] * 1000:.0f}"
    return [
        Figure(f"{_MANY} plain messages: packing all / the new ones", best["all"] / best["new"], "x", 1.5, note=note)
    ]


CASES = (turn_beside_others, growth_of_a_turn, plain_messages_again)
