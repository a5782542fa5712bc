"""The kinds of jobs that come with this package do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import NODES, STEPS
from holdfast.codec.envelope import wrap
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError, UnsupportedError
from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.jobs.builtin import JobTypes
from tests.damaged import flipped


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", project=True) as opened:
        for thread in ("a", "b", "c/1"):
            for number in range(6):
                opened.thread(thread).put({"text": f"hello {thread} {number}", "n": number})
        yield opened


def done(store: holdfast.Store, kind: str, **settings: Any) -> tuple[str, str]:
    told: list[tuple[int, int | None, str]] = []
    Jobs(store).add("job", kind, settings=settings, replace=True)
    ended = Jobs(store).run("job", progress=lambda *how: told.append(how))
    return ended.outcome, ended.summary


def damage(store: holdfast.Store, thread: str) -> None:
    backend = store._engine.context.stored
    (rows,) = run(backend.read([Scan(STEPS, ("", thread))]))
    run(backend.apply([Put(STEPS, Row(rows[2].key, rows[2].columns, flipped(rows[2].body, -17)))]))
    store._engine.context.cache.clear()


def test_prune_removes_by_its_policy(store: holdfast.Store) -> None:
    outcome, said = done(store, "prune", keep_last=2, prefix="c/")
    assert outcome == "ok"
    assert said.startswith("4 checkpoints removed, 2 kept, ")
    assert [len(store.thread(thread).log()) for thread in ("a", "b", "c/1")] == [6, 6, 2]
    assert done(store, "prune", keep_last=3, threads=["a"], zone="Europe/Berlin")[0] == "ok"
    assert len(store.thread("a").log()) == 3
    assert store.thread("a").get().state["n"] == 5


def test_prune_goes_on_past_threads_that_are_busy_or_damaged(store: holdfast.Store) -> None:
    run(Lease(store._engine.context, Line("", "a"), "rewrite").acquire())
    damage(store, "b")
    outcome, said = done(store, "prune", keep_last=2)
    assert outcome == "findings"
    assert "1 threads were held or busy" in said
    assert "1 damaged threads were skipped: b" in said
    assert len(store.thread("c/1").log()) == 2


def test_verify_says_what_is_damaged(store: holdfast.Store) -> None:
    outcome, said = done(store, "verify")
    assert (outcome, said.split(",")[0]) == ("ok", "3 lines")
    damage(store, "b")
    outcome, said = done(store, "verify", level="hashes")
    assert outcome == "findings"
    assert said.endswith("damaged: b")
    assert done(store, "verify", threads=["a"])[0] == "ok"


def stopped_after(store: holdfast.Store, thread: str) -> None:
    """Run the job `check` up to a thread."""
    seen: list[str] = []
    ended = Jobs(store).run("check", progress=lambda done, total, what: seen.append(what), stop=lambda: thread in seen)
    assert (ended.outcome, seen[-1]) == ("stopped", thread)


def test_verify_goes_on_where_it_was_stopped_and_forgets_nothing(store: holdfast.Store) -> None:
    jobs, told = Jobs(store), list[tuple[int, int | None, str]]()
    damage(store, "a")
    jobs.add("check", "verify", schedule="every 1d")
    stopped_after(store, "b")
    assert jobs.get("check").mark
    ended = jobs.run("check", progress=lambda *how: told.append(how))
    assert told == [(3, 3, "c/1")]
    assert ended.outcome == "findings", "what the first run found is found"
    assert ended.summary.startswith("3 lines, 18 steps, ")
    assert ", the first 2 lines by a run that was interrupted" in ended.summary
    assert ended.summary.endswith("damaged: a")
    assert not jobs.get("check").mark
    jobs.run("check", progress=lambda *how: told.append(how))
    assert len(told) == 4, "the next one begins at the beginning"


def test_verify_begins_anew_with_other_settings_or_after_long(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(store)
    jobs.add("check", "verify")
    stopped_after(store, "b")
    jobs.add("check", "verify", settings={"level": "structure"}, replace=True)
    assert not jobs.get("check").mark
    assert "interrupted" not in jobs.run("check").summary
    stopped_after(store, "b")
    monkeypatch.setattr("holdfast.maintenance.jobs.builtin._STALE", 0)
    assert "interrupted" not in jobs.run("check").summary


def test_compact_goes_on_past_a_damaged_thread(store: holdfast.Store) -> None:
    damage(store, "a")
    assert done(store, "compact") == ("findings", "2 threads compacted; 1 damaged threads were skipped: a")


def test_index_and_project_and_tidy_and_compact(store: holdfast.Store) -> None:
    assert done(store, "index") == ("ok", "18 checkpoints of 3 threads indexed")
    assert done(store, "index")[1] == "0 checkpoints of 3 threads indexed"
    assert done(store, "project") == ("ok", "readable rows of 0 threads built")
    assert done(store, "project", again=True) == ("ok", "readable rows of 3 threads built")
    for thread in ("a", "b"):
        store.thread(thread).delete()
    outcome, said = done(store, "tidy")
    assert outcome == "ok"
    assert int(said.split()[0]) >= 0
    assert done(store, "compact") == ("ok", "1 threads compacted")
    assert done(store, "compact", prefix="x") == ("ok", "0 threads compacted")
    run(Lease(store._engine.context, Line("", "c/1"), "rewrite").acquire())
    assert done(store, "compact") == ("ok", "0 threads compacted, 1 skipped: busy or gone")


def test_orphans_are_removed(store: holdfast.Store) -> None:
    row = Row(("", "gone", 1, b"node"), (), wrap(b"left by a process that died"))
    run(store._engine.context.backend.apply([Put(NODES, row)]))
    assert done(store, "orphans")[0] == "ok"  # it may yet be completed
    outcome, said = done(store, "orphans", grace="0s")
    assert (outcome, said.split(",")[0]) == ("ok", "1 orphan rows removed")
    store.thread("b").put({"large": bytes(200_000)})  # so that its checkpoints are read
    damage(store, "b")
    outcome, said = done(store, "orphans", grace="0s")
    assert (outcome, "1 threads could not be checked: b" in said) == ("findings", True)


def test_compact_goes_through_more_threads_than_a_page_holds() -> None:
    with holdfast.open("memory://") as store:
        for number in range(203):
            store.thread(f"t{number:03}").put({"a": 1})
        assert done(store, "compact") == ("ok", "203 threads compacted")


def test_a_store_that_cannot_keep_an_index_says_so(tmp_path: Path) -> None:
    with holdfast.open(f"file://{tmp_path}/store") as store, pytest.raises(UnsupportedError):
        done(store, "index")


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("verify", {"level": "deeply"}, "level cannot be 'deeply'"),
        ("verify", {"threads": [1]}, "a list of names"),
        ("verify", {"deep": True}, "no setting 'deep'"),
        ("prune", {"keep_last": 1, "threads": ["a"], "prefix": "b"}, "by name, or by a prefix"),
        ("orphans", {"grace": "soon"}, "soon"),
        ("index", {"x": 1}, "It has none"),
    ],
)
def test_settings_are_checked(kind: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidError) as caught:
        JobTypes().get(kind).check(settings)
    assert said in str(caught.value)
