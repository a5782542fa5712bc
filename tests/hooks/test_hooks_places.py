"""The same on stores that keep things, and for whoever acts there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.hooks
from holdfast.errors import VetoError
from holdfast.hooks import AddAuditFields, Validate


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_hooks_and_their_history_on_a_store_that_keeps_it(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else f"file://{tmp_path}/s"
    with holdfast.open(url) as held:
        held.hooks.add(Validate(dict, max_bytes=1000), "state.*", key="v")
        held.hooks.add(AddAuditFields({"release": 1}), "state.*")
        held.hooks.before("state.*", "checkpoint.*", name="look")(lambda call: None)
        held.hooks.after("state.*", "checkpoint.*", name="follow")(lambda call: None)
        agent = held.as_identity(agent="a").state(agent="a")
        agent["v"] = {"n": 1}
        with pytest.raises(VetoError):
            agent["v"] = 3
        held.thread("t").put({"a": 1})
        held.thread("t").update({"b": 2})
    with holdfast.open(url) as held:
        found = held.hooks.history()
        assert sorted((each.hook, each.scope, each.outcome, each.actor) for each in found) == [
            ("AddAuditFields", "agent:a", "ok", "agent:a"),
            ("Validate", "agent:a", "ok", "agent:a"),
            ("Validate", "agent:a", "veto", "agent:a"),
            ("follow", "agent:a", "ok", "agent:a"),
            ("follow", "t", "ok", ""),
            ("follow", "t", "ok", ""),
            ("look", "agent:a", "ok", "agent:a"),
            ("look", "t", "ok", ""),
            ("look", "t", "ok", ""),
        ]
        assert held.state(agent="a")["v"] == {"n": 1}
        assert [each.thread for each in held.threads()] == ["t"]
        assert held.audit.verify().findings == []
        assert held.maintenance.verify().findings == []


def test_those_who_act_have_no_hooks() -> None:
    with holdfast.open("memory://") as held:
        assert not hasattr(held.as_identity(agent="a"), "hooks")


def test_public_names() -> None:
    for name in dir(holdfast.hooks):
        assert getattr(holdfast.hooks, name).__class__
    missing: Any = holdfast.hooks
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        missing.nothing()
