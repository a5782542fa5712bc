"""A right to a thread that ends while something is done with it: whatever it is, nothing is changed afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS, WRITES
from holdfast.errors import DeniedError, NotFoundError
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from tests.support.interference import Interference, InterferingBackend
from tests.support.nightly import by_day


def save_by(view: IdentityView, name: str, id: str, state: dict[str, Any], parent: str | None = None) -> None:
    run(CheckpointStore(view).save(name, state, id=id, stamp="s", parent=parent))


CHANGES: dict[str, Callable[[IdentityView, str], object]] = {
    "put": lambda view, name: view.thread(name).put({"n": 3}),
    "revision": lambda view, name: view.thread(name).put({"n": 3}, id="2"),
    "same-with-tag": lambda view, name: view.thread(name).put({"n": 2}, id="2", tag="new"),
    "unknown-parent": lambda view, name: save_by(view, name, "3", {"n": 3}, "0"),
    "writes": lambda view, name: Checkpointer(view).put_writes(name, "2", [("n", 2)], task_id="t"),
    "tag": lambda view, name: view.thread(name).tag("new"),
    "label": lambda view, name: view.thread(name).label("new"),
    "untag": lambda view, name: view.thread(name).untag("old"),
    "pin": lambda view, name: view.thread(name).pin(),
    "fork": lambda view, name: view.thread(name).fork("new"),
    "fork-with-changes": lambda view, name: view.thread(name).fork("new", changes={"n": 3}),
    "switch": lambda view, name: view.thread(name).switch("side"),
    "restore": lambda view, name: view.thread(name).restore("1"),
    "merge": lambda view, name: view.thread(name).merge("side", strategy="theirs"),
    "rename-branch": lambda view, name: view.thread(name).rename_branch("side", "new"),
    "delete-branch": lambda view, name: view.thread(name).delete_branch("side", force=True),
    "prune": lambda view, name: run(CheckpointStore(view).keep_latest(name)),
    "delete": lambda view, name: view.thread(name).delete(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_outlives_the_right_to_it(
    store: Store, backend: InterferingBackend, alice: IdentityView, bob: IdentityView, change: str
) -> None:
    """At every call to the store that a change makes: either it was done before the right ended, or not at all."""

    def rows(name: str) -> list[object]:
        scans = [Scan(table, ("", name)) for table in (LINES, BRANCHES, STEPS, WRITES, REFS)]
        found = run(store._engine.context.stored.read(scans))
        return [row for each in found for row in each if row.key[2:3] != ("lease",)]  # that of a rewrite ends

    moment, ended = 0, 0
    while True:
        name = f"chat-{moment}"
        alice.thread(name).put({"n": 1}, id="1", tag="old")
        alice.thread(name).put({"n": 2}, id="2")
        alice.thread(name).fork("side", "1", changes={"m": 2})
        before = rows(name)
        given = alice.grant("user:bob", ["read", "write", "delete"], thread=name)
        then: list[list[object]] = []

        def end() -> None:
            alice.revoke(given)  # noqa: B023 - called in this pass
            then.append(rows(name))  # noqa: B023

        interference = Interference(end, "any", moment)
        with backend.armed(interference), suppress(DeniedError, NotFoundError):
            CHANGES[change](bob, name)
        interference.check()
        if not interference.struck:
            break
        assert rows(name) == then[0], "it was changed after the right had ended"
        ended += then[0] == before
        moment += by_day(1, 2)
    assert rows(name) != before
    assert ended


def test_a_new_thread_may_begin_after_a_checkpoint_that_it_does_not_have(store: Store, alice: IdentityView) -> None:
    save_by(alice, "chat", "2", {"n": 2}, "1")
    saved = run(CheckpointStore(alice).get("chat"))
    assert saved is not None
    assert (saved.id, saved.parent, store.thread("chat").owner()) == ("2", "1", "user:alice")
