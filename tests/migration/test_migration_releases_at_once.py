"""An old and a new release of a program write at once, beside a bulk migration, a legal hold and retention by days,
weeks and months. A plain model says what must be there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import DeniedError
from holdfast.maintenance.migration import bulk, plan
from holdfast.schemas import SchemaSet
from tests.engine.lines import store_on
from tests.migration.versions import ONE, TWO, TWO_ONE, first, second
from tests.support.nightly import by_day

HOUR = 3_600_000_000_000
THREADS = [f"chat-{number:02}" for number in range(20)]
WRITTEN = THREADS[::4]
HELD = THREADS[0]
SAVES = 60
KEPT = {"keep_daily": 3, "keep_weekly": 2, "keep_monthly": 2}


class SharedClock:
    """Goes on by some hours whenever a writer says so."""

    def __init__(self) -> None:
        self.now = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000_000
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.now += 1000
            return self.now

    def go_on(self, hours: int) -> None:
        with self._lock:
            self.now += hours * HOUR


class Model:
    """The numbers that were saved and acknowledged, by thread and id."""

    def __init__(self) -> None:
        self.saved: dict[str, dict[str, int]] = {name: {} for name in THREADS}
        self._lock = threading.Lock()

    def add(self, thread: str, id: str, number: int) -> None:
        with self._lock:
            self.saved[thread][id] = number


def number_in(state: dict[str, object]) -> int:
    """Return the number of a state, of whichever version."""
    return int(str(state["count"]))


def kept_by_periods(steps: list[tuple[str, int]]) -> set[str]:
    """Return the ids that the rules keep, of steps with their times, the oldest first."""
    kept = {steps[-1][0]}
    periods: dict[str, Callable[[datetime], object]] = {
        "keep_daily": lambda time: time.date(),
        "keep_weekly": lambda time: time.isocalendar()[:2],
        "keep_monthly": lambda time: (time.year, time.month),
    }
    for rule, period in periods.items():
        last = {period(datetime.fromtimestamp(time / 1e9, UTC)): id for id, time in steps}
        kept |= set([*last.values()][-KEPT[rule] :])
    return kept


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    clock, opened = SharedClock(), list[Store]()

    def open_one() -> Store:
        backend = run(SQLiteBackend.open(f"sqlite:///{tmp_path}/a.db"))
        opened.append(store_on(backend, fold_every=4, clock=clock))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(by_day(8, 2)))
def test_nothing_that_was_acknowledged_is_lost(
    open_store: Callable[[], Store], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 2)
    monkeypatch.setattr(plan, "PAGE", 2)
    model, chance = Model(), Random(seed)
    before_both, old, new, owner = open_store(), open_store(), open_store(), open_store()
    clock = owner._engine.context.clock
    assert isinstance(clock, SharedClock)
    before_both.schemas.attach(ONE, threads="chat-*")
    for number, name in enumerate(THREADS):
        model.add(name, before_both.thread(name).put(first(number)).id, number)
    owner.thread(HELD).hold(reason="a lawsuit")
    failures: list[BaseException] = []
    migrated = threading.Event()

    def write(store: Store, make: Callable[[int], dict[str, object]], start: int, random: Random) -> None:
        number = start
        while not migrated.is_set() or number < start + SAVES:
            number += 1
            name = random.choice(WRITTEN)
            model.add(name, store.thread(name).put(make(number)).id, number)
            clock.go_on(random.randrange(12))

    def guarded(work: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return call

    def migrate(schemas: SchemaSet) -> None:
        try:
            owner.schemas.up(schemas)
        finally:
            migrated.set()

    old.schemas.attach(TWO, threads="chat-*")
    new.schemas.attach(TWO_ONE, threads="chat-*")
    works = [
        lambda: write(old, second, 1000, Random(chance.random())),
        lambda: write(new, lambda number: {**second(number), "mood": "fine"}, 2000, Random(chance.random())),
        lambda: migrate(TWO_ONE),
    ]
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures, failures
    assert owner.schemas.up(TWO_ONE).complete
    check_contents(owner, model)
    with pytest.raises(DeniedError):
        owner.thread(HELD).delete()
    before = {name: [(each.id, to_ns(each.time)) for each in owner.thread(name).log().all()][::-1] for name in THREADS}
    pruned = owner.maintenance.prune(**KEPT)  # type: ignore[arg-type]
    assert [each.thread for each in pruned.problems] == [HELD]
    for name in THREADS:
        left = {each.id for each in owner.thread(name).log().all()}
        expected = {id for id, _ in before[name]} if name == HELD else kept_by_periods(before[name])
        assert left == expected, name
        assert owner.thread(name).get().id == before[name][-1][0]
    assert owner.maintenance.verify(level="decode").ok
    assert len(before[HELD]) > len(kept_by_periods(before[HELD])), "the hold kept nothing"


def to_ns(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000) * 1000


def check_contents(store: Store, model: Model) -> None:
    """Compare all that is stored with the model: each step by its id, and the last one by its number."""
    for name in THREADS:
        for id, number in model.saved[name].items():
            assert number_in(dict(store.thread(name).get(at=id).state)) == number, (name, id)
        last = max(model.saved[name])
        head = store.thread(name).get()
        assert number_in(dict(head.state)) == model.saved[name][last], name
        assert store.thread(name).find().schema in ("chat@2.0.0", "chat@2.1.0")
