"""Retention policies: decide which checkpoints of a thread stay, and why. No I/O.

As with `restic forget`, a checkpoint stays if any rule keeps it. The latest of the thread, the last of each named
branch, and pinned checkpoints always stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias, TypedDict

import msgspec

from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError
from holdfast.time_parser import Duration, parse_duration, parse_nanoseconds

_Bucket: TypeAlias = Callable[[datetime], tuple[object, ...]]

_PERIODS: dict[str, _Bucket] = {
    # With the UTC offset: an hour that occurs twice when clocks are set back counts as two.
    "hourly": lambda at: (at.date(), at.hour, at.utcoffset()),
    "daily": lambda at: (at.date(),),
    "weekly": lambda at: tuple(at.isocalendar()[:2]),
    "monthly": lambda at: (at.year, at.month),
    "yearly": lambda at: (at.year,),
}


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The rules for the checkpoints that stay when threads are pruned.

    - `keep_latest`: only the latest checkpoint, which always stays
    - `keep_last`: the last N
    - `keep_within`: those younger than an age (`"30d"`, `"1h30m"`, or a `timedelta`)
    - `keep_hourly`, `keep_daily`, `keep_weekly`, `keep_monthly`, `keep_yearly`: the last one of each of the last N
      hours (and so on) that have checkpoints. Days begin at midnight in `zone` (None for that of this machine),
      weeks on Monday
    - `keep_labels`: those with a label that matches one of these patterns (`"release-*"`)
    - `keep_tagged`: those with a tag or any label; on by default
    - `keep_where`: those that match a query
    - `keep_recordings_within`, `keep_recordings_last`: of the calls that were recorded for a replay, those younger than
      an age, and those of the last N checkpoints that have any. Without either, they stay with their checkpoints. If
      these are the only rules, all checkpoints stay
    - `max_thread_bytes`, `max_bytes`: limits of the size of each thread, and of all threads of the pass together (as
      `ThreadInfo.bytes` counts it). The oldest checkpoints are dropped until it fits; not those that a rule other than
      of age and number keeps

    At least one rule besides `keep_tagged` is required. With only a size limit, all stay that fit.
    """

    keep_latest: bool = False
    keep_last: int | None = None
    keep_within: Duration | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    keep_monthly: int | None = None
    keep_yearly: int | None = None
    keep_labels: Sequence[str] = ()
    keep_tagged: bool = True
    keep_where: str | None = None
    keep_recordings_within: Duration | None = None
    keep_recordings_last: int | None = None
    max_thread_bytes: int | None = None
    max_bytes: int | None = None
    zone: tzinfo | None = UTC

    def __post_init__(self) -> None:
        counts = ("keep_last", *(f"keep_{each}" for each in _PERIODS), "keep_recordings_last")
        for name in (*counts, "max_thread_bytes", "max_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidError(f"{name} must be at least 1, not {value!r}")
        for name in ("keep_latest", "keep_tagged"):
            if type(getattr(self, name)) is not bool:
                raise InvalidError(f"{name} must be True or False, not {getattr(self, name)!r}")
        labels: object = self.keep_labels
        if not isinstance(labels, list | tuple) or not all(isinstance(label, str) and label for label in labels):
            raise InvalidError(
                "keep_labels must be a list of patterns", where=repr(labels)[:80], hint='Write ["release-*"]'
            )
        object.__setattr__(self, "keep_labels", tuple(labels))
        if self.keep_where is not None and not isinstance(self.keep_where, str):
            raise InvalidError(f"keep_where must be a query, not {type(self.keep_where).__name__}")
        zone: object = self.zone
        if not isinstance(zone, tzinfo | None):
            raise InvalidError(f"zone must be a time zone, not {zone!r}", hint='As zoneinfo.ZoneInfo("Europe/Vienna")')
        if self.keep_within is not None:
            parse_duration(self.keep_within, "age")
        if self.keep_recordings_within is not None:
            parse_duration(self.keep_recordings_within, "age")
        limits = (self.max_bytes, self.max_thread_bytes)
        if not self._is_rule() and not self.drops_recordings and limits == (None, None):
            raise InvalidError(
                "the policy has no rule",
                hint="Give keep_last, keep_within, keep_daily or another rule; keep_latest for only the latest",
            )

    @property
    def age(self) -> int | None:
        """`keep_within` in nanoseconds."""
        return None if self.keep_within is None else parse_nanoseconds(self.keep_within, "age")

    @property
    def is_sized(self) -> bool:
        """Whether there is a limit of size."""
        return self.max_bytes is not None or self.max_thread_bytes is not None

    @property
    def drops_recordings(self) -> bool:
        """Whether recordings may go while their checkpoints stay."""
        return self.keep_recordings_within is not None or self.keep_recordings_last is not None

    def drop_recordings(self, candidates: Sequence[tuple[int, str]], now: int) -> set[str]:
        """Return the ids of the checkpoints whose recordings go, given the times and ids of those that have one."""
        within = self.keep_recordings_within
        start = now if within is None else now - parse_nanoseconds(within, "age")
        latest_first = sorted(candidates, reverse=True)
        return {id for time, id in latest_first[self.keep_recordings_last or 0 :] if time < start or within is None}

    def _is_rule(self) -> bool:
        """Return whether there is a rule for checkpoints other than a size limit."""
        passive = {"keep_tagged", "max_thread_bytes", "max_bytes", "zone"}
        passive |= {"keep_recordings_within", "keep_recordings_last"}
        rules = (getattr(self, each.name) for each in fields(self) if each.name not in passive)
        return any(rule not in (None, False, ()) for rule in rules)

    def keeps_all(self, points: Sequence[StepRef], now: int) -> bool:
        """Return whether the steps of a thread say by themselves that nothing of it goes, whatever else is known of it,
        if there is no limit of size. Then what earlier revisions left stays, too, until the rule of age lets it go."""
        age = self.age
        if age is not None and all(point.time >= now - age for point in points if not point.pruned):
            return True
        stored = [point for point in points if not point.pruned]
        return len(stored) <= max(1, self.keep_last or 0) and not any(point.revision for point in stored)

    def decide(self, candidates: Iterable[RetentionCandidate], now: int) -> list[RetentionVerdict]:
        """Decide for each checkpoint of a thread, in the given order, ignoring size limits. `now` is in nanoseconds
        since 1970."""
        candidates = list(candidates)
        reasons = defaultdict[int, list[str]](list)  # most of many have none
        latest_first = sorted(range(len(candidates)), key=lambda at: candidates[at].id, reverse=True)
        head = [at for at, each in enumerate(candidates) if each.is_head]
        for at in head or latest_first[:1]:
            reasons[at].append("latest")
        for at, each in enumerate(candidates):
            found = [f"last of {name}" for name in each.heads]
            found += (f"pinned: {reason}" if reason else "pinned" for reason in each.pins)
            if self.keep_tagged:
                found += (f"tag {tag}" for tag in each.tags)
            kept = [label for label in each.labels if any(fnmatchcase(label, pattern) for pattern in self.keep_labels)]
            found += (f"label {label}" for label in (each.labels if self.keep_tagged else kept))
            if each.matches:
                found.append("matches")
            if found:
                reasons[at] += found
        permanent = frozenset(reasons)
        if not self._is_rule():
            for at in range(len(candidates)):
                reasons[at].append("fits")
        for at in latest_first[: self.keep_last or 0]:
            reasons[at].append("last")
        age = self.age
        if age is not None:
            for at, each in enumerate(candidates):
                if each.time >= now - age:
                    reasons[at].append("within")
        for name, bucket in _PERIODS.items():
            for at in self._last_of_periods(candidates, getattr(self, f"keep_{name}") or 0, bucket):
                reasons[at].append(name)
        return [
            RetentionVerdict(
                each.id, each.time, at in reasons, tuple(dict.fromkeys(reasons.get(at, ()))), at in permanent
            )
            for at, each in enumerate(candidates)
        ]

    def _last_of_periods(self, candidates: Sequence[RetentionCandidate], count: int, bucket: _Bucket) -> list[int]:
        """Return the last checkpoint of each of the last `count` periods that have one."""
        kept: dict[tuple[object, ...], int] = {}
        if count:
            for at in sorted(range(len(candidates)), key=lambda at: candidates[at][:2], reverse=True):
                kept.setdefault(bucket(to_datetime(candidates[at].time).astimezone(self.zone)), at)
                if len(kept) > count:
                    kept.popitem()
                    break
        return list(kept.values())


class RetentionRules(TypedDict, total=False):
    """The fields of a `Retention`, as keyword arguments."""

    keep_latest: bool
    keep_last: int | None
    keep_within: Duration | None
    keep_hourly: int | None
    keep_daily: int | None
    keep_weekly: int | None
    keep_monthly: int | None
    keep_yearly: int | None
    keep_labels: Sequence[str]
    keep_tagged: bool
    keep_where: str | None
    keep_recordings_within: Duration | None
    keep_recordings_last: int | None
    max_thread_bytes: int | None
    max_bytes: int | None
    zone: tzinfo | None


def policy_of(policy: Retention | None, rules: RetentionRules) -> Retention:
    """Return the policy of a caller, passed as one or as rules."""
    if policy is None:
        try:
            return Retention(**rules)
        except TypeError:
            known = {each.name for each in fields(Retention)}
            unknown = ", ".join(sorted(rules.keys() - known))
            raise InvalidError(
                f"a policy has no rule {unknown}", hint=f"There are {', '.join(sorted(known))}"
            ) from None
    if not isinstance(policy, Retention):
        raise InvalidError(
            f"the policy must be a Retention, not {type(policy).__name__}", hint="Or give its rules: keep_last=100"
        )
    if rules:
        raise InvalidError("pass a policy or rules, not both", where=", ".join(rules))
    return policy


class RetentionCandidate(NamedTuple):
    """A checkpoint to decide on."""

    time: int
    id: str
    tags: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    """The named branches that it is the last checkpoint of."""
    matches: bool = False
    """Whether it matches the query."""
    is_head: bool = False
    """Whether the thread resumes from it. If none is said to, it is the one with the greatest id."""


class RetentionVerdict(msgspec.Struct, frozen=True):
    """The decision on a checkpoint, and its reasons."""

    id: str
    time: int
    kept: bool
    reasons: tuple[str, ...]
    stays: bool
    """Whether it stays whatever the size limit is."""

    def before(self, cutoff: int) -> RetentionVerdict:
        """Return the verdict if a size limit drops what is older than a time."""
        if self.stays or not self.kept or self.time >= cutoff:
            return self
        return msgspec.structs.replace(self, kept=False, reasons=("over the size limit",))
