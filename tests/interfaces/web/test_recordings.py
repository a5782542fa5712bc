"""Recordings and replays in pages: the history of hooks, recorded runs, what if; in a real browser, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import holdfast
from holdfast.backends import run
from holdfast.engine.namespaces import thread_name
from holdfast.interfaces.web.pages import page_routes
from holdfast.savers import CheckpointStore
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.http.test_recordings import GRAPH, HOOKS
from tests.interfaces.web.conftest import copy_filled
from tests.interfaces.web.kit import HOSTILE, find_call
from tests.interfaces.web.test_actions import post
from tests.interfaces.web.test_browser import check_accessible, check_layout
from tests.interfaces.web.test_pages import get, read

RECORDING = "/threads/weather/HEAD/recording"


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory, filled_folder: Path) -> Iterator[ServedStore]:
    """A server that knows the code of what is recorded."""
    file = copy_filled(tmp_path_factory, filled_folder)
    with (
        holdfast.open(file) as store,
        ServedStore(store, page_routes, write=True, graph=GRAPH, hooks=HOOKS) as served,
    ):
        yield served


@pytest.fixture
def page(browser: Any, knowing: ServedStore) -> Iterator[Any]:
    """A page, signed in, that reports every error."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page, problems = context.new_page(), list[str]()
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    knowing.sign_in(page.context)
    yield page
    assert problems == []
    context.close()


def test_a_server_without_the_code_shows_the_recording_and_the_command(served: ServedStore) -> None:
    answer = get(served, f"{RECORDING}?change=1%3Alook%230&value=%22rain%22")
    assert answer.status == 200
    assert read(answer).suspicious == []
    for part in (
        "Whitby: sunny",
        "there is no such town &lt;i&gt;",
        "And &lt;b&gt;where&lt;/b&gt; shall I walk?",
        "It is <strong>sunny</strong> in Whitby.",
        "--write --graph MODULE:NAME",
        "holdfast replay run weather --graph MODULE:NAME --change &#39;1:look#0=&#34;rain&#34;&#39;",
        "changes={&#39;1:look#0&#39;: &#39;rain&#39;}",
    ):
        assert part in answer.text, part
    assert 'method="post"' not in answer.text.partition("<main")[2]
    step = get(served, "/threads/weather?tab=recording").text
    assert "Called to get here" in step
    assert ">recorded</a>" in step
    assert ">recorded</a>" not in get(served, "/threads/chat-1").text
    assert "This thread is not recorded" in get(served, "/threads/support-1/HEAD/recording").text
    called = get(served, find_call(served.store)).text
    assert "--write --hooks MODULE:FUNCTION" in called
    assert "holdfast replay hooks MODULE:FUNCTION --reference " in called
    assert "replay.run_hooks(store, &#39;MODULE:FUNCTION&#39;, reference=&#39;" in called
    for path in (RECORDING, find_call(served.store)):  # neither has a form; whoever sends one is refused
        refused = post(served, path, [("value", "1"), ("change", "1:look#0")])
        assert "the store is served read-only" in refused.text
        assert post(served, path, [], csrf="0").status == 403


@pytest.mark.nightly
def test_a_run_is_tried_with_another_result(page: Any, knowing: ServedStore) -> None:
    page.goto(f"{knowing.url}/threads/weather?tab=recording")
    page.keyboard.press("1")
    page.wait_for_url("**tab=conversation")
    page.keyboard.press("6")
    page.wait_for_url("**tab=recording")
    page.locator(".facts a", has_text="recorded").click()
    page.wait_for_url("**/recording")
    call = page.locator("details.call", has_text="Whitby: sunny").first
    call.locator("summary").press("Enter")
    call.locator("a", has_text="What if").click()
    page.wait_for_selector("#what-if textarea")
    assert page.locator("#what-if textarea").input_value() == '"Whitby: sunny"'
    page.locator("#what-if textarea").fill('"Whitby: rain"')
    page.locator("#what-if button.primary").click()
    page.wait_for_selector("#replay")
    shown = page.locator("#replay").inner_text()
    assert "it differs from step 1 on" in shown
    assert "Whitby: rain, and nowhere else" in " ".join(page.locator("#replay ins").all_inner_texts())
    page.locator("#replay summary").click()
    assert "It is **sunny** in Whitby." not in page.locator("#replay .fold").inner_text()  # it was asked otherwise
    assert page.locator("#what-if textarea").input_value() == '"Whitby: rain"'  # to try another


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_replays_in_both_themes_and_widths(
    browser: Any, knowing: ServedStore, theme: str, width: int, screenshots: Path
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    knowing.sign_in(page.context)
    for name, path, edit in (
        ("replay", RECORDING, ""),
        ("tried", f"{RECORDING}?change=1%3Alook%230", '"Whitby: rain"'),
        ("wrong", f"{RECORDING}?change=1%3Alook%230", "rain"),
        ("hook-replay", find_call(knowing.store), "70"),
    ):
        page.goto(knowing.url + path)
        if edit:
            page.locator("main textarea").fill(edit)
        page.locator("main button.primary").click()
        page.wait_for_selector("#replay" if name != "wrong" else ".problem")
        for fold in page.locator("details.call > summary").all():
            fold.click()
        page.screenshot(path=str(screenshots / f"{name}-{width}-{theme}.png"), full_page=True)
        assert check_layout(page) <= 0, name
        assert check_accessible(page) == [], name
    context.close()


@pytest.mark.nightly
def test_markup_in_recorded_values_and_in_fields_stays_text(knowing: ServedStore) -> None:
    for path in (find_call(knowing.store, HOSTILE), f"{RECORDING}?change=1%3Alook%230"):
        answer = post(knowing, path, [("value", HOSTILE), ("change", HOSTILE), ("since", HOSTILE)])
        assert answer.status == 200
        assert read(answer).suspicious == []
        assert "<script>document" not in answer.text


def test_a_subgraph_is_shown_apart_and_replayed_with_its_thread(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        saver = CheckpointStore(store)
        inner = thread_name("t", "sub:task-1")
        for name in ("t", inner):
            run(saver.save(name, {"n": 1}, id="c0", stamp=""))
            record = {"v": 1, "key": "1:sub|1:a", "step": 1, "calls": [["tool", "ask", 1, 2, "q", "found it"]]}
            run(saver.put_writes(name, "c0", [(0, "n", 2)], task_id="task-1", recorded=(99, record)))
        with ServedStore(store, page_routes, write=True, graph=GRAPH) as served:
            whole, part = (get(served, f"/threads/{quote(name, safe='')}/HEAD/recording").text for name in ("t", inner))
            assert f'href="/threads/{quote(inner, safe="")}/HEAD/recording">sub:task-1<' in whole
            assert 'id="what-if"' in whole
            assert "What if it were" in whole
            assert "It is replayed with" in part
            assert 'id="what-if"' not in part
            assert "What if it were" not in part
            assert "found it" in part
