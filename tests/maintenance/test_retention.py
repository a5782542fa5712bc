"""What a policy keeps, and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidError
from holdfast.maintenance.retention import Retention, RetentionCandidate, RetentionVerdict, policy_of

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = 3600 * 10**9


def at(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9


def saved(*hours: float) -> list[RetentionCandidate]:
    """Checkpoints so many hours after the start."""
    return [RetentionCandidate(at(START) + int(hour * HOUR), f"{number:03}") for number, hour in enumerate(hours)]


def kept(verdicts: list[RetentionVerdict]) -> dict[str, tuple[str, ...]]:
    return {each.id: each.reasons for each in verdicts if each.kept}


def decided(
    policy: Retention, candidates: list[RetentionCandidate], now: int | None = None
) -> dict[str, tuple[str, ...]]:
    return kept(policy.decide(candidates, at(START) if now is None else now))


def test_only_the_latest() -> None:
    assert decided(Retention(keep_latest=True), saved(1, 2, 3)) == {"002": ("latest",)}
    assert decided(Retention(keep_latest=True), []) == {}


def test_the_last() -> None:
    assert decided(Retention(keep_last=2), saved(1, 2, 3)) == {"001": ("last",), "002": ("latest", "last")}


def test_by_age() -> None:
    now = at(START) + 10 * HOUR
    expected = {"001": ("within",), "002": ("latest", "within")}
    assert decided(Retention(keep_within="2h"), saved(1, 8, 9.5), now) == expected
    assert decided(Retention(keep_within=timedelta(hours=2)), saved(1, 8, 9.5), now) == expected


def test_thinning_keeps_the_last_of_each_of_the_last_days_that_have_one() -> None:
    candidates = saved(1, 5, 23, 25, 24 * 9 + 1, 24 * 9 + 2)
    assert list(decided(Retention(keep_daily=2), candidates)) == ["003", "005"]
    assert list(decided(Retention(keep_daily=3), candidates)) == ["002", "003", "005"]
    assert list(decided(Retention(keep_hourly=2), candidates)) == ["004", "005"]
    assert list(decided(Retention(keep_weekly=2), candidates)) == ["003", "005"]  # March 1, 2026 is a Sunday
    assert list(decided(Retention(keep_weekly=9), candidates)) == ["002", "003", "005"]
    assert list(decided(Retention(keep_monthly=1), candidates)) == ["005"]
    assert list(decided(Retention(keep_yearly=5), candidates)) == ["005"]


def test_days_are_those_of_the_zone() -> None:
    candidates = saved(1, 22, 23.5)
    assert list(decided(Retention(keep_daily=9), candidates)) == ["002"]
    east = Retention(keep_daily=9, zone=timezone(timedelta(hours=1)))
    assert list(decided(east, candidates)) == ["001", "002"]


def test_an_hour_that_comes_twice_is_two() -> None:
    back = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 2:30 in Vienna, and an hour later again
    candidates = [RetentionCandidate(at(back), "0"), RetentionCandidate(at(back + timedelta(hours=1)), "1")]
    vienna = Retention(keep_hourly=9, zone=ZoneInfo("Europe/Vienna"))
    assert list(decided(vienna, candidates)) == ["0", "1"]


def test_names_tags_pins_and_the_ends_of_branches() -> None:
    candidates = [
        RetentionCandidate(1, "1", tags=("v1",)),
        RetentionCandidate(2, "2", labels=("release-1", "good")),
        RetentionCandidate(3, "3", pins=("the auditors want it", "")),
        RetentionCandidate(4, "4", heads=("main", "draft")),
        RetentionCandidate(5, "5", matches=True),
        RetentionCandidate(6, "6"),
        RetentionCandidate(7, "7"),
    ]
    always = {"3": ("pinned: the auditors want it", "pinned"), "4": ("last of main", "last of draft")}
    everything = {
        "1": ("tag v1",),
        "2": ("label release-1", "label good"),
        **always,
        "5": ("matches",),
        "7": ("latest",),
    }
    assert decided(Retention(keep_latest=True), candidates) == everything
    bare = {**always, "5": ("matches",), "7": ("latest",)}
    assert decided(Retention(keep_latest=True, keep_tagged=False), candidates) == bare
    tagged = Retention(keep_labels=["release-*"], keep_tagged=False)
    assert decided(tagged, candidates) == {"2": ("label release-1",), **bare}


def test_without_room_the_oldest_go_that_are_only_kept_by_age_or_number() -> None:
    candidates = [replace_names(each, "v1") if each.id == "001" else each for each in saved(1, 2, 3, 4)]
    verdicts = Retention(keep_last=4).decide(candidates, 0)
    room = [each.before(candidates[3].time + 1) for each in verdicts]
    assert [(each.kept, each.reasons) for each in room] == [
        (False, ("over the size limit",)),
        (True, ("tag v1", "last")),
        (False, ("over the size limit",)),
        (True, ("latest", "last")),
    ]
    assert kept(Retention(max_bytes=1).decide(candidates, 0)).keys() == {"000", "001", "002", "003"}
    assert Retention(max_thread_bytes=1).decide(candidates, 0)[0].reasons == ("fits",)


def replace_names(candidate: RetentionCandidate, *names: str) -> RetentionCandidate:
    return candidate._replace(tags=names)


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"keep_tagged": True},
        {"keep_last": 0},
        {"keep_last": -1},
        {"keep_last": True},
        {"keep_daily": "3"},
        {"max_bytes": 0},
        {"keep_within": "soon"},
        {"keep_within": "3"},
        {"keep_within": timedelta(seconds=-1)},
        {"keep_labels": "release"},
        {"keep_labels": [3]},
        {"keep_labels": [""]},
        {"keep_latest": 1},
        {"keep_where": 3},
        {"keep_last": 1, "zone": "UTC"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        Retention(**rules)


def test_a_policy_is_given_whole_or_rule_by_rule() -> None:
    policy = Retention(keep_last=3)
    assert policy_of(policy, {}) is policy
    assert policy_of(None, {"keep_last": 3}) == policy
    with pytest.raises(InvalidError, match="not both"):
        policy_of(policy, {"keep_last": 3})
    with pytest.raises(InvalidError, match="no rule keep_lots"):
        policy_of(None, {"keep_lots": 3})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidError, match="not dict"):
        policy_of({"keep_last": 3}, {})  # type: ignore[arg-type]


# Laws -------------------------------------------------------------------------------------------------------------

some = st.tuples() | st.tuples(st.sampled_from(["a", "b", "v1"]))
histories = st.lists(
    st.builds(
        RetentionCandidate,
        st.integers(0, 90 * 24 * 60).map(lambda minutes: at(START) + minutes * 60 * 10**9),
        st.just(""),
        some,
        some,
        st.tuples() | st.tuples(st.just("why")),
        st.tuples() | st.tuples(st.just("main")),
        st.booleans(),
        st.booleans(),
    ),
    max_size=30,
).map(lambda found: [each._replace(id=f"{number:03}") for number, each in enumerate(found)])
counts = st.none() | st.integers(1, 20)
NUMBERS = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly", "keep_monthly", "keep_yearly")
policies = st.builds(
    lambda numbers, within, tags, named, zone: Retention(
        keep_latest=True,
        **dict(zip(NUMBERS, numbers, strict=True)),
        keep_within=within,
        keep_labels=tags,
        keep_tagged=named,
        zone=timezone(timedelta(hours=zone)),
    ),
    st.tuples(*[counts] * len(NUMBERS)),
    st.none() | st.integers(0, 90).map(lambda days: timedelta(days=days)),
    st.lists(st.sampled_from(["a", "b", "*"]), max_size=2),
    st.booleans(),
    st.integers(-12, 12),
)
NOW = at(START) + 90 * 24 * HOUR


@given(histories, policies)
def test_the_latest_pins_and_heads_always_stay(history: list[RetentionCandidate], policy: Retention) -> None:
    stays = decided(policy, history, NOW)
    latest = [each for each in history if each.is_head] or history[-1:]  # HEAD need not be the last one
    assert all(each.id in stays for each in latest)
    assert all(each.id in stays for each in history if each.pins or each.heads)


@given(histories, policies)
def test_again_changes_nothing(history: list[RetentionCandidate], policy: Retention) -> None:
    stays = decided(policy, history, NOW)
    assert decided(policy, [each for each in history if each.id in stays], NOW) == stays


@given(histories, policies, st.sampled_from(NUMBERS), st.integers(1, 30))
def test_a_more_generous_policy_keeps_no_less(
    history: list[RetentionCandidate], policy: Retention, which: str, more: int
) -> None:
    stays = decided(policy, history, NOW).keys()
    changes: dict[str, Any] = {which: (getattr(policy, which) or 0) + more}
    assert stays <= decided(replace(policy, **changes), history, NOW).keys()
    longer = timedelta(days=more) + (policy.keep_within or timedelta(0))  # type: ignore[operator]
    assert stays <= decided(replace(policy, keep_within=longer), history, NOW).keys()
    assert stays <= decided(replace(policy, keep_labels=[*policy.keep_labels, "v*"]), history, NOW).keys()
    assert stays <= decided(replace(policy, keep_tagged=True), history, NOW).keys()


@given(histories, policies, st.randoms())
def test_the_order_does_not_matter(history: list[RetentionCandidate], policy: Retention, random: Any) -> None:
    mixed = list(history)
    random.shuffle(mixed)
    assert decided(policy, mixed, NOW) == decided(policy, history, NOW)


@given(histories, policies, st.integers(0, 90 * 24))
def test_room_takes_the_oldest_first(history: list[RetentionCandidate], policy: Retention, hours: int) -> None:
    cutoff = at(START) + hours * HOUR
    verdicts = policy.decide(history, NOW)
    for verdict, after in zip(verdicts, (each.before(cutoff) for each in verdicts), strict=True):
        assert after.kept == (verdict.kept and (verdict.stays or verdict.time >= cutoff))
