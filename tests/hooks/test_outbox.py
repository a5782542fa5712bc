"""The outbox of durable hooks: a call is made again until it is delivered, or kept as failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.hooks import HookContext
from holdfast.store.store import Store
from tests.hooks.kit import Clock, async_store, beside, store
from tests.servers.places import KINDS, place
from tests.state.kit import Place
from tests.support.nightly import mostly_nightly


class Service:
    """A service that hooks deliver to, which may be down."""

    def __init__(self) -> None:
        self.is_down = False
        self.got: list[tuple[str, Any]] = []
        self.refused = 0
        self.ids: list[str] = []

    def __call__(self, call: HookContext) -> None:
        if self.is_down:
            self.refused += 1
            raise ConnectionError("the service is down")
        self.got.append((call.key, call.value))
        self.ids.append(call.call_id)

    @property
    def values(self) -> list[Any]:
        return [value for _, value in self.got]


def let_pass(held: Store, clock: Any, seconds: float, done: Callable[[], bool] = lambda: False) -> float:
    """Have time go by, a little at a time, and the outbox be looked at. Returns after how many seconds it was done."""
    passed = 0.0
    while passed < seconds and not done():
        clock.now += 5 * 10**9
        passed += 5
        held.hooks.recover()
        assert held.hooks.drain(60)
    return passed


def states(held: Store) -> list[tuple[str, int, str]]:
    return [(each.state, each.attempts, each.error) for each in held.hooks.undelivered().all()]


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite",)))
@pytest.mark.parametrize("ordered", [False, True])
def test_an_outage_of_ten_minutes_delivers_all(kind: str, ordered: bool, tmp_path: Path) -> None:
    where = Place(place(kind, tmp_path))
    try:
        held, service = where.open(), Service()
        held.hooks.after("state.set", durable=True, ordered=ordered, name="deliver")(service)
        state = held.state(agent="a")
        state["before"] = "up"
        assert held.hooks.drain(60)
        service.is_down = True
        for n in range(12):
            state["n"] = n
            state[f"other/{n % 3}"] = n
            let_pass(held, where.clock, 50)
        assert service.refused > 5
        assert service.values == ["up"]
        assert len(held.hooks.undelivered(limit=7)) == 7
        assert len([*held.hooks.undelivered(limit=7).all()]) == 24
        service.is_down = False
        # The hook may have been switched off for ten minutes just before.
        let_pass(held, where.clock, 1300, lambda: not held.hooks.undelivered())
        assert held.hooks.undelivered() == []
        assert len(service.got) == len(set(service.ids)) == 25
        assert sorted(value for key, value in service.got if key == "n") == [*range(12)]
        if ordered:
            for key in ("n", "other/0", "other/1", "other/2"):
                got = [value for name, value in service.got if name == key]
                assert got == sorted(got), key
        assert held.maintenance.verify().findings == []
        held.close()
    finally:
        where.close()


def test_a_hook_that_raises_once_is_called_again() -> None:
    clock, service = Clock(), Service()
    with store(clock) as held:
        held.hooks.after("state.set", "checkpoint.save", durable=True, name="deliver")(service)
        service.is_down = True
        held.state(agent="a")["n"] = 1
        held.thread("chat").put({"n": 2})
        assert held.hooks.drain(60)
        assert states(held) == [("pending", 1, "ConnectionError")] * 2
        service.is_down = False
        assert held.hooks.recover() == 0  # it is not due yet
        clock.pass_by(2)
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert sorted(map(str, service.values)) == ["1", "{'n': 2}"]
        assert states(held) == []
        assert [each.outcome for each in held.hooks.history("deliver")] == ["ok", "ok", "error", "error"]
        assert held.audit.verify().findings == []


@pytest.mark.nightly
def test_without_a_look_it_is_made_again_soon() -> None:
    with holdfast.open("memory://") as held:
        done, failures = threading.Event(), [1, 1]

        @held.hooks.after("state.set", durable=True)
        def deliver(call: HookContext) -> None:
            if failures:
                failures.pop()
                raise ConnectionError("not yet")
            done.set()

        held.state(agent="a")["n"] = 1
        assert done.wait(50)


@pytest.mark.parametrize("limit", ["attempts", "max_age"])
def test_a_call_that_is_given_up_is_kept_alerted_and_retried_by_hand(limit: str) -> None:
    clock, service = Clock(), Service()
    options: dict[str, Any] = {"attempts": 3} if limit == "attempts" else {"max_age": "10m"}
    with store(clock) as held:
        held.jobs.add("watch", "alerts", schedule="every 1m", settings={"pending": "0s"})
        held.hooks.after("state.set", durable=True, max_failures=1000, name="deliver", **options)(service)
        service.is_down = True
        for n in range(2):
            held.state(agent="a")[f"k{n}"] = n
        assert held.hooks.drain(60)
        held.jobs.run("watch")
        assert _alert(held) == "ok"
        let_pass(held, clock, 2000, lambda: len(held.hooks.undelivered(state="failed")) == 2)
        failed = held.hooks.undelivered("deliver", state="failed")
        assert [(each.hook, each.scope, each.key, each.point, each.due) for each in failed] == [
            ("deliver", "agent:a", key, "state.set", None) for key in sorted(("k0", "k1"), key=_order(failed))
        ]
        if limit == "attempts":
            assert {each.attempts for each in failed} == {3}
            assert service.refused == 6
        held.jobs.run("watch")
        assert _alert(held) == "firing"
        assert held.maintenance.metrics().value("hook_undelivered", hook="deliver") == 2
        let_pass(held, clock, 1000)
        assert len(held.hooks.undelivered(state="failed")) == 2  # nobody makes them again
        service.is_down = False
        held.hooks.retry(failed[0].reference)
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert service.got == [(failed[0].key, int(failed[0].key[1:]))]
        with pytest.raises(NotFoundError):
            held.hooks.retry(failed[0].reference)
        assert held.hooks.retry_failed("other") == 0
        assert held.hooks.retry_failed() == 1
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert sorted(service.values) == [0, 1]
        assert held.hooks.undelivered() == []
        held.jobs.run("watch")
        assert _alert(held) == "resolved"


def _order(failed: Any) -> Callable[[str], int]:
    return [each.key for each in failed].index


def _alert(held: Store) -> str:
    (alert,) = [each for each in held.alerts.list() if each.rule == "hook-undelivered"]
    return alert.state


def test_attempts_count_anew_after_a_retry_by_hand() -> None:
    clock, service = Clock(), Service()
    service.is_down = True
    with store(clock) as held:
        held.hooks.after("state.set", durable=True, attempts=2, max_failures=1000)(service)
        held.state(agent="a")["n"] = 1
        let_pass(held, clock, 60)
        assert (service.refused, states(held)) == (2, [("failed", 2, "ConnectionError")])
        held.hooks.retry_failed()
        let_pass(held, clock, 60)
        assert (service.refused, states(held)) == (4, [("failed", 2, "ConnectionError")])
        (call,) = held.hooks.undelivered()
        held.hooks.discard(call.reference)
        assert held.hooks.undelivered() == []
        with pytest.raises(NotFoundError):
            held.hooks.discard(call.reference)
        with pytest.raises(InvalidError):
            held.hooks.retry("nothing")


def test_a_call_that_always_fails_does_not_hold_up_the_others() -> None:
    clock, got = Clock(), list[Any]()
    with store(clock) as held:

        @held.hooks.after("state.set", durable=True, max_failures=2, rest=30, name="deliver")
        def deliver(call: HookContext) -> None:
            if call.key == "poison":
                raise ValueError("this one cannot be handled")
            got.append(call.value)

        held.state(agent="a")["poison"] = 1
        assert held.hooks.drain(60)
        let_pass(held, clock, 1200)  # it is switched off again and again
        for n in range(20):
            held.state(agent="a")[f"k{n}"] = n
        let_pass(held, clock, 1300, lambda: len(got) == 20)
        assert sorted(got) == [*range(20)]
        (left,) = held.hooks.undelivered()
        assert (left.key, left.state) == ("poison", "pending")


def test_in_order_per_key_over_processes() -> None:
    clock, one, two = Clock(), Service(), Service()
    with store(clock) as first:
        second = beside(first)
        first.hooks.after("state.set", durable=True, ordered=True, attempts=1000, name="deliver")(one)
        second.hooks.after("state.set", durable=True, ordered=True, attempts=1000, name="deliver")(two)
        one.is_down = True
        first.state(agent="a")["n"] = 1
        assert first.hooks.drain(60)
        second.state(agent="a")["n"] = 2
        second.state(agent="a")["m"] = 2
        assert second.hooks.drain(60)
        assert two.got == [("m", 2)]  # the other one waits for that of the first process
        clock.pass_by(100)
        second.hooks.recover()
        assert second.hooks.drain(60)
        assert two.got == [("m", 2), ("n", 1), ("n", 2)]
        assert (one.got, first.hooks.undelivered()) == ([], [])
        second.close()


def test_a_call_that_was_given_up_holds_up_no_other() -> None:
    clock, got = Clock(), list[Any]()
    with store(clock) as held:

        @held.hooks.after("state.set", durable=True, ordered=True, attempts=2)
        def deliver(call: HookContext) -> None:
            if call.value == 1:
                raise ValueError("never")
            got.append(call.value)

        for n in (1, 2, 3):
            held.state(agent="a")["n"] = n
        assert held.hooks.drain(60)
        assert got == []
        let_pass(held, clock, 60)
        assert got == [2, 3]
        assert states(held) == [("failed", 2, "ValueError")]


@pytest.mark.parametrize("how", ["prune", "delete"])
def test_a_change_that_is_gone(how: str) -> None:
    clock, service = Clock(), Service()
    service.is_down = True
    with store(clock) as held:
        held.hooks.after("checkpoint.save", durable=True, name="deliver")(service)
        thread = held.thread("chat")
        thread.put({"n": 1})
        assert held.hooks.drain(60)
        if how == "prune":
            thread.put({"n": 2})
            assert held.hooks.drain(60)
            held.maintenance.prune(keep_last=1)
        else:
            thread.delete()
        service.is_down = False
        let_pass(held, clock, 60)
        assert service.values == ([{"n": 2}] if how == "prune" else [])
        assert states(held) == [("failed", 1, "NotFoundError")]  # it is not lost silently


def test_erasure_removes_the_calls_about_a_person() -> None:
    clock, service = Clock(), Service()
    service.is_down = True
    with store(clock) as held:
        options: dict[str, Any] = {"durable": True, "attempts": 1, "max_failures": 1000}
        held.hooks.after("state.set", "checkpoint.save", name="failed", **options)(service)
        options["attempts"] = None
        held.hooks.after("state.set", "checkpoint.save", name="pending", **options)(service)
        held.state(user="ann")["n"] = 1
        held.as_identity(user="ann").state(user="ann")["m"] = 1
        held.thread("of-ann").put({"n": 1}, metadata={"subject": "ann"})
        held.state(user="bob")["n"] = 2
        assert held.hooks.drain(60)
        assert len(held.hooks.undelivered()) == 8
        held.erasure.erase("ann")
        assert [(each.hook, each.scope) for each in held.hooks.undelivered()] == [
            ("failed", "user:bob"),
            ("pending", "user:bob"),
        ]
        service.is_down = False
        let_pass(held, clock, 60)
        assert service.got == [("n", 2)]


def test_a_backup_has_the_outbox(tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path}/s.db"
    service.is_down = True
    with holdfast.open(url) as held:
        held.hooks.after("state.set", durable=True, attempts=1, name="deliver")(service)
        held.state(agent="a")["n"] = 1
        assert held.hooks.drain(60)
        held.backups(f"file://{tmp_path}/backups").create()
    with holdfast.open(f"sqlite:///{tmp_path}/restored.db") as held:
        held.backups(f"file://{tmp_path}/backups").restore()
        assert states(held) == [("failed", 1, "ConnectionError")]
        service.is_down = False
        held.hooks.after("state.set", durable=True, name="deliver")(service)
        held.hooks.retry_failed()
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert service.got == [("n", 1)]
        assert held.maintenance.verify().findings == []


def test_a_restored_backup_has_no_calls_about_a_person_that_was_erased(tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path}/s.db"
    service.is_down = True
    with holdfast.open(url) as held:
        held.hooks.after("state.set", durable=True, attempts=1, max_failures=1000, name="deliver")(service)
        held.state(user="ann")["n"] = 1
        held.state(user="bob")["n"] = 2
        assert held.hooks.drain(60)
        backups = held.backups(f"file://{tmp_path}/backups")
        first = backups.create().id
        held.erasure.erase("ann")
        backups.create()
    with holdfast.open(f"sqlite:///{tmp_path}/new.db") as held:
        held.backups(f"file://{tmp_path}/backups").restore(first)
        assert [each.scope for each in held.hooks.undelivered()] == ["user:bob"]


def test_tenants_have_outboxes_of_their_own(tmp_path: Path) -> None:
    url, service = f"sqlite:///{tmp_path}/s.db", Service()
    service.is_down = True
    with holdfast.open(url, tenant="one") as one, holdfast.open(url, tenant="two") as two:
        one.hooks.after("state.set", durable=True, attempts=1)(service)
        one.state(agent="a")["n"] = 1
        assert one.hooks.drain(60)
        assert (len(one.hooks.undelivered()), two.hooks.undelivered(), two.hooks.retry_failed()) == (1, [], 0)


def test_async() -> None:
    async def main() -> None:
        clock, service = Clock(), Service()
        service.is_down = True
        held = async_store(clock)

        async def deliver(call: HookContext) -> None:
            service(call)

        held.hooks.after("state.set", durable=True, attempts=1)(deliver)
        await held.state(agent="a").set("n", 1)
        assert await held.hooks.drain(60)
        (call,) = await held.hooks.undelivered(state="failed")
        service.is_down = False
        await held.hooks.retry(call.reference)
        await held.hooks.recover()
        assert await held.hooks.drain(60)
        assert service.got == [("n", 1)]
        assert await held.hooks.undelivered() == []
        await held.close()

    asyncio.run(main())


def test_a_call_that_is_being_made_is_not_retried() -> None:
    with store() as held:
        begun, end = threading.Event(), threading.Event()

        @held.hooks.after("state.set", durable=True)
        def deliver(call: HookContext) -> None:
            begun.set()
            end.wait(60)

        held.state(agent="a")["n"] = 1
        assert begun.wait(60)
        (call,) = held.hooks.undelivered()
        assert call.due is None
        with pytest.raises(ConflictError):
            held.hooks.retry(call.reference)
        end.set()
        assert held.hooks.drain(60)
        assert held.hooks.undelivered() == []


def test_a_clock_that_was_set_back() -> None:
    clock, service = Clock(), Service()
    service.is_down = True
    with store(clock) as held:
        held.hooks.after("state.set", durable=True, max_failures=1000)(service)
        held.state(agent="a")["n"] = 1
        assert held.hooks.drain(60)
        clock.pass_by(-86400)
        service.is_down = False
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert service.got == [("n", 1)]


def test_options_are_checked() -> None:
    with store() as held:
        options: dict[str, Any]
        for options in ({"attempts": 3}, {"max_age": "1d"}, {"ordered": True}):
            with pytest.raises(InvalidError, match="durable"):
                held.hooks.after("state.set", **options)(print)
        for options in ({"attempts": 0}, {"max_age": 0}, {"attempts": "many"}):
            with pytest.raises(InvalidError):
                held.hooks.after("state.set", durable=True, **options)(print)
        with pytest.raises(InvalidError, match="is not called for"):
            held.hooks.after("session.start", durable=True)(print)
        with pytest.raises(InvalidError, match="pending or failed"):
            held.hooks.undelivered(state="lost")
        with pytest.raises(InvalidError):
            held.hooks.undelivered(cursor="nonsense")


@pytest.mark.nightly
def test_in_order_where_names_are_hidden(tmp_path: Path) -> None:
    got, failures, done = list[Any](), [1], threading.Event()
    encryption = Encryption(LocalKeys(b"1" * 32), hide_names=True)
    with holdfast.open(tmp_path / "s.db", encryption=encryption) as held:

        @held.hooks.after("state.set", durable=True, ordered=True)
        def deliver(call: HookContext) -> None:
            if call.key == "n" and failures:
                failures.pop()
                raise ConnectionError("not yet")
            got.append((call.key, call.value))
            if len(got) == 8:
                done.set()

        for n in range(4):
            held.state(agent="a").batch({"n": n, f"other/{n}": n})
        assert done.wait(50)
        assert held.hooks.drain(60)
        assert [value for key, value in got if key == "n"] == [0, 1, 2, 3]
        assert held.hooks.undelivered() == []


def test_a_copy_has_the_calls_that_were_not_delivered() -> None:
    """The copy of a store delivers them by the same ids, once however often it is copied; the original has its own."""
    clock, service, other = Clock(), Service(), Service()
    service.is_down = True
    with store(clock) as held, store(clock) as copy:
        held.hooks.after("state.set", durable=True, attempts=1, max_failures=1000, name="deliver")(service)
        held.state(agent="a")["n"] = 1
        assert held.hooks.drain(60)
        for _ in range(2):
            held.maintenance.copy_to(copy)
            assert states(copy) == states(held) == [("failed", 1, "ConnectionError")]
        copy.hooks.after("state.set", durable=True, name="deliver")(other)
        assert copy.hooks.retry_failed() == 1
        copy.hooks.recover()
        assert copy.hooks.drain(60)
        assert (other.got, states(copy), len(states(held))) == ([("n", 1)], [], 1)
        service.is_down = False
        assert held.hooks.retry_failed() == 1
        held.hooks.recover()
        assert held.hooks.drain(60)
        assert (service.ids, states(held)) == (other.ids, [])
