"""Savers to run graphs on, each fresh."""

from __future__ import annotations

import copy
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from holdfast.langgraph import HoldfastSaver
from tests.servers import places

HOLDFAST = ("memory", "sqlite")
"""The stores that every test runs on."""
OTHERS = tuple(kind for kind in places.KINDS if kind not in HOLDFAST)
"""The stores that some tests run on: the engine above them is the same, and they are slower."""


def holdfast_saver(kind: str, folder: Path) -> HoldfastSaver:
    """A saver on a store of a kind."""
    return HoldfastSaver.from_conn_string(places.place(kind, folder))


class Keeping(SerializerProtocol):
    """Keeps copies of the objects themselves, so that nothing is lost on the way: a tuple stays one."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.lock = threading.Lock()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        copied = copy.deepcopy(obj)
        with self.lock:
            self.kept.append(copied)
            return "kept", str(len(self.kept) - 1).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return copy.deepcopy(self.kept[int(data[1])])


def yardstick(kind: str) -> InMemorySaver | None:
    """LangGraph's own saver in memory: as it comes, or one that keeps every value exactly."""
    if kind == "exact":
        return InMemorySaver(serde=Keeping())
    return InMemorySaver() if kind == "langgraph" else None


@contextmanager
def saver_of(kind: str, folder: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    if measure := yardstick(kind):
        yield measure
    elif kind == "theirs":
        with SqliteSaver.from_conn_string(f"{folder}/theirs.db") as theirs:
            yield theirs
    else:
        with holdfast_saver(kind, folder) as ours:
            yield ours


@asynccontextmanager
async def asaver_of(kind: str, folder: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if measure := yardstick(kind):
        yield measure
    elif kind == "theirs":
        async with AsyncSqliteSaver.from_conn_string(f"{folder}/theirs.db") as theirs:
            yield theirs
    else:
        async with holdfast_saver(kind, folder) as ours:
            yield ours
