"""`holdfast jobs`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS, STEPS
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.maintenance.jobs.api import Jobs
from tests.damaged import flipped
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def make_due(url: str, *names: str) -> None:
    """Have jobs be due now."""
    with holdfast.open(url) as store:
        for name in names:
            job = Jobs(store).get(name)
            run(store._engine.context.backend.apply([job.changed(due_ns=1).put()]))


def damage(url: str, thread: str) -> None:
    with holdfast.open(url) as store:
        backend = store._engine.context.stored
        (rows,) = run(backend.read([Scan(STEPS, ("", thread))]))
        run(backend.apply([Put(STEPS, Row(rows[0].key, rows[0].columns, flipped(rows[0].body, -17)))]))


def test_a_job_is_added_listed_run_and_looked_at(hf: Hf) -> None:
    assert "There are no jobs" in hf("jobs").err
    added = hf("jobs", "add", "nightly", "prune", "--schedule", "daily at 03:00", "--set", "keep_last=2")
    assert (added.code, added.out) == (0, "")
    assert "Added the job nightly, due in " in added.err
    hf("jobs", "add", "room", "tidy")
    listed = hf("jobs")
    assert [line.split()[0] for line in listed.lines] == ["NAME", "nightly", "room"]
    assert "daily at 03:00" in listed.lines[1]
    assert "by hand" in listed.lines[2]
    ran = hf("jobs", "run", "nightly")
    assert ran.code == 0
    assert ran.out.startswith("nightly: ok 4 checkpoints removed")
    assert hf("jobs", "list").lines[1].endswith("freed")
    assert "4 checkpoints removed" in hf("jobs", "log", "nightly").lines[1]
    assert "not run yet" in hf("jobs", "log", "room").err


def test_the_same_as_json(hf: Hf) -> None:
    (added,) = hf("jobs", "add", "a", "verify", "--every", "6h", "--set", "level=structure", "--json").records
    assert (added["kind"], added["schedule"], added["settings"]) == ("verify", "every 6h", {"level": "structure"})
    assert added["due"].endswith("Z")
    (ran,) = hf("jobs", "run", "a", "--json").records
    assert (ran["name"], ran["outcome"]) == ("a", "ok")
    (listed,) = hf("jobs", "--json").records
    assert listed["runs"][0]["summary"] == ran["summary"]
    assert hf("jobs", "log", "a", "--json").records == listed["runs"]
    (paused,) = hf("jobs", "pause", "a", "--json").records
    assert (paused["paused"], paused["due"]) == (True, None)
    (removed,) = hf("jobs", "remove", "a", "--yes", "--json").records
    assert removed == {"name": "a", "removed": True}
    kinds = {each["kind"]: each for each in hf("jobs", "kinds", "--json").records}
    assert {"prune", "verify", "index", "project", "compact", "tidy"} <= kinds.keys()
    assert "keep_last" in kinds["prune"]["settings"]


def test_pause_resume_remove(hf: Hf) -> None:
    hf("jobs", "add", "a", "tidy", "--every", "1d")
    assert "Paused the job a" in hf("jobs", "pause", "a").err
    assert "paused" in hf("jobs").lines[1]
    assert "Resumed the job a, due in 23h" in hf("jobs", "resume", "a").err
    refused = hf("jobs", "remove", "a")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert hf("jobs", "remove", "a", "--yes").code == 0
    for words in (["run"], ["pause"], ["resume"], ["log"], ["remove", "--yes"]):
        missing = hf("jobs", words[0], "a", *words[1:])
        assert missing.code == 3
        assert "error[not-found]: there is no job 'a'" in missing.err


WRONG: list[tuple[list[str], str]] = [
    (["a", "prun"], "Did you mean prune?"),
    (["a", "tidy", "--every", "often"], "comes a duration"),
    (["a", "tidy", "--schedule", "on sundays"], "does not begin with 'on'"),
    (["a", "tidy", "--every", "1h", "--schedule", "hourly"], "not both"),
    (["a", "tidy", "--set", "x"], "KEY=VALUE"),
    (["a", "tidy", "--set", "x=1"], "no setting 'x'"),
]


def test_wrong_use_is_told(hf: Hf, subtests: pytest.Subtests) -> None:
    for words, said in WRONG:
        with subtests.test(said=said):
            done = hf("jobs", "add", *words)
            assert done.code == 2
            assert said in done.err


def test_a_taken_name_is_a_conflict_unless_it_is_replaced(hf: Hf) -> None:
    hf("jobs", "add", "a", "tidy")
    assert hf("jobs", "add", "a", "compact").code == 4
    assert hf("jobs", "add", "a", "compact", "--replace", "--paused").code == 0
    assert hf("jobs", "--json").records[0]["kind"] == "compact"


def test_exit_codes_of_a_run(hf: Hf, url: str) -> None:
    hf("jobs", "add", "check", "verify")
    hf("jobs", "add", "room", "tidy")
    with holdfast.open(url) as store:
        lease = Lease(store._engine.context, Line("", ""), "job room")
        run(lease.acquire())
        busy = hf("jobs", "run", "room")
        assert (busy.code, "error[under-way]" in busy.err) == (4, True)
        run(lease.release())
    damage(url, "t2")
    found = hf("jobs", "run", "check")
    assert found.code == 6
    assert "damaged: t2" in found.out
    assert "findings" in hf("jobs").out


def test_a_job_that_fails_ends_with_its_error(hf: Hf, tmp_path: Path) -> None:
    files = f"file://{tmp_path}/files"
    with holdfast.open(files) as store:
        store.thread("t").put({"a": 1})
        Jobs(store).add("words", "index")
    failed = kit.run("jobs", "run", "words", store=files)
    assert (failed.code, "error[unsupported]" in failed.err) == (1, True)
    assert "failed" in kit.run("jobs", store=files).out


def test_work_once_runs_what_is_due_and_tells(hf: Hf, url: str) -> None:
    for name, kind in (("a", "tidy"), ("b", "compact"), ("check", "verify")):
        hf("jobs", "add", name, kind, "--every", "6h")
    assert hf("jobs", "work", "--once").lines[1:] == []  # but for the one that every store has
    make_due(url, "a", "b")
    done = hf("jobs", "work", "--once", "--json")
    assert done.code == 0
    assert [(each["name"], each["outcome"]) for each in done.records] == [("a", "ok"), ("b", "ok")]
    damage(url, "t2")
    make_due(url, "check")
    found = hf("jobs", "work", "--once")
    assert (found.code, "check: findings" in found.out) == (6, True)


def test_work_once_tells_of_failures(tmp_path: Path) -> None:
    files = f"file://{tmp_path}/files"
    with holdfast.open(files) as store:
        store.thread("t").put({"a": 1})
        Jobs(store).add("words", "index", schedule="every 1h")
    make_due(files, "words")
    done = kit.run("jobs", "work", "--once", store=files)
    assert (done.code, "words: failed" in done.out) == (1, True)


def test_a_damaged_job_can_be_removed(hf: Hf, url: str) -> None:
    hf("jobs", "add", "a", "tidy")
    with holdfast.open(url) as store:
        job = Jobs(store).get("a")
        run(store._engine.context.backend.apply([Put(JOBS, Row(job.key, job.columns, b"nonsense"))]))
    assert hf("jobs").code == 5
    assert hf("jobs", "remove", "a", "--yes").code == 0
    assert hf("jobs").code == 0


def test_work_waits_for_jobs_and_ends_with_ctrl_c(url: str, hf: Hf) -> None:
    hf("jobs", "add", "a", "tidy", "--every", "1s")
    with kit.in_terminal("--store", url, "jobs", "work") as terminal:
        terminal.expect("Waiting for jobs")
        terminal.expect("a: ok")
        terminal.send("\x03")
        assert terminal.wait() == 130
    assert hf("jobs", "log", "a", "--json").records[-1]["outcome"] == "ok"  # a later one may have been cut short


def test_ctrl_c_ends_a_run_between_two_steps(url: str, hf: Hf, tmp_path: Path) -> None:
    with holdfast.open(url) as store:
        for number in range(30):
            store.thread(f"many/{number:04}").put({"n": number})
    hf("jobs", "add", "a", "compact", "--set", "prefix=many/")
    go_on = tmp_path / "go on"
    with kit.halted("--store", url, "jobs", "run", "a", after=3, until=go_on) as terminal:
        terminal.expect("halted")  # it is under way
        terminal.send("\x03")
        terminal.expect("Stopping after this step")
        go_on.touch()
        assert terminal.wait() == 130
    (last,) = hf("jobs", "log", "a", "--json").records
    assert last["outcome"] == "stopped"
    with holdfast.open(url) as store:
        assert len(store.threads(prefix="many/", limit=5000)) == 30
        assert store.thread("many/0029").get().state == {"n": 29}
        again = Jobs(store).run("a", stop=lambda: False)  # no lease was left
        assert again.ok


def test_work_as_a_service_ends_with_term(url: str, hf: Hf) -> None:
    hf("jobs", "add", "a", "tidy", "--every", "1s")
    words = kit.command("--store", url, "jobs", "work", "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=kit.environment(), text=True) as process:
        try:
            assert process.stdout is not None
            assert '"outcome":"ok"' in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(kit.SECONDS) == 0
        finally:
            process.kill()


def test_names_are_completed(url: str, hf: Hf) -> None:
    hf("jobs", "add", "nightly", "tidy")
    hf("jobs", "add", "weekly", "tidy")

    def completed(line: str) -> str:
        env = {"HOLDFAST_STORE": url, "_HOLDFAST_COMPLETE": "bash_complete", "HOLDFAST_LINE": f"holdfast {line}"}
        return kit.completed(**env).out

    assert "nightly" in completed("jobs run n")
    assert "weekly" not in completed("jobs run n")
    offered = completed("jobs add x pr")
    assert all(kind in offered for kind in ("project", "prune"))
