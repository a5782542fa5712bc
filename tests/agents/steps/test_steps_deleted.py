"""Durable steps of agents that were deleted, or never saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import AsyncPersistentAgent
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS
from holdfast.errors import NotFoundError, OutcomeUnknownError
from tests.agents.steps.desk import Desk, desk_of
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly


class AsyncDesk(AsyncPersistentAgent, name="tests: desk, async"):
    """An agent of an AsyncStore."""


def _refused(act: Callable[[], Any]) -> None:
    with pytest.raises(NotFoundError) as error:
        act()
    assert error.value.code == "agent-deleted"


# Two stores in memory have nothing in common.
@pytest.mark.parametrize("kind", mostly_nightly([each for each in KINDS if each != "memory"], daily=("sqlite",)))
@pytest.mark.parametrize("how", ["delete", "delete and create", "elsewhere"])
def test_a_live_handle_of_a_deleted_agent_records_nothing(kind: str, how: str, tmp_path: Path) -> None:
    where = place(kind, tmp_path)
    with holdfast.open(where, tenant="acme") as store, holdfast.open(where, tenant="acme") as other:
        desk, calls = desk_of(store), list[str]()
        if how != "elsewhere":
            desk.once("before", calls.append, "before")  # so that it knows the agent's line
        (store if how == "delete" else other).agents.delete(desk.id)
        if how == "delete and create":
            desk_of(other)
        _refused(lambda: desk.once("charge", calls.append, "charged"))
        _refused(lambda: desk.timers.set("reminder", "1h"))
        _refused(lambda: desk.sleep("1h", key="nap"))
        _refused(lambda: desk.wait_for("answer", timeout=0, key="wait"))
        _refused(lambda: desk.wait_for("answer", timeout="1h"))
        _refused(lambda: desk.steps.version("change"))
        assert calls == (["before"] if how != "elsewhere" else [])
        if how != "delete and create":
            assert other.agents.unsaved() == []
            desk_of(other)
        again = desk_of(other)
        assert (again.steps.list(), again.timers.list()) == ([], [])  # nothing to inherit
        again.once("charge", calls.append, "by the new one")
        assert calls[-1] == "by the new one"


def test_a_step_that_runs_while_its_agent_is_deleted(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        desk = desk_of(store)
        with pytest.raises(OutcomeUnknownError):
            desk.once("charge", lambda: store.agents.delete(desk.id))
        assert store.agents.unsaved() == []
        assert desk_of(store).steps.list() == []


def test_a_handle_goes_on_after_saves_prunes_and_rollbacks(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        desk = desk_of(store)
        for n in range(40):
            desk.metadata["n"] = n
            desk.save()
            assert desk.once(f"step-{n}", int, n) == n
            if n % 10 == 9:
                store.maintenance.prune(keep_last=2, kinds=["agent"])
        desk.rollback(desk.version - 1)
        assert desk.once("last", lambda: 1) == 1
        assert len(desk.steps.list()) == 41


def test_steps_of_agents_that_were_never_saved_are_found_and_deleted(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        desk_of(store, "saved").once("charge", lambda: 1)
        store.state(agent="scope only")["n"] = 1
        for id in ("a/b", "new-1", "new-2"):
            Desk().attach(store, id).once("charge", lambda: 1)
            store.agents.timers(id).set("reminder", "1h")
        assert store.agents.unsaved() == ["a/b", "new-1", "new-2"]
        page = store.agents.unsaved(limit=2)
        assert [*page, *store.agents.unsaved(cursor=page.next)] == ["a/b", "new-1", "new-2"]
        store.agents.delete("new-1")
        assert [*store.agents.unsaved().all()] == ["a/b", "new-2"]
        assert [each for each in _timers(store) if "new-1" in each] == []
        Desk().attach(store, "new-2").save()  # now it is saved
        assert store.agents.unsaved() == ["a/b"]
        with pytest.raises(NotFoundError):
            store.agents.delete("new-1")
        assert store.as_identity(agent="other").agents.unsaved() == []
        assert store.maintenance.verify().findings == []
        assert store.audit.verify().findings == []


def _timers(store: holdfast.Store) -> list[str]:
    (rows,) = run(store._engine.context.backend.read([Scan(JOBS, ("",))]))
    return [row.body.decode(errors="replace") for row in rows]


def test_erasure_covers_the_steps_of_agents_that_were_never_saved(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        store.access.grant("user:ann", "write", agent="of-ann")
        store.access.grant("user:ann", "read", agent="of-ann")
        store.access.grant("user:ann", "write", agent="of-ann", custom="steps/main")
        store.access.grant("user:ann", "read", agent="of-ann", custom="steps/main")
        mine = Desk().attach(store.as_identity(user="ann"), "of-ann")
        mine.once("note", lambda: "a secret of ann")
        Desk().attach(store, "of-all").once("note", lambda: "kept")
        store.erasure.erase("ann")
        assert store.agents.steps("of-ann").list() == []
        assert [each.key for each in store.agents.steps("of-all").list()] == ["note"]
        assert b"a secret of ann" not in (tmp_path / "s.db").read_bytes()


def test_async(tmp_path: Path) -> None:
    async def main() -> None:
        async with await holdfast.aopen(tmp_path / "s.db") as store:
            desk = AsyncDesk().attach(store, "desk")
            await desk.save()
            await desk.once("before", lambda: 1)
            await store.agents.delete("desk")
            with pytest.raises(NotFoundError):
                await desk.once("charge", lambda: 1)
            assert await store.agents.unsaved() == []

    asyncio.run(main())


def test_a_deletion_in_the_middle_of_a_write(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store, holdfast.open(tmp_path / "s.db") as other:
        desk, begun, go_on = desk_of(store), threading.Event(), threading.Event()
        desk.once("before", lambda: 1)

        def run_step() -> None:
            begun.set()
            assert go_on.wait(60)

        def work() -> None:
            with pytest.raises(OutcomeUnknownError):
                desk.once("charge", run_step)

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        other.agents.delete(desk.id)
        desk_of(other)
        go_on.set()
        thread.join(60)
        assert desk_of(other).steps.list() == []
