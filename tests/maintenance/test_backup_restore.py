"""Restoring: all at once, without what was erased, beside what has another history, and despite damage elsewhere."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.codec import compression, envelope
from holdfast.codec.compression import Compression
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, HoldfastError, NotFoundError, UnavailableError
from holdfast.maintenance.backup.restore_report import RestoreReport
from tests.maintenance.kit import Clock, timed
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import mostly_nightly

SECOND = 10**9


def actions(report: RestoreReport) -> dict[str, str]:
    return {each.name: each.action for each in report.lines}


def names(store: Store) -> list[str]:
    return [each.thread for each in store.threads().all()]


# What was erased ------------------------------------------------------------------------------------------------------


def erased(repository: Path) -> Store:
    """A store with two backups: between them, a person was erased."""
    store = holdfast.open("memory://")
    store.thread("theirs").put({"text": "SECRET"})
    store.erasure.set_subject("u-1", "theirs")
    store.thread("shared").put({"text": "SECRET too"}, metadata={"subject": "u-1"})
    store.thread("shared").put({"text": "of somebody else"}, metadata={"subject": "u-2"})
    store.thread("other").put({"n": 1})
    store.backups(repository).create()
    store.erasure.erase("u-1")
    store.backups(repository).create()
    return store


@pytest.mark.parametrize("into", ["a new store", "the same store"])
@pytest.mark.parametrize(
    "how", [{"threads": ["theirs"]}, {"kinds": "thread"}, {"threads": ["theirs"], "as_thread": "x"}]
)
def test_an_erased_person_does_not_come_back(into: str, how: dict[str, Any], repository: Path) -> None:
    store = erased(repository)
    target = store if into == "the same store" else holdfast.open("memory://")
    report = target.backups(repository).restore("1", in_place=target is store, **how)
    assert actions(report)["theirs"] == "erased"
    assert set(names(target)) <= {"other", "shared"}
    if "kinds" in how and target is not store:
        assert target.thread("other").get().state == {"n": 1}, "the control: others come back"
        assert target.thread("shared").get().state == {"text": "of somebody else"}
        with pytest.raises(HoldfastError):
            target.thread("shared").get(at="HEAD~1")
    assert target.maintenance.verify(level="decode").ok


def test_an_erased_person_is_not_in_a_backup_that_is_opened(repository: Path) -> None:
    store = erased(repository)
    with store.backups(repository).open("1") as past:
        assert names(past) == ["other", "shared"]
        with pytest.raises(NotFoundError):
            past.thread("theirs").get()
        assert past.thread("other").get().state == {"n": 1}


def test_an_erased_person_is_never_there_during_a_restore(repository: Path) -> None:
    """Whenever a restore is killed, the person is not in the store."""
    erased(repository)

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        target = Store(Engine(EngineContext(backend)), "")

        def look() -> None:
            assert "theirs" not in names(Store(Engine(EngineContext(backend)), ""))

        with moment.interfere(backend, look):
            target.backups(repository).restore("1")
        look()

    at_every_moment(scenario, ["apply"])


# All or nothing -------------------------------------------------------------------------------------------------------


def gone_on(repository: Path, backend: MemoryBackend) -> Store:
    """A store that has gone on since its backup: with threads, scopes, an agent's state, a deleted thread and job."""
    store = Store(Engine(EngineContext(backend)), "")
    for name in ("x", "y", "deleted"):
        store.thread(name).put({"n": 1})
    for agent in ("r", "q"):
        store.state(agent=agent)["goal"] = 1
    store.jobs.add("tidy", "tidy", schedule="every 1h")
    store.backups(repository).create()
    for name in ("x", "y"):
        store.thread(name).put({"n": 2})
    for agent in ("r", "q"):
        store.state(agent=agent)["goal"] = 2
    store.thread("deleted").delete()
    store.jobs.remove("tidy")
    return store


def described(backend: Any) -> tuple[Any, ...]:
    store = Store(Engine(EngineContext(backend)), "")
    threads = {name: store.thread(name).get().state["n"] for name in names(store)}
    goals = [store.state(agent=agent)["goal"] for agent in ("r", "q")]
    return threads, goals, [each.name for each in store.jobs.list()]


BEFORE: tuple[Any, ...] = ({"x": 2, "y": 2}, [2, 2], [])
AFTER: tuple[Any, ...] = ({"x": 1, "y": 1, "deleted": 1}, [1, 1], ["tidy"])


def test_in_place_everything_changes_at_once(repository: Path) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store = gone_on(repository / f"{moment.kind}{moment.at}", backend)  # type: ignore[arg-type]
        assert described(backend) == BEFORE

        with moment.interfere(backend, lambda: seen.append(described(backend))):
            store.backups(repository / f"{moment.kind}{moment.at}").restore("1", in_place=True)
        assert described(backend) == AFTER

    seen: list[tuple[Any, ...]] = []
    at_every_moment(scenario, ["apply"], at_least=2)
    assert all(each in (BEFORE, AFTER) for each in seen)
    assert BEFORE in seen


def test_a_restore_that_fails_leaves_everything(repository: Path) -> None:
    """The server is gone before every single change, one after the other."""

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        place = repository / f"{moment.at}"
        store = gone_on(place, backend)  # type: ignore[arg-type]

        def fail() -> None:
            raise UnavailableError("the server is gone")

        with backend.interfere(fail, at=moment.at, allowed=(UnavailableError,)) as struck:
            moment.used = True
            try:
                store.backups(place).restore("1", in_place=True)
            except UnavailableError:
                moment.came = True
                assert described(backend) in (BEFORE, AFTER)
            except AssertionError:
                moment.came = False
            struck.struck = 1
        store.backups(place).restore("1", in_place=True)
        assert described(backend) == AFTER
        assert store.maintenance.verify(level="decode").ok

    at_every_moment(scenario, ["apply"], at_least=2)


def test_the_rest_of_threads_appears_at_once(repository: Path) -> None:
    store = holdfast.open("memory://")
    for name in ("x", "y"):
        for number in range(3):
            store.thread(name).put({"n": number})
    store.backups(repository).create()
    for name in ("x", "y"):
        store.thread(name).put({"n": 3, "large": "large " * 9000}, tag="last")
    store.thread("new").put({"n": 3})
    store.backups(repository).create()
    old, new = {"x": 2, "y": 2}, {"x": 3, "y": 3, "new": 3}
    seen = []

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        target = Store(Engine(EngineContext(backend)), "")
        target.backups(repository).restore("1")

        def look() -> None:
            other = Store(Engine(EngineContext(backend)), "")
            seen.append({name: other.thread(name).get().state["n"] for name in names(other)})

        with moment.interfere(backend, look):
            report = target.backups(repository).restore("2")
        assert actions(report) == {"x": "extend", "y": "extend", "new": "create"}
        assert target.thread("x").get(at="last").state == store.thread("x").get().state
        assert target.maintenance.verify(level="decode").ok

    at_every_moment(scenario, ["apply"], at_least=2)
    assert all(each in (old, new) for each in seen)
    assert old in seen


def test_jobs_come_with_everything_else(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.maintenance.backup import restorer

    with holdfast.open("memory://") as store:
        store.thread("chat").put({"n": 1})
        store.jobs.add("tidy", "tidy", schedule="every 1h")
        store.backups(repository).create()

    async def damaged(*_: object) -> None:
        raise CorruptError("damaged")

    with holdfast.open("memory://") as new:
        with monkeypatch.context() as patch:
            patch.setattr(restorer, "_check", damaged)
            with pytest.raises(CorruptError):
                new.backups(repository).restore()
        assert not new.jobs.list()
        assert not names(new)
        assert new.backups(repository).restore().jobs == 1
        assert new.jobs.get("tidy").paused


def test_repeating_changes_nothing(repository: Path) -> None:
    store = gone_on(repository, MemoryBackend())
    store.backups(repository).restore("1", in_place=True)
    steps = len(store.thread("x").log(limit=100)), len(store.state(agent="r").history())
    generation = store.backups(repository).restore("1", in_place=True)
    assert set(actions(generation).values()) <= {"same", "left out"}
    assert (len(store.thread("x").log(limit=100)), len(store.state(agent="r").history())) == steps


def test_in_place_to_one_checkpoint_and_then_to_another(repository: Path) -> None:
    store = holdfast.open("memory://")
    for number in range(5):
        store.thread("chat").put({"n": number})
    store.thread("chat").tag("good", at="HEAD~2")
    backups = store.backups(repository)
    backups.create()
    store.thread("chat").put({"n": 9})
    for at, wanted, action in (
        ("good", 2, "switch"),
        ("good", 2, "same"),
        ("HEAD~1", 3, "switch"),
        ("good", 2, "switch"),
    ):
        report = backups.restore(threads=["chat"], at=at, in_place=True)
        assert actions(report) == {"chat": action}
        assert store.thread("chat").get().state == {"n": wanted}
    assert store.thread("chat").get(at="main").state == {"n": 9}


# What the store has ---------------------------------------------------------------------------------------------------


def test_a_thread_that_was_created_again_stays_and_the_old_one_comes_beside(repository: Path) -> None:
    store = holdfast.open("memory://")
    store.thread("again").put({"n": "old"})
    store.thread("chat").put({"n": 1})
    store.state(agent="r")["goal"] = "old"
    backups = store.backups(repository)
    made = backups.create()
    store.thread("again").delete()
    store.thread("again").put({"n": "new"})
    store.thread("chat").put({"n": 2})
    with pytest.raises(ConflictError):
        backups.restore("1")
    planned = backups.restore("1", in_place=True, dry_run=True)
    report = backups.restore("1", in_place=True)
    assert actions(planned) == actions(report) == {"again": "beside", "chat": "switch", "agent:r": "same"}
    (beside,) = (each for each in report.lines if each.action == "beside")
    assert beside.as_name == f"again restored-{made.id}"
    assert store.thread("again").get().state == {"n": "new"}
    assert store.thread(beside.as_name).get().state == {"n": "old"}
    assert store.thread("chat").get().state == {"n": 1}
    assert actions(backups.restore("1", in_place=True))["again"] == "same"
    assert store.maintenance.verify(level="decode").ok


class Notes(holdfast.agents.PersistentAgent, name="notes that are restored"):
    count: int = 0


def test_an_agent_is_set_back_and_its_writers_are_refused(repository: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    with holdfast.open(url) as store, holdfast.open(url) as writer:
        agent = Notes().attach(store, "desk")
        agent.start()
        agent.count = 1
        agent.save()
        backups = store.backups(repository)
        backups.create()
        other = writer.agents.restore("desk", Notes)
        agent.count = 2
        agent.save()
        assert backups.restore("1", in_place=True, dry_run=True).lines[0].changes == ("fields.count", "- 2", "+ 1")
        assert actions(backups.restore("1", in_place=True)) == {"desk": "revert"}
        other.count = 9
        with pytest.raises(ConflictError) as error:
            other.save()
        assert error.value.code == "store-restored"
        with holdfast.open(url) as new:
            assert new.agents.restore("desk", Notes).count == 1
        assert actions(backups.restore("1", in_place=True)) == {"desk": "same"}
        assert store.maintenance.verify(level="decode").ok


def test_a_scope_that_was_created_again_is_set_back(repository: Path) -> None:
    store = holdfast.open("memory://")
    store.state(agent="r")["goal"] = "find"
    store.backups(repository).create()
    run(store._engine.lines.delete(Line("", "␞agent:r")))
    store.state(agent="r")["other"] = "new"
    assert actions(store.backups(repository).restore("1", in_place=True)) == {"agent:r": "revert"}
    assert dict(store.state(agent="r").items()) == {"goal": "find"}
    assert store.maintenance.verify(level="decode").ok


def test_a_dry_run_shows_what_changes_and_what_stays(repository: Path) -> None:
    store = holdfast.open("memory://")
    store.thread("chat").put({"n": 1, "text": "hello"})
    store.state(agent="r")["goal"] = "find"
    backups = store.backups(repository)
    backups.create()
    store.thread("chat").put({"n": 2, "text": "hello"})
    store.state(agent="r")["goal"] = "get lost"
    store.thread("new").put({"n": 1})
    report = backups.restore("1", in_place=True, dry_run=True)
    found = {each.name: each for each in report.lines}
    assert (found["chat"].action, found["chat"].newer) == ("switch", 1)
    assert found["chat"].changes == ("n", "- 2", "+ 1")
    assert any("find" in line for line in found["agent:r"].changes)
    assert (found["new"].action, found["new"].newer) == ("kept", 1)
    assert store.thread("chat").get().state["n"] == 2
    backups.restore("1", in_place=True)
    assert names(store) == ["chat", "new"]


# Sessions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"kinds": "session"}, {"kinds": "session", "threads": ["session:visit"]}, {}])
def test_a_session_comes_with_its_record(how: dict[str, Any], repository: Path) -> None:
    store = holdfast.open("memory://")
    store.sessions.start(id="visit").state["n"] = 1
    store.sessions.start(id="other").state["n"] = 2
    store.backups(repository).create()
    new = holdfast.open("memory://")
    assert actions(new.backups(repository).restore(**how))["session:visit"] == "create"
    assert new.sessions.get("visit").status == "active"
    assert new.sessions.get("visit").state["n"] == 1
    assert new.maintenance.verify(level="decode").ok
    store.sessions.end("visit")
    store.backups(repository).create()
    late = holdfast.open("memory://")
    late.backups(repository).restore("1", **how)
    assert late.sessions.get("visit").status != "active"


def test_a_session_that_was_deleted_does_not_come_back(repository: Path) -> None:
    store = holdfast.open("memory://")
    store.sessions.start(id="visit").state["n"] = 1
    store.backups(repository).create()
    store.sessions.end("visit")
    store.sessions.delete("visit")
    report = store.backups(repository).restore("1", kinds="session")
    assert actions(report) == {"session:visit": "left out"}
    with pytest.raises(NotFoundError):
        store.sessions.get("visit")


# Damage ---------------------------------------------------------------------------------------------------------------


def damaged(repository: Path) -> tuple[Store, Clock]:
    """A store with three backups. The last one has one thread, whose content is damaged."""
    clock = Clock()
    store = timed(clock)
    for name in ("bad", "good"):
        store.thread(name).put({"n": 1})
    backups = store.backups(repository)
    backups.create()
    clock.now += SECOND
    store.thread("good").put({"n": 2})
    backups.create()
    before = set((repository / "packs").rglob("*"))
    clock.now += SECOND
    store.thread("bad").put({"n": os.urandom(3000).hex()})
    backups.create()
    packs = [each for each in set((repository / "packs").rglob("*")) - before if each.is_file()]
    (pack,) = packs
    body = bytearray(pack.read_bytes())
    body[len(body) // 2] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(body)
    clock.now += SECOND
    return store, clock


def test_damage_elsewhere_does_not_matter(repository: Path) -> None:
    _, clock = damaged(repository)
    with holdfast.open("memory://") as new:
        new.backups(repository).restore(to_datetime(clock.now - 3 * SECOND // 2), threads=["good"])
        assert new.thread("good").get().state == {"n": 2}


@pytest.mark.parametrize("when", mostly_nightly(["latest", "a time"], daily=["a time"]))
def test_what_is_damaged_can_be_skipped(when: str, repository: Path) -> None:
    _, clock = damaged(repository)
    backup: Any = when if when == "latest" else to_datetime(clock.now - 3 * SECOND // 2)
    with holdfast.open("memory://") as new:
        with pytest.raises(CorruptError):
            new.backups(repository).restore(backup)
        assert not names(new)
        report = new.backups(repository).restore(backup, skip_damaged=True)
        found = {each.name: each for each in report.lines}
        assert found["bad"].action == "damaged"
        assert "pack" in found["bad"].changes[0]
        assert names(new) == ["good"]


# The rest -------------------------------------------------------------------------------------------------------------


def test_a_tag_that_was_moved_later_is_where_it_was(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    store.thread("chat").put({"n": 1}, tag="live")
    clock.now += SECOND
    store.backups(repository).create()
    for number in (2, 3):
        clock.now += SECOND
        store.thread("chat").put({"n": number})
    store.thread("chat").untag("live")
    store.thread("chat").tag("live")
    clock.now += SECOND
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        new.backups(repository).restore(to_datetime(clock.now - 3 * SECOND // 2))
        assert new.thread("chat").get().state == {"n": 2}
        assert new.thread("chat").get(at="live").state == {"n": 1}


def test_a_backup_that_nobody_closes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = holdfast.open("memory://")
    store.thread("chat").put({"n": 1})
    store.backups(repository).create()
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    store.backups(repository).open().thread("chat").get()
    gc.collect()
    assert not reported


def test_a_drill_removes_what_a_killed_one_left(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = tmp_path / "temporary", f"sqlite:///{tmp_path / 'agents.db'}"
    folder.mkdir()
    with holdfast.open(url) as store:
        store.thread("chat").put({"n": 1})
        store.backups(repository).create()
    program = """
import os, sys
import holdfast
from holdfast.maintenance.backup import drill
drill.verify = lambda *_: os._exit(9)
holdfast.open(sys.argv[1]).backups(sys.argv[2]).drill()
"""
    command = [sys.executable, "-c", program, url, str(repository)]
    result = subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, check=False)
    assert result.returncode == 9
    assert list(folder.iterdir()), "the control: it was killed in the middle"
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with holdfast.open(url) as store:
        assert store.backups(repository).drill().ok
    assert not list(folder.iterdir())


def test_a_restore_compresses_a_row_once_and_uncompresses_none(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is verified comes from a block that is uncompressed already, and what is written was compressed for it."""
    count, packed, unpacked = 40, list[bytes](), list[bytes]()
    with holdfast.open("memory://") as store:
        for number in range(count):
            store.thread("chat").append("messages", {"text": f"message {number} " * 50})
        store.backups(repository).create()
        expected = store.thread("chat").get().state

    def compress(data: bytes, method: Compression | None = None) -> tuple[Compression, bytes]:
        packed.append(data)
        return compression.compress(data, method)

    def decompress(method: int, body: bytes, size: int, max_bytes: int, where: str = "") -> bytes:
        if method != Compression.NONE:
            unpacked.append(body)
        return compression.decompress(method, body, size, max_bytes, where)

    with holdfast.open(tmp_path / "restored.db") as store:
        with monkeypatch.context() as patch:
            patch.setattr(envelope, "compress", compress)
            patch.setattr(envelope, "decompress", decompress)
            store.backups(repository).restore()
            restored = len(unpacked)
            assert store.thread("chat").get().state == expected
            assert len(unpacked) > restored == 0, "only what is read from the store afterwards is uncompressed"
        texts = [data for data in packed if b"message " in data]
        assert len(texts) == len({*texts}) > count, "each step, and a folded state"
        assert store.maintenance.verify().ok
