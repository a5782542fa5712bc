"""Pages as they are sent: complete without a script, escaped, and only for who is signed in."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from types import SimpleNamespace
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.errors import DeniedError
from holdfast.interfaces.cli.main import cli
from holdfast.interfaces.http import authentication
from holdfast.interfaces.web import attention
from holdfast.interfaces.web.lanes import Lanes
from holdfast.interfaces.web.page_renderer import static_version
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import SECONDS, Answer, ServedStore
from tests.interfaces.web.kit import HOSTILE, ODD_VIEWS, VIEWS, fill_agents, find_call
from tests.security.sensitive.samples import github_token


def signed_in(served: ServedStore) -> dict[str, str]:
    """The cookie of a new session."""
    return {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(served.token)}"}


def get(served: ServedStore, path: str, **headers: str) -> Answer:
    """Load a page, signed in."""
    return served.request("GET", path, token=None, headers={**signed_in(served), **headers})


PAGES = (
    *VIEWS.values(),
    "/threads?prefix=chat&sort=updated",
    "/threads/chat-1/00000050/value?path=messages",
    "/artifacts/odd",
)


COMMAND = re.compile(r"<code>(holdfast [^<]*)</code>")


class Markup(HTMLParser):
    """Collects what a page could run, and checks that its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str | None] = []
        self.images: list[str] = []
        self.suspicious: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag == "img":
            self.images.append(given.get("src") or "")
        if tag == "script":
            self.scripts.append(given.get("src"))
        self.suspicious += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            value = given.get(name) or "/"
            if not value.startswith(("/", "#", "data:image/")):
                self.suspicious.append(f"{tag} {name}={value}")


def read(answer: Answer) -> Markup:
    """Read a page."""
    found = Markup()
    found.feed(answer.text)
    return found


@pytest.fixture(scope="module")
def loaded(served: ServedStore) -> dict[str, Answer]:
    """All pages, loaded once."""
    return {path: get(served, path) for path in (*PAGES, find_call(served.store))}


def test_every_page_is_complete_and_runs_only_our_files(loaded: dict[str, Answer]) -> None:
    for path, answer in loaded.items():
        assert answer.status == 200, path
        found = read(answer)
        assert found.tags.count("main") == found.tags.count("h1") == 1 or "/inspect" in path, path
        assert found.suspicious == [], path
        assert all(src and src.startswith(f"/static/{static_version()}/") for src in found.scripts), path
        assert answer.headers["cache-control"] == "no-store"


def test_what_a_page_shows_is_there_without_a_script(served: ServedStore) -> None:
    text = get(served, "/threads/chat-1").text
    for part in ("Brittle stars", "HEAD", "what-if", "May I send this answer", "#120"):
        assert part in text, part
    assert "<strong>no nutrients</strong>" in text
    diff = get(served, "/threads/chat-1/00000050?tab=diff&a=00000040").text
    assert "plan.done" in diff
    inspected = get(served, "/threads/chat-1/00000050/inspect?path=plan.done").text
    assert "Set by" in inspected
    assert "History" in inspected


def test_a_thread_without_messages_opens_on_its_state(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        store.thread("t").put({"n": 1, "plan": {"goal": "rest"}})
        assert re.findall(r'data-tab="(\w+)" aria-current', get(served, "/threads/t").text) == ["state"]
        asked = get(served, "/threads/t?tab=conversation")
        assert asked.status == 200
        assert "The state has 2 channels" in asked.text


def test_a_busy_row_names_two_and_counts_the_others(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"n": 0}, id="c0")
        for tag in ("first", "second", "third"):
            store.thread("t").tag(tag, "c0")
        with ServedStore(store, page_routes) as served:
            row = get(served, "/threads/t").text.partition('<li class="row')[2].partition("</li>")[0]
            assert re.findall(r'class="chip (\w+)" title="([^"]+)">([^<]+)<', row) == [
                ("branch", "main", "main"),
                ("tag", "first", "first"),
                ("others", "second, third", "+2"),
            ]
            growth = get(served, "/").text.partition("<h2>Growth</h2>")[2].partition("</section>")[0]
            assert "now: 1" in growth
            assert "1 new thread with 1 step" in growth


def test_a_branch_that_waits_for_an_answer_says_so_in_the_history(served: ServedStore) -> None:
    rows = get(served, "/threads/chat-1").text.split('<li class="row')[1:]
    assert ["An interrupt waits" in row for row in rows if "chip branch" in row] == [True, False, False]


def test_steps_beside_one_are_sent_together(served: ServedStore) -> None:
    def addresses(path: str, side: str) -> list[str]:
        answer = get(served, path, **{"X-Fragment": f"steps-{side}"})
        assert read(answer).suspicious == []
        assert read(answer).scripts == []
        found = re.findall(r'<section data-address="([^"]*)">', answer.text)
        for number, address in enumerate(found):  # each is as it is alone
            alone = get(served, address, **{"X-Fragment": "step"}).text
            part = answer.text.split("<section data-address=")[number + 1]
            assert re.findall(r'data-id="[^"]*"', part)[0] in alone
            assert re.findall("<h2>.*?</h2>", part) == re.findall("<h2>.*?</h2>", alone)
        return found

    start, ids = "/threads/chat-1/", ("00000050", "00000049", "00000048", "00000047")
    assert addresses(f"{start}00000050?tab=diff", "before") == [f"{start}{id}?tab=diff" for id in ids]
    assert addresses(f"{start}00000001?tab=state", "before") == [
        f"{start}{id}?tab=state" for id in ("00000001", "00000000")
    ]
    assert addresses(f"{start}00000048?tab=diff", "after")[2] == f"{start}00000050?tab=diff"
    assert len(addresses(f"/threads/{quote(HOSTILE, safe='')}/c2", "before")) == 2


def test_every_command_that_a_page_shows_is_one(loaded: dict[str, Answer]) -> None:
    seen = set()
    texts = {text: path for path, page in loaded.items() for text in re.findall(COMMAND, page.text)}
    for text, path in texts.items():
        words = shlex.split(html.unescape(text))[1:]
        if words[0] != "explain":
            seen.add(words[0])
            result = CliRunner().invoke(cli, [*words, "--help"])  # refused if an option is not known
            assert result.exit_code == 0, (path, text, result.output)
    assert len(seen) > 12


def test_the_palette_finds_names_and_words(served: ServedStore) -> None:
    def find(text: str) -> list[str]:
        answer = get(served, f"/search?q={quote(text)}", **{"X-Fragment": "find"})
        assert "<html" not in answer.text
        return re.findall(r'href="([^"]+)"', answer.text)

    assert find("chat")[0] == "/threads/chat-1"
    assert "/threads/support-1" in find("port-1")
    assert "/agents/baker-2" in find("baker")
    assert "/state/agent%3Aresearcher" in find("agent:res")
    assert any(href.startswith("/threads/chat-1/") for href in find("haptera"))
    assert "/audit" in find("audit")
    assert find("label:(") == []


def test_many_threads_are_sorted_found_and_searched_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.web.finder._FIRST", 3)
    monkeypatch.setattr("holdfast.interfaces.web.pages._SEARCHED", 4)
    monkeypatch.setattr("holdfast.interfaces.web.overview.PAGE", 5)
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        for number in range(12):
            for step in range(1 + number * 5 % 12):
                store.thread(f"order-{number:02}").put({"n": step, "note": "kelp" if not number else "dulse"})
        found = get(served, "/search?q=rder-1", **{"X-Fragment": "find"}).text
        assert re.findall(r'href="/threads/([^"]+)"', found) == ["order-10", "order-11"]
        assert "/threads/order-03" not in found, "the control"
        names, address = list[str](), "/threads?sort=steps&where=steps%3E2"
        while address:
            page = get(served, address).text
            names += re.findall(r'<th scope="row"><a href="/threads/([^"]+)"', page)
            address = html.unescape(next(iter(re.findall(r'class="more" href="([^"]+)"', page)), ""))
        by_steps = sorted(range(12), key=lambda number: -(number * 5 % 12))
        assert names == [f"order-{number:02}" for number in by_steps if number * 5 % 12 >= 2]
        first = get(served, "/search?q=kelp").text
        assert "Nothing found so far" in first
        assert "Search further" in first
        further = html.unescape(re.findall(r'class="more" href="([^"]+)"', first)[0])
        assert "/threads/order-00/" in get(served, further).text


def test_an_agent_that_was_left_half_done_is_resolved_by_a_form(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        fill_agents(store)
        with ServedStore(store, page_routes, write=True) as served:
            own = {**signed_in(served), "Origin": served.url, "Content-Type": "application/x-www-form-urlencoded"}
            page = served.request("GET", "/agents/baker-crashed", token=None, headers=own).text
            csrf = re.findall(r'data-csrf="([0-9a-f]+)"', page)[0]
            assert "the state is kneading again" in page

            def send(**fields: str) -> int:
                body = urlencode({"csrf": csrf, **fields}).encode()
                return served.request("POST", "/agents/baker-crashed/resolve", body, token=None, headers=own).status

            assert send(how="back", typed="baker-crashed", csrf="0") == 403
            assert send(how="back", typed="baker") == 400
            assert send(how="sideways", typed="baker-crashed") == 400
            assert store.agents.load("baker-crashed").pending is not None
            assert send(how="back", typed="baker-crashed") == 303
            assert store.agents.load("baker-crashed").pending is None


def test_sensitive_data_is_sent_in_clear_only_if_the_caller_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", base64.b64encode(bytes(32)).decode())
    secret = "ghp_" + "x7Kq2mWv9" * 4
    with holdfast.open(tmp_path / "a.db") as store:
        store.redaction.protect()
        store.thread("chat").put({"messages": [{"role": "user", "content": f"my token is {secret}"}]}, id="a")
        store.access.grant("user:eve", "read", thread="chat")
        token = store.access.issue_token("user:eve").secret
        with ServedStore(store, page_routes, write=True) as served:
            eve = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}
            for query in ("?tab=conversation", "?tab=state", "/inspect?path=messages[0].content"):
                path = f"/threads/chat/a{query}"
                stored = get(served, path).text
                assert secret not in stored
                assert "redacted · show" in stored
                assert secret in get(served, f"{path}&clear=1").text
                refused = served.request("GET", f"{path}&clear=1", token=None, headers=eve).text
                assert secret not in refused
                assert "redacted:" in refused
        assert store.audit.query(action="reveal")


def test_nothing_is_shown_without_a_session(served: ServedStore) -> None:
    for path in PAGES:
        answer = served.request("GET", path, token=None)
        assert answer.status == 401
        assert "Sign in" in answer.text
        assert "chat-1" not in answer.text.replace(html.escape(path), "")  # where to go on
    assert served.request("GET", "/", token=None, headers={"Cookie": f"holdfast_{served.port}=x"}).status == 401


FORM = "application/x-www-form-urlencoded"


def send_code(served: ServedStore, code: str, wanted: str = "", origin: str = "") -> Answer:
    """Send the form to sign in: from the page for it, or from elsewhere."""
    body = urlencode({"code": code, "next": wanted}).encode()
    headers = {"Origin": origin or served.url, "Content-Type": FORM}
    return served.request("POST", "/login", body, token=None, headers=headers)


def next_page(answer: Answer) -> str:
    """The address that a page leads to by itself."""
    (address,) = re.findall(r'http-equiv="refresh" content="0; url=([^"]*)"', answer.text)
    return html.unescape(address)


def test_a_code_becomes_a_cookie_once(served: ServedStore) -> None:
    code = served.authenticator.issue_code()
    answer = send_code(served, f" {code.lower()} ")
    assert (answer.status, next_page(answer)) == (200, "/")  # a page, and no redirect
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"holdfast_{served.port}=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert code not in cookie
    assert answer.headers["referrer-policy"] == "no-referrer"
    value = cookie.partition(";")[0]
    assert served.request("GET", "/", token=None, headers={"Cookie": value}).status == 200
    again = send_code(served, code)
    assert again.status == 401
    assert "set-cookie" not in again.headers


def test_a_code_works_for_a_minute(served: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [served.authenticator.issue_code() for _ in range(2)]
    now = time.monotonic()
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now + 55))
    assert send_code(served, codes[0]).status == 200
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now + 65))
    assert send_code(served, codes[1]).status == 401


def test_a_form_of_another_site_signs_nobody_in(served: ServedStore) -> None:
    code, token = served.authenticator.issue_code(), served.token
    for origin in ("https://evil.example", "http://127.0.0.1:1", "http://localhost"):
        for secret in (code, token):
            assert send_code(served, secret, origin=origin).status == 403
    # The Origin of a file is also that of a page that hides its own: only a code comes from there.
    refused = send_code(served, token, origin="null")
    assert refused.status == 401
    assert "set-cookie" not in refused.headers
    assert send_code(served, code, origin="null").status == 200
    assert send_code(served, token).status == 200
    for path in ("/logout", "/api/v1/prunes"):
        assert served.request("POST", path, b"", token=None, headers={"Origin": "null"}).status == 403


def test_no_secret_is_taken_from_an_address(served: ServedStore) -> None:
    code = served.authenticator.issue_code()
    for query in ({"token": served.token}, {"code": served.token}, {"code": code}):
        for path in ("/login", "/", "/threads"):
            answer = served.request("GET", f"{path}?{urlencode(query)}", token=None)
            assert answer.status == 401
            assert "set-cookie" not in answer.headers
    empty = {"Origin": served.url, "Content-Type": FORM}
    assert served.request("POST", f"/login?code={code}", b"", token=None, headers=empty).status == 401
    assert send_code(served, code).status == 200


def test_a_shared_link_leads_to_its_page(served: ServedStore) -> None:
    link = "/threads/chat-1?tab=state&path=a%2Fb"
    page = served.request("GET", link, token=None).text
    (wanted,) = re.findall(r'name="next" value="([^"]*)"', page)
    assert html.unescape(wanted) == link
    assert next_page(send_code(served, served.token, link)) == link
    wrong = send_code(served, "wrong", link)
    assert wrong.status == 401
    assert link in html.unescape(wrong.text)  # and the next try leads there

    # Another site has the link: its click sends no cookie, and the page that it gets leads to it again.
    clicked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = served.request("GET", link, token=None, headers=clicked)
    assert "Sign in" not in answer.text
    assert next_page(answer) == link
    own = {**signed_in(served), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    assert served.request("GET", link, token=None, headers=own).status == 200


@pytest.mark.parametrize(
    "elsewhere",
    [
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "/\t/evil.example",
        "evil",
        "/login?next=/",
    ],
)
def test_signing_in_leads_to_no_other_site(served: ServedStore, elsewhere: str) -> None:
    assert next_page(send_code(served, served.token, elsewhere)) == "/"


def test_a_large_form_of_anybody_is_not_received(served: ServedStore) -> None:
    assert send_code(served, "x" * (2 << 20)).status == 413
    assert send_code(served, "x").status == 401


def test_signing_out_ends_the_session_and_needs_its_page(served: ServedStore) -> None:
    cookie = signed_in(served)
    page = served.request("GET", "/", token=None, headers=cookie).text
    csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
    own = {**cookie, "Origin": served.url, "Content-Type": "application/x-www-form-urlencoded"}
    assert served.request("POST", "/logout", b"csrf=0", token=None, headers=own).status == 403
    assert served.request("GET", "/", token=None, headers=cookie).status == 200
    assert served.request("POST", "/logout", f"csrf={csrf}".encode(), token=None, headers=own).status == 303
    assert served.request("GET", "/", token=None, headers=cookie).status == 401


def test_an_event_is_shown_with_its_causes_and_effects(served: ServedStore) -> None:
    page = get(served, "/timeline?query=kind%3Acheckpoint%20thread%3Achat-1")
    (first, *_) = re.findall(r'href="/timeline/([^"?]+)"', page.text)
    event = get(served, f"/timeline/{first}")
    assert "What led to it" in event.text
    assert "thread:chat-1" in event.text
    assert "What it led to" in event.text


def test_stored_markup_is_shown_as_text(served: ServedStore) -> None:
    for path in ODD_VIEWS:
        answer = get(served, path)
        assert answer.status == 200, path
        found = read(answer)
        assert found.suspicious == [], path
        assert all(src and src.startswith("/static/") for src in found.scripts), path
        assert not {src for src in found.images if not src.startswith("/static/")}, path
        assert "&lt;script&gt;" in answer.text or path == "/verify", path
    shown = get(served, f"/threads/{quote(HOSTILE, safe='')}/c1").text
    assert "&lt;script&gt;" in shown
    assert "مرحبا" in shown
    for image in ("https://evil.example/x.png", "image/svg+xml"):  # named, and neither fetched nor rendered
        assert f"Image not loaded: <code>{image}</code>" in shown


def test_the_check_of_markup_finds_what_could_run() -> None:
    found = Markup()
    found.feed(
        '<a href="javascript:x">a</a><p style="x" onclick="y"><script>z</script><img src="https://evil.example">'
    )
    assert found.suspicious == ["a href=javascript:x", "p style", "p onclick", "img src=https://evil.example"]
    assert found.scripts == [None]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/threads/none", 404),
        ("/threads/chat-1/none", 404),
        ("/threads/chat-1/00000050/value?path=none", 404),
        ("/threads/chat-1/00000050/inspect", 400),
        ("/static/x/../app.css", 404),
        ("/static/x/%2e%2e%2fpages.py", 404),
    ],
)
def test_errors_say_what_to_do(served: ServedStore, path: str, status: int) -> None:
    answer = get(served, path)
    assert answer.status == status
    if not path.startswith("/static"):
        assert "holdfast explain" in answer.text
    part = get(served, path, **{"X-Fragment": "step"})
    assert part.status == status
    assert "<html" not in part.text


def test_a_step_is_found_by_its_number(served: ServedStore) -> None:
    for query, id in (("to=42", "00000042"), ("to=HEAD~1", "00000119"), ("to=asked", "00000060")):
        answer = get(served, f"/go/chat-1?{query}")
        assert (answer.status, answer.headers["location"]) == (303, f"/threads/chat-1/{id}")
    assert get(served, "/go/chat-1?to=7&branch=main&tab=state").headers["location"].endswith("/00000007?tab=state")


def test_lanes_join_at_forks_and_merges() -> None:
    lanes = Lanes()
    head = lanes.row("0.3", ["0.2", "1.0"])
    assert (head.x, len(head.lines)) == (14, 2)
    assert lanes.waiting == "0.2,1.0"
    side = lanes.row("1.0", ["0.1"])
    assert side.x == 28
    resumed = Lanes(lanes.waiting)
    assert resumed.row("0.2", ["0.1"]).x == 14
    fork = resumed.row("0.1", [])
    assert fork.x == 14
    assert len(fork.lines) == 2  # both lanes lead to it
    assert resumed.waiting == ""


def load_page(url: str, token: str) -> None:
    """Load a page with a token in the header."""
    request = Request(url, headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200, url


@pytest.mark.nightly
def test_opening_a_store_changes_no_byte(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path / "agents.db"
    with holdfast.open(file) as store:
        store.thread("chat").put({"messages": [{"role": "user", "content": "hello"}]})
        store.state(agent="a")["key"] = 1

    def contents() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in tmp_path.iterdir()}

    before = contents()
    command = [sys.executable, "-m", "holdfast", "ui", str(file), "--port", "0", "--no-browser", "--json"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            base, token = started["url"], Path(started["token_file"]).read_text()
            with holdfast.open(base, token=token) as remote:
                assert [each.thread for each in remote.threads()] == ["chat"]
                assert remote.thread("chat").get().state["messages"]
                assert remote.search("hello")
                assert remote.audit.query() is not None
                assert remote.state(agent="a")["key"] == 1
                with pytest.raises(DeniedError, match="read-only"):
                    remote.thread("chat").put({"n": 1})
            for path in (
                "",
                "api/v1/threads/chat/checkpoints/HEAD/value",
                "api/v1/search?query=hello",
                "api/v1/audit",
                "api/v1/scopes/agent%3Aa/items",
                "threads/chat",
                "state",
                "state/agent%3Aa/key",
                "agents",
                "sessions",
                "artifacts",
                "timeline",
                "schemas",
            ):
                load_page(base + path, token)
            for path in ("backups", "jobs", "audit", "verify?level=decode", "metrics/plots", "search?q=hello"):
                load_page(base + path, token)
        finally:
            process.terminate()
            process.wait(SECONDS)
    assert contents() == before


def test_an_empty_store_shows_how_to_begin(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        assert "store.thread(" in get(served, "/").text
        rail = re.compile(r'<nav class="rail".*?</nav>', re.DOTALL)
        shown = rail.findall(get(served, "/").text)[0]
        assert re.findall(r'<a href="([^"]*)"', shown) == ["/", "/access"]
        assert "come with what is stored" in shown
        assert "There are no threads yet" in get(served, "/threads").text
        for path in ("state", "agents", "sessions", "artifacts", "schemas", "backups", "jobs", "hooks"):
            answer = get(served, f"/{path}")
            assert answer.status == 200, path
            assert 'class="card empty"' in answer.text, path
            assert "<pre><code>" in answer.text, "it says what to do"
        for path in ("audit", "verify?level=hashes", "metrics/plots"):
            assert get(served, f"/{path}").status == 200, path
        store.thread("chat-1").put({"n": 1})
        assert len(re.findall("<a href", rail.findall(get(served, "/").text)[0])) > 10


def test_the_overview_shows_where_credentials_are_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.interfaces.web.attention._WAIT_SECONDS", SECONDS)
    key = github_token(Random("overview"))
    with holdfast.open(tmp_path / "a.db") as store:
        store.as_identity("user:alice").thread("mine").put({"text": "hello"})
        token = store.access.issue_token("user:alice").secret
        with ServedStore(store, page_routes) as served:
            assert "Credentials" not in get(served, "/").text
            store.as_identity("user:alice").thread("mine").put({"text": f"use {key}"})
            shown = get(served, "/").text
            assert "github-token at text of thread:mine" in shown
            for line in ("HOLDFAST_REDACTION=redact", "holdfast redaction redact"):
                assert f"<code>{line}</code>" in shown
            assert key not in shown
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}
            own = served.request("GET", "/", token=None, headers=cookie)
            assert (own.status, "mine" in own.text, "Credentials" in own.text) == (200, True, False)
            store.redaction.redact()
            assert "Credentials" not in get(served, "/").text


def test_an_identity_sees_its_own_pages(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("secret").put({"text": "of the owner"})
        store.state(agent="other")["secret"] = "secret"
        store.sessions.start("secret-session", user="bob")
        store.artifacts.register(b"x", name="secret.txt")
        store.as_identity("user:alice").thread("mine").put({"messages": [{"role": "user", "content": "hello"}]})
        token = store.access.issue_token("user:alice").secret
        with ServedStore(store, page_routes) as served:
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(token)}"}

            def load(path: str) -> Answer:
                return served.request("GET", path, token=None, headers=cookie)

            own = ("/", "/threads", "/threads/mine", "/threads/mine?tab=state", "/search?q=hello")
            for path in (*own, "/state", "/state/agent%3Aother", "/agents", "/sessions", "/artifacts"):
                answer = load(path)
                assert answer.status in (200, 403, 404), path
                assert answer.status == 200 or path not in own, path
                assert "secret" not in answer.text, path
            for path in (
                "/schemas",
                "/backups",
                "/jobs",
                "/runs",
                "/audit",
                "/verify?level=hashes",
                "/hooks",
                "/metrics/plots",
            ):
                assert load(path).status == 403, path
                assert f'href="{path.partition("?")[0]}"' not in load("/").text
                assert f'href="{path.partition("?")[0]}"' in get(served, "/").text
            assert f"holdfast.open(&#34;{served.url}&#34;)" in load("/").text
            assert load("/threads/secret").status == 404
            # Its reads are recorded: nothing is loaded before somebody looks at it.
            assert "data-ahead" not in load("/threads/mine").text
            assert "data-ahead" in get(served, "/threads/mine").text


def test_a_filter_that_no_index_answers_says_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.web.overview._EXAMINED", 10)
    monkeypatch.setattr("holdfast.interfaces.web.overview._EXAMINED_FURTHER", 20)
    with holdfast.open(tmp_path / "a.db") as store:
        for number in range(40):
            store.thread(f"chat-{number:02}").put({"text": "haptera" if number in (3, 30) else "kelp"})
        with ServedStore(store, page_routes) as served:
            for sort in ("updated", "name"):
                names, pages, address = list[str](), 0, f"/threads?where=haptera&sort={sort}"
                while address:
                    text = get(served, address).text
                    names += re.findall(r'href="/threads/(chat-\d+)"', text)
                    further = re.search(r'class="more" href="([^"]+)"', text)
                    assert further is None or "Look at further threads" in text
                    assert further is None or "No thread matches" not in text
                    address, pages = (html.unescape(further[1]) if further else ""), pages + 1
                assert sorted(names) == ["chat-03", "chat-30"], "each once"
                assert pages > 2, "it stopped"
            monkeypatch.undo()
            assert "No thread matches" in get(served, "/threads?where=steps%3E5").text


def test_the_overview_does_not_wait_for_a_long_look_for_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, start = threading.Event(), attention.in_background
    monkeypatch.setattr(attention, "in_background", lambda work: start(lambda: begin.wait(SECONDS) and work()))
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat").put({"messages": [{"role": "user", "content": f"mine is {github_token(Random(1))}"}]})
        with ServedStore(store, page_routes) as served:
            assert "Credentials" not in get(served, "/").text
            begin.set()
            deadline = time.monotonic() + SECONDS
            while "Credentials" not in get(served, "/").text:
                assert time.monotonic() < deadline, "a later view has what it finds"
