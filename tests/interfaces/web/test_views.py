"""One path through each view in a real browser: links, keys, dialogs, live changes. Themes and widths are nightly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.http.test_recordings import HOOKS
from tests.interfaces.web.conftest import copy_filled
from tests.interfaces.web.kit import ACTION_VIEWS, HOSTILE, ODD_VIEWS
from tests.interfaces.web.test_browser import check_accessible, check_layout


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory, filled_folder: Path) -> Iterator[ServedStore]:
    """A store with something for every view, that may be changed, served by what knows the code of its hooks."""
    file = copy_filled(tmp_path_factory, filled_folder)
    with holdfast.open(file) as store, ServedStore(store, page_routes, write=True, hooks=HOOKS) as served:
        yield served


@pytest.fixture(scope="module")
def page(browser: Any, writable: ServedStore) -> Iterator[Any]:
    """A page, signed in, that reports every error."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page, problems = context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(writable.url)
    page.locator("#code").fill(writable.authenticator.issue_code())
    page.locator("button.primary").click()
    page.wait_for_selector(".rail")
    yield page
    page.locator(".top form.out button").click()  # sign out
    page.wait_for_selector("#code")
    assert [each for each in problems if "412" not in each and "401" not in each] == []
    context.close()


def test_every_view_is_reached_from_the_rail(page: Any, writable: ServedStore) -> None:
    page.goto(writable.url)
    names = page.locator(".rail > a").all_inner_texts()
    assert len(names) == 16
    for name in names:
        page.locator(".rail > a", has_text=name).click()
        page.wait_for_selector(f".rail > a[aria-current] >> text={name}")
        assert page.locator("main h1").inner_text()


@pytest.mark.nightly
def test_views_lead_from_lists_to_what_they_list(page: Any, writable: ServedStore) -> None:
    for start, click, shows in (
        ("/state", "text=agent:researcher", "text=sources"),
        ("/state/agent%3Aresearcher", "tbody >> text=plan", "text=plan.done"),
        ("/agents", "text=baker-3", "svg.machine .box.current"),
        ("/sessions", "text=visit-1", "text=user:alice/session:visit-1"),
        ("/sessions", "text=Artifacts", "text=species.csv"),
        ("/artifacts", "text=species.csv", "text=agent:researcher"),
        ("/schemas", "text=2.0.0", "text=language"),
        ("/backups", "text=what changes? >> nth=-1", "text=switched to a new branch"),
        ("/jobs", "text=nightly", "text=verified"),
        ("/audit", "text=details >> nth=0", ".detail[open] pre"),
        ("/timeline", ".event a[href^='/timeline/'] >> nth=0", "text=What it led to"),
        ("/hooks", "tbody th a >> nth=0", "text=Context"),
        ("/hooks/statistics", "tbody >> text=limit_discount", "text=Only failures"),
        ("/threads/weather", "text=recorded >> nth=0", "text=Take the coast path."),
        ("/verify", "button.primary >> text=Verify", "text=Everything is as it was written"),
        ("/metrics/plots", "text=Copy as", "svg.plot rect"),
    ):
        page.goto(writable.url + start)
        page.locator("main").locator(click).first.click()
        page.wait_for_selector(f"main >> {shows}", state="attached")


def test_the_palette_goes_to_a_thread_by_keys(page: Any, writable: ServedStore) -> None:
    page.goto(f"{writable.url}/audit")
    page.keyboard.press("Control+k")
    page.keyboard.type("chat-1")
    page.wait_for_selector("#found[data-query='chat-1'] a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/threads/chat-1")


@pytest.mark.nightly
def test_a_view_is_saved_under_a_name_and_removed(page: Any, writable: ServedStore) -> None:
    page.goto(f"{writable.url}/threads?prefix=support")
    page.once("dialog", lambda dialog: dialog.accept(HOSTILE))
    page.locator("[data-save]").click()
    link = page.locator("[data-saved] a")
    assert link.inner_text() == HOSTILE
    page.goto(writable.url)
    link.click()
    page.wait_for_url("**/threads?prefix=support")
    page.locator("[data-saved] button").click()
    assert page.locator("[data-saved]").is_hidden()


@pytest.mark.nightly
def test_a_list_follows_changes_and_keeps_what_is_typed(page: Any, writable: ServedStore) -> None:
    page.goto(f"{writable.url}/threads")
    page.wait_for_function("() => navigator.locks.query().then(found => found.held.length > 0)")
    writable.store.thread("fresh").put({"n": 1})
    page.wait_for_selector("main >> text=fresh")
    page.locator("main input[name=prefix]").fill("typed")
    writable.store.thread("fresher").put({"n": 1})
    page.wait_for_timeout(300)
    assert page.locator("main input[name=prefix]").input_value() == "typed"


def test_an_edited_fork_is_previewed_confirmed_and_made_once(page: Any, writable: ServedStore) -> None:
    page.goto(f"{writable.url}/threads/chat-1/00000050?tab=state")
    page.locator("summary", has_text="plan").first.click()
    goal = page.locator(".node", has=page.locator(".leaf .key", has_text="goal")).last
    goal.locator("[data-inspect]").click(force=True)
    page.locator(".inspector [data-edit]").click()
    form = page.locator(".inspector .editing")
    assert form.locator("textarea").input_value() == "explain holdfasts"
    form.locator("textarea").fill("rest")
    form.locator("input[name=branch]").fill("calm")
    form.locator("button", has_text="Another value").click()
    form.locator("input[name=path]:not([type=hidden])").fill("plan.done")
    form.locator("textarea").last.fill("{,")
    page.wait_for_selector(".editing [data-preview] >> text=starts at")
    form.locator("button", has_text="Another value").click()
    page.wait_for_selector(".editing .wrong >> text=not JSON")
    form.locator("textarea").nth(1).fill("99")
    page.wait_for_selector(".editing [data-preview] ins >> text=rest")
    sent = []
    page.on("request", lambda request: sent.append(request) if request.url.endswith("/forks") else None)
    form.locator("[data-apply]").click()
    page.wait_for_selector(".bar h1 >> text=calm")
    assert page.locator(".editing").count() == 0
    headers = sent[0].headers
    assert headers["if-match"].strip('"') == writable.store.thread("chat-1").find().id
    assert headers["idempotency-key"]
    assert writable.store.thread("chat-1").get("calm").state["plan"]["goal"] == "rest"
    assert writable.store.thread("chat-1").get("calm").state["plan"]["done"] == 99


@pytest.mark.nightly
def test_a_stale_change_shows_what_changed_and_a_merge_its_conflicts(page: Any, writable: ServedStore) -> None:
    thread = writable.store.thread("chat-1")
    page.goto(f"{writable.url}/threads/chat-1/00000050")
    page.locator(".menu > summary").click()
    page.locator("[data-act=merge]").click()
    page.locator("dialog.action select[name=theirs]").select_option("shorter")
    page.wait_for_selector(".conflict >> text=plan.goal")
    for number in range(page.locator(".conflict").count()):
        page.locator(".conflict").nth(number).locator("input[value=theirs]").check()
    page.wait_for_selector("dialog.action [data-apply]")
    thread.update({"budget.tokens": 5})
    page.locator("dialog.action [data-apply]").click()
    page.wait_for_selector(".stale")
    assert "budget.tokens" in page.locator("dialog.action").inner_text()
    page.locator("dialog.action button[name=accept]").click()
    page.wait_for_selector("dialog.action [data-apply]")
    page.locator("dialog.action [data-apply]").click()
    page.wait_for_selector(".chip.tip >> text=HEAD")
    page.wait_for_function("() => !document.querySelector('dialog[open]')")
    assert thread.get().state["plan"]["goal"] == "answer in 2 sentences"


@pytest.mark.nightly
def test_pruning_asks_for_the_name(page: Any, writable: ServedStore) -> None:
    writable.store.thread("short").put({"n": 0}, id="s0")
    for n in range(5):
        writable.store.thread("short").update({"n": n}, id=f"s{n + 1}")
    page.goto(f"{writable.url}/threads/short/s5/actions/prune?keep_last=2")
    button = page.locator("[data-apply]")
    assert button.is_disabled()
    page.locator("[data-typed]").fill("shor")
    assert button.is_disabled()
    page.locator("[data-typed]").fill("short")
    button.click()
    page.wait_for_url("**/threads/short/s5")
    assert len(writable.store.thread("short").log()) == 2


def test_an_incomplete_transition_is_resolved(page: Any, writable: ServedStore) -> None:
    page.goto(f"{writable.url}/agents/baker-crashed")
    page.locator("input[value=back]").check()
    page.locator("input[name=typed]").fill("baker-crashed")
    page.locator("button.danger").click()
    page.wait_for_function("() => !document.querySelector('.attention-card')")
    assert writable.store.agents.load("baker-crashed").pending is None


@pytest.mark.nightly
def test_a_step_without_an_outcome_is_resolved(page: Any, writable: ServedStore) -> None:
    steps = writable.store.agents.steps("baker-3")
    page.goto(f"{writable.url}/agents/baker-3")
    page.locator(".attention-card a").click()
    button = page.locator("[data-apply]")
    page.locator("select[name=how]").select_option("result")
    page.wait_for_selector("[data-preview] .wrong >> text=not JSON")
    assert button.count() == 0
    page.locator("textarea").fill('{"paid": 9.5}')
    page.wait_for_selector("[data-preview] >> text=--result '{\"paid\": 9.5}'")
    assert button.is_disabled()
    page.locator("[data-typed]").fill("charge-43")
    button.click()
    page.wait_for_url("**/agents/baker-3")
    assert page.locator(".attention-card").count() == 0
    assert (steps.get("charge-43").state, steps.get("charge-43").resolved) == ("done", "by hand")


@pytest.mark.nightly
def test_a_failed_call_is_found_by_keys_and_replayed_beside_the_original(page: Any, writable: ServedStore) -> None:
    page.goto(f"{writable.url}/hooks")
    page.locator("input[name=failed]").check()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**failed=true**")
    assert page.locator("tbody tr").count() == 1
    page.locator("tbody th a").press("Enter")
    page.wait_for_url("**/hooks/calls/**")
    assert "TypeError" in page.locator("main").inner_text()
    page.locator("textarea").fill("70")
    page.locator("button.primary").click()
    page.wait_for_selector("#replay")
    shown = page.locator("#replay").inner_text()
    assert "it ended otherwise" in shown
    assert "TypeError" in " ".join(page.locator("#replay del").all_inner_texts())
    rows = page.locator("#replay tbody tr").all_inner_texts()
    assert [row.split()[:2] for row in rows] == [["Recorded", "error"], ["Replayed", "ok"]]


@pytest.mark.nightly
def test_markup_in_any_name_does_not_run(page: Any, writable: ServedStore) -> None:
    for path in ODD_VIEWS:
        page.goto(writable.url + path)
        assert page.title() != "owned"
    page.keyboard.press("Control+k")
    page.keyboard.type("<script>")
    page.wait_for_selector("#found a")
    assert page.title() != "owned"
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('dialog[open]')")


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_actions_in_both_themes_and_widths(browser: Any, writable: ServedStore, theme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    writable.sign_in(page.context)
    for name, path in ACTION_VIEWS.items():
        page.goto(writable.url + path)
        assert check_layout(page) <= 0, name
        assert check_accessible(page) == [], name
    page.goto(f"{writable.url}/threads/chat-1/00000050")
    page.locator(".menu > summary").click()
    page.locator("[data-act=edit]").click()
    page.wait_for_selector("dialog.action[open]")
    assert check_layout(page) <= 0
    assert check_accessible(page) == []
    context.close()
