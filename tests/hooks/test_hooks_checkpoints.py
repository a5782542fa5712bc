"""Hooks of checkpoints: whichever way they are saved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import holdfast
from holdfast.engine.trace_context import Trace
from holdfast.errors import VetoError
from holdfast.hooks import CountChanges, HookContext
from holdfast.hooks.feature_hooks import call_hooks
from holdfast.langgraph import HoldfastSaver
from tests.hooks.kit import async_store, events, store


def test_every_way_to_save_is_seen() -> None:
    held = store()
    seen: list[tuple[str, str, Any]] = []
    held.hooks.before("checkpoint.save", name="look", inline=True)(
        lambda call: seen.append((call.scope, call.metadata["kind"], dict(call.value)))
    )
    first = held.thread("t").put({"a": 1}, metadata={"by": "me"})
    held.thread("t").update({"b": 2})
    held.thread("t").restore(at=first.id)
    held.thread("t").fork("draft", changes={"c": 3})
    held.thread("t").merge("draft", into="main")
    with held.transaction() as together:
        together.put("t", {"d": 4})
        together.update("u", {"e": 5})
        together.state()["k"] = 1
    assert [each[:2] for each in seen[:3]] == [("t", "save"), ("t", "update"), ("t", "restore")]
    assert [each[2] for each in seen] == [
        {"a": 1},
        {"a": 1, "b": 2},
        {"a": 1},
        {"a": 1, "c": 3},
        {"a": 1, "c": 3},
        {"d": 4},
        {"e": 5},
    ]
    assert len(held.hooks.history("look")) == 7
    assert len(held.hooks.history("look", scope="t")) == 6
    held.close()


def test_state_is_changed_or_refused() -> None:
    held = store()

    @held.hooks.before("checkpoint.save", scope="t*")
    def sign(call: HookContext) -> Any:
        if call.value.get("bad"):
            raise VetoError("bad")
        return {**call.value, "signed": True}

    held.thread("t").put({"a": 1})
    assert held.thread("t").get().state == {"a": 1, "signed": True}
    held.thread("t").update({"b": [2]}, remove=["a"])
    assert held.thread("t").get().state == {"signed": True, "b": [2]}
    held.thread("t2").update({"b": 2})
    assert held.thread("t2").get().state == {"signed": True, "b": 2}
    for save in (held.thread("t").put, held.thread("t").update):
        with pytest.raises(VetoError, match="bad") as caught:
            save({"bad": 1})
        assert caught.value.where == "t"
    assert held.thread("t").get().state == {"signed": True, "b": [2]}
    held.thread("other").put({"bad": 1})
    held.close()


def test_hook_that_returns_no_state_fails() -> None:
    held = store()
    held.hooks.before("checkpoint.save", name="odd")(lambda call: 3)
    held.thread("t").put({"a": 1})
    assert held.thread("t").get().state == {"a": 1}
    assert "must be a mapping" in held.hooks.list()[0].last_error
    held.close()


def test_after_hooks_follow_and_unchanged_states_do_not_count() -> None:
    held = store()
    seen: list[tuple[Any, ...]] = []
    held.hooks.after("checkpoint.save")(lambda call: seen.append((call.scope, call.value, call.version, call.id)))
    first = held.thread("t").put({"a": 1})
    held.thread("t").put({"a": 1}, if_changed=True)
    second = held.thread("t").update({"b": 1})
    assert held.hooks.drain(30)
    assert seen == [("t", {"a": 1}, 1, first.id), ("t", {"a": 1, "b": 1}, 2, second.id)]
    held.close()


def test_same_id_saved_again_keeps_the_rows_that_were_there() -> None:
    held = store()
    held.hooks.before("checkpoint.save", name="look")(lambda call: None)
    held.thread("t").put({"a": 1}, id="x", tag="n")
    held.thread("t").put({"a": 2}, id="x", tag="n")
    held.thread("t").put({"a": 2}, if_changed=True)
    assert held.thread("t").get(at="n").state == {"a": 2}
    assert len(held.hooks.history("look")) == 3
    held.close()


def test_updates_do_not_read_the_state_for_hooks_that_do_not_want_it() -> None:
    held, metrics = store(), CountChanges()
    held.thread("t").put({"a": 1})
    held.hooks.add(metrics, "checkpoint.*")
    held.thread("t").update({"b": 2})

    class Blind:
        phase, inline, wants_value = "before", True, False
        seen: list[Any] = []

        def __call__(self, call: HookContext) -> None:
            self.seen.append(call.value)

    held.hooks.add(Blind(), "checkpoint.save")
    held.thread("t").update({"c": 3})
    assert Blind.seen == [holdfast.MISSING]
    assert metrics.snapshot()["checkpoint.save"]["count"] == 2
    assert held.thread("t").get().state == {"a": 1, "b": 2, "c": 3}
    held.close()


def test_deleting_a_thread() -> None:
    held = store()
    held.thread("t").put({"a": 1})
    held.thread("kept").put({"a": 1})
    gone: list[str] = []

    @held.hooks.before("checkpoint.delete", name="keep")
    def keep(call: HookContext) -> None:
        if call.scope == "kept":
            raise VetoError("it is kept")

    held.hooks.after("checkpoint.delete", name="gone")(lambda call: gone.append(call.scope))
    with pytest.raises(VetoError, match="it is kept"):
        held.thread("kept").delete()
    assert held.thread("t").delete()
    assert not held.thread("t").delete()
    assert held.hooks.drain(30)
    assert gone == ["t"]
    assert [each.thread for each in held.threads()] == ["kept"]
    assert sorted(each.outcome for each in held.hooks.history("keep")) == ["ok", "ok", "veto"]
    held.close()


def test_langgraph_passes_them_too() -> None:
    held = store()
    seen: list[tuple[str, str]] = []
    held.hooks.before("checkpoint.*", inline=True)(lambda call: seen.append((call.point, call.scope)))
    saver = HoldfastSaver(held)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"a": 1}
    saver.put(config, checkpoint, {"source": "input", "step": -1, "parents": {}}, {})
    saver.delete_thread("t")
    assert seen == [("checkpoint.save", "t"), ("checkpoint.delete", "t")]
    held.close()


def test_async_store() -> None:
    async def main() -> None:
        held = async_store()

        @held.hooks.before("checkpoint.save")
        async def sign(call: HookContext) -> Any:
            await asyncio.sleep(0)
            return {**call.value, "signed": True}

        await held.thread("t").put({"a": 1})
        assert (await held.thread("t").get()).state == {"a": 1, "signed": True}
        await held.close()

    asyncio.run(main())


# Features with points of their own ----------------------------------------------------------------------------------


def test_features_call_hooks_of_their_own_points() -> None:
    from holdfast.backends.runtime.drivers import run

    held = store()
    bare = run(call_hooks(held._engine, "session.start", scope="session:s", value={"a": 1}))
    assert (bare.value, bare.events, bare.notes) == ({"a": 1}, (), {})
    bare.call_after(1, "x")
    seen: list[tuple[Any, ...]] = []

    @held.hooks.before("session.start")
    def sign(call: HookContext) -> Any:
        call.note(ticket=1)
        return {**call.value, "signed": call.metadata["by"]}

    held.hooks.after("session.*", inline=True, name="look")(
        lambda call: seen.append((call.point, call.key, call.value, call.version, call.cause))
    )
    call = run(
        call_hooks(
            held._engine,
            "session.start",
            scope="session:s",
            key="s",
            value={"a": 1},
            trace=Trace("c"),
            metadata={"by": "me"},
        )
    )
    assert call.value == {"a": 1, "signed": "me"}
    assert [(event.action, event.target, event.outcome) for event in call.events] == [("sign", "s", "changed")]
    assert call.notes == {"ticket": 1}
    call.call_after(3, "the-step")
    assert seen == [("session.start", "s", {"a": 1, "signed": "me"}, 3, "the-step")]
    other = run(call_hooks(held._engine, "artifact.register", scope="global"))
    assert other.value is holdfast.MISSING
    other.call_after()
    assert events(held) == [] or held.hooks.drain(30)
    held.close()
