"""Replays compare what a run waits for, its errors, and where it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

import holdfast
from holdfast import Store, replay
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConfigError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph import refund_graph
from tests.support.nightly import mostly_nightly

MODULE = refund_graph.__name__
GRAPH, NESTED = f"{MODULE}:build", f"{MODULE}:build_nested"


def record(
    store: Store,
    thread: str,
    *,
    answer: bool,
    build: Any = refund_graph.build,
    by: str = "sync",
    callbacks: bool = True,
) -> None:
    """Run the graph until it waits, or to its end."""
    saver = HoldfastSaver(store)
    graph = build(saver)
    config: Any = {"configurable": {"thread_id": thread}}
    if callbacks:
        config["callbacks"] = [saver.recorder]
    for given in ({"order": "order 7 of bob@example.com"}, *([Command(resume="yes")] if answer else [])):
        asyncio.run(graph.ainvoke(given, config)) if by == "async" else graph.invoke(given, config)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("refunds")
    keys = Encryption(LocalKeys(b"1" * 32))  # a replay has no key, and needs none
    with holdfast.open(folder / "agents.db", encryption=keys) as store:
        record(store, "waits", answer=False)
        record(store, "done", answer=True, by="async")
        record(store, "nested", answer=True, build=refund_graph.build_nested)
        record(store, "nested-waits", answer=False, build=refund_graph.build_nested, by="async")
        record(store, "quiet", answer=False, callbacks=False)
        yield store


CASES = {
    ("waits", ""): None,
    ("done", ""): None,
    ("nested", ""): None,
    ("nested-waits", ""): None,
    ("waits", "removed"): ("interrupt", "1:approve", "does not wait here", '-  "question": "Refund?"'),
    ("done", "removed"): ("interrupt", "1:approve", "does not wait here", '-  "question": "Refund?"'),
    ("nested", "removed"): ("interrupt", "1:inner|1:approve", "does not wait here", '-  "question": "Refund?"'),
    ("waits", "question"): ("interrupt", "1:approve", "asks something else", '+  "question": "Refund now?"'),
    ("done", "question"): ("interrupt", "1:approve", "asks something else", '+  "question": "Refund now?"'),
    ("nested-waits", "question"): ("interrupt", "1:inner|1:approve", "asks something else", "Refund now?"),
    ("done", "added"): ("interrupt", "1:approve", "waits here for an answer", '+ "Really?"'),
    ("nested", "added"): ("interrupt", "1:inner|1:approve", "waits here for an answer", '+ "Really?"'),
    ("nested-waits", "node"): ("call", "1:inner|1:pay", "tool refund is called", ""),
    ("waits", "node"): ("output", "~", "the state after this step differs", "branch:to:approve"),
    ("done", "fails"): ("error", "2:pay", "raises KeyError('no account') at refund_graph.py:", ""),
    ("nested", "fails"): ("error", "1:inner|2:pay", "raises KeyError('no account') at refund_graph.py:", ""),
    ("done", "exits"): ("error", "2:pay", "raises SystemExit('no account') at refund_graph.py:", ""),
    ("nested", "exits"): ("error", "1:inner|2:pay", "raises SystemExit('no account') at refund_graph.py:", ""),
    ("done", "more"): ("output", "~", "the state after this step differs", "branch:to:thank"),
}
DAILY = [("nested-waits", ""), ("done", "question")]


@pytest.mark.parametrize(("thread", "change"), mostly_nightly([*CASES], daily=DAILY))
def test_what_a_run_waits_for_and_its_errors_are_compared(store: Store, thread: str, change: str) -> None:
    graph = NESTED if thread.startswith("nested") else GRAPH
    report = replay.run(store, graph, thread=thread, env={"CHANGE": change})
    found, expected = report.divergence, CASES[thread, change]
    assert report.complete
    assert report.is_open == thread.endswith("waits")
    if expected is None:
        assert found is None
        return
    assert found is not None
    kind, task, what, diff = expected
    assert (found.kind, found.task, what in found.what, diff in found.diff) == (kind, task, True, True), found


@pytest.mark.parametrize("change", mostly_nightly(["removed", "node"], daily=["node"]))
def test_open_threads_that_wait_are_compared(store: Store, change: str) -> None:
    same = {each.thread: each for each in replay.run_open(store, GRAPH, prefix="waits")}
    assert same["waits"].matches
    changed = {each.thread: each for each in replay.run_open(store, GRAPH, prefix="waits", env={"CHANGE": change})}
    assert changed["waits"].divergence is not None  # also if the node where it waits is gone


@pytest.mark.nightly  # test_replay has one without its calls by day
def test_a_thread_that_was_not_recorded_is_said_to_be_that(store: Store) -> None:
    report = replay.run(store, GRAPH, thread="quiet")
    assert (report.divergence, report.complete, report.matches, report.is_open) == (None, False, False, True)
    assert "not recorded" in report.note
    with pytest.raises(UnsupportedError, match="not recorded"):
        report.check()


@pytest.mark.parametrize(
    ("recorded", "steps"),
    mostly_nightly(
        [((False, True, True, True), 4), ((True, False, True, True), 4), ((True, True, False, False), 3)],
        daily=[((False, True, True, True), 4)],
    ),
)
@pytest.mark.parametrize("nested", mostly_nightly([False, True], daily=[False]))
@pytest.mark.nightly  # whole recordings by day
def test_only_the_recorded_part_is_compared(
    recorded: tuple[bool, ...], steps: int, nested: bool, tmp_path: Path
) -> None:
    """Of two turns, each of which waits for an answer, one call was made without the recorder."""
    with holdfast.open(tmp_path / "agents.db") as store:
        saver = HoldfastSaver(store)
        graph = (refund_graph.build_nested if nested else refund_graph.build)(saver)
        for given, is_recorded in zip([{"order": "7"}, Command(resume="yes")] * 2, recorded, strict=True):
            config: Any = {"configurable": {"thread_id": "half"}, "callbacks": [saver.recorder] * is_recorded}
            graph.invoke(given, config)
        name = NESTED if nested else GRAPH
        report = replay.run(store, name, thread="half")
        assert (report.divergence, report.complete) == (None, False)
        assert "a part of it was not recorded" in report.note
        assert nested or report.steps == steps
        changed = replay.run(store, name, thread="half", env={"CHANGE": "question"}).divergence
        assert changed is not None, "the recorded part is compared"
        assert changed.kind == "interrupt"
        assert replay.run(store, name, thread="half", env={"CHANGE": "fails"}).divergence is not None


@pytest.mark.nightly
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_what_is_left_of_a_pruned_recording_is_compared(keep: int, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        for _ in range(2):
            record(store, "done", answer=True)
        assert replay.run(store, GRAPH, thread="done").matches
        store.maintenance.prune("done", keep_recordings_last=keep)
        report = replay.run(store, GRAPH, thread="done")
        assert (report.divergence, report.complete, report.calls > 0) == (None, False, True)
        changed = replay.run(store, GRAPH, thread="done", env={"CHANGE": "fails"}).divergence
        assert changed is not None
        assert (changed.kind, changed.task) == ("error", "2:pay" if keep == 3 else "6:pay")


@pytest.mark.nightly  # errors of nodes by day
def test_code_that_cannot_be_imported_is_shown_with_its_place(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_refund.py").write_text("def build(saver):\n    if saver\n        return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="syntax error: expected ':': if saver") as caught:
        replay.run(store, "broken_refund:build", thread="done")
    assert (caught.value.where or "").endswith("broken_refund.py:2")
    with pytest.raises(ConfigError, match="it raises RuntimeError: no configuration") as raised:
        replay.run(store, GRAPH, thread="done", env={"CHANGE": "import"})
    assert "refund_graph.py:" in (raised.value.where or "")
