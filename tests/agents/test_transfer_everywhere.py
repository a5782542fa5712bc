"""Transfers on every kind of store: one batch over two lines, all or none."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConflictError
from tests.agents.transfers import Crash, Cut, Porter, cut
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly

DAILY = tuple(kind for kind in KINDS if kind not in ("pgbouncer", "s3"))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=DAILY))
def test_a_transfer_is_made_as_a_whole_or_not_at_all(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="transfers") as store:
        giver, receiver = Porter().attach(store, "a"), Porter().attach(store, "b")
        giver.conversation.extend({"role": "user", "content": "x" * 500, "number": number} for number in range(200))
        messages = giver.conversation.all()
        giver.context["case"] = 7
        giver.save()
        receiver.save()
        stale = store.agents.restore("b")
        stale.conversation.append("first")
        stale.save()
        with pytest.raises(ConflictError):
            giver.transfer(receiver)
        assert (store.agents.messages("a"), store.agents.messages("b")) == (messages, ["first"])
        with cut(store, Cut(1)), pytest.raises(Crash):
            giver.transfer("b")
        giver = store.agents.restore("a")
        giver.start()
        assert (store.agents.messages("a"), store.agents.messages("b")) == (messages, ["first"])
        giver.transfer("b", reason="at last")
        assert (store.agents.messages("a"), store.agents.messages("b")) == ([], ["first", *messages])
        assert [each.phase for each in store.agents.transfers("a")] == ["given", "undone", "undone"]
        assert [each.phase for each in store.agents.transfers("b")] == ["acknowledged"]
        again = store.agents.restore("b")
        assert again.conversation.last(1) == messages[-1:]
        again.transfer("a")
        assert store.agents.messages("a") == ["first", *messages]
        assert store.maintenance.verify().findings == []
