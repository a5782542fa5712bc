"""Runs by the clock, which clients ask for: jobs of the store, for whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langgraph_sdk.errors import APIStatusError, NotFoundError, PermissionDeniedError

import holdfast
from holdfast.agents.runs.record import Run
from holdfast.interfaces.langgraph_server.crons import run_cron
from holdfast.maintenance.jobs.execution import JobExecution
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Clients, approval, serving, support

HELLO: Any = {"messages": [{"role": "user", "content": "hello"}]}
GRAPHS = {"support": support, "approval": approval}


@contextmanager
def opened(folder: Path) -> Iterator[tuple[holdfast.Store, Clients, Any]]:
    """A served store, its clients, and the crons of an identity."""
    with holdfast.open(folder / "a.db") as store, serving(store, GRAPHS) as clients:
        yield store, clients, clients.of("user:ada").crons


def fire(store: holdfast.Store, cron: Any) -> str:
    """Run a cron now, as its runner does when it is due. Returns the summary."""
    return store.jobs.run(f"langgraph-cron-{cron['cron_id']}").summary


def ended(store: holdfast.Store, summary: str) -> Run:
    """Return the run that a cron has submitted, when it is over."""
    return store.runs.wait(summary.removeprefix("run "), timeout=SECONDS)


def test_a_cron_runs_for_whoever_made_it(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, clients, crons):
        assistant = clients.owner.assistants.create("support", context={"tone": "gruffly"})["assistant_id"]
        cron = crons.create(assistant, schedule="0 3 * * *", input=HELLO, metadata={"n": 1}, on_run_completed="keep")
        first, second = (ended(store, fire(store, cron)) for _ in range(2))
        assert (first.state, first.submitter) == ("done", "user:ada")
        assert first.thread != second.thread
        assert store.thread(first.thread).get().state["log"][0] == "planned gruffly"
        assert store.thread(first.thread).owner() == "user:ada"
        found = clients.of("user:ada").threads.get(first.thread)
        assert (found["metadata"] or {})["assistant_id"] == assistant
        clients.owner.assistants.update(assistant, context={"tone": "softly"})  # it follows the assistant
        third = ended(store, fire(store, crons.update(cron["cron_id"], input={"log": ["mine"]})))
        assert store.thread(third.thread).get().state["log"] == ["mine", "planned softly", "replied"]


@pytest.mark.nightly
def test_a_cron_of_a_thread_goes_on_there(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, clients, crons):
        ada = clients.of("user:ada")
        thread = ada.threads.create()["thread_id"]
        cron = crons.create_for_thread(thread, "support", schedule="0 3 * * *", input=HELLO)
        for count in (2, 4):
            assert ended(store, fire(store, cron)).thread == thread
            assert len(store.thread(thread).get().state["log"]) == count
        rejects = crons.create_for_thread(
            thread, "support", schedule="0 3 * * *", input={"pause": 30}, multitask_strategy="reject"
        )
        assert fire(store, rejects).startswith("run ")
        assert fire(store, rejects).startswith("no run: the thread is busy")
        ada.runs.cancel_many(thread_id=thread, status="all")
        ada.threads.delete(thread)
        assert fire(store, cron) == "its thread was deleted: the cron is, too"
        assert crons.count() == 1
        assert [each.name for each in store.jobs.list()] == [f"langgraph-cron-{rejects['cron_id']}"]


def test_a_cron_that_is_due_is_submitted_once_by_runners(tmp_path: Path) -> None:
    """Also by one that was killed before it could record that it had done so."""
    with holdfast.open(tmp_path / "a.db") as store, serving(store, GRAPHS, work=False) as clients:
        cron: Any = clients.owner.crons.create("support", schedule="* * * * *", input=HELLO, on_run_completed="keep")
        job = store.jobs.get(f"langgraph-cron-{cron['cron_id']}")
        due = msgspec.structs.replace(job, due_ns=store._handle.now() - 10**9)
        for _ in range(3):
            assert run_cron(JobExecution(due, store, None, None)).summary.startswith("run ")  # type: ignore[arg-type]
        assert len(store.runs.list()) == 1
        assert store.jobs.run(job.name).ok
        assert len(store.runs.list()) == 2  # the control: by hand, it is another time


def test_a_cron_ends(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, _, crons):
        gone = datetime.now(UTC) - timedelta(hours=1)
        cron = crons.create("support", schedule="0 3 * * *", input=HELLO, end_time=gone)
        assert cron["next_run_date"] is None
        assert fire(store, cron).startswith("the end of the cron has come")
        (found,) = crons.search()
        assert (found["enabled"], store.runs.list()) == (False, [])
        again = crons.update(cron["cron_id"], end_time=None, enabled=True)
        assert again["next_run_date"] is not None
        assert fire(store, cron).startswith("run ")
        store.jobs.remove(f"langgraph-cron-{cron['cron_id']}")  # by the owner
        assert crons.search()[0]["enabled"] is False
        assert crons.update(cron["cron_id"], enabled=True)["user_id"] == "user:ada"


# Beside other features --------------------------------------------------------------------------------------------


def test_crons_of_others_do_not_exist(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, clients, crons):
        ben, thread = clients.of("user:ben"), clients.of("user:ada").threads.create()["thread_id"]
        hers = crons.create_for_thread(thread, "support", schedule="0 3 * * *", metadata={"s": 1})
        id = hers["cron_id"]
        assert ben.crons.search() == [] == ben.crons.search(thread_id=thread)
        assert ben.crons.count(metadata={"s": 1}) == 0
        for name in (id, id.upper(), "", "..", "a" * 300, f"{id}␟client:cron"):
            for call in (ben.crons.delete, lambda each: ben.crons.update(each, enabled=False)):
                with pytest.raises(APIStatusError) as caught:
                    call(name)
                assert caught.value.status_code in (404, 405)
        with pytest.raises(NotFoundError):
            ben.crons.create_for_thread(thread, "support", schedule="0 3 * * *")
        with pytest.raises((NotFoundError, PermissionDeniedError)):
            ben.threads.update_state(f"langgraph-cron-{id}", {"log": ["x"]}, as_node="plan")
        assert crons.search()[0]["enabled"]
        assert clients.owner.crons.count() == 1
        assert store.jobs.get(f"langgraph-cron-{id}").settings == {"identity": "user:ada"}
        for listing in (clients.owner, clients.of("user:ada")):
            assert [each["thread_id"] for each in listing.threads.search()] == [thread]


def test_tenants_have_their_own_crons(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(holdfast.open(tmp_path / "a.db", tenant=name)) for name in ("one", "two"))
        first, second = (stack.enter_context(serving(each, GRAPHS, work=False)) for each in (one, two))
        cron: Any = first.owner.crons.create("support", schedule="0 3 * * *")
        assert (second.owner.crons.count(), first.owner.crons.count()) == (0, 1)
        with pytest.raises(NotFoundError):
            second.owner.crons.delete(cron["cron_id"])
        assert two.jobs.list() == []


def test_a_cron_is_erased_with_its_person(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, clients, crons):
        cron = crons.create("support", schedule="0 3 * * *", input={"log": ["kelp"]})
        other: Any = clients.owner.crons.create("support", schedule="0 3 * * *")
        store.erasure.erase("ada")
        assert [each["cron_id"] for each in clients.owner.crons.search()] == [other["cron_id"]]
        assert fire(store, cron).startswith("there is no such cron any more")
        assert [each.name for each in store.jobs.list()] == [f"langgraph-cron-{other['cron_id']}"]
        assert store.runs.list() == []


def test_a_frozen_identity_has_nothing_run(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, _, crons):
        cron = crons.create("support", schedule="0 3 * * *", input=HELLO)
        store.access.freeze("user:ada")
        with pytest.raises(holdfast.errors.DeniedError):
            fire(store, cron)
        assert store.runs.list() == []
        store.access.unfreeze("user:ada")
        assert ended(store, fire(store, cron)).state == "done"


def test_a_cron_is_backed_up(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, _, crons):
        cron = crons.create("support", schedule="0 3 * * *", input=HELLO)
        store.backups(tmp_path / "backups").create()
    with holdfast.open(tmp_path / "b.db") as other:
        other.backups(tmp_path / "backups").restore()
        with serving(other, GRAPHS) as clients:
            (found,) = clients.of("user:ada").crons.search()
            assert (found["cron_id"], found["payload"]) == (cron["cron_id"], cron["payload"])
            if not found["enabled"]:  # where jobs are not restored, it waits for its owner
                clients.of("user:ada").crons.update(cron["cron_id"], enabled=True)
            assert ended(other, fire(other, cron)).submitter == "user:ada"


def test_threads_whose_time_is_over_are_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as (store, clients, _):
        threads = clients.of("user:ada").threads
        short, long, none = (threads.create(**given)["thread_id"] for given in ({"ttl": 0.001}, {"ttl": 60}, {}))
        assert [each.kind for each in store.jobs.list()] == ["delete-stale"]
        asyncio.run(asyncio.sleep(0.1))
        store.jobs.run("client-ttl")
        assert {each["thread_id"] for each in threads.search()} == {long, none}
        with pytest.raises(NotFoundError):
            threads.get(short)
        clients.owner.threads.create(ttl=60)
        assert len(store.jobs.list()) == 1
