"""A repository in a bucket, on bad days: connections are cut, answers are late, conditions are refused."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import OutcomeUnknownError, TransientError
from tests import servers
from tests.backends.test_server_faults_s3 import FAULTS
from tests.maintenance.test_backup import contents, fill
from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.places import with_options
from tests.support.nightly import mostly_nightly


@pytest.fixture
def proxy() -> Iterator[tuple[HttpProxy, str]]:
    url, options = servers.s3()
    with HttpProxy(int(options["endpoint"].rpartition(":")[2])) as made:
        yield made, with_options(f"{url}/backups", {**options, "endpoint": made.endpoint})


@pytest.mark.nightly
@pytest.mark.parametrize("name", mostly_nightly(FAULTS, daily=["refused, and yet done"]))
def test_some_answers_are_wrong(proxy: tuple[HttpProxy, str], name: str, tmp_path: Path) -> None:
    way, url = proxy
    seen, struck, numbers = set[str](), Counter[str](), itertools.count()

    def rule(method: str, path: str) -> Fault | None:
        """Every object meets with the fault once when it is created, and so does every fourth other request."""
        if method == "PUT" and path not in seen:
            seen.add(path)
            struck[path.partition("/backups/")[2].partition("/")[0]] += 1
            return FAULTS[name]
        return FAULTS[name] if FAULTS[name].status != 412 and next(numbers) % 4 == 1 else None

    way.rule = rule
    with holdfast.open(tmp_path / "agents.db") as store:
        fill(store)
        store.thread("garbage").put({"text": os.urandom(100_000).hex()})
        backups = store.backups(url)
        first = backups.create()
        store.thread("garbage").delete()
        store.thread("chat").put({"n": "later"})
        second = backups.create()
        assert (first.number, second.number) == (1, 2), "no backup is made twice"
        with holdfast.open("memory://") as new:
            new.backups(url).restore()
            assert contents(new) == contents(store)
        assert backups.prune(keep_last=1, grace=0, max_unused=0.2).repacked == 1
        assert backups.prune(keep_last=1, grace=0).deleted
        assert [each.number for each in backups.list()] == [2]
        assert backups.verify(level="hashes").ok
        assert struck.keys() >= {"locks", "packs", "backups", "removed", "repacks", "sweeps"}


@pytest.mark.nightly
def test_answers_are_late(proxy: tuple[HttpProxy, str]) -> None:
    way, url = proxy

    def late(method: str, path: str) -> None:
        time.sleep(0.2)

    way.rule = late
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"n": 1})
        status = store.backups(url).follow(stop=lambda: True)
        assert status.backups == 1
        with holdfast.open("memory://") as new:
            new.backups(url).restore()
            assert new.thread("chat").get().state == {"n": 1}


@pytest.mark.nightly
def test_a_service_that_is_gone_is_an_error_and_harms_nothing(
    proxy: tuple[HttpProxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    way, url = proxy
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"n": 1})
        backups = store.backups(url)
        backups.create()
        store.thread("chat").put({"n": 2})
        way.rule = lambda method, path: Fault(503) if method == "PUT" and "/packs/" in path else None
        monkeypatch.setattr("holdfast.maintenance.backup.storage._TIMEOUT", 1.0)
        with pytest.raises((TransientError, OutcomeUnknownError)):
            store.backups(with_options(url, {"timeout": "1"})).create()
        way.rule = lambda method, path: None
        assert backups.verify().ok
        assert [lock.number for lock in backups.verify().locks] == [2]
        assert backups.create().number == 2
        assert not backups.verify().locks


@pytest.mark.nightly
def test_making_backups_needs_no_right_to_delete(proxy: tuple[HttpProxy, str]) -> None:
    way, url = proxy
    way.rule = lambda method, path: Fault(403) if method in ("DELETE", "POST") else None
    with holdfast.open("memory://") as store:
        backups = store.backups(url)
        for number in range(3):
            store.thread("chat").put({"n": number})
            backups.create()
        store.thread("chat").put({"n": 3})
        assert backups.follow(stop=lambda: True).backups == 1
        assert backups.verify().ok
        assert not way.faults, "nothing was even asked to be deleted"
        with pytest.raises(holdfast.errors.HoldfastError):
            backups.prune(keep_last=1)
