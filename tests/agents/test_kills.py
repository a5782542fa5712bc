"""One agent is saved, started, paused, resumed, stopped, and goes from state to state; and its process is gone in the
middle of it: at every call of the store, and at every step of its author's code. The next start tells of it, and
resolves it; nothing is lost that was acknowledged, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.declared.machine import OnIncomplete
from holdfast.backends.port import Backend
from holdfast.engine.drivers import run
from holdfast.errors import Conflict
from holdfast.security.audit import verify
from holdfast.store import Store
from tests.agents.kills import (
    POLICIES,
    SCENES,
    Aftermath,
    Base,
    Gone,
    Killer,
    Scene,
    Stage,
    dies,
    killed_at,
    play_on,
    vanish,
)
from tests.agents.workers import path

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
        with pytest.raises(Conflict) as raised:
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
        assert store.verify().findings == []
        report = run(verify(store.engine, ""))
        assert (report.findings, report.steps) == ([], agent.version)


def path_of(store: Store, kind: str) -> list[tuple[str, str]]:
    """What is recorded of the agent, the oldest first: what, and how it ended."""
    return [(trigger, outcome) for trigger, _, _, outcome in path(store, "a", kind=kind)]


# Killed -------------------------------------------------------------------------------------------------------


@each_scene
def test_killed_at_every_place(scene: Scene, killer: Killer, tmp_path: Path) -> None:
    base = killer.whole(scene, tmp_path / "whole")
    for at in counted(scene, base):
        policy = [*POLICIES][at % 4]
        killed_at(scene, base, at, killer, tmp_path / str(at), After, methodcaller("resolve", policy))


# Gone, in this process: so that more can be tried --------------------------------------------------------------


STILL = [scene for scene in SCENES if scene.name != "say"]
"""Those after which nothing goes on by itself: what saves agents in the background is not gone from this process."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scene", STILL, ids=[scene.name.replace(" ", "-") for scene in STILL])
def test_gone_at_every_place(scene: Scene, policy: str) -> None:
    base, _, _ = dies(scene, -1)
    for at in counted(scene, base):
        if policy != "back" and base.batches(at) in (0, scene.batches):
            continue  # there is nothing to resolve, and so no policy for it
        _, backend, effects = dies(scene, at)
        After(scene, base, at, backend, effects.copy).resolve(policy)


HALF = [scene for scene in SCENES if scene.batches == 2 and not scene.elsewhere]
"""Those that leave something half-done."""


@pytest.mark.parametrize("how", ["back", "forward"])
@pytest.mark.parametrize("scene", HALF, ids=[scene.name.replace(" ", "-") for scene in HALF])
def test_gone_again_at_every_place_of_the_next_start(scene: Scene, how: OnIncomplete) -> None:
    base, _, _ = dies(scene, -1)
    last = max(at for at in counted(scene, base) if base.batches(at) == 1)
    places = 0
    for again in range(1000):
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
            continue
        places = len(stage.passed)
        assert {"before a read", "after a read", "before a batch", "after a batch"} <= set(stage.passed)
        break
    assert places == again > 10


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
