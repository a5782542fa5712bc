"""Threads that failed, wait, or have a tool that failed: pages hide none of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import holdfast
from holdfast.engine.types import Question
from holdfast.interfaces.web.action_plan import ActionForm, UnmetError
from holdfast.interfaces.web.answer_plan import plan_answer
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.kit import HOSTILE
from tests.interfaces.web.test_pages import get, signed_in
from tests.interfaces.web.waiting_graphs import Chat, graph_of, run_graphs

ERROR = "the payment service refused: card declined (do not retry)"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """A served store with threads of graphs, and one that no graph made."""
    with holdfast.open(tmp_path_factory.mktemp("graphs") / "agents.db") as store:
        run_graphs(store)
        store.thread("plain").put({"n": 1})
        with ServedStore(store, page_routes) as served:
            yield served


def rows(text: str) -> dict[str, str]:
    """The rows of the table of threads, by the thread that they lead to."""
    found = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
    return {match[1]: row for row in found if (match := re.search(r'href="/threads/([^"]+)"', row))}


def test_the_list_shows_status_last_message_and_user(graphs: ServedStore) -> None:
    found = rows(get(graphs, "/threads").text)
    assert set(found) == {"refund-17", "refund-18", "weather-3", "plain"}
    assert "outcome warn" in found["refund-17"]
    assert "outcome bad" in found["refund-18"]
    assert "tool failed: TimeoutError" in found["weather-3"]
    assert ">ada<" in found["weather-3"]
    assert ">ada<" not in found["plain"]


@pytest.mark.parametrize(("status", "expected"), [("failed", {"refund-18"}), ("waiting", {"refund-17"})])
def test_the_list_is_filtered_by_status(graphs: ServedStore, status: str, expected: set[str]) -> None:
    assert set(rows(get(graphs, f"/threads?status={status}").text)) == expected
    assert set(rows(get(graphs, f"/threads?status={status}&sort=name").text)) == expected


def test_a_failed_thread_says_why(graphs: ServedStore) -> None:
    text = get(graphs, "/threads/refund-18").text
    assert re.search(r'class="status bad".*?in <b>charge</b>.*?<b>ConnectionError</b>', text, re.DOTALL)
    assert ERROR in text
    assert 'class="call failed"' in text
    assert "no result yet" not in text
    assert 'class="fails"' in text
    assert "__error__" not in get(graphs, "/threads/refund-18?tab=pending").text


def test_an_earlier_step_of_a_failed_thread_leads_to_the_failure(graphs: ServedStore) -> None:
    first = graphs.store.thread("refund-18").log()[-1]
    text = get(graphs, f"/threads/refund-18/{first.id}").text
    assert 'class="status bad"' in text
    assert '<a href="/threads/refund-18">Go there</a>' in text


def test_a_waiting_thread_says_so_and_others_do_not(graphs: ServedStore) -> None:
    assert 'class="status warn"' in get(graphs, "/threads/refund-17").text
    for name in ("weather-3", "plain"):
        assert 'class="status ' not in get(graphs, f"/threads/{name}").text


def test_the_result_of_a_failed_tool_looks_failed(graphs: ServedStore) -> None:
    text = get(graphs, "/threads/weather-3").text
    assert 'class="call failed"' in text
    assert 'title="A tool failed"' in text
    entries = graphs.request("GET", "/api/v1/threads/weather-3/log").json["items"]
    assert [each["failed"] for each in entries] == [True, *[False] * (len(entries) - 1)]


def test_a_failure_is_an_event_of_the_timeline(graphs: ServedStore) -> None:
    events = graphs.store.timeline.query(errors=True)
    assert [(each.action, each.scope, each.summary) for each in events] == [
        ("fail", "thread:refund-18", "ConnectionError")
    ]
    assert ERROR not in str(events)  # it may be about a person: the thread has it
    assert "refund-18" in get(graphs, "/timeline?errors=true").text


def test_a_list_for_an_identity_has_no_messages() -> None:
    with holdfast.open("memory://") as store:
        view = store.as_identity(user="eve")
        view.thread("own").put({"messages": [{"role": "user", "content": "hello"}]})
        assert [(each.name, each.message) for each in view.threads(preview=True)] == [("own", "")]
        assert [each.message for each in store.threads(preview=True)] == ["user: hello"]  # the control


def test_attention_is_listed_the_most_urgent_first(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        store.thread("quiet").put({"n": 1})
        assert 'aria-label="Needs attention"' not in get(served, "/").text
        run_graphs(store)
        store.runs.submit("quiet", graph="missing", attempts=1)
        store.jobs.add("nightly", "verify", schedule="every 1h")
        text = get(served, "/").text
    found = re.search(r'aria-label="Needs attention".*?</section>', text, re.DOTALL)
    assert found is not None
    assert re.findall(r"outcome \w+\">(\w[\w-]*)<", found[0]) == ["waiting", "failed"]
    assert ERROR in found[0]


def test_markup_in_errors_and_users_is_text(tmp_path: Path) -> None:
    def fail(state: Chat) -> dict[str, Any]:
        raise ValueError(HOSTILE)

    with holdfast.open(tmp_path / "a.db") as store:
        graph = graph_of(fail, store)
        with pytest.raises(ValueError, match="owned"):
            graph.invoke(
                {"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "odd", "user_id": HOSTILE}}
            )
        with ServedStore(store, page_routes) as served:
            for path in ("/", "/threads", "/threads/odd", "/threads/odd?tab=pending", "/timeline?errors=true"):
                text = get(served, path).text
                assert "odd" in text
                assert "<img src=x" not in text
                assert "<script>document" not in text


# Answers ----------------------------------------------------------------------------------------------------------


def plan(question: Question, **fields: str) -> dict[str, Any]:
    """The body of the request that a form makes, filled in with these fields."""
    with holdfast.open("memory://") as store:
        thread = SimpleNamespace(status=lambda: SimpleNamespace(status="waiting", questions=[question]))
        target: Any = SimpleNamespace(
            thread=thread, name="chat", address="/api/v1/threads/chat", python="store.thread('chat')", store=store
        )
        form = ActionForm({name: [value] for name, value in fields.items()})
        found = plan_answer(target, form)
        assert found.request is not None
        body: dict[str, Any] = json.loads(found.request.body)
        return body


HITL = {
    "action_requests": [{"name": "pay", "args": {"eur": 9}, "description": "Pay?"}, {"name": "mail", "args": {}}],
    "review_configs": [
        {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]},
        {"action_name": "mail", "allowed_decisions": ["respond"]},
    ],
}
HUMAN = [
    {"action_request": {"action": "pay", "args": {"eur": 9}}, "config": {"allow_accept": True, "allow_edit": True}}
]
TOOL = {"type": "tool_approval", "tool_call_id": "1", "name": "pay", "args": {"eur": 9}, "description": "Pay?"}
SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "eur": {"type": "number"},
        "note": {"type": "string"},
        "kind": {"enum": ["full", "part"]},
    },
    "required": ["ok"],
}


@pytest.mark.parametrize(
    ("value", "schema", "fields", "answer"),
    [
        (HUMAN, None, {}, [{"type": "accept", "args": None}]),
        (
            HUMAN,
            None,
            {"0.how": "edit", "0.args": '{"eur": 8}'},
            [{"type": "edit", "args": {"action": "pay", "args": {"eur": 8}}}],
        ),
        (HUMAN, None, {"0.how": "ignore"}, [{"type": "accept", "args": None}]),  # it is not allowed
        (
            HITL,
            None,
            {"0.how": "reject", "0.message": "no", "1.message": "sent"},
            {"decisions": [{"type": "reject", "message": "no"}, {"type": "respond", "message": "sent"}]},
        ),
        (
            HITL,
            None,
            {"0.how": "edit", "0.args": "{}", "1.message": "x"},
            {
                "decisions": [
                    {"type": "edit", "edited_action": {"name": "pay", "args": {}}},
                    {"type": "respond", "message": "x"},
                ]
            },
        ),
        (TOOL, {"discriminator": {"mapping": {"reject": "#"}}}, {}, {"type": "reject"}),
        ("How?", SCHEMA, {"value.ok": "false", "value.eur": "2.5"}, {"ok": False, "eur": 2.5, "kind": "full"}),
        ("How?", {"type": "string"}, {"value.": "well"}, "well"),
        ("How?", None, {"value": "two\r\nlines"}, "two\nlines"),
        ("How?", None, {"value": "[1]", "as": "json"}, [1]),
    ],
)
def test_a_form_makes_the_answer_that_the_graph_expects(
    value: Any, schema: Any, fields: dict[str, str], answer: Any
) -> None:
    assert plan(Question("7f", "node", value, schema), **fields) == {"value": answer, "question": "7f"}


def test_an_answer_that_is_not_json_says_where() -> None:
    with pytest.raises(UnmetError) as unmet:
        plan(Question("7f", "node", "How?"), value='{"a": 1,\n b}', **{"as": "json"})
    assert unmet.value.plan.problem is not None
    assert "line 2" in unmet.value.plan.problem.detail


def test_who_may_not_write_gets_no_form(graphs: ServedStore) -> None:
    text = get(graphs, "/threads/refund-17").text
    assert "Refund <strong>42.50 EUR</strong>" in text
    assert "data-apply" not in text
    assert "store.thread(&#39;refund-17&#39;).answer(" in text


def test_the_page_of_a_waiting_thread_has_the_form(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        run_graphs(store)
        with ServedStore(store, page_routes, write=True) as served:
            text = get(served, "/threads/refund-17").text
            assert 'value="accept" data-whole checked' in text
            assert 'data-address="/api/v1/threads/refund-17/answers"' in text
            question = store.thread("refund-17").status().questions[0].id
            path = "/threads/refund-17/HEAD/actions/answer"
            foreign = served.request(
                "POST", path, headers={**signed_in(served), "Origin": "https://evil.example"}, token=None
            )
            assert foreign.status in (401, 403)
            store.thread("refund-17").answer("here", question=question)
            assert "Unfinished" in get(served, "/threads/refund-17").text
            assert "waits for no such answer" in get(served, path).text
