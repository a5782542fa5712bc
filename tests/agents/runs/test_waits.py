"""Runs that wait while their threads do not any more: they end as the thread has, and hold up nobody for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

import holdfast
from holdfast import Store
from holdfast.errors import ConflictError
from holdfast.langgraph import HoldfastSaver
from tests.agents.runs.graphs import asking, chain, logging_nodes

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


@pytest.fixture
def waiting(store: Store) -> str:
    """The id of a run that waits on the thread `t`."""
    id = store.runs.submit("t", {"log": []}, graph="asking").id
    store.worker(asking()).run_due()
    assert store.runs.get(id).state == "waiting"
    return id


def by_plain_saver(store: Store) -> Any:
    """The same graph as a program has it that knows of no runs."""
    return asking().copy(update={"checkpointer": HoldfastSaver(store)})


def test_a_run_whose_question_another_program_answered_is_done(store: Store, waiting: str) -> None:
    behind = store.runs.submit("t", {"log": []}, graph="chain")
    by_plain_saver(store).invoke(Command(resume="plain"), CONFIG)
    store.worker(chain(*logging_nodes(1))).run_due()
    assert store.runs.get(waiting).state == "done"
    assert store.runs.get(behind.id).state == "done"


def test_a_run_whose_graph_another_program_let_fail_has_failed(store: Store, waiting: str) -> None:
    def fail(state: Any) -> dict[str, Any]:
        raise ValueError("broken")

    first, last = logging_nodes(2)
    fail.__name__ = "ask"
    other = chain(first, fail, last).copy(update={"checkpointer": HoldfastSaver(store)})
    with pytest.raises(ValueError, match="broken"):
        other.invoke(Command(resume="plain"), CONFIG)
    store.worker(asking()).run_due()
    found = store.runs.get(waiting)
    assert (found.state, found.error, found.error_code) == ("failed", "ValueError: broken", "ValueError")


def test_a_run_is_cancelled_that_holds_up_others_on_a_thread_that_was_switched(store: Store, waiting: str) -> None:
    store.thread("t").fork("side", at="HEAD~1")
    store.thread("t").switch("side")
    worker = store.worker(asking(), chain(*logging_nodes(1)))
    worker.run_due()
    assert store.runs.get(waiting).state == "waiting"  # nobody is held up, and a switch back makes it whole
    behind = store.runs.submit("t", {"log": []}, graph="chain")
    worker.run_due()
    assert [store.runs.get(each).state for each in (waiting, behind.id)] == ["cancelled", "done"]
    assert store.runs.get(waiting).error_code == "not-waiting"


def test_a_run_waits_on_while_its_thread_does(store: Store, waiting: str) -> None:
    behind = store.runs.submit("t", {"log": []}, graph="chain")
    store.worker(asking(), chain(*logging_nodes(1))).run_due()
    assert [store.runs.get(each).state for each in (waiting, behind.id)] == ["waiting", "queued"]


def test_a_thread_that_was_gone_on_with_takes_another_run_at_once(store: Store, waiting: str) -> None:
    by_plain_saver(store).invoke(Command(resume="plain"), CONFIG)
    assert store.runs.submit("t", {"log": []}, graph="chain", on_busy="refuse").state == "queued"
    assert store.runs.get(waiting).state == "done"


def test_an_answer_to_a_run_whose_thread_is_done_says_so(store: Store, waiting: str) -> None:
    by_plain_saver(store).invoke(Command(resume="plain"), CONFIG)
    with pytest.raises(ConflictError, match="the run is done"):
        store.runs.answer(waiting, "late")
