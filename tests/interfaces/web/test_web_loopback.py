"""A second server of this machine, which its user visits with the browser that is signed in here: it reads nothing,
and changes nothing."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

import holdfast
from holdfast.errors import ConfigError
from holdfast.interfaces.http.server import bind, bind_loopback
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.test_web_sign_in import CODE, home, running_command, store_file

__all__ = ["home", "store_file"]  # fixtures

ATTACK = """async ([bases, token]) => {
    const read = [];
    await Promise.all(bases.map(async (base) => {
        for (const path of ["/", "/threads", "/threads/chat", "/api/v1/threads", "/api/v1/events", "/metrics"]) {
            for (const mode of ["cors", "no-cors"]) {
                try {
                    const answer = await fetch(base + path, {mode, credentials: "include"});
                    const text = await answer.text();
                    if (text) read.push(path + ": " + text);
                } catch (error) { /* refused */ }
            }
        }
        for (const [path, body] of [
            ["/login", "code=" + token], ["/logout", "csrf=x"], ["/threads/chat/HEAD/actions/tag", "tag=evil"],
            ["/api/v1/prunes", '{"dry_run": false, "keep_last": 1}'],
            ["/api/v1/changes/access/issue_token", '{"names": [], "arguments": [null], "options": {}}'],
        ]) {
            try {
                await fetch(base + path, {
                    method: "POST", mode: "no-cors", credentials: "include", body,
                    headers: {"Content-Type": body[0] === "{" ? "text/plain" : "application/x-www-form-urlencoded"},
                });
            } catch (error) { /* refused */ }
            const frame = document.createElement("iframe");
            frame.name = "f" + Math.random();
            document.body.append(frame);
            const form = document.createElement("form");
            form.method = "post"; form.action = base + path; form.target = frame.name;
            for (const part of body.split("&")) {
                const field = document.createElement("input");
                [field.name, field.value] = part.split("=");
                form.append(field);
            }
            document.body.append(form);
            const done = new Promise((resolve) => { frame.onload = resolve; });
            form.submit();
            await done;
            try { if (frame.contentDocument?.body.textContent) read.push("a frame"); } catch (error) { /* refused */ }
        }
    }));
    return read;
}"""
"""What a page of another server can try: requests with and without leave to read, forms, and frames."""


class OtherServer:
    """A server of somebody else on this machine, which notes the cookies that it is sent."""

    def __init__(self) -> None:
        self.cookies = cookies = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Referrer-Policy", "no-referrer")  # forms have the Origin null
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>other</title><body>a page</body>")

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def other() -> Iterator[OtherServer]:
    """A second server."""
    with OtherServer() as server:
        yield server


def contents(store: holdfast.Store) -> Any:
    """What an attack would change."""
    thread = store.thread("chat")
    return thread.info(), thread.tags(), store.access.tokens(), store.access.grants()


@pytest.mark.nightly  # by day, the headers that prevent it: test_actions
def test_another_server_of_this_machine_reads_and_changes_nothing(
    tmp_path: Path, browser: Any, other: OtherServer
) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for n in range(3):
            store.thread("chat").put({"n": n, "text": "a secret"})
        token = store.access.issue_token("user:eve").secret
        with ServedStore(store, page_routes, write=True) as served:
            own = browser.new_context()
            served.sign_in(own)
            page, attack = own.new_page(), own.new_page()
            page.goto(f"{served.url}/threads/chat")
            page.wait_for_selector("h1 >> text=chat")
            before = contents(store)
            bases = [served.url, f"http://127.0.0.1:{served.port}"]
            for name in ("127.0.0.1", "guessed.localhost"):
                attack.goto(f"http://{name}:{other.port}/")
                assert attack.evaluate(ATTACK, [bases, token]) == []
                for base in bases:  # as the page of a link, which it cannot look into
                    attack.goto(f"http://{name}:{other.port}/")
                    attack.evaluate("address => { location.href = address; }", f"{base}/threads/chat")
                    attack.wait_for_selector("h1 >> text=chat" if base == served.url else "h1 >> text=Sign in")
            assert len(other.cookies) >= 6
            assert not [each for each in other.cookies if "holdfast" in each]
            assert contents(store) == before
            page.reload()  # still signed in, and as the owner
            page.wait_for_selector("h1 >> text=chat")
            assert "the owner" in page.locator(".out button").first.get_attribute("title")
            own.close()


def test_with_plain_loopback_another_server_gets_the_cookie_and_no_token(
    tmp_path: Path, browser: Any, other: OtherServer
) -> None:
    """The control of the test above, and what `--plain-loopback` says is weaker."""
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat").put({"text": "a secret"})
        with ServedStore(store, page_routes, name="127.0.0.1", write=True) as served:
            own = browser.new_context()
            served.sign_in(own)
            page = own.new_page()
            page.goto(f"http://127.0.0.1:{other.port}/")
            cookie, *_ = [each for each in other.cookies if f"holdfast_{served.port}=" in each]
            answer = served.request("GET", "/threads/chat", token=None, headers={"Cookie": cookie})
            assert "chat" in answer.text
            csrf = re.findall(r'data-csrf="([0-9a-f]+)"', answer.text)[0]
            headers = {"Cookie": cookie, "Origin": served.url, "X-CSRF-Token": csrf}
            body = {"names": [], "arguments": [None], "options": {}}
            issued = served.change("POST", "/changes/access/issue_token", body, token=None, headers=headers)
            assert (issued.status, issued.json["code"]) == (403, "unconfirmed")
            assert store.access.tokens() == []
            own.close()


def test_nobody_else_has_the_port_on_the_other_address_of_this_machine() -> None:
    bound = bind_loopback(0)
    port = bound[0].getsockname()[1]
    addresses = [each.getsockname()[0] for each in bound]
    if "::1" not in addresses:
        pytest.skip("this machine has no IPv6")
    assert addresses == ["127.0.0.1", "::1"]
    for each in bound:
        each.close()
    with bind("::1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="cannot use port"):
            bind_loopback(taken.getsockname()[1])
    for each in bind_loopback(port):  # nothing was left bound
        each.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "other.localhost"])
def test_a_cookie_counts_under_its_own_name_only(tmp_path: Path, name: str) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat").put({"n": 1})
        with ServedStore(store, page_routes) as served:
            cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(served.token)}"}
            assert served.request("GET", "/threads", token=None, headers=cookie).status == 200
            elsewhere = {**cookie, "Host": f"{name}:{served.port}"}
            for path in ("/threads", "/api/v1/threads", "/metrics"):
                assert served.request("GET", path, token=None, headers=elsewhere).status in (401, 421)
            form = {"Host": elsewhere["Host"], "Origin": f"http://{elsewhere['Host']}"}
            code = f"code={served.authenticator.issue_code()}".encode()
            assert served.request("POST", "/login", code, token=None, headers=form).status == 421
            if name != "other.localhost":  # programs use these names
                for path in ("/api/v1/threads", "/metrics", "/health/ready"):
                    assert served.request("GET", path, headers={"Host": elsewhere["Host"]}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_a_cookie_counts_for_pages_of_ours_and_bookmarks_only(tmp_path: Path, site: str) -> None:
    with holdfast.open(tmp_path / "a.db") as store, ServedStore(store, page_routes) as served:
        store.thread("chat").put({"n": 1})
        cookie = {"Cookie": f"holdfast_{served.port}={served.authenticator.sign_in(served.token)}"}
        for own in ("same-origin", "none"):
            headers = {**cookie, "Sec-Fetch-Site": own, "Sec-Fetch-Mode": "navigate"}
            assert "chat" in served.request("GET", "/threads", token=None, headers=headers).text
        headers = {**cookie, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
        answer = served.request("GET", "/threads", token=None, headers=headers)
        assert answer.status in (401, 403)
        assert "chat" not in answer.text


@pytest.mark.nightly
def test_bookmarks_and_tabs_outlive_a_server(home: Path, store_file: Path, browser: Any) -> None:
    own = browser.new_context()
    tabs = [own.new_page(), own.new_page()]
    urls = set[str]()
    for run, port in enumerate(("0", "")):
        port = port or str(next(iter(urls)).rpartition(":")[2].rstrip("/"))
        with running_command(home, store_file, "--no-browser", "--port", port) as running:
            shown = running.read_until(CODE.pattern)
            (url,) = re.findall(r"http://\w+\.localhost:\d+/", shown)
            urls.add(url)
            if run == 0:
                tabs[0].goto(f"{url}threads/chat")
            else:
                tabs[0].reload()  # the session ended with the server
            tabs[0].locator("#code").fill(CODE.findall(shown)[0])
            tabs[0].locator("button.primary").click()
            tabs[0].wait_for_selector("h1 >> text=chat")
            tabs[1].goto(f"{url}threads")  # as a bookmark
            tabs[1].wait_for_selector("main >> text=chat")
            tabs[0].reload()
            tabs[0].wait_for_selector("h1 >> text=chat")
            assert json.loads(tabs[1].evaluate("() => JSON.stringify(document.cookie.includes('holdfast_'))")) is False
    assert len(urls) == 1
    own.close()
