"""Tenants on one file see nothing of each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Checkpoint, Store
from holdfast.errors import NotFoundError


def sees_nothing(store: Store, secret: Checkpoint) -> None:
    """Whatever is asked of a store, it finds nothing of another tenant's thread."""
    assert store.threads() == []
    assert store.status().threads == 0
    assert (store.thread("chat").log(), store.thread("chat").tags(), store.thread("chat").labels()) == ([], {}, {})
    looks: list[Callable[[], object]] = [
        lambda: store.thread("chat").get(),
        lambda: store.thread("chat").get(secret.id),
        lambda: store.thread("chat").get(at="good"),
        lambda: store.thread("chat").get(at=secret.time),
        lambda: store.thread("chat").info(),
        lambda: store.thread("chat").branches(),
        lambda: store.thread("chat").put({}, parent=secret.id),
        lambda: store.thread("chat").restore(at=secret.id),
        lambda: store.maintenance.compact("chat"),
    ]
    for look in looks:
        with pytest.raises(NotFoundError):
            look()
    assert store.thread("chat").delete() is False


def test_tenants_are_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with (
        holdfast.open(url, tenant="acme") as acme,
        holdfast.open(url, tenant="acm") as acm,
        holdfast.open(url) as nobody,
    ):
        secret = acme.thread("chat").put({"who": "acme"}, tag="good", labels=["x"])
        acme.thread("only acme").put({"who": "acme"})
        acme.thread("chat").fork("b")
        for other in (acm, nobody):
            sees_nothing(other, secret)
        theirs = acm.thread("chat").put({"who": "acm"}, tag="good", id=secret.id)
        assert (theirs.step, theirs.parent) == (0, None)
        acm.thread("chat").unlabel("x")
        assert acm.thread("chat").delete() is True
        assert acme.thread("chat").get(at="good").state == {"who": "acme"}
        assert acme.thread("chat").labels() == {"x": [secret.id]}
        assert [each.thread for each in acme.threads()] == ["chat", "only acme"]
        assert acme.status().threads == 2


def test_names_that_run_together_are_still_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, tenant="a") as one, holdfast.open(url, tenant="ab") as two:
        one.thread("bc").put({"who": 1})
        two.thread("c").put({"who": 2})
        assert [each.thread for each in one.threads()] == ["bc"]
        assert [each.thread for each in two.threads()] == ["c"]
