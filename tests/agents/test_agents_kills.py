"""One agent is saved, started, paused, resumed, stopped, and goes from state to state; and its process is gone in the
middle of it: at every call of the store, and at every step of its author's code. The next start tells of it, and
resolves it; nothing is lost that was acknowledged, and nothing is there twice."""

from __future__ import annotations

import itertools
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
    SCENES,
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
from tests.support.nightly import mostly_nightly

HALF = [scene for scene in SCENES if scene.batches == 2]
"""Those that may be left half-done."""
RESOLVED = [scene for scene in HALF if not scene.elsewhere]
HOW: tuple[OnIncomplete, ...] = ("back", "forward")

each_scene = pytest.mark.parametrize("scene", SCENES, ids=[scene.name.replace(" ", "-") for scene in SCENES])


def expected_places(scene: Scene) -> set[str]:
    """Places that a scene must have: else it would be looked for where nothing happens."""
    effects = {f"{name}: {when} its effect" for name in scene.effects for when in ("before", "after")}
    own = set() if scene.plain else {"persist"}
    reads = {"before a read", "after a read"} if scene.trigger in ("start", "resume") else set()
    return {"before a batch", "after a batch", *effects, *own, *reads}


def counted(scene: Scene, base: Base) -> range:
    """All places of a scene."""
    assert set(base.places) == expected_places(scene)
    assert base.places.count("before a batch") == base.places.count("after a batch") == scene.batches
    return range(len(base.places))


class After(Aftermath):
    """What is found by the process that comes after one that is gone, and what must be found."""

    def __init__(self, scene: Scene, base: Base, at: int, backend: Backend, effects: Callable[[], list[str]]) -> None:
        super().__init__(scene, base, at, backend, effects)
        self.half = 0 < self.done < scene.batches
        self.whole = self.done == scene.batches

    def found(self) -> None:
        """What is there before anything is resolved."""
        record = self.store().agents.load("a")
        assert record.version == self.base.versions["a"] + self.done
        assert (record.pending is not None) == self.half
        if record.pending is not None:
            assert (record.pending.kind, record.pending.trigger) == (self.scene.kind, self.scene.trigger)
        assert self.effects() == [*self.earlier, *self.base.effects(self.at)]

    @property
    def earlier(self) -> tuple[str, ...]:
        return () if self.scene.plain else self.scene.before

    def resolve(self, policy: str) -> None:
        """Start the agent again, and see that it is what it must be."""
        self.found()
        how, hand = POLICIES[policy]
        scene, base = self.scene, self.base
        store = self.store()
        agent = store.agents.restore("a", on_incomplete=how)
        by_hand: list[tuple[str, str]] = []
        if self.half and hand:
            self.refused(agent)
            recovery = self.store().agents.resolve("a", hand)
            assert (recovery.kind, recovery.resolved, recovery.ran) == (scene.kind, hand, False)
            by_hand = [(scene.kind, hand)]
            store = self.store()
            agent = store.agents.restore("a", on_incomplete=how)
        live = self.half and not hand
        status = agent.status
        go = "resume" if status == "paused" or (live and scene.trigger == "resume") else "start"
        getattr(agent, go)()

        # What was found half-done is told of, or that nobody ran what the record says runs; else nothing is.
        found = [(each.kind, each.resolved) for each in agent.recoveries]
        assert found == ([(scene.kind, how)] if live else [("crashed", "none")] if status == "running" else [])
        assert path_of(store, "recovery") == [*by_hand, *found]

        again = scene.effects if live and how == "forward" else ()
        is_done = self.whole or bool(again)
        went = () if again and scene.trigger in ("start", "resume") else (go,)
        ran = [*(scene.effects if is_done and scene.trigger != "fail" else ()), *(() if scene.plain else went)]
        assert agent.status == "running"
        assert agent.log == [*base.logs["a"], *ran]
        new = ["new"] if self.done and not scene.elsewhere else []
        assert list(agent.conversation) == [*base.messages["a"], *new, *(f"<{name}>" for name in ran)]
        also = () if scene.plain else went
        assert self.effects() == [*self.earlier, *base.effects(self.at), *again, *also]

        ends_well = self.whole or (how if live else hand) == "forward"
        own = [(scene.trigger, "ok" if ends_well else "error")] if self.half or self.whole else []
        is_transition = scene.kind == "transition"
        assert path_of(store, "transition") == (own if is_transition else [])
        told = [(name, "ok") for name in scene.before] + (own if scene.kind == "lifecycle" else [])
        assert path_of(store, "lifecycle") == [*told, *((name, "ok") for name in went)]
        target = {"work": "busy", "note": "ready"}.get(scene.trigger, "idle")
        assert agent.state == (target if own and ends_well else "idle")
        self.goes_on(agent)

    def refused(self, agent: Any) -> None:
        """Where it is to be resolved by hand, nothing is done by itself."""
        before = self.store().agents.load("a")
        with pytest.raises(ConflictError) as raised:
            agent.start()
        assert raised.value.code == "transition-incomplete"
        assert self.store().agents.load("a") == before

    def goes_on(self, agent: Any) -> None:
        """The agent can do what agents do; and all that is stored is sound."""
        agent.transition("note" if agent.state == "idle" else "rest")
        agent.stop()
        store = self.store()
        again = store.agents.restore("a")
        assert (again.status, again.state, again.log) == ("stopped", agent.state, agent.log)
        assert list(again.conversation) == list(agent.conversation)
        assert len(store.agents.history("a")) == again.version == agent.version
        assert store.maintenance.verify().findings == []
        report = run(verify(store._engine, ""))
        assert (report.findings, report.steps) == ([], agent.version)


def path_of(store: Store, kind: str) -> list[tuple[str, str]]:
    """What is recorded of the agent, the oldest first: what, and how it ended."""
    return [(trigger, outcome) for trigger, _, _, outcome in path(store, "a", kind=kind)]


# Killed -------------------------------------------------------------------------------------------------------


def test_killed_in_every_scene_and_phase(killer: Killer, tmp_path: Path) -> None:
    struck = Struck()
    for scene in SCENES:
        base = killer.whole(scene, tmp_path / f"{scene.name} whole")
        counted(scene, base)
        for at, policy in struck.sample(scene, base):
            folder = tmp_path / f"{scene.name} {at}"
            killed_at(scene, base, at, killer, folder, After, methodcaller("resolve", policy))
    assert struck.phases == all_phases(SCENES)


@pytest.mark.nightly
@each_scene
def test_killed_at_every_place(scene: Scene, killer: Killer, tmp_path: Path) -> None:
    base = killer.whole(scene, tmp_path / "whole")
    for at in counted(scene, base):
        policy = [*POLICIES][at % 4]
        killed_at(scene, base, at, killer, tmp_path / str(at), After, methodcaller("resolve", policy))


# Gone, in this process: so that more can be tried --------------------------------------------------------------


STILL = [scene for scene in SCENES if scene.name != "say"]
"""Those after which nothing goes on by itself: what saves agents in the background is not gone from this process."""


def gone_at(scene: Scene, base: Base, at: int, policy: str) -> None:
    """Have a scene cut off at one of its places, and resolve it."""
    _, backend, effects = dies(scene, at)
    After(scene, base, at, backend, effects.copy).resolve(policy)


@pytest.mark.nightly
@pytest.mark.parametrize("part", mostly_nightly([0, 1, 2], daily=[0]))
def test_gone_at_every_place(part: int, subtests: pytest.Subtests) -> None:
    turns = itertools.cycle(POLICIES)
    for scene in STILL[part::3]:
        base, _, _ = dies(scene, -1)
        resolved = set()
        for at in counted(scene, base):
            half = 0 < base.batches(at) < scene.batches
            policy = next(turns) if half else "back"
            resolved |= {policy} if half else set()
            with subtests.test(scene=scene.name, at=at, place=base.places[at], policy=policy):
                gone_at(scene, base, at, policy)
        assert resolved == (set(POLICIES) if scene.batches == 2 else set())


@pytest.mark.nightly
@pytest.mark.parametrize("scene", HALF, ids=[scene.name.replace(" ", "-") for scene in HALF])
def test_gone_half_way_and_resolved_in_every_way(scene: Scene) -> None:
    base, _, _ = dies(scene, -1)
    halves = [at for at in counted(scene, base) if 0 < base.batches(at) < scene.batches]
    assert halves
    for policy in POLICIES:
        for at in halves:
            gone_at(scene, base, at, policy)


def gone_again(scene: Scene, how: OnIncomplete, first: int, step: int) -> None:
    """Have a scene cut off, and then the start that comes next: at every so manieth of its places."""
    base, _, _ = dies(scene, -1)
    last = max(at for at in counted(scene, base) if base.batches(at) == 1)
    cut = 0
    for again in range(first, 1000, step):
        _, backend, effects = dies(scene, last)
        stage = play_on(Stage(effects.append, again, vanish))
        stage.armed = True
        try:
            store = stage.store(backend)
            agent = store.agents.restore("a", on_incomplete=how)
            (agent.resume if agent.status == "paused" else agent.start)()
        except Gone:
            play_on(Stage(effects.append))
            check_third(scene, base, backend, effects, how)
            cut += 1
            continue
        assert {"before a read", "after a read", "before a batch", "after a batch"} <= set(stage.passed)
        assert len(stage.passed) > 10
        assert cut == len(range(first, len(stage.passed), step))
        return
    raise AssertionError("it never came to an end")


@pytest.mark.nightly
def test_gone_again_at_some_places_of_the_next_start(subtests: pytest.Subtests) -> None:
    for number, scene in enumerate(RESOLVED):
        how = HOW[number % len(HOW)]
        with subtests.test(scene=scene.name, how=how):
            gone_again(scene, how, number, 6 * len(RESOLVED))


@pytest.mark.nightly
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scene", RESOLVED, ids=[scene.name.replace(" ", "-") for scene in RESOLVED])
def test_gone_again_at_every_place_of_the_next_start(scene: Scene, how: OnIncomplete) -> None:
    gone_again(scene, how, 0, 1)


def check_third(scene: Scene, base: Base, backend: Backend, effects: list[str], how: OnIncomplete) -> None:
    """The agent that is started for the third time."""
    found = After(scene, base, len(base.places), backend, effects.copy)
    store = found.store()
    agent = store.agents.restore("a", on_incomplete=how)
    (agent.resume if agent.status == "paused" else agent.start)()
    assert agent.status == "running"
    forward = how == "forward"
    if scene.kind == "transition":
        assert path_of(store, "transition") == [(scene.trigger, "ok" if forward else "error")]
        assert agent.state == ("busy" if forward else "idle")
        assert [name for name in agent.log if name in scene.effects] == [*(scene.effects if forward else ())]
        assert effects.count("act") <= (3 if forward else 1)
    said = list(agent.conversation)
    assert said[: len(base.messages["a"])] == base.messages["a"]
    assert said.count("new") == 1
    assert [each for each in said if each.startswith("<")] == [f"<{name}>" for name in agent.log]
    recoveries = [kind for kind, _ in path_of(store, "recovery")]
    assert recoveries.count("transition") == (1 if scene.kind == "transition" else 0)
    assert recoveries[0] == scene.kind
    found.goes_on(agent)
