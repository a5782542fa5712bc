"""What scoped state and agents keep in a store is frozen, too: what an earlier release wrote is read by this one.

`tests/golden/features-v2.json` holds the rows of a store with scopes, rights, a session, an artifact, a topic, and
agents, one of them in the middle of a transition. It is written once, by `python -m tests.test_golden_features`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.agents import Machine, PersistentAgent
from holdfast.agents.definition.spec import registry
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import EVENTS, LINKS
from holdfast.store.store import Store
from tests.engine.lines import KINDS, backend, store_on
from tests.test_golden_store import put_rows, rows_of

GOLDEN = pathlib.Path(__file__).parent / "golden" / "features-v2.json"


class _Killed(BaseException):
    """The process ended here."""


class Clerk(PersistentAgent, name="clerk-of-golden-stores"):
    """Files what it is given."""

    filed: list[str] = []
    machine = Machine("idle", "filing")
    machine.add("take", "idle", "filing", action="file")
    machine.add("rest", "filing", "idle")

    def file(self, name: str) -> None:
        """Put it where it belongs."""
        if name == "the last one":
            raise _Killed
        self.filed.append(name)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    registry.register(Clerk.spec)
    yield
    registry.forget(Clerk.spec.name)


def fill(store: Store) -> None:
    """Scopes with history, expiry and rights; a session; an artifact; a topic; two agents and a transfer."""
    state = store.state(agent="researcher")
    state["plan"] = {"steps": ["read"]}
    state.patch("plan", {("done",): False})
    state.set("soon gone", 1, ttl=10**9)
    store.state(workflow="w", step="fetch").batch({f"key {n:03}": n for n in range(200)})
    store.access.grant("agent:writer", "read", agent="researcher")
    store.as_identity(agent="writer", read_window=0).state(agent="researcher").get("plan")
    session = store.sessions.start("s1", user="ada", metadata={"from": "web"})
    session.state["basket"] = ["tides"]
    store.artifacts.register(b"the tides", id="a1", type="text/plain")
    with store.artifacts.using("a1"):
        state["source"] = "a1"
    store.sharing.topic("news").publish({"headline": "kelp"})
    for id in ("one", "other"):
        clerk = Clerk(desk=id).attach(store, id)
        clerk.start()
        clerk.tools.declare("stamp", permissions=("ink",))
        clerk.workflow.begin("sort")
        clerk.context["shift"] = "early"
        clerk.metadata["floor"] = 2
        clerk.conversation.extend({"role": "user", "content": f"{id} {n}"} for n in range(40))
        clerk.transition("take", "a letter")
        clerk.transition("rest")
    store.agents.transfer("one", "other", reason="lunch")
    clerk = store.agents.restore("one")
    clerk.start()
    with pytest.raises(_Killed):
        clerk.transition("take", "the last one")


def check(store: Store) -> None:
    """All that is there."""
    state = store.state(agent="researcher")
    assert state["plan"] == {"steps": ["read"], "done": False}
    assert [(each.action, each.version) for each in state.history("plan")] == [("patch", 2), ("set", 1)]
    assert state.get_at("plan", 1) == {"steps": ["read"]}
    assert state.item("soon gone").expires is not None
    assert store.state(workflow="w", step="fetch")["key 199"] == 199
    assert store.as_identity(agent="writer").state(agent="researcher")["source"] == "a1"
    session = store.sessions.get("s1")
    assert (session.metadata, session.state["basket"]) == ({"from": "web"}, ["tides"])
    assert store.artifacts.read("a1") == b"the tides"
    assert [each.key for each in store.artifacts.changes("a1")] == ["source"]
    assert [each.value for each in store.sharing.topic("news").read()] == [{"headline": "kelp"}]
    one, other = store.agents.load("one"), store.agents.load("other")
    assert one.pending is not None
    assert (one.pending.trigger, one.state, one.messages) == ("take", "idle", 0)
    assert (one.configuration, one.fields) == ({"desk": "one"}, {"filed": ["a letter"]})
    assert (other.messages, other.context, other.metadata["floor"]) == (80, {"shift": "early"}, 2)
    assert store.agents.messages("other")[-1] == {"role": "user", "content": "one 39"}
    assert [each.trigger for each in store.agents.transitions("other")] == ["rest", "take"]
    assert store.agents.transfers("other")[0].phase == "acknowledged"
    assert store.audit.verify().ok
    assert store.maintenance.verify().findings == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_version_1_kept_is_read(kind: str, tmp_path: pathlib.Path) -> None:
    on = backend(kind, tmp_path)
    put_rows(on, json.loads(GOLDEN.read_text()))
    with store_on(on) as store:
        check(store)
        clerk: Any = store.agents.restore("one")
        clerk.start()
        assert [each.kind for each in clerk.recoveries] == ["transition"]
        assert clerk.transition("take", "another") == "filing"
        assert store.agents.load("one").fields == {"filed": ["a letter", "another"]}
        assert store.audit.verify().ok


def test_a_store_of_today_is_such_a_store() -> None:
    on = MemoryBackend()
    with store_on(on) as store:
        fill(store)
        check(store)
        now = rows_of(on)
    frozen = json.loads(GOLDEN.read_text())
    for space in (EVENTS, LINKS):
        assert frozen[space.name]
    for name, rows in frozen.items():  # as many, of as many lines: ids and times are those of the day
        assert len(now[name]) == len(rows), name
        assert {values[1] for values, _ in now[name]} == {values[1] for values, _ in rows}, name


if __name__ == "__main__":
    if GOLDEN.exists():
        raise SystemExit("it is frozen already")
    made = MemoryBackend()
    with store_on(made) as opened:
        fill(opened)
        check(opened)
        GOLDEN.write_text(json.dumps(rows_of(made), indent=1) + "\n")
