"""An object service answers that it is busy, that a condition failed, too late, or not at all."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create
from holdfast.backends.object_store.cloud import CloudBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.errors import OutcomeUnknownError, TransientError
from tests import servers
from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.pace import TooSoon, given_time, hurried
from tests.servers.places import with_options
from tests.servers.writers import Writers
from tests.support.nightly import by_day, check_daily

FAULTS = {
    "busy": Fault(503),
    "busy, and yet done": Fault(503, "after"),
    "refused, and yet done": Fault(412, "after"),
    "broken": Fault(500),
    "cut off": Fault(0),
    "cut off, and yet done": Fault(0, "after"),
}
"""`refused, and yet done` is what a client sees whose first answer was lost, and which asked again by itself."""


@pytest.fixture
def proxy() -> Iterator[tuple[HttpProxy, str]]:
    url, options = servers.s3()
    with HttpProxy(int(options["endpoint"].rpartition(":")[2])) as made:
        yield made, with_options(url, {**options, "endpoint": made.endpoint})


USUAL = ("cut off, and yet done",)
"""The faults that are tried in every run; the others are tried nightly."""
check_daily(FAULTS, USUAL)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=() if name in USUAL else pytest.mark.nightly)
        for name, fault in FAULTS.items()
    ],
)
def test_some_answers_are_wrong(proxy: tuple[HttpProxy, str], fault: Fault) -> None:
    way, url = proxy
    with holdfast.open(url) as store:
        writers = Writers(store, count=3)
        numbers = itertools.count()
        way.rule = lambda method, path: fault if method == "PUT" and next(numbers) % 3 == 1 else None
        with writers.at_work(by_day(5, 2)):
            pass
        assert way.faults > 3
        assert writers.failed == {}
        way.rule = lambda method, path: None
        writers.check(url)


def test_reads_meet_with_errors(proxy: tuple[HttpProxy, str]) -> None:
    way, url = proxy
    with holdfast.open(url) as store:
        for number in range(10):
            store.thread("t").put({"number": number})
    numbers = itertools.count()
    way.rule = lambda method, path: Fault(503) if method == "GET" and next(numbers) % 3 == 0 else None
    with holdfast.open(url) as store:
        assert len(store.thread("t").log()) == 10
        assert store.thread("t").get().state == {"number": 9}
    assert way.faults


@pytest.mark.nightly
@pytest.mark.parametrize("method", [pytest.param("GET", marks=pytest.mark.nightly), "PUT"])
def test_answers_come_too_late(proxy: tuple[HttpProxy, str], method: str) -> None:
    way, url = proxy
    with holdfast.open(url) as store:
        writers = Writers(store, count=2)
        with writers.at_work():
            pass
        late = threading.Event()
        way.rule = lambda asked, path: Fault(503, "after", until=late) if asked == method else None
        begun = time.monotonic()
        with hurried(store, 1.5), pytest.raises(TransientError):
            store.thread("writer 0").get("no such id") if method == "GET" else store.thread("other").put({"a": 1})
        assert time.monotonic() - begun < 25
        late.set()
        way.rule = lambda asked, path: None
        with writers.at_work():
            pass
        assert writers.failed == {}
        writers.check(url)


@pytest.mark.nightly
def test_a_save_that_was_given_up_fails_in_silence(
    proxy: tuple[HttpProxy, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on for a while, behind one that has as much time; nobody waits for its error then."""
    way, url = proxy
    store = run(CloudBackend.open(url))
    numbers = itertools.count()

    def save() -> None:
        run(store.apply([Create(STEPS, step(next(numbers)))]))

    def scenario(seconds: float) -> None:
        way.rule = lambda method, path: None
        save()
        never, faults = threading.Event(), way.faults
        way.rule = lambda method, path: Fault(503, until=never) if method == "PUT" else None
        with hurried(store, seconds), ThreadPoolExecutor(2) as pool:
            first = pool.submit(save)
            while way.faults == faults:
                assert not first.done(), first.exception()
                time.sleep(0.002)
            errors = [type(each.exception()) for each in (first, pool.submit(save))]
            assert set(errors) <= {TransientError, OutcomeUnknownError}
            pending = len(store._opened().pending)
            way.rule = lambda method, path: Fault(503) if method == "PUT" else None
            never.set()
            run(store.apply([]))  # waits for those before it
        if not pending:
            raise TooSoon("all of them had ended by then")

    given_time(scenario, 1.5)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    run(store.close())
