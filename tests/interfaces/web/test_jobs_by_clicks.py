"""What people open the pages for, done as a person does it: by clicks in a browser, which are counted."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.context import EngineContext
from holdfast.interfaces.web.pages import page_routes
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.conftest import copy_filled
from tests.interfaces.web.waiting_graphs import approve, graph_of, look

pytestmark = pytest.mark.nightly

MOST = 3
"""How many clicks there are to an answer where nothing is typed."""


class Person:
    """Clicks on what is seen, and counts it."""

    def __init__(self, page: Any, url: str, screenshots: Path) -> None:
        self.page, self.clicks = page, 0
        self._url, self._screenshots = url, screenshots

    def open(self) -> None:
        """Start at the overview."""
        self.page.goto(self._url)

    def click(self, selector: str) -> None:
        """Click on something."""
        self.page.locator(selector).first.click()
        self.clicks += 1

    def sees(self, selector: str) -> None:
        """Wait until something is on the page."""
        self.page.locator(selector).first.wait_for(state="visible")

    def done(self, name: str, most: int = MOST) -> None:
        """Make a screenshot, and check the number of clicks."""
        self.page.screenshot(path=str(self._screenshots / f"job-{name}.png"))
        assert self.clicks <= most, f"{name} takes {self.clicks} clicks"


def stopped_clock(now: int) -> property:
    """A clock of a store that stands still."""
    return property(lambda _: lambda: now)


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory, filled_folder: Path) -> Iterator[ServedStore]:
    """A store with something for every job, which may be changed."""
    file = copy_filled(tmp_path_factory, filled_folder)
    with holdfast.open(file) as store, ServedStore(store, page_routes, write=True) as served:
        yield served


@pytest.fixture
def person(browser: Any, writable: ServedStore, screenshots: Path) -> Iterator[Person]:
    """Somebody who is signed in, and whose pages have no errors."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    writable.sign_in(context)
    page, problems = context.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    person = Person(page, writable.url, screenshots)
    person.open()
    yield person
    context.close()
    assert problems == []


def test_find_the_thread_where_a_node_failed(person: Person) -> None:
    person.click(".needs a >> text=refund-18")
    person.sees(".status.bad >> text=ConnectionError")
    person.done("failed")


def test_find_the_thread_where_a_tool_failed(person: Person) -> None:
    person.click(".rail >> text=Timeline")
    person.click("text=Only failures")  # a tick is enough
    person.page.wait_for_url("**errors=true*")
    person.click(".event.failed:has-text('no answer in 10 s') .what a")
    person.sees(".call >> text=TimeoutError")
    person.done("failed-tool")


def test_see_how_long_a_model_and_a_tool_took(person: Person) -> None:
    person.click(".rail >> text=Threads")
    person.click("table.rows a >> text=weather")
    person.click(".bar >> text=Timeline")
    person.sees(".event:has(svg[aria-label=model]) .fall rect")
    person.sees(".event.failed:has(svg[aria-label=tool]) >> text=there is no such town")
    person.done("waterfall")


def test_answer_a_waiting_interrupt(person: Person, writable: ServedStore) -> None:
    person.click(".needs a >> text=refund-17")
    person.sees(".question >> text=42.50 EUR")
    person.click(".question >> text=Edit")
    person.sees("textarea[name='0.args']")
    person.page.locator("textarea[name='0.args']").fill('{"order": "A-17", "amount": 40}')
    person.click(".question [data-apply]")  # at once: it is not what was there before that is sent
    person.sees(".status >> text=Unfinished")
    person.page.wait_for_selector(".row[aria-current]:not(:has(.waits))")  # nobody waits any more
    person.done("answer")
    config: Any = {"configurable": {"thread_id": "refund-17"}}
    said = graph_of(approve, writable.store).invoke(None, config)["messages"][-1]
    assert "'amount': 40" in said.content
    assert isinstance(HoldfastSaver(writable.store).get_tuple(config), tuple)


def test_fork_from_a_step_with_an_edited_message_and_resume(person: Person, writable: ServedStore) -> None:
    person.click(".rail >> text=Threads")
    person.click("table.rows a >> text=weather-3")
    person.page.wait_for_selector(".row")
    person.page.keyboard.press("g")
    person.page.keyboard.type("1")
    person.page.keyboard.press("Enter")
    person.page.wait_for_selector(".bar[data-step='1']")
    person.page.locator(".message").first.hover()
    person.click(".message [data-edit]")
    person.page.locator(".editing textarea").fill("Please refund order B-99.")
    person.sees(".editing .words ins")
    person.click(".editing [data-apply]")
    person.sees(".status >> text=A branch starts here")
    person.sees(".said >> text=B-99")
    person.done("edit-and-fork", most=4)  # the message is typed
    code = person.page.locator(".status pre code").inner_text()
    ids = re.fullmatch(r"graph\.invoke\(None, (.*)\)", code)
    assert ids is not None
    config = ast.literal_eval(ids[1])
    first, *others = graph_of(look, writable.store).invoke(None, config)["messages"]
    assert (first.content, len(others)) == ("Please refund order B-99.", 2)
    assert len(writable.store.thread("weather-3").branches()) == 2


def test_edit_a_value_where_it_is_in_the_state(person: Person, writable: ServedStore) -> None:
    person.click(".needs a >> text=chat-1")
    person.page.wait_for_selector(".row")
    person.page.keyboard.press("2")
    person.click(".tree summary:has-text('plan')")
    leaf = person.page.locator(".tree .tree .node", has_text="goal")
    leaf.hover()
    leaf.locator("[data-edit]").click()
    person.clicks += 1
    person.page.locator(".editing textarea").fill('a goal with "quotes"')
    person.sees(".editing .words ins")
    person.click(".editing [data-apply]")
    person.page.wait_for_selector(".bar[data-branch^=edit-]")
    person.done("edit-value", most=4)  # the text is typed
    branch = person.page.locator(".bar").get_attribute("data-branch")
    assert writable.store.thread("chat-1").get(branch).state["plan"]["goal"] == 'a goal with "quotes"'


def test_compare_two_forks_and_merge_them(person: Person, writable: ServedStore) -> None:
    thread = writable.store.thread("forks")
    thread.put({"messages": [{"role": "user", "content": "Hello"}], "n": 0}, id="c0")
    thread.fork("what-if", "c0", changes={"messages[0].content": "Good day", "n": 1})
    thread.update({"n": 2})
    person.click(".rail >> text=Threads")
    person.click("table.rows a >> text=forks")
    person.click("text=Compare branches")
    person.sees(".beside .said >> text=Good day")
    person.sees(".twofold")
    person.done("compare")
    for legend in person.page.locator("#merge .conflict").all():
        legend.locator("input[value=theirs]").check()
    person.click("#merge [data-apply]")
    person.page.wait_for_url("**/threads/forks/*")
    assert thread.get().state["n"] == 1


def test_restore_to_a_time(person: Person, writable: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = writable.store.thread("restored")
    for number, ago in enumerate((3 * 3600, 2 * 3600, 60)):
        monkeypatch.setattr(EngineContext, "clock", stopped_clock(time.time_ns() - ago * 10**9))
        thread.put({"n": number}, id=f"c{number}")
    monkeypatch.undo()
    person.click(".rail >> text=Threads")
    person.click("table.rows a >> text=restored")
    person.page.wait_for_selector(".row")
    at = person.page.evaluate("() => new Date(Date.now() - 3600e3).toTimeString().slice(0, 5)")
    person.page.keyboard.press("g")
    person.page.keyboard.type(at)
    person.page.keyboard.press("Enter")
    person.page.wait_for_selector(".bar[data-id='c1']")
    person.click(".menu summary")
    person.click(".menu >> text=Restore")
    person.click("dialog.action [data-apply]")
    person.page.wait_for_selector(".bar[data-step='3']")
    person.done("restore", most=5)  # the time is typed
    assert thread.get().state == {"n": 1}


def test_see_what_changed_between_two_steps(person: Person) -> None:
    person.click(".needs a >> text=chat-1")
    rows = person.page.locator(".row .tick input")
    for number in (0, 3):
        rows.nth(number).check(force=True)
        person.clicks += 1
    person.sees(".sides")
    person.done("changed")


def test_see_why_a_value_is_what_it_is(person: Person) -> None:
    person.click(".needs a >> text=chat-1")
    person.page.wait_for_selector(".row")
    person.page.keyboard.press("2")
    person.click(".tree summary:has-text('plan')")
    person.page.locator(".tree .tree .leaf", has_text="done").hover()
    person.click(".tree .tree [aria-label='Inspect plan.done']")
    person.sees(".inspector >> text=Set by")
    person.done("why")


def test_see_who_read_a_secret(person: Person, writable: ServedStore) -> None:
    writable.store.state(agent="vault")["secret"] = "kelp"
    writable.store.access.grant("user:ida", "read", agent="vault")
    assert writable.store.as_identity("user:ida").state(agent="vault")["secret"] == "kelp"
    person.click(".rail >> text=Audit")
    person.click(".tabs >> text=Reads")
    person.sees("table.rows tr:has-text('user:ida'):has-text('agent:vault')")
    person.click("table.rows tr:has-text('user:ida') a >> text=agent:vault")
    person.done("who-read")
    person.page.goto(f"{writable.url}/state/agent%3Avault/secret")
    person.click("a >> text=Who read it")
    person.sees("table.rows tr:has-text('user:ida')")
    assert person.page.locator("table.rows tbody tr").count() == 1


def test_check_that_the_last_backup_is_good(person: Person) -> None:
    person.click(".rail >> text=Backups")
    person.sees("text=drill")
    person.done("backup")


def test_look_at_a_hook_that_failed(person: Person) -> None:
    person.click(".rail >> text=Hooks")
    person.sees("table.rows tr.wait")
    person.click("table.rows tr.wait a")
    person.sees("text=error")
    person.done("hook")


def test_see_what_grows(person: Person) -> None:
    person.sees("h2 >> text=Growth")
    person.sees("h2 >> text=Largest")
    person.done("grows")


def test_watch_a_running_agent(person: Person, writable: ServedStore) -> None:
    person.click(".rail >> text=Threads")
    person.click("table.rows a >> text=support-1")
    person.page.wait_for_function("() => navigator.locks.query().then(found => found.held.length > 0)")
    person.page.wait_for_timeout(1000)
    writable.store.thread("support-1").put({"messages": [{"role": "user", "content": "a new message"}]})
    person.sees(".said >> text=a new message")
    person.done("watch")


def test_give_somebody_read_access(person: Person, writable: ServedStore) -> None:
    person.click(".rail >> text=Access")
    person.click("a >> text=Give access")
    person.page.fill("[name=to]", "user:dan")
    person.page.fill("[name=place]", "thread:chat-*")
    person.page.fill("[name=code]", writable.authenticator.issue_code())
    person.click("button >> text=Give access")
    person.sees("table.rows >> text=user:dan")
    person.done("give-access")
    assert writable.store.access.may("user:dan", "read", thread="chat-1")
    assert not writable.store.access.may("user:dan", "write", thread="chat-1")


def test_erase_a_person(person: Person, writable: ServedStore) -> None:
    writable.store.thread("visit-of-dora").put({"said": "a storm"}, metadata={"subject": "dora"})
    person.click(".rail >> text=Access")
    person.click(".tabs >> text=Persons")
    person.page.wait_for_function("() => document.activeElement.name === 'subject'")  # what opens has the focus
    person.page.keyboard.type("dora")
    person.page.keyboard.press("Enter")
    person.sees("table.rows >> text=visit-of-dora")
    person.click("a >> text=Erase")
    person.page.fill("[name=typed]", "dora")
    person.page.fill("[name=code]", writable.authenticator.issue_code())
    person.click("button >> text=Erase")
    person.sees("h1 >> text=Erased")
    writable.store.thread("later").put({"n": 1})
    person.page.wait_for_timeout(1000)  # what happens meanwhile does not replace what was done
    assert person.page.locator("h1 >> text=Erased").is_visible()
    person.done("erase", most=4)  # the name and a code are typed
    assert [each.thread for each in writable.store.threads(prefix="visit-of-dora")] == []


def test_delete_ticked_threads_by_keys(person: Person, writable: ServedStore) -> None:
    for number in range(2):
        writable.store.thread(f"trash-{number}").put({"n": number})
    person.click(".rail >> text=Threads")
    person.page.wait_for_selector("table.rows a >> text=trash-0")
    person.page.keyboard.press("j")
    person.page.keyboard.press("x")
    person.page.keyboard.press("j")
    person.page.keyboard.press("x")
    person.page.wait_for_function("() => navigator.locks.query().then(found => found.held.length > 0)")
    person.page.wait_for_timeout(1000)
    writable.store.thread("trash-1").put({"n": 9})  # the list is read again, and the ticks stay
    person.page.wait_for_function(
        "() => [...document.querySelectorAll('.rows tr')].some(row => row.innerText.includes('n=9'))"
    )
    assert person.page.locator("[data-ticks] input:checked").count() == 2
    person.click(".bulk >> text=Delete")
    person.sees("text=2 threads with 3 steps are deleted for good")
    person.page.fill("[name=typed]", "delete 2")
    person.click("button >> text=Delete")
    person.page.wait_for_url("**/threads")
    person.done("delete")
    assert list(writable.store.threads(prefix="trash-")) == []


def test_a_key_opens_the_actions_and_escape_gives_the_focus_back(person: Person) -> None:
    person.click(".needs a >> text=chat-1")
    person.page.wait_for_selector(".row")
    person.page.wait_for_function("() => navigator.locks.query().then(found => found.held.length > 0)")
    person.page.keyboard.press("a")
    person.page.wait_for_function("() => document.activeElement.matches('.menu[open] a')")
    person.page.keyboard.press("Escape")
    person.page.wait_for_function("() => document.activeElement.matches('.menu:not([open]) > summary')")


def test_run_a_job_now(person: Person, writable: ServedStore) -> None:
    before = len(writable.store.jobs.get("nightly").runs)
    person.click(".rail >> text=Jobs")
    person.click("table.rows a >> text=nightly")
    person.click("button >> text=Run now")
    person.sees("h2 >> text=Runs")
    person.done("run-job")
    assert len(writable.store.jobs.get("nightly").runs) == before + 1
