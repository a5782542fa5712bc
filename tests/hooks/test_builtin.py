"""Hooks that come along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from holdfast import MISSING
from holdfast.engine.row_format import open_body
from holdfast.errors import InvalidError, UnsupportedError, VetoError
from holdfast.hooks import AddAuditFields, CountChanges, HookContext, InvalidateCache, Validate
from holdfast.schemas import Schema
from tests.hooks.kit import Clock, events, store


class Plan(BaseModel):
    title: str
    steps: int


class Typed(TypedDict):
    title: str
    steps: int


@dataclass
class Data:
    title: str
    steps: int


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "steps": {"type": "integer"}},
    "required": ["title", "steps"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [SCHEMA, Plan, Typed, Data], ids=["json", "pydantic", "typed-dict", "dataclass"])
def test_validation_lets_the_right_through_and_nothing_else(schema: Any) -> None:
    held = store()
    held.hooks.add(Validate(schema), "state.*")
    state = held.state()
    state["k"] = {"title": "a", "steps": 1}
    for wrong in ({"title": "secret"}, {"title": "secret", "steps": "x"}, 3, None):
        with pytest.raises(VetoError, match="does not fit its schema") as caught:
            state["k"] = wrong
        assert "secret" not in str(caught.value)
    with pytest.raises(VetoError):
        state.patch("k", {"steps": "many"})
    with pytest.raises(VetoError):
        state.change("k", lambda plan: {**plan, "title": 3})
    assert state["k"] == {"title": "a", "steps": 1}
    state.patch("k", {"steps": 2})
    del state["k"]
    assert held.hooks.list()[0].failures == 0
    held.close()


def test_value_of_the_very_class_fits() -> None:
    held = store()
    held.hooks.add(Validate(Plan), "state.set", key="plan")
    held.hooks.add(Validate(Data), "state.set", key="data", name="data")
    held.hooks.add(Validate(list[int]), "state.set", key="list", name="list")
    held.state()["plan"] = Plan(title="a", steps=1)
    held.state()["data"] = Data("a", 1)
    held.state()["list"] = [1, 2]
    with pytest.raises(VetoError, match=r"at \[1\], it is str, not int"):
        held.state()["list"] = [1, "2"]
    held.close()


def test_json_schema_refuses_what_json_does_not_know() -> None:
    held = store()
    held.hooks.add(Validate({"properties": {"a": {"type": "string"}}}), "state.set")
    with pytest.raises(VetoError, match="at a, it is bytes, not str"):
        held.state()["k"] = {"a": b"bytes"}
    held.close()


def test_reason_says_where_it_is() -> None:
    held = store()
    held.hooks.add(Validate({"properties": {"a": {"items": {"type": "string"}}}}), "state.set")
    with pytest.raises(VetoError, match=r"at a\[1\], it is int, not str"):
        held.state()["k"] = {"a": ["x", 5]}
    held.close()


def test_size_is_bounded() -> None:
    held = store()
    held.hooks.add(Validate(max_bytes=100), "state.*", "checkpoint.save")
    held.state()["k"] = "x" * 90
    held.state()["list"] = ["x" * 20] * 4
    for large in ("x" * 200, ["x" * 30] * 5, {"a": ["x" * 200]}):
        with pytest.raises(VetoError, match="at most 100"):
            held.state()["k"] = large
    with pytest.raises(VetoError):
        held.thread("thread").put({"a": "x" * 200})
    held.close()


def test_wrong_schemas() -> None:
    with pytest.raises(InvalidError, match="no type 'objec'"):
        Validate({"type": "objec"})
    with pytest.raises(UnsupportedError, match="not"):
        Validate({"not": {"type": "string"}})
    for wrong in ("text", 5):
        with pytest.raises(UnsupportedError):
            Validate(wrong)
    with pytest.raises(InvalidError, match="a schema"):
        Validate()
    with pytest.raises(InvalidError, match="max_bytes"):
        Validate(max_bytes=-1)


def test_problems_are_those_of_a_schema() -> None:
    schema = Schema("plan", "1.0.0", Plan)
    held = store()
    held.hooks.add(Validate(schema), "state.set")
    value = {"title": "a", "steps": None}
    (problem,) = schema.check(value)
    with pytest.raises(VetoError, match=f"at {problem.path}, {problem.reason}"):
        held.state()["k"] = value
    held.state()["k"] = {"title": "a", "steps": 1}
    held.close()


@pytest.mark.parametrize(
    "fields", [{"ticket": "T-1"}, lambda call: {"ticket": f"T-{call.value}"}], ids=["same", "made"]
)
def test_audit_adds_fields_to_the_row_of_the_change(fields: Any) -> None:
    held = store()
    held.hooks.add(AddAuditFields(fields), "state.*")
    held.state(agent="a")["k"] = 1
    row, _ = events(held)
    packed = open_body(row, 1 << 20)
    assert held._engine.context.codec.unpack(packed)["ticket"] == "T-1"
    held.close()


def test_cache_forgets_what_was_changed() -> None:
    held = store()
    cache = {("agent:a", "k"): 1, ("agent:a", "other"): 2}
    told: list[tuple[str, str]] = []
    held.hooks.add(InvalidateCache(cache), "state.*")
    held.hooks.add(InvalidateCache(lambda scope, key: told.append((scope, key))), "state.*", name="function")
    held.state(agent="a")["k"] = 2
    held.state(agent="a")["unknown"] = 2
    assert cache == {("agent:a", "other"): 2}
    assert told == [("agent:a", "k"), ("agent:a", "unknown")]
    held.close()


def test_metrics_count_and_time() -> None:
    held, metrics = store(), CountChanges()
    held.hooks.add(metrics, "state.*", "checkpoint.save")
    for n in range(3):
        held.state()["k"] = n
    del held.state()["k"]
    held.thread("thread").put({"a": 1})
    found = metrics.snapshot()
    assert {point: figures["count"] for point, figures in found.items()} == {
        "state.set": 3,
        "state.delete": 1,
        "checkpoint.save": 1,
    }
    figures = found["state.set"]
    assert 0 < figures["worst"] <= figures["seconds"]
    assert figures["buckets"][float("inf")] == 3
    assert list(figures["buckets"].values()) == sorted(figures["buckets"].values())
    held.close()


def test_built_in_hooks_take_no_commit_of_their_own() -> None:
    held = store()
    held.hooks.add(Validate(SCHEMA), "state.*")
    held.hooks.add(AddAuditFields({"a": 1}), "state.*")
    held.state()["k"] = {"title": "a", "steps": 1}
    assert {row.key[2] for row in events(held)} == {held.state().history()[0].id}
    held.close()


def test_refusal_is_not_the_fault_of_the_hook() -> None:
    held = store()

    class Odd(Validate):
        def __call__(self, call: HookContext) -> None:
            raise RuntimeError("broken")

    held.hooks.add(Odd(SCHEMA), "state.*")
    with pytest.raises(VetoError, match="failed"):
        held.state()["k"] = 1
    held.hooks.remove("Odd")
    held.hooks.add(Odd(SCHEMA), "state.*", fail_closed=False)
    held.state()["k"] = 1
    held.close()


class Looks(CountChanges):
    """A built-in hook that does what it is told."""

    def __init__(self, phase: str, answer: Any = None) -> None:
        super().__init__()
        self.phase, self.answer = phase, answer
        self.old: list[Any] = []

    def __call__(self, call: HookContext) -> Any:
        self.old.append(call.old)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_old_value_is_read_only_for_those_who_may_look_at_it() -> None:
    held, looks = store(), Looks("before")
    held.hooks.add(looks, "state.*")
    state = held.state()
    state["k"] = {"a": 1}
    state["k"] = {"a": 2}
    state.patch("k", {"b": 3})
    assert looks.old[:2] == [MISSING, MISSING]
    seen: list[Any] = []

    @held.hooks.before("state.*", inline=True)
    def look(call: HookContext) -> None:
        seen.append((call.old, call.before, call.value))

    state["k"] = {"a": 4}
    state.patch("k", {"c": 5})
    assert seen == [({"a": 2, "b": 3}, 3, {"a": 4}), ({"a": 4}, 4, {"a": 4, "c": 5})]
    assert looks.old[-1] == {"a": 4}
    held.close()


@pytest.mark.parametrize("phase", ["before", "after"])
def test_one_that_only_looks_is_switched_off_and_on_like_any_other(phase: str) -> None:
    clock = Clock()
    held, looks = store(clock), Looks(phase, RuntimeError("broken"))
    held.hooks.add(looks, "state.*", max_failures=2, rest=10)
    for n in range(4):
        held.state()["k"] = n
    (info,) = held.hooks.list()
    assert (info.state, info.calls, info.failures, info.skipped) == ("off", 2, 2, 2)
    clock.pass_by(11)
    looks.answer = None
    held.state()["k"] = 5
    held.state()["k"] = 6
    (info,) = held.hooks.list()
    assert (info.state, info.calls, info.failures) == ("on", 4, 2)
    held.hooks.drain()
    told = [each.outcome for each in held.hooks.history("Looks")]
    assert sorted(told) == ["error", "error", "ok", "ok", "skipped", "skipped"]
    held.close()


def test_one_that_only_looks_may_be_late_or_have_an_answer() -> None:
    held = store()
    held.hooks.add(Looks("before", "another"), "state.set", key="changed", name="changes")
    held.hooks.add(Looks("before"), "state.set", key="late", name="dawdles", budget=1e-9)
    held.state()["changed"] = "one"
    held.state()["late"] = 1
    assert held.state()["changed"] == "another"
    told = {each.hook: each.outcome for each in held.hooks.history()}
    assert told == {"changes": "changed", "dawdles": "late"}
    held.close()


def test_fields_of_several_are_put_together() -> None:
    held, both = store(), AddAuditFields({"team": "search"})
    held.hooks.add(both, "state.*", name="first")
    held.hooks.add(AddAuditFields({"release": 7}), "state.*", name="second")
    other = store()
    other.hooks.add(both, "state.*")
    for each in (held, other, held):
        each.state(agent="a")["k"] = 1
    for each, expected in ((held, {"team": "search", "release": 7}), (other, {"team": "search"})):
        changes = [row for row in events(each) if row.columns[1] == "change"]
        for row in changes:
            packed = open_body(row, 1 << 20)
            assert each._engine.context.codec.unpack(packed) == expected
        assert changes
        each.close()
