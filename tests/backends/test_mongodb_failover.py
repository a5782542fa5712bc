"""The primary of a replica set is killed again and again while several threads save, and others are elected."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import PyMongoError

import holdfast
from tests import servers
from tests.servers.mongod import MongoReplicaSet
from tests.servers.pace import hurried
from tests.servers.rigs import commit_markers
from tests.servers.writers import Writers
from tests.support.kills import MOMENTS, Moment

PATIENCE = 100.0
"""For how many seconds a store, or the test, waits on a slow machine for what takes a few."""

STRIKES = 5
"""How often it is tried to strike at one moment: a primary may be voted out by itself, on a busy machine."""

LOOKS = 50
"""So often in a row a primary is seen to be ahead of the others."""

pytestmark = pytest.mark.nightly


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to this: {what}"
        time.sleep(0.01)


def find_primary(replica_set: MongoReplicaSet) -> int:
    found: list[int] = []

    def look() -> bool:
        try:
            found.append(replica_set.primary())
        except Exception:  # it was asked while it was voted out
            return False
        return True

    wait_until(look, "a primary")
    return found[-1]


def kill_at(replica_set: MongoReplicaSet, marker: bytes, moment: Moment) -> int:
    """Kill the primary at a moment of a commit. Returns which member it was."""
    for _ in range(STRIKES):
        primary = find_primary(replica_set)
        died = threading.Event()

        def kill(number: int = primary, told: threading.Event = died) -> None:
            replica_set.members[number].kill()
            told.set()

        replica_set.proxies[primary].strike(marker, moment, kill)
        if died.wait(PATIENCE / STRIKES):
            return primary
        replica_set.proxies[primary].mend()
    raise AssertionError(f"no primary could be killed {moment} {marker!r}")


def undone(replica_set: MongoReplicaSet, member: int) -> int:
    """How often a member has undone what it committed, as far as that tells one time from the next."""
    with replica_set.members[member].client() as client:
        return int(client.admin.command("replSetGetRBID")["rbid"])


def has_undone(replica_set: MongoReplicaSet, member: int, before: int) -> bool:
    try:
        return undone(replica_set, member) > before
    except PyMongoError:  # it does so just now
        return False


def kill_alone(replica_set: MongoReplicaSet) -> tuple[int, int]:
    """Kill the primary when it has committed what no other member has: it has to be undone. Returns which member it
    was, and how often it had to before."""
    for _ in range(STRIKES):
        primary = find_primary(replica_set)
        followers = [number for number in range(len(replica_set.members)) if number != primary]
        try:
            for number in followers:
                replica_set.fail(number, "stopReplProducer", "alwaysOn")
            with replica_set.members[primary].client() as client:
                deadline = time.monotonic() + PATIENCE / STRIKES
                looks = 0  # the others may have fetched some of it before
                while time.monotonic() < deadline and looks < LOOKS:
                    looks = looks + 1 if _is_ahead(client.admin) else 0
                    time.sleep(0.01)
            if looks == LOOKS:
                before = undone(replica_set, primary)
                replica_set.members[primary].kill()
                return primary, before
        finally:
            for number in followers:
                replica_set.fail(number, "stopReplProducer", "off")
    raise AssertionError("no primary was ahead of the others")


def _is_ahead(admin: Any) -> bool:
    """Whether a primary has a commit of a store on its disk that no majority has."""
    times = admin.command("replSetGetStatus")["optimes"]
    durable, majority = (times[name]["ts"] for name in ("durableOpTime", "lastCommittedOpTime"))
    newest = admin.client.local["oplog.rs"].find_one({"ts": durable})
    return bool(durable > majority and newest is not None and newest["ns"].endswith(".lines"))


def test_the_primary_is_killed_at_each_moment_of_a_commit() -> None:
    moments = [(name, moment) for name in ("rows", "commit") for moment in MOMENTS]
    struck: Counter[str] = Counter()
    with servers.mongodb_replica_set() as replica_set:
        url = replica_set.fresh()
        with holdfast.open(url, timeout=PATIENCE) as store:
            writers = Writers(store)
            markers = dict(zip(("rows", "commit"), commit_markers("mongodb", store), strict=True))
            for name, moment in moments:
                with writers.at_work():
                    killed = kill_at(replica_set, markers[name], moment)
                    struck[f"{moment} {name}"] += 1
                    assert find_primary(replica_set) != killed
                # The two others are a majority. Three have to be there again before the next one is killed.
                replica_set.members[killed].restart()
            with writers.at_work():
                alone, before = kill_alone(replica_set)
                replica_set.members[alone].restart()
                wait_until(
                    lambda: has_undone(replica_set, alone, before),
                    "the primary that was alone undoes what it committed",
                )
            assert writers.failed == {}
            with hurried(store, 1.5), writers.at_work():
                killed = kill_at(replica_set, markers["commit"], "during")
                left = find_primary(replica_set)
                replica_set.members[left].kill()  # one of three elects nobody
                writers.wait_for_failures(1)
                for number in (killed, left):
                    replica_set.members[number].restart()
            failed = len(writers.failed)
            with writers.at_work():
                pass
            assert len(writers.failed) == failed
            assert struck == {f"{moment} {name}": 1 for name, moment in moments}
            writers.check(url)
