"""Correlation ids and causes follow the flow of a program, into every step and row."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.engine import trace_context
from holdfast.engine.row_format import Line, open_step
from holdfast.engine.trace_context import Trace, current, current_or_new, link_artifacts
from holdfast.errors import InvalidError
from holdfast.hooks import HookContext
from tests.hooks.kit import async_store, events, store


def correlations(held: Any, **scope: str) -> list[str]:
    """The correlation ids of a scope's changes, the first first."""
    return [past.correlation for past in reversed(held.state(**scope).history())]


def test_block_gives_one_id_to_all_changes_and_ends() -> None:
    held = store()
    with holdfast.correlation() as id:
        held.state()["a"] = 1
        held.state()["b"] = 1
        with holdfast.correlation() as inner:
            assert inner == id
        with holdfast.correlation("other", cause="why"):
            held.state()["c"] = 1
    held.state()["d"] = 1
    held.state()["e"] = 1
    found = correlations(held)
    assert found[:3] == [id, id, "other"]
    assert len({*found[2:]}) == 3
    assert held.state().history("c")[0].cause == "why"
    assert current() == Trace()
    held.close()


def test_id_of_a_block_that_fails_does_not_stay() -> None:
    with pytest.raises(ZeroDivisionError), holdfast.correlation("x"):
        raise ZeroDivisionError
    assert current() == Trace()
    with pytest.raises(InvalidError), holdfast.correlation("a\0b"):
        pass
    with pytest.raises(InvalidError), holdfast.correlation("a", cause=""):
        pass


def test_artifacts_add_up() -> None:
    with link_artifacts("a"), link_artifacts("b", "a"):
        assert current().artifacts == ("a", "b")
    assert current().artifacts == ()


def test_ids_go_through_tasks_and_threads() -> None:
    async def main() -> None:
        held = async_store()

        async def change(key: str) -> None:
            await asyncio.sleep(0)
            await held.state().set(key, 1)

        async def own(key: str) -> None:
            with holdfast.correlation(f"own-{key}"):
                await change(key)

        with holdfast.correlation("task"):
            await change("direct")
            await asyncio.create_task(change("task"))
            await asyncio.gather(own("x"), own("y"))
            await asyncio.to_thread(lambda: asyncio.run(change("to_thread")))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, holdfast.bound(lambda: asyncio.run(change("executor"))))
        found = {past.key: past.correlation for past in await held.state().history()}
        assert found == {
            "direct": "task",
            "task": "task",
            "x": "own-x",
            "y": "own-y",
            "to_thread": "task",
            "executor": "task",
        }
        await held.close()

    asyncio.run(main())


def test_bound_functions_carry_them_into_executors_and_threads() -> None:
    held = store()

    def change(key: str) -> str:
        """Changes a key."""
        held.state()[key] = 1
        return key

    with ThreadPoolExecutor(4) as pool, holdfast.correlation("pool"):
        function = holdfast.bound(change)
        assert function.__doc__ == "Changes a key."
        assert sorted(pool.map(function, "abcdef")) == list("abcdef")  # one function, many threads at a time
        pool.submit(change, "unbound").result()
        thread = threading.Thread(target=holdfast.bound(change), args=("thread",))
        thread.start()
        thread.join()
    found = {past.key: past.correlation for past in held.state().history()}
    assert found.pop("unbound") != "pool"
    assert set(found.values()) == {"pool"}
    held.close()


def test_what_a_bound_function_sets_stays_with_it() -> None:
    def spoil() -> None:
        trace_context.enter(Trace("spoilt"))

    function = holdfast.bound(spoil)
    function()
    assert current() == Trace()


def test_ids_go_into_hooks() -> None:
    held = store()
    seen: list[tuple[str, Trace]] = []

    @held.hooks.before("state.set", name="thread")
    def in_thread(call: HookContext) -> None:
        seen.append(("thread", current()))

    @held.hooks.before("state.set", name="loop")
    async def on_loop(call: HookContext) -> None:
        seen.append(("loop", current()))

    held.hooks.before("state.set", name="inline", inline=True)(lambda call: seen.append(("inline", current())))
    held.hooks.after("state.set", name="after")(lambda call: seen.append(("after", current_or_new())))
    with holdfast.correlation("c1", cause="e1"):
        held.state()["k"] = 1
    assert held.hooks.drain(30)
    id = held.state().history()[0].id
    before = Trace("c1", "e1")
    assert seen == [("thread", before), ("loop", before), ("inline", before), ("after", Trace("c1", id))]
    held.state()["k"] = 2  # with an id of its own, which all of them share
    assert held.hooks.drain(30)
    assert {trace.correlation for _, trace in seen[4:]} == {held.state().history()[0].correlation}
    held.close()


@pytest.mark.parametrize("hooked", [False, True])
def test_every_step_and_row_says_who_why_and_which_versions(hooked: bool) -> None:
    held = store()
    if hooked:
        held.hooks.before("state.*", inline=True, name="look")(lambda call: None)
    state = held.state(agent="a")
    with holdfast.correlation("c1", cause="e1"):
        state["k"] = 1
        state.batch({"k": 2, "new": 1})
        state.change("k", lambda n: n + 1)
        state.patch("map", {"a": 1})
        state.expire("k", 60)
        state.rollback(1, "k")
        state.delete("k")
        with held.transaction() as together:
            together.state(agent="a").set("k", 5)
    (rows,) = run(held._engine.context.backend.read([Scan(STEPS, ("", "␞agent:a", 0))]))
    assert len(rows) == 8
    line = Line("", "␞agent:a")
    before = []
    for row in rows:
        about = held._engine.context.codec.unpack(open_step(line, row, 1 << 20).header.metadata)
        assert (about["correlation"], about["cause"]) == ("c1", "e1")
        before.append(about["before"])
    # Of one key, which the change itself names, only the version.
    assert before == [0, {"k": 1, "new": 0}, 2, 0, 3, 5, 6, 0]
    told = events(held, line.name)
    changes = [row for row in told if row.columns[1] == "change"]
    assert len(changes) == 9
    assert {row.columns[6:8] for row in told} == {("c1", "e1")}
    assert len(told) == 9 * (1 + hooked)
    # A row belongs to its step by the id, and the number of the step is the new version.
    versions = {past.id: (past.before, past.version) for past in state.history("k")}
    assert versions.keys() <= {str(row.key[2]) for row in changes}
    assert list(versions.values()) == [(0, 8), (6, 0), (5, 6), (3, 5), (2, 3), (1, 2), (0, 1)]
    held.close()
