"""What a lazy state tells of its parts without reading them, logs in pages, and what is pending after a checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, Field

import holdfast
from holdfast.backends import run
from holdfast.engine.state_reader import ValueOutline
from holdfast.engine.types import PendingWrite
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.savers import CheckpointStore
from holdfast.schemas import Schema, SchemaSet
from holdfast.state import Increment
from holdfast.store.log_reader import LogReader, branch_names, short_ids


def test_an_outline_says_what_is_there(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        many = {f"k{number}": "v" * 50 for number in range(500)}
        store.thread("t").put(
            {"n": 1, "small": {"a": 1}, "many": many, "list": ["x" * 50] * 500, "text": "y" * 100_000}
        )
    with holdfast.open(tmp_path / "a.db") as store:
        state = store.thread("t").get(lazy=True).state
        assert state.outline("n") == ValueOutline("value", None, 1)
        assert state.outline("small").kind == "dict"
        assert (state.outline("list").kind, state.outline("list").length) == ("list", 500)
        assert state.outline("text") == ValueOutline("large", None, 100_005)
        assert state.keys_at("many") == list(many)
        assert state.outline("many.k3").kind == "value"
        with pytest.raises(NotFoundError):
            state.outline("none")
        with pytest.raises(InvalidError):
            state.keys_at("list")


def test_a_log_resumes_where_a_page_ended(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for number in range(20):
            store.thread("t").put({"n": number})
        thread = store.thread("t")
        thread.fork("other", at=10)
        for number in range(5):
            store.thread("t").put({"n": -number}, branch="other")
        thread.merge("other", strategy="theirs")
        whole = LogReader(thread)
        whole.start(all_branches=True)
        expected = [entry.id for entry in whole.entries()]
        assert len(expected) == 26
        for size in (1, 3, 26, 100):
            found, cursor = [], None
            while True:
                reader = LogReader(thread)
                reader.start(all_branches=True, cursor=cursor)
                found += [entry.id for entry in reader.page(size)]
                cursor = reader.cursor
                if cursor is None:
                    break
            assert found == expected
        with pytest.raises(InvalidError):
            LogReader(thread).start(cursor="x")


def test_a_log_is_not_read_without_the_right(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"n": 1}, id="c1")
        bob = store.as_identity(user="bob")
        for read in (LogReader(bob.thread("t")).start, lambda: branch_names(bob.thread("t"))):
            with pytest.raises(NotFoundError):
                read()
        with pytest.raises(NotFoundError):
            short_ids(bob.thread("t"), ["c1"])
        store.access.grant("user:bob", "read", thread="t")
        reader = LogReader(bob.thread("t"))
        reader.start()
        assert [entry.id for entry in reader.page(10)] == ["c1"]
        assert short_ids(bob.thread("t"), ["c1"]) == {"c1": "c1"}


def test_pending_writes_are_listed_without_the_state(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"n": 1}, id="c1")
        run(CheckpointStore(store).put_writes("t", "c1", [(0, "__interrupt__", "sure?")], task_id="task"))
        assert store.thread("t").pending_writes() == [PendingWrite("task", "__interrupt__", "sure?")]
        with pytest.raises(NotFoundError):
            store.as_identity(user="bob").thread("t").pending_writes()


class HasPlan(TypedDict):
    """The form of a state."""

    goal: str


class Plan(BaseModel):
    """A model of an application."""

    goal: str = "explain"
    steps: list[str] = Field(default_factory=list)


def chat_state() -> dict[str, Any]:
    """A conversation of LangChain's messages, and objects of other classes."""
    call: Any = {"name": "search", "args": {"q": "kelp"}, "id": "c1"}
    messages = [HumanMessage("hi", id="1"), AIMessage("yes", id="2", tool_calls=[call])]
    return {"messages": messages, "plan": Plan(), "error": ValueError("x"), "pair": (1, {"a": 2})}


def test_a_field_of_an_object_is_changed_alone(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("chat")
        thread.put(chat_state())
        thread.update({"messages[0].content": "hello", "messages[-1].tool_calls[0].args.q": "dulse"})
        thread.update({"plan.goal": "rest", "pair[1].b": 3, "messages[1].additional_kwargs.seen.by": "ada"})
        state = thread.get().state
        assert [type(each) for each in state["messages"]] == [HumanMessage, AIMessage]
        assert [(each.content, each.id) for each in state["messages"]] == [("hello", "1"), ("yes", "2")]
        assert state["messages"][1].tool_calls[0]["args"] == {"q": "dulse"}
        assert state["messages"][1].additional_kwargs == {"seen": {"by": "ada"}}
        assert (state["plan"], state["plan"].model_fields_set) == (Plan(goal="rest"), {"goal"})
        assert state["pair"] == (1, {"a": 2, "b": 3})
        thread.update({}, remove=["messages[1].tool_calls[0]"])
        assert thread.get().state["messages"][1].tool_calls == []
        thread.update({"messages[0].content": ["in", "parts"]})
        assert thread.get().state["messages"][0] == HumanMessage(["in", "parts"], id="1")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("messages[0].colour", 1, "there is no 'colour'"),
        ("messages[1].tool_calls[4].name", "x", "the list has 1 item"),
        ("messages[0].content.deep", "x", "the value has no keys"),
        ("messages[0].id", Increment(1), "an operator can only change"),
        ("error.args", 1, "there is no 'args'|payload"),
    ],
)
def test_what_an_object_cannot_have_is_refused_by_a_dry_run_too(
    tmp_path: Path, path: str, value: object, says: str
) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("chat")
        thread.put(chat_state(), id="c1")
        for change in (thread.update, partial(thread.fork, "x"), partial(thread.fork, "x", dry_run=True)):
            with pytest.raises((InvalidError, NotFoundError), match=says):
                change(changes={path: value})
        with pytest.raises(InvalidError, match="cannot be removed"):
            thread.update({}, remove=["messages[0].id"])
        assert [each.name for each in thread.branches()] == ["main"]
        assert thread.get().id == "c1"


def test_a_fork_that_is_only_tried_changes_nothing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("chat")
        thread.put(chat_state(), id="c1")
        store.schemas.attach(SchemaSet(Schema("plan", "1.0.0", HasPlan)), "plan@1.0.0", threads="plan-*")
        other = store.thread("plan-1")
        other.put({"goal": "rest"}, id="c1")
        for given in (thread, other):
            planned = given.fork("what-if", dry_run=True)
            assert (planned.name, planned.base, planned.branch) == ("what-if", "c1", 1)
        assert thread.fork("what-if", changes={"messages[0].content": "x"}, dry_run=True).base == "c1"
        with pytest.raises(InvalidError, match="goal"):
            other.fork("what-if", changes={"goal": 7}, dry_run=True)
        assert [len(each.branches()) for each in (thread, other)] == [1, 1]
        thread.fork("what-if", changes={"messages[0].content": "x"})
        with pytest.raises(ConflictError, match="already has a branch"):
            thread.fork("what-if", dry_run=True)
