"""A migration of all states as a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import ConfigError, ConflictError, InvalidError
from holdfast.maintenance.migration import bulk, plan
from tests.migration.versions import ONE, first, second

COUNT = 12


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(bulk, "PAGE", 4)
    monkeypatch.setattr(plan, "PAGE", 4)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text('[schemas]\nmodule = "tests.migration.versions"\n')
    with holdfast.open("a.db") as opened:
        opened.schemas.attach(ONE, threads="chat-*")
        for number in range(COUNT):
            opened.thread(f"chat-{number:02}").put(first(number))
        opened.schemas.detach(threads="chat-*")
        yield opened


def versions(store: Store) -> list[str]:
    return [store.thread(f"chat-{number:02}").get().schema for number in range(COUNT)]


def test_a_job_that_is_stopped_is_resumed(store: Store) -> None:
    store.jobs.add("upgrade", "migrate", schedule="daily at 03:00", settings={"schema": "chat", "to": "2.0.0"})
    seen: list[tuple[int, int | None, str]] = []
    ended = store.jobs.run(
        "upgrade",
        progress=lambda *each: seen.append(each),
        stop=lambda: versions(store).count("chat@2.0.0") >= 4,
    )
    assert ended.outcome == "stopped"
    assert seen
    some = versions(store).count("chat@2.0.0")
    assert 0 < some < COUNT
    ended = store.jobs.run("upgrade")
    left = f"{COUNT - some} states of chat migrated to 2.0.0"
    assert (ended.outcome, ended.summary.startswith(left)) == ("ok", True), ended.summary
    states = [store.thread(f"chat-{number:02}").get().state for number in range(COUNT)]
    assert [{k: v for k, v in state.items() if k != "__aside__"} for state in states] == [
        second(number) for number in range(COUNT)
    ]
    store.jobs.add("back", "migrate", settings={"schema": "chat", "to": "1.0.0", "down": True})
    assert store.jobs.run("back").ok
    assert [store.thread(f"chat-{number:02}").get().state for number in range(COUNT)] == [
        first(each) for each in range(COUNT)
    ]
    assert [job.last.summary for job in store.jobs.list() if job.last] != ["", ""]


def test_what_does_not_fit_is_an_error_or_a_finding(store: Store) -> None:
    store.thread("chat-03").update({"msgs": [5]})
    settings = {"schema": "chat", "to": "2.0.0"}
    store.jobs.add("upgrade", "migrate", settings=settings)
    with pytest.raises(ConflictError, match="cannot be migrated"):
        store.jobs.run("upgrade")
    assert versions(store) == ["chat@1.0.0"] * COUNT
    store.jobs.add("upgrade", "migrate", settings=settings | {"on_error": "skip"}, replace=True)
    ended = store.jobs.run("upgrade")
    assert (ended.outcome, "1 states do not fit: chat-03" in ended.summary) == ("findings", True)
    assert versions(store).count("chat@2.0.0") == COUNT - 1


def test_settings_are_checked_and_name_no_code(store: Store, tmp_path: Path) -> None:
    for settings in (
        {"module": "os"},
        {"to": "two"},
        {"branches": "some"},
        {"on_error": "ignore"},
        {"down": True},
        {"threads": 5},
        {"schema": "no such name"},
    ):
        with pytest.raises(InvalidError):
            store.jobs.add("upgrade", "migrate", settings=settings)
    store.jobs.add("upgrade", "migrate")
    (tmp_path / "holdfast.toml").unlink()
    with pytest.raises(ConfigError, match="module"):
        store.jobs.run("upgrade")
