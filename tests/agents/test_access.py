"""Agents and identities: access to the scope of an agent is access to the agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.errors import DeniedError, InvalidError
from holdfast.store.store import Store
from tests.agents.greeters import Greeter, opened


@pytest.fixture
def store() -> Iterator[Store]:
    made = opened(MemoryBackend())
    for name in ("a", "ab", "b"):
        made.agents.create(Greeter, name)
    yield made
    made.close()


def test_an_identity_has_its_own_agent(store: Store) -> None:
    act = store.as_identity(agent="a")
    agent = act.agents.restore("a")
    agent.greet("Ada")
    assert agent.save() == 2
    assert act.agents.load("a").fields["greeted"] == ["Ada"]
    assert [each.id for each in act.agents.list()] == ["a"]
    assert act.agents.list(prefix="ab") == []
    (step, _) = act.agents.history("a")
    assert step.actor == "agent:a"
    assert {each.actor for each in store.audit.query(kind="agent", actor="agent:a")} == {"agent:a"}
    for use in (act.agents.load, act.agents.restore, act.agents.delete, act.agents.exists, act.agents.messages):
        with pytest.raises(DeniedError):
            use("b")
    denied = store.audit.query(actor="agent:a", kind="denied")
    assert len(denied) == 5
    assert {each.scope for each in denied} == {"agent:b"}


def test_a_denial_does_not_tell_whether_there_is_such_an_agent(store: Store) -> None:
    act = store.as_identity(agent="a")
    texts = []
    for name in ("b", "nobody"):
        with pytest.raises(DeniedError) as caught:
            act.agents.load(name)
        texts.append(str(caught.value).replace(name, "…"))
    assert texts[0] == texts[1]


def test_a_right_is_granted_and_taken_back(store: Store) -> None:
    act = store.as_identity(agent="a")
    grant = store.access.grant("agent:a", "read", "agent:b")
    assert act.agents.load("b").version == 1
    assert [each.id for each in act.agents.list()] == ["a", "b"]
    agent = act.agents.restore("b")
    with pytest.raises(DeniedError):
        agent.save()
    both = store.access.grant("agent:a", ["read", "write"], "agent:b")
    agent.greet("Ada")
    assert agent.save() == 2
    store.access.revoke(both)
    store.access.revoke(grant)
    agent.greet("Bob")
    with pytest.raises(DeniedError):
        agent.save()
    assert store.agents.load("b").version == 2


def test_messages_are_not_read_under_a_right_that_is_gone(store: Store) -> None:
    owner = store.agents.restore("b")
    owner.greet("Ada")
    owner.save()
    grant = store.access.grant("agent:a", "read", "agent:b")
    agent = store.as_identity(agent="a").agents.restore("b")
    store.access.revoke(grant)
    with pytest.raises(DeniedError):
        agent.conversation.all()


def test_who_only_reads_saves_nothing(store: Store) -> None:
    act = store.as_identity(agent="a", mode="read-only")
    agent = act.agents.restore("a")
    for use in (agent.save, agent.start, lambda: agent.transition("work"), lambda: act.agents.delete("a")):
        with pytest.raises(DeniedError):
            use()
    assert (agent.state, agent.status, store.agents.load("a").version) == ("idle", "created", 1)


def test_what_is_no_id_is_refused(store: Store, subtests: pytest.Subtests) -> None:
    wrong: list[Any] = ["", ".", "..", "a/../b", "/a", "a/", "a\0", "a\nb", "x" * 300, "x" * 10_000, "a\ud800", 3, None]
    for id in wrong:
        with subtests.test(id=repr(id)[:12]):
            for use in (store.agents.load, store.agents.exists, store.agents.delete, store.agents.restore):
                with pytest.raises(InvalidError):
                    use(id)
            with pytest.raises(InvalidError):
                Greeter().attach(store, id)


def test_odd_ids_are_those_of_one_agent_each(store: Store, subtests: pytest.Subtests) -> None:
    for id in ["a:b", "a/b", "a%2Fb", "␞agents:a", "agent:a", "ａ", "а", "a␟b", "*", "é", "%", "a~1"]:
        with subtests.test(id=id):
            store.agents.create(Greeter, id).greet("x")
            before = {each.id: each.version for each in store.agents.list()}
            agent = store.agents.restore(id)
            agent.save()
            after = {each.id: each.version for each in store.agents.list()}
            assert after == {**before, id: 2}
            assert len(before) == 4
            assert store.agents.load(id).id == id
            assert [each.id for each in store.agents.list(prefix=id)] == [id]
            store.agents.delete(id)
            assert [each.id for each in store.agents.list()] == ["a", "ab", "b"]
            assert store.threads() == []
