"""Counted, not timed: round trips, objects and bytes per step on every store, early in a long chat and late."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import holdfast
from benchmarks import servers
from benchmarks.langgraph_savers import OURS
from benchmarks.langgraph_work import Chat, chat
from benchmarks.measure import Figure, Result, Table, missing, written
from benchmarks.proxy import Proxy
from benchmarks.server_savers import LOG_ONLY, MONGODB, ON_MONGODB, ON_POSTGRES, POSTGRES, Opener
from benchmarks.servers import LOCAL, STORES, Missing, Place

_STEPS = 5000
_WINDOW = 500
_TURNS = 40


class _Seen(NamedTuple):
    """What was counted up to some step."""

    stored: int
    """Bytes that are there; also those that were replaced and not yet swept."""
    sent: int
    """Bytes that were sent to the server, or handed to the system."""
    trips: int
    objects: int
    logged: int


class _Window(NamedTuple):
    """The same per step, over some steps."""

    stored: float
    sent: float
    trips: float
    objects: float
    logged: float


def _look(place: Place, proxy: Proxy | None) -> _Seen:
    if proxy is None:
        return _Seen(place.stored(), written() or 0, 0, 0, 0)
    sent, trips, objects = proxy.sent, proxy.trips, proxy.words[b"PUT"] + proxy.words[b"POST"]
    logged = place.logged() if place.logged else 0
    return _Seen(place.stored(), sent, trips, objects, logged)


def _per_step(before: _Seen, after: _Seen, steps: int) -> _Window:
    return _Window(*((late - early) / steps for early, late in zip(before, after, strict=True)))


class _Grown(NamedTuple):
    early: _Window
    late: _Window
    whole: _Window


def _grow(kind: str) -> _Grown:
    """A chat that grows by a message each step."""
    messages = chat(_STEPS // 2)
    with ExitStack() as stack:
        proxy = None if kind in LOCAL else stack.enter_context(Proxy(servers.server_of(kind)))
        place = stack.enter_context(STORES[kind](proxy))
        store = stack.enter_context(holdfast.open(place.url, **place.options))
        seen = {}
        for step in range(_STEPS + 1):
            if step in (0, _WINDOW, _STEPS - _WINDOW, _STEPS):
                seen[step] = _look(place, proxy)
            if step < _STEPS:
                store.thread("chat").put({"messages": messages[: step + 1], "step": step})
        assert store.thread("chat").get().state["messages"] == messages
    return _Grown(
        _per_step(seen[0], seen[_WINDOW], _WINDOW),
        _per_step(seen[_STEPS - _WINDOW], seen[_STEPS], _WINDOW),
        _per_step(seen[0], seen[_STEPS], _STEPS),
    )


def steps_of_a_growing_chat() -> Result:
    """Bytes, round trips and objects per step of a chat that grows to 5,000 messages, on every store"""
    figures: list[Figure] = []
    rows = []
    for kind in STORES:
        try:
            early, late, whole = _grow(kind)
        except Missing as why:
            figures.append(missing(f"5,000 steps on {kind}", why))
            continue
        note = f"{late.stored:,.0f} bytes a step against {early.stored:,.0f}"
        ratio = late.stored / early.stored
        figures.append(Figure(f"{kind}: stored, steps 4,500-5,000 / 1-500", ratio, "x", None, 1.3, note))
        note = f"{late.sent:,.0f} bytes a step against {early.sent:,.0f}"
        ratio = late.sent / early.sent
        figures.append(Figure(f"{kind}: written, steps 4,500-5,000 / 1-500", ratio, "x", None, 1.3, note))
        if early.logged:
            note = f"{late.logged:,.0f} bytes a step against {early.logged:,.0f}"
            ratio = late.logged / early.logged
            figures.append(Figure(f"{kind}: log, steps 4,500-5,000 / 1-500", ratio, "x", None, 1.3, note))
        if kind == "postgresql":
            figures.append(Figure(f"{kind}: round trips per step", whole.trips, "", None, 1.5))
        if kind == "s3":
            figures.append(Figure(f"{kind}: objects written per step, folding included", whole.objects, "", None, 2))
        cells = [f"{each:,.0f}" for each in (early.sent, late.sent, early.stored, late.stored)]
        cells.append("" if kind in LOCAL else f"{whole.trips:.2f}")
        rows.append((kind, [*cells, f"{whole.objects:.2f}" if kind == "s3" else ""]))
    columns = ["written early", "written late", "stored early", "stored late", "round trips", "objects written"]
    title = "A chat of 5,000 messages, one more each step: bytes per step in steps 1-500 and 4,500-5,000"
    return Result(figures, tables=[Table(title, columns, rows)] if rows else [])


def _trips(kind: str, opener: Opener) -> tuple[float, float]:
    """Round trips and bytes sent per turn. Those of MongoDB include how its client monitors the server."""
    with (
        Proxy(servers.server_of(kind)) as proxy,
        STORES[kind](proxy) as place,
        opener(place.url) as saver,
    ):
        talk = Chat(saver, _TURNS + 1)
        talk.turn()
        proxy.reset()
        for _ in range(_TURNS):
            talk.turn()
        return proxy.trips / _TURNS, proxy.sent / _TURNS


def round_trips_of_a_turn() -> Result:
    """Round trips to a server in one turn of a LangGraph chat, which reads once and saves five times"""
    figures: list[Figure] = []
    for kind, where, openers in (
        ("postgresql", "PostgreSQL", {name: ON_POSTGRES[name] for name in (OURS, POSTGRES)}),
        ("mongodb", "MongoDB", {name: ON_MONGODB[name] for name in (OURS, LOG_ONLY, MONGODB)}),
    ):
        try:
            found = {name: _trips(kind, opener) for name, opener in openers.items()}
        except Missing as why:
            figures.append(missing(f"round trips on {where}", why))
            continue
        note = ", ".join(f"{name} {trips:.1f} and {sent / 1000:.1f} KB sent" for name, (trips, sent) in found.items())
        figures.append(Figure(f"{where}: round trips per turn of a chat", found[OURS][0], "", None, 8, note))
    return Result(figures)


CASES = (steps_of_a_growing_chat, round_trips_of_a_turn)
