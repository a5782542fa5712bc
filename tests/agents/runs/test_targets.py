"""Classes of agents as what workers run: started, done, handed over, taken over, and waiting without a worker."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import AsyncPersistentAgent, PersistentAgent, persistent
from holdfast.agents.api.agents import AgentsOperations
from holdfast.agents.runs.table import RunTable
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from tests.agents.runs.graphs import write_ledger
from tests.agents.runs.test_workers_kills import NO_KILL, kill_at_batch, left_over
from tests.maintenance.kit import timed
from tests.support.kills import run_in_child
from tests.support.nightly import mostly_nightly


class Clerk(PersistentAgent, name="runs-clerk"):
    """Has its work counted, and waits for an approval if it is asked to."""

    done: list[str] = []

    def run(self, order: str = "none", approval: bool = False) -> str:
        if order == "wrong":
            raise ValueError("no such order")
        if approval:
            signal = self.wait_for("approved", key=f"approval-{order}")
            assert signal is not None
            order = f"{order} by {signal.value}"
        self.done.append(order)
        return f"did {order}"


def _clerk(store: holdfast.Store, id: str = "c-1") -> None:
    store.agents.create(Clerk, id)


def test_a_worker_starts_an_agent_calls_run_and_stops_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _clerk(store)
        run = store.runs.submit(None, ["o-1"], agent="c-1")
        assert (run.agent, run.thread, run.graph, run.state) == ("c-1", "", "runs-clerk", "queued")
        second = store.runs.submit(None, {"order": "o-2"}, agent="c-1", graph="runs-clerk", idempotency_key="k")
        assert store.runs.submit(None, {"order": "o-2"}, agent="c-1", idempotency_key="k").id == second.id
        store.worker(Clerk).run_due()
        assert (store.runs.get(run.id).state, store.runs.get(run.id).result) == ("done", "did o-1")
        record = store.agents.load("c-1")
        assert (record.fields["done"], record.status) == (["o-1", "o-2"], "stopped")
        assert [each.id for each in store.runs.list(agent="c-1")] == [second.id, run.id]
        assert store.runs.list(agent="c-2") == [] == store.runs.list(thread="c-1")
        assert [each.kind for each in store.runs.follow(run.id, timeout=0)] == ["done"]
        assert store.threads() == []  # it is no thread
        store.agents.delete("c-1")
        assert store.runs.list() == []
    assert left_over(tmp_path / "a.db") == []


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    class Idle(PersistentAgent, name="runs-idle"):
        pass

    with holdfast.open(tmp_path / "a.db") as store:
        with pytest.raises(InvalidError, match="run"):
            store.worker(Idle)
        with pytest.raises(InvalidError, match="classes of agents"):
            store.worker(Path)
        with pytest.raises(NotFoundError):
            store.runs.submit(None, [], agent="nobody")
        _clerk(store)
        with pytest.raises(InvalidError, match="not both"):
            store.runs.submit("t", [], agent="c-1")
        with pytest.raises(InvalidError, match="runs-clerk"):
            store.runs.submit(None, [], agent="c-1", graph="other")
        with pytest.raises(InvalidError):
            store.runs.submit("t", [])


def test_an_agent_whose_run_fails_has_failed_and_is_started_again(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _clerk(store)
        run = store.runs.submit(None, ["wrong"], agent="c-1", attempts=1)
        store.worker(Clerk).run_due()
        assert (store.runs.get(run.id).state, store.agents.load("c-1").status) == ("failed", "failed")
        assert "no such order" in store.runs.get(run.id).error
        store.runs.submit(None, ["o"], agent="c-1")
        store.worker(Clerk).run_due()
        assert store.agents.load("c-1").fields["done"] == ["o"]


def test_steps_of_earlier_runs_are_not_missed_by_a_strict_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed = list[bool]()

    class Strict(PersistentAgent, name="runs-strict", strict=True):
        def run(self, order: str) -> int:
            found = 0
            for part in ("b", "c") if changed else ("a", "b"):
                found = self.once(f"{order}-{part}", len, order)
            if order == "o-3" and not changed:
                changed.append(True)
                raise ConnectionError("the code is changed before the next attempt")
            return found

    with holdfast.open(tmp_path / "a.db") as store:
        store.agents.create(Strict, "s-1")
        ids = [store.runs.submit(None, [f"o-{number}"], agent="s-1").id for number in (1, 2, 3)]
        with store.worker(Strict):
            ended = [store.runs.wait(each, timeout=50) for each in ids]
        assert [each.result for each in ended] == [3, 3, None]
        assert (ended[2].state, ended[2].error_code) == ("failed", "steps-unused")  # of its own steps, one is missed
        assert "steps-unused" not in caplog.text


def test_a_plain_object_and_an_asyncio_agent_work_too(tmp_path: Path) -> None:
    @persistent(name="runs-porter", fields=["carried"])
    class Porter:
        def __init__(self) -> None:
            self.carried: list[str] = []

        def run(self, what: str) -> None:
            self.carried.append(what)

    class AsyncClerk(AsyncPersistentAgent, name="runs-async-clerk"):
        done: list[str] = []

        async def run(self, order: str) -> str:
            signal = await self.wait_for("go", key=order)
            assert signal is not None
            self.done.append(order)
            return order

    async def work() -> None:
        async with holdfast.aopen(tmp_path / "b.db") as store:
            await store.agents.create(AsyncClerk, "a-1")
            id = (await store.runs.submit(None, ["o"], agent="a-1")).id
            async with store.worker(AsyncClerk):
                assert (await store.runs.wait(id, timeout=60)).state == "waiting"
                await store.agents.signal("a-1", "go")
                while (run := await store.runs.wait(id, timeout=60)).state == "waiting":
                    await asyncio.sleep(0.01)
            assert (run.state, run.result) == ("done", "o")
            assert (await store.agents.load("a-1")).fields["done"] == ["o"]

    with holdfast.open(tmp_path / "a.db") as store:
        store.agents.create(Porter, "p-1")
        id = store.runs.submit(None, ["a case"], agent="p-1").id
        store.worker(Porter).run_due()
        assert store.runs.get(id).state == "done"
        assert store.agents.restore("p-1").agent.carried == ["a case"]
    asyncio.run(work())


def test_an_agent_that_waits_takes_no_worker_and_a_signal_queues_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _clerk(store)
        run = store.runs.submit(None, ["o", True], agent="c-1")
        behind = store.runs.submit(None, ["p"], agent="c-1")
        worker = store.worker(Clerk)
        worker.run_due()
        assert (store.runs.get(run.id).state, store.runs.get(run.id).due) == ("waiting", None)
        assert store.agents.load("c-1").status == "paused"
        assert store.runs.get(behind.id).state == "queued"  # it has its turn later
        worker.run_due()
        assert store.runs.get(run.id).attempts == 1  # nothing woke it
        with pytest.raises(ConflictError, match="waiting"):
            store.runs.answer(run.id, "Ada")
        store.agents.signal("c-1", "other")
        worker.run_due()
        assert (store.runs.get(run.id).state, store.runs.get(run.id).attempts) == ("waiting", 2)  # not the one
        store.agents.signal("c-1", "approved", "Ada")
        assert store.runs.get(run.id).state == "queued"
        worker.run_due()
        assert store.runs.get(run.id).result == "did o by Ada"
        assert store.agents.load("c-1").fields["done"] == ["o by Ada", "p"]
    assert left_over(tmp_path / "a.db") == []


def test_a_signal_that_comes_while_the_run_is_handed_over_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, early = RunTable.finish, list[str]()

    async def after_a_signal(self: RunTable, held: Any, state: Any, **fields: Any) -> Any:
        if state == "waiting" and not early:
            early.append(held.stored.id)
            await AgentsOperations.signal(store.agents, "c-1", "approved", "Ada")
        return await finish(self, held, state, **fields)

    monkeypatch.setattr(RunTable, "finish", after_a_signal)
    with holdfast.open(tmp_path / "a.db") as store:
        _clerk(store)
        run = store.runs.submit(None, ["o", True], agent="c-1")
        store.worker(Clerk).run_due()
        assert early == [run.id]
        assert store.runs.get(run.id).result == "did o by Ada"


def test_an_agent_is_handed_over_at_a_step_when_its_worker_stops(tmp_path: Path) -> None:
    class Stepper(PersistentAgent, name="runs-stepper"):
        def run(self) -> list[str]:
            return [self.once(name, note, name) for name in ("one", "two")]

    def note(name: str) -> str:
        noted.append(name)
        worker.stop(wait=False)
        return name

    noted: list[str] = []
    with holdfast.open(tmp_path / "a.db") as store:
        store.agents.create(Stepper, "s")
        run = store.runs.submit(None, agent="s")
        worker = store.worker(Stepper)
        worker.start()
        while store.runs.get(run.id).attempts == 0 or store.runs.get(run.id).state == "running":
            time.sleep(0.01)
        worker.stop()
        assert (store.runs.get(run.id).state, noted) == ("queued", ["one"])
        assert store.agents.load("s").status == "paused"
        store.worker(Stepper).run_due()
        assert (store.runs.get(run.id).result, noted) == (["one", "two"], ["one", "two"])


def test_an_agent_sleeps_without_a_worker_and_wakes_in_time() -> None:
    class Sleeper(PersistentAgent, name="runs-sleeper"):
        def run(self) -> list[bool]:
            slept = self.sleep("2h", key="night")
            return [slept, self.wait_for("never", timeout="1h", key="never") is None]

    now = [10**18]
    with timed(lambda: now[0]) as store:
        store.agents.create(Sleeper, "s-1")
        run = store.runs.submit(None, agent="s-1")
        worker = store.worker(Sleeper)
        worker.run_due()
        sleeping = store.runs.get(run.id)
        assert sleeping.state == "waiting"
        assert sleeping.due is not None
        assert sleeping.due - sleeping.created == timedelta(hours=2)
        worker.run_due()
        assert store.runs.get(run.id).attempts == 1  # control: its time has not come
        for _ in range(2):
            now[0] += 2 * 3600 * 10**9
            worker.run_due()
        assert (store.runs.get(run.id).state, store.runs.get(run.id).result) == ("done", [True, True])
        again = store.agents.create(Sleeper, "s-2")
        other = store.runs.submit(None, agent="s-2")
        worker.run_due()
        assert store.runs.get(other.id).state == "waiting"
        again.timers.cancel("night")  # ends the sleep, and so the wait of the run
        assert store.runs.get(other.id).state == "queued"


@NO_KILL
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("stride", mostly_nightly([1, 6], daily=[6]))
def test_an_agent_ends_its_run_wherever_its_worker_is_killed(tmp_path: Path, stride: int) -> None:
    def make(ledger: Path) -> type[PersistentAgent]:
        class Payer(PersistentAgent, name="runs-payer"):
            paid: list[str] = []

            def run(self, order: str) -> int:
                for part in range(2):
                    receipt = self.once(f"{order}-{part}", _pay, str(ledger), order, part, on_unknown="retry")
                    if receipt not in self.paid:
                        self.paid.append(receipt)
                        self.save()
                signal = self.wait_for("seen", key=order)
                return len(self.paid) if signal is not None else -1

        return Payer

    struck = 0
    for number in range(2, 90, stride):
        path, ledger = tmp_path / f"{number}.db", tmp_path / f"{number}.txt"
        kind = make(ledger)
        with holdfast.open(path) as store:
            store.agents.create(kind, "p-1")
            id = store.runs.submit(None, ["o"], agent="p-1").id

        def work(report: Callable[[str], None], path: Path = path, kind: Any = kind, number: int = number) -> None:
            kill_at_batch(number, after=number % 2 == 0)
            with holdfast.open(path) as store:
                store.worker(kind).run_due()
                store.agents.signal("p-1", "seen", id="once")
                store.worker(kind).run_due()

        _, killed = run_in_child(work)
        struck += killed
        with holdfast.open(path) as store:
            store.agents.signal("p-1", "seen", id="once")
            store.worker(kind).run_due()
            ended = store.runs.get(id)
            assert (ended.state, ended.result) == ("done", 2), (number, ended)
            record = store.agents.load("p-1")
            assert (record.fields["paid"], record.status) == (["paid o 0", "paid o 1"], "stopped")
        effects = Counter(ledger.read_text().split("\n")[:-1])
        assert len(effects) == 2
        assert sum(effects.values()) - 2 <= killed
        assert left_over(path) == []
        if not killed:
            break
    assert struck > 12 // stride


def _pay(ledger: str, order: str, part: int) -> str:
    write_ledger(Path(ledger), f"{order} {part} {os.getpid()}".rpartition(" ")[0])
    return f"paid {order} {part}"


def test_a_worker_whose_claim_is_lost_saves_nothing_of_its_agent(tmp_path: Path) -> None:
    ids: list[str] = []
    with holdfast.open(tmp_path / "a.db") as store:

        class Slow(PersistentAgent, name="runs-slow"):
            done: list[str] = []

            def run(self) -> None:
                store.runs.cancel(ids[0])
                self.done.append("late")
                self.save()

        store.agents.create(Slow, "s")
        ids.append(store.runs.submit(None, agent="s").id)
        store.worker(Slow).run_due()
        assert (store.runs.get(ids[0]).state, store.agents.load("s").fields.get("done", [])) == ("cancelled", [])


def test_an_identity_submits_runs_of_agents_that_it_may_write(tmp_path: Path) -> None:
    keys = Encryption(LocalKeys(b"m" * 32), hide_names=True)
    with holdfast.open(tmp_path / "a.db", encryption=keys) as store:
        _clerk(store)
        boss, other = store.as_identity(agent="boss"), store.as_identity(agent="other")
        store.access.grant("agent:boss", ["read", "write"], agent="c-1")
        with pytest.raises(DeniedError):
            other.runs.submit(None, ["o"], agent="c-1")
        run = boss.runs.submit(None, ["o"], agent="c-1")
        assert [each.id for each in boss.runs.list(agent="c-1")] == [run.id]
        assert other.runs.list() == []
        with pytest.raises(NotFoundError):
            other.runs.get(run.id)
        store.access.freeze("agent:boss")
        store.worker(Clerk).run_due()
        assert store.runs.get(run.id).state == "queued"
        store.access.unfreeze("agent:boss")
        store.worker(Clerk).run_due()  # the other one passes over it for a second
        assert store.runs.get(run.id).result == "did o"
