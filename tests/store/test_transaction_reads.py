"""Threads that a transaction reads: it commits only if nobody saved to them meanwhile."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.store.store import Store, Transaction
from tests.servers.places import DURABLE, place
from tests.support.nightly import mostly_nightly


@pytest.fixture
def store() -> Store:
    return holdfast.open("memory://")


def test_a_thread_is_read_and_saved_with_state(store: Store) -> None:
    store.thread("chat").put({"n": 1})
    with store.transaction() as transaction:
        found = transaction.get("chat")
        assert found.state == {"n": 1}
        assert transaction.get("chat") == found
        transaction.put("chat", {"n": found.state["n"] + 1})
        transaction.update("chat", {"m": 1})
        transaction.state(agent="a")["n"] = found.state["n"]
        with pytest.raises(InvalidError, match="Read it first"):
            transaction.get("chat")
    assert store.thread("chat").get().state == {"n": 2, "m": 1}
    assert store.state(agent="a")["n"] == 1
    with pytest.raises(InvalidError, match="not open"):
        transaction.get("chat")


CONFLICTS = ("save", "delete", "switch", "return")
"""What changes what the thread's own name means."""


@pytest.mark.parametrize("writes", ["state", "thread", "another thread", "both"])
@pytest.mark.parametrize(
    ("there", "meanwhile"),
    [
        *((True, meanwhile) for meanwhile in (*CONFLICTS, "fork", "branch", "nothing", "elsewhere")),
        *((False, meanwhile) for meanwhile in ("save", "nothing", "elsewhere")),  # there is nothing else to change
    ],
)
def test_who_saves_meanwhile_is_seen(store: Store, writes: str, there: bool, meanwhile: str) -> None:
    if there:
        store.thread("chat").put({"n": 1})
        if meanwhile in ("branch", "switch"):  # a branch that exists already
            store.thread("chat").fork("draft")
            store.thread("chat").put({"n": 1}, branch="main")
        if meanwhile == "return":  # to the end of a branch that HEAD has left
            store.thread("chat").put({"n": 0})
            store.thread("chat").put({"n": 1}, parent=store.thread("chat").find("#0"))
    conflicts = meanwhile in CONFLICTS
    transaction = store.transaction()
    with pytest.raises(ConflictError) if conflicts else nullcontext() as stale, transaction:
        if there:
            assert transaction.get("chat").state["n"] == 1
        else:
            with pytest.raises(NotFoundError):
                transaction.get("chat")
        if writes in ("state", "both"):
            transaction.state(agent="a")["k"] = 1
        if writes in ("thread", "both"):
            transaction.put("chat", {"n": 2})
        if writes == "another thread":
            transaction.put("other", {"n": 2})
        change_meanwhile(store, meanwhile)
    if stale is None:
        assert len(transaction.checkpoints) == (0 if writes == "state" else 1)
    else:
        assert stale.value.code == "version-mismatch"
        assert dict(store.state(agent="a")) == {}
        assert [each.thread for each in store.threads()] == (["chat"] if meanwhile != "delete" else [])
        assert meanwhile == "delete" or store.thread("chat").get().state != {"n": 2}


def change_meanwhile(store: Store, how: str) -> None:
    if how == "save":
        store.thread("chat").put({"n": 3})
    elif how == "delete":
        store.thread("chat").delete()
    elif how == "fork":
        store.thread("chat").fork("draft")
    elif how == "branch":
        store.thread("chat").put({"n": 5}, branch="draft")
    elif how == "switch":
        store.thread("chat").switch("draft")
    elif how == "return":
        store.thread("chat").put({"n": 5}, parent=store.thread("chat").find("main"))
    elif how == "elsewhere":
        store.thread("elsewhere").put({"n": 3})
        store.state(agent="b")["k"] = 1


@pytest.mark.parametrize("parent", [True, False])
def test_a_branch_or_parent_of_ones_own(store: Store, parent: bool) -> None:
    first = store.thread("chat").put({"n": 1})
    with store.transaction() as transaction:
        found = transaction.get("chat")
        if parent:
            transaction.put("chat", {"n": 2}, parent=found)
        else:
            transaction.put("chat", {"n": 2}, branch="main")
    assert store.thread("chat").get().parent == first.id
    store.thread("chat").fork("draft")
    with store.transaction() as transaction:
        assert transaction.get("chat").state["n"] == 2
        transaction.put("chat", {"n": 3}, branch="main")
    assert store.thread("chat").get("main").state == {"n": 3}


def test_asyncio() -> None:
    async def main() -> None:
        async with holdfast.aopen("memory://") as store:
            await store.thread("chat").put({"n": 0})

            async def add(transaction: Transaction) -> None:
                found = await transaction.get("chat")
                transaction.put("chat", {"n": found.state["n"] + 1})

            await asyncio.gather(*(store.transaction(add) for _ in range(8)))
            assert (await store.thread("chat").get()).state == {"n": 8}

    asyncio.run(main())


@pytest.mark.parametrize("kind", mostly_nightly(DURABLE, daily=("sqlite", "file", "postgres")))
def test_no_save_is_lost(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url, tenant="acme") as one, holdfast.open(url, tenant="acme") as two:
        one.thread("chat").put({"n": 0})

        def work(store: Store) -> None:
            def add(transaction: Transaction) -> None:
                found = transaction.get("chat")
                transaction.put("chat", {"n": found.state["n"] + 1})
                transaction.state(agent="a").increment("n")

            for _ in range(5):
                store.transaction(add)

        workers = [threading.Thread(target=work, args=(each,)) for each in (one, two)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert one.thread("chat").get().state == {"n": 10}
        assert two.state(agent="a")["n"] == 10
        assert len(list(one.thread("chat").branches())) == 1
