"""A run of an agent beside what else is done to the agent or its store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.agents import PersistentAgent
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS, LINES, REFS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import NotFoundError


@pytest.fixture(params=["clear", "encrypted"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    keys = Encryption(LocalKeys(b"m" * 32), hide_names=True) if request.param == "encrypted" else None
    with holdfast.open(tmp_path / "a.db", encryption=keys) as opened:
        yield opened


class _Held:
    """A run of an agent that a worker has, between two of its saves, until the test goes on."""

    def __init__(self, store: Store) -> None:
        reached, self._go_on = threading.Event(), threading.Event()
        go_on = self._go_on

        class Walker(PersistentAgent, name="runs-walker"):
            went: list[str] = []

            def run(self, word: str) -> list[str]:
                for number in range(4):
                    if number == 2 and not go_on.is_set():
                        reached.set()
                        assert go_on.wait(50)
                    if len(self.went) <= number:
                        self.went.append(f"{word} {number}")
                        self.save()
                return self.went

        self.kind, self._store = Walker, store
        store.agents.create(Walker, "a")
        self.run = store.runs.submit(None, ["secret"], agent="a")
        self.worker = store.worker(Walker).start()
        assert reached.wait(50)

    def go_on(self) -> None:
        """Let it go on, to its end, with a worker that has the time to attempt it again."""
        self._go_on.set()
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline and self.worker._active:
            time.sleep(0.01)
        try:
            self._store.runs.wait(self.run.id, timeout=30)
        except NotFoundError:
            pass
        finally:
            self.worker.stop()


def rows_with(store: Store, text: str) -> list[object]:
    """What tells of a text, among rows that are not encrypted."""
    found = run(store._handle.engine.context.backend.read([Scan(each, ("",)) for each in (LINES, REFS, JOBS)]))
    return [row.key for rows in found for row in rows if text in repr(row)]


def test_an_agent_that_is_deleted_while_it_is_run_stays_deleted(store: Store) -> None:
    held = _Held(store)
    assert rows_with(store, held.run.id)
    store.agents.delete("a")
    held.go_on()
    assert not store.agents.exists("a")
    assert store.runs.list() == []
    assert rows_with(store, held.run.id) == []


def test_a_person_is_erased_while_their_agent_is_run(store: Store) -> None:
    held = _Held(store)
    store.erasure.set_subject("u-1", "a", kind="agent")
    assert store.erasure.erase("u-1").erased == {"agents": 1}
    held.go_on()
    assert not store.agents.exists("a")
    assert store.runs.list() == []
    assert rows_with(store, "secret") == []


def test_an_agent_that_is_pruned_while_it_is_run_goes_on(store: Store) -> None:
    held = _Held(store)
    assert store.maintenance.prune(kinds="agent", keep_last=1).dropped > 0
    held.go_on()
    assert store.runs.get(held.run.id).result == [f"secret {number}" for number in range(4)]
    assert store.maintenance.verify().found == 0


def test_an_agent_that_is_restored_in_place_while_it_is_run_is_attempted_again(store: Store, tmp_path: Path) -> None:
    held = _Held(store)
    backups = store.backups(tmp_path / "backups")
    backups.create()
    backups.restore(threads=["a"], kinds="agent", in_place=True)
    held.go_on()
    ended = store.runs.get(held.run.id)
    assert (ended.state, ended.result) == ("done", [f"secret {number}" for number in range(4)])
    assert store.maintenance.verify().found == 0


def test_a_run_of_an_agent_is_in_no_backup(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "other.db") as other:
        held = _Held(store)
        store.backups(tmp_path / "backups").create()
        held.go_on()
        other.backups(tmp_path / "backups").restore()
        assert other.runs.list() == []
        assert len(other.agents.load("a").fields["went"]) == 2
        again = other.runs.submit(None, ["again"], agent="a")
        other.worker(held.kind).run_due()
        assert other.runs.get(again.id).result == ["secret 0", "secret 1", "again 2", "again 3"]


def test_a_worker_works_for_agents_of_its_tenant_only(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "a.db", tenant="one") as one,
        holdfast.open(tmp_path / "a.db", tenant="two") as two,
    ):
        held = _Held(one)
        held.go_on()
        two.agents.create(held.kind, "a")
        id = two.runs.submit(None, ["other"], agent="a").id
        one.worker(held.kind).run_due()
        assert two.runs.get(id).state == "queued"
        assert [each.id for each in one.runs.list(agent="a")] == [held.run.id]


def test_a_run_is_done_by_two_versions_of_an_agent(tmp_path: Path) -> None:
    class Clerk(PersistentAgent, name="runs-versioned"):
        asked: str = ""

        def run(self) -> str:
            self.asked = "first"
            self.wait_for("go", key="go")
            return self.asked

    old = Clerk
    with holdfast.open(tmp_path / "a.db") as store:
        store.agents.create(old, "v")
        id = store.runs.submit(None, agent="v").id
        store.worker(old, code="1").run_due()
        assert store.runs.get(id).state == "waiting"

        class Clerk(PersistentAgent, name="runs-versioned", schema="2"):  # type: ignore[no-redef]
            asked_all: list[str] = []

            @classmethod
            def upgrade(cls, fields: dict[str, object], from_schema: str) -> dict[str, object]:
                return {"asked_all": [fields["asked"]]}

            def run(self) -> list[str]:
                self.wait_for("go", key="go")
                return self.asked_all

        store.agents.signal("v", "go")
        store.worker(Clerk, code="2").run_due()
        ended = store.runs.get(id)
        assert (ended.state, ended.result, ended.code) == ("done", ["first"], "2")
