"""A grant of some keys: what it lists and watches, and that no other key is among it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.engine.patterns import KeyPattern, matcher
from holdfast.errors import DeniedError
from holdfast.state.scope_state import State

PATTERNS = st.lists(st.sampled_from(["a", "b", "/", "*", "**", "?"]), min_size=1, max_size=5).map("".join)
KEYS = ["".join(each) for length in range(1, 5) for each in product("ab/", repeat=length)]


@given(PATTERNS, PATTERNS)
def test_what_is_within_a_pattern_has_no_key_outside_of_it(inner: str, outer: str) -> None:
    if KeyPattern(inner).is_within(outer):
        assert [key for key in KEYS if matcher(inner)(key) and not matcher(outer)(key)] == []


def test_what_is_within_which(subtests: pytest.Subtests) -> None:
    within = [("plan/*", "plan/*"), ("plan/*", "plan/**"), ("plan/**", "plan/**"), ("plan/a*", "plan/*"), ("?", "*")]
    outside = [("plan/**", "plan/*"), ("plan*", "plan/**"), ("*", "?"), ("**", "plan/**"), ("plan/*", "plan/?")]
    for expected, pairs in ((True, within), (False, outside)):
        for inner, outer in pairs:
            with subtests.test(inner=inner, outer=outer):
                assert KeyPattern(inner).is_within(outer) is expected


def denied(state: State) -> list[str]:
    """Which listings and watches of a scope are denied."""
    tries: dict[str, Callable[[], object]] = {
        "keys": lambda: list(state.list_keys()),
        "**": lambda: list(state.list_keys(pattern="**")),
        "secret/": lambda: list(state.list_keys("secret/")),
        "p": lambda: list(state.list_items("p")),
        "plan/**": lambda: list(state.list_items(pattern="plan/**")),
        "iterate": lambda: list(state),
        "count": lambda: len(state),
        "watch": lambda: state.watch().poll(),
        "watch secret": lambda: state.watch("secret/*").poll(),
        "history": state.history,
    }
    found = []
    for name, use in tries.items():
        try:
            use()
        except DeniedError:
            found.append(name)
    return found


def test_a_grant_of_a_pattern_lists_and_watches_within_it() -> None:
    with holdfast.open("memory://") as store:
        own = store.state(agent="a")
        own.batch({"plan/one": 1, "plan/two": 2, "plan/two/deep": 3, "secret/x": 4, "plans": 5})
        grant = store.access.grant("agent:b", "read", "agent:a", keys="plan/*")
        theirs = store.as_identity(agent="b").state(agent="a")
        assert list(theirs.list_keys(pattern="plan/*")) == ["plan/one", "plan/two"]
        assert [item.value for item in theirs.list_items(pattern="plan/t*")] == [2]
        assert list(theirs.list_items(pattern="plan/none*")) == []
        watch = theirs.watch("plan/*")
        watch.start()
        own["secret/x"], own["plan/one"] = 5, 6
        assert [(change.key, change.value) for change in watch.poll()] == [("plan/one", 6)]
        every = denied(theirs)
        assert every == [
            "keys",
            "**",
            "secret/",
            "p",
            "plan/**",
            "iterate",
            "count",
            "watch",
            "watch secret",
            "history",
        ]
        assert denied(own) == [], "the control"
        reads = store.audit.query(actor="agent:b", kind="read")
        assert {each.key for each in reads} >= {"plan/*", "plan/none*"}
        store.access.revoke(grant)
        for use in (lambda: theirs.list_keys(pattern="plan/*"), watch.poll):
            with pytest.raises(DeniedError) as caught:
                use()
            assert caught.value.code == "grant-revoked"
        store.access.grant("agent:b", "read", "agent:a", keys="plan/**")
        assert list(theirs.list_keys("plan/")) == ["plan/one", "plan/two", "plan/two/deep"], "a prefix, too"


def test_a_rule_that_denies_some_keys_denies_their_listing() -> None:
    with holdfast.open("memory://") as store:
        store.state(agent="a").batch({"plan/one": 1, "plan/secret": 2})
        rules = holdfast.access.Policy().deny("read", keys="plan/secret").allow("read", keys="plan/*")
        theirs = store.as_identity(agent="b", mode="custom", policy=rules).state(agent="a")
        assert theirs["plan/one"] == 1
        with pytest.raises(DeniedError):
            theirs.list_keys(pattern="plan/*")
        allowed = store.as_identity(
            agent="b", mode="custom", policy=holdfast.access.Policy().allow("read", keys="plan/*")
        )
        assert len(allowed.state(agent="a").list_keys(pattern="plan/*")) == 2, "the control"
