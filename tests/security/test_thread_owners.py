"""Threads have owners: what belongs to another identity does not exist for one without rights to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, get_args

import pytest
from langgraph.graph import END, START, StateGraph

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, REFS
from holdfast.encryption import LocalKeys
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, DeniedError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from holdfast.security.access.identity_guard import read_ownership
from holdfast.security.access.policy import OWNER_RIGHTS, RIGHTS, Policy, Right
from holdfast.security.access.registry import AccessRegistry, GrantRequest
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from holdfast.store.thread import Thread, ThreadOperations
from tests.state.kit import Clock, store_on
from tests.support.interference import Interference, InterferingBackend


def told(operate: Callable[[], object]) -> tuple[str, str, str, str]:
    """What an error says."""
    with pytest.raises(HoldfastError) as caught:
        operate()
    return type(caught.value).__name__, caught.value.what, caught.value.hint, caught.value.code


# Owners -------------------------------------------------------------------------------------------------------


def test_who_saves_a_thread_first_owns_it(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    saved = alice.thread("chat").put({"n": 1})
    assert alice.thread("chat").get().state == {"n": 1}
    assert alice.thread("chat").owner() == store.thread("chat").owner() == "user:alice"
    assert store.thread("chat").get().actor == "user:alice"
    assert [(each.actor, each.action, each.id) for each in store.audit.query(thread="chat", action="save")] == [
        ("user:alice", "save", saved.id)
    ]
    with pytest.raises(NotFoundError):
        bob.thread("chat").get()
    with pytest.raises(DeniedError):
        bob.thread("chat").put({"n": 2})
    assert store.thread("chat").get().state == {"n": 1}
    store.thread("chat").put({"n": 3})  # the store's owner sees and changes everything
    assert alice.thread("chat").get().state == {"n": 3}
    assert store.thread("chat").owner() == "user:alice"


def test_what_the_stores_owner_saved_is_nobody_elses(store: Store, alice: IdentityView) -> None:
    store.thread("chat").put({"n": 1})
    assert store.thread("chat").owner() == ""
    with pytest.raises(NotFoundError):
        alice.thread("chat").get()
    with pytest.raises(DeniedError):
        alice.thread("chat").put({"n": 2})
    store.access.set_owner("chat", "user:alice")
    assert alice.thread("chat").get().state == {"n": 1}
    store.access.set_owner("chat", None)
    with pytest.raises(NotFoundError):
        alice.thread("chat").get()
    assert [each.detail["owner"] for each in store.audit.query(action="set-owner")] == ["", "user:alice"]
    with pytest.raises(NotFoundError):
        store.access.set_owner("none", "user:alice")


def run_in(thread: Thread) -> None:
    with thread.running():
        pass


def answer(thread: Thread) -> None:
    with suppress(ConflictError):  # nothing waits: that is told to who may write
        thread.answer("yes")


SAVES = ("put", "update", "append", "increment", "add_to_set", "max", "running")

OPERATIONS: dict[str, Callable[[Thread], object]] = {
    "put": lambda thread: thread.put({"n": 9}),
    "update": lambda thread: thread.update({"n": 9}),
    "append": lambda thread: thread.append("list", 9),
    "increment": lambda thread: thread.increment("n"),
    "add_to_set": lambda thread: thread.add_to_set("set", 9),
    "max": lambda thread: thread.max("n", 9),
    "restore": lambda thread: thread.restore("#0"),
    "get": lambda thread: thread.get(),
    "find": lambda thread: thread.find(),
    "info": lambda thread: thread.info(),
    "log": lambda thread: list(thread.log().all()),
    "pending_writes": lambda thread: thread.pending_writes(),
    "diff": lambda thread: thread.diff("#0"),
    "blame": lambda thread: thread.blame("n"),
    "history": lambda thread: thread.history("n"),
    "fork": lambda thread: thread.fork("draft"),
    "branches": lambda thread: thread.branches(),
    "rename_branch": lambda thread: thread.rename_branch("side", "other"),
    "delete_branch": lambda thread: thread.delete_branch("side", force=True),
    "switch": lambda thread: thread.switch("side"),
    "merge": lambda thread: thread.merge("side"),
    "tag": lambda thread: thread.tag("v2"),
    "untag": lambda thread: thread.untag("v1"),
    "tags": lambda thread: thread.tags(),
    "label": lambda thread: thread.label("good"),
    "unlabel": lambda thread: thread.unlabel("good"),
    "labels": lambda thread: thread.labels(),
    "owner": lambda thread: thread.owner(),
    "pin": lambda thread: thread.pin(),
    "unpin": lambda thread: thread.unpin("#0"),
    "pins": lambda thread: thread.pins(),
    "hold": lambda thread: thread.hold(),
    "release": lambda thread: thread.release(),
    "holds": lambda thread: thread.holds(),
    "expire": lambda thread: thread.expire("30d"),
    "expires": lambda thread: thread.expires(),
    "status": lambda thread: thread.status(),
    "running": lambda thread: run_in(thread),
    "answer": answer,
    "delete": lambda thread: thread.delete(),
}


def make_thread(view: IdentityView) -> None:
    thread = view.thread("chat")
    thread.put({"n": 1}, tag="v1")
    thread.put({"n": 2, "secret": "xyzzy"}, labels=["good"])
    thread.fork("side", changes={"n": 5})
    thread.switch("main")
    thread.pin("#0")


def rows(store: Store) -> list[Any]:
    everything = run(store._engine.context.stored.read([Scan(table, ("", "chat")) for table in (LINES, REFS)]))
    return [everything, [each.id for each in store.thread("chat").log().all()]]


def test_every_operation_is_in_the_table_of_this_test() -> None:
    public = {name for name in dir(ThreadOperations) if not name.startswith("_")} - {"name"}
    assert public == OPERATIONS.keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_stranger_learns_and_changes_nothing(store: Store, alice: IdentityView, bob: IdentityView, name: str) -> None:
    make_thread(alice)
    before, operate = rows(store), OPERATIONS[name]
    denied = told(lambda: operate(bob.thread("chat")))
    assert rows(store) == before
    assert [(each.actor, each.scope) for each in store.audit.query(kind="denied")] == [("user:bob", "thread:chat")]
    if name not in SAVES:  # of a thread that does not exist, these are allowed
        absent = told(lambda: operate(bob.thread("none")))
        assert absent == denied
    if name not in ("hold", "release"):
        operate(alice.thread("chat"))
    else:
        assert told(lambda: operate(alice.thread("chat")))[0] == "DeniedError"


def test_lists_and_searches_have_only_what_may_be_read(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    for number in range(5):
        alice.thread(f"a{number}").put({"text": "refund"})
        bob.thread(f"b{number}").put({"text": "refund"})
        store.thread(f"s{number}").put({"text": "refund"})
    for index in (False, True):
        if index:
            store.maintenance.build_index()
        for view, prefix in ((alice, "a"), (bob, "b")):
            expected = [f"{prefix}{number}" for number in range(5)]
            assert [each.thread for each in view.threads(limit=2).all()] == expected
            assert [each.thread for each in view.threads(where="refund", limit=2).all()] == expected
            found = view.search("refund", limit=3)
            assert sorted(each.thread for each in found.all()) == expected
            assert not view.search("thread:s1 refund")
            assert not view.search("thread:s1")
        everything = store.search("refund", limit=100)
        assert len(everything) == 15
    seen: list[tuple[int, int | None, str]] = []
    store.maintenance.drop_index()
    page = bob.search("nothing", progress=lambda *said: seen.append(said))
    assert page.examined == 5
    assert {name for *_, name in seen} <= {f"b{number}" for number in range(5)}
    with pytest.raises(InvalidError):
        bob.threads(kind="all")
    with pytest.raises(InvalidError):
        bob.search("refund", kind="audit")


def test_a_diff_with_another_thread_reads_both(alice: IdentityView, bob: IdentityView) -> None:
    alice.thread("a").put({"n": 1})
    bob.thread("b").put({"n": 2})
    with pytest.raises(NotFoundError):
        bob.thread("b").diff(other="a")
    assert bob.thread("b").diff(state={"n": 3})


def test_names_that_look_alike_are_different_threads(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    for name in ("Chat", "chat ", "chat\0", "ｃhat", "chat/", "chat␟␟", "./chat", "chat\t"):
        with pytest.raises(NotFoundError):
            bob.thread(name).get()
        bob.thread(name).put({"n": 2})
        assert store.thread(name).owner() == "user:bob"
    with pytest.raises(InvalidError):
        bob.thread("␞audit")


def test_namespaces_belong_to_their_thread(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    store.thread("chat␟child").put({"n": 1})
    assert alice.thread("chat␟child").get().state == {"n": 1}
    with pytest.raises(DeniedError):
        bob.thread("chat␟other").put({"n": 2})
    # A namespace that is saved before its thread makes its identity the owner of the thread.
    bob.thread("later␟child").put({"n": 1})
    with pytest.raises(DeniedError):
        alice.thread("later").put({"n": 2})
    bob.thread("later").put({"n": 2})
    store.thread("owned␟child").put({"n": 1})
    with pytest.raises(DeniedError):
        bob.thread("owned").put({"n": 2})
    assert store.maintenance.verify().ok


def test_an_identity_reads_whole_states(alice: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    with pytest.raises(UnsupportedError):
        alice.thread("chat").get(lazy=True)


# Grants -------------------------------------------------------------------------------------------------------


def test_a_grant_of_threads_goes_by_a_pattern(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    for name in ("support-1", "support-2", "support/3", "private"):
        alice.thread(name).put({"n": 1})
    store.thread("support-owner").put({"n": 1})
    given = alice.grant("user:bob", "read", thread="support-*")
    assert (given.thread, given.scope, given.right) == ("support-*", "", "read")
    assert [each.thread for each in bob.threads()] == ["support-1", "support-2"]
    assert bob.thread("support-1").get().state == {"n": 1}
    for name in ("support/3", "private", "support-owner"):  # what an identity grants are its own threads
        with pytest.raises(NotFoundError):
            bob.thread(name).get()
    with pytest.raises(DeniedError):
        bob.thread("support-1").put({"n": 2})
    assert [each.id for each in bob.granted()] == [each.id for each in alice.grants()] == [given.id]
    alice.revoke(given)
    with pytest.raises(NotFoundError) as caught:
        bob.thread("support-1").get()
    assert f"the grant {given.id} was revoked" in caught.value.hint
    store.access.grant("group:everyone", ["read", "write"], thread="support-**")
    assert [each.thread for each in bob.threads()] == ["support-1", "support-2", "support-owner"]
    bob.thread("support-owner").put({"n": 2})
    assert store.thread("support-owner").get().actor == "user:bob"
    assert store.thread("support-owner").owner() == ""


def test_an_identity_grants_no_more_than_its_own(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    store.thread("other").put({"n": 1})
    alice.thread("mine").put({"n": 1})
    alice.grant("user:bob", OWNER_RIGHTS, thread="**")
    assert [each.thread for each in bob.threads()] == ["mine"]
    bob.grant("user:carol", "read", thread="mine")  # of what is not bob's
    with pytest.raises(NotFoundError):
        store.as_identity(user="carol").thread("mine").get()
    for wrong in ({"keys": "a"}, {"below": True}, {"agent": "a"}):
        with pytest.raises(InvalidError):
            alice.grant("user:bob", "read", thread="mine", **wrong)
    for pattern in ("", "*" * 17, 5):
        with pytest.raises(InvalidError):
            alice.grant("user:bob", "read", thread=pattern)  # type: ignore[arg-type]


@pytest.mark.parametrize("right", sorted(set(RIGHTS) - OWNER_RIGHTS))
def test_an_owner_grants_no_right_that_it_does_not_have(store: Store, alice: IdentityView, right: Right) -> None:
    alice.thread("chat").put({"n": 1})
    store.thread("chat").hold(reason="legal")
    for to in ("user:alice", "user:bob", "group:everyone"):
        with pytest.raises(DeniedError):
            alice.grant(to, ["read", right], thread="chat")
    # Nor does one that was stored in another way count.
    forged = GrantRequest("user:alice", f"read,{right}", None, "", "", 0, "chat")
    run(AccessRegistry(store._engine, store.tenant, "user:alice").grant(forged))
    assert not store.access.may("user:alice", right, thread="chat")
    with pytest.raises(DeniedError):
        alice.thread("chat").release()
    assert [each.reason for each in store.thread("chat").holds()] == ["legal"]
    store.access.grant("user:alice", right, thread="chat")
    assert store.access.may("user:alice", right, thread="chat")


def test_a_grant_ends_with_the_ownership_of_who_gave_it(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    alice.grant("user:carol", "read", thread="chat")
    carol = store.as_identity(user="carol")
    assert carol.thread("chat").get().state == {"n": 1}
    alice.thread("chat").delete()
    bob.thread("chat").put({"secret": 1})
    with pytest.raises(NotFoundError):
        carol.thread("chat").get()


def test_who_deletes_anothers_thread_does_not_get_its_name(
    store: Store, alice: IdentityView, bob: IdentityView
) -> None:
    alice.thread("chat").put({"n": 1})
    alice.grant("user:bob", ["read", "delete"], thread="chat")
    assert bob.thread("chat").delete()
    with pytest.raises(DeniedError):
        bob.thread("chat").put({"n": "forged"})
    with pytest.raises(DeniedError):
        store.as_identity(user="carol").thread("chat␟child").put({"n": "forged"})
    alice.thread("chat").put({"n": 2})
    assert store.thread("chat").owner() == "user:alice"
    assert bob.thread("chat").get().state == {"n": 2}
    # Of what the store's owner saves under the name, the former owner has nothing.
    bob.thread("chat").delete()
    store.thread("chat").put({"n": 3})
    with pytest.raises(NotFoundError):
        alice.thread("chat").get()


def test_the_mark_of_a_reserved_name_is_no_orphan(store: Store, alice: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    rules = holdfast.access.Policy().allow("delete")
    assert store.as_identity(agent="b", mode="custom", policy=rules).thread("chat").delete()  # no right was ever stored
    assert store.maintenance.verify().findings == []
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    with pytest.raises(DeniedError):
        store.as_identity(user="bob").thread("chat").put({"n": 2})


def test_the_owner_of_a_thread_with_namespaces_only_is_no_orphan(store: Store, alice: IdentityView) -> None:
    alice.thread("chat␟child").put({"n": 1})
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    assert alice.thread("chat␟child").get().state == {"n": 1}


def test_a_reserved_name_stays_with_the_owner_whoever_saves_it(
    store: Store, alice: IdentityView, bob: IdentityView
) -> None:
    alice.thread("chat").put({"n": 1})
    alice.grant("user:bob", ["read", "write", "delete"], thread="chat")
    for save in (
        lambda: bob.thread("chat").put({"n": 2}),
        lambda: bob.thread("chat␟child").put({"n": 2}),
        lambda: Checkpointer(bob).put_writes("chat", "1", [("n", 2)], task_id="t"),
    ):
        assert bob.thread("chat").delete()
        save()
        assert run(read_ownership(store._engine, Line("", "chat"))).name == "user:alice"
        alice.thread("chat").put({"n": 3})
        assert bob.thread("chat").get().state == {"n": 3}
    # The reservation ended with the save: what the owner deletes is free.
    alice.thread("chat").delete()
    store.as_identity(user="carol").thread("chat").put({"n": 4})


def test_deleting_a_branch_of_anothers_thread_reserves_no_name(
    store: Store, alice: IdentityView, bob: IdentityView
) -> None:
    make_thread(alice)
    alice.grant("user:bob", ["read", "write", "delete"], thread="chat")
    assert bob.thread("chat").delete_branch("side", force=True)
    HoldfastSaver(bob).prune(["chat"])
    alice.thread("chat").delete()
    store.as_identity(user="carol").thread("chat").put({"n": 1})
    assert store.thread("chat").owner() == "user:carol"


def test_an_ended_grant_tells_nothing_of_threads(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    alice.thread("before").put({"n": 1})
    alice.revoke(alice.grant("user:bob", ["read", "delete"], thread="*"))
    alice.thread("later").put({"n": 1})
    store.as_identity(user="carol").thread("of-carol").put({"n": 1})
    store.thread("of-store").put({"n": 1})
    names = ("before", "later", "of-carol", "of-store", "none")
    for operate in (lambda name: bob.thread(name).get(), lambda name: bob.thread(name).delete()):
        assert len({told(partial(operate, name)) for name in names}) == 1
    checkpointer = Checkpointer(bob)
    assert len({told(partial(checkpointer.get_tuple, name)) for name in names[:-1]}) == 1
    assert checkpointer.get_tuple("none") is None
    taken = {told(lambda name=name: bob.thread(name).put({"n": 2})) for name in names[:-1]}  # type: ignore[misc]
    assert len(taken) == 1
    checkpointer.put("none", {"n": 1})
    assert store.thread("none").owner() == "user:bob"


def test_names_and_patterns_are_compared_in_one_form_of_unicode(store: Store, bob: IdentityView) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for name in (composed, decomposed):
        store.thread(name).put({"n": 1})
    for pattern in (composed, decomposed):
        store.access.define_role("closed", Policy().deny("read", f"thread:{pattern}").allow("read", "thread:caf*"))
        store.access.assign("closed", "user:bob")
        for name in (composed, decomposed):
            with pytest.raises(NotFoundError):
                bob.thread(name).get()
        assert not bob.threads()
        store.access.drop_role("closed")
        given = store.access.grant("user:bob", "read", thread=pattern)
        assert [bob.thread(name).get().state for name in (composed, decomposed)] == [{"n": 1}] * 2
        store.access.revoke(given)


def test_who_reads_a_thread_is_told_what_else_it_may_not_do(
    store: Store, alice: IdentityView, bob: IdentityView
) -> None:
    """A thread that one sees is not missing; and a saver that cannot delete it says so."""
    make_thread(alice)
    alice.grant("user:bob", "read", thread="*")
    for view in (bob, store.as_identity(user="alice", mode="read-only")):
        saver = HoldfastSaver(view)
        for operate in (
            view.thread("chat").delete,
            lambda view=view: view.thread("chat").tag("new"),
            lambda saver=saver: saver.delete_thread("chat"),
            lambda saver=saver: saver.prune(["chat"]),
        ):
            with pytest.raises(DeniedError):
                operate()
        saver.delete_thread("none")
        with pytest.raises(NotFoundError):
            view.thread("none").delete()
    assert len(store.thread("chat").log()) > 2


def test_a_list_reads_nothing_of_threads_that_are_hidden(
    store: Store, backend: InterferingBackend, alice: IdentityView, bob: IdentityView
) -> None:
    make_thread(alice)

    def listed(view: IdentityView) -> tuple[int, int]:
        looks = Interference(lambda: None, "read", times=None, where=lambda queries: "'chat'" in repr(queries))
        with backend.armed(looks):
            found = len(list(HoldfastSaver(view).list({"configurable": {"thread_id": "chat", "checkpoint_ns": ""}})))
        return found, looks.struck

    found, reads = listed(alice)
    assert found
    assert listed(bob) == (0, 1)  # who owns it
    assert reads > 1


def test_channels_of_a_hidden_thread_are_as_those_of_none(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    make_thread(alice)

    def histories(view: Store | IdentityView, name: str) -> object:
        config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        return HoldfastSaver(view).get_delta_channel_history(config=config, channels=["n"])

    assert histories(bob, "chat") == histories(bob, "none") == histories(store, "none") == {"n": {"writes": []}}
    assert histories(alice, "chat") == histories(store, "chat")


def test_who_only_writes_reads_nothing(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    make_thread(alice)
    alice.grant("user:bob", "write", thread="chat")
    thread = bob.thread("chat")
    thread.update({"n": 7})
    parent = store.thread("chat").get(at="#0")
    for read in (thread.get, thread.log, thread.tags, lambda: thread.merge("side")):
        with pytest.raises(NotFoundError):
            read()
    heard: list[Any] = []
    with pytest.raises(NotFoundError):
        thread.put({"n": 8}, parent=parent.id, on_conflict=lambda conflict: heard.append(conflict))
    assert not heard


@pytest.mark.parametrize("mode", ["read-only", "custom", "role"])
def test_other_modes(store: Store, alice: IdentityView, mode: str) -> None:
    alice.thread("team/one").put({"n": 1})
    alice.thread("private").put({"n": 1})
    policy = Policy().deny(RIGHTS, "thread:priv*").allow("read", "thread:**")
    if mode == "read-only":
        view = store.as_identity(user="alice", mode="read-only")
    elif mode == "custom":
        view = store.as_identity(user="carol", mode="custom", policy=policy)
    else:
        store.access.define_role("reader", policy)
        store.access.assign("reader", "user:carol")
        view = store.as_identity(user="carol")
    assert view.thread("team/one").get().state == {"n": 1}
    if mode == "read-only":
        assert view.thread("private").get().state == {"n": 1}
    else:
        with pytest.raises(NotFoundError):
            view.thread("private").get()
    for name in ("team/one", *(["new"] if mode != "role" else [])):
        with pytest.raises(DeniedError):
            view.thread(name).put({"n": 2})


def test_a_role_never_takes_what_is_ones_own(store: Store, alice: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    store.access.define_role("blind", Policy().deny(RIGHTS))
    store.access.assign("blind", "group:everyone")
    assert alice.thread("chat").get().state == {"n": 1}
    store.access.freeze("user:alice")
    with pytest.raises(DeniedError) as caught:
        alice.thread("chat").get()
    assert caught.value.code == "identity-frozen"


def test_a_hold_of_the_stores_owner_is_not_the_threads_owners(store: Store, alice: IdentityView) -> None:
    alice.thread("chat").put({"n": 1})
    store.thread("chat").hold(reason="court")
    with pytest.raises(DeniedError):
        alice.thread("chat").release()
    with pytest.raises(DeniedError):
        alice.thread("chat").delete()
    assert [each.reason for each in alice.thread("chat").holds()] == ["court"]


# Meanwhile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["read", "apply"])
@pytest.mark.parametrize("change", ["revoke", "freeze", "set-owner"])
def test_a_right_that_ends_meanwhile_saves_nothing_afterwards(
    store: Store, backend: InterferingBackend, alice: IdentityView, bob: IdentityView, kind: Any, change: str
) -> None:
    """At every call to the store that a save makes: either it was saved before the right ended, or not at all."""
    moment, outcomes = 0, set()
    while True:
        name = f"chat-{moment}"
        alice.thread(name).put({"n": 1})
        given = alice.grant("user:bob", ["read", "write"], thread=name)
        view = bob if change != "set-owner" else alice

        def end() -> None:
            if change == "revoke":
                alice.revoke(given)  # noqa: B023 - called in this pass
            elif change == "freeze":
                store.access.freeze("user:bob")
            else:
                store.access.set_owner(name, "user:carol")  # noqa: B023
            steps.append(len(store.thread(name).log()))  # noqa: B023

        steps: list[int] = []
        interference = Interference(end, kind, moment)
        with backend.armed(interference):
            try:
                view.thread(name).put({"n": 2})
                outcomes.add("saved")
            except DeniedError:
                outcomes.add("denied")
        if change == "freeze" and interference.struck:
            store.access.unfreeze("user:bob")
        if not interference.struck:
            break
        assert len(store.thread(name).log()) == steps[0], "it was saved after the right had ended"
        moment += 1
    assert moment
    assert "denied" in outcomes


def test_of_two_who_claim_a_thread_one_gets_it(
    store: Store, backend: InterferingBackend, alice: IdentityView, bob: IdentityView
) -> None:
    moment = 0
    while True:
        name, lost = f"chat-{moment}", False
        interference = Interference(partial(bob.thread(name).put, {"by": "bob"}), "any", moment)
        with backend.armed(interference):
            try:
                alice.thread(name).put({"by": "alice"})
            except DeniedError:
                lost = True
        if not interference.struck:
            break
        owner = store.thread(name).owner()
        assert {each.actor for each in store.thread(name).log()} == {owner}
        assert lost is (owner == "user:bob")
        moment += 1
    assert moment > 2


def test_a_right_that_ends_while_it_is_read(
    store: Store, backend: InterferingBackend, alice: IdentityView, bob: IdentityView
) -> None:
    moment, denied = 0, 0
    while True:
        name = f"chat-{moment}"
        alice.thread(name).put({"n": 1})
        given = alice.grant("user:bob", "read", thread=name)

        def end() -> None:
            alice.revoke(given)  # noqa: B023
            alice.thread(name).put({"n": "later"})  # noqa: B023

        interference = Interference(end, "read", moment)
        with backend.armed(interference):
            try:
                assert bob.thread(name).get().state == {"n": 1}
            except NotFoundError:
                denied += 1
        if not interference.struck:
            break
        moment += 1
    assert moment > 2
    assert denied


# Savers -------------------------------------------------------------------------------------------------------


class Count(TypedDict):
    n: int


def graph(saver: HoldfastSaver) -> Any:
    inner = StateGraph(Count).add_node("add", lambda state: {"n": state["n"] + 1}).add_edge(START, "add")
    inner_graph = inner.add_edge("add", END).compile(checkpointer=True)
    builder = StateGraph(Count).add_node("inner", inner_graph).add_edge(START, "inner").add_edge("inner", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_saver_of_an_identity(store: Store, alice: IdentityView, bob: IdentityView, is_async: bool) -> None:
    config: Any = {"configurable": {"thread_id": "chat"}}

    def invoke(view: IdentityView) -> Any:
        if is_async:
            return asyncio.run(graph(HoldfastSaver(view)).ainvoke({"n": 1}, config))
        return graph(HoldfastSaver(view)).invoke({"n": 1}, config)

    assert invoke(alice) == {"n": 2}
    assert invoke(alice) == {"n": 2}
    names = [each.thread for each in store.threads()]
    assert len(names) == 2
    assert {each.actor for name in names for each in store.thread(name).log()} == {"user:alice"}
    before = [[each.id for each in store.thread(name).log()] for name in names]
    with pytest.raises(DeniedError):
        invoke(bob)
    assert [[each.id for each in store.thread(name).log()] for name in names] == before
    saver, own = HoldfastSaver(bob), HoldfastSaver(alice)
    with pytest.raises(DeniedError):
        saver.get_tuple(config)
    assert list(saver.list(config)) == list(saver.list(None)) == []
    assert len(list(own.list(None))) == len(list(own.list(config))) == sum(map(len, before))
    with pytest.raises(DeniedError):
        saver.put_writes(
            {"configurable": {**config["configurable"], "checkpoint_id": before[0][0]}}, [("n", 1)], "task"
        )
    saver.delete_thread("chat")
    saver.prune(["chat"])
    saver.copy_thread("chat", "stolen")
    assert [each.thread for each in store.threads()] == names
    with pytest.raises(DeniedError):
        saver.delete_for_runs(["run"])
    own.copy_thread("chat", "copy")
    assert store.thread("copy").owner() == "user:alice"
    HoldfastSaver(store).copy_thread("chat", "again")
    assert store.thread("again").owner() == "user:alice"  # a copy by the store's owner has the same owner
    store.access.grant("user:bob", "read", thread="chat")
    saver.copy_thread("chat", "mine")
    assert store.thread("mine").owner() == "user:bob"
    with pytest.raises(DeniedError):
        saver.copy_thread("chat", "copy")
    own.delete_thread("chat")
    assert not list(store.threads(prefix="chat"))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("is_async", [False, True])
def test_no_node_runs_for_who_may_not_use_the_thread(
    alice: IdentityView, bob: IdentityView, durability: Any, is_async: bool
) -> None:
    runs = list[str]()

    def add(state: Count) -> Count:
        runs.append("add")
        return {"n": state["n"] + 1}

    def build(view: IdentityView) -> Any:
        builder = StateGraph(Count).add_node("add", add).add_edge(START, "add")
        return builder.compile(checkpointer=HoldfastSaver(view))

    def invoke(view: IdentityView) -> Any:
        config: Any = {"configurable": {"thread_id": "chat"}}
        if is_async:
            return asyncio.run(build(view).ainvoke({"n": 1}, config, durability=durability))
        return build(view).invoke({"n": 1}, config, durability=durability)

    assert invoke(alice) == {"n": 2}
    assert len(runs) == 1
    with pytest.raises(DeniedError):
        invoke(bob)
    with pytest.raises(DeniedError):
        build(bob).get_state({"configurable": {"thread_id": "chat"}})
    assert len(runs) == 1


def test_a_checkpointer_of_an_identity(store: Store, alice: IdentityView, bob: IdentityView) -> None:
    mine, theirs = Checkpointer(alice), Checkpointer(bob)
    id = mine.put("chat", {"n": 1})
    mine.put_writes("chat", id, [("n", 2)], task_id="t")
    found = mine.get_tuple("chat")
    assert found is not None
    assert found.state == {"n": 1}
    assert theirs.get_tuple("absent") is None
    with pytest.raises(DeniedError):
        theirs.get_tuple("chat")
    assert [each.id for each in mine.list("chat")] == [id]
    assert not theirs.list("chat")
    assert not theirs.list("absent")
    with pytest.raises(NotFoundError):
        theirs.delete_thread("chat")
    with pytest.raises(DeniedError):
        theirs.put("chat", {"n": 2})
    with pytest.raises(DeniedError):
        theirs.put_writes("chat", id, [("n", 2)], task_id="t")


def test_async_views_have_threads_too(tmp_path: Path) -> None:
    async def use() -> None:
        async with holdfast.aopen(tmp_path / "agents.db") as store:
            alice, bob = store.as_identity(user="alice"), store.as_identity(user="bob")
            await alice.thread("chat").put({"n": 1})
            assert (await alice.thread("chat").get()).state == {"n": 1}
            with pytest.raises(NotFoundError):
                await bob.thread("chat").get()
            assert [each.thread for each in await alice.threads()] == ["chat"]
            assert not await bob.threads()
            assert not await bob.search("chat")

    asyncio.run(use())


# What keeps the owner -----------------------------------------------------------------------------------------


def test_an_owner_survives(store: Store, alice: IdentityView, tmp_path: Path) -> None:
    for number in range(40):
        alice.thread("chat").put({"n": number})
    store.maintenance.prune("chat", keep_last=2)
    assert store.maintenance.sweep_orphans(grace=0).rows == 0
    store.maintenance.compact("chat")
    store.maintenance.repair()
    assert store.thread("chat").owner() == "user:alice"
    store.maintenance.export(tmp_path / "file", threads=["chat"])
    with holdfast.open(tmp_path / "a.db") as copied, holdfast.open(tmp_path / "b.db") as imported:
        store.maintenance.copy_to(copied)
        imported.maintenance.import_(tmp_path / "file")
        imported.maintenance.import_(tmp_path / "file", as_thread="renamed")
        for target, name in ((copied, "chat"), (imported, "chat"), (imported, "renamed")):
            assert target.thread(name).owner() == "user:alice"
            assert target.as_identity(user="alice").thread(name).get().state == {"n": 39}
            assert target.maintenance.verify().ok


def test_a_file_gives_nobody_a_thread_that_is_in_the_store(store: Store, tmp_path: Path) -> None:
    store.thread("chat").put({"n": 1})
    store.maintenance.export(tmp_path / "one")
    with holdfast.open(tmp_path / "forger.db") as forger:
        forger.maintenance.import_(tmp_path / "one")
        forger.thread("chat").put({"n": 2})
        forger.access.set_owner("chat", "user:mallory")
        forger.maintenance.export(tmp_path / "two")
    mallory = store.as_identity(user="mallory")
    store.maintenance.import_(tmp_path / "two")
    assert store.thread("chat").get().state == {"n": 2}
    assert store.thread("chat").owner() == ""
    with pytest.raises(NotFoundError):
        mallory.thread("chat").get()


def test_a_hook_of_the_store_acts_for_the_store(store: Store, alice: IdentityView) -> None:
    def remember(change: Any) -> None:
        if change.scope == "chat":
            store.thread("log").put({"n": 1})

    store.hooks.after("checkpoint.save")(remember)
    alice.thread("chat").put({"n": 1})
    store.thread("log").put({"n": 0})
    assert store.thread("log").owner() == ""
    assert {each.actor for each in store.thread("log").log()} == {""}


# Rights -------------------------------------------------------------------------------------------------------


def test_rights_are_one_closed_set(store: Store, alice: IdentityView) -> None:
    assert get_args(Right) == RIGHTS
    assert RIGHTS == ("read", "write", "delete", "erase", "keys", "admin")
    assert set(RIGHTS) >= OWNER_RIGHTS
    for right in RIGHTS:
        assert store.access.grant("user:bob", right, thread="x").right == right
        assert store.access.grant("user:bob", right, agent="a").right == right
        assert Policy().allow(right).rules[0].rights == right
    assert store.access.grant("user:bob", ["write", "read", "read"], thread="x").right == "read,write"
    for wrong in ("both", "", "reads", "read,", "READ", "backup", [], ["read", "all"], 5, None):
        with pytest.raises(InvalidError, match="read, write, delete, erase"):
            store.access.grant("user:bob", wrong, thread="x")  # type: ignore[arg-type]
        with pytest.raises(InvalidError):
            Policy().allow(wrong)  # type: ignore[arg-type]
    alice.thread("chat").put({"n": 1})
    may = store.access.may
    assert may("user:alice", "delete", thread="chat")
    assert not may("user:alice", "admin", thread="chat")
    assert not may("user:bob", "read", thread="chat")
    assert not may("user:bob", "write", thread="chat")
    assert may("user:bob", "write", thread="free")


USES: dict[str, Callable[[IdentityView], object]] = {
    "read": lambda bob: bob.thread("chat").get(),
    "write": lambda bob: bob.thread("chat").update({"n": 2}),
    "delete": lambda bob: bob.thread("chat").delete(),
    "erase": lambda bob: bob.erasure.erase("bob"),
    "keys": lambda bob: bob.redaction.reveal("nothing", thread="chat"),
    "admin": lambda bob: bob.thread("chat").hold(reason="for a lawsuit"),
}


@pytest.mark.parametrize("right", RIGHTS)
def test_every_right_is_needed_for_something(store: Store, alice: IdentityView, right: Right) -> None:
    assert set(USES) == set(RIGHTS)
    store.redaction.protect(keys=LocalKeys(b"k" * 32))
    alice.thread("chat").put({"n": 1})
    store.erasure.set_subject("bob", "chat")
    bob, use = store.as_identity(user="bob"), USES[right]
    others = [each for each in RIGHTS if each not in (right, "read")]
    for each in (*others, "read") if right != "read" else others:
        store.access.grant("user:bob", each, thread="chat")
    with pytest.raises((DeniedError, NotFoundError)):
        use(bob)
    store.access.grant("user:bob", right, thread="chat")
    use(bob)


def test_a_right_to_keys_of_a_scope_reads_nothing(store: Store) -> None:
    store.state(agent="a")["k"] = 1
    bob = store.as_identity(user="bob")
    for right in set(RIGHTS) - {"read", "write"}:
        store.access.grant("user:bob", right, agent="a")
    with pytest.raises(DeniedError):
        bob.state(agent="a").get("k")
    with pytest.raises((DeniedError, ConflictError)):
        bob.state(agent="a")["k"] = 2


def test_the_memory_of_an_identity_is_not_shared_between_stores() -> None:
    one, other = store_on(MemoryBackend(), Clock()), store_on(MemoryBackend(), Clock())
    one.as_identity(user="alice").thread("chat").put({"n": 1})
    other.as_identity(user="bob").thread("chat").put({"n": 2})
    assert (one.thread("chat").owner(), other.thread("chat").owner()) == ("user:alice", "user:bob")


# Code of the store's owner that runs meanwhile -------------------------------------------------------------------


@pytest.mark.parametrize("inline", [True, False])
def test_what_a_hook_saves_is_not_the_identitys(store: Store, bob: IdentityView, inline: bool) -> None:
    @store.hooks.before("checkpoint.save", inline=inline, fail_closed=True, budget=20)
    def count(context: Any) -> None:
        with store.transaction() as transaction:
            transaction.put("first", {"of": 1})
            transaction.put("second", {"of": 1})
        store.thread("third").put({"of": 1})

    bob.thread("chat").put({"n": 1})
    assert store.thread("chat").owner() == store.thread("chat").get().actor == "user:bob"
    for name in ("first", "second", "third"):
        assert store.thread(name).owner() == store.thread(name).get().actor == ""


def test_a_transaction_inside_of_an_identitys_merge_is_the_stores(store: Store, alice: IdentityView) -> None:
    make_thread(alice)

    def resolve(conflict: Any) -> Any:
        with store.transaction() as transaction:
            transaction.put("first", {"n": 1})
            transaction.put("second", {"n": 1})
        return conflict.theirs

    alice.thread("chat").put({"n": 9})
    alice.thread("chat").merge("side", resolve=resolve)
    assert [store.thread(name).get().actor for name in ("first", "second", "chat")] == ["", "", "user:alice"]


# Artifacts ----------------------------------------------------------------------------------------------------


def test_links_of_checkpoints_with_artifacts_are_read_by_the_right_to_the_thread(
    store: Store, alice: IdentityView, bob: IdentityView
) -> None:
    artifact = alice.artifacts.register(b"content")
    with alice.artifacts.using(artifact.id):
        saved = alice.thread("chat").put({"n": 1})
    assert [each.key for each in alice.artifacts.of(thread="chat")] == [saved.id]
    assert [each.key for each in alice.artifacts.changes(artifact.id)] == [saved.id]
    # A grant of all scopes is none of threads.
    store.access.grant("user:bob", "read", "global", below=True)
    assert told(lambda: bob.artifacts.of(thread="chat")) == told(lambda: bob.artifacts.of(thread="none"))
    assert not bob.artifacts.changes(artifact.id)
    alice.grant("user:bob", "read", thread="chat")
    assert [each.key for each in bob.artifacts.of(thread="chat")] == [saved.id]
    assert [each.key for each in bob.artifacts.changes(artifact.id)] == [saved.id]
