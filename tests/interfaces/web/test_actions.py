"""Actions on a thread as the server prepares them: what they would do, as a command, and the request that makes it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote, urlencode

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import holdfast
from holdfast.interfaces.web.actions import ACTIONS
from holdfast.interfaces.web.pages import page_routes
from holdfast.schemas import Schema, SchemaSet
from tests.interfaces.http.kit import Answer, ServedStore
from tests.interfaces.web.kit import HOSTILE, Baker, fill_odd, fill_steps
from tests.interfaces.web.test_pages import get, read, signed_in


class HasGoal(TypedDict):
    """The form of a state."""

    goal: str


@pytest.fixture
def writable(tmp_path: Path) -> Iterator[ServedStore]:
    """A thread with two branches that changed the same, and odd threads; with changes allowed."""
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("t")
        for n in range(3):
            thread.put({"n": n, "plan": ["think"], "goal": "explain"}, id=f"c{n}")
        thread.fork("draft", "c1", changes={"n": 10, "plan": ["think", "draw"]})
        thread.tag("good", "c1")
        fill_odd(store)
        with ServedStore(store, page_routes, write=True) as served:
            yield served


def post(served: ServedStore, path: str, fields: list[tuple[str, str]], csrf: str | None = None) -> Answer:
    """Send the form of an action, as a browser does."""
    cookie = signed_in(served)
    if csrf is None:
        csrf = re.findall(r'data-csrf="([0-9a-f]+)"', served.request("GET", "/", token=None, headers=cookie).text)[0]
    body = urlencode([*fields, ("csrf", csrf)]).encode()
    headers = {**cookie, "Origin": served.url, "Content-Type": "application/x-www-form-urlencoded"}
    return served.request("POST", path, body, token=None, headers=headers)


def request_of(answer: Answer) -> tuple[str, str, Any] | None:
    """The request that a page would send; None if it cannot."""
    found = re.search(r'data-method="(\w+)" data-address="([^"]*)" data-body="([^"]*)"', answer.text)
    if found is None:
        return None
    body = html.unescape(found[3])
    return found[1], html.unescape(found[2]), json.loads(body) if body else None


def apply(served: ServedStore, answer: Answer) -> None:
    """Make the change that a page would make."""
    found = request_of(answer)
    assert found is not None, answer.text
    assert served.request(*found).status in (200, 201)


def test_each_action_shows_what_it_would_do_and_its_request_does_it(writable: ServedStore) -> None:
    thread, at = writable.store.thread("t"), "/threads/t/c1/actions"
    steps = thread.info().steps
    shown = get(writable, f"{at}/fork?branch=what-if")
    assert "holdfast fork t what-if c1" in shown.text
    assert "fork(&#39;what-if&#39;, &#39;c1&#39;)" in shown.text
    edited = post(
        writable, f"{at}/edit", [("branch", "cold"), ("path", "n"), ("value", "7"), ("path", "goal"), ("value", "")]
    )
    assert "--set n=7 --remove goal" in edited.text
    assert "removed" in edited.text
    restored = get(writable, f"{at}/restore")
    assert "What changes" in restored.text
    tagged = get(writable, "/threads/t/c2/actions/tag?tag=good")
    assert "It no longer names #1" in tagged.text
    pinned = get(writable, f"{at}/pin?reason=case+17")
    labelled = get(writable, f"{at}/label?label=fine")
    assert "holdfast label t fine c1" in labelled.text
    pruned = get(writable, f"{at}/prune?keep_last=1")
    assert "removed for good" in pruned.text
    assert 'data-typed="t"' in pruned.text
    assert thread.info().steps == steps, "nothing is changed by looking"
    for each in (shown, edited, restored, tagged, labelled, pinned):
        apply(writable, each)
    assert thread.get("what-if").state == thread.get("c1").state
    assert thread.get("cold").state == {"n": 7, "plan": ["think"]}
    assert thread.get().state["n"] == 1
    assert thread.tags()["good"] == "c2"
    assert [pin.reason for pin in thread.pins()] == ["case 17"]
    apply(writable, get(writable, f"{at}/unpin"))
    apply(writable, get(writable, "/threads/t/c2/actions/untag"))
    assert thread.labels() == {"fine": ["c1"]}
    thread.label("fine", "c2")
    assert "2 other steps of the thread have it" in get(writable, "/threads/t/c0/actions/label?label=fine").text
    apply(writable, get(writable, f"{at}/unlabel"))
    assert thread.labels() == {"fine": ["c2"]}
    assert "has no such label" in get(writable, f"{at}/unlabel").text
    thread.unlabel("fine")
    assert (thread.pins(), thread.tags()) == ([], {})
    apply(writable, pruned)
    with pytest.raises(holdfast.errors.NotFoundError):
        thread.get("c0")


def test_what_concerns_the_thread_does_not_name_a_step(writable: ServedStore) -> None:
    for action, has_step in (("fork", True), ("merge", False), ("prune", False)):
        text = get(writable, f"/threads/t/c1/actions/{action}").text
        title, heading = (re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", text)[0] for tag in ("title", "h1"))
        assert ("#1" in title) == ("#1" in heading) == has_step, action


def test_actions_on_steps_timers_and_signals_show_what_they_would_do(writable: ServedStore) -> None:
    store, page = writable.store, "/agents/baker"
    baker = Baker().attach(store, "baker")
    baker.start()
    empty = get(writable, page).text
    assert all(f"<code>agent.{each}(" in empty for each in ("once", "timers.set", "wait_for"))
    fill_steps(store, baker)
    shown = get(writable, page).text
    assert "Without an outcome: 1 step" in shown
    assert "holdfast agent steps baker" in shown
    retried = get(writable, f"{page}/steps/charge-43/resolve?how=retry")
    assert "holdfast agent resolve-step baker charge-43 --retry" in retried.text
    assert "as attempt 2, with the same idempotency key" in retried.text
    assert 'data-typed="charge-43"' in retried.text
    failed = post(writable, f"{page}/steps/charge-44/resolve", [("how", "error"), ("value", "no &c")])
    assert "error=&#39;no &amp;c&#39;)" in failed.text
    cancelled = get(writable, f"{page}/timers/reminder/cancel")
    assert "the signal reminder is not sent" in cancelled.text
    sent = get(writable, f"{page}/signal?name=paid&value=%7B%22n%22%3A1%7D&signal_id=s1")
    assert "signal(&#39;baker&#39;, &#39;paid&#39;, {&#39;n&#39;: 1}, id=&#39;s1&#39;)" in sent.text
    for path in (
        "steps/charge-43/resolve",
        "steps/charge-43/resolve?how=error",
        "steps/charge-43/resolve?how=result&value=x",
        "steps/charge-42/resolve?how=retry",
        "timers/none/cancel",
        "signal",
        "signal?name=a&value=x",
    ):
        answer = get(writable, f"{page}/{path}")
        assert (answer.status, request_of(answer)) == (200, None), path
        assert "(&#39;charge-43&#39;, retry=True)" not in answer.text, "what is copied does nothing unchosen"
    for path in ("steps/none/resolve", "x/steps/charge-43/resolve"):
        assert get(writable, f"{page}/{path}").status == 404, path
    steps, timers = store.agents.steps("baker"), store.agents.timers("baker")
    assert (steps.get("charge-43").state, len(timers.list()), len(steps.signals())) == ("running", 2, 1)
    for each in (retried, failed, cancelled, sent):
        apply(writable, each)
    assert steps.get("charge-43").state == "waiting"
    assert steps.get("charge-44").error == "HandlerError: no &c"
    assert [each.name for each in timers.list()] == ["give-up"]
    assert [(each.name, each.value) for each in steps.signals()] == [("approved", {"by": "Ada"}), ("paid", {"n": 1})]


def test_actions_on_steps_are_offered_to_who_may(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        baker = Baker().attach(store, "baker")
        baker.start()
        fill_steps(store, baker)
        store.access.grant("user:eve", "read", agent="baker")
        reads = store.access.grant("user:eve", "read", agent="baker", custom="steps/main")
        store.access.grant("user:eve", "write", agent="baker", custom="steps/main", keys="signal")
        token = store.access.issue_token("user:eve").secret
        actions = ("steps/charge-43/resolve", "timers/reminder/cancel", "signal")
        for write, offered in ((True, [False, False, True]), (False, [False, False, False])):
            with ServedStore(store, page_routes, write=write) as served:
                cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}

                def load(path: str, served: ServedStore = served, cookie: dict[str, str] = cookie) -> Answer:
                    return served.request("GET", path, token=None, headers=cookie)

                shown = load("/agents/baker")
                assert "charge-43" in shown.text, "it may read the steps"
                assert [f'href="/agents/baker/{each}"' in shown.text for each in actions] == offered
                assert [load(f"/agents/baker/{each}").status == 200 for each in actions] == offered
        store.access.revoke(reads)
        with ServedStore(store, page_routes, write=True) as served:
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}
            shown = served.request("GET", "/agents/baker", token=None, headers=cookie)
            assert "charge-43" not in shown.text, "it may not read the steps, and only that is missing"
            assert (shown.status, 'href="/agents/baker/signal"' in shown.text) == (200, True)


def test_undelivered_calls_are_retried_and_discarded_by_who_may(writable: ServedStore, served: ServedStore) -> None:
    page = "/hooks/undelivered"
    assert "Every call was delivered" in get(writable, page).text
    for store in (writable.store, served.store):
        store.hooks.after("state.set", durable=True, attempts=1, max_failures=9, name="deliver")(lambda _: 1 / 0)
        for n in range(2):
            store.state(agent=HOSTILE)[f"k{n}"] = n
        assert store.hooks.drain(60)
        store.hooks.remove("deliver")
    shown = get(writable, f"{page}?hook=deliver&state=failed").text
    assert "holdfast hooks undelivered deliver --state failed" in shown
    assert shown.count("ZeroDivisionError") == 2
    one, two = (quote(each.reference, safe="") for each in writable.store.hooks.undelivered())
    assert post(writable, f"{page}/{one}/retry", []).status == 303
    assert post(writable, f"{page}/{two}/discard", [], csrf="0" * 64).status == 403
    assert [each.state for each in writable.store.hooks.undelivered()] == ["failed", "pending"]
    assert post(writable, f"{page}/{two}/discard", []).status == 303
    assert [each.state for each in writable.store.hooks.undelivered()] == ["pending"]
    assert post(writable, f"{page}/{one}/other", []).status == 404
    assert get(writable, f"{page}?state=lost").status == 200
    shown = get(served, page).text
    assert (shown.count("ZeroDivisionError"), "Retry</button>" in shown) == (2, False)
    other = quote(served.store.hooks.undelivered()[0].reference, safe="")
    assert post(served, f"{page}/{other}/discard", []).status == 403
    assert len(served.store.hooks.undelivered()) == 2


def test_a_job_is_paused_and_resumed_by_who_may(writable: ServedStore, served: ServedStore) -> None:
    jobs, page = writable.store.jobs, "/jobs/nightly"
    jobs.add("nightly", "verify", schedule="0 3 * * *")
    assert "holdfast jobs pause nightly" in get(writable, page).text
    assert post(writable, f"{page}/pause", []).status == 303
    assert jobs.get("nightly").paused
    assert post(writable, f"{page}/resume", [], csrf="0" * 64).status == 403
    assert jobs.get("nightly").paused
    assert post(writable, f"{page}/resume", []).status == 303
    assert not jobs.get("nightly").paused
    assert post(writable, f"{page}/other", []).status == 404
    assert 'action="/jobs/nightly' not in get(served, page).text
    assert post(served, f"{page}/pause", []).status == 403
    assert not served.store.jobs.get("nightly").paused


def test_an_artifact_is_downloaded(writable: ServedStore) -> None:
    content = b"<svg onload=alert(1)>" * 1000
    made = writable.store.artifacts.register(content, type="drawing", producer="test", name="kelp.svg")
    found = re.search(r'href="([^"]*)" download="kelp.svg"', get(writable, f"/artifacts/{made.id}").text)
    assert found is not None
    answer = writable.request("GET", html.unescape(found[1]), token=None, headers=signed_in(writable))
    assert answer.body == content
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]


def test_conflicts_of_a_merge_stand_side_by_side_until_each_has_a_side(writable: ServedStore) -> None:
    thread, at = writable.store.thread("t"), "/threads/t/HEAD/actions/merge"
    thread.update({"plan": ["think", "write"]})
    fields = [("theirs", "draft"), ("into", "main")]
    shown = post(writable, at, fields)
    assert re.findall(r'<legend class="mono">([^<]+)', shown.text) == ["n", "plan[1:2]"]
    assert request_of(shown) is None
    chosen = [*fields, ("resolve:n", "theirs")]
    assert request_of(post(writable, at, chosen)) is None, "one is left"
    both = post(writable, at, [*chosen, ("resolve:plan[1:2]", "union")])
    assert "--resolve n=theirs --resolve &#39;plan[1:2]=union&#39;" in both.text
    apply(writable, both)
    assert thread.get().state == {"n": 10, "plan": ["think", "write", "draw"], "goal": "explain"}
    assert "stays as it is" in post(writable, at, fields).text


def fields_of(text: str) -> list[tuple[str, str]]:
    """The fields of the form on a page, as a browser would send them."""
    named = r'<input type="hidden" name="(path|kind)" value="([^"]*)"|<input name="(path|branch)" value="([^"]*)"'
    found = re.finditer(rf'{named}|<textarea name="(value)"[^>]*>([^<]*)</textarea>', text)
    pairs = [[each for each in match.groups() if each is not None] for match in found]
    return [(name, html.unescape(value)) for name, value in pairs]


def test_a_message_is_edited_as_text_and_stays_a_message(writable: ServedStore) -> None:
    thread = writable.store.thread("chat")
    call: Any = {"name": "search", "args": {"q": "kelp"}, "id": "c1"}
    blocks: Any = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "data:image/png,"}}]
    said = [HumanMessage('a "text"\nof two lines', id="1"), AIMessage("", id="2", tool_calls=[call])]
    thread.put({"messages": [*said, HumanMessage(blocks, id="3")], "plan": {"goal": "rest"}}, id="c1")
    thread.fork("edit-0", "c1")
    at = "/threads/chat/c1/actions/edit"

    def edited(path: str, old: str, new: str) -> Answer:
        shown = get(writable, f"{at}?path={quote(path)}", **{"X-Fragment": "inline"})
        assert request_of(shown) is None
        fields = fields_of(shown.text)
        assert fields[0] == ("branch", "edit-0-2"), "a name that is free"
        assert [value for name, value in fields if name == "value"].count(old) == 1, fields
        return post(writable, at, [(name, new if value == old else value) for name, value in fields])

    text = edited("messages[0]", 'a "text"\nof two lines', "<b>another</b>\n\ntext")
    assert request_of(text) == (
        "POST",
        "/api/v1/threads/chat/forks",
        {"branch": "edit-0-2", "at": "c1", "changes": {"messages[0].content": "<b>another</b>\n\ntext"}, "remove": []},
    )
    arguments = edited("messages[1]", '{\n  "q": "kelp"\n}', '{"q": "dulse"}')
    part = edited("messages[2]", "one", "two")
    goal = edited("plan.goal", "rest", "7")
    for answer in (text, arguments, part, goal):
        request = request_of(answer)
        assert request is not None, answer.text
        request[2]["branch"] = str(id(answer))
        assert writable.request(*request).status == 201
    now = [thread.get(str(id(each))).state["messages"] for each in (text, arguments, part)]
    assert now[0] == [HumanMessage("<b>another</b>\n\ntext", id="1"), *thread.get("c1").state["messages"][1:]]
    assert now[1][1].tool_calls[0]["args"] == {"q": "dulse"}
    assert now[2][2].content == [{"type": "text", "text": "two"}, blocks[1]]
    assert thread.get(str(id(goal))).state["plan"] == {"goal": "7"}
    for path, value, says in (
        ("messages", "[]", "objects of classes"),
        ("messages[0]", "{}", "edit a field, such as messages[0].content"),
        ("plan", '{"a":\n 1,,}', "at line 2, column 4"),
        ("messages[0].colour", "1", "there is no 'colour'"),
    ):
        refused = post(writable, at, [("branch", "x"), ("path", path), ("kind", "json"), ("value", value)])
        assert says in html.unescape(refused.text), path
        assert request_of(refused) is None


def test_a_preview_is_refused_for_what_a_save_would_be(writable: ServedStore) -> None:
    writable.store.schemas.attach(SchemaSet(Schema("plan", "1.0.0", HasGoal)), "plan@1.0.0", threads="plan-*")
    writable.store.thread("plan-1").put({"goal": "rest"}, id="c1")
    at = "/threads/plan-1/c1/actions/edit?branch=x&path=goal"
    assert request_of(get(writable, f"{at}&kind=text&value=work")) is not None
    refused = get(writable, f"{at}&value=7")
    assert request_of(refused) is None
    assert "does not fit the schema plan@1.0.0" in refused.text


REFUSED = (
    ("/threads/t/c1/actions/fork", "has no name yet"),
    ("/threads/t/c1/actions/fork?branch=draft", "there is a branch draft already"),
    ("/threads/t/c1/actions/edit?branch=x&path=n&value=nonsense", "not JSON"),
    ("/threads/t/c1/actions/edit?branch=x&path=n.x&value=1", "no keys to set"),
    ("/threads/t/c1/actions/edit?branch=x&path=a..b&value=1", "a path must have a form such as"),
    ("/threads/t/c1/actions/edit?branch=x&path=none&value=", "nothing to remove"),
    ("/threads/t/c1/actions/edit?branch=x&path=n", "No value differs"),
    ("/threads/t/HEAD/actions/restore", "has this state already"),
    ("/threads/t/c1/actions/merge?theirs=main&into=main", "not merged into itself"),
    ("/threads/t/c1/actions/merge?theirs=none", 'class="wrong"'),
    ("/threads/t/c1/actions/prune?keep_last=many", "must be a number"),
    ("/threads/t/c1/actions/prune?keep_last=&keep_within=soon", "soon"),
    ("/threads/t/c1/actions/prune?keep_last=50", "Nothing would be removed"),
)


def test_what_cannot_be_done_is_said_and_has_no_request(writable: ServedStore) -> None:
    for path, says in REFUSED:
        answer = get(writable, path)
        assert answer.status == 200, path
        assert says.lower() in html.unescape(answer.text).lower(), path
        assert request_of(answer) is None, path


def test_a_change_meanwhile_is_shown_before_it_can_be_made(writable: ServedStore) -> None:
    writable.store.thread("t").update({"n": 77}, id="c3")
    fields = [("tag", "v1"), ("seen", "c2")]
    answer = post(writable, "/threads/t/c1/actions/tag", fields)
    assert "has changed since" in answer.text
    assert "77" in answer.text
    assert request_of(answer) is None
    accepted = post(writable, "/threads/t/c1/actions/tag", [*fields, ("accept", "c3")])
    assert request_of(accepted) is not None
    assert 'data-if-match="c3"' in accepted.text


def test_actions_are_absent_where_nothing_may_be_changed(writable: ServedStore, served: ServedStore) -> None:
    offered = get(writable, "/threads/t/c1").text
    assert 'data-act="fork"' in offered
    for path in ("/threads/t/c1/inspect?path=n", "/threads/t/c1?tab=state", f"/threads/{quote(HOSTILE, safe='')}/c1"):
        assert "data-edit" in get(writable, path).text
    for path in ("/threads/chat-1", "/threads/chat-1/00000050/inspect?path=plan.done", "/threads/chat-1?tab=state"):
        text = get(served, path).text
        assert "data-act" not in text
        assert "data-edit" not in text
    assert "actions.js" not in get(served, "/threads/chat-1").text
    assert get(served, "/threads/chat-1/00000050/actions/fork").status == 403
    store = writable.store
    store.access.grant("user:eve", "read", thread="t")
    store.as_identity("user:eve").thread("own").put({"n": 1}, id="e0")
    cookie = writable.authenticator.sign_in(store.access.issue_token("user:eve").secret)
    own = {"Cookie": f"holdfast_{writable.port}={cookie}"}

    def load(path: str) -> Answer:
        return writable.request("GET", path, token=None, headers=own)

    assert "data-act" not in load("/threads/t/c1").text
    assert load("/threads/t/c1/actions/fork?branch=x").status == 403
    mine = load("/threads/own").text
    assert 'data-act="fork"' in mine
    assert 'data-act="prune"' not in mine
    assert "x" not in [each.name for each in store.thread("t").branches()]


def test_a_form_needs_the_text_of_its_session(writable: ServedStore) -> None:
    assert post(writable, "/threads/t/c1/actions/tag", [("tag", "v1")], csrf="0" * 64).status == 403


def test_markup_in_names_and_fields_stays_text(writable: ServedStore) -> None:
    name = quote(HOSTILE, safe="")
    hostile = quote(HOSTILE)
    for action in ACTIONS:
        names = ("branch", "tag", "label", "reason", "path", "value", "keep_within")
        fields = "&".join(f"{field}={hostile}" for field in names)
        answer = get(writable, f"/threads/{name}/c1/actions/{action}?{fields}&seen=c1", **{"X-Fragment": "action"})
        found = read(answer)
        assert answer.status == 200, action
        assert found.suspicious == [], action
        assert found.scripts == [], action
        assert "&lt;script&gt;" in answer.text, action
    assert get(writable, "/threads/t/c1/actions/none").status == 404
