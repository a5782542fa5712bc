"""Errors about a snapshot are `SnapshotError`s; those of the store or of the settings are of their general kind."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

import holdfast
from holdfast import snapshots
from holdfast.errors import (
    ConfigError,
    DeniedError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    SnapshotError,
    UnavailableError,
    VetoError,
)
from tests.snapshots.greeter import Greeter
from tests.snapshots.kit import Scripted, add

NONSENSE: list[Any] = [5, "x", b"x", None, [], {}, object(), [5], {"a": 5}, 3.5, True, {5: 5}]
MESSAGES = [HumanMessage("x")]


class Files:
    """A snapshot of each kind, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = holdfast.open("memory://")
        self.agent = create_agent(Scripted(lines=["x"]), [add], checkpointer=InMemorySaver())
        self.greeter = Greeter().attach(self.store, "g1")
        self.greeter.start()
        self.messages_file = self._taken(MESSAGES)
        self.agent_file = self._taken(self.agent)
        self.greeter_file = self._taken(self.greeter)

    def fresh(self) -> Path:
        """A path that is not in use."""
        return self.folder / f"{len([*self.folder.iterdir()])}.hfsnap"

    def _taken(self, value: Any) -> Path:
        path = self.fresh()
        snapshots.snapshot(value, path)
        return path

    def restore(self, path: Path, **given: Any) -> Any:
        """Restore with all that is needed, and what was given instead."""
        needed: dict[str, Any] = {}
        if path == self.agent_file:
            needed = {"tools": [add], "allow": [Scripted]}
        elif path == self.greeter_file:
            needed = {"store": self.store, "agent_id": "g2", "live": False}
        return snapshots.restore(path, **{**needed, **given})


@pytest.fixture
def files(tmp_path: Path) -> Any:
    made = Files(tmp_path)
    yield made
    made.store.close()


def attempts(f: Files, wrong: Any) -> dict[str, Callable[[], Any]]:
    """Calls in which one argument is nonsense."""
    calls: dict[str, Callable[[], Any]] = {
        "target": lambda: snapshots.snapshot(MESSAGES, wrong),
        "agent": lambda: snapshots.snapshot(wrong, f.fresh()),
        "config of an agent": lambda: snapshots.snapshot(f.agent, f.fresh(), config=wrong),
        "configurable": lambda: snapshots.snapshot(f.agent, f.fresh(), config={"configurable": wrong}),
        "thread": lambda: snapshots.snapshot(f.agent, f.fresh(), config={"configurable": {"thread_id": wrong}}),
        "id of an agent": lambda: snapshots.snapshot(snapshots.StoredAgent(f.store, wrong), f.fresh()),
        "version": lambda: snapshots.snapshot(snapshots.StoredAgent(f.store, "g1", wrong), f.fresh()),
        "limit of a page": lambda: snapshots.list(f.folder, limit=wrong),
        "cursor": lambda: snapshots.list(f.folder, cursor=wrong),
        "limit of verify": lambda: snapshots.verify(f.messages_file, limit=wrong),
    }
    for name in ("description", "config", "secrets", "not_secret", "limit"):
        calls[name] = partial(snapshots.snapshot, MESSAGES, f.fresh(), **{"overwrite": True, name: wrong})
    for name in ("restore", "info", "exists", "verify", "delete", "list"):
        calls[f"source of {name}"] = partial(getattr(snapshots, name), wrong)
    for path in (f.messages_file, f.agent_file, f.greeter_file):
        for name in RESTORE:
            calls[f"{name} for {path.name}"] = partial(f.restore, path, **{name: wrong})
    return calls


RESTORE = (
    *("secrets", "allow", "tools", "middleware", "response_format", "state_schema", "context_schema", "checkpointer"),
    *("store", "thread", "agent_id", "accept_changes", "limit"),
)


def test_nonsense_ends_in_an_error_of_holdfast(files: Files) -> None:
    refused = 0
    for wrong in NONSENSE:
        for name, call in attempts(files, wrong).items():
            try:
                call()
            except HoldfastError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{name} = {wrong!r} raised {type(error).__name__}") from error
    assert refused > 300


CASES: list[tuple[type[HoldfastError], Callable[[Files], Any]]] = [
    (ConfigError, lambda f: snapshots.snapshot(MESSAGES, "ftp://host/a.hfsnap")),
    (ConfigError, lambda f: snapshots.snapshot(MESSAGES, f.folder / "none" / "a.hfsnap")),
    (ConfigError, lambda f: snapshots.info(f.messages_file, bogus=1)),
    (InvalidError, lambda f: snapshots.list(f.folder, cursor=5)),  # type: ignore[arg-type]
    (NotFoundError, lambda f: snapshots.snapshot(snapshots.StoredAgent(f.store, "nobody"), f.fresh())),
    (InvalidError, lambda f: snapshots.snapshot(Greeter(), f.fresh())),
    (DeniedError, lambda f: as_stranger(f)),
    (VetoError, lambda f: with_veto(f)),
    (UnavailableError, lambda f: closed(f)),
]


def as_stranger(f: Files) -> Any:
    return snapshots.snapshot(snapshots.StoredAgent(f.store.as_identity(agent="stranger"), "g1"), f.fresh())


def with_veto(f: Files) -> Any:
    @f.store.hooks.before("agent.create")
    def never(call: Any) -> None:
        raise VetoError("never")

    return f.restore(f.greeter_file)


def closed(f: Files) -> Any:
    store = holdfast.open("memory://")
    store.close()
    return f.restore(f.greeter_file, store=store)


def test_errors_of_the_store_and_the_settings_are_of_their_own_kind(files: Files, subtests: pytest.Subtests) -> None:
    for kind, call in CASES:
        with subtests.test(kind.__name__):
            with pytest.raises(kind) as raised:
                call(files)
            error: Any = raised.value
            again = pickle.loads(pickle.dumps(error))
            assert (type(again), str(again), again.code) == (type(error), str(error), error.code)


def test_the_errors_of_asyncio_are_the_same(files: Files) -> None:
    with pytest.raises(ConfigError):
        asyncio.run(snapshots.asnapshot(MESSAGES, "ftp://host/a.hfsnap"))
    with pytest.raises(SnapshotError):
        asyncio.run(snapshots.arestore(files.folder / "none.hfsnap"))
