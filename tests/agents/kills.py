"""Processes that are gone in the middle of what they do with agents: at every call of the store, before and after it,
and at every step of what the agents' authors wrote.

What is done is done once to see where it can be cut off, and then once for each of these places. As a program, this
takes orders from its standard input, and does each in a child of its own, which kills itself where it is told to::

    python -m tests.agents.kills
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

from holdfast.agents.api.agent import PersistentAgent
from holdfast.agents.definition.options import Autosave
from holdfast.agents.definition.state_machine import Machine, OnIncomplete
from holdfast.agents.transfer.offer import Offer
from holdfast.backends.interface import Backend, Batch, Query, Row, WordMatch, WordMatches
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import DeniedError
from holdfast.store.store import Store
from tests.agents.workers import store_on
from tests.support.kills import count_kill


class Gone(BaseException):
    """The process is gone."""


class Stage:
    """Where it is played: knows the places that were passed, and what is to happen at one of them."""

    def __init__(self, effects: Callable[[str], object], at: int = -1, die: Callable[[], object] | None = None) -> None:
        self.passed: list[str] = []
        self.armed = False
        self._effects = effects
        self._at = at
        self._die = die
        self._over = False

    def place(self, name: str) -> None:
        """A place at which a process may be gone."""
        if self._over:
            raise Gone  # whatever is done by a process that is gone has no effect
        if self.armed:
            self.passed.append(name)
            if len(self.passed) - 1 == self._at and self._die is not None:
                self._over = True
                self._die()

    def effect(self, name: str) -> None:
        """Something that cannot be undone."""
        self.place(f"{name}: before its effect")
        self._effects(name)
        self.place(f"{name}: after its effect")

    def store(self, inner: Backend) -> Store:
        """A store all of whose calls are places."""
        return store_on(_Watched(inner, self))


def vanish() -> None:
    """Be gone, for what goes on in the same process."""
    raise Gone


class _Watched(Wrapper):
    def __init__(self, inner: Backend, stage: Stage) -> None:
        super().__init__(inner)
        self._stage = stage

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self._stage.place("before a read")
        found = await self.inner.read(queries)
        self._stage.place("after a read")
        return found

    async def match_words(self, match: WordMatch) -> WordMatches:
        self._stage.place("before a read")
        found = await self.inner.match_words(match)
        self._stage.place("after a read")
        return found

    async def apply(self, batch: Batch) -> int | None:
        self._stage.place("before a batch")
        refused = await self.inner.apply(batch)
        self._stage.place("after a batch" if refused is None else "after a batch that was refused")
        return refused


class _Here:
    """The stage that agents of this process play on."""

    stage = Stage(lambda _: None)


def play_on(stage: Stage) -> Stage:
    """Have agents play there."""
    _Here.stage = stage
    return stage


class Victim(PersistentAgent, name="victim-of-kills"):
    """Does something at every step; whatever it does is seen in its fields, in its conversation, and outside."""

    log: list[str] = []
    refuses: bool = False
    machine = Machine("idle", "ready", "busy", enter={"busy": "entering"})
    machine.add("work", "idle", "busy", action="act")
    machine.add("note", "idle", "ready")
    machine.add("rest", ["busy", "ready"], "idle")

    def persist(self) -> Mapping[str, Any]:
        _Here.stage.place("persist")
        return super().persist()

    def step(self, name: str) -> None:
        """Do something."""
        self.log.append(name)
        _Here.stage.effect(name)
        self.conversation.append(f"<{name}>")

    def act(self, _: Any) -> None:
        self.step("act")

    def entering(self, _: Any) -> None:
        self.step("enter")

    def on_start(self) -> None:
        self.step("start")

    def on_pause(self) -> None:
        self.step("pause")

    def on_resume(self) -> None:
        self.step("resume")

    def on_stop(self) -> None:
        self.step("stop")

    def on_fail(self, _: Any) -> None:
        _Here.stage.effect("fail")

    def offers(self, _: Offer) -> bool:
        _Here.stage.place("offers")
        return True

    def accepts(self, _: Offer) -> bool:
        _Here.stage.effect("accepts")
        return not self.refuses

    def on_receive(self, offer: Offer) -> None:
        self.log.append(f"received {offer.messages}")
        _Here.stage.effect("receive")

    def handle_recovery(self, _: Any) -> None:
        _Here.stage.place("handle_recovery")


class Plain(PersistentAgent, name="plain-victim-of-kills"):
    """Has nothing to do on the way: each of its changes is one step."""

    log: list[str] = []
    machine = Machine("idle", "ready")
    machine.add("note", "idle", "ready")
    machine.add("rest", "ready", "idle")


@dataclass(frozen=True)
class Scene:
    """Something that is done with agents, and is cut off."""

    name: str
    kind: str
    """Of what is found half-done: `lifecycle`, `transition`, `transfer`; or `save`."""
    before: tuple[str, ...]
    """What was done with the agent before, safely."""
    batches: int
    """How many batches it takes: after each of them it is something else that is found."""
    effects: tuple[str, ...] = ()
    """What is done on the way that cannot be undone."""
    plain: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether it is done by another process than what was done before."""
        return self.name.endswith("elsewhere")

    @property
    def trigger(self) -> str:
        """What is asked of the agent."""
        return self.name.partition(" ")[0]


SCENES = (
    Scene("save", "save", ("start",), 1),
    Scene("say", "save", ("start",), 1),
    Scene("fail", "lifecycle", ("start",), 1, ("fail",)),
    Scene("start", "lifecycle", (), 2, ("start",)),
    Scene("start again", "lifecycle", ("start", "stop"), 2, ("start",)),
    Scene("start elsewhere", "lifecycle", ("start", "stop"), 2, ("start",)),
    Scene("pause", "lifecycle", ("start",), 2, ("pause",)),
    Scene("resume", "lifecycle", ("start", "pause"), 2, ("resume",)),
    Scene("resume elsewhere", "lifecycle", ("start", "pause"), 2, ("resume",)),
    Scene("stop", "lifecycle", ("start",), 2, ("stop",)),
    Scene("stop paused", "lifecycle", ("start", "pause"), 2, ("stop",)),
    Scene("work", "transition", ("start",), 2, ("act", "enter")),
    Scene("note", "transition", ("start",), 1),
    Scene("start plain", "lifecycle", (), 1, plain=True),
    Scene("pause plain", "lifecycle", ("start",), 1, plain=True),
    Scene("stop plain", "lifecycle", ("start",), 1, plain=True),
)
"""What is done with one agent."""

TRANSFERS = (
    Scene("transfer", "transfer", (), 3, ("accepts", "receive")),
    Scene("transfer started", "transfer", ("start",), 3, ("accepts", "receive")),
    Scene("transfer refused", "transfer", ("start",), 2, ("accepts",)),
    Scene("transfer by id", "transfer", ("start",), 3, ("accepts", "receive")),
)
"""What is done with two: `a` hands to `b`."""

Hand: TypeAlias = Literal["back", "forward"]

POLICIES: Mapping[str, tuple[OnIncomplete, Hand | None]] = {
    "back": ("back", None),
    "forward": ("forward", None),
    "manual-back": ("manual", "back"),
    "manual-forward": ("manual", "forward"),
}
"""What is said at the next start; and then by hand, where nothing is done by itself."""

ALL = {scene.name: scene for scene in (*SCENES, *TRANSFERS)}


@dataclass
class Base:
    """What was safe before it was cut off."""

    places: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    messages: dict[str, list[str]] = field(default_factory=dict)
    status: str = ""

    def batches(self, at: int) -> int:
        """How many batches were made by the time that a place was reached."""
        return self.places[: at + 1].count("after a batch")

    def effects(self, at: int) -> list[str]:
        """What was done by then."""
        end = ": after its effect"
        return [place.removesuffix(end) for place in self.places[: at + 1] if place.endswith(end)]


def play(scene: Scene, backend: Backend, stage: Stage) -> Base:
    """Do what a scene says; returns what was so before, and the places that were passed."""
    store = stage.store(backend)
    agents = [made(scene, store, id) for id in ("a", "b")[: 1 + (scene.kind == "transfer")]]
    agent, base = agents[0], Base()
    for each in agents:
        each.save()
        for name in scene.before:
            getattr(each, name)()
        id = each.persister.line.id
        base.versions[id], base.logs[id], base.messages[id] = each.version, [*each.log], list(each.conversation)
    base.status = agent.status
    if scene.elsewhere:
        stage.armed = True
        agent = stage.store(backend).agents.restore("a")
    elif scene.name == "say":
        stage.armed = True
        agent.conversation.append("new")  # every change is saved
    else:
        agent.conversation.append("new")
        stage.armed = True
    if scene.kind == "transition":
        agent.transition(scene.trigger, {"n": 1})
    elif scene.kind == "transfer":
        try:
            agent.transfer("b" if "id" in scene.name else agents[1], context={"topic": "billing"}, reason="handed")
        except DeniedError:
            assert "refused" in scene.name
    elif scene.trigger == "fail":
        agent.fail("it is broken")
    elif scene.name != "say":
        getattr(agent, scene.trigger)()
    stage.armed = False
    base.places = stage.passed
    return base


def made(scene: Scene, store: Store, id: str) -> Any:
    """An agent as it is before anything is done."""
    autosave = Autosave(write_through=True) if scene.name == "say" else None
    agent: Any = (Plain if scene.plain else Victim)().attach(store, id, autosave=autosave)
    agent.conversation.extend([f"{id} one", f"{id} two"])
    agent.context[id] = "own"
    if id == "b" and "refused" in scene.name:
        agent.refuses = True
    return agent


def dies(scene: Scene, at: int) -> tuple[Base, MemoryBackend, list[str]]:
    """A scene that is cut off at one of its places, or at none."""
    backend, effects = MemoryBackend(), list[str]()
    stage = play_on(Stage(effects.append, at, vanish))
    base = Base()
    try:
        base = play(scene, backend, stage)
    except Gone:
        assert at >= 0
    play_on(Stage(effects.append))
    return base, backend, effects


# As a program -------------------------------------------------------------------------------------------------


class Killer:
    """Has scenes played by processes of their own, which are killed."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.agents.kills"], stdin=pipe, stdout=pipe, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()

    def whole(self, scene: Scene, folder: Path) -> Base:
        """Have a scene played to its end; returns what was so before, and its places."""
        self.play(scene, folder)
        return Base(**json.loads((folder / "base.json").read_text()))

    def play(self, scene: Scene, folder: Path, at: int = -1) -> None:
        """Have a scene played in a folder, by a process that is killed at one of its places; or at none."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        folder.mkdir()
        print(json.dumps([scene.name, str(folder), at]), file=self._server.stdin, flush=True)
        ended = int(self._server.stdout.readline())
        assert ended == (0 if at < 0 else -signal.SIGKILL), f"{scene.name}, at {at}: it ended with {ended}"
        count_kill(at >= 0)


class Aftermath:
    """What the process finds that comes after one that is gone."""

    def __init__(self, scene: Scene, base: Base, at: int, backend: Backend, effects: Callable[[], list[str]]) -> None:
        self.scene = scene
        self.base = base
        self.at = at
        self.backend = backend
        self.effects = effects
        self.done = base.batches(at)

    def store(self) -> Store:
        """A store of a process that knows of nothing."""
        return store_on(self.backend)


A = TypeVar("A", bound=Aftermath)


@dataclass
class Struck:
    """The phases that a sweep has struck: each is a sort of place, or how much was done, or how it was resolved."""

    phases: set[str] = field(default_factory=set)
    cuts: int = 0

    def sample(self, scene: Scene, base: Base) -> Iterator[tuple[int, str]]:
        """Yield places of a scene, with a policy for each: one at least, and every one that strikes a new phase."""
        first = True
        for at in range(len(base.places)):
            policy = [*POLICIES][self.cuts % len(POLICIES)]
            phases = phases_of(scene, base, at, policy)
            if first or not phases <= self.phases:
                yield at, policy
                self.phases |= phases
                self.cuts += 1
                first = False


def phases_of(scene: Scene, base: Base, at: int, policy: str) -> set[str]:
    """The phases that are struck at one place of a scene."""
    done = base.batches(at)
    sort = re.sub(r"^\w+: (\w+) its effect$", r"\1 an effect", base.places[at])
    return {sort, f"{done} of {scene.batches} done", *([f"resolved {policy}"] if 0 < done < scene.batches else [])}


def all_phases(scenes: Sequence[Scene], *, sorts: Sequence[str] = ()) -> set[str]:
    """All phases that a sweep over scenes must strike."""
    places = {f"{when} {what}" for when in ("before", "after") for what in ("a batch", "a read", "an effect")}
    done = {f"{done} of {scene.batches} done" for scene in scenes for done in range(scene.batches + 1)}
    return {"persist", *places, *sorts, *done, *(f"resolved {policy}" for policy in POLICIES)}


def killed_at(
    scene: Scene, base: Base, at: int, killer: Killer, folder: Path, after: type[A], check: Callable[[A], None]
) -> None:
    """Have a scene played by a process that is killed at one of its places, and look at what is there then."""
    killer.play(scene, folder, at)
    play_on(Stage(writer_in(folder)))
    backend = backend_in(folder)
    try:
        check(after(scene, base, at, backend, partial(effects_in, folder)))
        assert run(backend.check()) == []
    finally:
        run(backend.close())


def backend_in(folder: Path) -> Backend:
    """The store in a folder. It is not flushed: that is for machines that are gone, and not for processes."""
    return run(SQLiteBackend.open(f"sqlite:///{folder}/store.db", synchronous="normal"))


def effects_in(folder: Path) -> list[str]:
    """What was done by those who play in a folder."""
    file = folder / "effects"
    return file.read_text().split("\n")[:-1] if file.exists() else []


def writer_in(folder: Path) -> Callable[[str], object]:
    """Does what cannot be undone: a line in a file."""

    def write(name: str) -> None:
        with (folder / "effects").open("a") as file:
            file.write(f"{name}\n")

    return write


def _child(name: str, folder: Path, at: int) -> None:
    stage = play_on(Stage(writer_in(folder), at, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    base = play(ALL[name], backend_in(folder), stage)
    (folder / "base.json").write_text(json.dumps(vars(base)))


def _warm_up() -> None:
    """Import what is imported at its first use: else every child would do it again."""
    for name in ("transfer", "start elsewhere", "start plain"):
        dies(ALL[name], -1)


def _serve() -> None:
    _warm_up()
    for order in sys.stdin:
        name, folder, at = json.loads(order)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _child(name, Path(folder), at)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
                raise
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
