"""Agents whose state machine is elsewhere have the records of agents with a class."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import Machine, PersistentAgent, count_transitions
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, VetoError
from tests.servers.places import KINDS, place
from tests.support.cases import case
from tests.support.nightly import mostly_nightly


class Account(PersistentAgent, name="tests: external account"):
    """An agent without a machine, and without a schema."""

    balance: int = 0


class Walker(PersistentAgent, name="tests: external walker"):
    """An agent with a class, which takes the same transitions."""

    url: str = ""
    machine = Machine("idle", "busy", "done")
    machine.add("fetch", "idle", "busy")
    machine.add("finish", "busy", "done", guard=lambda *_: False)


def take_both(store: holdfast.Store) -> None:
    """Have an agent with a class, and one without, do the same."""
    walker = store.agents.create(Walker, "with")
    walker.url = "x"
    walker.save()
    walker.transition("fetch", {"n": 1})
    with pytest.raises(VetoError):
        walker.transition("finish")
    store.agents.save_state("without", type="crawler", state="idle")
    store.agents.save_state("without", data={"url": "x"})
    store.agents.record_transition("without", "idle", "busy", trigger="fetch", data={"n": 1})
    error = VetoError("no guard allows 'finish' from the state 'busy'", where="agent 'with'")
    store.agents.record_transition("without", "busy", "done", trigger="finish", success=False, error=error)


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite",)))
def test_the_records_are_those_of_an_agent_with_a_class(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="acme") as store:
        take_both(store)
        agents = store.agents
        histories, taken, events = [], [], []
        for id in ("with", "without"):
            histories.append([(step.kind, step.state, step.version) for step in agents.history(id)])
            taken.append(
                [
                    (each.trigger, each.source, each.target, each.outcome, each.error, each.data)
                    for each in agents.transitions(id)
                ]
            )
            assert all(each.checkpoint and each.correlation for each in agents.transitions(id))
            found = store.timeline.query(scope=f"agent:{id}")
            events.append([(each.kind, each.action, each.outcome) for each in found])
        assert histories[0] == histories[1] != []
        assert taken[0] == taken[1]
        assert [each[3] for each in taken[0]] == ["error", "ok"]
        assert events[0] == events[1] != []
        record = agents.load("without")
        assert (record.kind, record.state, dict(record.fields), record.version) == ("crawler", "busy", {"url": "x"}, 4)
        counts = agents.metrics().counts
        assert (counts.transitions, counts.failed_transitions, counts.refused) == (2, 2, 2)
        assert count_transitions(agents.transitions("without")).entries == {"busy": 1}
        assert [each.id for each in agents.list(kind="crawler", state="busy")] == ["without"]


def test_what_it_returns(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        saved = store.agents.save_state("a", type="crawler", state="idle", data={"n": 1})
        assert (saved.version, saved.state, saved.kind, dict(saved.fields)) == (1, "idle", "crawler", {"n": 1})
        made = store.agents.record_transition("a", "idle", "busy", trigger="go")
        assert (made, made.ok) == (store.agents.transitions("a")[0], True)
        refused = store.agents.record_transition("a", "busy", "done", success=False)
        assert (refused, refused.error) == (store.agents.transitions("a")[0], "refused")
        assert store.agents.load("a").state == "busy"
        again = store.agents.save_state("a")
        assert (again.version, again.state, dict(again.fields)) == (4, "busy", {"n": 1})
        assert store.agents.save_state("b").kind == "agent"
        with pytest.raises(NotFoundError) as unknown:  # its class is nowhere
            store.agents.restore("a")
        assert unknown.value.code == "agent-class-unknown"


def test_asyncio(tmp_path: Path) -> None:
    async def work() -> None:
        async with await holdfast.aopen(tmp_path / "s.db") as store:
            await store.agents.save_state("a", state="idle")
            made = await store.agents.record_transition("a", "idle", "busy")
            assert made.target == (await store.agents.load("a")).state == "busy"

    asyncio.run(work())


def test_what_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        agents: Any = store.agents
        agents.create(Walker, "with")
        agents.save_state("a", type="crawler", state="idle")
        wrong: tuple[tuple[Any, type[Exception], str], ...] = (
            (lambda: agents.record_transition("none", "a", "b"), NotFoundError, "not-found"),
            (lambda: agents.record_transition("a", "", "b"), InvalidError, "invalid"),
            (lambda: agents.record_transition("a", "idle", "b", error="no"), InvalidError, "invalid"),
            (lambda: agents.save_state("a", type="walker"), InvalidError, "invalid"),
            (lambda: agents.save_state("a", state=5), InvalidError, "invalid"),
            (lambda: agents.save_state("a", data=[1]), InvalidError, "invalid"),
            (lambda: agents.save_state("with", state="done"), InvalidError, "agent-class"),
            (lambda: agents.save_state("new", type="tests: external walker"), InvalidError, "agent-class"),
            (lambda: agents.record_transition("with", "idle", "done"), InvalidError, "agent-class"),
        )
        for number, (call, kind, code) in enumerate(wrong):
            with case(subtests, number):
                with pytest.raises(kind) as refused:
                    call()
                assert getattr(refused.value, "code", "") == code
        assert (agents.load("a").version, agents.load("with").version, agents.exists("new")) == (1, 1, False)


@pytest.mark.parametrize("kind", [Walker, Account])
def test_an_agent_with_a_class_is_known_where_the_class_is_not(kind: Any, tmp_path: Path) -> None:
    from holdfast.agents.definition.spec import registry

    with holdfast.open(tmp_path / "s.db") as store:
        store.agents.create(kind, "with")
        before = store.agents.load("with")
        registry.forget(kind.spec.name)
        try:
            for call in (
                lambda: store.agents.record_transition("with", "idle", "done"),
                lambda: store.agents.save_state("with", data={"balance": -1}),
            ):
                with pytest.raises(InvalidError) as refused:
                    call()
                assert refused.value.code == "agent-class"
        finally:
            registry.register(kind.spec)
        assert store.agents.load("with") == before


def test_a_class_that_is_declared_later_takes_the_agent_over(tmp_path: Path) -> None:
    from holdfast.agents.definition.spec import registry

    with holdfast.open(tmp_path / "s.db") as store:
        registry.forget(Account.spec.name)
        try:
            store.agents.save_state("a", type=Account.spec.name, data={"balance": 7})
        finally:
            registry.register(Account.spec)
        account = store.agents.restore("a", Account)
        assert account.balance == 7
        account.balance = 8
        account.save()
        registry.forget(Account.spec.name)
        try:
            with pytest.raises(InvalidError, match="have a class"):
                store.agents.save_state("a", data={"balance": -1})
        finally:
            registry.register(Account.spec)
        assert store.agents.load("a").fields["balance"] == 8


def test_hooks(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        seen = []

        @store.hooks.before("agent.*", inline=True)
        def watch(call: Any) -> None:
            seen.append((call.point, call.metadata.get("to"), call.metadata["class"]))
            if call.metadata.get("to") == "forbidden":
                raise VetoError("closed today")

        store.agents.save_state("a", type="crawler", state="idle")
        store.agents.save_state("a", data={"n": 1})
        store.agents.record_transition("a", "idle", "busy", trigger="go")
        with pytest.raises(VetoError):
            store.agents.record_transition("a", "busy", "forbidden", trigger="err")
        assert seen == [
            ("agent.create", None, "crawler"),
            ("agent.save", None, "crawler"),
            ("agent.transition", "busy", "crawler"),
            ("agent.transition", "forbidden", "crawler"),
        ]
        refused = store.agents.transitions("a")[0]
        assert (refused.outcome, refused.target, "closed today" in refused.error) == ("error", "forbidden", True)
        assert (store.agents.load("a").state, store.agents.history("a")[0].kind) == ("busy", "transition.refused")


def test_rights(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        store.agents.save_state("a", state="idle")
        own, other = store.as_identity("agent:a"), store.as_identity("agent:b")
        assert own.agents.record_transition("a", "idle", "busy").actor == "agent:a"
        for denied in (
            lambda: other.agents.save_state("a", state="x"),
            lambda: other.agents.record_transition("a", "busy", "x"),
            lambda: other.agents.record_transition("a", "busy", "x", success=False),
            lambda: other.agents.save_state("c", state="x"),
            lambda: other.agents.save_state("c", type="tests: external walker"),
        ):
            with pytest.raises(DeniedError):
                denied()
        store.access.grant("agent:b", "read", agent="a")
        with pytest.raises(DeniedError):
            other.agents.record_transition("a", "busy", "x")
        assert (store.agents.load("a").version, store.agents.exists("c")) == (2, False)


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        store.agents.save_state("a", state="0")
        errors: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for number in range(10):
                    store.agents.record_transition("a", "0", "0", trigger=f"{name}{number}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert errors == []
        triggers = sorted(each.trigger for each in store.agents.transitions("a"))
        assert triggers == sorted(f"{name}{number}" for name in "xyz" for number in range(10))


def test_maintenance(tmp_path: Path) -> None:
    """What is done with agents is done with these: roll back, export, import, delete, copy, back up."""
    with holdfast.open(tmp_path / "s.db") as store, holdfast.open("memory://") as copy:
        store.agents.save_state("a", type="crawler", state="idle", data={"n": 1})
        store.agents.record_transition("a", "idle", "busy", trigger="go")
        store.maintenance.copy_to(copy)
        copy.agents.record_transition("a", "busy", "done", trigger="end")
        assert [each.trigger for each in copy.agents.transitions("a")] == ["end", "go"]
        assert store.agents.rollback("a", "idle").state == "idle"
        store.agents.import_(store.agents.export("a"), id="b")
        assert store.agents.save_state("b", state="busy").state == "busy"
        backups = store.backups(tmp_path / "backups")
        backups.create()
        store.agents.delete("a")
        with pytest.raises(NotFoundError):
            store.agents.record_transition("a", "idle", "busy")
        assert store.agents.save_state("a", type="other").version == 1
        assert store.maintenance.verify().ok
        with pytest.raises(ConflictError):
            store.agents.create(Walker, "a")
