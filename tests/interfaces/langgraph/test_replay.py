"""Recorded runs of graphs are replayed without models and tools, in another process, and their divergence is found."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

import holdfast
from holdfast import Store, replay
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, LINES, TABLES, WRITES
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.model.steps import RECORDED
from holdfast.engine.row_format import open_write
from holdfast.errors import ConflictError, DeniedError, InvalidError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from holdfast.recording.comparison import plain
from holdfast.recording.journal import TaskJournal
from holdfast.savers import CheckpointStore
from tests.interfaces.langgraph import odd_graph, replayed_graph
from tests.security.sensitive.test_protection import KEYS
from tests.support.nightly import mostly_nightly

ODD = "tests.interfaces.langgraph.odd_graph:build"
GRAPH = "tests.interfaces.langgraph.replayed_graph:build"


def record(
    store: Store, thread: str, rounds: int, *, mode: Any = "full", callbacks: bool = True, answers: int = 1000
) -> dict[str, Any]:
    """Run the graph, and answer its interrupts, or some."""
    saver = HoldfastSaver(store, record=mode)
    graph = replayed_graph.build(saver)
    config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": 1000}
    if callbacks:
        config["callbacks"] = [saver.recorder]
    given: Any = {"messages": [("user", "begin")], "rounds": 0, "until": rounds, "notes": []}
    replayed_graph.LIVE["models"] = True
    try:
        while True:
            result = asyncio.run(graph.ainvoke(given, config))
            if not (waiting := result.get("__interrupt__")) or not answers:
                return dict(result)
            answers -= 1
            given = Command(resume=f"yes to {waiting[0].value}")
    finally:
        replayed_graph.LIVE["models"] = False


def content(store: Store) -> str:
    """A digest of all rows but the audit's."""
    found = hashlib.sha256()
    for table in TABLES:
        if table in (EVENTS, LINES):
            continue
        (rows,) = run(store._engine.context.backend.read([Scan(table, ())]))
        for row in rows:
            if not str(row.key[1]).startswith("␞"):
                found.update(repr(row).encode())
    return found.hexdigest()


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with holdfast.open(tmp_path_factory.mktemp("replay") / "agents.db") as store:
        record(store, "chat", 4)
        yield store


@pytest.mark.parametrize("rounds", mostly_nightly([3, 30], daily=[3]))
def test_a_run_replays_to_the_same_states(rounds: int, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        result = record(store, "chat", rounds)
        before = content(store)
        report = replay.run(store, GRAPH, thread="chat").check()
        assert content(store) == before
    assert report.steps >= rounds * 7
    assert report.calls > rounds * 11
    assert (report.is_open, report.effects) == (False, ())
    assert report.state["notes"] == result["notes"]
    assert [each["content"] for each in report.state["messages"]] == [each.content for each in result["messages"]]
    assert plain(result["messages"]) == report.state["messages"]


CHANGES = {
    "prompt": ("input", "plan", "Be rude"),
    "order": ("order", "research|", "before"),
    "code": ("output", "", "changed"),
    "post": ("effect", "", "uses the network"),
    "write": ("effect", "", "leak.txt"),
}


@pytest.mark.nightly  # by day, the guide changes a prompt
@pytest.mark.parametrize("change", CHANGES)
def test_the_first_divergence_is_reported(short: Store, change: str, tmp_path: Path, monkeypatch: Any) -> None:
    kind, task, text = CHANGES[change]
    monkeypatch.chdir(tmp_path)
    report = replay.run(short, GRAPH, thread="chat", env={"CHANGE": change})
    first = report.divergence
    assert first is not None
    assert (first.kind, task in first.task, text in str(first)) == (kind, True, True), first
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConflictError, match="differs") as caught:
        report.check()
    assert caught.value.code == "replay-diverged"


@pytest.mark.nightly  # the first by day
def test_all_effects_are_reported_and_not_only_the_first(short: Store, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    report = replay.run(short, GRAPH, thread="chat", env={"CHANGE": "leaks"})
    assert [effect.partition("opens ")[2].partition(" to ")[0] for effect in report.effects] == [
        f"'leak-{number}.txt'" for number in range(4)
    ]
    assert (str(report.divergence), report.divergences) == (report.effects[0], 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly  # by day, the guide does
def test_a_changed_result_diverges_at_its_step(short: Store) -> None:
    report = replay.run(short, GRAPH, thread="chat", changes={"9:tools#0": "nothing"})
    assert report.divergence is not None
    assert report.divergence.step == 9
    assert "nothing" in report.divergence.diff


@pytest.mark.nightly
@pytest.mark.parametrize("number", mostly_nightly([0, 5, 14, -1], daily=[14]))
def test_a_run_replays_from_any_checkpoint(short: Store, number: int) -> None:
    steps = list(short.thread("chat").log().all())[::-1]
    report = replay.run(short, GRAPH, thread="chat", since=steps[number].id).check()
    assert report.steps == len(steps) - 1 - steps.index(steps[number])


@pytest.mark.nightly
def test_a_run_without_steps_does_not_match(short: Store) -> None:
    record(short, "end", 1)
    short.maintenance.prune("end", keep_latest=True)
    report = replay.run(short, GRAPH, thread="end")
    assert (report.matches, report.complete) == (False, False)
    assert "only its end" in report.note


async def record_odd(store: Store, thread: str) -> dict[str, Any]:
    """Run the graph until it fails, resume it until it hangs, cancel it, and resume it."""
    saver = HoldfastSaver(store)
    graph = odd_graph.build(saver)
    config: Any = {"configurable": {"thread_id": thread}, "callbacks": [saver.recorder]}
    live = odd_graph.LIVE
    live.update(models=True, fails=True, hangs=True)
    try:
        with pytest.raises(ValueError, match="flaky"):
            await graph.ainvoke({"messages": [("user", "begin")]}, config)
        live["fails"] = False
        run = asyncio.ensure_future(graph.ainvoke(None, config))
        while not any("slow" in each.key for each in saver.recorder._tasks.values()):
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        live["hangs"] = False
        return dict(await graph.ainvoke(None, config))
    finally:
        live.update(models=False)


@pytest.mark.nightly
def test_retries_timeouts_cancellations_and_failures_are_replayed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        result = asyncio.run(record_odd(store, "odd"))
        report = replay.run(store, ODD, thread="odd", timeout=60).check()
    notes = result["notes"]
    assert report.state["notes"] == notes
    assert notes.count("timed out") == 3
    assert (report.steps, report.is_open) == (7, False)
    assert report.seconds < 30  # the timeouts of an hour were not waited for


@pytest.mark.nightly
def test_a_file_is_replayed_and_compared(short: Store, tmp_path: Path) -> None:
    replay.record(short, "chat", tmp_path / "chat.replay")
    assert (tmp_path / "chat.replay").stat().st_mode & 0o077 == 0
    replay.run(tmp_path / "chat.replay", GRAPH).check()
    replay.compare(tmp_path / "chat.replay", tmp_path / "chat.replay").check()
    record(short, "other", 4)
    replay.record(short, "other", tmp_path / "other.replay")
    difference = replay.compare(tmp_path / "chat.replay", tmp_path / "other.replay").divergence
    assert difference is not None
    assert "answer" in difference.diff


@pytest.mark.nightly
def test_only_full_recordings_are_replayable(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        record(store, "chat", 1, mode="digest")
        report = replay.run(store, GRAPH, thread="chat")
        assert (report.complete, report.matches) == (False, False)
        assert "digest" in report.note


def test_recordings_belong_to_the_thread_and_are_hidden(short: Store) -> None:
    checkpoints = CheckpointStore(short)
    record(short, "gone", 1)
    found = [run(checkpoints.get("gone", each.id)) for each in short.thread("gone").log().all()]
    assert sum(len(each.recorded) for each in found if each is not None) >= 5
    saver = HoldfastSaver(short)
    for each in saver.list({"configurable": {"thread_id": "gone"}}):
        assert RECORDED not in [channel for _, channel, _ in each.pending_writes or ()]
        if not each.config["configurable"]["checkpoint_ns"]:
            at = each.config["configurable"]["checkpoint_id"]
            assert RECORDED not in [write.channel for write in short.thread("gone").pending_writes(at)]
    with pytest.raises(InvalidError, match="reserved"):
        saver.put_writes(each.config, [(RECORDED, {})], "task")
    saver.delete_thread("gone")
    (rows,) = run(short._engine.context.backend.read([Scan(WRITES, (short.tenant, "gone"))]))
    assert not rows
    assert run(checkpoints.get("gone")) is None


def records(store: Store, thread: str) -> list[str]:
    """All that is recorded of a thread."""
    found = [run(CheckpointStore(store).get(thread, each.id)) for each in store.thread(thread).log().all()]
    return [repr(record) for each in found if each is not None for record in each.recorded]


def test_recordings_have_a_retention_of_their_own(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        record(store, "chat", 2)
        steps, states = len(list(store.thread("chat").log().all())), store.thread("chat").get().state
        before = records(store, "chat")
        kept = store.maintenance.prune("chat", keep_recordings_within="1h")
        assert (kept.dropped, kept.bytes, records(store, "chat")) == (0, 0, before)
        planned = store.maintenance.prune("chat", keep_recordings_last=3, dry_run=True)
        assert records(store, "chat") == before
        done = store.maintenance.prune("chat", keep_recordings_last=3)
        assert (done.dropped, done.bytes > 0, done.bytes) == (0, True, planned.bytes)
        left = records(store, "chat")
        assert 0 < len(left) < len(before)
        assert all(each in before for each in left)
        assert len(list(store.thread("chat").log().all())) == steps
        assert store.thread("chat").get().state == states
        assert store.maintenance.verify().ok
        assert any(each.action == "prune" for each in store.audit.query(limit=10))
        store.thread("chat").hold(reason="court")
        with pytest.raises(DeniedError):
            store.maintenance.prune("chat", keep_recordings_last=1)


SECRET = "sk-ant-api03-" + "Zq8" * 31 + "AA"


def test_what_is_sensitive_is_not_recorded(tmp_path: Path) -> None:
    for name in ("policy", "mode", "neither"):
        with holdfast.open(tmp_path / f"{name}.db") as store:
            if name == "policy":
                store.redaction.protect("redact", keys=KEYS, key="messages")
            saver = HoldfastSaver(store, record="redacted" if name == "mode" else "full")
            journal = TaskJournal("1:node", 1)
            journal.end(journal.begin("tool", "search", {"key": SECRET}), f"found {SECRET}")
            saver.recorder._tasks["task"] = journal
            config: Any = {"configurable": {"thread_id": "chat", "checkpoint_ns": "", "checkpoint_id": "1"}}
            saver.put_writes(config, [("notes", "x")], "task")
            (rows,) = run(store._engine.context.backend.read([Scan(WRITES, ("", "chat"))]))
            (recorded,) = (open_write(row, 1 << 20) for row in rows if row.columns[1] == RECORDED)
            text = str(store._engine.context.codec.unpack(recorded.packed))
            is_clear = name == "neither"
            assert (SECRET in text, "'mode': 'redacted'" in text) == (is_clear, not is_clear)


def test_without_callbacks_nothing_is_recorded(short: Store) -> None:
    record(short, "quiet", 1, callbacks=False)
    found = [run(CheckpointStore(short).get("quiet", each.id)) for each in short.thread("quiet").log().all()]
    assert [each.recorded for each in found if each is not None] == [[]] * len(found)


@pytest.mark.nightly
def test_an_encrypted_store_is_replayed(tmp_path: Path) -> None:
    keys = Encryption(LocalKeys(generate_key()))
    with holdfast.open(tmp_path / "agents.db", encryption=keys) as store:
        record(store, "chat", 1)
        replay.run(store, GRAPH, thread="chat").check()
        with pytest.raises(UnsupportedError) as caught:
            replay.record(store, "chat", tmp_path / "chat.replay")
        assert caught.value.code == "clear-refused"
    assert not (tmp_path / "chat.replay").exists()


@pytest.mark.nightly
def test_open_threads_are_checked_against_new_code(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        record(store, "finished", 1)
        record(store, "waiting", 2, answers=1)
        assert [each.thread for each in replay.run_open(store, GRAPH)] == ["waiting"]
        (report,) = replay.run_open(store, GRAPH, env={"CHANGE": "order"})
        assert report.divergence is not None
