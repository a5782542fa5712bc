"""Scoped state does what dicts of dicts with a history would do, whatever is done to it, on every kind of store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from holdfast import MISSING
from holdfast.backends.runtime.drivers import run
from holdfast.codec import default_codec
from holdfast.engine.model.operators import UpdateOperator
from holdfast.engine.model.scopes import Scope
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.state import AddToSet, Append, Increment, Max, writer
from holdfast.state.scope_state import State
from holdfast.state.writer import KeyWrite
from tests.codec.values import identical
from tests.servers.places import place
from tests.state.kit import SECOND, Place
from tests.state.model import Happened, Model

SCOPES = ("global", "agent:a", "agent:a/tool:t", "user:é")
KEYS = ("a", "a/b", "ab", "a b", "b", "é", "z%2F")

LONG = st.builds(lambda start, tail: ["a sentence of some length"] * 30 + [start, tail], st.integers(), st.text())
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5)
DICTS = st.dictionaries(st.sampled_from("pqr"), LEAVES, max_size=3)
VALUES = LEAVES | DICTS | st.lists(LEAVES, max_size=4) | LONG | st.binary(max_size=4)

scopes, keys = st.sampled_from(SCOPES), st.sampled_from(KEYS)
ttls = st.none() | st.sampled_from([1, 60])


OPERATORS = st.one_of(
    st.builds(Increment, st.integers(-3, 3)),
    st.builds(Append, LEAVES),
    st.builds(AddToSet, st.integers(0, 3) | st.text(max_size=2)),
    st.builds(Max, st.integers(-5, 5)),
)


def after(operator: UpdateOperator, old: Any) -> Any:
    """What comes of a value; None if the operator cannot be applied to it."""
    operand = operator.operand
    if old is MISSING:
        return operand
    if isinstance(operator, Append):
        return [*old, *operand] if type(old) is list else None
    if isinstance(operator, AddToSet):
        return old | operand if type(old) is set else None
    if type(old) not in (int, float):
        return None
    if isinstance(operator, Increment):
        return old + operand
    return max((old, default_codec.pack(old)), (operand, default_codec.pack(operand)))[0]


def same(found: Any, expected: Any) -> None:
    assert identical(found, expected), f"{found!r} is not {expected!r}"


class Machine(RuleBasedStateMachine):
    """A store and the model, side by side."""

    url: str

    @initialize()
    def begin(self) -> None:
        self.place = Place(self.url)
        self.store = self.place.open()
        self.model = Model()

    def teardown(self) -> None:
        if hasattr(self, "place"):
            try:
                for scope in SCOPES:
                    self.check_now(scope)
                    self.check_history(scope)
                    self.check_watch(scope)
            finally:
                self.place.close()

    @property
    def now(self) -> int:
        return self.place.clock.now

    def state(self, scope: str) -> State:
        return self.store.state(scope)

    def expires(self, ttl: int | None) -> int:
        return 0 if ttl is None else self.now + ttl * SECOND

    # Changes ----------------------------------------------------------------------------------------------------

    @rule(scope=scopes, key=keys, value=VALUES, ttl=ttls)
    def set(self, scope: str, key: str, value: Any, ttl: int | None) -> None:
        version = self.state(scope).set(key, value, ttl=ttl)
        assert version == self.model.step(scope, self.now, {key: (value, self.expires(ttl))})

    @rule(scope=scopes, key=keys, value=VALUES, off=st.integers(0, 1))
    def set_expecting(self, scope: str, key: str, value: Any, off: int) -> None:
        held = self.model.live(scope, self.now).get(key)
        expected = (held.version if held else 0) + off
        if off:
            with pytest.raises(ConflictError):
                self.state(scope).set(key, value, expected=expected)
        else:
            self.state(scope).set(key, value, expected=expected)
            self.model.step(scope, self.now, {key: (value, 0)})

    @rule(scope=scopes, key=keys, changes=DICTS.filter(bool), remove=st.sampled_from("pqr"))
    def patch(self, scope: str, key: str, changes: dict[str, Any], remove: str) -> None:
        held = self.model.live(scope, self.now).get(key)
        old = held.value if held else {}
        if type(old) is not dict:
            return
        gone = [remove] if remove in old and remove not in changes else []
        self.state(scope).patch(key, changes, remove=gone)
        new = {name: value for name, value in (old | changes).items() if name not in gone}
        self.model.step(scope, self.now, {key: (new, held.expires if held else 0)})

    @rule(scope=scopes, key=keys)
    def delete(self, scope: str, key: str) -> None:
        there = key in self.model.live(scope, self.now)
        assert self.state(scope).delete(key) is there
        self.model.step(scope, self.now, {}, [key])

    @rule(
        scope=scopes, values=st.dictionaries(keys, VALUES, max_size=4), gone=st.frozensets(keys, max_size=3), ttl=ttls
    )
    def batch(self, scope: str, values: dict[str, Any], gone: frozenset[str], ttl: int | None) -> None:
        gone -= frozenset(values)
        versions = self.state(scope).batch(values, delete=gone, ttl=ttl)
        if values or gone:
            puts = {key: (value, self.expires(ttl)) for key, value in values.items()}
            assert versions == dict.fromkeys(values, self.model.step(scope, self.now, puts, sorted(gone)))

    @rule(scope=scopes, key=keys)
    def count_up(self, scope: str, key: str) -> None:
        held = self.model.live(scope, self.now).get(key)
        made = self.state(scope).change(key, lambda old: (old if type(old) is int else 0) + 1, 0)
        assert made == (held.value if held and type(held.value) is int else 0) + 1
        self.model.step(scope, self.now, {key: (made, held.expires if held else 0)})

    @rule(scope=scopes, key=keys, operator=OPERATORS, nested=st.booleans())
    def operate(self, scope: str, key: str, operator: UpdateOperator, nested: bool) -> None:
        held = self.model.live(scope, self.now).get(key)
        old: Any = held.value if held else {} if nested else MISSING
        if nested and type(old) is not dict:
            return
        new = after(operator, old.get("p", MISSING) if nested else old)
        change = KeyWrite(key, "patch", operator=operator, keep_expiry=True)
        if nested:
            change = KeyWrite(key, "patch", parts={(key, "p"): operator}, keep_expiry=True)
        writing = writer.write(self.store._handle, {Scope.parse(scope): [change]})
        if new is None:
            with pytest.raises(InvalidError):
                run(writing)
            return
        run(writing)
        self.model.step(scope, self.now, {key: ({**old, "p": new} if nested else new, held.expires if held else 0)})

    @rule(scope=scopes)
    def clear(self, scope: str) -> None:
        self.state(scope).clear()
        self.model.step(scope, self.now, {}, list(self.model.live(scope, self.now)))

    @rule(scope=scopes, key=keys, ttl=ttls)
    def expire(self, scope: str, key: str, ttl: int | None) -> None:
        held = self.model.live(scope, self.now).get(key)
        if held is None:
            with pytest.raises(NotFoundError):
                self.state(scope).expire(key, ttl)
        else:
            self.state(scope).expire(key, ttl)
            self.model.step(scope, self.now, {key: (held.value, self.expires(ttl))})

    @rule(seconds=st.sampled_from([0.5, 30, 100]))
    def time_passes(self, seconds: float) -> None:
        self.place.clock.sleep(seconds)

    # Several scopes ---------------------------------------------------------------------------------------------

    @rule(scope=scopes, other=scopes, overwrite=st.booleans(), away=st.booleans())
    def copy_or_move(self, scope: str, other: str, overwrite: bool, away: bool) -> None:
        if scope == other:
            return
        source = self.model.live(scope, self.now)
        state, target = self.state(scope), self.state(other)
        act = state.move_to if away else state.copy_to
        if not overwrite and source.keys() & self.model.live(other, self.now).keys():
            with pytest.raises(ConflictError):
                act(target)
            return
        assert act(target, on_conflict="overwrite" if overwrite else "raise") == len(source)
        if source:
            self.model.step(other, self.now, {key: (held.value, held.expires) for key, held in source.items()})
            if away:
                self.model.step(scope, self.now, {}, list(source))

    @rule(
        reads=st.lists(st.tuples(scopes, keys), max_size=3),
        writes=st.dictionaries(st.tuples(scopes, keys), VALUES, min_size=1, max_size=3),
        meanwhile=st.none() | st.tuples(scopes, keys),
    )
    def transaction(
        self,
        reads: list[tuple[str, str]],
        writes: dict[tuple[str, str], Any],
        meanwhile: tuple[str, str] | None,
    ) -> None:
        stale = meanwhile in reads
        try:
            with self.store.transaction() as together:
                for scope, key in reads:
                    assert together.state(scope).get(key) == self.model.values(scope, self.now).get(key)
                if meanwhile is not None:
                    self.set(*meanwhile, "from another", None)
                for (scope, key), value in writes.items():
                    together.state(scope)[key] = value
                    same(together.state(scope)[key], value)
        except ConflictError:
            assert stale
            return
        assert not stale
        for scope in dict.fromkeys(scope for scope, _ in writes):
            self.model.step(scope, self.now, {key: (value, 0) for (its, key), value in writes.items() if its == scope})

    # The past ---------------------------------------------------------------------------------------------------

    @rule(scope=scopes, key=st.none() | keys, data=st.data())
    def rollback(self, scope: str, key: str | None, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, self.model.line(scope).version))
        now = self.model.live(scope, self.now)
        then = {each: held for each, held in self.model.at(scope, version).items() if not 0 < held.expires <= self.now}
        wanted = (then.keys() | now.keys()) if key is None else {key}
        puts = {
            each: (then[each].value, then[each].expires)
            for each in wanted & then.keys()
            if each not in now
            or now[each].expires != then[each].expires
            or not identical(now[each].value, then[each].value)
        }
        gone = sorted(wanted & now.keys() - then.keys())
        assert self.state(scope).rollback(version, key) == len(puts) + len(gone)
        if puts or gone:
            self.model.step(scope, self.now, puts, gone)

    @rule(scope=scopes, data=st.data())
    def look_back(self, scope: str, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, self.model.line(scope).version))
        then = {key: held.value for key, held in sorted(self.model.at(scope, version).items())}
        same(self.state(scope).at(version), then)
        key = data.draw(keys)
        same(self.state(scope).get_at(key, version, "nothing"), then.get(key, "nothing"))

    # Looking ----------------------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.place.close()
        self.store = self.place.open()

    @rule(scope=scopes)
    def check_now(self, scope: str) -> None:
        state, live = self.state(scope), self.model.live(scope, self.now)
        assert list(state) == sorted(live, key=str.encode)
        assert len(state) == len(live)
        items = state.list_items()
        assert {item.key: item.version for item in items} == {key: held.version for key, held in live.items()}
        assert {item.key: item.expires is not None for item in items} == {
            key: held.expires > 0 for key, held in live.items()
        }
        same({item.key: item.value for item in items}, {key: held.value for key, held in sorted(live.items())})

    @rule(scope=scopes, key=keys)
    def get(self, scope: str, key: str) -> None:
        same(self.state(scope).get(key, "nothing"), self.model.values(scope, self.now).get(key, "nothing"))

    @rule(scope=scopes, prefix=st.sampled_from(["", "a", "a/", "é"]), after=keys, limit=st.integers(1, 3))
    def list_a_page(self, scope: str, prefix: str, after: str, limit: int) -> None:
        found = [key for key in self.model.live(scope, self.now) if key.startswith(prefix) and key > after]
        assert self.state(scope).list_keys(prefix, cursor=after, limit=limit) == sorted(found)[:limit]

    @precondition(lambda self: any(line.version for line in self.model.lines.values()))
    @rule(scope=scopes)
    def check_history(self, scope: str) -> None:
        every = self.state(scope).history(limit=10_000)
        line = self.model.line(scope)
        told = [Happened(past.key, past.action != "delete", past.before, past.version) for past in every]
        assert sorted(told) == sorted(each for step in line.changes for each in step)

    def check_watch(self, scope: str) -> None:
        """A watch tells of the same from the start, with the values that the keys had then."""
        watch, seen, line = self.state(scope).watch(cursor=""), [], self.model.line(scope)
        while found := watch.poll():
            seen += [change for change in found if change.action != "expired"]
        expected = [
            (each.key, each.before, each.version, line.states[number][each.key].value if each.there else MISSING)
            for number, step in enumerate(line.changes)
            for each in step
            if each.there or each.key in line.states[number - 1]
        ]
        assert len(seen) == len(expected)
        for change, (key, before, version, value) in zip(seen, expected, strict=True):
            assert (change.key, change.before, change.version) == (key, before, version)
            assert change.value is value if value is MISSING else identical(change.value, value)

    @rule()
    def verify(self) -> None:
        assert self.store.maintenance.verify().findings == []


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("memory", 8),
        pytest.param("memory", 40, marks=pytest.mark.nightly),
        ("sqlite", 4),
        pytest.param("sqlite", 15, marks=pytest.mark.nightly),
        pytest.param("postgres", 6, marks=pytest.mark.nightly),
        pytest.param("mongodb", 5, marks=pytest.mark.nightly),
    ],
)
def test_scoped_state(kind: str, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FOLD_EVERY", 5)
    machine = type("Machine", (Machine,), {"url": place(kind, tmp_path)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            settings(), max_examples=examples, stateful_step_count=30, suppress_health_check=list(HealthCheck)
        ),
    )
