"""Servers die, stand still and lose connections while several threads save: nothing is lost, and nothing made twice.

In every run on the stores whose servers start quickly; nightly on all of them. Those of MongoDB and S3 have tests of
their own that run always: `test_mongodb_store.py` and `test_server_faults_s3.py`.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

import holdfast
from holdfast.errors import TransientError, UnavailableError
from tests import servers
from tests.servers.pace import hurried
from tests.servers.places import EMULATED, REMOTE
from tests.servers.rigs import Rig, rig
from tests.servers.writers import Writers
from tests.support.kills import MOMENTS, Moment
from tests.support.nightly import check_daily, mostly_nightly

PATIENCE = 150.0
"""For how many seconds a store waits for a server that is coming back, on a slow machine."""

IN_TIME = 25.0
"""By when a caller who waits for 1.5 seconds at most has an answer, there."""


def on(*usual: str, kinds: Sequence[str] = (*REMOTE, *EMULATED)) -> pytest.MarkDecorator:
    """Run a test on these kinds of store in every run, and nightly on all."""
    check_daily(kinds, usual)
    marks = {kind: () if kind in usual else (pytest.mark.nightly,) for kind in kinds}
    return pytest.mark.parametrize(
        "shared_rig", [pytest.param(kind, marks=marks[kind]) for kind in kinds], indirect=True, scope="module"
    )


@pytest.fixture(scope="module")
def shared_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param) as made:
        yield made


@pytest.fixture
def place(shared_rig: Rig) -> Iterator[Rig]:
    """Put in order again after each test."""
    yield shared_rig
    shared_rig.proxy.mend()


@on("postgres")
def test_the_server_dies_in_the_middle_of_commits(place: Rig) -> None:
    url = place.fresh()
    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store)
        for _ in range(2):
            with writers.at_work():
                place.kill()
                time.sleep(0.1)
                place.server.restart()
        assert writers.failed == {}
        writers.check(url)


@pytest.mark.nightly
@on("pgbouncer", "s3", kinds=["pgbouncer", "s3"])
def test_what_clients_talk_to_is_killed_at_each_moment_of_a_commit(place: Rig) -> None:
    """A pooler or a service: before a commit arrives, while it is made, and when the answer is on its way."""
    url = place.fresh()
    rounds = {"pgbouncer": 5, "s3": 2}[place.kind]
    struck: Counter[Moment] = Counter()

    def kill_at(moment: Moment) -> None:
        died = threading.Event()

        def kill() -> None:
            place.front.kill()
            died.set()

        place.proxy.strike(marker, moment, kill)
        assert died.wait(PATIENCE), f"nothing was killed {moment} a commit"
        struck[moment] += 1

    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store)
        (marker,) = place.commits(store)
        for moment in rounds * MOMENTS:
            with writers.at_work():
                kill_at(moment)
                place.front.restart()
        assert writers.failed == {}
        for moment in MOMENTS:  # and it does not come back in time
            with hurried(store, 1.5), writers.at_work():
                failed = len(writers.failed)
                kill_at(moment)
                writers.wait_for_failures(failed + 1)
                place.front.restart()
        failed = len(writers.failed)
        with writers.at_work():
            pass
        assert len(writers.failed) == failed
        assert struck == dict.fromkeys(MOMENTS, rounds + 1)
        writers.check(url)


@on("postgres", "redis")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_is_cut_off(place: Rig, when: str) -> None:
    """The server got it or not: the client cannot tell, and has to find out."""
    url = place.fresh()
    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store)
        times = 0
        for marker in place.commits(store):
            for _ in range(2):
                with writers.at_work():
                    cut = place.proxy.cut_before if when == "before" else place.proxy.cut_after
                    cut(marker, times=2)
                    times += 2
                    place.proxy.wait_for_cuts(times)
        assert writers.failed == {}
        writers.check(url)


@pytest.mark.nightly
@on("postgres", "redis")
def test_connections_are_cut_and_refused(place: Rig) -> None:
    url = place.fresh()
    chance = random.Random(7)
    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store)
        with writers.at_work():
            for _ in range(10):
                time.sleep(chance.uniform(0, 0.05))
                place.proxy.cut()
            place.proxy.refuse()
            place.proxy.cut()
            time.sleep(0.3)
            place.proxy.accept()
        assert writers.failed == {}
        writers.check(url)


def seconds_to_fail(store: holdfast.Store) -> float:
    """How long a read takes that fails. Those before it may have an answer that was on its way."""
    first = time.monotonic()
    while (begun := time.monotonic()) - first < IN_TIME:
        try:
            store.thread("writer 0").get()
        except TransientError:
            return time.monotonic() - begun
    raise AssertionError("reads go on, though the server does not")


@pytest.mark.nightly
@on("redis")
@pytest.mark.parametrize("where", mostly_nightly(["server", "network"], daily=["network"]))
def test_the_server_stands_still_for_too_long(place: Rig, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers are told in time, and the same store goes on as soon as the server does."""
    monkeypatch.setattr("holdfast.backends.mongodb.committer._ABORT_SECONDS", 2 * IN_TIME)
    stop, resume = (
        (place.front.pause, place.front.resume) if where == "server" else (place.proxy.stall, place.proxy.flow)
    )
    url = place.fresh()
    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store)
        with hurried(store, 1.5), writers.at_work():
            failed = len(writers.failed)
            stop()
            try:
                assert seconds_to_fail(store) < IN_TIME
                writers.wait_for_failures(failed + 1)
            finally:
                resume()
        assert writers.slowest < IN_TIME
        failed = len(writers.failed)
        with writers.at_work():
            pass
        assert len(writers.failed) == failed
        writers.check(url)


@pytest.mark.nightly
@on("postgres")
def test_the_way_to_the_server_is_slow(place: Rig) -> None:
    url = place.fresh()
    place.proxy.latency = 0.005
    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store)
        with writers.at_work():
            pass
        assert writers.failed == {}
        writers.check(url)


def test_a_server_that_keeps_nothing_is_restarted() -> None:
    """The data is gone: to go on would make a history without its beginning."""
    with servers.redis_server(appendonly="no") as server:
        url = server.fresh()
        with holdfast.open(url) as store:
            store.thread("t").put({"a": 1})
            server.restart()
            for ask in (
                lambda: store.thread("t").get(),
                lambda: store.thread("t").put({"a": 2}),
                lambda: store.threads(),
            ):
                with pytest.raises(UnavailableError, match="lost"):
                    ask()
        with holdfast.open(url) as store:
            assert list(store.threads()) == []


def at_random(place: Rig, store: holdfast.Store, chance: random.Random) -> None:
    """One thing that goes wrong, and is over soon."""
    proxy = place.proxy
    marker = chance.choice(place.commits(store))
    match chance.choice(["kill", "front", "cut", "before", "after", "refuse", "stall", "pause", "slow"]):
        case "kill":
            place.kill()
            time.sleep(chance.uniform(0, 0.5))
            place.server.restart()
        case "front":
            place.front.restart()
        case "cut":
            proxy.cut()
        case "before":
            proxy.cut_before(marker, chance.randrange(1, 4))
        case "after":
            proxy.cut_after(marker, chance.randrange(1, 4))
        case "refuse":
            proxy.refuse()
            proxy.cut()
            time.sleep(chance.uniform(0, 1))
            proxy.accept()
        case "stall":
            proxy.stall()
            time.sleep(chance.uniform(0, 1))
            proxy.flow()
        case "pause":
            place.server.pause()
            time.sleep(chance.uniform(0, 1))
            place.server.resume()
        case "slow":
            proxy.latency = chance.choice([0, 0.002, 0.01])


@pytest.mark.torture
@pytest.mark.parametrize("shared_rig", [*REMOTE, *EMULATED], indirect=True, scope="module")
@pytest.mark.parametrize("seed", range(5))
def test_anything_at_any_time(place: Rig, seed: int) -> None:
    url = place.fresh()
    chance = random.Random(seed)
    with holdfast.open(url, timeout=PATIENCE) as store:
        writers = Writers(store, count=6)
        for _ in range(20):
            with writers.at_work():
                for _ in range(chance.randrange(1, 4)):
                    at_random(place, store, chance)
        assert writers.failed == {}
        place.proxy.mend()
        writers.check(url)
