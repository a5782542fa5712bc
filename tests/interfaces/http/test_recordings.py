"""What was recorded, over HTTP: calls of hooks, runs of graphs, and their replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import holdfast
from holdfast.backends import run
from holdfast.savers import CheckpointStore
from tests.interfaces.http.kit import Answer, ServedStore
from tests.interfaces.web.recorded_graph import THREAD, record_run
from tests.interfaces.web.recorded_hooks import record_hooks

GRAPH = "tests.interfaces.web.recorded_graph:graph"
HOOKS = "tests.interfaces.web.recorded_hooks:register"
RECORDING = f"/threads/{THREAD}/recording"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """A recorded run and recorded calls of hooks, with their code."""
    with holdfast.open(tmp_path_factory.mktemp("recorded") / "agents.db") as store:
        record_run(store)
        record_hooks(store)
        with ServedStore(store, write=True, graph=GRAPH, hooks=HOOKS) as served:
            yield served


def items(served: ServedStore, path: str) -> list[Any]:
    """A page of a list."""
    answer = served.get(path)
    assert answer.status == 200, answer
    found: list[Any] = answer.json["items"]
    return found


def execution(reference: str) -> str:
    """The path of an execution of a hook."""
    return f"/hooks/executions/{quote(reference, safe='')}"


def test_calls_of_hooks_are_filtered_summed_up_and_found(recorded: ServedStore) -> None:
    found = items(recorded, "/hooks/executions")
    assert [(each["hook"], each["outcome"]) for each in found] == [
        ("check_name", "veto"),
        ("check_name", "ok"),
        ("limit_discount", "error"),
        ("limit_discount", "changed"),
        ("limit_discount", "ok"),
    ]
    for query, expected in (
        ("failed=true", found[2:3]),
        ("hook=check_name&point=state.set", found[:1]),
        ("slower_than=1h", []),
        ("since=1h&limit=2", found[:2]),
    ):
        assert items(recorded, f"/hooks/executions?{query}") == expected, query
    assert [recorded.get(execution(each["reference"])).json for each in found] == found
    statistics = {each["hook"]: each for each in items(recorded, "/hooks/statistics")}
    assert (statistics["limit_discount"]["calls"], statistics["limit_discount"]["failures"]) == (3, 1)
    for path in ("executions/1%2Fx%2Fy", "executions/x"):
        assert recorded.request("GET", f"/api/v1/hooks/{path}").status in (400, 404)
    remote = holdfast.open(recorded.url, token=recorded.token)
    first = found[0]["reference"]
    assert remote.hooks.get(first) == recorded.store.hooks.get(first)
    assert remote.hooks.history(failed=True, slower_than=0) == recorded.store.hooks.history(failed=True)
    remote.close()


def test_undelivered_calls_are_listed_retried_and_discarded(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store, ServedStore(store, write=True) as served:
        store.hooks.after("state.set", durable=True, attempts=1, max_failures=9, name="deliver")(lambda _: 1 / 0)
        for n in range(3):
            store.state(agent="a")[f"k{n}"] = n
        assert store.hooks.drain(60)
        store.hooks.remove("deliver")
        failed = items(served, "/hooks/undelivered?hook=deliver&state=failed")
        assert [(each["scope"], each["attempts"], each["error"], each["due"]) for each in failed] == [
            ("agent:a", 1, "ZeroDivisionError", None)
        ] * 3
        assert len(items(served, "/hooks/undelivered?limit=2")) == 2
        retried, discarded = (f"/hooks/undelivered/{quote(each['reference'], safe='')}" for each in failed[:2])
        assert served.change("POST", f"{retried}/retries").status == 200
        pending = items(served, "/hooks/undelivered?state=pending")
        assert [each["reference"] for each in pending] == [failed[0]["reference"]]
        assert [served.change("DELETE", discarded).status for _ in range(2)] == [200, 404]
        for hook, count in (("other", 0), ("deliver", 1)):
            assert served.change("POST", "/hooks/undelivered/retries", {"hook": hook}).json == {"count": count}
        last = f"/hooks/undelivered/{quote(failed[2]['reference'], safe='')}"
        assert served.change("DELETE", last).status == 200
        assert served.change("POST", "/hooks/undelivered/retries").json == {"count": 0}
        remote = holdfast.open(served.url, token=served.token)
        assert remote.hooks.undelivered() == store.hooks.undelivered()
        assert (remote.hooks.retry_failed(), len(store.hooks.undelivered(state="pending"))) == (0, 1)
        remote.hooks.discard(failed[0]["reference"])
        remote.close()
        token = str(store.access.issue_token("agent:a").secret)
        assert served.request("GET", "/api/v1/hooks/undelivered", token=token).status == 403
        assert served.change("POST", "/hooks/undelivered/retries", token=token).status == 403


def test_a_call_of_a_hook_is_replayed_alone_and_beside_the_recorded_one(recorded: ServedStore) -> None:
    before = recorded.store.state(agent="clerk").history("discount")
    veto, named, failed, changed, usual = items(recorded, "/hooks/executions")

    def replayed(each: Any, **body: Any) -> Answer:
        return recorded.change("POST", f"{execution(each['reference'])}/replays", body)

    for each in (failed, changed):
        same = replayed(each).json
        assert same["matches"]
        assert same["recorded_outcome"] == each["outcome"]
        assert same["recorded_seconds"] == each["duration"]
    other = replayed(changed, value=5).json
    assert (other["outcome"], other["matches"]) == ("ok", False)
    assert '- "result": 100' in other["diff"]
    for each in (veto, named):
        assert replayed(each).status == 422  # only the outcome is recorded
    assert recorded.store.state(agent="clerk").history("discount") == before
    assert recorded.store.hooks.get(usual["reference"]).outcome == "ok"
    with recorded.service.replaying():
        assert replayed(changed).status == 503


def test_a_recorded_run_is_shown_step_by_step(recorded: ServedStore) -> None:
    steps = items(recorded, RECORDING)
    names = [task["task"] for step in steps for task in step["tasks"]]
    assert names == ["6:answer", "5:look", "2:answer", "1:look"]
    assert all(step["seconds"] is not None for step in steps)
    answer = steps[0]["tasks"][0]["calls"][0]
    assert (answer["name"], answer["kind"], answer["given"]) == ("6:answer#0", "model", 6)
    assert answer["answer"]["text"] == "Take the coast path."
    assert [each["role"] for each in answer["messages"]] == ["system", "user", "user", "assistant", "user", "user"]
    assert answer["messages"][4]["text"] == "And <b>where</b> shall I walk?"
    look, failed = steps[1]["tasks"][0]["calls"]
    assert (look["input"], look["result"], look["error"]) == ({"town": "Whitby"}, "Whitby: sunny", "")
    assert (failed["result"], failed["name"]) == (None, "5:look#1")
    assert "there is no such town" in failed["error"]
    first = recorded.get(f"{RECORDING}?limit=3").json
    rest = items(recorded, f"{RECORDING}?cursor={quote(first['next'], safe='')}")
    assert [each["id"] for each in [*first["items"], *rest]] == [each["id"] for each in steps]
    second = steps[1]["id"]
    assert items(recorded, f"{RECORDING}?at={quote(second, safe='')}")[0]["id"] == second
    assert recorded.get(f"{RECORDING}?limit=201").status == 400
    assert recorded.get("/threads/none/recording").status == 404


def test_what_is_not_recorded_in_full_or_not_there_any_more_is_said(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"messages": [{"role": "user", "content": "hello"}]}, id="c0")
        long = {"role": "assistant", "content": "x" * 9000}
        given = [[["messages", 0, 1], ["gone", 0, 2], ["@results", 0, 1], [long]], ["digest"]]
        records: list[dict[str, Any]] = [
            {"v": 1, "key": "1:a", "step": 1, "calls": [["tool", "t", 1, 2, None, "found"]]},
            {"v": 1, "key": "1:a", "step": 1, "calls": [["tool", "t", 1, 0, {"n": 1}, None]], "resumed": ["yes"]},
            {"v": 1, "key": "1:b", "step": 1, "calls": [["tool", "t", 1, 2]], "mode": "incomplete"},
            {"v": 1, "key": "1:c", "step": 1, "calls": [["model", "m", 1, 2, given, long]]},
        ]
        for number, record in enumerate(records):
            writes = [(0, "n", number)]
            run(CheckpointStore(store).put_writes("t", "c0", writes, task_id=f"t{number}", recorded=(99, record)))
        with ServedStore(store) as served:
            (step,) = items(served, "/threads/t/recording")
            assert step["seconds"] is None
            first, again, lost, asked = step["tasks"]
            assert (first["calls"][0]["name"], again["calls"][0]["name"]) == ("1:a#0", "1:a#1")
            assert (again["calls"][0]["ended"], again["resumed"]) == (False, ["yes"])
            assert (lost["mode"], lost["calls"][0]["input"]) == ("incomplete", None)
            call = asked["calls"][0]
            assert (call["given"], call["complete"]) == (5, False)
            assert [each["role"] for each in call["messages"]] == ["user", "assistant", "assistant"]
            assert not call["messages"][1]["complete"]
            assert items(served, "/threads/t/recording?at=c0") == [step]


@pytest.mark.nightly  # every day, a browser does it
def test_a_recorded_run_is_replayed_with_one_result_changed(recorded: ServedStore) -> None:
    before = recorded.store.thread(THREAD).log()
    body = {"since": items(recorded, RECORDING)[1]["id"], "changes": {"5:look#0": "Whitby: rain"}}
    changed = recorded.change("POST", f"/threads/{THREAD}/replays", body).json
    assert not changed["matches"]
    assert changed["divergence"]["step"] == 5
    assert "Whitby: rain" in changed["divergence"]["diff"]
    assert recorded.store.thread(THREAD).log() == before
    assert any(each.action == "replay" for each in recorded.store.audit.query(thread=THREAD))


def test_replays_need_the_code_the_owner_and_a_server_that_may_change(recorded: ServedStore) -> None:
    store = recorded.store
    reference = store.hooks.history()[0].reference
    paths = (f"/threads/{THREAD}/replays", f"{execution(reference)}/replays")
    with ServedStore(store, write=True) as unknown:
        for path in paths:
            assert unknown.request("POST", f"/api/v1{path}", {}).status == 422
    with ServedStore(store, graph=GRAPH, hooks=HOOKS) as reading:
        for path in paths:
            assert reading.request("POST", f"/api/v1{path}", {}).status == 403
    token = store.access.issue_token("user:alice").secret
    store.access.grant("user:alice", "read", thread=THREAD)
    assert len(recorded.get(RECORDING, token=token).json["items"]) == 4
    for path in paths:
        assert recorded.request("POST", f"/api/v1{path}", {}, token=token).status == 403
    for path in ("executions", f"executions/{quote(reference, safe='')}", "statistics"):
        assert recorded.request("GET", f"/api/v1/hooks/{path}", token=token).status == 403
    eve = store.access.issue_token("user:eve").secret
    assert recorded.request("GET", f"/api/v1/threads/{THREAD}/recording", token=eve).status == 404
