"""Jobs, the audit, previews of artifacts, metrics and actions on several threads, as pages have them."""

from __future__ import annotations

import base64
import gzip
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.interfaces.cli.main import cli
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import Answer, ServedStore
from tests.interfaces.web.kit import HOSTILE
from tests.interfaces.web.test_actions import post
from tests.interfaces.web.test_pages import get, read, signed_in

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)">{HOSTILE}</svg>'.encode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    """A store with some threads, that may be changed."""
    with holdfast.open(tmp_path / "a.db") as store:
        for name in ("a", "b", "c/d"):
            for n in range(4):
                store.thread(name).put({"n": n, "said": HOSTILE}, id=f"{name}-{n}")
        with ServedStore(store, page_routes, write=True) as served:
            yield served


def bulk(served: ServedStore, action: str, *names: str, **fields: str) -> Answer:
    """Send the form of an action on several threads."""
    ticked = [("thread", name) for name in names]
    return post(served, f"/bulk/{action}", [*ticked, *fields.items(), ("do", "1")])


def test_ticked_threads_are_tagged_exported_pruned_and_deleted(served: ServedStore) -> None:
    store = served.store
    assert all(
        f'formaction="/bulk/{each}"' in get(served, "/threads").text for each in ("tag", "export", "prune", "delete")
    )
    store.thread("b").tag("good", "b-1")
    shown = get(served, "/bulk/tag?thread=a&thread=b&tag=good")
    assert "and an older step no more" in shown.text
    assert "good" not in store.thread("a").tags(), "a look changes nothing"
    assert bulk(served, "tag", "a", "b", tag="good").status == 303
    assert [store.thread(each).tags()["good"] for each in ("a", "b")] == ["a-3", "b-3"]
    shown = get(served, "/bulk/prune?thread=a&thread=c%2Fd&keep_last=1")
    assert "6 steps are removed for good" in shown.text
    assert store.thread("a").info().steps == 4
    assert "it is done only if" in bulk(served, "prune", "a", "c/d", keep_last="1", typed="prune").text
    assert bulk(served, "prune", "a", "c/d", keep_last="1", typed="prune 2").status == 303
    assert [store.thread(each).info().steps for each in ("a", "b", "c/d")] == [1, 4, 1]
    file = bulk(served, "export/file", "b", "c/d", format="json")
    assert file.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in file.headers["content-security-policy"]
    text = gzip.decompress(file.body).decode()
    assert ("b-0" in text, "a-3" in text) == (True, False)
    store.thread("c/d").hold(reason="case 17")
    assert "hold" in bulk(served, "delete", "b", "c/d", typed="delete 2").text
    assert [each.thread for each in store.threads()] == ["a", "b", "c/d"], "all or none"
    shown = get(served, "/bulk/delete?thread=a&thread=b")
    assert "2 threads with 5 steps are deleted for good" in shown.text
    assert bulk(served, "delete", "a", "b", typed="delete 2").status == 303
    assert [each.thread for each in store.threads()] == ["c/d"]
    assert "no thread is ticked" in get(served, "/bulk/delete").text
    assert get(served, "/bulk/nothing?thread=c%2Fd").status == 404


def test_an_identity_tags_in_bulk_what_it_may_and_no_more(served: ServedStore) -> None:
    store = served.store
    store.access.grant("user:bob", ["read", "write"], thread="a")
    store.access.grant("user:bob", "read", thread="b")
    token = store.access.issue_token("user:bob").secret
    cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}", "Origin": served.url}
    page = served.request("GET", "/threads", token=None, headers=cookie).text
    assert re.findall(r'formaction="/bulk/(\w+)"', page) == ["tag"]
    csrf = re.findall(r'data-csrf="([0-9a-f]+)"', page)[0]
    for action, status in (("tag", 200), ("delete", 404), ("prune", 404), ("export", 404), ("export/file", 403)):
        body = f"thread=a&thread=b&tag=mine&typed=delete+2&do=1&csrf={csrf}".encode()
        headers = {**cookie, "Content-Type": "application/x-www-form-urlencoded"}
        answer = served.request("POST", f"/bulk/{action}", body, token=None, headers=headers)
        assert answer.status == status, action
    assert "mine" not in store.thread("b").tags()
    assert store.thread("b").info().steps == 4
    body = f"thread=a&tag=own&do=1&csrf={csrf}".encode()
    headers = {**cookie, "Content-Type": "application/x-www-form-urlencoded"}
    assert served.request("POST", "/bulk/tag", body, token=None, headers=headers).status == 303
    assert "own" in store.thread("a").tags()


def test_a_job_is_run_and_its_schedule_changed(served: ServedStore) -> None:
    store = served.store
    store.jobs.add("nightly", "verify", schedule="0 3 * * *", settings={"level": "structure"}, paused=True)
    assert post(served, "/jobs/nightly/run", []).status == 303
    assert store.jobs.get("nightly").runs[0].outcome == "ok"
    shown = get(served, "/jobs/nightly/schedule?schedule=every+6h")
    assert "It runs every 6h" in shown.text
    assert "five fields" in post(served, "/jobs/nightly/schedule", [("schedule", "0 3"), ("do", "1")]).text
    assert store.jobs.get("nightly").schedule == "0 3 * * *"
    assert post(served, "/jobs/nightly/schedule", [("schedule", "every 6h"), ("do", "1")]).status == 303
    job = store.jobs.get("nightly")
    assert (job.schedule, dict(job.settings), job.paused, len(job.runs)) == (
        "every 6h",
        {"level": "structure"},
        True,
        1,
    )
    store.jobs.add("broken", "backup", settings={"repository": "/nonexistent\0"})
    assert post(served, "/jobs/broken/run", []).status == 303
    failed = store.jobs.get("broken").runs[0]
    assert failed.outcome == "failed"
    assert html.escape(failed.error) in get(served, "/jobs/broken").text.replace("&#39;", "&#x27;")
    assert post(served, "/jobs/nightly/run", [], csrf="0" * 64).status == 403
    with ServedStore(store, page_routes) as reading:
        assert "Run now" not in get(reading, "/jobs/nightly").text
        assert post(reading, "/jobs/nightly/run", []).status == 403


def test_the_audit_has_exact_times_and_links(served: ServedStore) -> None:
    store = served.store
    store.as_identity("user:bob").state(user="bob")["language"] = "en"
    store.access.grant("user:bob", "read", thread="a")
    found = next(each for each in store.audit.query(scope="user:bob"))
    text = get(served, "/audit").text
    assert f"{found.time:%Y-%m-%d %H:%M:%S}" in text
    assert 'href="/state/user%3Abob/language"' in text
    assert 'href="/audit?actor=user%3Abob"' in text
    assert found.correlation in text
    assert get(served, "/audit?actor=user%3Abob").status == 200
    assert 'href="/threads/a"' in text


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("x.html", HOSTILE.encode(), "text"),
        ("x.svg", SVG, "text"),
        ("x.png", SVG, "text"),
        ("x.csv", f"a,b\n{HOSTILE.replace(',', ' ')},2\n".encode(), "table"),
        ("x.json", b'{"a": "</pre><script>alert(1)</script>"}', "text"),
        ("x.pdf", b"%PDF-1.4\n<script>alert(1)</script>", "document"),
        ("x.pdf", HOSTILE.encode(), "text"),
        ("x.png", PNG, "image"),
        ("x.html", PNG + HOSTILE.encode(), "image"),
        ("x.txt", b"\xff\xfe\x00\x01" * 9, ""),
        ("x.json", b"[" * 100_000, "text"),
    ],
)
def test_a_preview_never_has_our_origin(served: ServedStore, name: str, data: bytes, kind: str) -> None:
    served.store.artifacts.register(data, id="x", name=name)
    answer = get(served, "/artifacts/x")
    assert answer.status == 200
    found = read(answer)
    frames = [value for value in found.suspicious if value.startswith("iframe src=data:application/pdf;base64,")]
    assert found.suspicious == frames
    assert "<script>document" not in answer.text
    assert "<script>alert" not in answer.text
    shown = {
        "text": '<pre class="text scroll-y"' in answer.text,
        "table": '<td dir="auto">' in answer.text,
        "image": "/artifacts/x/image" in found.images,
        "document": bool(frames),
    }
    assert [each for each, is_so in shown.items() if is_so] == ([kind] if kind else [])
    assert ("frame-src data:" in answer.headers["content-security-policy"]) is (kind == "document")
    image = get(served, "/artifacts/x/image")
    assert image.status == (200 if kind == "image" else 404)
    if kind == "image":
        assert image.headers["content-type"] == "image/png"
        assert image.headers["content-security-policy"] == "sandbox; default-src 'none'"


def test_hooks_say_their_message_where_values_are_recorded(served: ServedStore) -> None:
    store = served.store

    def fail(call: object) -> None:
        raise ValueError(f"the secret of {HOSTILE}")

    recordings: list[tuple[Literal["full", "digest"], bool]] = [("full", True), ("digest", False)]
    for record, quotes in recordings:
        store.hooks.before("state.set", name=f"fails-{record}", record=record)(fail)
        store.state(agent="writer")["x"] = record
        store.hooks.remove(f"fails-{record}")
        (found,) = store.hooks.history(f"fails-{record}")
        assert ("message" in found.detail) is quotes
        for path in (f"/hooks?hook=fails-{record}", f"/hooks/calls/{found.reference.replace('/', '%2F')}"):
            text = get(served, path).text
            assert "ValueError" in text
            assert ("the secret of &lt;script" in text) is quotes, path
            assert "<script>document" not in text


def test_metrics_have_what_the_store_knows_and_a_link(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("a").put({"n": 1})
        store.jobs.add("nightly", "verify")
        store.jobs.run("nightly")
        with ServedStore(store, page_routes, grafana="https://grafana.example/d/1?a=1&b=2") as served:
            text = get(served, "/metrics/plots").text
            assert "1 run since" in text
            assert "Threads by the day" in text
            assert 'href="https://grafana.example/d/1?a=1&amp;b=2" rel="noreferrer noopener"' in text
    result = CliRunner().invoke(cli, ["ui", str(tmp_path / "a.db"), "--grafana", "javascript:alert(1)"])
    assert result.exit_code != 0
    assert "must begin with https://" in str(result.exception)


def test_a_restore_is_shown_for_a_thread_that_has_gone_on(served: ServedStore, tmp_path: Path) -> None:
    store = served.store
    repository = store.backups(tmp_path / "backups")
    repository.create()
    repository.schedule("every 1h")
    assert "In place" not in get(served, "/backups?backup=1").text
    store.thread("a").put({"n": 9})
    text = get(served, "/backups?backup=1").text
    assert "In place, what came since stays on its branch" in text
    assert "in_place=True" in text
    assert "restore-conflict" not in text
    assert store.thread("a").get().state == {"n": 9}


def test_forms_of_other_sites_change_nothing(served: ServedStore) -> None:
    store = served.store
    store.jobs.add("nightly", "verify", schedule="0 3 * * *")
    page = get(served, "/threads")
    csrf = re.findall(r'data-csrf="([0-9a-f]+)"', page.text)[0]
    body = f"thread=a&typed=delete+1&tag=x&schedule=&who=user%3Abob&do=1&csrf={csrf}".encode()
    for path in ("/bulk/delete", "/bulk/tag", "/jobs/nightly/run", "/jobs/nightly/schedule", "/access/actions/freeze"):
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{served.port}"):
            headers = {**signed_in(served), "Origin": origin, "Content-Type": "application/x-www-form-urlencoded"}
            assert served.request("POST", path, body, token=None, headers=headers).status == 403, (path, origin)
    assert ([each.thread for each in store.threads()], store.thread("a").tags()) == (["a", "b", "c/d"], {})
    assert (store.jobs.get("nightly").runs, store.jobs.get("nightly").schedule) == ((), "0 3 * * *")
    assert store.access.frozen() == {}
    assert bulk(served, "tag", "a", tag="x").status == 303, "the control: our own form does"
