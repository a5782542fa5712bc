"""`holdfast timeline` and `holdfast hooks`: what happened, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


@pytest.fixture
def busy(hf: Hf, url: str) -> Hf:
    """A store in which a change led to another one."""
    with holdfast.open(url) as store:

        @store.hooks.after("state.set", scope="agent:a", name="mirror")
        def mirror(call: Any) -> None:
            store.state(agent="b")["copy"] = call.value

        with holdfast.correlation("run-1"):
            store.state(agent="a")["plan"] = "\x1b[31mred"
        store.hooks.drain(60)
    return hf


def test_events_are_listed_filtered_and_explained(busy: Hf, tmp_path: Path) -> None:
    assert [line.split()[2:6] for line in busy("timeline", "correlation:run-1").lines[1:]] == [
        ["hook", "mirror", "agent:a", "plan"],
        ["change", "set", "agent:b", "copy"],
        ["change", "set", "agent:a", "plan"],
    ]
    (first,) = busy("timeline", "kind:change", "--scope", "agent:a", "--json").records
    effects = busy("timeline", "--effects", first["id"], "--json").records
    assert [each["depth"] for each in effects] == [0, 1, 1]
    causes = busy("timeline", "--scope", "agent:b", "--of", "copy").lines
    assert [line.split()[2:6] for line in causes] == [
        ["change", "set", "agent:b", "copy"],
        ["change", "set", "agent:a", "plan"],
    ]
    html, spans = tmp_path / "page.html", tmp_path / "spans.json"
    assert busy("timeline", "correlation:run-1", "--html", str(html), "--otlp", str(spans)).code == 0
    assert html.read_text().count("<li") == 3
    assert len(json.loads(spans.read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 3
    assert {each["scope"] for each in busy("timeline", "--as", "agent:b", "--json").records} == {"agent:b"}


def test_a_listing_is_continued_by_its_cursor(busy: Hf) -> None:
    asked = ("timeline", "correlation:run-1", "--since", "1h")
    whole = busy(*asked).lines[1:]
    first = busy(*asked, "-n", "2")
    note = first.err.split()
    assert note[-2] == "--after"
    rest = busy(*asked, "--after", note[-1])
    assert [*first.lines[1:], *rest.lines[1:]] == whole
    assert "--after" not in rest.err


def test_wrong_use_and_nothing_found(busy: Hf) -> None:
    assert busy("timeline", "kind:transfer").code == 3
    assert busy("timeline", "colour:red").code == 2
    assert busy("timeline", "--effects", "nobody").code == 3
    assert busy("timeline", "--of", "x").code == 2
    assert busy("timeline", "--causes", "x", "--effects", "y").code == 2
    assert busy("timeline", "--html", "no/such/directory/x.html").code == 3


def test_a_name_that_is_searched_as_text_is_explained(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        store.state(custom="document/plan")["goal"] = "rest"
    assert "All that is about it: holdfast timeline --thread t1\n" in hf("timeline", "t1").err
    found = hf("timeline", "document/plan")
    assert found.err.endswith("holdfast timeline --scope custom:document%2Fplan\n")
    assert (
        hf("timeline", "--scope", "custom:document%2Fplan").out == hf("timeline", "--scope", "custom:document/plan").out
    )
    assert " custom:document/plan  goal " in hf("timeline", "goal").out, "it is shown as people write it"
    assert "about it" not in hf("timeline", "message").err


def test_what_happens_is_shown_as_it_happens(hf: Hf, url: str) -> None:
    first = hf("watch", "kind:checkpoint", "--since", "1d", "--thread", "t1", "-n", "2", "--json")
    with holdfast.open(url) as store:
        events = store.timeline.query("kind:checkpoint", thread="t1", oldest_first=True, limit=2)
    assert [(each["id"], each["kind"]) for each in first.records] == [(each.id, each.kind) for each in events]
    with kit.in_terminal("watch", "--store", url, "--interval", "0.05s") as terminal:
        terminal.expect("Ctrl-C ends.")
        with holdfast.open(url) as store:
            store.thread("t1").put({"count": 77})
            terminal.expect("checkpoint save  thread:t1")
            store.state(agent="a")["seen"] = 7
            terminal.expect("change set  agent:a seen 7")
        terminal.send("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.plain
    assert terminal.plain.count("thread:t1") == 1, "each once"
    assert hf("watch", "no-such-field:1").code == 2


def test_calls_of_hooks_are_listed_and_summed_up(busy: Hf) -> None:
    assert [line.split()[2:6] for line in busy("hooks", "history").lines[1:]] == [["mirror", "agent:a", "plan", "ok"]]
    (statistics,) = busy("hooks", "stats", "--by", "slowest", "--json").records
    assert (statistics["hook"], statistics["calls"], statistics["failures"]) == ("mirror", 1, 0)
    assert busy("hooks", "stats").lines[1].split()[:2] == ["mirror", "1"]


def test_calls_of_hooks_are_archived(busy: Hf, tmp_path: Path) -> None:
    done = busy("hooks", "archive", str(tmp_path / "h.jsonl"), "--keep-last", "1")
    assert "0 records" in done.err
    assert busy("hooks", "archive", str(tmp_path / "h.jsonl")).code == 2


def test_undelivered_calls_are_listed_retried_and_discarded(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        store.hooks.after("state.set", durable=True, attempts=1, name="deliver", max_failures=9)(lambda _: 1 / 0)
        for n in range(3):
            store.state(agent="a")[f"k{n}"] = n
        assert store.hooks.drain(60)
    listed = hf("hooks", "undelivered", "--state", "failed", "--json").records
    assert {(each["hook"], each["attempts"], each["error"]) for each in listed} == {("deliver", 1, "ZeroDivisionError")}
    assert hf("hooks", "undelivered", "deliver", "-n", "2").lines[1].split()[:3] == ["failed", "deliver", "agent:a"]
    one, two, _ = (each["reference"] for each in listed)
    assert hf("hooks", "retry", one, "--json").records == [{"calls": 1}]
    assert [each["reference"] for each in hf("hooks", "undelivered", "--state", "pending", "--json").records] == [one]
    assert hf("hooks", "discard", two).code == 0
    assert hf("hooks", "discard", two).code == 3
    assert hf("hooks", "retry", "--failed", "--hook", "deliver", "--json").records == [{"calls": 1}]
    assert hf("hooks", "undelivered", "--state", "failed").lines == []
    assert len(hf("hooks", "undelivered", "--json").records) == 2
    for wrong in (("retry",), ("retry", one, "--failed"), ("retry", one, "--hook", "deliver"), ("retry", "x")):
        assert hf("hooks", *wrong).code == 2
