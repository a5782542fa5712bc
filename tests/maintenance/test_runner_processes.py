"""Runners in processes of their own: each time is run once; what a killed one left is run by another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.runtime.process_identity import process_identity
from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.job import Job
from holdfast.maintenance.jobs.types import JobType
from tests.agents.autosaved import patiently, timely
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly

SECONDS = 120.0


class Workers:
    """Some runners on one store."""

    def __init__(self, url: str, file: Path, life: float) -> None:
        self.file = file
        file.touch()
        self._words = [sys.executable, "-m", "tests.maintenance.worker", url, str(life), str(file)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        """Start so many, and wait until they work."""
        self.processes += [subprocess.Popen(self._words) for _ in range(count)]
        self.wait(lambda: sum(line.startswith("ready") for line in self.lines) >= len(self.processes))

    @property
    def lines(self) -> list[str]:
        """What they noted."""
        return self.file.read_text().splitlines()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for something that must come."""
        end = time.monotonic() + SECONDS
        while not until():
            assert time.monotonic() < end, self.lines
            time.sleep(0.02)

    def kill(self, signal_: signal.Signals = signal.SIGKILL) -> None:
        """End all of them."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal_)
        for process in self.processes:
            process.wait(SECONDS)


def known() -> JobTypes:
    kinds = JobTypes()
    kinds.add(JobType("slow", "", print, lambda settings: None))
    return kinds


@pytest.fixture(params=mostly_nightly(["sqlite", "file"], daily=["sqlite"]))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else f"file://{tmp_path}/store"


@pytest.mark.nightly
def test_of_several_runners_one_runs_each_time_that_a_job_is_due(url: str, tmp_path: Path) -> None:
    workers = Workers(url, tmp_path / "notes", life=30)
    with holdfast.open(url) as store:
        jobs = Jobs(store, known())

        def slow() -> list[Job]:
            return [job for job in jobs.list() if job.kind == "slow"]

        workers.start(3)
        try:
            for number in range(4):
                jobs.add(f"job-{number}", "slow", schedule="every 1s", settings={"seconds": 0.05})
            workers.wait(lambda: all(len(job.runs) >= 3 for job in slow()))
            for job in slow():
                jobs.pause(job.name)
            workers.wait(lambda: all(run.outcome != "running" for job in slow() for run in job.runs))
        finally:
            workers.kill()
        began = Counter(line.split()[1] for line in workers.lines if line.startswith("began"))
        ended = Counter(line.split()[1] for line in workers.lines if line.startswith("ended"))
        assert began == ended
        for job in slow():
            assert {run.outcome for run in job.runs} == {"ok"}
            assert began[job.name] == len(job.runs)  # each run that began is one that is noted, and none more
            starts = sorted(run.started_ns for run in job.runs)
            # A second after the one before, at least: no time was run twice.
            assert all(later - earlier >= 10**9 for earlier, later in pairwise(starts))


def begun(workers: Workers) -> int:
    """Who began the job first."""
    workers.wait(lambda: any(line.startswith("began a") for line in workers.lines))
    return int(next(line for line in workers.lines if line.startswith("began a")).split()[2])


def replaced(jobs: Jobs, workers: Workers) -> None:
    """Have the job take no time from now on."""
    jobs.add("a", "slow", schedule="every 1s", settings={"seconds": 0}, replace=True)
    timely(sum(line.startswith("began a") for line in workers.lines) == 1, "it was taken for dead before it was")


@pytest.mark.skipif(not process_identity(), reason="the system does not say when a process was started")
def test_what_a_killed_runner_had_begun_is_run_again_at_once(url: str, tmp_path: Path) -> None:
    workers = Workers(url, tmp_path / "notes", life=600)
    with holdfast.open(url) as store:
        jobs = Jobs(store, known())
        jobs.add("a", "slow", schedule="every 1s", settings={"seconds": 600})
        workers.start(2)
        try:
            victim = begun(workers)
            os.kill(victim, signal.SIGKILL)
            count_kill()
            workers.wait(lambda: sum(line.startswith("began a") for line in workers.lines) == 2)
        finally:
            workers.kill()
        first, second = reversed(jobs.get("a").runs)
        assert (first.outcome, second.outcome) == ("killed", "running")
        assert first.by.endswith(f" {victim}")
        assert not second.by.endswith(f" {victim}")


@pytest.mark.nightly
def test_a_runner_that_was_stopped_for_long_does_nothing_more_to_what_another_runs(tmp_path: Path) -> None:
    tries = count()
    patiently(lambda: _stopped(f"sqlite:///{tmp_path}/{(number := next(tries))}.db", tmp_path / f"notes{number}"))


def _stopped(url: str, notes: Path) -> None:
    workers = Workers(url, notes, life=3)
    with holdfast.open(url) as store:
        jobs = Jobs(store, known())
        jobs.add("a", "slow", schedule="every 1s", settings={"seconds": 600})
        workers.start(2)
        try:
            stopped = begun(workers)
            os.kill(stopped, signal.SIGSTOP)
            try:
                replaced(jobs, workers)
                workers.wait(lambda: any(line.startswith("ended a") for line in workers.lines))
                other = next(each for each in workers.processes if each.pid != stopped)
                other.kill()
            finally:
                os.kill(stopped, signal.SIGCONT)
            # It lets go of what it was in the middle of, and takes up the next.
            workers.wait(lambda: f"ended a {stopped}" in workers.lines)
            jobs.pause("a")
            workers.wait(lambda: jobs.get("a").runs[0].outcome != "running")
        finally:
            workers.kill()
        lines = [line for line in workers.lines if line.endswith(f" a {stopped}")]
        assert lines[:3] == [f"began a {stopped}", f"began a {stopped}", f"ended a {stopped}"]
        assert jobs.get("a").runs[-1].outcome == "killed"


def test_a_program_ends_though_its_runner_was_not_stopped(tmp_path: Path) -> None:
    code = f"""
import holdfast, threading, time
from holdfast.jobs import Jobs
from holdfast.jobs import JobType, JobTypes
from holdfast.maintenance.jobs.runner import JobRunner

begun = threading.Event()

def slow(job):
    print("began", flush=True)
    begun.set()
    for _ in range(10000):
        time.sleep(0.01)
        job.progress(0, None, "")

kinds = JobTypes()
kinds.add(JobType("slow", "", slow))
store = holdfast.open("sqlite:///{tmp_path}/store.db")
jobs = Jobs(store, kinds)
jobs.add("a", "slow", schedule="every 1s")
JobRunner(store, kinds, look_every=0.1).start()
begun.wait()
print("the end", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["began", "the end"]
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert Jobs(store).get("a").runs[0].outcome == "stopped"  # asked to, and not cut off
