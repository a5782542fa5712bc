"""A page of another origin that uses a served store, in a real browser."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.conftest import browser

__all__ = ["browser"]

pytestmark = pytest.mark.nightly

_ASK = """([url, token]) => fetch(url, {headers: {Authorization: `Bearer ${token}`}})
    .then(async answer => [answer.status, await answer.json()], error => [0, String(error)])"""


class _Page(http.server.BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Shop</title>")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def site() -> Iterator[str]:
    """Serve an empty page, and return its origin."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_page_of_a_known_origin_reads_the_store_and_one_of_another_does_not(browser: Any, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, site() as known, site() as unknown:
        store.thread("chat").put({"n": 1})
        with ServedStore(store, origins=(known,)) as served:
            page = browser.new_page()
            asked = [f"{served.url}/api/v1/threads", served.token]
            page.goto(known)
            status, found = page.evaluate(_ASK, asked)
            assert (status, [each["thread"] for each in found["items"]]) == (200, ["chat"])
            page.goto(unknown)
            assert page.evaluate(_ASK, asked) == [0, "TypeError: Failed to fetch"]
            page.close()
