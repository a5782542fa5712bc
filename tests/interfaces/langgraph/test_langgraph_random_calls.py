"""Calls in no sensible order are answered by a `HoldfastSaver` as by LangGraph's saver in memory."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from tests.interfaces.langgraph.savers import HOLDFAST, OTHERS, Keeping, holdfast_saver
from tests.interfaces.langgraph.sessions import on
from tests.support.nightly import mostly_nightly

THREADS = ("t", "")
NAMESPACES = ("", "child:1|deep:2")
CHANNELS = ("messages", "notes", "a channel:with|marks", "")
TASKS = tuple(f"{number:08x}-0000-0000-0000-000000000000" for number in (0, 1, 2, 9))
PATHS = ("", "~__pregel_pull, a", "~__pregel_push, 0000000002", "~__pregel_push, 0000000010")
SPECIAL = ("__error__", "__interrupt__", "__resume__", "__scheduled__")


def told(found: CheckpointTuple | None) -> Any:
    if found is None:
        return None
    parent = found.parent_config and found.parent_config["configurable"]
    return found.config["configurable"], found.checkpoint, found.metadata, parent, found.pending_writes


def agree(mine: Any, theirs: Any, what: str) -> None:
    """Fail briefly: the values are large, and a full comparison of them takes minutes to write."""
    if mine != theirs:
        pytest.fail(f"{what}: {str(mine)[:1000]} is not {str(theirs)[:1000]}")


class Twins:
    """The same calls on two savers."""

    def __init__(self, ours: BaseCheckpointSaver[Any], seed: int) -> None:
        self.ours = ours
        self.theirs = InMemorySaver(serde=Keeping())
        self.chance = random.Random(seed)
        self.ids: list[str] = []
        self.versions = 0
        self.values: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.versions_of: dict[tuple[str, str, str], dict[str, Any]] = {}

    def place(self) -> tuple[str, str]:
        return self.chance.choice(THREADS), self.chance.choice(NAMESPACES)

    def id(self, place: tuple[str, str], *, old: float) -> str:
        """An id that is in a place or another one, with some likelihood, or else a new one, not always the greatest."""
        if self.ids and self.chance.random() < old:
            there = [key[2] for key in self.values if key[:2] == place][-6:]
            return self.chance.choice(there if there and self.chance.random() < 0.9 else self.ids)
        time = len(self.ids) * 10 + self.chance.randrange(30)
        new = f"1f000000-{time:04x}-6000-8000-{self.chance.randrange(1 << 48):012x}"
        self.ids.append(new)
        return new

    def value(self) -> Any:
        made: list[Any] = [1, "text", None, [1, (2, 3)], {"k": [self.chance.random()]}, "x" * 70_000, {1, 2}]
        return self.chance.choice(made)

    def put(self) -> None:
        thread, namespace = place = self.place()
        parent = self.id(place, old=0.97) if self.chance.random() < 0.9 else None
        id = self.id(place, old=0.1)
        if parent is not None and self.ids.index(parent) >= self.ids.index(id):
            return  # nothing comes before what it follows
        before = self.values.get((thread, namespace, parent or ""), {})
        values, versions = dict(before), dict(self.versions_of.get((thread, namespace, parent or ""), {}))
        changed = {}
        for channel in self.chance.sample(CHANNELS, self.chance.randrange(len(CHANNELS))):
            self.versions += 1
            changed[channel] = versions[channel] = self.versions
            if self.chance.random() < 0.8:
                value = self.value()
                values[channel] = _DeltaSnapshot(value) if self.chance.random() < 0.2 else value
            else:
                values.pop(channel, None)
        checkpoint: Checkpoint = {
            "v": 4,
            "id": id,
            "ts": f"2024-01-01T00:00:{self.chance.randrange(60):02}+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {"node": dict(versions), "__input__": {}},
            "updated_channels": sorted(changed),
        }
        self.values[thread, namespace, id], self.versions_of[thread, namespace, id] = values, versions
        config = on(thread, checkpoint_ns=namespace, checkpoint_id=parent)
        metadata: Any = {
            "source": self.chance.choice(["loop", "input"]),
            "step": self.chance.randrange(3),
            "parents": {},
        }
        # Both get the values of all channels as new, since they may have been told another parent before.
        told = [saver.put(config, {**checkpoint}, metadata, versions) for saver in (self.ours, self.theirs)]
        assert told[0] == told[1]

    def put_writes(self) -> None:
        thread, namespace = place = self.place()
        config = on(thread, checkpoint_ns=namespace, checkpoint_id=self.id(place, old=0.9))
        names = (*CHANNELS, *SPECIAL) if self.chance.random() < 0.5 else CHANNELS
        writes = [(self.chance.choice(names), self.value()) for _ in range(self.chance.randrange(4))]
        task, path = self.chance.choice(TASKS), self.chance.choice(PATHS)
        for saver in (self.ours, self.theirs):
            saver.put_writes(config, writes, task, path)

    def delete(self) -> None:
        thread = self.chance.choice(THREADS)
        for saver in (self.ours, self.theirs):
            saver.delete_thread(thread)
        for known in (self.values, self.versions_of):
            for key in [key for key in known if key[0] == thread]:
                del known[key]

    def check(self) -> None:
        for thread in THREADS:
            for namespace in NAMESPACES:
                self.check_line(thread, namespace)
            whole = [
                {told_key(each): told(each) for each in saver.list(on(thread))} for saver in (self.ours, self.theirs)
            ]
            agree(whole[0], whole[1], f"list of thread {thread!r}")
        everything = [{told_key(each) for each in saver.list(None)} for saver in (self.ours, self.theirs)]
        assert everything[0] == everything[1]

    def check_line(self, thread: str, namespace: str) -> None:
        config = on(thread, checkpoint_ns=namespace)
        self.same_list(config)
        agree(told(self.ours.get_tuple(config)), told(self.theirs.get_tuple(config)), f"latest of {config}")
        known = [each.checkpoint["id"] for each in self.theirs.list(config)]
        for id in [*known, "1f000000-0000-6000-8000-000000000000"]:
            exact = on(thread, checkpoint_ns=namespace, checkpoint_id=id)
            agree(told(self.ours.get_tuple(exact)), told(self.theirs.get_tuple(exact)), f"{exact}")
            self.same_list(exact)
            self.same_list(config, before=exact, limit=self.chance.randrange(4))
            mine, theirs = (
                saver.get_delta_channel_history(config=exact, channels=CHANNELS) for saver in (self.ours, self.theirs)
            )
            agree(mine, theirs, f"deltas of {exact}")
        for question in ({"filter": {"source": "loop"}}, {"filter": {"step": 1}, "limit": 2}, {"limit": 0}):
            self.same_list(config, **question)

    def same_list(self, config: RunnableConfig, **question: Any) -> None:
        mine, theirs = ([told(each) for each in saver.list(config, **question)] for saver in (self.ours, self.theirs))
        agree(mine, theirs, f"list {config} {question}")


def told_key(found: CheckpointTuple) -> tuple[str, str, str]:
    where = found.config["configurable"]
    return where["thread_id"], where["checkpoint_ns"], where["checkpoint_id"]


def play(kind: str, folder: Path, seed: int, calls: int) -> None:
    with holdfast_saver(kind, folder) as ours:
        twins = Twins(ours, seed)
        for _ in range(calls):
            call = twins.chance.choices([twins.put, twins.put_writes, twins.delete], [60, 60, 1])[0]
            call()
        twins.check()


@pytest.mark.parametrize(
    ("kind", "seed"), mostly_nightly([*product(HOLDFAST, range(10))], daily=[("sqlite", 0), ("memory", 1)])
)
def test_random_calls(kind: str, seed: int, tmp_path: Path) -> None:
    play(kind, tmp_path, seed, 150)


@pytest.mark.parametrize("kind", mostly_nightly(OTHERS, daily=("postgres",)))
def test_random_calls_on_every_store(kind: str, tmp_path: Path) -> None:
    play(kind, tmp_path, 20, 60)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(30, 40))
@pytest.mark.parametrize("kind", OTHERS)
def test_many_random_calls_on_every_store(kind: str, seed: int, tmp_path: Path) -> None:
    play(kind, tmp_path, seed, 150)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_random_calls(seed: int, tmp_path: Path) -> None:
    play("memory", tmp_path, seed, 400)
