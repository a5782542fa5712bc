"""Names that are hidden: of threads, scopes, agents, sessions, topics, tags and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Backend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConfigError
from holdfast.store.store import Store
from tests.security.encryption.planted import contents_of, find_planted, rows_of
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

HIDING = Encryption(LocalKeys(b"n" * 32), hide_names=True)

KINDS = ("thread", "namespace", "user", "session", "agent", "tag", "label", "topic", "artifact", "key")


def names_of(count: int) -> dict[str, list[str]]:
    return {kind: [f"planted{kind}x{number:03}q" for number in range(count)] for kind in KINDS}


def plant_names(store: Store, names: dict[str, list[str]]) -> None:
    for number, (name, space) in enumerate(zip(names["thread"], names["namespace"], strict=True)):
        store.put(name, {"n": number})
        store.checkpoints.put(name, {"n": number}, namespace=space) if hasattr(store, "checkpoints") else None


def open_raw(url: str) -> Backend:
    return run(backend_for(url).open(url))


@pytest.mark.parametrize("kind", mostly_nightly(["sqlite", "postgres", "file"], daily=["sqlite"]))
def test_names_cannot_be_found(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url, encryption=HIDING) as store:
        for number in range(12):
            store.put(f"plantedthread{number}", {"n": number})
        store.state(user="plantedalice", session="plantedsession")["plantedkey"] = 1
        assert [each.thread for each in store.threads()] == sorted(f"plantedthread{number}" for number in range(12))
    with holdfast.open(url, encryption=HIDING) as store:
        page = store.threads(limit=5)
        found = [each.thread for each in page.all()]
        assert found == sorted(f"plantedthread{number}" for number in range(12))
        assert store.get("plantedthread3").state == {"n": 3}
        assert store.state(user="plantedalice", session="plantedsession")["plantedkey"] == 1
        store.delete("plantedthread3")
        assert len(list(store.threads().all())) == 11
        assert store.maintenance.verify(level="decode").findings == []
    raw = open_raw(url)
    for data in (*rows_of(raw), *contents_of(tmp_path)):
        assert b"planted" not in data, data[:200]
    run(raw.close())
