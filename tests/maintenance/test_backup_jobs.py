"""Jobs that make backups, prove and prune them, and repair a store from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Changes, Delete
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.errors import InvalidError
from holdfast.maintenance.doctor.store_checks import checks
from holdfast.maintenance.jobs.job import JobRun
from tests.maintenance.kit import DAY, Clock, timed
from tests.maintenance.test_backup import contents, fill


def test_backups_and_drills_by_a_schedule(repository: Path) -> None:
    store = timed(Clock())
    store.thread("chat").put({"n": 1})
    jobs = store.backups(repository).schedule("hourly")
    assert [(job.name, str(job.schedule)) for job in jobs] == [("backup", "hourly"), ("backup drill", "every 4w")]
    assert store.jobs.run("backup").ok
    assert store.jobs.run("backup drill").ok
    store.jobs.add("limited", "backup", settings={"repository": str(repository), "max_bytes": 10})
    run_ = store.jobs.run("limited")
    assert not run_.ok
    assert "storage limit" in run_.summary
    (found,) = [each for each in store.alerts.evaluate(pending=0).alerts if each.rule == "storage-budget"]
    assert found.state == "firing", "the limit of the job is that of the alert"
    assert "the repository" in found.message
    (check,) = [each for each in run(checks(store._handle)) if each.code == "backup-size"]
    assert not check.ok
    store.jobs.add("limited", "backup", settings={"repository": str(repository), "max_bytes": 10**9}, replace=True)
    assert store.jobs.run("limited").ok
    (check,) = [each for each in run(checks(store._handle)) if each.code == "backup-size"]
    assert check.ok
    (found,) = [each for each in store.alerts.evaluate(pending=0).alerts if each.rule == "storage-budget"]
    assert found.state == "resolved"
    (found,) = [
        each for each in store.alerts.evaluate(pending=0, repository_budget=10).alerts if each.rule == "storage-budget"
    ]
    assert found.state == "firing"
    store.jobs.add("thin", "prune-backups", settings={"repository": str(repository), "keep_last": 1})
    assert store.jobs.run("thin").summary.startswith("2 backups removed")
    with pytest.raises(InvalidError, match="max_unused"):
        store.jobs.add("bad", "prune-backups", settings={"repository": "x", "keep_last": 1, "max_unused": 50})
    for settings in ({}, {"repository": 3}, {"repository": "x", "keep": 1}):
        for kind in ("backup", "follow", "drill", "prune-backups"):
            with pytest.raises(InvalidError):
                store.jobs.add("bad", kind, settings=settings)


def test_following_as_a_job_catches_up_after_a_gap(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = timed(clock)
    fill(store)
    store.backups(repository).schedule(follow=True, drill=None)
    store.jobs.add("follow", "follow", settings={"repository": str(repository), "interval": "0.01s", "seconds": 0})
    assert store.jobs.run("follow").ok
    full = store.backups(repository).list()[0].added
    clock.now += DAY // 24
    for number in range(20):
        store.thread("chat").put({"n": f"while nobody followed {number}"})
    store.thread("other").delete()
    stored, lost = store._engine.context.stored, list[str]()

    async def forgetful(since: str | None = None, changes: Any = stored.changes) -> Changes:
        found: Changes = await changes(since)
        if since is not None and not lost:
            lost.append(since)
            return found._replace(lines=[], complete=False)
        return found

    monkeypatch.setattr(stored, "changes", forgetful)
    done = store.jobs.run("follow")
    assert "1 gaps caught up" in done.summary
    assert store.backups(repository).list()[-1].added < full / 2, "it is no full backup"
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert contents(new) == contents(store)


def break_step(store: Store, thread: str, number: int) -> None:
    run(store._engine.context.backend.apply([Delete(STEPS, ("", thread, 0, number))]))
    store._engine.context.cache.clear()


def test_a_job_repairs_from_a_backup_by_policy(repository: Path, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        for number in range(10):
            store.thread("chat").put({"n": number})
        store.backups(repository).create()
        for number in range(10):
            store.thread("new").put({"n": number})
        wanted = store.thread("chat").get(at=4).hash
        break_step(store, "chat", 4)
        break_step(store, "new", 4)

        def work(policy: str) -> JobRun:
            settings = {"sources": [f"backup:{repository}"], "policy": policy}
            store.jobs.add(policy, "repair", settings=settings)
            return store.jobs.run(policy)

        reported = work("report")
        assert not reported.ok
        assert reported.summary.startswith("2 damaged, 0 repaired")
        healed = work("heal")
        assert healed.summary == "2 damaged, 1 repaired; not repaired: new"
        assert store.thread("chat").get(at=4).hash == wanted
        assert not store.maintenance.verify().ok
        assert work("quarantine").summary.startswith("1 damaged, 1 repaired, ")
        assert store.maintenance.verify().ok
        assert store.maintenance.quarantine()
        audited = [each for each in store.audit.query().all() if each.action == "repair"]
        assert [(each.detail["policy"], each.detail["repaired"]) for each in audited][:2]
        assert {each.detail["policy"] for each in audited} == {"report", "heal", "quarantine"}
        with pytest.raises(InvalidError):
            store.jobs.add("bad", "repair", settings={"policy": "hope"})
        assert store.maintenance.repair(f"backup:{repository}#1", dry_run=True).ok


def test_a_suspension_and_what_is_removed_are_in_the_audit(repository: Path) -> None:
    store = timed(Clock())
    backups = store.backups(repository)
    for number in range(2):
        store.thread("chat").put({"n": number})
        backups.create()
    backups.suspend_deletion(reason="an incident")
    backups.allow_deletion()
    backups.prune(keep_last=1)
    store.thread("chat").put({"n": 3})
    backups.restore(in_place=True)
    actions = [each.action for each in store.audit.query().all()]
    for action in ("suspend-deletion", "allow-deletion", "prune-backups", "restore-in-place"):
        assert action in actions
    assert store.audit.verify().ok
