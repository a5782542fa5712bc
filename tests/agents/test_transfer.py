"""Transfers: one agent hands its conversation over to another; requested, refused, and listed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.options import Autosave
from holdfast.agents.definition.spec import registry
from holdfast.agents.runtime.placeholder import load_placeholder
from holdfast.agents.transfer.offer import Offer
from holdfast.backends.runtime.drivers import run
from holdfast.errors import (
    ConflictError,
    DeniedError,
    InvalidError,
    NotFoundError,
    TransientError,
    UnsupportedError,
    VetoError,
)
from holdfast.security.audit.verify import verify


class Giver(PersistentAgent, name="giver-of-tests"):
    """Hands over."""

    keeps: bool = False
    note: str = ""

    def offers(self, offer: Offer) -> bool:
        """Only if it may."""
        return not self.keeps


class Receiver(PersistentAgent, name="receiver-of-tests"):
    """Takes over, if it is not too much."""

    most: int = 100
    told: list[str] = []

    def accepts(self, offer: Offer) -> None:
        """Refuse what is too much."""
        if offer.messages > self.most:
            raise ValueError(f"{offer.messages} messages are too many")

    def on_receive(self, offer: Offer) -> None:
        """Note it."""
        self.told.append(f"{offer.source}: {offer.reason}, {offer.messages}")


class AsyncGiver(AsyncPersistentAgent, name="async-giver-of-tests"):
    """For asyncio."""


class AsyncReceiver(AsyncPersistentAgent, name="async-receiver-of-tests"):
    """For asyncio; it takes its time."""

    told: list[str] = []

    async def accepts(self, offer: Offer) -> bool:
        """After some time."""
        await asyncio.sleep(0)
        return offer.reason != "no"

    async def on_receive(self, offer: Offer) -> None:
        """Note it."""
        self.told.append(offer.source)


class Slow(AsyncPersistentAgent, name="slow-receiver-of-tests"):
    """For asyncio; it never makes up its mind."""

    async def accepts(self, offer: Offer) -> None:
        """Wait."""
        await asyncio.Event().wait()


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    """A store in memory."""
    with holdfast.open("memory://") as opened:
        yield opened


def pair(store: holdfast.Store, count: int = 3) -> tuple[Giver, Receiver]:
    """A giver with messages and a context, and a receiver."""
    giver, receiver = Giver().attach(store, "a"), Receiver().attach(store, "b")
    giver.conversation.extend(range(count))
    giver.context.update(customer="Ada", open=True)
    receiver.conversation.append("own")
    receiver.context.update(customer="nobody", desk=4)
    return giver, receiver


def test_a_conversation_goes_over_with_its_context(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    done = giver.transfer(receiver, context={"open": False, "why": "billing"}, reason="billing")
    assert (done.source, done.target, done.phase, done.messages, done.reason) == (
        "a",
        "b",
        "acknowledged",
        3,
        "billing",
    )
    for a, b in ((giver, receiver), (store.agents.restore("a"), store.agents.restore("b"))):
        assert (list(a.conversation), a.context, a.conversation.tokens) == ([], {}, 0)
        assert list(b.conversation) == ["own", 0, 1, 2]
        assert b.context == {"customer": "Ada", "desk": 4, "open": False, "why": "billing"}
        assert a.metadata["transferred"]["to"] == "b"
        assert b.metadata["received"]["from"] == "a"
        assert (b.told, a.persister.data.pending, b.persister.data.pending) == (
            ["a: billing, 3"],
            None,
            None,
        ) or b is receiver
    assert receiver.told == ["a: billing, 3"]
    giver.conversation.append("new")
    giver.save()
    receiver.conversation.append("after")
    receiver.save()
    assert list(store.agents.restore("a").conversation) == ["new"]
    assert list(store.agents.restore("b").conversation) == ["own", 0, 1, 2, "after"]
    assert store.maintenance.verify().findings == []


def test_the_history_of_the_giver_keeps_what_it_gave(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.save()
    version = giver.version
    giver.transfer(receiver)
    assert store.agents.messages("a", version=version) == [0, 1, 2]
    assert store.agents.messages("a") == []


def test_a_receiver_that_refuses_leaves_all_as_it_was(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    receiver.most = 2
    receiver.save()
    before = store.agents.load("b")
    for to in (receiver, "b"):
        with pytest.raises(DeniedError, match="3 messages are too many") as refused:
            giver.transfer(to, reason="try")
        assert refused.value.code == "transfer-refused"
        again = store.agents.restore("a")
        assert (list(again.conversation), again.context) == ([0, 1, 2], {"customer": "Ada", "open": True})
        assert again.persister.data.pending is None
        assert store.agents.load("b") == before
        assert "transferred" not in again.metadata
    phases = [(each.phase, each.error) for each in store.agents.transfers("a")]
    assert phases == [("refused", "ValueError: 3 messages are too many")] * 2
    giver.transfer("b", accept=True)
    assert store.agents.messages("b") == ["own", 0, 1, 2]


@pytest.mark.parametrize("hook", ["offers", "accepts"])
@pytest.mark.parametrize("said", [False, 0, "", (), None, True, 1, "yes"], ids=repr)
def test_what_is_false_is_a_no_and_nothing_is_a_yes(store: holdfast.Store, said: Any, hook: str) -> None:
    giver, receiver = pair(store)
    setattr(giver if hook == "offers" else receiver, hook, lambda offer: said)
    if said or said is None:
        giver.transfer(receiver)
        return
    with pytest.raises(DeniedError, match="it said no"):
        giver.transfer(receiver)
    assert list(giver.conversation) == [0, 1, 2]


def test_a_refusal_may_be_an_error_of_ours(store: holdfast.Store) -> None:
    giver, receiver = pair(store)

    def accepts(offer: Offer) -> bool:
        raise InvalidError("the desk is closed", hint="Come tomorrow")

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    with pytest.raises(DeniedError, match="agent 'b' does not accept it: the desk is closed"):
        giver.transfer(receiver)


def test_a_receiver_that_cannot_say_does_not_refuse(store: holdfast.Store) -> None:
    giver, receiver = pair(store)

    def accepts(offer: Offer) -> bool:
        raise TransientError("its calendar does not answer")

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    with pytest.raises(TransientError):
        giver.transfer(receiver)
    assert [each.phase for each in store.agents.transfers("a")] == ["undone"]
    assert (list(giver.conversation), giver.persister.data.pending) == ([0, 1, 2], None)


def test_a_receiver_that_refuses_while_another_saves_the_giver(store: holdfast.Store) -> None:
    giver, receiver = pair(store)

    def accepts(offer: Offer) -> bool:
        other = store.agents.restore("a")
        other.conversation.append("other")
        other.save()
        return False

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    with pytest.raises(DeniedError):
        giver.transfer(receiver)
    record = store.agents.load("a")
    assert (record.pending, store.agents.messages("a")) == (None, [0, 1, 2, "other"])
    assert [each.phase for each in store.agents.transfers("a")] == ["refused"]


def test_a_hook_may_forbid_it(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    seen: list[str] = []

    @store.hooks.before("agent.transfer")
    def never(call: Any) -> None:
        seen.append(call.metadata["target"])
        raise VetoError("not today")

    with pytest.raises(VetoError, match="not today"):
        giver.transfer(receiver)
    assert (seen, list(giver.conversation), giver.persister.data.pending) == (["b"], [0, 1, 2], None)


@pytest.mark.parametrize("how", ["merge", "overwrite"])
def test_who_goes_on_from_before_and_merges_holds_nothing_twice(store: holdfast.Store, how: Any) -> None:
    giver, receiver = Giver().attach(store, "a", on_conflict=how), Receiver().attach(store, "b", on_conflict=how)
    giver.conversation.extend(range(3))
    receiver.conversation.append("own")
    giver.save()
    receiver.save()
    store.agents.transfer("a", "b")
    giver.conversation.append("late")
    giver.save()
    receiver.conversation.append("late, too")
    receiver.save()
    assert (store.agents.messages("a"), store.agents.messages("b")) == (["late"], ["own", 0, 1, 2, "late, too"])


def test_a_giver_may_refuse_to_give(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.keeps = True
    giver.save()
    version = giver.version
    with pytest.raises(DeniedError, match="it said no"):
        giver.transfer(receiver)
    assert (giver.version, list(giver.conversation)) == (version, [0, 1, 2])


def test_by_ids_both_are_asked(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.save()
    receiver.save()
    done = store.agents.transfer("a", "b", reason="night")
    assert done.phase == "acknowledged"
    assert store.agents.messages("b") == ["own", 0, 1, 2]
    assert store.agents.load("b").fields["told"] == ["a: night, 3"]
    for stale in (giver, receiver):  # whoever is alive goes on from before
        stale.conversation.append("late")
        with pytest.raises(ConflictError):
            stale.save()
    assert store.agents.messages("b") == ["own", 0, 1, 2]


def test_what_is_unsaved_goes_over_too(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.save()
    receiver.save()
    giver.conversation.append("unsaved")
    giver.note = "unsaved too"
    receiver.conversation.append("own, unsaved")
    giver.transfer(receiver)
    assert store.agents.messages("b") == ["own", "own, unsaved", 0, 1, 2, "unsaved"]
    assert store.agents.restore("a").note == "unsaved too"


def test_what_was_rewritten_and_not_saved_goes_over_as_it_is(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.save()
    receiver.save()
    giver.conversation.replace(["short"])
    receiver.conversation.clear()
    giver.transfer(receiver)
    assert (store.agents.messages("a"), store.agents.messages("b")) == ([], ["short"])
    assert (list(giver.conversation), list(receiver.conversation)) == ([], ["short"])


def test_what_is_added_while_the_receiver_thinks_goes_over_too(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    receiver.accepts = lambda offer: giver.conversation.append("meanwhile")  # type: ignore[method-assign]
    assert giver.transfer(receiver).messages == 4
    assert store.agents.messages("b") == ["own", 0, 1, 2, "meanwhile"]
    assert list(giver.conversation) == []


@pytest.mark.parametrize("write_through", [False, True], ids=["saved", "write-through"])
def test_what_is_added_while_it_is_handed_over_stays(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch, write_through: bool
) -> None:
    giver, receiver = pair(store)
    if write_through:
        giver.attach(store, "a", autosave=Autosave(write_through=True))
        receiver.attach(store, "b", autosave=Autosave(write_through=True))
    giver.save()
    sent = giver.persister.send

    async def slow(*attempts: Any) -> Any:
        giver.conversation.append("late")
        receiver.conversation.append("late, too")
        giver.context["late"] = 1
        with pytest.raises(ConflictError, match="being transferred"):
            giver.conversation.clear()
        with pytest.raises(ConflictError, match="being transferred"):
            receiver.conversation.summarize("short")
        return await sent(*attempts)

    def accepts(offer: Offer) -> bool:
        monkeypatch.setattr(giver.persister, "send", slow)
        return True

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    giver.transfer(receiver)
    monkeypatch.undo()
    assert list(giver.conversation) == ["late"]
    assert list(receiver.conversation) == ["own", 0, 1, 2, "late, too"]
    giver.save()
    receiver.save()
    assert (store.agents.messages("a"), store.agents.load("a").context) == (["late"], {"late": 1})
    assert store.agents.messages("b") == ["own", 0, 1, 2, "late, too"]
    assert store.agents.load("a").tokens == giver.conversation.tokens


def test_nothing_to_hand_over_is_handed_over_all_the_same(store: holdfast.Store) -> None:
    giver, receiver = Giver().attach(store, "a"), Receiver().attach(store, "b")
    assert giver.transfer(receiver).messages == 0
    assert (list(giver.conversation), list(receiver.conversation)) == ([], [])
    giver.conversation.append(1)
    giver.transfer(receiver)
    assert store.agents.messages("b") == [1]


def test_a_hook_of_the_receiver_that_fails_is_told_and_changes_nothing(store: holdfast.Store) -> None:
    giver, receiver = pair(store)

    def fails(offer: Offer) -> None:
        raise RuntimeError("no desk")

    receiver.on_receive = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no desk"):
        giver.transfer(receiver)
    assert store.agents.messages("b") == ["own", 0, 1, 2]
    assert store.agents.load("b").pending is None
    (last,) = store.agents.transfers("b")
    assert (last.phase, last.error) == ("acknowledged", "RuntimeError: no desk")


def test_wrong_use(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    with pytest.raises(InvalidError, match="cannot transfer to itself"):
        giver.transfer("a")
    with pytest.raises(InvalidError, match="cannot transfer to itself"):
        giver.transfer(giver)
    with pytest.raises(NotFoundError):
        giver.transfer("nobody")
    with pytest.raises(InvalidError, match="must be an agent or an id"):
        giver.transfer(7)
    with pytest.raises(InvalidError, match="strings"):
        giver.transfer(receiver, context={1: 2})  # type: ignore[dict-item]
    with pytest.raises(UnsupportedError):
        giver.transfer(receiver, context={"x": lambda: 1})
    with pytest.raises(NotFoundError):
        store.agents.transfers("nobody")
    with pytest.raises(NotFoundError):
        store.agents.transfer("nobody", "a")
    with holdfast.open("memory://") as other, pytest.raises(InvalidError, match="the same store"):
        giver.transfer(Receiver().attach(other, "c"))
    assert store.agents.exists("a") is False
    giver.transfer(receiver)
    with pytest.raises(InvalidError, match="cannot transfer to itself"):
        store.agents.restore("a").transfer("a")


def test_rows_tell_of_it_on_both_lines_by_one_id(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    first = giver.transfer(receiver, reason="one")
    second = receiver.transfer(giver, reason="two")
    told = {id: [(each.id, each.phase, each.messages) for each in store.agents.transfers(id)] for id in "ab"}
    assert told["a"] == [(second.id, "acknowledged", 4), (first.id, "given", 3)]
    assert told["b"] == [(second.id, "given", 4), (first.id, "acknowledged", 3)]
    for id in "ab":
        assert list(store.agents.transfers(id, limit=1).all()) == store.agents.transfers(id)
    assert run(verify(store._handle.engine, store.tenant)).ok


def test_transfers_are_found_among_many_other_rows(store: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.storage.transition_log._PAGE", 2)
    giver, receiver = pair(store)
    done = [giver.transfer(receiver)]
    for _ in range(5):
        giver.save()
    done.append(giver.transfer(receiver))
    assert [each.id for each in store.agents.transfers("a")] == [done[1].id, done[0].id]
    assert [each.id for each in store.agents.transfers("a", limit=1)] == [done[1].id]
    assert list(store.agents.transfers("a", limit=1).all()) == store.agents.transfers("a")
    assert store.agents.transfers("a", limit=0) == []
    with pytest.raises(InvalidError):
        store.agents.transfers("a", cursor="x")


def test_a_class_that_is_not_known_can_be_handed_to_by_hand_only(store: holdfast.Store) -> None:
    class Stranger(PersistentAgent, name="stranger-of-tests"):
        kept: int = 7

    giver, _ = pair(store)
    Stranger().attach(store, "s").save()
    registry.forget("stranger-of-tests")
    with pytest.raises(NotFoundError) as unknown:
        giver.transfer("s")
    assert unknown.value.code == "agent-class-unknown"
    giver.transfer("s", accept=True)
    record = store.agents.load("s")
    assert (record.kind, record.fields, store.agents.messages("s")) == ("stranger-of-tests", {"kept": 7}, [0, 1, 2])
    store.agents.transfer("s", "a", accept=True)
    assert store.agents.messages("a") == [0, 1, 2]
    assert run(load_placeholder(giver.persister.line)).data.conversation.tokens == store.agents.load("a").tokens


def test_who_acts_must_be_allowed_to_write_both(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.save()
    receiver.save()
    acting = store.as_identity(agent="a")
    mine = acting.agents.restore("a")
    version = mine.version
    with pytest.raises(DeniedError):
        mine.transfer("b")
    with pytest.raises(DeniedError):
        acting.agents.transfer("a", "b", accept=True)
    with pytest.raises(DeniedError):
        acting.agents.transfers("b")
    assert store.agents.load("a").version == version
    store.access.grant("agent:a", "write", agent="b")
    store.access.grant("agent:a", "read", agent="b")
    mine.transfer("b")
    assert store.agents.messages("b") == ["own", 0, 1, 2]
    assert {each.actor for each in store.agents.transfers("b")} == {"agent:a"}


def test_a_giver_that_was_saved_by_another_gives_nothing(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    giver.save()
    other = store.agents.restore("a")
    other.conversation.append("other")
    other.save()
    with pytest.raises(ConflictError):
        giver.transfer(receiver)
    assert store.agents.messages("a") == [0, 1, 2, "other"]
    assert store.agents.load("a").pending is None
    assert list(giver.conversation) == [0, 1, 2]


def test_what_is_told_while_it_fails_to_be_handed_over_stays(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver, receiver = pair(store)
    giver.save()

    async def fails(*attempts: Any) -> Any:
        giver.context["late"], receiver.context["late"] = 1, 2
        giver.conversation.append("late")
        monkeypatch.setattr(giver.persister, "send", down_still)
        raise TransientError("the store is down")

    async def down_still(*attempts: Any) -> Any:
        raise TransientError("the store is down")

    def accepts(offer: Offer) -> bool:
        monkeypatch.setattr(giver.persister, "send", fails)
        return True

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    with pytest.raises(TransientError) as down:
        giver.transfer(receiver)
    assert "could not be saved" in down.value.__notes__[0]
    monkeypatch.undo()
    assert giver.context == {"customer": "Ada", "open": True, "late": 1}
    assert receiver.context == {"customer": "nobody", "desk": 4, "late": 2}
    assert list(giver.conversation) == [0, 1, 2, "late"]
    with pytest.raises(ConflictError) as half:
        giver.transfer(receiver)
    assert half.value.code == "transition-incomplete"
    with pytest.raises(ConflictError):
        Giver().attach(store, "c").transfer("a")
    giver.recover()
    assert store.agents.load("a").pending is None


def test_a_giver_that_is_saved_by_another_meanwhile_gives_nothing(store: holdfast.Store) -> None:
    giver, receiver = pair(store)

    def accepts(offer: Offer) -> bool:
        other = store.agents.restore("a")
        other.conversation.append("other")
        other.save()
        return True

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    with pytest.raises(ConflictError):
        giver.transfer(receiver)
    assert store.agents.messages("a") == [0, 1, 2, "other"]
    assert not store.agents.exists("b")
    assert store.agents.load("a").pending is None
    assert [each.phase for each in store.agents.transfers("a")] == ["undone"]
    store.agents.restore("a").transfer(Receiver().attach(store, "c"))
    assert store.agents.messages("c") == [0, 1, 2, "other"]


def test_a_giver_that_is_started_elsewhere_meanwhile_is_not_meddled_with(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    others: list[Any] = []

    def accepts(offer: Offer) -> bool:
        others.append(store.agents.restore("a"))
        others[0].start()
        return True

    receiver.accepts = accepts  # type: ignore[method-assign,assignment]
    with pytest.raises(ConflictError):
        giver.transfer(receiver)
    others[0].conversation.append("on")
    others[0].save()
    assert store.agents.messages("a") == [0, 1, 2, "on"]
    assert [each.kind for each in others[0].recoveries] == ["transfer"]


def test_a_live_receiver_that_was_saved_by_another_receives_nothing(store: holdfast.Store) -> None:
    giver, receiver = pair(store)
    receiver.save()
    other = store.agents.restore("b")
    other.conversation.append("other")
    other.save()
    with pytest.raises(ConflictError):
        giver.transfer(receiver)
    assert (store.agents.messages("a"), store.agents.messages("b")) == ([0, 1, 2], ["own", "other"])
    assert [each.phase for each in store.agents.transfers("a")] == ["undone"]
    assert (list(giver.conversation), giver.context) == ([0, 1, 2], {"customer": "Ada", "open": True})
    giver.transfer("b")  # as it is by now
    assert store.agents.messages("b") == ["own", "other", 0, 1, 2]


def test_a_receiver_by_id_that_is_saved_by_another_meanwhile_is_asked_again(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver, receiver = pair(store)
    receiver.save()
    asked: list[int] = []

    def accepts(self: Receiver, offer: Offer) -> bool:
        asked.append(len(self.conversation))
        if len(asked) == 1:
            receiver.conversation.append("meanwhile")
            receiver.save()
        return True

    monkeypatch.setattr(Receiver, "accepts", accepts)
    giver.transfer("b")
    assert asked == [1, 2]
    assert store.agents.messages("b") == ["own", "meanwhile", 0, 1, 2]


def test_two_who_hand_to_each_other_at_once(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/s.db") as store:
        giver, receiver = pair(store)
        giver.save()
        receiver.save()
        errors: list[BaseException] = []
        both = threading.Barrier(2)

        def work(source: Any, target: Any) -> None:
            both.wait()
            for _ in range(10):
                try:
                    source.transfer(target, accept=True)
                except ConflictError as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, args=each) for each in ((giver, receiver), (receiver, giver))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        held = [list(giver.conversation), list(receiver.conversation)]
        assert sorted(map(str, held[0] + held[1])) == ["0", "1", "2", "own"]
        assert [store.agents.messages("a"), store.agents.messages("b")] == held
        assert errors == []


def test_of_two_copies_that_hand_over_one_does(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with holdfast.open(url) as one, holdfast.open(url) as two:
        giver, receiver = pair(one)
        giver.save()
        receiver.save()
        Receiver().attach(one, "c").save()
        copies = [one.agents.restore("a"), two.agents.restore("a")]
        outcomes: list[str] = []
        both = threading.Barrier(2)

        def work(copy: Any, target: str) -> None:
            both.wait()
            try:
                copy.transfer(target)
                outcomes.append(target)
            except ConflictError:
                outcomes.append("")

        threads = [threading.Thread(target=work, args=each) for each in zip(copies, "bc", strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        (winner,) = (each for each in outcomes if each)
        held = {id: one.agents.messages(id) for id in "abc"}
        assert held["a"] == []
        assert held[winner][-3:] == [0, 1, 2]
        assert sum(messages.count(1) for messages in held.values()) == 1


def test_the_same_for_asyncio() -> None:
    async def scenario() -> None:
        async with await holdfast.aopen("memory://") as store:
            giver, receiver = AsyncGiver().attach(store, "a"), AsyncReceiver().attach(store, "b")
            giver.conversation.extend(range(3))
            with pytest.raises(DeniedError, match="it said no"):
                await giver.transfer(receiver, reason="no")
            await giver.transfer(receiver)
            assert receiver.told == ["a"]
            assert await receiver.conversation.all() == [0, 1, 2]
            await giver.save()
            await store.agents.transfer("b", "a")
            assert await store.agents.messages("a") == [0, 1, 2]
            assert [each.phase for each in await store.agents.transfers("a")] == ["acknowledged", "given", "refused"]
            thinking = asyncio.create_task((await store.agents.restore("a")).transfer(Slow().attach(store, "s")))
            while (await store.agents.load("a")).pending is None:
                await asyncio.sleep(0)
            thinking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await thinking
            assert (await store.agents.load("a")).pending is None
            several = [AsyncReceiver().attach(store, f"r{number}") for number in range(3)]
            giver = await store.agents.restore("a")
            done = await asyncio.gather(*(giver.transfer(each) for each in several), return_exceptions=True)
            assert not [each for each in done if isinstance(each, BaseException)]
            held = [len(each.conversation) for each in (giver, *several)]
            assert sorted(held) == [0, 0, 0, 3]

    asyncio.run(scenario())
