"""An agent whose newest state is damaged: an error, or the last readable state, which is reported."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Recovery
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, STEPS, Table
from holdfast.errors import ConflictError, CorruptError
from holdfast.security.audit.export import check_audit
from holdfast.store.store import Store
from tests.agents.greeters import Greeter, opened

LINE = "␞agents:a"


def written(store: Store, count: int = 5) -> Greeter:
    """An agent of so many versions after the first."""
    agent: Greeter = store.agents.create(Greeter, "a", greeting="Hi")
    for number in range(count):
        agent.greet(f"n{number}")
        agent.save()
    return agent


def damage(backend: Any, tenant: str = "", line: str = LINE, last: int = 1, space: Table = STEPS) -> None:
    """Flip a byte in the bodies of the last rows of a line."""
    (rows,) = run(backend.read([Scan(space, (tenant, line))]))
    for row in rows[-last:]:
        body = bytearray(row.body)
        body[len(body) // 2] ^= 0x41
        run(backend.apply([Put(space, Row(row.key, row.columns, bytes(body)))]))


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield MemoryBackend()
        return
    from holdfast.backends.registry import backend_for

    url = f"sqlite:///{tmp_path}/a.db"
    made = run(backend_for(url).open(url))
    yield made
    run(made.close())


def test_damage_is_an_error_unless_something_else_was_agreed(backend: Any) -> None:
    written(opened(backend))
    damage(backend)
    store = opened(backend)
    with pytest.raises(CorruptError):
        store.agents.load("a")
    with pytest.raises(CorruptError):
        store.agents.restore("a")
    agent = Greeter().attach(store, "a")
    with pytest.raises(CorruptError):
        agent.start()
    assert (agent.version, agent.status) == (0, "created")
    assert store.agents.load("a", version=5).fields["count"] == 4
    assert store.maintenance.verify().findings != []


@pytest.mark.parametrize("last", [1, 3])
def test_the_last_good_state_is_gone_on_from(backend: Any, last: int) -> None:
    written(opened(backend))
    damage(backend, last=last)
    store = opened(backend)
    found = len(store.maintenance.verify().findings)
    told: list[Recovery] = []

    agent = Greeter().attach(store, "a", on_corrupt="last-good")
    agent.handle_recovery = told.append  # type: ignore[method-assign,assignment]
    agent.start()
    assert (agent.count, len(agent.conversation), agent.status) == (5 - last, 5 - last, "running")
    (recovery,) = agent.recoveries
    assert told == [recovery]
    assert (recovery.kind, recovery.resolved, len(recovery.lost), recovery.version) == ("fell-back", "back", last, 6)
    assert agent.metrics.counts.recoveries == 1
    rows = store.audit.query(kind="recovery")
    assert [(each.action, each.outcome) for each in rows] == [("fell-back", "back")]
    # It goes on from there, and others see it so.
    agent.greet("again")
    agent.save()
    fresh = opened(backend)
    assert fresh.agents.load("a").fields["count"] == 6 - last
    assert fresh.agents.restore("a").greeted[-1] == "again"
    assert [each.version for each in fresh.agents.history("a")] == list(range(9 - last, 0, -1))
    assert fresh.agents.load("a", version=6 - last).fields["count"] == 5 - last
    assert [each.id for each in fresh.agents.list()] == ["a"]
    # The damage is still told of, and nothing but that.
    assert len(fresh.maintenance.verify().findings) == found


def test_an_agent_is_restored_that_way_too(backend: Any) -> None:
    written(opened(backend))
    damage(backend, last=2)
    agent = opened(backend).agents.restore("a", on_corrupt="last-good")
    assert (agent.count, agent.configuration) == (3, {"greeting": "Hi"})
    assert [each.kind for each in agent.recoveries] == ["fell-back"]
    agent.start()
    agent.stop()
    assert opened(backend).agents.load("a").status == "stopped"


def test_where_nothing_reads_well_it_is_an_error(backend: Any) -> None:
    written(opened(backend), 2)
    damage(backend, last=3)
    with pytest.raises(CorruptError):
        opened(backend).agents.restore("a", on_corrupt="last-good")
    with pytest.raises(CorruptError):
        Greeter().attach(opened(backend), "a", on_corrupt="last-good").start()


def test_of_two_who_fall_back_at_once_one_is_first(backend: Any) -> None:
    written(opened(backend))
    damage(backend)
    store, gate = opened(backend), threading.Barrier(4)
    stores, counts, errors = [opened(backend) for _ in range(4)], [], []

    def work(each: Store) -> None:
        gate.wait()
        try:
            agent = Greeter().attach(each, "a", on_corrupt="last-good")
            agent.reload()
            counts.append((agent.count, agent.version, len(agent.recoveries)))
        except ConflictError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(counts) == [(4, 6, 0), (4, 6, 0), (4, 6, 0), (4, 6, 1)]
    assert store.threads(kind="agent")[0].branches == 2


def test_who_has_not_heard_of_it_does_not_go_on_from_what_was_passed_over(backend: Any) -> None:
    """One who had the newest state before it was damaged must not save on top of it once another has fallen back."""
    stale = written(opened(backend))
    damage(backend)
    agent = opened(backend).agents.restore("a", on_corrupt="last-good")
    agent.greet("again")
    agent.save()
    stale.greet("stale")
    with pytest.raises(ConflictError):
        stale.save()
    assert opened(backend).agents.load("a").fields["greeted"][-1] == "again"


def test_an_old_message_that_is_damaged_is_found_at_the_start() -> None:
    backend = MemoryBackend()
    store = opened(backend)
    agent = store.agents.create(Greeter, "a")
    for number in range(40):  # more than are kept as steps: the messages are folded
        agent.greet(f"n{number}")
        agent.save()
    from holdfast.backends.tables import NODES

    damage(backend, last=1000, space=NODES)
    fresh = opened(backend).agents.restore("a", on_corrupt="last-good")
    assert 0 < fresh.count < 40
    assert len(fresh.conversation.all()) == fresh.count
    assert len(fresh.recoveries[0].lost) == 40 - fresh.count


def test_a_row_that_is_altered_on_the_branch_of_a_fallback_is_found(tmp_path: Path) -> None:
    backend = MemoryBackend()
    written(opened(backend))
    damage(backend)
    store = opened(backend)
    agent = store.agents.restore("a", on_corrupt="last-good")
    agent.start()
    agent.stop()
    found = len(store.audit.verify().findings)  # the damaged step
    exported = store.audit.export(tmp_path / "before")
    assert len(check_audit(tmp_path / "before", exported.heads).findings) == found
    (rows,) = run(backend.read([Scan(EVENTS, ("", LINE))]))
    last = rows[-1]
    run(backend.apply([Put(EVENTS, Row(last.key, (*last.columns[:2], "agent:evil", *last.columns[3:]), last.body))]))
    assert len(store.audit.verify().findings) == found + 1
    store.audit.export(tmp_path / "after")
    assert len(check_audit(tmp_path / "after", exported.heads).findings) == found + 1


@pytest.mark.parametrize("live", [False, True])
def test_an_agent_is_rolled_back_by_hand_past_damage(backend: Any, live: bool) -> None:
    written(opened(backend))
    agent = opened(backend).agents.restore("a")
    damage(backend, last=2)
    store = opened(backend)
    if live:
        agent.persister.line.handle.engine.context.cache.clear()
        agent.rollback(3)
    else:
        store.agents.rollback("a", 3)
    again = store.agents.restore("a")
    assert (again.count, list(again.conversation)) == (2, store.agents.messages("a", version=3))
    assert store.agents.load("a").fields == store.agents.load("a", version=3).fields
    (row,) = store.agents.transitions("a", limit=1)
    assert (row.trigger, row.data["version"], bool(row.data["damaged"])) == ("rollback", 3, True)
    again.greet("more")
    again.save()
    again.start()
    assert store.agents.load("a").fields["count"] == 3


def test_what_is_damaged_is_not_gone_back_to(backend: Any) -> None:
    written(opened(backend))
    damage(backend, last=2)
    store = opened(backend)
    with pytest.raises(CorruptError):
        store.agents.rollback("a", 5)
    with pytest.raises(CorruptError):
        store.agents.load("a")


def test_two_who_roll_back_past_damage_at_once(backend: Any) -> None:
    written(opened(backend))
    damage(backend)
    stores = [opened(backend) for _ in range(2)]
    outcomes: list[str] = []

    def back(store: Store) -> None:
        try:
            store.agents.rollback("a", 3)
            outcomes.append("ok")
        except ConflictError:
            outcomes.append("conflict")

    threads = [threading.Thread(target=back, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "ok" in outcomes
    assert opened(backend).agents.load("a").fields["count"] == 2
