"""Answers to interrupts that are given without the graph: `thread.answer`, the command, HTTP."""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from click.testing import CliRunner
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt

import holdfast
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.cli.main import cli
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.http.kit import ServedStore


class State(TypedDict):
    """What was answered, in any order."""

    log: Annotated[list[str], operator.add]


def ask(state: State) -> dict[str, Any]:
    """Asks once."""
    return {"log": [f"ask: {interrupt('first?')}"]}


def ask_twice(state: State) -> dict[str, Any]:
    """Asks, and then asks again in the same task."""
    return {"log": [f"{interrupt('first?')} and {interrupt('second?')}"]}


def ask_each(state: dict[str, Any]) -> dict[str, Any]:
    """Asks in one of several tasks."""
    return {"log": [f"{state['n']}: {interrupt(state['n'])}"]}


def fan_out(state: State) -> list[Send]:
    """Sends two tasks to one node."""
    return [Send("ask_each", {"n": n}) for n in ("a", "b")]


def build(node: Any, checkpointer: Any = None) -> Any:
    """A graph of one node."""
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=checkpointer)


def single(saver: Any) -> Any:
    return build(ask, saver)


def twice(saver: Any) -> Any:
    return build(ask_twice, saver)


def parallel(saver: Any) -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("ask_each", ask_each)
    builder.add_conditional_edges(START, fan_out)
    return builder.compile(checkpointer=saver)


def subgraph(saver: Any) -> Any:
    return build(build(ask), saver)


def deep_subgraph(saver: Any) -> Any:
    return build(build(build(ask_twice)), saver)


def kept_subgraph(saver: Any) -> Any:
    return build(build(ask, True), saver)


GRAPHS = {each.__name__: each for each in (single, twice, parallel, subgraph, deep_subgraph, kept_subgraph)}
LOGS = {
    "single": ["ask: 1"],
    "twice": ["1 and 2"],
    "parallel": ["a: 1", "b: 2"],
    "subgraph": ["ask: 1"],
    "deep_subgraph": ["1 and 2"],
    "kept_subgraph": ["ask: 1"],
}
CONFIG: Any = {"configurable": {"thread_id": "chat"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def begin(store: holdfast.Store, name: str) -> None:
    """Run a graph up to its first question."""
    GRAPHS[name](HoldfastSaver(store)).invoke({"log": []}, CONFIG)


@pytest.mark.parametrize("name", [*GRAPHS])
def test_a_graph_goes_on_with_answers_over_a_restart(tmp_path: Path, name: str) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        begin(store, name)
    given = 0
    for _ in range(3):
        with holdfast.open(tmp_path / "a.db") as store:
            thread = store.thread("chat")
            waiting = thread.status().questions
            for left, question in reversed([*enumerate(reversed(waiting))]):
                given += 1
                status = thread.answer(given, question=question.id)
                assert len(status.questions) == left
                assert status.status == ("waiting" if left else "unfinished")
                assert [each.name for each in store.threads(status=status.status)] == ["chat"]
            GRAPHS[name](HoldfastSaver(store)).invoke(None, CONFIG)
            if thread.status().status == "done":
                break
    with holdfast.open(tmp_path / "a.db") as store:
        assert sorted(store.thread("chat").get().state["log"]) == LOGS[name]


def test_one_of_two_tasks_goes_on_while_the_other_waits(store: holdfast.Store) -> None:
    begin(store, "parallel")
    first, second = store.thread("chat").status().questions
    store.thread("chat").answer("yes", question=second.id)
    parallel(HoldfastSaver(store)).invoke(None, CONFIG)
    status = store.thread("chat").status()
    assert (status.status, [each.id for each in status.questions]) == ("waiting", [first.id])


def test_the_first_answer_counts(store: holdfast.Store) -> None:
    begin(store, "subgraph")
    (question,) = store.thread("chat").status().questions
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def answer(number: int) -> None:
        start.wait()
        try:
            store.thread("chat").answer(number, question=question.id)
            outcomes.append(f"ask: {number}")
        except ConflictError as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    taken = [each for each in outcomes if each != "answered"]
    assert len(outcomes) == 4
    assert len(taken) == 1
    subgraph(HoldfastSaver(store)).invoke(None, CONFIG)
    assert store.thread("chat").get().state["log"] == taken


def test_what_cannot_be_answered_says_why(store: holdfast.Store) -> None:
    store.thread("idle").put({"n": 1})
    with pytest.raises(ConflictError, match="waits for no answer") as refused:
        store.thread("idle").answer("yes")
    assert refused.value.code == "not-waiting"
    with pytest.raises(NotFoundError):
        store.thread("missing").answer("yes")
    begin(store, "parallel")
    with pytest.raises(InvalidError, match="2 questions wait"):
        store.thread("chat").answer("yes")
    with pytest.raises(NotFoundError, match="no such question"):
        store.thread("chat").answer("yes", question="other")


def test_a_graph_that_went_on_by_itself_waits_for_no_answer(store: holdfast.Store) -> None:
    from langgraph.types import Command

    begin(store, "single")
    (question,) = store.thread("chat").status().questions
    single(HoldfastSaver(store)).invoke(Command(resume="itself"), CONFIG)
    with pytest.raises(ConflictError) as refused:
        store.thread("chat").answer("late", question=question.id)
    assert refused.value.code == "not-waiting"
    assert store.thread("chat").get().state["log"] == ["ask: itself"]


def test_a_run_that_waits_is_queued(store: holdfast.Store) -> None:
    run = store.runs.submit("chat", {"log": []}, graph="node")
    worker = store.worker(node=single(None))
    worker.run_due()
    assert store.runs.get(run.id).state == "waiting"
    store.thread("chat").answer("Ada")
    assert store.runs.get(run.id).state == "queued"
    worker.run_due()
    assert store.runs.get(run.id).state == "done"
    assert store.thread("chat").get().state["log"] == ["ask: Ada"]


def test_an_identity_answers_its_own_threads_and_no_others(store: holdfast.Store) -> None:
    begin(store, "single")
    with pytest.raises(NotFoundError):  # it may not even know that there is one
        store.as_identity(user="eve").thread("chat").answer("yes")
    assert store.thread("chat").status().status == "waiting"
    owner = store.as_identity(user="ada")
    single(HoldfastSaver(owner)).invoke({"log": []}, {"configurable": {"thread_id": "own"}})
    owner.thread("own").answer("yes")
    assert [each.actor for each in store.timeline.query("action:answer", thread="own")] == ["user:ada"]


def test_an_answer_is_copied_and_restored_with_its_thread(store: holdfast.Store, tmp_path: Path) -> None:
    begin(store, "subgraph")
    store.thread("chat").answer("kept")
    store.backups(tmp_path / "backups").create()
    with holdfast.open(tmp_path / "b.db") as other:
        other.backups(tmp_path / "backups").restore()
        assert other.thread("chat").status().status == "unfinished"
        subgraph(HoldfastSaver(other)).invoke(None, CONFIG)
        assert other.thread("chat").get().state["log"] == ["ask: kept"]
    assert store.maintenance.verify().ok


def test_the_command_answers(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        begin(store, "parallel")
        first, second = (each.id for each in store.thread("chat").status().questions)

    def call(*words: str) -> Any:
        return CliRunner().invoke(cli, ["--store", str(tmp_path / "a.db"), *words])

    assert call("answer", "chat", '"yes"').exit_code != 0
    assert call("answer", "chat", "yes", "--question", first).exit_code != 0  # it is not JSON
    done = call("answer", "chat", '{"approved": true}', "--question", first)
    assert done.exit_code == 0, done.output
    assert second in done.output
    again = call("answer", "chat", '"late"', "--question", first)
    assert "another answered first" in str(again.exception)
    assert call("answer", "chat", '"no"').exit_code == 0
    with holdfast.open(tmp_path / "a.db") as store:
        parallel(HoldfastSaver(store)).invoke(None, CONFIG)
        assert store.thread("chat").get().state["log"] == ["a: {'approved': True}", "b: no"]


def test_http_answers(store: holdfast.Store) -> None:
    begin(store, "single")
    with ServedStore(store, write=True) as served:
        body = {"value": {"type": "accept"}}
        answered = served.request("POST", "/api/v1/threads/chat/answers", body)
        assert answered.status == 201, answered.text
        assert answered.json["status"] == "unfinished"
        again = served.request("POST", "/api/v1/threads/chat/answers", body)
        assert (again.status, again.json["code"]) == (409, "not-waiting")
    single(HoldfastSaver(store)).invoke(None, CONFIG)
    assert json.dumps(store.thread("chat").get().state["log"]) == json.dumps(["ask: {'type': 'accept'}"])
