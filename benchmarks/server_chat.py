"""The chat of 500 turns on servers, beside LangGraph's savers for them: what each adds, and what it leaves there."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from redis import Redis

from benchmarks import servers
from benchmarks.langgraph_checks import check_messages, check_saver
from benchmarks.langgraph_savers import OURS, REFERENCE
from benchmarks.langgraph_work import DOCUMENT, Chat
from benchmarks.measure import Cost, Figure, Result, Row, Table, cost, costs, missing, turns, typical
from benchmarks.server_savers import LOG_ONLY, MONGODB, ON_MONGODB, ON_POSTGRES, POSTGRES, Opener
from benchmarks.servers import Missing

_TURNS, _SHORT = 500, 100
_BLOCK, _SHORT_BLOCK = 25, 10
"""Turns that one saver makes before it is the next one's turn: noise shall hit all alike."""


Floors = Mapping[str, float | None]
"""What must be reached with readable rows, and without."""

_NONE_YET: Floors = {OURS: None, LOG_ONLY: None}
"""On MongoDB no whole run has been recorded; there are goals, and no bounds yet."""


class _Run:
    """One saver's chat, in a database of its own."""

    def __init__(self, name: str, opener: Opener, url: str, stack: ExitStack, log: Callable[[], int] | None) -> None:
        self.name, self.url = name, url
        self.costs: list[Cost] = []
        self.logged = 0
        """Bytes of log that the server wrote meanwhile, where it says."""
        self._log = log
        saver = stack.enter_context(opener(url))
        if name != REFERENCE:
            check_saver(saver)
        self.chat = Chat(saver, _TURNS)

    def block(self) -> None:
        gc.collect()
        before = self._log() if self._log else 0
        self.costs += [cost(self.chat.turn) for _ in range(_BLOCK)]
        self.logged += (self._log() if self._log else 0) - before

    def get_state(self) -> object:
        return self.chat.graph.get_state(self.chat.config)

    def check(self) -> None:
        values = self.chat.graph.get_state(self.chat.config).values
        if self.name != REFERENCE:
            check_messages(values["messages"], self.chat.messages)
        assert len(values["messages"]) == 2 * _TURNS
        assert values["document"] == DOCUMENT

    @property
    def wall(self) -> float:
        return sum(each.wall for each in self.costs)

    @property
    def cpu(self) -> float:
        return sum(each.cpu for each in self.costs)

    def added(self, own: _Run) -> float:
        """Milliseconds beyond LangGraph's own: block by block, by medians, so that a burst of noise counts little."""
        beyond = [mine - theirs for mine, theirs in zip(self._medians(), own._medians(), strict=True)]
        return sum(beyond) * _BLOCK

    def _medians(self) -> list[float]:
        blocks = [self.costs[start : start + _BLOCK] for start in range(0, _TURNS, _BLOCK)]
        return [statistics.median(each.wall for each in block) for block in blocks]


def _run(
    openers: dict[str, Opener], fresh: Callable[[], str], stack: ExitStack, log: Callable[[], int] | None
) -> dict[str, _Run]:
    runs = {name: _Run(name, opener, fresh(), stack, log) for name, opener in openers.items()}
    for name in turns(runs, _TURNS // _BLOCK):
        runs[name].block()
    for run in runs.values():
        run.check()
    return runs


def _figures(where: str, runs: dict[str, _Run], theirs: str, floors: Floors, reading: float | None) -> list[Figure]:
    """What they add against what we add, with and without readable rows; and what reading takes."""
    own, other = runs[REFERENCE], runs[theirs]
    figures = []
    for ours, floor in floors.items():
        adds, they_add = runs[ours].added(own), other.added(own)
        note = f"{they_add / 1000:.2f} s against {adds / 1000:.2f} s, LangGraph's own {own.wall / 1000:.2f} s"
        figures.append(
            Figure(f"chat on {where}: {theirs} adds / {ours} adds", they_add / adds, "x", floor, None, note, goal=6)
        )
    taken = costs({OURS: runs[OURS].get_state, theirs: other.get_state}, 15)
    reads = {name: typical(found).wall for name, found in taken.items()}
    note = f"{reads[theirs]:.1f} ms against {reads[OURS]:.1f} ms"
    ratio = reads[theirs] / reads[OURS]
    return [*figures, Figure(f"chat on {where}: get_state, {theirs} / Holdfast", ratio, "x", reading, None, note)]


def _smaller(what: str, sizes: dict[str, int], theirs: str, floors: Floors, goal: float | None = None) -> list[Figure]:
    return [
        Figure(
            f"chat on {what}, {theirs} / {ours}",
            sizes[theirs] / sizes[ours],
            "x",
            floor,
            None,
            f"{sizes[theirs] / 1e6:.2f} MB against {sizes[ours] / 1e6:.2f} MB",
            goal=goal,
        )
        for ours, floor in floors.items()
    ]


def _rows(where: str, runs: dict[str, _Run], sizes: dict[str, int]) -> list[Row]:
    return [
        Row(
            f"chat of 500 turns on {where}, per turn",
            name,
            run.wall / _TURNS,
            run.cpu / _TURNS,
            run.logged / _TURNS if run.logged and name in sizes else None,
            None,
            sizes.get(name),
        )
        for name, run in runs.items()
    ]


def chat_on_postgres() -> Result:
    """The chat of 500 turns on PostgreSQL, beside LangGraph's PostgresSaver"""
    try:
        server = servers.postgres()
    except Missing as why:
        return Result([missing("chat on PostgreSQL", why)])
    with ExitStack() as stack:
        runs = _run(ON_POSTGRES, server.fresh, stack, lambda: servers.log_position(server.url))
        figures = _figures("PostgreSQL", runs, POSTGRES, {OURS: 2.5, LOG_ONLY: 2.5}, 2)
    sizes = {name: servers.relations(run.url) for name, run in runs.items() if name != REFERENCE}
    logged = {name: runs[name].logged for name in sizes}
    figures += _smaller("PostgreSQL: tables", sizes, POSTGRES, {OURS: 40, LOG_ONLY: 70}, goal=150)
    figures += _smaller("PostgreSQL: its log", logged, POSTGRES, {OURS: 10, LOG_ONLY: 20})
    return Result(figures, _rows("PostgreSQL", runs, sizes))


def chat_on_mongodb() -> Result:
    """The chat of 500 turns on MongoDB, beside LangGraph's MongoDBSaver"""
    try:
        server = servers.mongodb()
    except Missing as why:
        return Result([missing("chat on MongoDB", why)])
    with ExitStack() as stack:
        runs = _run(ON_MONGODB, server.fresh, stack, None)
        figures = _figures("MongoDB", runs, MONGODB, _NONE_YET, None)
    found = {name: servers.documents(run.url) for name, run in runs.items() if name != REFERENCE}
    data = {name: each.data for name, each in found.items()}
    figures += _smaller("MongoDB: on disk", _disk(found), MONGODB, _NONE_YET, goal=150)
    figures += _smaller("MongoDB: documents", data, MONGODB, _NONE_YET)
    return Result(figures, _rows("MongoDB", runs, _disk(found)))


def _disk(found: dict[str, servers.Documents]) -> dict[str, int]:
    return {name: each.disk for name, each in found.items()}


class _Spent(NamedTuple):
    """What a saver took in all, in milliseconds."""

    wall: float
    client: float
    server: float


def short_chat_on_mongodb() -> Result:
    """A chat of 100 turns on MongoDB, with readable rows until all are written, beside LangGraph's MongoDBSaver"""
    try:
        server = servers.mongodb()
    except Missing as why:
        return Result([missing("short chat on MongoDB", why)])
    openers = {name: opener for name, opener in ON_MONGODB.items() if name != REFERENCE}
    spent = {name: _Spent(0, 0, 0) for name in openers}

    def add(name: str, job: Callable[[], object]) -> None:
        gc.collect()
        before = servers.mongodb_cpu()
        taken = cost(job)
        on_server = servers.mongodb_cpu() - before
        wall, client, so_far = spent[name]
        spent[name] = _Spent(wall + taken.wall, client + taken.cpu, so_far + on_server)

    chats: dict[str, Chat] = {}
    stacks = {name: ExitStack() for name in openers}
    with ExitStack() as stack:
        for name, opener in openers.items():
            with opener(server.fresh()) as saver:
                Chat(saver, 1).turn()  # loads modules
            stack.push(stacks[name])
            chats[name] = Chat(stacks[name].enter_context(opener(server.fresh())), _SHORT)
        for name in turns(openers, _SHORT // _SHORT_BLOCK):
            add(name, lambda chat=chats[name]: [chat.turn() for _ in range(_SHORT_BLOCK)])  # type: ignore[misc]
        for name in openers:
            add(name, stacks[name].close)  # what follows is written
    theirs, figures = spent[MONGODB], []
    for ours, (wall, client, on_server) in ((OURS, (0.8, 0.6, 1.6)), (LOG_ONLY, (0.8, 0.6, 1.6))):
        for what, each, floor, goal in (
            ("time", "wall", wall, 1.3),
            ("client CPU", "client", client, 1.3),
            ("server CPU", "server", on_server, None),
        ):
            they, we = getattr(theirs, each), getattr(spent[ours], each)
            note = f"{they / _SHORT:.1f} ms a turn against {we / _SHORT:.1f} ms"
            name = f"chat of {_SHORT} turns on MongoDB: {what}, {MONGODB} / {ours}"
            figures.append(Figure(name, they / we, "x", floor, None, note, goal))
    return Result(figures)


def chat_on_redis() -> Result:
    """Whether LangGraph's RedisSaver could run here"""
    try:
        server = servers.redis()
    except Missing as why:
        return Result([missing("chat on Redis", why)])
    with Redis.from_url(server.url) as client:
        modules: Any = client.execute_command("MODULE", "LIST")
    have = ", ".join(each[b"name"].decode() for each in modules) or "none"
    text = f"it needs the modules search and ReJSON, and the server here has: {have}. Nothing is compared"
    return Result([], tables=[Table("LangGraph's RedisSaver", [""], [("langgraph-checkpoint-redis", [text])])])


CASES = (chat_on_postgres, chat_on_mongodb, short_chat_on_mongodb, chat_on_redis)
