"""Answers to runs that wait: given by the run or by its thread, they are stored on the thread, and none is lost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

import holdfast
from holdfast import Store
from holdfast.agents.runs.record import Run
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from tests.agents.runs.graphs import Log, asking, chain, logging_nodes

VALUES: list[Any] = [None, {}, {"0" * 32: "x"}, {1: 2}, [], "", False, "yes"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def work_until(store: Store, worker: Any, id: str, *states: str) -> Run:
    """Let a worker work until a run has one of these states."""
    latest = time.monotonic() + 20
    while (found := store.runs.get(id)).state not in states and time.monotonic() < latest:
        worker.run_due()
        time.sleep(0.02)
    assert found.state in states, found
    return found


def answer_run(store: Store, id: str, value: Any) -> None:
    store.runs.answer(id, value)


def answer_thread(store: Store, id: str, value: Any) -> None:
    store.thread(store.runs.get(id).thread).answer(value)


BY_BOTH = pytest.mark.parametrize("answer", [answer_run, answer_thread])


def breaking(is_broken: list[bool], began: list[str]) -> Any:
    """A graph whose second node asks, and then fails while something is broken."""

    def first(state: Log) -> dict[str, Any]:
        began.append("first")
        return {"log": ["first"]}

    def ask(state: Log) -> dict[str, Any]:
        found = interrupt("which?")
        if is_broken[0]:
            raise ConnectionError("down")
        return {"log": [f"answered {found}"]}

    return chain(first, ask, name="breaking")


def parallel(count: int) -> Any:
    """A graph whose nodes ask at the same time."""
    builder: Any = StateGraph(Log)
    for number in range(count):
        name = f"ask{number}"
        builder.add_node(name, lambda state, number=number: {"log": [f"{number} {interrupt(f'q{number}')}"]})
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(name="parallel")


@BY_BOTH
def test_a_run_that_fails_after_an_answer_is_retried_with_it(store: Store, answer: Callable[..., None]) -> None:
    is_broken, began = [True], list[str]()
    worker = store.worker(breaking(is_broken, began))
    id = store.runs.submit("t", {"log": []}, graph="breaking", attempts=1).id
    worker.run_due()
    answer(store, id, "this")
    work_until(store, worker, id, "failed")
    is_broken[0] = False
    store.runs.retry(id)
    work_until(store, worker, id, "done")
    assert store.thread("t").get().state["log"] == ["first", "answered this"]
    assert began == ["first"]


def test_a_cancelled_run_that_is_retried_has_the_answer_that_came_since(store: Store) -> None:
    worker = store.worker(asking())
    id = store.runs.submit("t", {"log": []}, graph="asking").id
    worker.run_due()
    store.runs.cancel(id)
    store.thread("t").answer("late")
    store.runs.retry(id)
    work_until(store, worker, id, "done")
    assert store.thread("t").get().state["log"] == ["n0", "answered late", "n1"]


@BY_BOTH
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_is_an_answer(store: Store, answer: Callable[..., None], value: Any) -> None:
    worker = store.worker(asking())
    id = store.runs.submit("t", {"log": []}, graph="asking").id
    worker.run_due()
    answer(store, id, value)
    work_until(store, worker, id, "done")
    assert store.thread("t").get().state["log"] == ["n0", f"answered {value}", "n1"]


def test_one_value_for_several_questions_is_refused_and_each_is_answered_by_its_id(store: Store) -> None:
    worker = store.worker(parallel(3))
    id = store.runs.submit("t", {"log": []}, graph="parallel").id
    worker.run_due()
    questions = store.thread("t").status().questions
    with pytest.raises(InvalidError, match="3 questions"):
        store.runs.answer(id, "x")
    with pytest.raises(NotFoundError, match="no such question"):
        store.runs.answer(id, "x", question="0" * 32)
    assert store.runs.get(id).state == "waiting"
    for question in questions:
        work_until(store, worker, id, "waiting")
        store.runs.answer(id, question.value, question=question.id)
    work_until(store, worker, id, "done")
    assert sorted(store.thread("t").get().state["log"]) == ["0 q0", "1 q1", "2 q2"]


@pytest.mark.parametrize("is_asked_again", [False, True])
def test_answers_that_come_while_a_worker_has_the_run_are_taken(store: Store, is_asked_again: bool) -> None:
    given: list[str] = []
    all_given, is_begun = threading.Event(), threading.Event()

    def ask(number: int) -> Callable[[Log], dict[str, Any]]:
        def node(state: Log) -> dict[str, Any]:
            if is_asked_again and number and is_begun.is_set():
                assert all_given.wait(20)  # it has no answer, and asks after its question was answered
            found = interrupt(f"q{number}")
            if not given:
                given.append("others")
                for other in store.thread("t").status().questions:
                    store.thread("t").answer(other.value, question=other.id)
                all_given.set()
            return {"log": [f"{number} {found}"]}

        return node

    builder: Any = StateGraph(Log)
    for number in range(3):
        builder.add_node(f"ask{number}", ask(number))
        builder.add_edge(START, f"ask{number}")
    worker = store.worker(builder.compile(name="parallel"))
    id = store.runs.submit("t", {"log": []}, graph="parallel").id
    worker.run_due()
    is_begun.set()
    (first,) = [each.id for each in store.thread("t").status().questions if each.value == "q0"]
    store.runs.answer(id, "q0", question=first)
    work_until(store, worker, id, "done")
    assert given == ["others"]
    assert len(store.thread("t").get().state["log"]) == 3


def test_an_answer_to_a_run_that_does_not_wait_is_refused(store: Store) -> None:
    worker = store.worker(asking())
    id = store.runs.submit("t", {"log": []}, graph="asking").id
    with pytest.raises(ConflictError, match="queued") as raised:
        store.runs.answer(id, "early")
    assert raised.value.code == "run-state"
    worker.run_due()
    store.runs.answer(id, "this")
    work_until(store, worker, id, "done")
    with pytest.raises(ConflictError, match="done"):
        store.runs.answer(id, "late")


def test_an_answer_to_a_question_that_was_left_is_refused(store: Store) -> None:
    worker = store.worker(asking())
    id = store.runs.submit("t", {"log": []}, graph="asking").id
    worker.run_due()
    store.thread("t").fork("side", at="HEAD~1")
    store.thread("t").switch("side")
    with pytest.raises(ConflictError) as raised:
        store.runs.answer(id, "this")
    assert raised.value.code == "not-waiting"


def test_a_run_at_a_breakpoint_goes_on_without_a_value(store: Store) -> None:
    graph = chain(*logging_nodes(2)).copy(update={"interrupt_before_nodes": ["n1"]})
    worker = store.worker(graph)
    id = store.runs.submit("t", {"log": []}, graph="chain").id
    worker.run_due()
    assert store.runs.get(id).state == "waiting"
    with pytest.raises(ConflictError):
        store.runs.answer(id, "a value")
    store.runs.answer(id)
    work_until(store, worker, id, "done")
    assert store.thread("t").get().state["log"] == ["n0", "n1"]


def test_questions_are_read_and_answered_without_langgraph(store: Store, tmp_path: Path) -> None:
    worker = store.worker(asking())
    id = store.runs.submit("t", {"log": []}, graph="asking").id
    worker.run_due()
    expected = store.thread("t").status().questions[0]
    code = (
        "import sys, warnings, holdfast; warnings.simplefilter('error'); store = holdfast.open(sys.argv[1]);"
        "(found,) = store.thread('t').status().questions; print(found.id, found.node, found.value);"
        "store.thread('t').answer('from afar', question=found.id); assert 'langgraph' not in sys.modules"
    )
    found = run_process(
        [sys.executable, "-c", code, str(tmp_path / "a.db")], capture_output=True, text=True, check=False
    )
    assert (found.stdout.split(), found.stderr) == ([expected.id, "ask", "which?"], "")
    work_until(store, worker, id, "done")
    assert store.thread("t").get().state["log"][1] == "answered from afar"
