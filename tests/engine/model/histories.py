"""Generated states, and states that came of them by edits of the kind agents make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from holdfast.codec import Codec
from holdfast.engine.model.nodes import NodeId
from holdfast.engine.model.workspace import Rounds

codec = Codec()
T = TypeVar("T")

small = st.one_of(st.none(), st.booleans(), st.integers(-5, 300), st.floats(), st.text("ab\n", max_size=6))
texts = st.one_of(
    st.text("ab\n é", max_size=20),
    st.lists(st.sampled_from(["a line\n", "another\n", "é" * 40 + "\n"]), max_size=120).map("".join),
)
messages = st.builds(lambda text, n: HumanMessage(text, id=str(n)), texts, st.integers(0, 40))
leaves = st.one_of(small, texts, messages, st.tuples(small, small), st.binary(max_size=400))
keys = st.one_of(st.text("abc", max_size=3), st.integers(0, 9), st.none())


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6)


channels = st.one_of(
    st.recursive(leaves, containers, max_leaves=8),
    st.lists(messages, max_size=150),
    st.lists(st.floats(), max_size=30),
    st.dictionaries(st.integers(0, 400).map(str), small, max_size=150),
)
states = st.dictionaries(st.sampled_from(["messages", "plan", "notes", "memory", "x y"]), channels, max_size=4)


@st.composite
def edited(draw: st.DrawFn, value: Any) -> Any:
    """A value that came of this one by a few edits."""
    for _ in range(draw(st.integers(1, 3))):
        value = draw(_edited_once(value))
    return value


@st.composite
def _edited_once(draw: st.DrawFn, value: Any) -> Any:
    how = draw(st.integers(0, 5))
    if isinstance(value, list) and how:
        return draw(_edited_list(value, how))
    if isinstance(value, dict) and how:
        return draw(_edited_dict(value, how))
    if isinstance(value, str) and value and how:
        at = draw(st.integers(0, len(value)))
        return value[:at] + draw(st.sampled_from(["", "new", "é\n"])) + value[at + draw(st.integers(0, 3)) :]
    return draw(leaves)


@st.composite
def _edited_list(draw: st.DrawFn, old: list[Any], how: int) -> list[Any]:
    items = list(old)
    at = draw(st.integers(0, len(items)))
    end = draw(st.integers(at, len(items)))
    if how == 1:
        return items + draw(st.lists(messages, min_size=1, max_size=3))
    if how == 2:
        return items[:at] + draw(st.lists(leaves, min_size=1, max_size=3)) + items[at:]
    if how == 3:
        return items[:at] + items[end:]
    if how == 4:
        run, rest = items[at:end], items[:at] + items[end:]
        to = draw(st.integers(0, len(rest)))
        return rest[:to] + run + rest[to:]
    if at < len(items):
        items[at] = draw(_edited_once(items[at]))
    return items


@st.composite
def _edited_dict(draw: st.DrawFn, old: dict[Any, Any], how: int) -> dict[Any, Any]:
    entries = dict(old)
    if how <= 2 or not entries:
        entries[draw(st.text("abc", max_size=3))] = draw(leaves)
        return entries
    key = draw(st.sampled_from(list(entries)))
    if how == 3:
        del entries[key]
    elif how == 4:
        entries[key] = draw(_edited_once(entries[key]))
    else:
        return dict(draw(st.permutations(list(entries.items()))))
    return entries


@st.composite
def edited_state(draw: st.DrawFn, state: dict[str, Any]) -> dict[str, Any]:
    """A state that came of this one."""
    state = dict(state)
    for _ in range(draw(st.integers(1, 2))):
        how = draw(st.integers(0, 5))
        if state and how > 1:
            name = draw(st.sampled_from(list(state)))
            state[name] = draw(edited(state[name]))
        elif state and how:
            del state[draw(st.sampled_from(list(state)))]
        else:
            state[draw(st.sampled_from(["new", "plan"]))] = draw(channels)
    return state


@st.composite
def histories(draw: st.DrawFn, length: int = 6) -> list[dict[str, Any]]:
    """States, each of which came of the one before."""
    line = [draw(states)]
    for _ in range(draw(st.integers(1, length))):
        line.append(draw(edited_state(line[-1])))
    return line


def drive(rounds: Rounds[T], nodes: Mapping[NodeId, bytes], asked: list[int] | None = None) -> T:
    """Run a computation with nodes from a dict."""
    try:
        wanted = next(rounds)
        while True:
            if asked is not None:
                asked.append(len(wanted))
            wanted = rounds.send({id: nodes[id] for id in wanted if id in nodes})
    except StopIteration as done:
        value: T = done.value
        return value
