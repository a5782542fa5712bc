"""Compositions of stores on a network, as they would be used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.backends.urls import compose
from tests import servers
from tests.backends.wrappers.pairs import contents_at, opened, settled, sqlite
from tests.support.nightly import mostly_nightly

_rng = random.Random(3)
_messages = [_rng.randbytes(300).hex() for _ in range(40)]
STATES = [{"messages": _messages[:m], "n": m} for m in range(40)]

REMOTES = {
    "postgresql": servers.postgres,
    "mongodb": servers.mongodb,
    "redis": servers.redis,
}


def use(url: str) -> None:
    """Save a thread, and see that it is there, also after opening again."""
    with holdfast.open(url) as store:
        for state in STATES:
            store.thread("chat").put(state)
        assert store.thread("chat").get().state == STATES[-1]
    look(url)


def look(url: str) -> None:
    with holdfast.open(url) as store:
        for checkpoint in store.thread("chat").log().all():
            assert store.thread("chat").get(checkpoint.id).state == STATES[checkpoint.step]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "remote"),
    [
        ("write-behind", "postgresql"),
        pytest.param("mirror", "redis", marks=pytest.mark.nightly),
        pytest.param("mirror", "mongodb", marks=pytest.mark.nightly),
        pytest.param("write-behind", "mongodb", marks=pytest.mark.nightly),
        pytest.param("write-behind", "redis", marks=pytest.mark.nightly),
        pytest.param("mirror", "postgresql", marks=pytest.mark.nightly),
    ],
)
def test_a_copy_on_a_server(tmp_path: Path, kind: str, remote: str) -> None:
    far = REMOTES[remote]()
    url = compose(kind, local=sqlite(tmp_path), remote=far)
    use(url)
    backend = opened(url)
    settled(backend)
    assert run(backend.check()) == []
    run(backend.close())
    assert contents_at(far)["steps"] == contents_at(sqlite(tmp_path))["steps"]
    with holdfast.open(far) as store:  # the local one is lost
        assert store.thread("chat").get().state == STATES[-1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("hot", "cold"),
    mostly_nightly([("postgresql", "file"), ("mongodb", "redis"), ("redis", "file")], daily=[("mongodb", "redis")]),
)
def test_a_hot_store_on_a_server(tmp_path: Path, hot: str, cold: str) -> None:
    far = servers.redis() if cold == "redis" else f"file://{tmp_path}/cold"
    url = compose("tiered", hot=REMOTES[hot](), cold=far, after=0, keep=0)
    use(url)
    backend = opened(url)
    run(backend.tidy())
    moved = run(backend.status())["moved"]
    run(backend.close())
    assert int(moved) > 10
    look(url)


@pytest.mark.parametrize(("kind", "store"), [("retry", "mongodb"), ("cache", "postgresql")])
def test_around_a_store_on_a_server(kind: str, store: str) -> None:
    use(compose(kind, store=REMOTES[store]()))


@pytest.mark.parametrize("server", mostly_nightly(REMOTES, daily=["postgresql"]))
def test_the_conditions_of_the_journal_hold_on_a_server(tmp_path: Path, server: str) -> None:
    """Whatever the engine does, with readable rows and an index, whose columns servers write in their own form."""
    remote = REMOTES[server]()
    url = compose("mirror", local=f"sqlite:///{tmp_path}/local.db", remote=remote, patience=120, strict=True)
    with holdfast.open(url, project=True) as store:
        thread = store.thread("chat")
        for number in range(40):
            messages = [{"role": "user", "content": f"message {n} ☃"} for n in range(number)]
            state = {"messages": messages, "value": [1, 1.0, 0.1 + number, 1e300, True, None, {"é": number}]}
            thread.put(state, metadata={"n": number, "cost": 1.10, "é": [2.50]})
        thread.tag("v1", at=3)
        thread.tag("v1", at=5, move=True)
        thread.fork("other", at=20)
        store.maintenance.build_index()
        thread.put({"messages": ["words of an index"]})
        assert store.maintenance.prune(keep_last=10).dropped
        store.state(agent="researcher")["goal"] = 1.5
        store.sessions.start("s1", user="alice").state["mood"] = "calm"
        with store.transaction() as together:
            together.put("a", {"n": 1})
            together.put("b", {"n": 2})
        store.thread("a").delete()
        store.thread("a").put({"n": 3})
        backend = store._engine.context.backend
        assert settled(backend)["trouble"] == ""
        assert run(backend.check()) == []
