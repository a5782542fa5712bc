"""Laws of migrations of all states: whatever the states and the operations, and wherever the process is killed, the run
is resumed to what the migrations say, or taken back to what was there."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import HoldfastError
from holdfast.maintenance.migration import bulk, plan
from holdfast.schemas import Migration, Schema, SchemaSet, custom
from tests.engine.lines import store_on
from tests.schemas.test_migration_laws import KINDS, STATES, chains, reverse, reverse_back
from tests.support.faults import Fault, Faults
from tests.support.nightly import by_night, examples

FOLD_EVERY = 4
"""So that some threads are folded, and others are short."""

seen: Counter[str] = Counter()


class Anything(TypedDict):
    """A state with any channels."""


class Killed(BaseException):
    """The process is gone."""


def kill() -> HoldfastError:
    raise Killed


class Threads(dict[str, list[dict[str, Any]]]):
    """The states of threads, one after the other; of those whose names start with `fork`, on two branches."""


@st.composite
def stores(draw: Any) -> tuple[Threads, SchemaSet]:
    """Threads with states, and a version for each of some operations that can be applied to one of them."""
    state, operations = draw(chains(4))
    if not operations:
        operations = [custom(reverse, reverse_back)]
    others = draw(st.lists(STATES, min_size=1, max_size=4))
    threads = Threads()
    for number, last in enumerate([state, *others]):
        kind = draw(st.sampled_from(["short", "long", "fork"]))
        history = draw(st.lists(STATES, max_size=2))
        filler = [{"n": each} for each in range(FOLD_EVERY)] if kind == "long" else []
        threads[f"{kind}-{number}"] = [*history, *filler, last]
    migrations = [Migration("x", f"{number}", f"{number + 1}", each) for number, each in enumerate(operations, 1)]
    versions = [Schema("x", f"{number}", Anything) for number in range(1, len(operations) + 2)]
    return threads, SchemaSet(*versions, *migrations)


def fill(store: Store, threads: Threads) -> None:
    store.schemas.attach(SchemaSet(Schema("x", "1", Anything)), threads="*")
    for name, states in threads.items():
        for state in states:
            store.thread(name).put(state)
        if name.startswith("fork"):
            store.thread(name).fork("side", changes={"forked": 1})
    store.schemas.detach(threads="*")


def heads(store: Store) -> dict[tuple[str, str], tuple[dict[str, Any], str]]:
    """The last states of all branches, without what was kept aside, and their versions."""
    found = {}
    for info in store.threads():
        thread = store.thread(info.thread)
        for branch in thread.branches():
            if branch.head is not None:
                read = thread.get(at=branch.head, migrate=False)
                state = {key: value for key, value in read.state.items() if key != "__aside__"}
                found[info.thread, branch.name] = state, read.schema
    return found


def expected(before: dict[Any, Any], schemas: SchemaSet, newest: str) -> dict[Any, Any]:
    """Migrate each state by itself; those that fail stay as they are."""
    result = {}
    for key, (state, reference) in before.items():
        try:
            after = schemas.migrate("x", state, "1", newest), f"x@{newest}"
        except HoldfastError:
            seen["unfit"] += 1
            after = state, reference
        result[key] = after
    return result


@settings(max_examples=examples(150))
@given(stores(), st.integers(1, 12), st.sampled_from(["before", "after"]), st.booleans())
def check_kills(drawn: tuple[Threads, SchemaSet], nth: int, when: Any, resumed: bool) -> None:
    threads, schemas = drawn
    newest = str(schemas.versions("x")[-1])
    inner = MemoryBackend()
    store = store_on(inner, fold_every=FOLD_EVERY)
    fill(store, threads)
    before = heads(store)
    after = expected(before, schemas, newest)
    faults = Faults(inner, [Fault("apply", nth, kill, when)])
    try:
        store_on(faults, fold_every=FOLD_EVERY).schemas.up(schemas, on_error="skip")
    except Killed:
        seen[f"killed {when}"] += 1
    again = store_on(inner, fold_every=FOLD_EVERY)
    again._engine.context.clock.now += 10**12  # type: ignore[attr-defined]  # leases of the killed process expire
    for number, (state, _) in heads(again).items():
        assert state in (before[number][0], after[number][0]), "never anything between the two"
    if resumed:
        seen["resumed"] += 1
        again.schemas.up(schemas, on_error="skip")
        assert heads(again) == after
    again.schemas.down(schemas, to="1", on_error="skip")
    assert {key: state for key, (state, _) in heads(again).items()} == {
        key: state for key, (state, _) in before.items()
    }
    assert again.maintenance.verify().ok
    again.schemas.up(schemas, on_error="skip")
    assert heads(again) == after, "and up again"
    for name in threads:
        seen[name.partition("-")[0]] += 1
    for migration in schemas.migrations():
        seen.update(each.kind for each in migration.operations)


def test_a_run_that_is_killed_is_resumed_or_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    monkeypatch.setattr(plan, "PAGE", 2)
    seen.clear()
    wanted = KINDS | {"killed before", "killed after", "resumed", "short", "long", "fork"}
    for _ in range(5):  # some kinds are rare in random examples
        check_kills()
        if not by_night() or seen.keys() >= wanted:
            break
    assert seen["killed before"] + seen["killed after"], "nothing was killed"
    assert not by_night() or seen.keys() >= wanted, f"these did not occur: {wanted - seen.keys()}"
