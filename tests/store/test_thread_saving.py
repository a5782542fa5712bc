"""Saving and loading: put, update, get."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import holdfast
from holdfast import Store
from holdfast.errors import ConfigError, ConflictError, InvalidError
from tests.store.stores import over
from tests.support.interference import InterferingBackend


@dataclass
class Plan:
    goal: str
    steps: list[str] = field(default_factory=list)


def test_what_was_put_is_what_get_finds(store: Store) -> None:
    state = {"messages": [HumanMessage("hi", id="1")], "plan": Plan("answer", ["search"]), "span": (1, -0.0), "n": None}
    before = datetime.now(UTC)
    saved = store.thread("t").put(state, metadata={"by": "test", "span": (1, 2)})
    found = store.thread("t").get()
    assert found.state == state
    assert list(found.state) == list(state)
    assert type(found.state["span"]) is tuple
    assert (found.id, found.hash, found.time) == (saved.id, saved.hash, saved.time)
    assert (saved.thread, saved.parent, saved.branch, saved.step, saved.kind) == ("t", None, 0, 0, "save")
    assert saved.metadata == {"by": "test", "span": (1, 2)}
    assert before.replace(microsecond=0) <= saved.time <= datetime.now(UTC)


def test_checkpoints_follow_each_other(store: Store) -> None:
    made = [store.thread("t").put({"n": n}) for n in range(70)]  # across two folds
    assert [each.step for each in made] == list(range(70))
    assert [each.parent for each in made] == [None, *(each.id for each in made[:-1])]
    assert [each.id for each in made] == sorted(each.id for each in made)
    assert len({each.hash for each in made}) == 70
    assert all(a.time <= b.time for a, b in pairwise(made))
    assert [store.thread("t").get(each.id).state["n"] for each in made] == list(range(70))


def test_a_checkpoint_can_not_be_altered(store: Store) -> None:
    saved = store.thread("t").put({})
    with pytest.raises(AttributeError):
        saved.id = "other"  # type: ignore[misc]


def test_a_message_changed_in_place_is_saved_at_the_next_put(store: Store) -> None:
    message = AIMessage("draft", id="1")
    state: dict[str, Any] = {"messages": [HumanMessage("hi", id="0"), message], "plan": {"done": []}}
    first = store.thread("t").put(state)
    message.content = "final"
    message.additional_kwargs["note"] = "late"
    state["plan"]["done"].append("it")
    second = store.thread("t").put(state)
    assert store.thread("t").get(first.id).state["messages"][1] == AIMessage("draft", id="1")
    assert store.thread("t").get(first.id).state["plan"] == {"done": []}
    after = store.thread("t").get(second.id).state
    assert after["messages"][1] == AIMessage("final", id="1", additional_kwargs={"note": "late"})
    assert after["plan"] == {"done": ["it"]}


def test_what_get_returns_is_the_callers_own(store: Store) -> None:
    store.thread("t").put({"messages": [AIMessage("x", id="1")], "plan": {"a": [1]}})
    mine = store.thread("t").get().state
    mine["messages"][0].content = "scribbled"
    mine["plan"]["a"].append(2)
    mine["new"] = 1
    assert store.thread("t").get().state == {"messages": [AIMessage("x", id="1")], "plan": {"a": [1]}}


def test_the_state_given_is_not_altered(store: Store) -> None:
    state = {"l": [1, {"a": 2}], "big": "x" * 200_000}
    store.thread("t").put(state)
    store.thread("t").put(state)
    assert state == {"l": [1, {"a": 2}], "big": "x" * 200_000}


def test_what_is_equal_in_python_but_not_the_same_is_a_change(store: Store) -> None:
    for value in (1, True, 1.0, 0.0, -0.0, {"a": 1, "b": 2}, {"b": 2, "a": 1}):
        store.thread("t").put({"x": value})
        assert repr(store.thread("t").get().state["x"]) == repr(value)


def test_only_what_changed_is_stored(store: Store) -> None:
    messages = [f"message number {n}, of some length: {'x' * 200}" for n in range(2000)]
    store.thread("t").put({"messages": messages})
    before = store.thread("t").info().bytes
    store.thread("t").put({"messages": [*messages, "one more"]})
    assert 0 < store.thread("t").info().bytes - before < 1000


def test_empty_states_are_fine_and_empty_names_are_not(store: Store) -> None:
    assert store.thread("t").get(store.thread("t").put({}).id).state == {}
    with pytest.raises(InvalidError, match="name of a thread must not be empty"):
        store.thread("").put({})


def test_large_values_come_back(store: Store) -> None:
    large = {"report": "é" * 1_500_000, "blob": bytes(range(256)) * 8000, "small": 1}
    store.thread("t").put(large)
    store.thread("t").put({**large, "small": 2})
    assert store.thread("t").get().state == {**large, "small": 2}
    assert store.thread("t").get(at=0).state == large


# if_changed -------------------------------------------------------------------------------------------------------


def test_if_changed_saves_no_second_time(store: Store) -> None:
    first = store.thread("t").put({"a": [1]}, if_changed=True)
    assert store.thread("t").put({"a": [1]}, if_changed=True) == first
    assert store.thread("t").put({"a": [1]}).id != first.id
    assert store.thread("t").put({"a": [1, 2]}, if_changed=True).step == 2
    assert len(store.thread("t").log()) == 3


def test_if_changed_still_gives_the_name(store: Store) -> None:
    first = store.thread("t").put({"a": 1})
    store.thread("t").put({"a": 1}, if_changed=True, tag="good", labels=["x"])
    assert (store.thread("t").tags(), store.thread("t").labels()) == ({"good": first.id}, {"x": [first.id]})


# Ids of one's own -------------------------------------------------------------------------------------------------


def test_the_same_content_under_the_same_id_is_no_new_checkpoint(store: Store) -> None:
    first = store.thread("t").put({"a": 1}, id="one", metadata={"m": 1})
    again = store.thread("t").put({"a": 1}, id="one", metadata={"m": 1})
    assert (again.hash, again.step) == (first.hash, first.step)
    assert len(store.thread("t").log()) == store.thread("t").info().steps == 1


@pytest.mark.parametrize("more", [{"state": {"a": 2}}, {"metadata": {"m": 2}}, {"kind": "other"}], ids=lambda m: min(m))
def test_other_content_under_the_same_id_is_a_revision(store: Store, more: dict[str, Any]) -> None:
    first = store.thread("t").put({"a": 1}, id="1", metadata={"m": 1})
    child = store.thread("t").put({"a": 1, "b": 1}, id="2")
    how = {"state": {"a": 1}, "metadata": {"m": 1}, **more}
    again = store.thread("t").put(id="1", **how)
    assert again.id == "1"
    assert again.hash != first.hash
    assert [each.id for each in store.thread("t").log().all()] == ["2", "1"]
    assert store.thread("t").get("1").state == how["state"]
    assert store.thread("t").get("1").metadata == how["metadata"]
    moved = store.thread("t").get("2")
    assert (moved.state, moved.parent) == ({"a": 1, "b": 1}, "1")
    assert moved.hash != child.hash


def test_an_id_of_ones_own_is_followed_by_one_that_sorts_after_it(store: Store) -> None:
    store.thread("t").put({"a": 1}, id="zzz")
    after = [store.thread("t").put({"a": n}).id for n in range(3)]
    assert ["zzz", *after] == sorted(["zzz", *after])
    assert store.thread("t").get().id == after[-1]


def test_the_latest_is_the_greatest_id(store: Store) -> None:
    store.thread("t").put({"a": 1}, id="b")
    store.thread("t").put({"a": 2}, id="a")
    assert store.thread("t").get().id == "b"
    assert [each.id for each in store.thread("t").log().all()] == ["b", "a"]


def test_branches_at_a_revised_checkpoint_go_along(store: Store) -> None:
    store.thread("t").put({"a": 1}, id="1")
    store.thread("t").put({"a": 2}, id="2")
    store.thread("t").fork("used", at="1")
    store.thread("t").fork("empty", at="1")
    store.thread("t").put({"a": 3}, id="3", branch="used")
    store.thread("t").put({"a": 4}, id="4", branch="used")
    store.thread("t").put({"a": "again"}, id="1")
    assert [each.id for each in store.thread("t").log().all()] == ["4", "3", "2", "1"]
    assert [store.thread("t").get(id).state["a"] for id in "1234"] == ["again", 2, 3, 4]
    assert [store.thread("t").get(id).parent for id in "234"] == ["1", "1", "3"]
    assert store.thread("t").get(at="used").id == "4"
    assert store.thread("t").get(at="empty").state == {"a": "again"}
    assert store.thread("t").put({"a": 5}, branch="empty").parent == "1"
    assert sorted(each.name for each in store.thread("t").branches() if each.name) == ["empty", "main", "used"]


def test_an_id_taken_with_another_parent_is_refused(store: Store) -> None:
    store.thread("t").put({"a": 1}, id="1")
    store.thread("t").put({"a": 2}, id="2")
    store.thread("t").put({"a": 3}, id="3", parent="1")
    with pytest.raises(
        ConflictError, match=r"checkpoint 3 already exists, with a different parent .*'t'.*under another id"
    ):
        store.thread("t").put({"a": 3}, id="3", parent="2")
    assert store.thread("t").get("3").parent == "1"


def test_of_two_writers_of_one_new_id_one_gets_a_conflict() -> None:
    backend = InterferingBackend()
    store = over(backend)
    store.thread("t").put({"a": 0}, id="0")
    other = over(backend)
    with (
        backend.interfere(lambda: other.thread("t").put({"a": "theirs"}, id="1")),
        pytest.raises(ConflictError, match="at the same time"),
    ):
        store.thread("t").put({"a": "ours"}, id="1")
    assert store.thread("t").get().state == {"a": "theirs"}
    assert [each.parent for each in store.thread("t").log().all()] == ["0", None]


def test_the_same_content_again_with_a_taken_name_is_refused(store: Store) -> None:
    store.thread("t").put({"a": 1}, id="1", tag="good")
    store.thread("t").put({"a": 2}, id="2")
    with pytest.raises(ConflictError):
        store.thread("t").put({"a": 2}, id="2", tag="good")


def test_a_revision_with_a_taken_name_is_refused() -> None:
    backend = InterferingBackend()
    store = over(backend)
    store.thread("t").put({"a": 1}, id="1", tag="good")
    store.thread("t").put({"a": 2}, id="2")
    backend.most_batches = 50
    with pytest.raises(ConflictError):
        store.thread("t").put({"a": 3}, id="2", tag="good")


# update -----------------------------------------------------------------------------------------------------------


def test_update_changes_just_these_places(store: Store) -> None:
    store.thread("t").put({"plan": {"goal": "a", "done": {"x": 1, "y": 2}}, "messages": [1, 2], "old": 1})
    made = store.thread("t").update(
        {"messages": [1, 2, 3], ("plan", "goal"): "b", ("plan", "done", "z"): 3, ("new", "deep", 5): (1,)},
        remove=["old", ("plan", "done", "x")],
        metadata={"m": 1},
    )
    assert (made.kind, made.step, made.metadata) == ("update", 1, {"m": 1})
    assert store.thread("t").get().state == {
        "plan": {"goal": "b", "done": {"y": 2, "z": 3}},
        "messages": [1, 2, 3],
        "new": {"deep": {5: (1,)}},
    }
    assert store.thread("t").get(at=0).state["plan"]["done"] == {"x": 1, "y": 2}


def test_updates_add_up_across_folds_and_without_memory() -> None:
    backend = InterferingBackend()
    expected: dict[str, Any] = {"d": {}, "n": -1}
    store = over(backend, cache_bytes=0)
    store.thread("t").put(expected)
    for n in range(100):
        store.thread("t").update(
            {("d", f"k{n % 60}"): n, "n": n}, remove=[("d", f"k{n % 60 - 30}")] if n % 50 == 45 else []
        )
        expected["d"][f"k{n % 60}"] = expected["n"] = n
        if n % 50 == 45:
            del expected["d"][f"k{n % 60 - 30}"]
    assert store.thread("t").get().state == expected
    assert over(backend).thread("t").get().state == expected


def test_a_long_value_that_changed_a_little_is_stored_as_a_little(store: Store) -> None:
    lines = [f"line {n} of a long note" for n in range(5000)]
    store.thread("t").put({"note": "\n".join(lines[:2000]), "list": lines})
    before = store.thread("t").info().bytes
    lines[1500] = "another line"
    store.thread("t").update({"note": "\n".join(lines[:2000]), ("list",): lines})
    assert store.thread("t").info().bytes - before < 1000
    assert store.thread("t").get().state == {"note": "\n".join(lines[:2000]), "list": lines}


def test_update_starts_a_thread(store: Store) -> None:
    store.thread("t").update({"a": 1, ("b", "c"): 2})
    assert store.thread("t").get().state == {"a": 1, "b": {"c": 2}}


def test_an_update_of_nothing_is_a_checkpoint(store: Store) -> None:
    store.thread("t").put({"a": 1})
    assert store.thread("t").update({}, tag="here").step == 1
    assert store.thread("t").get(at="here").state == {"a": 1}


def test_the_cost_of_an_update_does_not_grow_with_the_state(store: Store) -> None:
    store.thread("t").put({"d": {f"k{n}": f"value {n} {'x' * 50}" for n in range(20_000)}})
    before = store.thread("t").info().bytes
    for n in range(5):
        store.thread("t").update({("d", "k77"): n})
    assert store.thread("t").info().bytes - before < 2500
    assert store.thread("t").get().state["d"]["k77"] == 4


def test_update_and_restore_take_a_branch_or_a_parent(store: Store) -> None:
    first = store.thread("t").put({"a": 1})
    store.thread("t").put({"a": 2})
    store.thread("t").fork("other", at=first.id)
    on_branch = store.thread("t").update({"b": 1}, branch="other")
    on_parent = store.thread("t").update({"c": 1}, parent=first.id)
    assert store.thread("t").get(on_branch.id).state == {"a": 1, "b": 1}
    assert store.thread("t").get(on_parent.id).state == {"a": 1, "c": 1}
    assert on_branch.parent == on_parent.parent == first.id


def test_a_store_is_opened_by_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("agents.db", Path("agents.db"), str(tmp_path / "agents.db"), tmp_path / "agents.db"):
        with holdfast.open(path) as store:
            store.thread("t").put({"n": 1})
    assert len(holdfast.open("sqlite:///agents.db").thread("t").log()) == 4
    with holdfast.open("files/") as store:
        store.thread("t").put({"n": 1})
        assert repr(store).startswith("<Store file:")
    assert (tmp_path / "files").is_dir()
    for wrong in ("", b"agents.db", 5):
        with pytest.raises(ConfigError, match="given as a URL or a path"):
            holdfast.open(wrong)  # type: ignore[arg-type]
