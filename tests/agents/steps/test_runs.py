"""Attempts at durable steps that have not ended: what they cost, and that nothing else loses what is known of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.steps.records import StepRecord
from holdfast.agents.steps.runs import list_runs, read_run
from holdfast.backends.interface import Batch, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.types import to_datetime
from holdfast.errors import DeniedError, NotFoundError, OutcomeUnknownError, TransientError
from tests.agents.steps.desk import ID, Desk, desk_of
from tests.agents.steps.test_once import AsyncDesk
from tests.maintenance.kit import Clock, timed

KEY = "charge of Ada"


class PowerCut(BaseException):
    """Ends a step as the end of its process would, but for the lease."""


def cut() -> None:
    raise PowerCut


def leave_unknown(desk: Desk, key: str = KEY) -> None:
    """Leave a step without an outcome."""
    with pytest.raises(PowerCut):
        desk.once(key, cut)


def is_unknown(store: Store, id: str = ID) -> bool:
    """Return whether the outcome of the step is unknown, and nothing runs it again."""
    with pytest.raises(OutcomeUnknownError):
        desk_of(store, id).once(KEY, cut, lease=0.01)
    return [each.state for each in store.agents.steps(id).list() if each.key == KEY] == ["running"]


class Counting(MemoryBackend):
    """Counts batches and reads."""

    batches = reads = 0

    async def apply(self, batch: Batch) -> int | None:
        self.batches += 1
        return await super().apply(batch)

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self.reads += 1
        return await super().read(queries)


def counts(backend: Counting, call: Callable[[], object]) -> tuple[int, int]:
    backend.batches = backend.reads = 0
    call()
    return backend.batches, backend.reads


def test_a_step_takes_two_batches_and_no_read_and_asking_again_takes_one_read() -> None:
    backend = Counting()
    desk = desk_of(timed(Clock(), backend))
    desk.once("first", abs, -1)
    assert counts(backend, lambda: desk.once("second", abs, -2)) == (2, 0)
    assert counts(backend, lambda: desk.once("second", abs, -2)) == (0, 1)
    other = desk_of(timed(Clock(), backend))
    other.once("first", abs, -1)
    assert counts(backend, lambda: other.once("second", abs, -2)) == (0, 1)
    for number in range(300):  # some folds
        desk.once(f"more {number}", abs, number)
    assert counts(backend, lambda: desk.once("last", abs, -2)) == (2, 0)


def test_one_thread_renews_the_leases_of_all_steps() -> None:
    store, others = timed(Clock()), set(threading.enumerate())
    inside, end = threading.Barrier(9), threading.Event()

    def work() -> None:
        inside.wait(30)
        assert end.wait(30)

    agents = [desk_of(store, f"desk-{number}") for number in range(8)]
    runners = [threading.Thread(target=lambda desk=desk: desk.once("slow", work)) for desk in agents]
    for each in runners:
        each.start()
    inside.wait(30)
    names = [each.name for each in threading.enumerate() if each not in others]
    end.set()
    for each in runners:
        each.join()
    assert names.count("holdfast-heartbeat") == 1


def test_a_large_result_has_a_key_of_its_own() -> None:
    store = timed(Clock())
    desk, large = desk_of(store), ["x" * 1000] * 20
    assert desk.once("large", lambda: large) == large
    assert desk_of(store).once("large", lambda: large) == large
    keys = run(desk.steps._line.read(lambda view: view.keys()))
    assert keys == ["result/large", "step/large"]
    desk.once("small", lambda: "x")
    assert run(desk.steps._line.read(lambda view: view.keys())) == ["result/large", "step/large", "step/small"]


class Forgetful(MemoryBackend):
    """Applies a batch and does not say so."""

    forgets_in = -1

    async def apply(self, batch: Batch) -> int | None:
        self.forgets_in -= 1
        applied = await super().apply(batch)
        if self.forgets_in == -1:
            raise TransientError("the connection was closed")
        return applied


def test_answers_that_are_lost() -> None:
    backend = Forgetful()
    desk, calls = desk_of(timed(Clock(), backend)), list[int]()

    def charge() -> str:
        calls.append(1)
        return "paid"

    backend.forgets_in = 0
    with pytest.raises(TransientError):
        desk.once("begun", charge)
    assert (calls, list(desk.steps.list())) == ([], []), "the function was not called: nothing is unknown"
    assert desk.once("begun", charge) == "paid"
    backend.forgets_in = 1
    assert desk.once("recorded", charge) == "paid"
    assert desk.once("recorded", charge) == "paid"
    assert len(calls) == 2
    assert run(list_runs(desk.steps._line)) == []


class Overtaken(MemoryBackend):
    """Applies one batch after the next ones, as a server with several connections may; its caller is interrupted."""

    delays_in = -1
    delayed: Batch = ()

    async def apply(self, batch: Batch) -> int | None:
        self.delays_in -= 1
        if self.delays_in == -1:
            self.delayed = batch
            raise KeyboardInterrupt
        if not batch:  # which is acknowledged after all before it
            delayed, self.delayed = self.delayed, ()
            assert await super().apply(delayed) is None
        return await super().apply(batch)


def test_a_step_that_was_interrupted_before_it_began_is_free_though_the_beginning_was_overtaken() -> None:
    backend = Overtaken()
    desk = desk_of(timed(Clock(), backend))
    desk.once("first", abs, -1)
    backend.delays_in = 0
    with pytest.raises(KeyboardInterrupt):
        desk.once("begun", abs, -1)
    run(backend.apply([]))
    assert run(list_runs(desk.steps._line)) == []
    assert desk.once("begun", abs, -2) == 2


def test_a_step_that_is_cancelled_before_its_function_is_called_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with await holdfast.aopen(tmp_path / "a.db") as store:
            desk = AsyncDesk().attach(store, ID)
            await desk.save()
            backend, calls = store._handle.engine.context.backend, list[int]()
            apply = backend.apply

            async def charge() -> str:
                calls.append(1)
                return "paid"

            async def cancelling(batch: Batch) -> int | None:
                applied = await apply(batch)
                monkeypatch.undo()
                task.cancel()  # the attempt has begun, and its function is about to be called
                return applied

            monkeypatch.setattr(backend, "apply", cancelling)
            task = asyncio.create_task(desk.once("begun", charge))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (calls, await desk.steps.list()) == ([], [])
            assert await desk.once("begun", charge) == "paid"

    asyncio.run(main())


# Other features --------------------------------------------------------------------------------------------------


def test_copies_exports_and_backups_have_attempts_that_have_not_ended(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)
        desk.once("before", abs, -1)
        store.maintenance.copy_to(copy := holdfast.open(tmp_path / "copy.db"))
        leave_unknown(desk)
        store.maintenance.copy_to(copy)  # again: nothing else was changed
        store.maintenance.export(tmp_path / "all.hfx", kinds="all")
        store.maintenance.export(tmp_path / "agent.hfx", threads=[ID], kinds="agent")
        backups = store.backups(tmp_path / "backups")
        backups.create()
        assert is_unknown(copy)
        copy.close()
        for name in ("all", "agent"):
            with holdfast.open(tmp_path / f"{name}.db") as other:
                other.maintenance.import_(tmp_path / f"{name}.hfx")
                assert is_unknown(other), name
                assert other.maintenance.verify(level="decode").findings == []
        with holdfast.open(tmp_path / "restored.db") as other:
            other.backups(tmp_path / "backups").restore()
            assert is_unknown(other)
        desk.steps.resolve(KEY, result="paid")
        with holdfast.open(tmp_path / "copy.db") as copy:
            store.maintenance.copy_to(copy)
            assert desk_of(copy).once(KEY, cut) == "paid"
            assert run(list_runs(desk_of(copy).steps._line)) == []
        backups.create()
        with holdfast.open(tmp_path / "later.db") as other:
            other.backups(tmp_path / "backups").restore()
            assert desk_of(other).once(KEY, cut) == "paid"


def test_a_restore_in_place_takes_nothing_back(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)
        leave_unknown(desk, "resolved since")
        backups = store.backups(tmp_path / "backups")
        backups.create()
        desk.steps.resolve("resolved since", result="paid")
        leave_unknown(desk, "begun since")
        desk.context["since"] = 1
        desk.save()
        backups.restore(in_place=True)
    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)
        assert "since" not in desk.context, "a control: the agent was set back"
        assert desk.once("resolved since", cut) == "paid"
        with pytest.raises(OutcomeUnknownError):
            desk.once("begun since", cut)


def test_a_moment_between_two_backups_has_what_ran_at_the_first(tmp_path: Path) -> None:
    clock = Clock()
    store = timed(clock)
    desk, backups = desk_of(store), store.backups(tmp_path / "backups")
    desk.once("before", abs, -1)
    leave_unknown(desk)
    clock.now += 10**9
    backups.create()
    clock.now += 10**9
    moment = clock.now
    clock.now += 10**9
    desk.steps.resolve(KEY, result="paid")
    backups.create()
    for at, state in ((to_datetime(moment), "running"), ("latest", "done")):
        with timed(clock) as other:
            other.backups(tmp_path / "backups").restore(at)
            assert {each.key: each.state for each in other.agents.steps(ID).list()} == {"before": "done", KEY: state}


def test_of_an_encrypted_store_the_key_of_an_attempt_cannot_be_read(tmp_path: Path) -> None:
    for encryption in (None, Encryption(LocalKeys(generate_key()))):
        folder = tmp_path / str(encryption is None)
        folder.mkdir()
        with holdfast.open(folder / "a.db", encryption=encryption) as store:
            leave_unknown(desk_of(store))
            assert is_unknown(store)
        stored = b"".join(each.read_bytes() for each in folder.iterdir())
        assert (KEY.encode() in stored) is (encryption is None), "one is the control"


def test_prune_verify_and_doctor_leave_an_attempt_alone(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        desk = desk_of(store)
        leave_unknown(desk)  # of a line without steps
        assert store.maintenance.verify(level="decode").findings == []
        for number in range(5):
            desk.once(f"k{number}", abs, number)
        store.agents.prune_steps(0)
        store.maintenance.prune(keep_last=1, kinds="all")
        store.maintenance.sweep_orphans(grace=0)
        assert store.maintenance.verify(level="decode").findings == []
        assert is_unknown(store)


def test_attempts_are_deleted_and_erased_with_their_agent(tmp_path: Path) -> None:
    def seen(store: Store) -> list[StepRecord]:
        return list(store.agents.steps(ID).list())

    with holdfast.open(tmp_path / "a.db") as store:
        for delete in (lambda: store.agents.delete(ID), lambda: store.erasure.erase("u-1")):
            desk = desk_of(store)
            desk.metadata["subject"] = "u-1"
            desk.save()
            leave_unknown(desk)
            assert [each.state for each in seen(store)] == ["running"]
            delete()
            assert seen(store) == []
            with pytest.raises(NotFoundError):
                desk.once(KEY, cut)
            assert desk_of(store).once(KEY, lambda: "run") == "run", "another agent of this id"
            store.agents.delete(ID)
        leave_unknown(Desk().attach(store, "unsaved"))
        assert store.agents.unsaved() == ["unsaved"]
        store.agents.delete("unsaved")
        assert list(store.agents.steps("unsaved").list()) == []


def test_rights_that_are_withdrawn_end_an_attempt_before_it_begins(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "a.db") as owner:
        desk_of(store, "mine")
        store.access.grant("agent:other", ["read"], agent="mine", custom="steps/main")
        grant = store.access.grant("agent:other", ["write"], agent="mine", custom="steps/main")
        steps = store.as_identity(agent="other").agents.steps("mine")
        assert steps.once("a", abs, -1) == 1
        owner.access.revoke(grant)
        with pytest.raises(DeniedError):
            steps.once("b", cut)
        assert [each.key for each in owner.agents.steps("mine").list()] == ["a"]


def test_a_row_whose_end_is_recorded_counts_for_nothing() -> None:
    """As a recovery of a moment may leave it."""
    store, rows = timed(Clock()), list[Any]()
    desk = desk_of(store)
    backend = store._handle.engine.context.backend

    def keep() -> str:
        found = run(read_run(desk.steps._line, KEY))
        assert found is not None
        rows.extend(found.put_over(None))
        return "paid"

    desk.once(KEY, keep)
    assert run(backend.apply(rows)) is None
    again = desk_of(store)
    assert again.once(KEY, keep) == "paid"
    assert [each.state for each in again.steps.list()] == ["done"]
    assert again.steps.get(KEY).state == "done"
    assert len(rows) == 2, "it was not run again"


def test_lists_have_attempts_in_the_order_of_keys() -> None:
    store = timed(Clock())
    desk = desk_of(store)
    for key in ("b", "d", "f"):
        desk.once(key, abs, -1)
    for key in ("a", "c", "g"):
        leave_unknown(desk, key)
    page = desk.steps.list(limit=2)
    assert [each.key for each in page] == ["a", "b"]
    assert [each.key for each in page.all()] == ["a", "b", "c", "d", "f", "g"]
    assert [each.key for each in desk.steps.list(cursor="c")] == ["d", "f", "g"]


def test_many_tasks_of_one_agent_begin_at_once() -> None:
    async def use() -> None:
        async with await holdfast.aopen("memory:") as store:
            desk = AsyncDesk().attach(store, "a")
            await desk.save()

            async def work(number: int) -> int:
                await asyncio.sleep(0)
                return number

            got = await asyncio.gather(*(desk.once(f"k{number}", work, number) for number in range(40)))
            assert got == list(range(40))

    asyncio.run(use())
