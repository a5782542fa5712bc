"""Operators on fields: what several processes add to one agent is all there, and is stored as what was added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import PersistentAgent, persistent
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.interface import Batch
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.model.operations import Combine, EditMap, Operation, Set
from holdfast.engine.model.operators import UpdateOperator
from holdfast.engine.model.packed_state import unpack_name
from holdfast.engine.namespaces import AGENTS
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, InvalidError, OutcomeUnknownError
from holdfast.state import AddToSet, Append, Increment, Max
from holdfast.store.store import Store
from tests.agents.greeters import opened
from tests.support.nightly import fewer_examples


class Clerk(PersistentAgent, name="clerk-of-operators"):
    served: int = 0
    names: list[str] = []
    seen: set[str] = set()
    best: float = 0.0
    counts: dict[str, Any] = {}
    note: str = "short"
    text: str = "a text that makes the fields long enough to be changed in part, and not set as a whole" * 9


def two(store: Store, **options: Any) -> tuple[Clerk, Clerk]:
    store.agents.create(Clerk, "a")
    return store.agents.restore("a", Clerk, **options), store.agents.restore("a", Clerk, **options)


def last_operations(store: Store) -> dict[str, Operation]:
    """The operations of the last step on the fields."""
    engine = store._engine
    line = Line("", AGENTS + "a")

    async def read() -> EditMap:
        point = await engine.lines.latest_step(line)
        assert point is not None
        return (await engine.states.load(line, point)).tail[-1][1]

    edit = dict(run(read()).put)
    fields = next(operation for key, operation in edit.items() if unpack_name(key) == "fields")
    assert isinstance(fields, EditMap)
    return {unpack_name(key): operation for key, operation in fields.put}


def test_both_sides_are_added() -> None:
    store = opened(MemoryBackend())
    one, other = two(store, on_conflict="merge")
    for agent, number in ((one, 1), (other, 2)):
        assert agent.update_field("served", Increment()) == 1
        assert agent.update_field("served", Increment(number)) == 1 + number
        assert agent.update_field("names", Append(str(number))) == [str(number)]
        assert agent.update_field("seen", AddToSet("both", str(number))) == {"both", str(number)}
        assert agent.update_field("best", Max(float(number))) == number
        assert agent.update_field("counts.visits", Increment(number)) == number
        assert agent.update_field(("counts", "a.b"), Increment(number)) == number
        agent.save()
    for agent in (other, store.agents.restore("a", Clerk)):
        assert (agent.served, agent.names, agent.seen) == (5, ["1", "2"], {"both", "1", "2"})
        assert (agent.best, agent.counts) == (2.0, {"visits": 3, "a.b": 3})


def test_plain_changes_are_compared() -> None:
    """The control: without operators, equal changes count once."""
    one, other = two(opened(MemoryBackend()), on_conflict="merge")
    for agent in (one, other):
        agent.served += 1
        agent.save()
    assert other.served == 1


def test_operators_are_stored_as_such() -> None:
    store = opened(MemoryBackend())
    one, _ = two(store)
    one.update_field("served", Increment(2))
    one.update_field("served", Increment(3))
    one.update_field("counts.visits", Increment(1))
    one.note = "set"
    one.save()
    found = last_operations(store)
    assert isinstance(found["served"], Combine)
    assert found["served"].operand == b"\x05"
    assert isinstance(found["note"], Set)
    assert isinstance(found["counts"], EditMap)
    one.update_field("served", Increment(1))
    one.served = 40
    one.update_field("best", Max(1.0))
    one.update_field("best", Increment(1))
    one.save()
    found = last_operations(store)
    assert isinstance(found["served"], Set)
    assert isinstance(found["best"], Set)  # two kinds of operators have no common one
    again = store.agents.restore("a", Clerk)
    assert (again.served, again.best, again.counts, again.note) == (40, 2.0, {"visits": 1}, "set")


def test_what_was_set_before_the_operator_is_set() -> None:
    one, other = two(opened(MemoryBackend()), on_conflict="merge")
    one.update_field("served", Increment(1))
    one.save()
    other.served = 10
    other.update_field("served", Increment(1))
    with pytest.raises(ConflictError, match="served"):
        other.save()
    assert other.served == 11


def test_an_operator_that_does_not_fit_the_merged_value() -> None:
    one, other = two(opened(MemoryBackend()), on_conflict="merge")
    one.counts = {"visits": "many"}
    one.save()
    other.update_field("counts.visits", Increment(1))
    with pytest.raises(ConflictError, match="counts"):
        other.save()
    assert other.counts == {"visits": 1}


def test_a_failed_transition_takes_its_operators_back() -> None:
    def pay(till: Any, data: Any) -> None:
        till.update_field("balance", Increment(-40))
        raise RuntimeError("the printer is out of paper")

    actions = Machine("open")
    actions.add("pay", "open", "open", action=pay)

    class Till(PersistentAgent, name="till-of-operators"):
        balance: int = 100
        note: str = "x" * 300
        machine: ClassVar[Machine | None] = actions

    store = opened(MemoryBackend())
    till = Till()
    till.attach(store, "a", on_conflict="merge").save()
    other = store.agents.restore("a", Till)
    till.update_field("balance", Increment(1))
    with pytest.raises(RuntimeError):
        till.transition("pay")
    assert till.balance == 101
    other.reload()
    other.update_field("balance", Increment(10))
    other.save()
    till.update_field("balance", Increment(1))
    till.save()
    assert till.balance == store.agents.restore("a", Till).balance == 112


class LostAnswers(Wrapper):
    """Writes, and loses the answer when it is told to."""

    lose = False

    async def apply(self, batch: Batch) -> int | None:
        done = await self.inner.apply(batch)
        if self.lose:
            self.lose = False
            raise OutcomeUnknownError("the connection was cut", where="test")
        return done


def test_an_operator_of_a_save_whose_answer_was_lost_counts_once() -> None:
    backend = LostAnswers(MemoryBackend())
    store = opened(backend)
    one, other = two(store, on_conflict="merge")
    one.update_field("served", Increment(1))
    backend.lose = True
    with pytest.raises(OutcomeUnknownError):
        one.save()
    one.update_field("served", Increment(10))
    one.save()
    assert one.served == store.agents.restore("a", Clerk).served == 11
    other.update_field("served", Increment(100))
    other.save()
    assert other.served == 111


def test_one_that_is_applied_while_a_save_is_under_way() -> None:
    class Meanwhile(Wrapper):
        def act(self) -> None: ...

        async def apply(self, batch: Batch) -> int | None:
            self.act()
            return await self.inner.apply(batch)

    backend = Meanwhile(MemoryBackend())
    store = opened(backend)
    one, other = two(store, on_conflict="merge")
    one.update_field("served", Increment(1))
    struck: list[int] = []

    def act() -> None:
        if not struck:
            struck.append(one.update_field("served", Increment(10)))

    backend.act = act  # type: ignore[method-assign]
    one.save()
    assert struck == [11]
    assert store.agents.restore("a", Clerk).served == 1
    other.update_field("served", Increment(100))
    other.save()
    one.save()
    assert one.served == store.agents.restore("a", Clerk).served == 111


def test_an_agent_that_chooses_its_fields() -> None:
    class Own:
        def __init__(self) -> None:
            self.inner = {"n": 1, "note": "x" * 300}

        def persist(self) -> Mapping[str, Any]:
            return {"data": dict(self.inner)}

        def restore(self, fields: Mapping[str, Any]) -> None:
            self.inner = dict(fields["data"])

    store = opened(MemoryBackend())
    handle = store.agents.attach(persistent(name="own-of-operators")(Own)(), "a")
    handle.save()
    assert handle.update_field("data.n", Increment(4)) == 5
    assert handle.agent.inner["n"] == 5
    handle.save()
    assert store.agents.load("a").fields["data"]["n"] == 5


def test_wrong_use() -> None:
    one, _ = two(opened(MemoryBackend()))
    wrong: list[tuple[Any, Any, str]] = [
        ("nothing", Increment(1), "no such field"),
        ("served.x", Increment(1), "no dict"),
        ("counts.a.b", Increment(1), "no dict"),
        ("names[0]", Append(1), "no dict"),
        ("served", 1, "an operator must be"),
        ("note", Increment(1), "only a number"),
        ("served", Append(1), "only to a list"),
        ("", Increment(1), "a path cannot be empty"),
    ]
    for path, operator, why in wrong:
        with pytest.raises(InvalidError, match=why):
            one.update_field(path, operator)
    assert (one.served, one.counts, one.names) == (0, {}, [])


OPERATORS: st.SearchStrategy[tuple[str, UpdateOperator]] = st.one_of(
    st.tuples(st.just("served"), st.integers(-5, 5).map(Increment)),
    st.tuples(st.sampled_from(["counts.a", "counts.b"]), st.integers(-5, 5).map(Increment)),
    st.tuples(st.just("names"), st.text("xyz", max_size=1).map(Append)),
    st.tuples(st.just("seen"), st.text("xyz", max_size=1).map(AddToSet)),
    st.tuples(st.just("best"), st.integers(0, 9).map(float).map(Max)),
)


@fewer_examples()
@given(st.lists(st.tuples(st.integers(0, 2), st.none() | OPERATORS), max_size=30))
def test_whoever_saves_when_all_is_added(steps: list[tuple[int, tuple[str, UpdateOperator] | None]]) -> None:
    store = opened(MemoryBackend())
    store.agents.create(Clerk, "a")
    agents = [store.agents.restore("a", Clerk, on_conflict="merge") for _ in range(3)]
    served, counts, best = 0, {"a": 0, "b": 0}, 0.0
    names: list[str] = []
    seen: set[str] = set()
    for which, step in steps:
        if step is None:
            agents[which].save()
            continue
        path, operator = step
        agents[which].update_field(path, operator)
        if path == "served":
            served += operator.operand
        elif path == "names":
            names += operator.operand
        elif path == "seen":
            seen |= operator.operand
        elif path == "best":
            best = max(best, operator.operand)
        else:
            counts[path[-1]] += operator.operand
    for agent in agents:
        agent.save()
    last = store.agents.restore("a", Clerk)
    assert (last.served, sorted(last.names), last.seen, last.best) == (served, sorted(names), seen, best)
    assert {"a": 0, "b": 0} | last.counts == counts
    assert store.maintenance.verify().ok
