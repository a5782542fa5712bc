"""Interrupted transfers: after the next start, exactly one agent has the conversation."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.agents.api.agent import restore_persister
from holdfast.agents.definition.state_machine import OnIncomplete
from holdfast.agents.transfer.transfer import recover_transfer
from holdfast.backends.runtime.drivers import run
from holdfast.errors import ConflictError, InvalidError, OutcomeUnknownError
from tests.agents.transfers import AsyncPorter, Crash, Cut, Porter, cut, interrupted, unanswered

COMMITS = 3
"""The giver begins, both hand over, the receiver acknowledges."""

BEFORE: tuple[list[Any], list[Any]] = ([0, 1, 2, 3], ["own"])
AFTER: tuple[list[Any], list[Any]] = ([], ["own", 0, 1, 2, 3])
"""Who holds what."""

CUTS = [(at, after) for at in range(COMMITS) for after in (False, True)]


def two(store: holdfast.Store, **policies: Any) -> tuple[Porter, Porter]:
    """Two agents that are saved."""
    giver, receiver = Porter().attach(store, "a", **policies), Porter().attach(store, "b", **policies)
    giver.conversation.extend(range(4))
    giver.context["case"] = 7
    receiver.conversation.append("own")
    giver.save()
    receiver.save()
    return giver, receiver


def held(store: holdfast.Store) -> tuple[list[Any], list[Any]]:
    """Who has which messages; whoever has them knows of the case, and nobody else."""
    a, b = store.agents.load("a"), store.agents.load("b")
    messages = store.agents.messages("a"), store.agents.messages("b")
    assert [bool(record.context) for record in (a, b)] == [0 in each for each in messages]
    assert (a.messages, b.messages) == (len(messages[0]), len(messages[1]))
    return messages


def test_a_transfer_is_so_many_commits() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(None)) as whole:
            giver.transfer(receiver)
        assert whole.commits == COMMITS


@pytest.mark.nightly
def test_cut_off_at_every_commit(tmp_path: Path, subtests: pytest.Subtests) -> None:
    policies: tuple[OnIncomplete, ...] = ("back", "forward")
    for number, ((at, after), policy, by_id) in enumerate(itertools.product(CUTS, policies, (False, True))):
        with subtests.test(at=at, after=after, policy=policy, by_id=by_id):
            cut_off(f"sqlite:///{tmp_path}/{number}.db", at, after, policy, by_id)


def cut_off(url: str, at: int, after: bool, policy: OnIncomplete, by_id: bool) -> None:
    """Cut a transfer off at one of its commits, and start both again."""
    with holdfast.open(url) as store:
        giver, receiver = two(store)
        with cut(store, Cut(at, after=after)), pytest.raises(Crash):
            giver.transfer("b" if by_id else receiver)
    with holdfast.open(url) as store:
        given = (at, after) >= (1, True)
        assert held(store) == (AFTER if given else BEFORE)
        pending = [store.agents.load(id).pending for id in "ab"]
        assert [each is not None for each in pending] == [
            (0, True) <= (at, after) < (1, True),
            given and (at, after) < (2, True),
        ]
        for id in "ba" if at % 2 else "ab":
            again = store.agents.restore(id, on_incomplete=policy)
            again.start()
            again.stop()
        begun = (at, after) >= (0, True)
        handed = given or (begun and policy == "forward")
        assert held(store) == (AFTER if handed else BEFORE)
        assert [store.agents.load(id).pending for id in "ab"] == [None, None]
        assert bool(store.agents.load("b").fields["told"]) is handed
        ids = {each.id for id in "ab" for each in store.agents.transfers(id)}
        assert len(ids) == int(begun)
        # Both go on from there.
        giver, receiver = store.agents.restore("a"), store.agents.restore("b")
        (receiver if handed else giver).transfer(giver if handed else receiver)
        assert sorted(map(str, held(store)[0] + held(store)[1])) == ["0", "1", "2", "3", "own"]
        assert store.maintenance.verify().findings == []


@pytest.mark.parametrize("policy", ["back", "forward"])
@pytest.mark.parametrize("where", ["accepts", "on_receive"])
def test_cut_off_between_the_commits(where: str, policy: OnIncomplete) -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        receiver._dies = where
        with pytest.raises(Crash):
            giver.transfer(receiver)
        given = where == "on_receive"
        assert held(store) == (AFTER if given else BEFORE)
        for id in "ab":
            again = store.agents.restore(id, on_incomplete=policy)
            again.start()
        handed = given or policy == "forward"
        assert held(store) == (AFTER if handed else BEFORE)


def test_left_to_be_resolved_by_hand() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(0, after=True)), pytest.raises(Crash):
            giver.transfer(receiver, reason="why", context={"more": 1})
        again = store.agents.restore("a", on_incomplete="manual")
        with pytest.raises(ConflictError) as left:
            again.start()
        assert left.value.code == "transition-incomplete"
        recovery = store.agents.resolve("a", "forward")
        assert (recovery.kind, recovery.resolved, recovery.ran) == ("transfer", "forward", False)
        assert held(store) == AFTER
        record = store.agents.load("b")
        assert record.context == {"case": 7, "more": 1}
        assert record.metadata["received"]["reason"] == "why"
        with cut(store, Cut(0, after=True)), pytest.raises(Crash):
            store.agents.transfer("b", "a")
        assert store.agents.resolve("b", "back").resolved == "back"
        assert held(store) == AFTER


def test_what_was_received_is_acknowledged_whatever_the_policy() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(2)), pytest.raises(Crash):
            giver.transfer(receiver)
        again = store.agents.restore("b", on_incomplete="manual")
        again.start()
        (recovery,) = [each for each in again.recoveries if each.kind == "transfer"]
        assert (recovery.resolved, recovery.ran) == ("forward", True)
        assert len(again.told) == 1
        assert store.agents.load("b").pending is None


def test_a_receiver_that_refuses_at_the_second_asking_leaves_it_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(0, after=True)), pytest.raises(Crash):
            giver.transfer(receiver)
        monkeypatch.setattr(Porter, "accepts", lambda self, offer: False)
        again = store.agents.restore("a", on_incomplete="forward")
        again.start()
        assert [each.resolved for each in again.recoveries if each.kind == "transfer"] == ["back"]
        assert held(store) == BEFORE
        assert store.agents.load("a").pending is None


def test_a_receiver_that_is_gone_leaves_it_where_it_was() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(0, after=True)), pytest.raises(Crash):
            giver.transfer(receiver)
        store.agents.delete("b")
        again = store.agents.restore("a", on_incomplete="forward")
        again.start()
        assert list(again.conversation) == [0, 1, 2, 3]
        assert store.agents.load("a").pending is None


def test_a_receiver_that_is_busy_leaves_it_to_be_resolved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(0, after=True)), pytest.raises(Crash):
            giver.transfer(receiver)
        with cut(store, Cut(0, after=True)), pytest.raises(Crash):
            store.agents.restore("b").transfer(Porter().attach(store, "c"))
        again = store.agents.restore("a", on_incomplete="forward")
        with pytest.raises(ConflictError):  # the receiver is in the middle of something itself
            again.start()
        assert held(store) == BEFORE
        store.agents.restore("b").start()
        again = store.agents.restore("a", on_incomplete="forward")
        again.start()
        assert sorted(map(str, held(store)[0] + held(store)[1])) == ["0", "1", "2", "3", "own"]


def test_no_answer_from_the_store_and_it_was_done() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with unanswered(store, 1, done=True):
            giver.transfer(receiver)
        assert held(store) == AFTER
        assert (list(giver.conversation), list(receiver.conversation)) == AFTER


@pytest.mark.parametrize("how", ["back", "forward"])
def test_what_was_said_since_is_there_after_a_recovery(how: OnIncomplete) -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with unanswered(store, 1, done=False), pytest.raises(OutcomeUnknownError):
            giver.transfer(receiver)
        giver.conversation.append("since")
        giver.told.append("since")
        giver.recover(how)
        assert giver.told == ["since"]
        assert (store.agents.messages("a") + store.agents.messages("b")).count("since") == 1


def test_no_answer_from_the_store_and_it_was_not_done() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with unanswered(store, 1, done=False), pytest.raises(OutcomeUnknownError):
            giver.transfer(receiver)
        assert held(store) == BEFORE
        assert (list(giver.conversation), list(receiver.conversation)) == BEFORE
        giver.recover()
        assert store.agents.load("a").pending is None
        giver.transfer(receiver)
        assert held(store) == AFTER


@pytest.mark.parametrize(
    "error", [OutcomeUnknownError("no answer"), asyncio.CancelledError(), KeyboardInterrupt()], ids=type
)
@pytest.mark.parametrize("when", ["before", "after", "late"])
def test_both_go_on_after_a_handover_of_which_they_were_not_told(error: BaseException, when: str) -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        told = when == "after" and isinstance(error, OutcomeUnknownError)
        with interrupted(store, 1, error, when=when):
            with suppress(type(error)) if told else pytest.raises(type(error)):
                giver.transfer(receiver)
            giver.conversation.append("more")
            giver.context["more"] = 1
            giver.save()  # nobody else did anything: this is no conflict
        receiver.conversation.append("also")
        receiver.context["also"] = 2
        receiver.save()
        receiver.recover()
        giver.recover()
        assert [store.agents.load(id).pending for id in "ab"] == [None, None]
        given = when != "before"
        messages = store.agents.messages("a"), store.agents.messages("b")
        assert messages == (
            [*([] if given else range(4)), "more"],
            ["own", *(range(4) if given else []), "also"],
        )
        assert (list(giver.conversation), list(receiver.conversation)) == messages
        case = {"case": 7}
        assert giver.context == store.agents.load("a").context == {**({} if given else case), "more": 1}
        assert receiver.context == store.agents.load("b").context == {**(case if given else {}), "also": 2}
        assert len(receiver.told) == given
        (receiver if given else giver).transfer(giver if given else receiver)


def test_a_handover_that_came_late_is_known_after_a_save_without_an_answer_too() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with interrupted(store, 1, OutcomeUnknownError("no answer"), when="late"):
            with pytest.raises(OutcomeUnknownError):
                giver.transfer(receiver)
            giver.conversation.append("more")
            backend: Any = store._handle.engine.context.backend
            apply = backend.apply

            async def silent(changes: Any) -> None:
                with suppress(ConflictError):
                    await apply(changes)
                raise OutcomeUnknownError("no answer")

            backend.apply = silent
            for _ in range(2):  # it is tried again, and again there is no answer
                with pytest.raises(OutcomeUnknownError):
                    giver.save()
        giver.save()  # nobody else did anything: this is no conflict
        assert (store.agents.messages("a"), store.agents.messages("b")) == (["more"], AFTER[1])
        assert list(giver.conversation) == ["more"]


def test_a_receiver_acknowledges_before_it_does_anything_else() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(1, after=True)), pytest.raises(Crash):
            giver.transfer(receiver)
        with pytest.raises(ConflictError, match="is incomplete"):
            receiver.stop()
        receiver.start()
        assert len(receiver.told) == 1


def test_messages_that_were_rewritten_before_it_was_known_stay_a_conflict() -> None:
    with holdfast.open("memory://") as store:
        giver, receiver = two(store)
        with cut(store, Cut(1, after=True)), pytest.raises(Crash):
            giver.transfer(receiver)
        giver.conversation.replace([2, 3])
        with pytest.raises(ConflictError):
            giver.save()
        giver.reload()
        assert held(store) == AFTER


def test_a_transfer_that_is_cancelled_anywhere(tmp_path: Path) -> None:
    async def scenario() -> set[str]:
        ends: set[str] = set()
        async with await holdfast.aopen(f"sqlite:///{tmp_path}/s.db") as store:
            giver = AsyncPorter().attach(store, "a")
            giver.conversation.extend(range(4))
            await giver.save()
            await AsyncPorter().attach(store, "b").save()
            holder, other = "a", "b"
            for turns in range(20):
                source, target = await store.agents.restore(holder), await store.agents.restore(other)
                task = asyncio.create_task(source.transfer(target))
                for _ in range(turns):
                    await asyncio.sleep(0.0002)
                task.cancel()
                done = await asyncio.gather(task, return_exceptions=True)
                ends.add(type(done[0]).__name__)
                for id in "abab":
                    with suppress(ConflictError):  # what was cancelled may be committed all the same, and just now
                        await (await store.agents.restore(id)).recover()
                held = {id: await store.agents.messages(id) for id in "ab"}
                assert sorted(held.values()) == [[], [0, 1, 2, 3]]
                holder, other = ("a", "b") if held["a"] else ("b", "a")
        return ends

    ends = asyncio.run(scenario())
    # A beginning that was cancelled may be committed as late as during the next transfer, which then has a conflict.
    assert "CancelledError" in ends
    assert ends <= {"CancelledError", "Transfer", "ConflictError"}


def test_there_is_nothing_to_recover() -> None:
    with holdfast.open("memory://") as store:
        giver, _ = two(store)
        with pytest.raises(InvalidError, match="no transfer is in progress"):
            run(recover_transfer(giver.persister, "back", restore_persister))


IDS = "abc"

DEEDS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(IDS)),
    st.tuples(st.just("restart"), st.sampled_from(IDS)),
    st.tuples(
        st.just("transfer"),
        st.sampled_from([(a, b) for a in IDS for b in IDS if a != b]),
        st.none() | st.tuples(st.integers(0, COMMITS), st.booleans()),
        st.booleans(),
    ),
)


@given(st.lists(DEEDS, max_size=20), st.sampled_from(["back", "forward"]))
def test_whatever_is_handed_over_and_cut_off_every_message_is_held_once(deeds: list[Any], policy: OnIncomplete) -> None:
    with holdfast.open("memory://") as store:
        live = {id: Porter().attach(store, id, on_incomplete=policy) for id in IDS}
        model: dict[str, list[int]] = {id: [] for id in IDS}
        for agent in live.values():
            agent.save()
        for number, deed in enumerate(deeds):
            if deed[0] == "say":
                live[deed[1]].conversation.append(number)
                live[deed[1]].save()
                model[deed[1]].append(number)
            elif deed[0] == "restart":
                live[deed[1]] = store.agents.restore(deed[1], on_incomplete=policy)
                live[deed[1]].start()
            else:
                _, (source, target), place, by_id = deed
                where = Cut(None) if place is None else Cut(place[0], after=place[1])
                both = [*model[target], *model[source]]
                try:
                    with cut(store, where):
                        live[source].transfer(target if by_id else live[target])
                    if by_id:
                        live[target] = store.agents.restore(target, on_incomplete=policy)
                except Crash:
                    for id in IDS:
                        store.agents.restore(id, on_incomplete=policy).recover()
                    # Of what was finished, the receiver that is alive has not heard.
                    live = {id: store.agents.restore(id, on_incomplete=policy) for id in IDS}
                    if store.agents.messages(target) != both:
                        both = model[target]
                        assert store.agents.messages(source) == model[source]
                    else:
                        model[source] = []
                    model[target] = both
                else:
                    model[source], model[target] = [], both
        assert {id: store.agents.messages(id) for id in IDS} == model
        assert {id: list(agent.conversation) for id, agent in live.items()} == model
        assert {store.agents.load(id).pending for id in IDS} == {None}
