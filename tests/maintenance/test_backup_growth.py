"""What backups cost does not grow with their number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.maintenance.backup.line_lists import first_to_merge
from holdfast.maintenance.backup.storage import RepositoryStorage
from tests.maintenance.test_backup import contents, files
from tests.support.nightly import mostly_nightly


@pytest.mark.nightly
@pytest.mark.parametrize("count", mostly_nightly([40, 600], daily=[40]))
def test_many_backups_cost_what_changed(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    requests = Counter[str]()

    def counted(method: str) -> None:
        original = getattr(RepositoryStorage, method)

        async def call(self: RepositoryStorage, name: str, *arguments: object) -> object:
            requests[f"{method} {name.partition('/')[0]}"] += 1
            return await original(self, name, *arguments)

        monkeypatch.setattr(RepositoryStorage, method, call)

    for method in ("get", "list_objects", "list_page", "create"):
        counted(method)
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
