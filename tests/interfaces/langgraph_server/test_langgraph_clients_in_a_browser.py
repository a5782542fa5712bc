"""`useStream` of `@langchain/react` in a page, in a real browser: a chat with tools that this server streams."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route

import holdfast
from holdfast.interfaces.langgraph_server.app import graph_routes
from holdfast.interfaces.langgraph_server.graphs import load_graphs
from tests import servers
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.langgraph_server.chat_graph import WORDS, chat
from tests.interfaces.web.conftest import browser

__all__ = ["browser"]

pytestmark = pytest.mark.nightly

_SOURCE = Path(__file__).parent / "javascript" / "chat.jsx"
_PAGE = '<!doctype html><meta charset="utf-8"><title>Chat</title><div id="root"></div><script src="/chat.js"></script>'
_PAGE_POLICY = {"content-security-policy": "default-src 'self'"}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The page's program, bundled."""
    packages = servers.javascript(installs=True)
    made = tmp_path_factory.mktemp("page") / "chat.js"
    options = ["--bundle", "--jsx=automatic", f"--outfile={made}", "--define:process.env.NODE_ENV='production'"]
    command = ["node", str(packages / "node_modules" / "esbuild" / "bin" / "esbuild"), str(_SOURCE), *options]
    environment = {"PATH": os.environ["PATH"], "NODE_PATH": str(packages / "node_modules")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made.read_bytes()


@pytest.fixture
def page(browser: Any, script: bytes, tmp_path: Path) -> Iterator[Any]:
    """The page, from the address of a served store. It may report no error."""
    with holdfast.open(tmp_path / "agents.db") as store:
        graphs = load_graphs(store, [("chat", "kit:chat", chat())])

        async def send_page(request: Any) -> Response:
            return Response(_PAGE, media_type="text/html", headers=_PAGE_POLICY)

        async def send_script(request: Any) -> Response:
            return Response(script, media_type="text/javascript")

        def routes(server: Any) -> list[Any]:
            return [Route("/chat", send_page), Route("/chat.js", send_script), *graph_routes(server, graphs)]

        with (
            ServedStore(store, routes, write=True, name="127.0.0.1") as served,
            store.worker(**graphs, concurrency=2),
        ):
            context = browser.new_context()
            page, problems = context.new_page(), list[str]()
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.add_init_script(f"sessionStorage.setItem('token', '{served.token}')")
            page.set_default_timeout(120_000)
            page.goto(f"{served.url}/chat")
            yield page
            context.close()
            assert problems == []


def _say(page: Any, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def _wait_for(page: Any, kind: str, text: str) -> None:
    page.locator(f"li[data-type={kind}] span", has_text=text).last.wait_for()


def _idle(page: Any) -> None:
    page.locator("output", has_text="idle").wait_for()


def test_tools_are_called_and_a_question_is_answered(page: Any) -> None:
    _say(page, "price please")
    _wait_for(page, "ai", "You got: tea costs 3")
    assert page.locator("ul li").all_text_contents() == ["price"]
    _idle(page)
    _say(page, "buy it")
    page.locator("#approve", has_text="Buy tea?").click()
    _wait_for(page, "ai", "You got: bought tea")
    page.locator("#approve").wait_for(state="detached")
    _idle(page)


def test_a_reload_in_the_middle_of_a_stream(page: Any) -> None:
    _say(page, "count")
    _wait_for(page, "ai", "1 2 3")
    page.reload()
    _wait_for(page, "ai", "1 2 3")
    seen = len(page.locator("li[data-type=ai] span").last.text_content().split())
    assert seen < WORDS, "the reload came after the end"
    _wait_for(page, "ai", f"{WORDS - 1} {WORDS}")
    counted = page.locator("li[data-type=ai] span").all_text_contents()
    assert counted == [" ".join(str(each) for each in range(1, WORDS + 1))]
    _idle(page)


def test_a_branch_from_an_edited_message(page: Any) -> None:
    _say(page, "hello")
    _wait_for(page, "ai", "You got: hello")
    _idle(page)
    _say(page, "and more")
    _wait_for(page, "ai", "You got: and more")
    _idle(page)
    page.get_by_role("button", name="Edit").first.click()
    _wait_for(page, "ai", "You got: hello (edited)")
    _idle(page)
    # `useStream` keeps messages of later steps until it loads the thread again.
    page.reload()
    _wait_for(page, "ai", "You got: hello (edited)")
    assert page.locator("li[data-type] span").all_text_contents() == ["hello (edited)", "You got: hello (edited)"]
    _idle(page)
