"""Transitions that are refused are recorded and counted, and change nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents import AsyncPersistentAgent, Machine, PersistentAgent, count_transitions, mermaid
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import InvalidError, OutcomeUnknownError, VetoError
from tests.agents.workers import store_on
from tests.servers.places import KINDS, place
from tests.support.faults import Fault, Faults
from tests.support.nightly import mostly_nightly


def _positive(_: Any, data: Any) -> None:
    if data is not None and data < 0:
        raise ValueError("negative")


def _paid(agent: Any, _: Any) -> None:
    if not agent.paid:
        raise InvalidError("it is not paid")


def _machine() -> Machine:
    machine = Machine("cart", "ordered", "sent", final=["sent"], validators={"sent": _paid})
    machine.add("order", "cart", "ordered", guard=lambda _, data: data != 13, validators=[_positive])
    machine.add("send", "ordered", "sent")
    machine.add("pack", "ordered", "sent", action=lambda *_: None)
    machine.add("reset", "*", "cart")
    return machine


class Shop(PersistentAgent, name="tests: refusing shop"):
    """An agent whose machine refuses much."""

    machine = _machine()
    paid: bool = False
    note: str = ""


class AsyncShop(AsyncPersistentAgent, name="tests: refusing shop, async"):
    machine = _machine()
    paid: bool = False


def refuse_all(store: Store, shop: Shop) -> list[tuple[str, str, str, str]]:
    """Have transitions refused in every way. Returns from, to, trigger and a part of the error of each."""
    expected = []

    def refused(trigger: str, data: Any, kind: type[Exception], target: str, text: str) -> None:
        source = shop.state
        with pytest.raises(kind):
            shop.transition(trigger, data)
        expected.append((source, target, trigger, text))

    refused("order", -1, ValueError, "ordered", "negative")
    refused("order", 13, VetoError, "ordered", "no guard")
    refused("send", None, InvalidError, "", "not a trigger")
    refused("fly", None, InvalidError, "", "not a trigger")
    store.hooks.before("agent.transition", name="closed", inline=True)(_refuse)
    refused("order", 1, VetoError, "ordered", "closed today")
    store.hooks.remove("closed")
    shop.transition("order", 1)
    refused("send", None, InvalidError, "sent", "not paid")
    refused("pack", None, InvalidError, "sent", "not paid")
    return expected


def _refuse(_: Any) -> None:
    raise VetoError("closed today")


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite",)))
def test_every_refusal_is_recorded_and_counted(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="acme") as store:
        shop = Shop().attach(store, "shop")
        shop.save()
        expected = refuse_all(store, shop)
        failed = store.agents.transitions("shop", outcome="error", oldest_first=True)
        found = [(each.source, each.target, each.trigger) for each in failed]
        assert found == [each[:3] for each in expected]
        for record, (*_, text) in zip(failed, expected, strict=True):
            assert text in record.error
            assert not record.ok
        metrics = store.maintenance.metrics()
        assert metrics.value("validation_failures_total", kind="transition") == len(expected)
        assert metrics.value("transitions_total", outcome="failed") == len(expected)
        assert metrics.value("transitions_total", outcome="ok") == 1
        events = [each for each in store.timeline.query("kind:transition", limit=50) if each.outcome == "error"]
        assert len(events) == len(expected)
        shop.paid = True
        assert shop.transition("send") == "sent"  # and the handle goes on from there
        assert store.audit.verify().findings == []
        assert store.maintenance.verify().findings == []


def test_a_refusal_changes_nothing_else(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        shop = Shop().attach(store, "shop")
        shop.save()
        shop.note = "not saved yet"
        before = store.agents.load("shop")
        with pytest.raises(InvalidError):
            shop.transition("send")
        after = store.agents.load("shop")
        assert (after.fields, after.state, after.status) == (before.fields, before.state, before.status)
        assert shop.note == "not saved yet"
        shop.save()
        assert store.agents.load("shop").fields["note"] == "not saved yet"
        listed = store.agents.list()
        assert [(each.id, each.state) for each in listed] == [("shop", "cart")]


def test_a_refusal_elsewhere_is_no_conflict(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store, holdfast.open(tmp_path / "s.db") as other:
        shop = Shop().attach(store, "shop")
        shop.save()
        same = Shop().attach(other, "shop")
        same.reload()
        for _ in range(2):
            with pytest.raises(InvalidError):
                same.transition("send")
        shop.note = "mine"
        shop.save()
        assert shop.transition("order", 1) == "ordered"
        with pytest.raises(InvalidError):  # after another's save, it is recorded there
            same.transition("fly")
        assert store.agents.transitions("shop", limit=1)[0].trigger == "fly"
        assert store.agents.load("shop").state == "ordered"


def test_an_agent_that_was_never_saved_has_no_record(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        shop = Shop().attach(store, "shop")
        with pytest.raises(InvalidError):
            shop.transition("send")
        assert not store.agents.exists("shop")
        assert store.maintenance.metrics().value("validation_failures_total", kind="transition") == 1


def test_what_cannot_be_recorded_does_not_hide_the_refusal(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        shop = Shop().attach(store, "shop")
        shop.save()
        with pytest.raises(InvalidError, match="not a trigger") as error:
            shop.transition("send", object())
        assert "could not be recorded" in error.value.__notes__[0]


def test_an_identity(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        shop = Shop().attach(store.as_identity(agent="shop"), "shop")
        shop.save()
        with pytest.raises(InvalidError):
            shop.transition("send")
        assert store.agents.transitions("shop")[0].actor == "agent:shop"


def test_erasure_backup_and_copy(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        shop = Shop().attach(store, "shop")
        shop.metadata["subject"] = "ann"
        shop.save()
        with pytest.raises(InvalidError):
            shop.transition("send", {"to": "ann's address"})
        store.backups(f"file://{tmp_path}/backups").create()
        with holdfast.open(tmp_path / "new.db") as new:
            new.backups(f"file://{tmp_path}/backups").restore()
            assert [each.trigger for each in new.agents.transitions("shop")] == ["send"]
            assert new.agents.machine("shop") == store.agents.machine("shop")
            assert new.maintenance.verify().findings == []
        store.erasure.erase("ann")
        assert not store.agents.exists("shop")
        assert store.audit.verify().findings == []


def test_async(tmp_path: Path) -> None:
    async def main() -> None:
        async with await holdfast.aopen(tmp_path / "s.db") as store:
            shop = AsyncShop().attach(store, "shop")
            await shop.save()
            with pytest.raises(InvalidError):
                await shop.transition("send")
            (record,) = await store.agents.transitions("shop")
            assert (record.source, record.trigger, record.ok) == ("cart", "send", False)

    asyncio.run(main())


def test_a_drawing_has_all_declared_edges(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        shop = Shop().attach(store, "shop")
        shop.save()
        with pytest.raises(InvalidError):
            shop.transition("fly")
        declared = store.agents.machine("shop")
        assert declared is not None
        machine = Machine.of(declared)
        assert [*_edges(machine)] == [*_edges(Shop.machine)]
        assert (machine.initial, machine.final) == ("cart", frozenset({"sent"}))
        drawn = mermaid(machine, count_transitions(store.agents.transitions("shop")), "cart")
        assert all(trigger in drawn for trigger in ("order", "send", "pack", "reset"))
        assert "fly" not in drawn


def _edges(machine: Machine) -> list[tuple[str, str, str]]:
    return [(each.source, each.trigger, each.target) for each in machine.expand()]


def test_the_object_of_a_deleted_agent_records_nothing_for_its_successor() -> None:
    with holdfast.open("memory://") as store:
        old = Shop()
        old.attach(store, "shop")
        old.start()
        store.agents.delete("shop")
        new = Shop()
        new.attach(store, "shop")
        new.start()
        before = store.agents.load("shop").version
        for trigger in ("pack", "unknown"):
            with pytest.raises(InvalidError):
                old.transition(trigger, "secret")
        assert store.agents.load("shop").version == before
        assert list(store.agents.transitions("shop")) == []
        with pytest.raises(InvalidError):
            new.transition("pack")
        assert [each.trigger for each in store.agents.transitions("shop")] == ["pack"]  # the control


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_refusal_whose_record_may_be_stored(when: Any) -> None:
    """The agent has the version that is stored, once it has looked, and its next save is no conflict."""
    faults = Faults(MemoryBackend())
    store = store_on(faults)
    shop = Shop()
    shop.attach(store, "shop")
    shop.start()
    before = shop.version
    faults.plan = [Fault("apply", faults.applies + 1, lambda: OutcomeUnknownError("down"), when)]
    with pytest.raises(InvalidError, match="pack") as caught:
        shop.transition("pack")
    assert "could not be recorded" in caught.value.__notes__[0]
    faults.plan = []
    shop.recover()
    assert shop.version == store.agents.load("shop").version == before + (when == "after")
    shop.note = "next"
    shop.save()
    assert shop.version == store.agents.load("shop").version == before + (when == "after") + 1
