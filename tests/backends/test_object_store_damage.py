"""Objects that are lost or damaged: no old state is returned, no history is mixed, and nothing is lost silently."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create, Put, Scan
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import ENTRY, LogEntry, decode
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import CorruptError, DeniedError
from tests.backends.shard_kit import PLACES, Double, InMemory, Process
from tests.damaged import flipped
from tests.support.nightly import by_day, mostly_nightly

NUMBERS = itertools.count()
Objects = dict[str, tuple[bytes, float]]

SHARD = object_names.folder(("", "a"))


def opened(url: str) -> Store:
    return Store(Engine(EngineContext(run(Double.open(url)))), tenant="")


@pytest.fixture
def place() -> Iterator[str]:
    url = f"blobs://damage-{next(NUMBERS)}"
    yield url
    PLACES.pop(url, None)


def build(url: str, count: int, tidied: bool = False) -> Objects:
    """Save a thread so many times, every fifth time with another thread, and return the objects of the store."""
    with opened(url) as store:
        for number in range(count):
            if number % 5 == 4:
                with store.transaction() as both:
                    both.put("a", {"n": number})
                    both.put("b", {"n": number})
            else:
                store.thread("a").put({"n": number})
        if tidied:
            tidy(store)
    return dict(PLACES[url])


def tidy(store: Store) -> None:
    backend = store._engine.context.stored
    assert isinstance(backend, Double)
    for _ in range(3):
        run(backend._run_once(lambda: backend._opened().garbage_collector.tidy(grace=-1.0)))


def lost(objects: Objects, name: str) -> None:
    del objects[name]


def damaged(objects: Objects, name: str) -> None:
    data, at = objects[name]
    objects[name] = (flipped(data, 60), at)


def emptied(objects: Objects, name: str) -> None:
    objects[name] = (b"", objects[name][1])


def readable(store: Store) -> list[int] | None:
    """The saved numbers, the oldest first, or None if the thread cannot be read."""
    try:
        steps = store.thread("a").log().all()
        return [store.thread("a").get(at=step.id).state["n"] for step in steps][::-1]
    except CorruptError:
        return None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("count", "tidied", "harm"),
    mostly_nightly(
        list(itertools.product((7, 35, 70), (False, True), (lost, damaged, emptied))),
        daily=[(7, False, damaged), (35, True, lost)],
    ),
)
def test_no_object_is_missed_silently(
    place: str, count: int, tidied: bool, harm: Callable[[Objects, str], None]
) -> None:
    whole = build(place, count, tidied)
    noticed = 0
    names = [name for name in whole if name.startswith(f"{SHARD}/")]
    last = max(names, key=lambda name: object_names.order_of(name, SHARD))
    newest = {last, object_names.transaction(decode(ENTRY, LogEntry, whole[last][0], last).transaction)}
    stride = by_day(1, 2)
    for name in (names + [name for name in whole if name.startswith("transactions/")])[::stride]:
        objects = PLACES[place] = dict(whole)
        harm(objects, name)
        with opened(place) as store:
            found = readable(store)
            if name in newest and harm is lost:
                continue  # nothing that is left shows that it was ever there
            if found is not None:
                assert found == list(range(count)), f"an old state without {name}"
                continue
            noticed += 1
            with pytest.raises(CorruptError):
                store.thread("a").put({"n": -1})
        with opened(place) as store:
            report = store.maintenance.repair()
            missing = [each for each in report.lost if each.thread == "a"]
            left = readable(store)
            left = [] if left is None else left
            assert left == sorted(left)
            assert len(left) + len(missing) == count, f"checkpoints disappeared with {name}: {missing}"
            assert store.maintenance.verify().findings == []
    assert noticed >= 4 // stride


@pytest.mark.parametrize("lost_position", [1, 2])
def test_who_writes_into_a_gap_mixes_no_histories(lost_position: int) -> None:
    """A process that has read the log up to the gap cannot know of it; all others do."""

    async def main() -> None:
        blobs = InMemory()
        reader, writer = Process(blobs), Process(blobs)
        for key in range(4):
            await writer.apply(Put(STEPS, step(key)))
            if key < lost_position:
                await reader.read(Scan(STEPS, ("tenant", "line")))
        (name,) = [name for name in blobs.objects if name.endswith(f"/{lost_position:02}")]
        del blobs.objects[name]
        assert await reader.apply(Create(STEPS, step(4))) is None
        for process in (Process(blobs), reader, reader):
            with pytest.raises(CorruptError, match="lost and replaced"):
                await process.read(Scan(STEPS, ("tenant", "line")))
            with pytest.raises(CorruptError, match="lost and replaced"):
                await process.apply(Create(STEPS, step(5)))

    asyncio.run(main())


@pytest.mark.parametrize("object_name", ["birth", "03"])
def test_a_damaged_thread_does_not_hide_the_others_and_is_not_hidden(
    place: str, object_name: str, tmp_path: Path
) -> None:
    objects = build(place, 7)
    (name,) = [name for name in objects if name.startswith(SHARD) and name.endswith(f"/{object_name}")]
    with opened(place) as store:
        assert not store.status().damaged
    damaged(PLACES[place], name)
    with opened(place) as store:
        with pytest.raises(CorruptError, match=f"/{object_name}"):
            store.thread("a").get()
        assert store.thread("b").get().state == {"n": 4}
        assert [(each.thread, each.damaged) for each in store.threads().all()] == [("a", True), ("b", False)]
        latest = store.threads(order="updated")
        assert sorted((each.thread, each.damaged) for each in latest) == [("a", True), ("b", False)]
        assert (store.status().threads, store.status().damaged) == (2, 1)
        repository = store.backups(f"{tmp_path}/repository")
        assert repository.create().damaged == ("a",)
        found = store.search("thread:b")
        assert [match.thread for match in found] == ["b"]
        everywhere = store.search("kind:save")
        assert [match.thread for match in everywhere] == ["b"]
        assert everywhere.unreadable == 1
        pruned = store.maintenance.prune(keep_last=1)
        assert [each.thread for each in pruned.problems] == ["a"]
        with pytest.raises(CorruptError, match="'a'.*All others were copied"):
            store.maintenance.copy_to(f"{tmp_path}/all.db")
        with pytest.raises(CorruptError, match="'a'.*All others were copied"):
            store.maintenance.export(f"{tmp_path}/all.hfx")
        assert store.maintenance.copy_to(f"{tmp_path}/b.db", threads=["b"]).threads == 1
        assert store.maintenance.export(f"{tmp_path}/b.hfx", threads=["b"]).threads == 1
        report = store.maintenance.verify()
        assert {each.thread for each in report.findings} == {"", "a"}
        store.thread("b").put({"n": 5})
        assert repository.create().damaged == ("a",)
    with holdfast.open(f"{tmp_path}/all.db") as copy:
        assert [each.thread for each in copy.threads().all()] == ["b"]


@pytest.mark.parametrize("count", [7, 70])
def test_a_thread_without_its_first_object_can_be_deleted_and_created_again(place: str, count: int) -> None:
    build(place, count)
    damaged(PLACES[place], object_names.first_object(SHARD))
    with opened(place) as store:
        (deleted,) = store.maintenance.delete(["a"], dry_run=True)
        assert deleted.damaged
        assert store.maintenance.delete(["a"]) == [deleted]
        assert [(each.thread, each.damaged) for each in store.threads().all()] == [("b", False)]
        assert store.maintenance.verify().ok
        assert not store.thread("a").delete()
        assert store.thread("a").put({"n": 1}).step == 0
    assert not any(name.startswith("damaged/") for name in PLACES[place])


def test_a_damaged_thread_that_is_or_may_be_held_is_not_deleted(place: str) -> None:
    build(place, 7)
    with opened(place) as store:
        store.thread("a").hold(reason="a lawsuit")
    whole = dict(PLACES[place])
    damaged(PLACES[place], object_names.first_object(SHARD))
    with opened(place) as store, pytest.raises(DeniedError, match="a lawsuit"):
        store.thread("a").delete()
    PLACES[place] = dict(whole)
    (hold,) = [name for name in whole if name.startswith(SHARD) and name.endswith("/07")]
    damaged(PLACES[place], hold)
    with opened(place) as store, pytest.raises(CorruptError, match="/07"):
        store.thread("a").delete()


def test_a_thread_with_a_long_name_and_a_damaged_object_is_listed(place: str) -> None:
    name = "x" * 400
    with opened(place) as store:
        store.thread("b").put({"n": 0})
        for number in range(3):
            store.thread(name).put({"n": number})
    shard = object_names.folder(("", name))
    damaged(PLACES[place], object_names.first_object(shard))
    with opened(place) as store:
        assert [(each.thread, each.damaged) for each in store.threads().all()] == [("b", False), (name, True)]
