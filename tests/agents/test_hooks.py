"""Hooks around the operations of agents: they may veto, may change the saved state, and are called afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import VetoError
from holdfast.hooks.points import POINTS
from tests.agents.greeters import AsyncGreeter, Greeter
from tests.hooks import kit

AGENT_POINTS = [point for point in POINTS if point.startswith("agent.")]


def lived(store: Any) -> None:
    """Everything that an agent can do, and has a point for."""
    agent = store.agents.create(Greeter, "a")
    agent.start()
    agent.save()
    agent.transition("work")
    agent.pause()
    agent.resume()
    agent.stop()
    agent.fail("broken")
    agent.rollback(2)
    store.agents.restore("a")
    agent.transfer(store.agents.create(Greeter, "b"))
    store.agents.delete("a")


def test_every_point_is_called_before_and_after() -> None:
    store = kit.store()
    before: list[str] = []
    after: list[tuple[str, str, bool]] = []
    store.hooks.before("agent.*", name="before")(lambda call: before.append(call.point))
    store.hooks.after("agent.*")(lambda call: after.append((call.point, call.key, bool(call.id))))
    lived(store)
    store.hooks.drain()
    assert set(before) == set(AGENT_POINTS)
    assert {point for point, _, _ in after} == set(AGENT_POINTS)
    assert [point for point in before if point != "agent.transfer"] == [
        "agent.create",
        "agent.start",
        "agent.save",
        "agent.transition",
        "agent.pause",
        "agent.resume",
        "agent.stop",
        "agent.fail",
        "agent.rollback",
        "agent.restore",
        "agent.create",
        "agent.delete",
    ]
    assert all(has_id for _, _, has_id in after)


@pytest.mark.parametrize("point", [each for each in AGENT_POINTS if each not in ("agent.create", "agent.restore")])
def test_who_objects_leaves_the_agent_as_it_was(point: str) -> None:
    store = kit.store()

    def object_(call: Any) -> None:
        if call.point == point:
            raise VetoError("not today")

    agent = store.agents.create(Greeter, "a")
    other = store.agents.create(Greeter, "b")
    if point in ("agent.pause", "agent.stop"):
        agent.start()
    if point == "agent.resume":
        agent.start()
        agent.pause()
    version = store.agents.load("a").version
    store.hooks.before("agent.*")(object_)
    acts: dict[str, Any] = {
        "agent.fail": lambda: agent.fail("x"),
        "agent.transition": lambda: agent.transition("work"),
        "agent.transfer": lambda: agent.transfer(other),
        "agent.delete": lambda: store.agents.delete("a"),
        "agent.rollback": lambda: store.agents.rollback("a", 1),
        **{f"agent.{name}": getattr(agent, name) for name in ("save", "start", "pause", "resume", "stop")},
    }
    standing = (agent.status, agent.state)
    with pytest.raises(VetoError, match="not today"):
        acts[point]()
    record = store.agents.load("a")
    assert (record.status, record.state) == (agent.status, agent.state) == standing
    assert record.pending is None
    assert record.version == version + (point == "agent.transition")  # that it was refused is recorded


def test_who_objects_keeps_an_agent_from_being_made() -> None:
    store = kit.store()

    def object_(_: Any) -> None:
        raise VetoError("not today")

    agent = Greeter().attach(store, "a")
    document = store.agents.export(store.agents.create(Greeter, "b").id)
    store.hooks.before("agent.create", name="object")(object_)
    for act in (
        lambda: store.agents.create(Greeter, "a"),
        lambda: store.agents.import_(document, id="a"),
        agent.save,
        agent.flush,
        agent.start,
        agent.stop,
        agent.__enter__,
        lambda: agent.fail("broken"),
        lambda: agent.transition("work"),
        lambda: agent.transfer("b"),
    ):
        with pytest.raises(VetoError, match="not today"):
            act()
        assert not store.agents.exists("a")
        assert (agent.status, agent.version) == ("created", 0)
    store.hooks.remove("object")
    agent.start()
    assert store.agents.load("a").status == "running"


@pytest.mark.parametrize("first", ["save", "start"])
def test_a_hook_is_given_what_the_first_step_of_an_attached_agent_saves(first: str) -> None:
    store = kit.store()
    after: list[str] = []

    def tidy(call: Any) -> Any:
        value = call.value
        value["fields"]["count"] = 7
        return value

    store.hooks.before("agent.create")(tidy)
    store.hooks.after("agent.create", "agent.save", "agent.start")(lambda call: after.append(call.point))
    agent = Greeter().attach(store, "a")
    getattr(agent, first)()
    agent.stop()
    store.hooks.drain()
    assert store.agents.load("a").fields["count"] == agent.count == 7
    assert sorted(after) == ["agent.create", f"agent.{first}"]


def test_a_rollback_restores_what_a_hook_made_of_it() -> None:
    store = kit.store()
    agent = store.agents.create(Greeter, "a")
    for count in (1, 2):
        agent.count = count
        agent.save()

    def tidy(call: Any) -> Any:
        assert call.metadata["version"] == 2
        value = call.value
        value["metadata"]["count"] = value["fields"]["count"]
        return value

    store.hooks.before("agent.rollback")(tidy)
    agent.rollback(2)
    assert (agent.count, agent.metadata) == (1, {"count": 1})
    record = store.agents.load("a")
    assert (record.fields["count"], record.metadata) == (1, {"count": 1})
    assert store.agents.list(metadata={"count": 1})[0].id == "a"


def test_a_hook_is_given_what_is_to_be_saved_and_may_change_it() -> None:
    store = kit.store()
    agent = store.agents.create(Greeter, "a", greeting="Hi")
    seen: list[Any] = []

    def tidy(call: Any) -> Any:
        value = call.value
        seen.append((value["fields"]["greeted"].copy(), value["configuration"], call.metadata["status"]))
        value["fields"]["greeted"] = [name.title() for name in value["fields"]["greeted"]]
        value["metadata"]["tidy"] = True
        value["context"].pop("secret", None)
        return value

    store.hooks.before("agent.save")(tidy)
    agent.greeted += ["ada", "bob"]
    agent.context.update(secret=1, open=2)
    agent.save()
    assert seen == [(["ada", "bob"], {"greeting": "Hi"}, "created")]
    record = store.agents.load("a")
    assert (record.fields["greeted"], record.metadata, record.context) == (["Ada", "Bob"], {"tidy": True}, {"open": 2})
    assert (agent.greeted, agent.metadata, agent.context) == (["Ada", "Bob"], {"tidy": True}, {"open": 2})


def test_hooks_are_told_what_a_transition_is_about() -> None:
    store = kit.store()
    told: list[Any] = []
    store.hooks.after("agent.transition")(
        lambda call: told.append((dict(call.metadata), call.version, call.correlation))
    )
    agent = store.agents.create(Greeter, "a")
    agent.transition("work", {"n": 1})
    store.hooks.drain()
    ((about, version, correlation),) = told
    assert (about["trigger"], about["from"], about["to"], about["data"]) == ("work", "idle", "busy", {"n": 1})
    assert version == 2
    assert correlation == store.agents.load("a").notes["correlation"]


def test_the_rows_of_hooks_ride_in_the_step() -> None:
    store = kit.store()
    store.hooks.before("agent.save", name="looker")(lambda call: None)
    agent = store.agents.create(Greeter, "a")
    agent.greet("x")
    agent.save()
    kinds = [row.columns[1] for row in kit.events(store, "␞agents:a")]
    assert kinds.count("hook") == 1
    assert store.audit.verify().ok
    assert store.maintenance.verify().findings == []


def test_the_same_for_asyncio() -> None:
    async def main() -> None:
        store = kit.async_store()
        seen: list[str] = []

        async def look(call: Any) -> None:
            await asyncio.sleep(0)
            seen.append(call.point)

        store.hooks.before("agent.*")(look)
        agent = await store.agents.create(AsyncGreeter, "a")
        await agent.start()
        await agent.stop()
        await store.agents.delete("a")
        assert seen == ["agent.create", "agent.start", "agent.stop", "agent.delete"]

    asyncio.run(main())


def test_what_the_agent_does_meanwhile_is_not_undone_by_a_hook() -> None:
    store = kit.store()
    agent = store.agents.create(Greeter, "a")

    def slow(call: Any) -> Any:
        value = call.value
        value["fields"]["count"] = 99
        agent.greeted.append("meanwhile")
        agent.context["meanwhile"] = 1
        return value

    store.hooks.before("agent.save")(slow)
    agent.greeted.append("before")
    agent.save()
    assert (agent.count, agent.greeted, agent.context) == (99, ["before", "meanwhile"], {"meanwhile": 1})
    assert store.agents.load("a").fields["greeted"] == ["before", "meanwhile"]


def test_hooks_of_other_points_cost_an_agent_nothing() -> None:
    store = kit.store()
    store.hooks.before("state.set")(lambda call: None)
    agent = store.agents.create(Greeter, "a")
    calls: list[int] = []

    def persist() -> dict[str, int]:
        calls.append(1)
        return {"count": 0}

    agent.persist = persist  # type: ignore[method-assign]
    agent.save()
    assert len(calls) == 1


def test_an_imported_agent_is_one_that_is_made() -> None:
    store = kit.store()
    document = store.agents.export(store.agents.create(Greeter, "a").id)
    seen: list[Any] = []

    def named(call: Any) -> Any:
        value = call.value
        seen.append((call.key, call.metadata["class"]))
        value["metadata"]["imported"] = True
        return value

    store.hooks.before("agent.create")(named)
    assert store.agents.import_(document, id="b").metadata == {"imported": True}
    assert seen == [("b", "tests: greeter")]
