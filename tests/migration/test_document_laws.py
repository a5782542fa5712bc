"""Laws of states beyond threads: whatever is migrated up and down again, lazily or all at once, is what it was."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any, TypedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.schemas import Migration, Schema, SchemaSet
from holdfast.schemas.operations import Operation
from tests.engine.lines import store_on
from tests.migration.documents import NEW_PLAN, OLD_PLAN, PLAN_1, PLAN_2, PLANS
from tests.schemas.test_migration_laws import chains
from tests.support.faults import Fault, Faults
from tests.support.nightly import examples

seen: Counter[str] = Counter()
PLACES: dict[str, dict[str, Any]] = {"key": {"scopes": "user:*", "key": "v"}, "scope": {"scopes": "user:*"}}


class Anything(TypedDict):
    """A state without declared fields."""


def opened(backend: MemoryBackend) -> Store:
    return Store(Engine(EngineContext(backend)), "")


def content(store: Store, place: str, *, migrate: bool) -> Any:
    state = store.state(user="u")
    items = {each.key: each.value for each in state.list_items(migrate=migrate)}
    return items["v"] if place == "key" else items


@settings(max_examples=examples(100))
@given(chains(4), st.sampled_from(sorted(PLACES)), st.booleans(), st.booleans())
def check_round_trip(chain: tuple[dict[str, Any], list[Operation]], place: str, plain: bool, bulk: bool) -> None:
    state, operations = chain
    if not operations or (place == "scope" and not state):
        return
    versions = [Schema("x", str(number), Anything) for number in range(1, len(operations) + 2)]
    steps = [Migration("x", str(number), str(number + 1), each) for number, each in enumerate(operations, 1)]
    schemas, newest = SchemaSet(*versions, *steps), f"{len(versions)}.0.0"
    backend, where = MemoryBackend(), PLACES[place]
    old = opened(backend)
    old.schemas.attach(SchemaSet(versions[0]), **where)
    old.state(user="u").batch({"v": state} if place == "key" else state)
    if plain:  # a program without schemas changes nothing of the version
        other = opened(backend)
        other.state(user="u").batch({"v": state} if place == "key" else state)
    expected = schemas.migrate("x", state, "1", newest)
    new = opened(backend)
    if bulk:
        assert new.schemas.up(schemas).migrated == 1
        seen["bulk"] += 1
    new.schemas.attach(schemas, **where)
    assert content(new, place, migrate=True) == expected
    if not bulk:
        assert content(new, place, migrate=False) == state
        if place == "key":
            new.state(user="u")["v"] = expected  # stored in the new form
        elif expected:
            key = next(iter(expected))
            new.state(user="u")[key] = expected[key]
        else:
            return
        seen["lazy"] += 1
    assert content(new, place, migrate=False) == expected
    new.schemas.down(schemas, to="1")
    assert content(opened(backend), place, migrate=False) == state
    seen[place] += 1


def test_up_and_down_again_gives_the_original() -> None:
    seen.clear()
    check_round_trip()
    assert seen.keys() == {"bulk", "lazy", *PLACES}, "every way and every place was tried"


class Killed(BaseException):
    """The process ends."""


def kill() -> None:
    raise Killed


def plans(store: Store) -> list[list[Any]]:
    """The stored plans of each user."""
    users = [store.state(user=user) for user in ("a", "b")]
    return [[each.value for each in state.list_items(migrate=False)] for state in users]


def test_a_run_that_is_killed_is_resumed_or_taken_back() -> None:
    struck = Counter[str]()
    for when in ("before", "after"):
        for nth in count(1):
            inner = MemoryBackend()
            store = store_on(inner)
            store.schemas.attach(PLAN_1, **PLANS)
            for user in ("a", "b"):
                store.state(user=user).batch({"plans/1": OLD_PLAN, "plans/2": OLD_PLAN})
            faults = Faults(inner, [Fault("apply", nth, kill, when)])  # type: ignore[arg-type]
            try:
                store_on(faults).schemas.up(PLAN_2)
            except Killed:
                struck[when] += 1
            else:
                break
            again = store_on(inner)
            again._engine.context.clock.now += 10**12  # type: ignore[attr-defined]  # leases of the killed one expire
            for found in plans(again):
                assert found in ([OLD_PLAN] * 2, [NEW_PLAN] * 2), "the plans of a scope are migrated together"
            if nth % 2:
                again.schemas.up(PLAN_2)
                assert plans(again) == [[NEW_PLAN] * 2] * 2
            again.schemas.down(PLAN_2, to="1.0.0")
            assert plans(again) == [[OLD_PLAN] * 2] * 2
            assert again.maintenance.verify().ok
    assert min(struck["before"], struck["after"]) > 3, "each step of both users, and the registry before and after"
