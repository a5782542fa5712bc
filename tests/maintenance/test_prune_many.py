"""Pruning many threads: what stays is as a model says, however the pass is divided, interrupted or shortened by the
index of times; and threads that lose nothing cost a fraction of a request each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Backend, Batch, Capabilities, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.jobs.api import Jobs
from holdfast.store.store import Store
from tests.engine.lines import KINDS, Clock, backend, store_on
from tests.support.counting import CountingBackend
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import examples, mostly_nightly

HOUR = 3600 * 10**9
NOW = 1_700_000_000_000_000_000


class WithoutTimes(Wrapper):
    """A store that has no order by time."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(self.inner.capabilities, times=False)


Threads = dict[str, list[tuple[int, str]]]
"""For each thread, the ages of its checkpoints in hours, the oldest first, and what protects each: a tag, a pin, or
nothing."""

threads = st.dictionaries(
    st.sampled_from(["a", "a-b", "a␟n", "b", "c␟n", "c"]),
    st.lists(st.tuples(st.integers(0, 90), st.sampled_from(["", "", "", "tag", "pin"])), min_size=1, max_size=5),
    min_size=1,
    max_size=5,
)
rules = st.fixed_dictionaries(
    {},
    optional={"keep_last": st.integers(1, 4), "keep_within": st.sampled_from(["20h", "60h"]), "keep_daily": st.just(2)},
).filter(bool)


def filled(on: Backend, chosen: Threads) -> Store:
    """Save the checkpoints in the order of their times, half an hour before their ages: the clock goes on by
    microseconds while they are saved and looked at, and no age is exactly that of a rule."""
    clock = Clock()
    store = store_on(on, clock=clock)
    order = sorted((-age, thread, n) for thread, each in chosen.items() for n, age in enumerate(sorted_ages(each)))
    for negative, thread, n in order:
        clock.now = NOW + negative * HOUR - HOUR // 2
        store.thread(thread).put(
            {"n": n}, id=f"{n}", tag=f"tag{n}" if protections(chosen[thread])[n] == "tag" else None
        )
        if protections(chosen[thread])[n] == "pin":
            store.thread(thread).pin(f"{n}")
    clock.now = NOW
    return store


def sorted_ages(each: list[tuple[int, str]]) -> list[int]:
    return [age for age, _ in sorted(each, reverse=True)]


def protections(each: list[tuple[int, str]]) -> list[str]:
    return [what for _, what in sorted(each, reverse=True)]


def survivors(each: list[tuple[int, str]], rules: dict[str, Any]) -> set[str]:
    """The ids that stay, by the words of the guide."""
    ages, protected = sorted_ages(each), protections(each)
    kept = {len(ages) - 1} | {n for n, what in enumerate(protected) if what}
    kept |= set(range(len(ages))[-rules["keep_last"] :]) if "keep_last" in rules else set()
    limit = int(rules["keep_within"][:-1]) if "keep_within" in rules else 0
    kept |= {n for n, age in enumerate(ages) if age < limit}
    days: dict[dt.date, int] = {}
    for n, age in enumerate(ages):
        days[dt.datetime.fromtimestamp((NOW - age * HOUR - HOUR // 2) / 1e9, dt.UTC).date()] = n
    kept |= {days[day] for day in sorted(days)[-rules.get("keep_daily", 0) :]} if "keep_daily" in rules else set()
    return {str(n) for n in kept}


def left(store: Store, chosen: Threads) -> dict[str, set[str]]:
    return {thread: {each.id for each in store.thread(thread).log().all()} for thread in chosen}


@pytest.mark.parametrize("kind", KINDS)
@given(chosen=threads, rules=rules, part=st.integers(1, 4), with_times=st.booleans())
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
def test_what_stays_is_as_the_model_says_in_parts_too(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    chosen: Threads,
    rules: dict[str, Any],
    part: int,
    with_times: bool,
) -> None:
    on = backend(kind, tmp_path_factory.mktemp("store"))
    store = filled(on if with_times else WithoutTimes(on), chosen)
    expected = {thread: survivors(each, rules) for thread, each in chosen.items()}
    planned = store.maintenance.prune(dry_run=True, **rules)
    after: str | None = ""
    dropped = size = 0
    listed: list[str] = []
    while after is not None:
        report = store.maintenance.prune(after=after, limit=part, **rules)
        assert report.next is None or report.next > after
        after, dropped, size = report.next, dropped + report.dropped, size + report.bytes
        listed += [each.thread for each in report.threads]
    assert left(store, chosen) == expected
    losing = sorted(thread for thread, each in chosen.items() if len(expected[thread]) < len(each))
    assert [each.thread for each in planned.threads] == listed == losing
    assert (planned.changed, planned.dropped, planned.bytes) == (len(losing), dropped, size)
    assert store.maintenance.prune(**rules).changed == 0
    assert store.maintenance.verify().findings == []
    run(on.close())


# Stopped and killed -----------------------------------------------------------------------------------------------


def six(on: Backend) -> Store:
    store = store_on(on)
    for thread in "abcdef":
        for n in range(4):
            store.thread(thread).put({"n": n}, id=str(n))
    return store


def lengths(store: Store) -> list[int]:
    return [len(store.thread(thread).log()) for thread in "abcdef"]


def test_a_job_that_is_stopped_goes_on_after_the_last_thread() -> None:
    store = six(MemoryBackend())
    jobs = Jobs(store)
    jobs.add("nightly", "prune", settings={"keep_last": 2})
    seen: list[str] = []
    ended = jobs.run("nightly", progress=lambda done, total, what: seen.append(what), stop=lambda: "c" in seen)
    assert (ended.outcome, seen, lengths(store)) == ("stopped", ["a", "b", "c"], [2, 2, 2, 4, 4, 4])
    seen.clear()
    ended = jobs.run("nightly", progress=lambda done, total, what: seen.append(what))
    assert (seen, lengths(store)) == (["d", "e", "f"], [2] * 6)
    assert ended.summary.startswith("12 checkpoints removed, 12 kept, ")
    assert "in part by a run that was interrupted" in ended.summary
    assert not jobs.get("nightly").mark


def test_a_plan_that_was_changed_begins_anew() -> None:
    store = six(MemoryBackend())
    jobs = Jobs(store)
    jobs.add("nightly", "prune", settings={"keep_last": 2})
    seen: list[str] = []
    jobs.run("nightly", progress=lambda done, total, what: seen.append(what), stop=lambda: "c" in seen)
    jobs.add("nightly", "prune", settings={"keep_last": 1}, replace=True)
    assert jobs.run("nightly").summary.startswith("12 checkpoints removed, 6 kept, ")
    assert lengths(store) == [1] * 6


class Killed(BaseException):
    """Ends a pass as a kill does."""


class Mortal(Wrapper):
    """A store that nobody reaches any more after a kill."""

    is_dead = False

    def kill(self) -> None:
        self.is_dead = True
        raise Killed

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        if self.is_dead:
            raise Killed
        return await self.inner.read(queries)

    async def apply(self, batch: Batch) -> int | None:
        if self.is_dead:
            raise Killed
        return await self.inner.apply(batch)


@pytest.mark.parametrize("stride", mostly_nightly([1, 7], daily=[7]))
def test_a_pass_that_is_killed_at_any_moment_is_finished_by_the_next(stride: int) -> None:
    def scenario(moment: Moment) -> None:
        mortal = Mortal(MemoryBackend())
        on = InterferingBackend(mortal)
        store = store_on(on, clock=Clock())
        for thread in "abc":
            for n in range(3):
                store.thread(thread).put({"n": n}, id=str(n))
        passed = ""

        def progress(_done: int, _total: int | None, thread: str) -> None:
            nonlocal passed
            passed = thread

        try:
            with moment.interfere(on, mortal.kill):
                store.maintenance.prune(keep_last=1, progress=progress)
        except Killed:
            assert mortal.is_dead
        # Leases of the dead end with time.
        again = store_on(mortal.inner, clock=Clock(NOW + HOUR))
        report = again.maintenance.prune(keep_last=1, after=passed)
        assert [len(again.thread(thread).log()) for thread in "abc"] == [1, 1, 1]
        assert all(again.thread(thread).get().state == {"n": 2} for thread in "abc")
        assert all(each.thread > passed for each in report.threads)
        assert [each.code for each in again.maintenance.verify().damage] == []

    at_every_moment(scenario, at_least=5, stride=stride)


@pytest.mark.parametrize(
    ("what", "stride"),
    mostly_nightly(
        [(what, stride) for what in ("pin", "hold", "save", "delete") for stride in (3, 23)], daily=[("pin", 23)]
    ),
)
def test_what_others_do_meanwhile_is_respected(what: str, stride: int) -> None:
    at_hold: list[int] = []

    def act(store: Store) -> None:
        thread = store.thread("b")
        if what == "pin":
            with suppress(NotFoundError):  # it is gone already
                thread.pin("0")
        elif what == "hold":
            thread.hold(reason="case 1")
            at_hold.append(len(thread.log()))
        elif what == "save":
            thread.put({"n": 9}, id="9")
        else:
            thread.delete()

    def scenario(moment: Moment) -> None:
        at_hold.clear()
        on = InterferingBackend()
        store = store_on(on)
        for thread in "abc":
            for n in range(3):
                store.thread(thread).put({"n": n}, id=str(n))
        other = store_on(on)
        with moment.interfere(on, lambda: act(other)):
            report = store.maintenance.prune(keep_last=1)
        fresh = store_on(on)
        assert [len(fresh.thread(thread).log()) for thread in "ac"] == [1, 1]
        assert {each.thread for each in report.problems} <= {"b"}
        assert fresh.maintenance.verify().findings == []
        if what == "delete" and moment.came:
            assert [each.thread for each in fresh.threads()] == ["a", "c"]
            return
        left = [each.id for each in fresh.thread("b").log().all()]
        assert [fresh.thread("b").get(id).id for id in left] == left
        assert left[0] == ("9" if what == "save" and moment.came else "2")
        assert what != "pin" or ("0" in left) is bool(fresh.thread("b").pins())
        assert not at_hold or len(left) == at_hold[0], "nothing goes once there is a hold"

    at_every_moment(scenario, at_least=1, stride=stride)


# What it costs ----------------------------------------------------------------------------------------------------


def many(on: Backend, count: int = 600) -> Store:
    store = store_on(on)
    with store.transaction() as together:
        for number in range(count):
            together.put(f"t{number:04}", {"n": number})
    return store


def test_threads_that_lose_nothing_are_read_together_and_without_their_states(tmp_path: Path) -> None:
    on = CountingBackend(backend("sqlite", tmp_path))
    store = many(on)
    for rules, reads in (({"keep_within": "1h"}, 1), ({"keep_last": 5}, 12), ({"keep_daily": 1}, 12)):
        on.reset()
        report = store.maintenance.prune(dry_run=True, **rules)
        assert (report.threads, report.kept, report.dropped, report.next) == ([], 0, 0, None)
        assert on.reads <= reads, rules
        assert on.rows_read.keys() <= {"lines", "steps", "refs", "branches"}
    on.reset()
    assert (
        len(store.maintenance.prune([f"t{number:04}" for number in range(20)], dry_run=True, keep_last=5).threads) == 20
    )
    assert on.reads > 20, "the control: threads that are named are looked at one by one"


def test_a_table_that_cannot_be_read_at_once_is_read_thread_by_thread() -> None:
    class Damaged(Wrapper):
        refused = 0

        async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
            if any(isinstance(each, Scan) and each.space is STEPS and len(each.prefix) == 1 for each in queries):
                self.refused += 1
                raise CorruptError("a page is damaged")
            return await self.inner.read(queries)

    on = Damaged(WithoutTimes(MemoryBackend()))
    store = six(on)
    assert store.maintenance.prune(keep_last=2).dropped == 12
    assert lengths(store) == [2] * 6
    assert on.refused == 1


def test_parts_of_what_is_named_or_has_to_fit_are_refused() -> None:
    store = six(MemoryBackend())
    for wrong in ({"threads": "a", "limit": 1}, {"max_bytes": 1000, "after": "a"}, {"limit": 0}):
        with pytest.raises(InvalidError):
            store.maintenance.prune(**{"keep_last": 2, **wrong})  # type: ignore[arg-type]


def test_tenants_and_a_query_are_kept_apart_in_parts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    for tenant in ("one", "two"):
        with holdfast.open(url, tenant=tenant) as store:
            for thread in ("a", "a␟n", "b", "c"):
                for n in range(3):
                    store.thread(thread).put({"n": n}, metadata={"user": "u1" if thread in "ab" else "u2"})
    with holdfast.open(url, tenant="one") as store:
        seen, after = list[str](), ""
        while True:
            report = store.maintenance.prune(where="meta.user=u1", keep_last=1, after=after, limit=1)
            seen += [each.thread for each in report.threads]
            if report.next is None:
                break
            after = report.next
        assert seen == ["a", "a␟n", "b"], "namespaces go with their thread"
        assert len(store.thread("c").log()) == 3
    with holdfast.open(url, tenant="two") as store:
        assert [len(store.thread(thread).log()) for thread in ("a", "a␟n", "b", "c")] == [3] * 4
