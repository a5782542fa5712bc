"""Jobs and the doctor on every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError
from holdfast.maintenance.doctor.result import CheckLevel
from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.store.doctor import doctor
from tests.maintenance.kit import run_due
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.nightly import mostly_nightly


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly([*KINDS, *COMPOSED], daily=["sqlite", "postgres"]))
def test_jobs_are_kept_and_run_by_one(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url, tenant="acme") as store:
        for number in range(3):
            store.thread("chat").put({"n": number})
        jobs = Jobs(store)
        jobs.add("a", "compact", schedule="every 1h", settings={"prefix": "ch"})
        jobs.add("b", "verify")
        assert jobs.run("a").summary == "1 threads compacted"
        assert jobs.run("b").ok
        lease = Lease(store._engine.context, Line("acme", ""), "job a")
        run(lease.acquire())
        with pytest.raises(ConflictError):
            jobs.run("a")
        run(lease.renew())
        run(lease.release())
        job = jobs.get("a")
        run(store._engine.context.backend.apply([job.changed(due_ns=1).put()]))
        assert [job.name for job in jobs.due()] == ["a"]
        (ended,) = run_due(JobTable(store))
        assert ended.run.ok
        assert jobs.due() == []
        assert [each.outcome for each in jobs.get("a").runs] == ["ok", "ok"]
    if kind == "memory":
        return
    with holdfast.open(url, tenant="acme") as store:
        assert [job.name for job in Jobs(store).list()] == ["a", "b"]
        assert len(Jobs(store).get("a").runs) == 2
    problems = [each for each in doctor(url, tenant="acme") if each.level is CheckLevel.PROBLEM]
    assert problems == []
