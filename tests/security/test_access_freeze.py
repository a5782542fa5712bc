"""A frozen identity reads and writes nothing, not even what it owns, until it is unfrozen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import DeniedError, NotFoundError
from holdfast.testing.security.isolation import KINDS, has
from holdfast.testing.security.probes import PROBES
from holdfast.testing.security.world import KEY, SECRET, World, done
from tests.interfaces.cli import kit
from tests.state.kit import Clock, store_on


@pytest.fixture
def store() -> Iterator[Store]:
    with store_on(MemoryBackend(), Clock()) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_it_gets_nothing_of_its_own(tmp_path: Path, kind: str, subtests: pytest.Subtests) -> None:
    """What no stranger gets at, its owner does not get at either while it is frozen: through any public function."""
    world = World(store_on(MemoryBackend(), Clock()), tmp_path)
    world.store.access.freeze("agent:victim", reason="suspicious")
    before = world.heads()
    victims = (world.store.as_identity(agent="victim"), world.astore.as_identity(agent="victim"))
    for name, probe in PROBES[kind].items():
        with subtests.test(name):
            for acting in victims:
                if has(kind, name, acting):
                    with pytest.raises((DeniedError, LookupError)) as caught:
                        done(partial(probe, world), acting)
                    assert SECRET not in str(caught.value)
            assert world.heads() == before
    world.store.access.unfreeze("agent:victim")
    assert victims[0].state(agent="victim")[KEY] == SECRET, "the control"
    world.close()


def test_it_takes_effect_at_once_and_ends(store: Store) -> None:
    a, b = store.as_identity(agent="a"), store.as_identity(agent="b")
    own, granted = a.state(agent="a"), a.state(agent="b")
    own["k"] = 1
    b.state(agent="b")["k"] = 2
    b.grant("agent:a", ["read", "write"])
    policy = store.as_identity(agent="a", mode="custom", policy=holdfast.access.Policy().allow(["read", "write"]))
    assert (own["k"], granted["k"], policy.state(agent="a")["k"]) == (1, 2, 1)
    watch = own.watch(cursor="")
    assert a.changes().complete
    store.access.freeze("agent:a", reason="case 17")
    assert store.access.frozen() == {"agent:a": "case 17"}
    for use in (
        lambda: own["k"],
        lambda: own.set("k", 2),
        lambda: list(own),
        lambda: own.history(),
        lambda: granted["k"],
        lambda: granted.set("k", 3),
        lambda: policy.state(agent="a")["k"],
        lambda: policy.state(agent="a").set("k", 4),
        watch.poll,
        lambda: a.grant("agent:c"),
        a.grants,
        a.granted,
        a.changes,
    ):
        with pytest.raises(DeniedError, match="it is frozen: case 17") as caught:
            use()
        assert caught.value.code == "identity-frozen"
    assert a.scopes() == []
    assert not store.access.may("agent:a", "read", "agent:a")
    assert b.state(agent="b")["k"] == 2, "others are not concerned"
    assert [each.action for each in store.audit.query(kind="access", limit=1)] == ["freeze"]
    assert len(store.audit.query(actor="agent:a", kind="denied")) == 13
    store.access.unfreeze("agent:a")
    assert (own["k"], granted["k"], store.access.frozen()) == (1, 2, {})
    assert [change.key for change in watch.poll()] == ["k"]
    with pytest.raises(NotFoundError):
        store.access.unfreeze("agent:a")
    assert store.audit.verify().ok


def test_no_write_is_stored_after_it(tmp_path: Path) -> None:
    """Writers that are at work when their identity is frozen: what is stored then is all that will be."""
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as store:
        refused: list[DeniedError] = []
        started = threading.Barrier(4)

        def write(name: str) -> None:
            state = store.as_identity(agent="a").state(agent="a")
            state[name] = -1
            started.wait()
            for number in range(100_000):
                try:
                    state[name] = number
                except DeniedError as error:
                    refused.append(error)
                    return

        writers = [threading.Thread(target=write, args=(f"k{n}",)) for n in range(3)]
        for each in writers:
            each.start()
        started.wait()
        store.access.freeze("agent:a")
        stored = dict(store.state(agent="a"))
        for each in writers:
            each.join()
        assert dict(store.state(agent="a")) == stored
        assert [error.code for error in refused] == ["identity-frozen"] * 3


def test_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    hf = partial(kit.run, store=url)
    with holdfast.open(url) as store:
        store.state(agent="a")["k"] = 1
    assert hf("grant", "freeze", "agent:a", "--reason", "case 17").code == 0
    assert hf("state", "get", "agent:a", "k", "--as", "agent:a").code != 0
    assert hf("grant", "frozen", "--json").records == [{"who": "agent:a", "reason": "case 17"}]
    assert hf("grant", "unfreeze", "agent:a").code == 0
    assert hf("state", "get", "agent:a", "k", "--as", "agent:a").code == 0
