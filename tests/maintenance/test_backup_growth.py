"""What backups cost does not grow with their number, nor that of one after no change with the number of threads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

import holdfast
from benchmarks.bulk_threads import fill, thread_of
from holdfast.maintenance.backup.line_lists import first_to_merge
from holdfast.maintenance.backup.reused_packs import CHECKED_BYTES
from holdfast.maintenance.backup.storage import RepositoryStorage
from tests.maintenance.test_backup import contents, files
from tests.support.nightly import mostly_nightly
from tests.support.sqlite.statements import counted_statements


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests to repositories, and the bytes that they return."""
    found = Counter[str]()

    def counted(method: str) -> None:
        original = getattr(RepositoryStorage, method)

        async def call(self: RepositoryStorage, name: str, *arguments: object) -> object:
            answer = await original(self, name, *arguments)
            found[f"{method} {name.partition('/')[0]}"] += 1
            found["bytes"] += len(answer) if isinstance(answer, bytes) else 0
            return answer

        monkeypatch.setattr(RepositoryStorage, method, call)

    for method in ("get", "list_objects", "list_page", "create"):
        counted(method)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("count", mostly_nightly([40, 600], daily=[40]))
def test_many_backups_cost_what_changed(count: int, repository: Path, requests: Counter[str]) -> None:
    with holdfast.open("memory://") as store:
        for number in range(30):
            store.thread(f"thread-{number}").put({"n": 0})
        backups = store.backups(repository)
        made = [backups.create()]
        for number in range(1, count):
            store.thread(f"thread-{number % 30}").put({"n": number})
            requests.clear()
            made.append(backups.create())
            assert requests["create packs"] == 1
            assert requests["list_objects backups"] == 0, "all manifests are not listed"
            assert requests["get backups"] < 5
        # Now and then the whole list is written, with a few chunks of each of 30 lines. If chunks were never merged, it
        # would have 20 of each after 600 backups, and 80 KB.
        assert max(each.added for each in made[count // 2 :]) < 16_000
        # Of these, some 3,500 name the packs that the backup needs, which the merging of chunks limits.
        assert sum(each.added for each in made[count // 2 :]) / (count - count // 2) < 7000
        # What many others need, and that is nearly all of it here, is stored twice.
        assert sum(len(data) for data in files(repository).values()) < 20_000 + count * 14_000
        requests.clear()
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(made[count // 2].time, threads=["thread-1"])
        assert requests["get backups"] < 2 * count.bit_length() + 12, "few manifests are read to find a time"
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert contents(new) == contents(store)
        assert backups.verify().ok


class _Made(NamedTuple):
    """What a backup asked for: of the store, and of the repository."""

    statements: int
    steps: int
    requests: int
    read: int


@pytest.mark.parametrize(("few", "many"), mostly_nightly([(40, 400), (1000, 20_000)], daily=[(40, 400)]))
def test_a_backup_after_no_change_costs_the_same_with_any_number_of_threads(
    few: int, many: int, tmp_path: Path, requests: Counter[str]
) -> None:
    found: dict[int, list[_Made]] = {}
    for threads in (few, many):
        path = tmp_path / f"{threads}.db"
        with holdfast.open(path) as store:
            fill(store, threads)
        found[threads] = []
        for changes in (0, 0, 0, 1, 0):  # the first has everything
            with counted_statements() as statements, holdfast.open(path) as store:
                if changes:
                    store.thread(thread_of(7)).put({"n": 1})
                statements.reset()
                requests.clear()
                made = store.backups(tmp_path / f"repository {threads}").create()
                assert made.lines == threads
                read = requests.pop("bytes")
                found[threads].append(_Made(statements.count, statements.steps, requests.total(), read))
    first, *later = found[many]
    assert first.steps > 50 * many, "what is counted grows with what is read"
    for few_threads, many_threads in zip(found[few][1:], later, strict=True):
        assert many_threads.statements <= few_threads.statements + 4
        # The feed keeps 4,096 changes, and looks for the oldest of them whenever something is written.
        assert many_threads.steps <= few_threads.steps + 2 * min(many, 4096) + 200
        assert many_threads.requests <= few_threads.requests + 4
        assert many_threads.read <= few_threads.read + CHECKED_BYTES


def test_layers_are_few_and_rarely_written_again() -> None:
    random = Random(1)
    for lines in (1, 10, 5000):
        layers, written, changed = [lines], 0, 0
        for _ in range(2000):
            layers.append(random.choice((1, 1, 1, 2, 30)))
            changed += layers[-1]
            start = first_to_merge(layers)
            merged = min(sum(layers[start:]), lines)
            written += merged
            layers[start:] = [merged]
            assert len(layers) < 30
        assert written < 9 * changed
