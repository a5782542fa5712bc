"""The pages of runs: listed, followed, cancelled and retried; and `holdfast ui` with a worker inside."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.agents.runs.record import CLIENT
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.cli import kit
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.kit import HOSTILE
from tests.interfaces.web.test_actions import post
from tests.interfaces.web.test_pages import get, read

CODE = """
import operator
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict):
    log: Annotated[list[str], operator.add]


graph = StateGraph(State)
graph.add_node("reply", lambda state: {"log": ["served"]})
graph.add_edge(START, "reply")
graph = graph.compile(name="support")
"""


@holdfast.workflow
def divide(number: int) -> float:
    """A workflow that fails with a zero."""
    return 1 / number


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[ServedStore]:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes, write=True) as served:
        yield served


def test_runs_are_listed_followed_cancelled_and_retried_in_pages(serving: ServedStore) -> None:
    runs, worker = serving.store.runs, serving.store.worker(divide)
    done, failed = runs.submit("one", [4], graph=divide), runs.submit("two", [0], graph=divide, attempts=1)
    worker.run_due()
    waits = runs.submit("three", {"text": HOSTILE}, graph=HOSTILE, when="1h")
    for state, ids in {"": {done.id, failed.id, waits.id}, "failed": {failed.id}, "queued": {waits.id}}.items():
        listed = get(serving, f"/runs?state={state}" if state else "/runs")
        assert read(listed).suspicious == []
        assert {each.id for each in (done, failed, waits) if f"/runs/{each.id}" in listed.text} == ids
    assert "ZeroDivisionError" in get(serving, f"/runs/{failed.id}").text
    page = get(serving, f"/runs/{done.id}").text
    assert "0.25" in page
    assert "/retry" not in page
    assert read(get(serving, f"/runs/{waits.id}")).suspicious == []
    assert get(serving, "/runs/none").status == 404
    asked = runs.submit("four", {CLIENT: {"assistant_id": "support", "input": HOSTILE}}, graph="support", when="1h")
    shown = get(serving, f"/runs/{asked.id}")
    assert ("assistant_id" in shown.text, CLIENT in shown.text, read(shown).suspicious) == (True, False, [])
    for change, run in (("retry", failed), ("cancel", failed), ("cancel", waits)):
        path = f"/runs/{run.id}/{change}"
        before = runs.get(run.id)
        assert post(serving, path, [], csrf="0" * 64).status == 403
        assert runs.get(run.id) == before
        assert f'action="{path}"' in get(serving, f"/runs/{run.id}").text
        assert post(serving, path, []).status == 303
        assert runs.get(run.id).state == {"retry": "queued", "cancel": "cancelled"}[change]
    assert post(serving, f"/runs/{done.id}/retry", []).status != 303
    assert runs.get(done.id).state == "done"


def test_limits_are_shown_set_and_removed_in_pages(serving: ServedStore) -> None:
    runs = serving.store.runs
    runs.limit(HOSTILE, 3)
    listed = get(serving, "/runs")
    assert read(listed).suspicious == []
    (address,) = re.findall(r'href="(/runs/limit\?[^"]*)"', listed.text)
    form = get(serving, address)
    assert read(form).suspicious == []
    assert 'value="3"' in form.text
    for graph, most, found in (("divide", "2", 2), ("divide", "", None), ("", "20", 20), ("", "0", 0), ("", "", None)):
        fields = [("graph", graph), ("most", most)]
        assert post(serving, "/runs/limit", fields).status == 200  # what would be true, and nothing is done
        assert post(serving, "/runs/limit", [*fields, ("do", "1")], csrf="0" * 64).status == 403
        before = {each.graph: each.most for each in runs.limits()}
        assert post(serving, "/runs/limit", [*fields, ("do", "1")]).status == 303
        assert {each.graph: each.most for each in runs.limits()}.get(graph) == found
        assert before.get(graph) != found
    wrong = post(serving, "/runs/limit", [("graph", "divide"), ("most", "-1"), ("do", "1")])
    assert "number of runs" in wrong.text
    assert [each.graph for each in runs.limits()] == [HOSTILE]


def test_a_reader_changes_no_run(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        run = store.runs.submit("one", [4], graph=divide)
        assert "/cancel" not in get(served, f"/runs/{run.id}").text
        post(served, f"/runs/{run.id}/cancel", [])
        assert store.runs.get(run.id).state == "queued"
        assert "/runs/limit" not in get(served, "/runs").text
        post(served, "/runs/limit", [("graph", ""), ("most", "0"), ("do", "1")])
        assert store.runs.limits() == []


@pytest.mark.parametrize("writes", [True, False])
def test_a_worker_inside_the_server_does_runs_of_its_graph(tmp_path: Path, writes: bool) -> None:
    (tmp_path / "shop_of_pages.py").write_text(CODE)
    with holdfast.open(tmp_path / "agents.db") as store:
        run = store.runs.submit("chat", {"log": ["asked"]}, graph="support")
    code = f"{tmp_path / 'shop_of_pages.py'}:graph"
    words = kit.command("ui", str(tmp_path / "agents.db"), "--port", "0", "--no-browser", "--json", "--graph", code)
    words += ["--write"] * writes
    environment = {**kit.environment(), "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["writable"] is writes
            with holdfast.open(tmp_path / "agents.db") as store:
                ended = store.runs.wait(run.id, timeout=kit.SECONDS if writes else 1)
                assert ended.state == ("done" if writes else "queued")
                if writes:
                    assert store.thread("chat").get().state["log"] == ["asked", "served"]
        finally:
            process.terminate()
            assert process.wait(kit.SECONDS) in (0, -15, 143, 130)
