"""Runs and identities: each sees and does what it may, and what a frozen one submitted is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConflictError, DeniedError, HoldfastError, NotFoundError
from tests.agents.runs.graphs import asking, chain, logging_nodes


@pytest.fixture(params=["clear", "encrypted"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    keys = Encryption(LocalKeys(b"m" * 32), hide_names=True) if request.param == "encrypted" else None
    with holdfast.open(tmp_path / "a.db", encryption=keys) as opened:
        yield opened


def _events(store: Store, action: str) -> list[Any]:
    return [each for each in store.audit.query(limit=1000) if each.action == action]


def test_an_identity_submits_follows_and_cancels_runs_of_its_threads(store: Store) -> None:
    ada, ben = store.as_identity(user="ada").runs, store.as_identity(user="ben").runs
    own = ada.submit("ada-1", {"log": []}, graph="chain", idempotency_key="k")
    assert ada.submit("ada-1", {"log": []}, graph="chain", idempotency_key="k").id == own.id
    assert store.runs.get(own.id).submitter == "user:ada"
    of_the_owner = store.runs.submit("shared", {"log": []}, graph="chain")
    assert [each.id for each in ada.list()] == [own.id]
    assert (ben.list(), ben.list(thread="ada-1")) == ([], [])
    nothing = "0" * 24
    calls: list[Callable[[str], object]] = [
        *(ben.get, ben.cancel, ben.retry, ben.answer, ben.steps, ben.events, ben.wait),
        lambda id: list(ben.follow(id, timeout=0)),
    ]
    for call in calls:
        told = []
        for id in (own.id, of_the_owner.id, nothing):  # it cannot tell which of them exists
            with pytest.raises(NotFoundError) as caught:
                call(id)
            told.append((str(caught.value).replace(id, "ID"), caught.value.__context__))
        assert len(set(told)) == 1
    with pytest.raises(DeniedError):
        ben.submit("ada-1", {"log": []}, graph="chain")
    with pytest.raises(DeniedError):
        ben.submit("shared", {"log": []}, graph="chain")
    assert ben.submit("ben-1", {"log": ["other"]}, graph="chain", idempotency_key="k").id != own.id
    store.worker(chain(*logging_nodes(2))).run_due()
    assert ada.wait(own.id, timeout=0).state == "done"
    assert store.as_identity(user="ada").thread("ada-1").get().state["log"] == ["n0", "n1"]
    with pytest.raises(NotFoundError):
        store.as_identity(user="ben").thread("ada-1").get()
    assert [each.kind for each in ada.follow(own.id)] == ["checkpoint"] * 4 + ["done"]
    waits = ada.submit("ada-1", {"log": []}, graph="chain", when="1h")
    assert ada.cancel(waits.id).state == "cancelled"
    assert ada.retry(waits.id).state == "queued"
    assert [len(_events(store, each)) for each in ("submit-run", "cancel-run", "retry-run")] == [3, 1, 1]
    without = ada.submit(None, {"log": []}, graph="chain")
    assert ada.get(without.id).thread.startswith("run-")
    with pytest.raises(NotFoundError):
        ben.get(without.id)


def test_grants_and_modes_say_what_it_may(store: Store) -> None:
    ada, ben = store.as_identity(user="ada"), store.as_identity(user="ben")
    run = ada.runs.submit("ada-1", {"log": []}, graph="asking")
    ada.grant("user:ben", "read", thread="ada-*")
    store.worker(asking()).run_due()
    assert ben.runs.get(run.id).state == "waiting"
    assert [each.kind for each in ben.runs.events(run.id)][-1] == "waiting"
    refused: list[Callable[[], object]] = [lambda: ben.runs.answer(run.id, "x"), lambda: ben.runs.cancel(run.id)]
    for call in refused:
        with pytest.raises(HoldfastError) as caught:
            call()
        assert caught.value.code in ("not-found", "denied")
    reads = store.as_identity(user="ada", mode="read-only").runs
    assert reads.get(run.id).state == "waiting"
    with pytest.raises((DeniedError, NotFoundError)):
        reads.cancel(run.id)
    with pytest.raises(DeniedError):
        reads.submit("ada-1", {"log": []}, graph="asking")
    ada.grant("user:ben", "write", thread="ada-*")
    assert ben.runs.answer(run.id, "this").state == "queued"
    store.worker(asking()).run_due()
    assert ada.runs.get(run.id).state == "done"
    assert not hasattr(ada.runs, "delete")
    assert not hasattr(ada.runs, "limit")
    assert not hasattr(ada.runs, "resolve")


def test_a_right_that_is_revoked_meanwhile_is_not_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.agents.runs.table import RunTable

    ada, ben = store.as_identity(user="ada"), store.as_identity(user="ben")
    run = ada.runs.submit("ada-1", {"log": []}, graph="chain")
    grant = ada.grant("user:ben", "write", thread="ada-*")
    original, revoked = RunTable.queue, list[object]()

    async def queue(self: RunTable, line: Any) -> Any:
        found = await original(self, line)
        if not revoked:
            revoked.append(ada.revoke(grant))
        return found

    monkeypatch.setattr(RunTable, "queue", queue)
    with pytest.raises(NotFoundError):
        ben.runs.cancel(run.id)
    assert revoked
    assert store.runs.get(run.id).state == "queued"


def test_a_workflow_of_an_identity_that_is_frozen_begins_no_further_step(store: Store) -> None:
    ran = list[int]()

    @holdfast.step
    def count(number: int) -> int:
        ran.append(number)
        if number == 2 and ran.count(2) == 1:
            store.access.freeze("user:ada", reason="it is odd")
        return number

    @holdfast.workflow
    def count_all() -> list[int]:
        return [count(number) for number in range(4)]

    run = store.as_identity(user="ada").runs.submit(None, graph="count_all")
    store.worker(count_all).run_due()
    stored = store.runs.get(run.id)
    assert (stored.state, stored.error_code) == ("queued", "identity-frozen")
    assert [(each.key, each.state) for each in store.runs.steps(run.id)][-1][1] == "done", "it was under way"
    assert ran == [0, 1, 2]
    store.access.unfreeze("user:ada")
    with store.worker(count_all):
        assert store.runs.wait(run.id, timeout=30).state == "done"
    assert ran == [0, 1, 2, 3]


def test_a_run_makes_no_other_thread_its_submitters(store: Store) -> None:
    first = store.thread("shared").put({"log": ["of the owner"]})
    store.access.set_owner("shared", "user:ben")
    store.access.grant("user:ada", ["read", "write"], thread="shared")
    ada = store.as_identity(user="ada").runs
    for thread in ("shared", "ada-1"):
        ada.submit(thread, {"log": ["planted"]}, graph="chain")
    store.worker(chain(*logging_nodes(2))).run_due()
    assert "planted" in store.thread("shared").get().state["log"]
    store.erasure.erase("ada")
    assert [each.thread for each in store.threads()] == ["shared"]
    assert store.thread("shared").get(at=first).state["log"] == ["of the owner"]
    assert all(
        "planted" not in repr(store.thread("shared").get(at=each.id).state) for each in store.thread("shared").log()
    )


def test_what_a_frozen_identity_submitted_waits_and_stores_nothing(store: Store) -> None:
    ada, ran = store.as_identity(user="ada").runs, list[str]()

    def freeze(name: str) -> None:
        ran.append(name)
        if name == "n1" and ran.count("n1") == 1:
            store.access.freeze("user:ada", reason="it is odd")

    run = ada.submit("ada-1", {"log": []}, graph="chain")
    by_owner = store.runs.submit("other", {"log": []}, graph="chain")
    worker = store.worker(chain(*logging_nodes(3, freeze)), concurrency=1)
    worker.run_due()
    stored = store.runs.get(run.id)
    assert (stored.state, stored.error_code) == ("queued", "identity-frozen")
    assert store.thread("ada-1").get().state["log"] == ["n0"]  # and not of n1, in which it was frozen
    assert store.runs.get(by_owner.id).state == "done"
    refused: list[Callable[[], object]] = [
        *(lambda: ada.get(run.id), lambda: ada.list()),
        lambda: ada.submit("ada-2", None, graph="chain"),
    ]
    for call in refused:
        with pytest.raises(DeniedError, match="frozen"):
            call()
    ran.clear()
    ran.append("n1")
    store.runs.limit("chain", 1)  # it is not tried for ever
    store.runs.cancel(run.id)
    store.runs.retry(run.id)
    worker.run_due()
    assert (store.runs.get(run.id).state, ran) == ("queued", ["n1"])
    store.access.unfreeze("user:ada")
    with worker:
        assert store.runs.wait(run.id, timeout=30).state == "done"
    assert store.thread("ada-1").get().state["log"] == ["n0", "n1", "n2"]


def test_an_asynchronous_identity_has_runs_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            ada = store.as_identity(user="ada")
            run = await ada.runs.submit("t", {"log": []}, graph="chain")
            async with store.worker(chain(*logging_nodes(1))):
                assert (await ada.runs.wait(run.id, timeout=30)).state == "done"
            assert [each.kind async for each in ada.runs.follow(run.id)] == ["checkpoint"] * 3 + ["done"]
            with pytest.raises(NotFoundError):
                await store.as_identity(user="ben").runs.get(run.id)
            with pytest.raises(ConflictError):
                await ada.runs.answer(run.id, "x")

    asyncio.run(work())


def test_what_was_done_for_a_person_is_erased_with_the_person(store: Store) -> None:
    @holdfast.workflow
    def note(text: str) -> str:
        return text

    ada, ben = store.as_identity(user="ada"), store.as_identity(user="ben")
    worker = store.worker(chain(*logging_nodes(1)), note)
    ada.thread("before").put({"log": ["hers"]})
    for thread in ("before", "done"):
        ada.runs.submit(thread, {"log": ["hers"]}, graph="chain")
    ada.runs.submit(None, ["hers"], graph="note")
    ben.runs.submit("ben-1", {"log": ["his"]}, graph="chain")
    worker.run_due()
    ada.runs.submit("queued", {"log": ["hers"]}, graph="chain")
    assert len(ada.runs.list()) == 4
    store.erasure.erase("ada")
    assert [each.thread for each in store.threads()] == ["ben-1"]
    assert [each.thread for each in store.runs.list()] == ["ben-1"]
    assert ben.thread("ben-1").get().state["log"] == ["his", "n0"]
