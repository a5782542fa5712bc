"""One agent hands its conversation to another, and the process is gone in the middle of it: at every call of the store,
and at every step of what the authors of both wrote. Whichever is started first: one of them holds the conversation,
whole and once, and both go on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.definition.state_machine import OnIncomplete
from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import run
from holdfast.errors import ConflictError
from holdfast.security.audit.verify import verify
from holdfast.store.store import Store
from tests.agents.kills import (
    POLICIES,
    TRANSFERS,
    Aftermath,
    Base,
    Gone,
    Killer,
    Scene,
    Stage,
    Struck,
    all_phases,
    dies,
    killed_at,
    play_on,
    vanish,
)
from tests.agents.workers import path

each_scene = pytest.mark.parametrize("scene", TRANSFERS, ids=[scene.name.replace(" ", "-") for scene in TRANSFERS])
ORDERS = ("ab", "ba")
"""Which of the two is started first."""


def counted(scene: Scene, base: Base) -> range:
    """All places of a scene; those that are expected are among them, or else it is looked for where nothing happens."""
    effects = {f"{name}: {when} its effect" for name in scene.effects for when in ("before", "after")}
    reads = {"before a read", "after a read"} if "id" in scene.name else set()
    assert set(base.places) == {"before a batch", "after a batch", "persist", "offers", *effects, *reads}
    assert base.places.count("before a batch") == base.places.count("after a batch") == scene.batches
    return range(len(base.places))


class After(Aftermath):
    """What is found by the process that comes after one that is gone, and what must be found."""

    def __init__(self, scene: Scene, base: Base, at: int, backend: Backend, effects: Callable[[], list[str]]) -> None:
        super().__init__(scene, base, at, backend, effects)
        self.refused = "refused" in scene.name
        self.given = self.done >= 2 and not self.refused
        self.new = ["new"] if self.done else []

    def held(self, given: bool) -> None:
        """One of them holds what there was to hand over, all of it; and nobody holds it besides."""
        store = self.store()
        found = [said(store.agents.messages(id)) for id in "ab"]
        conversation, own = [*said(self.base.messages["a"]), *self.new], said(self.base.messages["b"])
        assert found == ([[], [*own, *conversation]] if given else [conversation, own])
        contexts = [dict(store.agents.load(id).context) for id in "ab"]
        whole = {"b": "own", "a": "own", "topic": "billing"}
        assert contexts == ([{}, whole] if given else [{"a": "own"}, {"b": "own"}])

    def pending(self) -> list[str]:
        """What is half-done, of both."""
        records = [self.store().agents.load(id) for id in "ab"]
        return ["" if each.pending is None else each.pending.phase for each in records]

    def resolve(self, policy: str, order: str) -> None:
        """Start both again, and see that they are what they must be."""
        how, hand = POLICIES[policy]
        half = self.done == 1
        self.held(self.given)
        received = self.done == 2 and self.given
        assert self.pending() == ["begun" if half else "", "received" if received else ""]
        forward = half and "forward" in (how, hand)
        handed = self.given or (forward and (not self.refused or hand == "forward"))
        agents = {id: self.started(id, how, hand) for id in order}
        assert self.pending() == ["", ""]
        self.held(handed)

        # What each was told at its start: what it found half-done, or that nobody ran it.
        crashed = [("crashed", "none")] if self.base.status == "running" else []
        told = {id: [(each.kind, each.resolved) for each in agent.recoveries] for id, agent in agents.items()}
        ended = "forward" if handed else "back"
        assert told["a"] == ([("transfer", ended)] if half and not hand else crashed)
        store = self.store()
        if forward and order == "ba":  # it ran when the conversation came
            agents["b"].reload()
        assert told["b"] == ([("transfer", "forward")] if received else crashed)
        rows = {id: [(each[0], each[3]) for each in path(store, id, kind="recovery")] for id in "ab"}
        assert rows["a"] == ([("transfer", ended)] if half and hand else []) + told["a"]
        assert rows["b"] == told["b"]

        # Each was started once; and told once, as far as it knows, of what it was handed.
        assert agents["a"].log == [*self.base.logs["a"], "start"]
        count = len(self.base.messages["a"]) + 1
        came = [f"received {count}"] if handed else []
        more = ["start", *came] if forward and order == "ba" else [*came, "start"]
        assert agents["b"].log == [*self.base.logs["b"], *more]
        again = Counter({"start": 2})
        again["accepts"] += forward and not hand
        again["receive"] += received or (handed and not self.given)
        before = Counter(self.base.effects(self.at)) + Counter([*self.scene.before] * 2)
        assert Counter(self.effects()) == before + again
        self.recorded(store, handed)
        self.goes_on(agents["a"], agents["b"], "ba" if handed else "ab")

    def recorded(self, store: Store, handed: bool) -> None:
        """What is told of the transfer: there was one, if it was begun, and it went one way."""
        ids = {each.id for id in "ab" for each in store.agents.transfers(id)}
        assert len(ids) == (1 if self.done else 0)
        phases = [[each.phase for each in store.agents.transfers(id)] for id in "ab"]
        if handed:
            assert phases == [["given"], ["acknowledged"]]
        elif self.done:
            assert phases in ([["undone"], []], [["refused"], []])

    def started(self, id: str, how: OnIncomplete, hand: Any) -> Any:
        """One of the two, in a process of its own."""
        store = self.store()
        agent = store.agents.restore(id, on_incomplete=how)
        pending = agent.persister.data.pending
        if hand and pending is not None and pending.phase == "begun":
            before = store.agents.load(id)
            with pytest.raises(ConflictError) as raised:
                agent.start()
            assert raised.value.code == "transition-incomplete"
            assert store.agents.load(id) == before
            recovery = store.agents.resolve(id, hand)
            assert (recovery.kind, recovery.resolved, recovery.ran) == ("transfer", hand, False)
            agent = self.store().agents.restore(id, on_incomplete=how)
        agent.start()
        assert agent.status == "running"
        return agent

    def goes_on(self, a: Any, b: Any, handed_back: str = "") -> None:
        """Both can do what agents do, and hand over what they have; and all that is stored is sound."""
        for agent in (a, b):
            agent.transition("note")
            agent.conversation.append("more")
            agent.stop()
        store = self.store()
        found = Counter(each for id in "ab" for each in said(store.agents.messages(id)))
        assert found == Counter(["a one", "a two", "b one", "b two", *self.new, "more", "more"])
        if handed_back:
            giver, receiver = [store.agents.restore(id) for id in handed_back]
            giver.transfer(receiver, accept=True)
            assert store.agents.messages(giver.persister.line.id) == []
        assert store.maintenance.verify().findings == []
        assert run(verify(store._engine, "")).findings == []


def said(messages: list[str]) -> list[str]:
    """Messages without those that the agents' own hooks put in."""
    return [each for each in messages if not each.startswith("<")]


@pytest.mark.nightly
def test_killed_in_every_scene_and_phase(killer: Killer, tmp_path: Path) -> None:
    struck = Struck()
    for scene in TRANSFERS:
        base = killer.whole(scene, tmp_path / f"{scene.name} whole")
        counted(scene, base)
        for at, policy in struck.sample(scene, base):
            folder, order = tmp_path / f"{scene.name} {at}", "ab" if struck.cuts % 3 else "ba"
            killed_at(scene, base, at, killer, folder, After, methodcaller("resolve", policy, order))
    assert struck.phases == all_phases(TRANSFERS, sorts=["offers"])


@pytest.mark.nightly
@each_scene
def test_killed_at_every_place(scene: Scene, killer: Killer, tmp_path: Path) -> None:
    base = killer.whole(scene, tmp_path / "whole")
    for at in counted(scene, base):
        policy, order = [*POLICIES][at % 4], "ab" if at % 3 else "ba"
        killed_at(scene, base, at, killer, tmp_path / str(at), After, methodcaller("resolve", policy, order))


def gone_at(scene: Scene, base: Base, at: int, policy: str, order: str) -> None:
    """Have a scene cut off at one of its places, and resolve it."""
    _, backend, effects = dies(scene, at)
    After(scene, base, at, backend, effects.copy).resolve(policy, order)


@pytest.mark.nightly
def test_gone_at_every_place_between_its_commits(subtests: pytest.Subtests) -> None:
    ways = itertools.cycle(itertools.product(POLICIES, ORDERS))
    resolved = set()
    for scene in TRANSFERS:
        base, _, _ = dies(scene, -1)
        for at in counted(scene, base):
            half = 0 < base.batches(at) < scene.batches
            if not half and at % 3:
                continue  # nothing is to be resolved there; by night all are
            policy, order = next(ways) if half else ("back", ORDERS[at % 2])
            resolved |= {(base.batches(at), policy, order)} if half else set()
            with subtests.test(scene=scene.name, at=at, place=base.places[at], policy=policy, order=order):
                gone_at(scene, base, at, policy, order)
    assert resolved == set(itertools.product((1, 2), POLICIES, ORDERS))


@pytest.mark.nightly
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
@each_scene
def test_gone_at_every_place_and_resolved_in_every_way(scene: Scene, policy: str, order: str) -> None:
    base, _, _ = dies(scene, -1)
    for at in counted(scene, base):
        if policy != "back" and base.batches(at) in (0, scene.batches):
            continue  # there is nothing to resolve, and so no policy for it
        gone_at(scene, base, at, policy, order)


AGAIN: tuple[tuple[int, OnIncomplete, str], ...] = (
    (1, "back", "ab"),
    (1, "forward", "ab"),
    (1, "forward", "ba"),
    (2, "forward", "ba"),
)
"""How much was done when it was cut off; how that is resolved; and which of the two is started first."""


def gone_again(batches: int, how: OnIncomplete, order: str, first: int, step: int) -> None:
    """Have a transfer cut off, and then the starts that come next: at every so manieth of their places."""
    scene = TRANSFERS[1]
    base, _, _ = dies(scene, -1)
    last = max(at for at in counted(scene, base) if base.batches(at) == batches)
    cut = 0
    for again in range(first, 1000, step):
        _, backend, effects = dies(scene, last)
        after = After(scene, base, last, backend, effects.copy)
        stage = play_on(Stage(effects.append, again, vanish))
        stage.armed = True
        try:
            store = stage.store(backend)
            for id in order:
                store.agents.restore(id, on_incomplete=how).start()
        except Gone:
            play_on(Stage(effects.append))
            check_third(after, batches, how, order)
            cut += 1
            continue
        assert {"before a read", "after a read", "before a batch", "after a batch"} < set(stage.passed)
        assert len(stage.passed) > 20
        assert cut == len(range(first, len(stage.passed), step))
        return
    raise AssertionError("it never came to an end")


def check_third(after: After, batches: int, how: OnIncomplete, order: str) -> None:
    """See that both are what they must be when they are started for the third time."""
    agents = {id: after.started(id, how, None) for id in order}
    assert after.pending() == ["", ""]
    handed = batches == 2 or how == "forward"
    after.held(handed)
    after.recorded(after.store(), handed)
    told = [[each[0] for each in path(after.store(), id, kind="recovery")].count("transfer") for id in "ab"]
    # The receiver finds something, too, if it came to that again and was cut off before it was told of.
    assert told in ([[1, 0], [1, 1]] if batches == 1 else [[0, 1]])
    if order == "ba":
        agents["b"].reload()
    after.goes_on(agents["a"], agents["b"])


@pytest.mark.nightly
def test_gone_again_at_some_places_of_the_next_start(subtests: pytest.Subtests) -> None:
    for number, (batches, how, order) in enumerate(AGAIN):
        with subtests.test(batches=batches, how=how, order=order):
            gone_again(batches, how, order, number, 47)


@pytest.mark.nightly
@pytest.mark.parametrize(("batches", "how", "order"), AGAIN)
def test_gone_again_at_every_place_of_the_next_start(batches: int, how: OnIncomplete, order: str) -> None:
    gone_again(batches, how, order, 0, 1)
