"""A transition that fails leaves the agent as it was, in memory and in the store."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import InvalidError
from tests.agents.workers import async_store_on, kinds, store_on

MACHINE = Machine("open", "closed", initial="open", validators={"closed": "check_closed"})
MACHINE.add("pay", "open", "closed", action="take")
MACHINE.add("reopen", "closed", "open")


class _Account:
    balance: int = 100
    notes: list[str]
    machine: ClassVar[Machine | None] = MACHINE
    _how = "error"

    def __init__(self) -> None:
        self.notes = []

    def check_closed(self, fields: Any) -> None:
        if fields["balance"] < 0:
            raise ValueError("overdrawn")

    def change_everything(self: Any) -> None:
        self.balance -= 40
        self.notes.append("took 40")
        self.context["last"] = "pay"
        self.metadata["by"] = "pay"


class Account(_Account, PersistentAgent):
    def take(self, _: Any) -> None:
        self.change_everything()
        self.conversation.append({"role": "user", "content": "half-done"})
        if self._how == "replace":
            self.conversation.replace(["nothing else"])
        if self._how == "save":
            self.save()
        if self._how == "validator":
            self.balance = -1
            return
        if self._how:
            raise ConnectionError("the bank is closed")

    def on_start(self) -> None:
        self.change_everything()
        raise ConnectionError("the bank is closed")


class AsyncAccount(_Account, AsyncPersistentAgent):
    async def take(self, _: Any) -> None:
        self.change_everything()
        self.conversation.append({"role": "user", "content": "half-done"})
        await asyncio.sleep(0)
        raise ConnectionError("the bank is closed")


def picture(agent: Any) -> tuple[Any, ...]:
    return agent.balance, agent.notes, dict(agent.context), dict(agent.metadata), agent.state


BEFORE: tuple[Any, ...] = (100, ["new"], {}, {}, "open")


@pytest.mark.parametrize("how", ["error", "validator", "replace", "save"])
def test_everything_is_as_it_was(how: str) -> None:
    store = store_on(MemoryBackend())
    account = Account().attach(store, "a")
    account.notes.append("new")
    account.conversation.append("hello")
    account.save()
    account._how = how
    for _ in range(3):
        with pytest.raises((ConnectionError, InvalidError), match="closed|overdrawn"):
            account.transition("pay")
        assert picture(account) == BEFORE
        assert list(account.conversation) == ["hello"]
        stored = store.agents.load("a")
        assert (stored.fields["balance"], stored.fields["notes"], stored.context) == (100, ["new"], {})
        assert (stored.messages, list(store.agents.messages("a")), stored.pending) == (1, ["hello"], None)
    assert kinds(store, "a").count("transition.failed") == 3
    account._how = ""
    assert account.transition("pay") == "closed"  # the control: what an action changes is saved
    stored = store.agents.load("a")
    assert (stored.fields["balance"], stored.fields["notes"], stored.messages) == (60, ["new", "took 40"], 2)
    assert store.maintenance.verify().ok


def test_a_start_that_fails_leaves_only_its_status() -> None:
    store = store_on(MemoryBackend())
    account = Account().attach(store, "a")
    account.notes.append("new")
    with pytest.raises(ConnectionError):
        account.start()
    assert picture(account) == BEFORE
    assert (account.status, store.agents.load("a").fields["balance"]) == ("failed", 100)


def test_everything_is_as_it_was_with_asyncio() -> None:
    async def main() -> None:
        store = async_store_on(MemoryBackend())
        account = AsyncAccount().attach(store, "a")
        account.notes.append("new")
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await account.transition("pay")
            assert picture(account) == BEFORE
            assert len(account.conversation) == 0
            assert (await store.agents.load("a")).fields["balance"] == 100
        await store.close()

    asyncio.run(main())
