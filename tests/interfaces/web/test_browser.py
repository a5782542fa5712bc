"""The pages in a real browser: by mouse and by keyboard, live, in both themes and widths, and accessible."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import holdfast
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.conftest import copy_filled
from tests.interfaces.web.kit import HOSTILE, VIEWS, fill_thread, find_call

pytestmark = pytest.mark.nightly


STEPS = int(os.environ.get("HOLDFAST_WEB_STEPS", "100000"))


def text_of(page: Any, selector: str) -> str:
    """The text of the first element that a selector finds, once it is there."""
    return str(page.locator(selector).first.inner_text())


def test_steps_by_keys_clicks_and_numbers(page: Any, served: ServedStore) -> None:
    page.goto(f"{served.url}/threads/chat-1/00000050")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/00000049?tab=conversation")
    page.wait_for_selector(".row[aria-current][data-id='00000049']")
    assert text_of(page, ".facts b") == "#49"
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/00000050?tab=conversation")
    page.keyboard.press("k")  # up, to the next one
    page.wait_for_url("**/00000051?tab=conversation")
    page.keyboard.press("3")
    page.wait_for_url("**/00000051?tab=diff")
    page.wait_for_selector(".diffed")
    page.keyboard.press("g")
    page.wait_for_selector("#goto[open]")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    page.wait_for_url("**/00000007?tab=diff")
    page.wait_for_selector(".row[aria-current][data-id='00000007']")  # the history went there, too
    page.locator("[data-slider]").evaluate(
        "slider => { slider.value = 90; slider.dispatchEvent(new Event('change', {bubbles: true})); }"
    )
    page.wait_for_url("**/00000090?tab=diff")
    page.go_back()
    page.wait_for_selector(".bar[data-id='00000007']")
    assert "#7" in page.title()


def test_the_state_opens_as_a_tree_and_a_value_is_inspected(page: Any, served: ServedStore) -> None:
    page.goto(f"{served.url}/threads/chat-1/00000050?tab=state")
    page.locator("summary", has_text="messages").click()
    page.wait_for_selector(".tree .tree .key >> text=49")
    page.locator("summary", has_text="plan").first.click()
    page.wait_for_selector(".leaf >> text=done")
    page.locator(".node", has=page.locator(".leaf .key", has_text="done")).last.locator("[data-inspect]").click(
        force=True
    )
    page.wait_for_selector(".inspector:not([hidden]) >> text=Set by")
    assert "plan.done" in text_of(page, ".inspector h2")
    assert page.locator(".timeline li").count() >= 2
    page.keyboard.press("Escape")
    assert page.locator(".inspector").is_hidden()


def test_what_opens_takes_the_focus_and_escape_gives_it_back(page: Any, served: ServedStore) -> None:
    page.goto(f"{served.url}/threads")
    page.locator("details.copy > summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.matches('details.copy button')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.matches('details.copy:not([open]) > summary')")
    page.goto(f"{served.url}/threads/chat-1/00000050?tab=state")
    page.wait_for_selector(".row")
    page.locator("[aria-label='Inspect plan']").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.closest('.inspector')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.activeElement.matches('[aria-label=\"Inspect plan\"]')")
    assert not page.locator(".inspector").is_visible()
    page.keyboard.press("?")
    page.wait_for_function("() => document.querySelector('#keys[open]')?.contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('dialog[open]')")


def test_two_ticked_steps_are_compared(page: Any, served: ServedStore) -> None:
    page.goto(f"{served.url}/threads/chat-1/00000050")
    for id in ("00000052", "00000044"):
        page.locator(f".row[data-id='{id}'] input").check(force=True)
    page.wait_for_url("**/00000052?tab=diff&a=00000044")
    page.wait_for_selector(".sides >> text=#44")
    assert page.locator(".summary li").count() == 3


def scroll_to_end(page: Any, id: str) -> None:
    """Scroll to the end of the history until a step is there."""
    deadline = time.monotonic() + 120
    while not page.locator(f".row[data-id='{id}']").count():
        assert time.monotonic() < deadline
        page.locator("[data-history]").evaluate("list => list.scrollTo(0, list.scrollHeight)")
        page.wait_for_timeout(20)


def test_older_steps_load_as_one_scrolls(page: Any, served: ServedStore) -> None:
    page.goto(f"{served.url}/threads/chat-1")
    newest = page.locator(".row").first.get_attribute("data-id")
    page.locator(f".row[data-id='{newest}'] input").check(force=True)
    scroll_to_end(page, "00000000")
    heights = page.locator("[data-history] .lanes").evaluate_all("lists => lists.map(list => list.offsetHeight)")
    assert sum(heights) == 129 * 44  # 120 steps, 2 forks of 4, and a merge
    page.wait_for_selector(f".row[data-id='{newest}']", state="detached")  # far from the screen, it is taken out
    page.locator(".row[data-id='00000000'] input").check(force=True)  # what was ticked stays ticked
    page.wait_for_url(f"**/{newest}?tab=diff&a=00000000")
    page.locator("[data-history]").evaluate("list => list.scrollTo(0, 0)")
    page.wait_for_selector(f".row[data-id='{newest}']")
    page.wait_for_selector(".row[data-id='00000000']", state="detached")


def test_a_new_step_appears_by_itself_and_not_while_paused(tmp_path: Path, browser: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("live").put({"messages": [{"role": "user", "content": "first"}]}, id="a")
        with ServedStore(store, page_routes) as served:
            own = browser.new_context()
            page, other = own.new_page(), own.new_page()
            served.sign_in(page.context)
            page.goto(f"{served.url}/threads/live")
            other.goto(f"{served.url}/threads")
            page.wait_for_function("() => navigator.locks.query().then(found => found.held.length > 0)")
            deadline = time.monotonic() + 60
            while served_streams(served) < 1:
                assert time.monotonic() < deadline
                page.wait_for_timeout(20)
            store.thread("live").put({"messages": [{"role": "user", "content": "second"}]}, id="b")
            page.wait_for_selector(".row[data-id='b'][aria-current]")
            page.wait_for_selector(".said >> text=second")
            assert served_streams(served) == 1  # one for both tabs
            page.locator("[data-live]").click()
            store.thread("live").put({"messages": [{"role": "user", "content": "third"}]}, id="c")
            store.thread("fresh").put({"n": 1})
            other.wait_for_selector("text=fresh")  # the other tab goes on
            assert page.locator(".row[data-id='c']").count() == 0
            page.locator("[data-live]").click()
            page.wait_for_selector(".row[data-id='c']")
            page.goto(f"{served.url}/threads/live/a")  # an earlier step says what follows it
            page.wait_for_selector(".facts >> text=#0 of 2")
            store.thread("live").put({"messages": [{"role": "user", "content": "fourth"}]}, id="d")
            page.wait_for_selector(".facts >> text=#0 of 3")
            page.wait_for_selector("[data-counts]:not(.bar) >> text=4 steps")
            assert page.locator(".slider input[type=range]").get_attribute("max") == "3"
            assert page.locator(".said").first.inner_text() == "first"
            own.close()


def test_a_server_that_is_gone_is_offline_and_moves_nothing(tmp_path: Path, browser: Any) -> None:
    with holdfast.open(tmp_path / "live.db") as store:
        store.thread("live").put({"n": 1})
        own = browser.new_context()
        page = own.new_page()
        with ServedStore(store, page_routes) as served:
            served.sign_in(page.context)
            page.goto(served.url)
            page.wait_for_function("() => navigator.locks.query().then(found => found.held.length > 0)")
            assert text_of(page, "[data-live]").strip() == "Live"
            top = page.locator("main h1").bounding_box()
        page.wait_for_selector("[data-live] >> text=Offline")
        page.wait_for_selector("[data-banner]:not([hidden])")
        assert page.locator("main h1").bounding_box() == top
        own.close()


def test_a_link_of_another_site_leads_to_its_page(tmp_path: Path, browser: Any) -> None:
    with holdfast.open(tmp_path / "live.db") as store:
        store.thread("chat").put({"n": 1})
        with ServedStore(store, page_routes) as served:
            own = browser.new_context()
            page = own.new_page()
            served.sign_in(page.context)
            page.goto(f"http://localhost:{served.port}/")  # another site, for a browser
            page.evaluate("address => { location.href = address; }", f"{served.url}/threads/chat?tab=state")
            page.wait_for_url(f"{served.url}/threads/chat?tab=state")
            page.wait_for_selector("h1 >> text=chat")
            own.close()


def served_streams(served: ServedStore) -> int:
    """How many streams of events are open."""
    return served.hub.count


def test_stored_markup_does_not_run(page: Any, served: ServedStore) -> None:
    name = quote(HOSTILE, safe="")
    page.on(
        "request",
        lambda request: (
            page.problems.append(request.url)
            if served.url not in request.url and not request.url.startswith("data:")
            else None
        ),
    )
    for path in (
        f"/threads/{name}/c1",
        f"/threads/{name}/c1?tab=state",
        f"/threads/{name}/c2?tab=diff&a=c1",
        "/threads",
    ):
        page.goto(served.url + path)
        assert page.title() != "owned"
    page.goto(f"{served.url}/threads/{name}/c1?tab=state")
    page.locator(".tree > li", has_text="onerror").locator("summary").first.click()
    page.wait_for_selector(".tree .tree")
    page.locator("[data-inspect]").first.click(force=True)
    page.wait_for_selector(".inspector:not([hidden]) pre")
    assert page.title() != "owned"


def test_the_policy_stops_what_would_run(page: Any, served: ServedStore) -> None:
    """The control of the test above: what escaped every other check is stopped by the browser."""
    page.goto(f"{served.url}/threads")
    refused = page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "document.title = 'owned'"; } catch (error) { return error.name; }
            document.body.append(script);
            return "ran";
        }"""
    )
    assert refused == "TypeError"
    assert page.title() != "owned"
    page.problems.clear()


def check_accessible(page: Any) -> list[str]:
    """What a check of accessibility objects to."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found]


def check_layout(page: Any) -> int:
    """By how many pixels a page is wider than the window."""
    return int(page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_a_view_is_accessible_and_fits(page: Any, served: ServedStore) -> None:
    page.goto(served.url + VIEWS["conversation"])
    assert check_layout(page) <= 0


_SMALL = """() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary, textarea")]
    .map((each) => each.matches("[type=checkbox], [type=radio]") ? each.closest("label") ?? each : each)
    .filter((each) => {
        const {width, height} = each.getBoundingClientRect(), style = getComputedStyle(each);
        const shown = width && height && style.visibility !== "hidden";
        return shown && !(each.matches("a") && style.display === "inline") && (width < 24 || height < 24);
    }).map((each) => each.outerHTML.slice(0, 120))"""


def check_targets(page: Any) -> list[str]:
    """What one clicks on, and is smaller than 24 pixels; links within a text may be."""
    return list(page.evaluate(_SMALL))


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_view_in_both_themes_and_widths(
    browser: Any, served: ServedStore, theme: str, width: int, screenshots: Path
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    served.sign_in(page.context)
    for name, path in {**VIEWS, "hook-call": find_call(served.store)}.items():
        page.goto(served.url + path)
        page.screenshot(path=str(screenshots / f"{name}-{width}-{theme}.png"))
        assert check_layout(page) <= 0, name
        assert check_accessible(page) == [], name
        assert check_targets(page) == [], name
    context.close()


_DIALOGS = {
    "keys": ("/threads/chat-1", ("?",), "#keys[open]"),
    "palette": ("/audit", ("Control+k",), "#palette[open] #found a"),
    "goto": ("/threads/chat-1", ("g",), "#goto[open]"),
    "menu": ("/threads/chat-1", ("a",), ".menu[open] a"),
    "inspector": ("/threads/chat-1/00000050?tab=state", "[aria-label='Inspect plan']", ".inspector:not([hidden]) pre"),
    "editing": ("/threads/chat-1/00000050", ".message [data-edit]", ".editing textarea"),
    **{
        action: (f"/threads/chat-1/00000050?{action}", f"[data-act={action}]", "dialog.action[open] form")
        for action in ("fork", "edit", "restore", "merge", "tag", "pin", "prune")
    },
}
"""What opens: on which page, by which keys or a click on what, and what is seen then."""


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory, filled_folder: Path) -> Iterator[ServedStore]:
    """The filled store where it may be changed, so that pages have actions."""
    with (
        holdfast.open(copy_filled(tmp_path_factory, filled_folder)) as store,
        ServedStore(store, page_routes, write=True) as served,
    ):
        yield served


_CLICK = "each => { each.closest('details')?.setAttribute('open', ''); each.click(); }"


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_dialog_in_both_themes_and_widths(
    browser: Any, writable: ServedStore, theme: str, width: int, screenshots: Path
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    writable.sign_in(context)
    for name, (path, opens, shows) in _DIALOGS.items():
        page.goto(writable.url + path)
        page.wait_for_function("() => document.documentElement.classList.contains('scripted')")
        if isinstance(opens, str):
            page.locator(opens).first.evaluate(_CLICK)
        else:
            page.keyboard.press(opens[0])
        page.locator(shows).first.wait_for(state="visible")
        page.screenshot(path=str(screenshots / f"dialog-{name}-{width}-{theme}.png"))
        assert check_layout(page) <= 0, name
        assert check_accessible(page) == [], name
        assert check_targets(page) == [], name
    context.close()


@pytest.fixture(scope="module")
def long_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """A thread of 5,000 steps with forks."""
    with holdfast.open(tmp_path_factory.mktemp("long") / "agents.db") as store:
        fill_thread(store, "long", 5000, forks=4)
        with ServedStore(store, page_routes) as served:
            yield served


def cpu_of(work: Callable[[], object]) -> float:
    """The seconds of CPU that this process, which serves the store, takes meanwhile: others on the machine do not
    count."""
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.nightly
def test_a_thread_of_5000_steps_is_quick(browser: Any, long_thread: ServedStore) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    long_thread.sign_in(page.context)
    first = []
    for _ in range(5):
        start = time.perf_counter()
        page.goto(f"{long_thread.url}/threads/long")
        first.append(time.perf_counter() - start)
    assert statistics.median(first) < 1.0
    press = """async (key) => {
        const before = document.querySelector(".bar").dataset.id;
        document.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
        while (document.querySelector(".bar").dataset.id === before) await new Promise(requestAnimationFrame);
    }"""
    for tab in ("conversation", "diff"):
        page.goto(f"{long_thread.url}/threads/long/00002500?tab={tab}")
        assert statistics.median(cpu_of(lambda: page.evaluate(press, "ArrowLeft")) for _ in range(15)) < 0.1
        assert re.search(r"#24\d\d", page.title())
    click = """async (row) => {
        const before = document.querySelector(".bar").dataset.id;
        row.querySelector("a").click();
        while (document.querySelector(".bar").dataset.id === before) await new Promise(requestAnimationFrame);
    }"""
    page.goto(f"{long_thread.url}/threads/long/00002500?tab=conversation")
    rows = page.locator(".row:not([aria-current])").element_handles()[::2]  # not those that were loaded ahead
    assert statistics.median(cpu_of(partial(page.evaluate, click, row)) for row in rows[:15]) < 0.1
    context.close()


_OBSERVE = """
    window.longest = 0; window.shifted = 0;
    new PerformanceObserver((list) => {
        for (const each of list.getEntries()) window.longest = Math.max(window.longest, each.duration);
    }).observe({type: "longtask", buffered: true});
    new PerformanceObserver((list) => {
        for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifted += each.value;
    }).observe({type: "layout-shift", buffered: true});
"""


@pytest.mark.nightly
def test_100_000_steps_and_50_mb_do_not_freeze_a_page(tmp_path: Path, browser: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("long")
        thread.put({"n": 0}, id=f"{0:08}")
        for number in range(1, STEPS):
            thread.update({"n": number}, id=f"{number:08}")
        rows = [{"number": number, "text": "kelp " * 100} for number in range(100_000)]
        store.thread("large").put({"rows": rows, "text": "kelp " * 400_000})
        with ServedStore(store, page_routes) as served:
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            page.set_default_timeout(300_000)  # how long the server takes is not what is asked here
            page.add_init_script(_OBSERVE)
            served.sign_in(page.context)

            def check() -> None:
                assert page.evaluate("window.longest") < 200
                assert page.evaluate("window.shifted") < 0.05

            page.goto(f"{served.url}/threads/long")
            scroll_to_end(page, f"{STEPS - 300:08}")  # older steps load as one scrolls
            assert page.locator(".row[data-id]").count() < 200
            check()
            page.locator("[data-slider]").evaluate(
                "slider => { slider.value = 500; slider.dispatchEvent(new Event('change', {bubbles: true})); }"
            )
            page.wait_for_selector(".row[aria-current][data-id='00000500']")
            assert page.locator(".row[data-id]").count() < 200
            check()
            page.goto(f"{served.url}/threads/large?tab=state")
            page.locator("summary", has_text="rows").click()
            page.wait_for_selector(".tree .tree .key >> text=49")
            page.locator("[data-more-values]").click()
            page.wait_for_selector(".tree .key >> text=99")
            check()
            context.close()
