"""Durable steps of processes that are killed, and that race: the function is run at most once, unless a policy says
otherwise."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Batch
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ConflictError, OutcomeUnknownError, TransientError
from holdfast.jobs import JobRunner
from tests.agents.steps.desk import ID, append_line, desk_of, lines_of
from tests.maintenance.kit import RunningClock, timed
from tests.support.kills import MOMENTS, Moment, kill, kill_at_write, run_in_child
from tests.support.nightly import fewer_examples, mostly_nightly

LEASE = 0.2
PHASES = {"before run", "running", "after run, before record", "recorded"}


def charge_in_child(path: Path, trace: Path, number: int, moment: Moment | None) -> tuple[str, bool]:
    """Run the step in a process that is killed at a write, or in the function. Returns the phase that was struck."""

    def work(report: Callable[[str], None]) -> None:
        with holdfast.open(path) as store:
            desk = desk_of(store)

            def charge(order: int) -> str:
                report("running")
                append_line(trace, "charged")
                if moment is None:
                    kill()
                report("ran")
                return f"paid {order}"

            if moment is not None:
                kill_at_write(number, moment)
            desk.once("charge-42", charge, 42, lease=LEASE)
            report("returned")

    reported, killed = run_in_child(work)
    return (reported[-1] if reported else "", killed)


def phase_of(path: Path, trace: Path) -> str:
    """Return the phase in which the process died, by what it left."""
    with holdfast.open(path) as store:
        steps = {each.key: each.state for each in store.agents.steps(ID).list()}
    if not lines_of(trace):
        return "before run"
    return "recorded" if steps.get("charge-42") == "done" else "after run, before record"


_FEW: list[tuple[int, Moment | None]] = [(1, "after"), (0, None), (2, "before"), (2, "after")]
_ALL = [*_FEW, *((number, moment) for number in (1, 2) for moment in MOMENTS)]


@pytest.mark.parametrize("cases", mostly_nightly([_FEW, _ALL], daily=[_FEW]), ids=len)
def test_a_killed_step_is_run_at_most_once_and_its_outcome_is_known_or_reported(
    cases: list[tuple[int, Moment | None]], tmp_path: Path
) -> None:
    struck: Counter[str] = Counter()
    for index, (number, moment) in enumerate(cases):
        path, trace = tmp_path / f"{index}.db", tmp_path / f"{index}.txt"
        with holdfast.open(path) as store:
            desk_of(store)
        last, killed = charge_in_child(path, trace, number, moment)
        assert killed, "the process was to be killed"
        phase = "running" if last == "running" else phase_of(path, trace)
        struck[phase] += 1
        runs = len(lines_of(trace))
        with holdfast.open(path) as store:
            desk = desk_of(store)

            def charge(order: int, trace: Path = trace) -> str:
                append_line(trace, "charged")
                return f"paid {order}"

            if phase == "recorded":
                assert desk.once("charge-42", charge, 42, lease=LEASE) == "paid 42"
            else:
                try:
                    assert desk.once("charge-42", charge, 42, lease=LEASE) == "paid 42"
                    assert runs == 0, "it was run a second time"
                except OutcomeUnknownError:
                    assert desk.steps.get("charge-42").state == "running"
                    assert len(lines_of(trace)) == runs
                    assert desk.once("charge-42", charge, 42, on_unknown="retry", lease=LEASE) == "paid 42"
                    assert len(lines_of(trace)) == runs + 1
            assert desk.once("charge-42", charge, 42) == "paid 42"
            assert store.maintenance.verify(level="decode").findings == []
    assert struck.keys() == PHASES, struck


def _race(path: Path, trace: Path, barrier: Any, results: Any) -> None:
    with holdfast.open(path) as store:
        desk = desk_of(store)

        def charge() -> str:
            append_line(trace, "charged")
            time.sleep(0.05)  # the others ask meanwhile
            return "paid"

        barrier.wait(30)
        results.put([desk.once(f"charge-{number}", charge, lease=5) for number in range(3)])


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.nightly)])
def test_of_racing_processes_one_runs_and_all_get_its_result(count: int, tmp_path: Path) -> None:
    path, trace = tmp_path / "a.db", tmp_path / "trace.txt"
    with holdfast.open(path) as store:
        desk_of(store)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(count), context.Queue()
    processes = [context.Process(target=_race, args=(path, trace, barrier, results)) for _ in range(count)]
    for each in processes:
        each.start()
    got = [results.get(timeout=60) for _ in processes]
    for each in processes:
        each.join()
    assert got == [["paid"] * 3] * count
    assert len(lines_of(trace)) == 3


def _stop_in_step(path: Path, trace: Path, results: Any) -> None:
    with holdfast.open(path) as store:
        desk = desk_of(store)

        def charge() -> str:
            append_line(trace, "charged")
            os.kill(os.getpid(), signal.SIGSTOP)  # as a machine that sleeps
            return "first"

        try:
            results.put(desk.once("charge", charge, lease=LEASE))
        except ConflictError as error:
            results.put(error.code)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["raise", "retry"])
def test_a_process_that_was_stopped_for_longer_than_its_lease_and_others_agree(policy: Any, tmp_path: Path) -> None:
    path, trace = tmp_path / "a.db", tmp_path / "trace.txt"
    with holdfast.open(path) as store:
        desk_of(store)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_stop_in_step, args=(path, trace, results))
    process.start()
    assert process.pid is not None
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    try:
        with holdfast.open(path) as store:
            desk = desk_of(store)
            try:
                got = desk.once("charge", lambda: "second", lease=LEASE, on_unknown=policy)
            except OutcomeUnknownError:
                got = "unknown"
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert (got, results.get(timeout=30)) == (("unknown", "first") if policy == "raise" else ("second", "lease-lost"))
    process.join()
    with holdfast.open(path) as store:
        assert desk_of(store).once("charge", lambda: "third") == ("first" if policy == "raise" else "second")
    assert len(lines_of(trace)) == 1


class Crash(BaseException):
    """The end of a process, as far as the store can see."""


class Crashing(MemoryBackend):
    """A store whose client dies at a write, before or after it: from then on nothing of it arrives. The writes that
    renew its lease, from a thread of their own, are not counted."""

    dies_in = -1
    dies_after = False
    dead = False

    async def apply(self, batch: Batch) -> int | None:
        if threading.current_thread() is not threading.main_thread():
            if self.dead:
                raise TransientError("the process is dead")
            return await super().apply(batch)
        if self.dead:
            raise Crash
        self.dies_in -= 1
        if self.dies_in != -1:
            return await super().apply(batch)
        if self.dies_after:
            await super().apply(batch)
        self.dead = True
        raise Crash


events = st.lists(
    st.tuples(st.integers(-1, 6), st.booleans(), st.sampled_from(["return", "fail", "crash"]), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(fewer_examples(2))
@given(events, st.sampled_from(["raise", "retry"]))
# The clock comes back to the very time of the lease of a process that died.
@example([(1, True, "fail", False), (0, True, "fail", True), (3, False, "fail", False)], "raise")
def test_however_often_it_crashes_a_step_runs_at_most_once_unless_the_policy_is_to_retry(
    lives: list[tuple[int, bool, str, bool]], policy: Any
) -> None:
    backend, clock = Crashing(), RunningClock()
    runs, results, errors = 0, set[str](), set[str]()
    desk_of(timed(clock, backend))
    for dies_in, dies_after, ending, passes in lives:
        desk = desk_of(timed(clock, backend))  # a new process
        backend.dies_in, backend.dies_after = dies_in, dies_after

        def charge(ending: str = ending) -> str:
            nonlocal runs
            runs += 1
            if ending == "crash":
                backend.dead = True
                raise Crash
            if ending == "fail":
                raise ValueError(f"run {runs}")
            return f"run {runs}"

        try:
            results.add(desk.once("charge", charge, on_unknown=policy, lease=0.02))
        except ValueError as error:
            errors.add(str(error))
        except OutcomeUnknownError:
            assert policy == "raise"
            assert runs <= 1
        except Crash:
            pass
        backend.dies_in, backend.dead = -1, False
        clock.now += 3600 * 10**9 * (1 if passes else -1)  # the clock may also be set back: the lease is over
        if policy == "raise":
            assert runs <= 1
        assert len(results | errors) <= 1, "an outcome that was returned stays"
    recorded = {each.key: each for each in desk_of(timed(clock, backend)).steps.list()}
    if results or errors:
        assert recorded["charge"].state == ("done" if results else "failed")


_TIMERS: list[tuple[int, Moment]] = [(1, "before"), (1, "after"), (2, "before")]


def test_a_timer_whose_runner_is_killed_is_delivered_once(tmp_path: Path) -> None:
    struck = Counter[str]()
    for index, (number, moment) in enumerate(_TIMERS):
        path = tmp_path / f"{index}.db"
        with holdfast.open(path) as store:
            desk_of(store).timers.set("reminder", 0.001)

        def work(report: Callable[[str], None], path: Path = path, number: int = number, at: Moment = moment) -> None:
            time.sleep(0.002)
            with holdfast.open(path) as store:
                kill_at_write(number, at)
                JobRunner(store).run_due()
                report("delivered")

        _, killed = run_in_child(work)
        with holdfast.open(path) as store:
            desk = desk_of(store)
            delivered = len(desk.steps.signals())
            struck[f"killed {killed}, {delivered} delivered"] += 1
            JobRunner(store).run_due()
            assert [each.name for each in desk.steps.signals()] == ["reminder"]
            assert desk.timers.list() == []
    # There is no second write, but for the removal of the row.
    assert struck.keys() == {"killed True, 0 delivered", "killed True, 1 delivered", "killed False, 1 delivered"}
