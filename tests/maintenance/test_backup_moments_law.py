"""The law of recovery to a moment: whatever happened to a store, and whenever it was backed up, a restore to a moment
has what was there. Where the backups together do not know that, it says so, and only there."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Store
from holdfast.agents import PersistentAgent
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.types import to_datetime
from holdfast.errors import NotFoundError
from holdfast.maintenance.backup.restore_report import RestoreReport
from tests.maintenance.kit import SECOND, Clock
from tests.maintenance.moments import Expected, Life, Model, World
from tests.servers.places import KINDS, place
from tests.support.nightly import by_day, mostly_nightly

THREADS, SCOPES, AGENTS = ("chat", "notes"), ("researcher", "writer"), ("desk", "gate")
FILES = "files"
"""Stands for the records of artifacts."""


class Clerk(PersistentAgent, name="moments-clerk"):
    n: int = 0


class History:
    """A random history of a store and its backups, together with the model of it."""

    def __init__(self, store: Store, clock: Clock, folder: Path, seed: int | str) -> None:
        self.store = store
        self.clock = clock
        self.random = Random(seed)
        self.model = Model()
        self.repository = folder / "repository"
        self.done: Counter[str] = Counter()
        self.trace: list[str] = []
        self._folder = folder
        self._numbers = count(1)
        self._exports: list[tuple[str, Path, Life]] = []
        self._restored: set[int] = set()
        operations = {
            "put": 8, "branch_put": 5, "fork": 4, "tag": 3, "move_tag": 3, "untag": 2, "pin": 1, "unpin": 1, "merge": 3,
            "rename_branch": 2, "delete_branch": 3, "prune": 4, "delete": 2, "export": 2, "import_": 4, "erase": 1,
            "scope": 5, "agent": 4, "delete_agent": 1, "prune_others": 2, "register": 3, "unregister": 2, "backup": 5,
            "follow": 1, "retain": 1, "restore": 2,
        }  # fmt: skip
        self._operations = [name for name, weight in operations.items() for _ in range(weight)]

    def run(self, steps: int) -> None:
        self.backup()
        for _ in range(steps):
            self.clock.now += SECOND
            name = self.random.choice(self._operations)
            while getattr(self, name)() is False:  # it is not possible just now
                name = self.random.choice(self._operations)
            self.done[name] += 1
            self.trace.append(f"{len(self.trace)}: {name}")
            self.model.note(self.clock.now)
        self.clock.now += SECOND
        self.backup()
        self.model.note(self.clock.now)

    # Threads --------------------------------------------------------------------------------------------------------

    def _thread(self) -> str | None:
        names = [name for name in THREADS if name in self.model.world.lines]
        return self.random.choice(names) if names else None

    def _branch(self, name: str) -> str | None:
        life = self.model.world.lines[name]
        branches = [each for each in life.heads if each not in ("main", life.current) and each[0] == "b"]
        return self.random.choice(sorted(branches)) if branches else None

    def put(self) -> None:
        name = self.random.choice(THREADS)
        value = {"n": next(self._numbers)}
        is_new = name not in self.model.world.lines
        checkpoint = self.store.thread(name).put(value)
        self.model.add(name, self.model.life(name).current, value, checkpoint.id, self.clock.now)
        if is_new:
            self.store.erasure.set_subject(f"person-{self.model.life(name).number}", name)

    def branch_put(self) -> bool | None:
        if (name := self._thread()) is None or (branch := self._branch(name)) is None:
            return False
        value = {"n": next(self._numbers)}
        checkpoint = self.store.thread(name).put(value, branch=branch)
        self.model.add(name, branch, value, checkpoint.id, self.clock.now)
        return None

    def _some_checkpoint(self, name: str) -> int | None:
        life = self.model.world.lines[name]
        named = sorted(each for each in life.content if self.model.ids[each])
        return self.random.choice(named) if named else None

    def fork(self) -> bool | None:
        if (name := self._thread()) is None or (at := self._some_checkpoint(name)) is None:
            return False
        life, branch = self.model.world.lines[name], f"b{self.random.randrange(3)}"
        if branch in life.heads:
            return False
        self.store.thread(name).fork(branch, at=str(self.model.ids[at]))
        life.heads[branch] = at
        return None

    def tag(self) -> bool | None:
        return self._tag(move=False)

    def move_tag(self) -> bool | None:
        return self._tag(move=True)

    def _tag(self, *, move: bool) -> bool | None:
        if (name := self._thread()) is None or (at := self._some_checkpoint(name)) is None:
            return False
        life, tag = self.model.world.lines[name], f"t{self.random.randrange(2)}"
        if (tag in life.tags) is not move:
            return False
        self.store.thread(name).tag(tag, at=str(self.model.ids[at]), move=move)
        life.tags[tag] = at
        return None

    def untag(self) -> bool | None:
        if (name := self._thread()) is None or not (tags := self.model.world.lines[name].tags):
            return False
        tag = self.random.choice(sorted(tags))
        self.store.thread(name).untag(tag)
        del tags[tag]
        return None

    def pin(self) -> bool | None:
        if (name := self._thread()) is None or (at := self._some_checkpoint(name)) is None:
            return False
        self.store.thread(name).pin(str(self.model.ids[at]), reason=f"r{at}")
        self.model.world.lines[name].pins[f"r{at}"] = at
        return None

    def unpin(self) -> bool | None:
        if (name := self._thread()) is None or not (pins := self.model.world.lines[name].pins):
            return False
        reason = self.random.choice(sorted(pins))
        self.store.thread(name).unpin(str(self.model.ids[pins.pop(reason)]), reason=reason)
        return None

    def merge(self) -> bool | None:
        if (name := self._thread()) is None or (branch := self._branch(name)) is None:
            return False
        life = self.model.world.lines[name]
        before = self.store.thread(name).get().id
        merged = self.store.thread(name).merge(branch, strategy="theirs")
        if merged.id == before:
            return False
        self.model.add(name, life.current, self.store.thread(name).get().state, merged.id, self.clock.now)
        return None

    def rename_branch(self) -> bool | None:
        if (name := self._thread()) is None or (branch := self._branch(name)) is None:
            return False
        life, new = self.model.world.lines[name], f"b{self.random.randrange(3)}"
        if new in life.heads:
            return False
        self.store.thread(name).rename_branch(branch, new)
        life.heads[new] = life.heads.pop(branch)
        life.own[new] = life.own.pop(branch, [])
        return None

    def delete_branch(self) -> bool | None:
        if (name := self._thread()) is None or (branch := self._branch(name)) is None:
            return False
        life = self.model.world.lines[name]
        if life.pins:
            return False
        ids = self.store.thread(name).delete_branch(branch, force=True)
        removed = {each for each in life.content if self.model.ids[each] in ids}
        if any(head in removed for other, head in life.heads.items() if other != branch):
            for other, head in list(life.heads.items()):
                if other != branch and head in removed:  # it had no steps of its own, and started there
                    del life.heads[other]
        self.model.remove_branch(name, branch, ids)
        return None

    def prune(self) -> bool | None:
        if (name := self._thread()) is None:
            return False
        self.store.maintenance.prune([name], keep_last=self.random.randint(1, 3))
        self.model.prune(name, [each.id for each in self.store.thread(name).log(limit=1000)])
        return None

    def delete(self) -> bool | None:
        if (name := self._thread()) is None:
            return False
        self.store.thread(name).delete()
        self.model.remove(name)
        return None

    def export(self) -> bool | None:
        if (name := self._thread()) is None:
            return False
        file = self._folder / f"export-{len(self._exports)}.jsonl"
        self.store.maintenance.export(file, threads=[name])
        self._exports.append((name, file, deepcopy(self.model.world.lines[name])))
        return None

    def import_(self) -> bool | None:
        free = [
            each
            for each in self._exports
            if each[0] not in self.model.world.lines and each[2].number not in self.model.erased
        ]
        if not free:
            return False
        name, file, life = self.random.choice(free)
        self.store.maintenance.import_(file)
        self.model.arrive(name, life)
        return None

    def erase(self) -> bool | None:
        if (name := self._thread()) is None:
            return False
        life = self.model.world.lines[name]
        self.store.erasure.erase(f"person-{life.number}")
        self.model.erased.add(life.number)
        self.model.erasures[name] = self.clock.now
        self.model.remove(name)
        return None

    # Scopes, agents, artifacts --------------------------------------------------------------------------------------

    def scope(self) -> None:
        name = self.random.choice(SCOPES)
        state, key = self.store.state(agent=name), f"k{self.random.randrange(3)}"
        known = self._value(name)
        if key in known and self.random.random() < 0.3:
            del state[key]
            del known[key]
        else:
            state[key] = known[key] = next(self._numbers)
        self.model.add(name, "main", known, None, self.clock.now)

    def _value(self, name: str) -> dict[str, Any]:
        life = self.model.world.lines.get(name)
        return {} if life is None else dict(self.model.values[life.heads["main"]])

    def agent(self) -> None:
        name = self.random.choice(AGENTS)
        clerk = (
            self.store.agents.restore(name, Clerk)
            if name in self.model.world.lines
            else Clerk().attach(self.store, name)
        )
        clerk.n = next(self._numbers)
        clerk.save()
        self.model.add(name, "main", {"n": clerk.n}, None, self.clock.now)

    def delete_agent(self) -> bool | None:
        names = [name for name in AGENTS if name in self.model.world.lines]
        if not names:
            return False
        name = self.random.choice(names)
        self.store.agents.delete(name)
        self.model.remove(name)
        return None

    def prune_others(self) -> None:
        self.store.maintenance.prune(kinds=["scope", "agent"], keep_last=1)
        for name in (*SCOPES, *AGENTS):
            if (life := self.model.world.lines.get(name)) is not None:
                life.content = set(life.heads.values())

    def register(self) -> None:
        content = f"content {next(self._numbers)} ".encode() * self.random.choice((1, 1000))
        made = self.store.artifacts.register(content, name="file")
        self.model.add(FILES, "main", {**self._value(FILES), made.id: content}, None, self.clock.now)

    def unregister(self) -> bool | None:
        known = self._value(FILES)
        if not known:
            return False
        id = self.random.choice(sorted(known))
        self.store.artifacts.delete(id)
        del known[id]
        self.model.add(FILES, "main", known, None, self.clock.now)
        return None

    # Backups --------------------------------------------------------------------------------------------------------

    def backup(self) -> None:
        self.model.back_up(self.clock.now, self.store.backups(self.repository).create().id)

    def follow(self) -> bool | None:
        backups = self.store.backups(self.repository)
        known = {each.id for each in backups.list()}
        turns = iter((False, True))
        backups.follow(interval=0.001, stop=lambda: next(turns, True))
        made = [each.id for each in backups.list() if each.id not in known]
        for id in made:
            self.model.back_up(self.clock.now, id)
        return None if made else False

    def retain(self) -> bool | None:
        if len(self.model.backups) < 3:
            return False
        kept = self.random.randint(2, len(self.model.backups) - 1)
        self.store.backups(self.repository).prune(keep_last=kept)
        left = {each.id for each in self.store.backups(self.repository).list()}
        self.model.backups = [each for each in self.model.backups if each[1] in left]
        return None

    def restore(self) -> bool | None:
        """Restore a thread in place: one that was deleted, or one that has gone on."""
        _, id, world = self.random.choice(self.model.backups)
        names = [name for name in THREADS if name in world.lines and world.lines[name].number not in self.model.erased]
        if not names:
            return False
        name = self.random.choice(names)
        then, now = world.lines[name], self.model.world.lines.get(name)
        if now is not None and (now.number, now.rewrites) != (then.number, then.rewrites):
            return False
        if now is not None and not then.content <= now.content:  # it has gone on from an earlier state
            return False
        self.store.backups(self.repository).restore(id, threads=[name], in_place=True)
        if now is None:
            self.model.arrive(name, then)
            return None
        head = then.heads[then.current]
        own = now.heads[now.current]
        if own == head or (own in self._restored and self.model.parents[own] == head):
            return None
        now.current = f"restored {next(self._numbers)}"
        now.heads[now.current] = head
        restored = self.store.thread(name).get().id
        self._restored.add(self.model.add(name, now.current, self.model.values[head], restored, self.clock.now))
        return None


def check(history: History, time: int) -> tuple[int, int]:
    """Restore a moment aside, and compare all of it. Returns how many lines are exact, and how many are not."""
    model = history.model
    with holdfast.open("memory://") as new:
        try:
            report: RestoreReport | None = new.backups(history.repository).restore(to_datetime(time))
        except NotFoundError:  # there was nothing
            report = None
        inexact = set() if report is None else {each.name for each in report.lines if each.known_at is not None}
        names = {FILES: "artifacts"} | {name: f"agent:{name}" for name in SCOPES}
        exact = 0
        for name in (*THREADS, *SCOPES, *AGENTS, FILES):
            if time < model.erasures.get(name, 0):
                compare_erased(model, new, name)
                continue
            expected, is_exact = model.expect(name, time)
            assert (names.get(name, name) not in inexact) is is_exact, f"{name} is exact: {is_exact}"
            exact += is_exact
            if name in THREADS:
                compare_thread(model, new, name, expected)
            else:
                assert read(new, name) == ({} if expected is None else model.values[expected.life.heads["main"]]), name
        assert new.maintenance.verify(level="decode").ok
        return exact, len(inexact)


def read(store: Store, name: str) -> Any:
    if name in SCOPES:
        return dict(store.state(agent=name).items())
    if name == FILES:
        return {each.id: store.artifacts.read(each.id) for each in store.artifacts.list()}
    try:
        return {"n": store.agents.restore(name, Clerk).n}
    except NotFoundError:
        return {}


def compare_thread(model: Model, store: Store, name: str, expected: Expected | None) -> None:
    if expected is None:
        assert name not in {each.thread for each in store.threads().all()}
        return
    thread, life = store.thread(name), expected.life
    found = {each.id for each in thread.log(limit=1000)}
    ids = {number: id for number, id in model.ids.items() if id is not None}
    assert {ids[each] for each in expected.at_least if each in ids} <= found, f"{name}: checkpoints are missing"
    assert found <= {ids[each] for each in expected.at_most if each in ids}, f"{name}: there are others"
    assert store.thread(name).get().state == model.values[life.heads[life.current]], f"{name}: another HEAD"
    heads = {each.name: each.head for each in thread.branches() if not each.name.startswith("restored")}
    wanted = {branch: ids.get(at) for branch, at in life.heads.items() if not branch.startswith("restored")}
    assert {branch: head for branch, head in heads.items() if wanted.get(branch, "") is not None} == {
        branch: head for branch, head in wanted.items() if head is not None
    }
    by_number = {id: number for number, id in ids.items()}
    for id in found:
        assert store.thread(name).get(at=id).state == model.values[by_number[id]]
    assert thread.tags() == {tag: ids[at] for tag, at in life.tags.items() if ids.get(at) in found}
    assert {each.reason: each.id for each in thread.pins()} == {
        reason: ids[at] for reason, at in life.pins.items() if ids.get(at) in found
    }


def compare_erased(model: Model, store: Store, name: str) -> None:
    """Nothing of what was erased is there. Nothing is known of others of its name: the audit of them is erased, too."""
    if name in {each.thread for each in store.threads().all()}:
        erased = {id for _, _, world in model.backups for life in _lives(world, name, model.erased) for id in life}
        assert not erased & {model_id for model_id, id in model.ids.items() if id in _ids(store, name)}


def _lives(world: World, name: str, numbers: set[int]) -> list[set[int]]:
    life = world.lines.get(name)
    return [life.content] if life is not None and life.number in numbers else []


def _ids(store: Store, name: str) -> set[str]:
    return {each.id for each in store.thread(name).log(limit=1000)}


@pytest.mark.time_limit(900)
@pytest.mark.parametrize("kind", mostly_nightly([each for each in KINDS if each != "pgbouncer"], daily=["sqlite"]))
def test_every_moment_is_what_it_was_or_said_not_to_be(kind: str, tmp_path: Path) -> None:
    numbers = count()

    @settings(max_examples=by_day(25, 2), deadline=None)
    @given(seed=st.integers(0, 1 << 32))
    @example(seed=82934)  # with redis: what came back is known from earlier backups
    @example(seed=388)  # with mongodb: the same
    @example(seed=1)  # with s3: a branch came back, and another one had its number
    def law(seed: int) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        clock = Clock()
        with holdfast.open(place(kind, folder)) as opened:
            context = opened._engine.context
            store = Store(Engine(EngineContext(context.stored, clock=clock)), "")
            history = History(store, clock, folder, f"{kind} {seed}")
            history.run(by_day(60, 16))
            for time, _ in history.model.covered():
                try:
                    check(history, time)
                except Exception as error:
                    error.add_note("\n".join((f"seed {seed}, moment {time}", *history.trace)))
                    raise

    law()
