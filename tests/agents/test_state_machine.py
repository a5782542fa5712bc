"""Machines: their declaration, and the problems that they report."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.runtime.two_phase import LIFECYCLE
from holdfast.errors import InvalidError


class Reviewer:
    def notify(self, data: object) -> None: ...
    def is_yes(self, data: object) -> bool:
        return data == "yes"

    async def wait(self, fields: object) -> None: ...


def declared(**more: Any) -> Machine:
    machine = Machine("draft", "review", "done", final=["done"], **more)
    machine.add("submit", "draft", "review", action="notify")
    machine.add("approve", "review", "done", guard="is_yes")
    machine.add("reset", "*", "draft")
    return machine


def test_what_is_declared() -> None:
    machine = declared()
    assert machine.initial == "draft"
    assert machine.triggers == ["submit", "approve", "reset"]
    assert machine.triggers_from("draft") == ["submit", "reset"]
    assert machine.triggers_from("done") == []
    assert [way.target for way in machine.transitions_for("submit", "draft")] == ["review"]
    assert machine.problems(Reviewer) == []
    machine.check(Reviewer)
    assert repr(machine) == "<Machine of 3 states and 3 transitions>"


def test_any_state_but_the_final_ones() -> None:
    machine = declared()
    assert [(way.source, way.target) for way in machine.expand() if way.trigger == "reset"] == [
        ("draft", "draft"),
        ("review", "draft"),
    ]
    assert machine.transitions_for("reset", "review")[0].target == "draft"
    with pytest.raises(InvalidError, match="is not a trigger of the state") as raised:
        machine.transitions_for("reset", "done", "agent 'a'")
    assert raised.value.code == "no-transition"
    assert raised.value.where == "agent 'a'"
    assert "Nothing leads out" in raised.value.hint


def test_what_is_declared_for_a_state_comes_before_any_state() -> None:
    machine = Machine("a", "b", "c")
    machine.add("go", "*", "c")
    machine.add("go", "a", "b")
    assert [way.target for way in machine.transitions_for("go", "a")] == ["b", "c"]
    assert [way.target for way in machine.transitions_for("go", "b")] == ["c"]
    assert machine.problems() == []


def test_several_sources_and_a_way_to_itself() -> None:
    machine = Machine("a", "b", "c")
    machine.add("go", ["a", "c"], "b")
    machine.add("again", "b", "b")
    machine.add("on", "b", "c")
    assert [way.source for way in machine.transitions if way.trigger == "go"] == ["a", "c"]
    assert machine.transitions_for("again", "b")[0].target == "b"
    assert machine.problems() == []


@pytest.mark.parametrize(
    "states", [(), ("",), ("a", "a"), ("*",), (1,)], ids=["none", "empty", "twice", "any", "no text"]
)
def test_states_have_names(states: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidError):
        Machine(*states)


def test_what_is_refused_at_once() -> None:
    machine = Machine("a", "b", final=["b"])
    for wrong in (
        lambda: machine.add("go", "a", "c"),
        lambda: machine.add("go", "c", "a"),
        lambda: machine.add("go", "b", "a"),
        lambda: machine.add("", "a", "b"),
        lambda: machine.add("go", "a", "b", via="c"),
        lambda: machine.add("go", "a", "b", on_incomplete="perhaps"),  # type: ignore[arg-type]
        lambda: machine.add("go", "a", "b", validators="check"),
        lambda: Machine("a", initial="b"),
        lambda: Machine("a", final=["b"]),
        lambda: Machine("a", validators={"b": "check"}),
        lambda: Machine("a", enter={"b": "check"}),
        lambda: Machine("a", leave={"b": "check"}),
    ):
        with pytest.raises(InvalidError):
            wrong()
    assert machine.transitions == []


def test_what_is_wrong_is_found_together() -> None:
    machine = Machine("a", "b", "lonely", validators={"a": "wait"}, enter={"b": "ring"})
    machine.add("go", "a", "b", action="nothing", guard="nowhere", validators=["never"])
    machine.add("back", "b", "a")
    machine.add("back", "b", "b")
    machine.add("all", "*", "a")
    machine.add("all", "*", "b")
    found = machine.problems(Reviewer())
    assert found == [
        "nothing leads to the state 'lonely'",
        "'back' is declared again from the state 'b', behind one that has no guard",
        "'all' is declared again from any state, behind one that has no guard",
        "the entry action of the state 'b' is 'ring', and Reviewer has no such method",
        "the guard of 'go' is 'nowhere', and Reviewer has no such method",
        "the action of 'go' is 'nothing', and Reviewer has no such method",
        "the validator of 'go' is 'never', and Reviewer has no such method",
        "the validator of the state 'a' is a coroutine function, which cannot be awaited during a save",
    ]
    with pytest.raises(InvalidError, match="the machine is invalid") as raised:
        machine.check(Reviewer())
    assert raised.value.where == "the machine of Reviewer"


def test_a_check_is_made_again_after_a_change() -> None:
    machine = declared()
    machine.check(Reviewer)
    machine.add("late", "draft", "done", action="nothing")
    with pytest.raises(InvalidError, match="nothing"):
        machine.check(Reviewer)


def test_a_machine_of_a_file() -> None:
    machine = Machine.of(
        tomllib.loads("""
            states = ["draft", "review", "done"]
            initial = "draft"
            final = ["done"]
            enter = {review = "notify"}

            [[transitions]]
            trigger = "submit"
            source = ["draft", "review"]
            target = "review"
            action = "notify"
            on_incomplete = "forward"

            [[transitions]]
            trigger = "approve"
            source = "*"
            target = "done"
            guard = "is_yes"
            validators = ["notify"]
            via = "review"
        """)
    )
    machine.check(Reviewer)
    assert Machine.of(machine.to_dict()).to_dict() == machine.to_dict()
    assert machine.to_dict()["transitions"][2] == {
        "trigger": "approve",
        "source": "*",
        "target": "done",
        "guard": "is_yes",
        "validators": ["notify"],
        "via": "review",
    }


WRONG: list[Any] = [
    [],
    {"states": "abc"},
    {"states": 3},
    {"states": ["a"], "colour": "red"},
    {"states": ["a"], "transitions": [3]},
    {"states": ["a"], "transitions": [{"trigger": "go"}]},
    {"states": ["a"], "transitions": [{"trigger": "go", "source": "a", "target": "b"}]},
    {"states": ["a"], "transitions": 3},
    {1: 2},
]


def test_what_declares_no_machine(subtests: pytest.Subtests) -> None:
    for wrong in WRONG:
        with subtests.test(wrong=wrong), pytest.raises(InvalidError):
            Machine.of(wrong)


def test_functions_are_no_data() -> None:
    machine = Machine("a")
    machine.add("go", "a", "a", guard=lambda _, __: True)
    with pytest.raises(InvalidError, match="cannot be converted to plain data"):
        machine.to_dict()


NAMES = st.text(min_size=1, max_size=5).filter(lambda name: name != "*")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    states = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    final = draw(st.sets(st.sampled_from(states), max_size=2)) - {states[0]}
    machine = Machine(*states, final=final)
    sources = ["*", *(state for state in states if state not in final)]
    for trigger, source, target, guard in draw(
        st.lists(st.tuples(NAMES, st.sampled_from(sources), st.sampled_from(states), st.sampled_from([None, "g"])))
    ):
        machine.add(trigger, source, target, guard=guard)
    return machine


@given(machines())
def test_plain_data_and_back(machine: Machine) -> None:
    again = Machine.of(machine.to_dict())
    assert again.to_dict() == machine.to_dict()
    assert again.transitions == machine.transitions
    assert again.problems() == machine.problems()


@given(machines(), st.data())
def test_every_way_is_one_that_is_declared(machine: Machine, data: st.DataObject) -> None:
    """And the problems name just the states that no walk reaches."""
    reached, todo = {machine.initial}, [machine.initial]
    while todo:
        state = todo.pop()
        for trigger in machine.triggers_from(state):
            for way in machine.transitions_for(trigger, state):
                assert way.source in (state, "*")
                if way.target not in reached:
                    reached.add(way.target)
                    todo.append(way.target)
    lonely = {f"nothing leads to the state {state!r}" for state in machine.states if state not in reached}
    assert {each for each in machine.problems() if each.startswith("nothing")} == lonely
    state = data.draw(st.sampled_from(machine.states))
    for trigger in set(machine.triggers) - set(machine.triggers_from(state)):
        with pytest.raises(InvalidError):
            machine.transitions_for(trigger, state)


def test_the_life_of_every_agent_is_a_machine() -> None:
    assert LIFECYCLE.problems() == []
    assert LIFECYCLE.triggers_from("running") == ["pause", "stop", "fail"]
    assert LIFECYCLE.triggers_from("created") == ["start", "stop", "fail"]
