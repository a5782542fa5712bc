"""`holdfast grep`, as people and programs see it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import holdfast
from holdfast.backends.interface import Get, Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from tests.damaged import flipped
from tests.interfaces.cli import kit
from tests.interfaces.cli.kit import Result

Hf = Callable[..., Result]


def test_hits_are_lines_of_thread_checkpoint_place_and_text(hf: Hf) -> None:
    result = hf("grep", '"message 4"')
    assert result.code == 0
    assert result.lines == ["t1:c4:messages[4].content: message 4"]
    assert "Searched 10 checkpoints without an index" in result.err
    assert hf("grep", "-q", '"message 4"').err == ""


def test_words_of_a_query_may_be_apart(hf: Hf) -> None:
    assert hf("grep", "message", "step>4", "role:assistant").lines == ["t1:c5:messages[5].content: message 5"]


def test_without_text_there_is_no_place(hf: Hf) -> None:
    result = hf("grep", "label:seen")
    assert result.lines == ["t1:c4", "t1:c1"]
    assert result.err == ""


def test_json(hf: Hf) -> None:
    (record,) = hf("grep", "hello", "--json").records
    assert (record["thread"], record["step"], record["kind"], record["more"]) == ("chat/anna", 0, "save", 0)
    assert record["hits"] == [{"path": "messages[0].content", "role": "user", "excerpt": "hello", "spans": [[0, 5]]}]


def test_counts_and_names_of_threads(hf: Hf) -> None:
    assert hf("grep", "message", "-c").lines == ["t1:6"]
    assert hf("grep", "hello OR rest", "-l").lines == ["chat/anna", "t2"]
    assert hf("grep", "hello OR rest", "-l", "--json").records == [{"thread": "chat/anna"}, {"thread": "t2"}]
    assert hf("grep", "label:seen", "--count", "--json").records == [{"thread": "t1", "count": 2}]


def test_a_limit(hf: Hf) -> None:
    assert len(hf("grep", "message", "-n", "2").lines) == 2
    assert hf("grep", "message", "-n", "0").code == 2


def test_more_than_a_page(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        for n in range(120):
            store.thread("long").put({"say": f"needle {n}"})
    assert len(hf("grep", "needle").lines) == 120
    assert len(hf("grep", "needle", "--limit", "70").lines) == 70


def test_nothing_found(hf: Hf) -> None:
    result = hf("grep", "unheardof")
    assert (result.code, result.out) == (3, "")


def test_a_query_that_cannot_be_read_is_shown_with_a_caret(hf: Hf) -> None:
    result = hf("grep", "message tga:x")
    assert result.code == 2
    assert result.err.splitlines()[-2:] == ["    message tga:x", "            ^"]
    assert hf("grep", "a (b", "--json").error["where"] == "column 3"
    assert hf("grep").code == 2


def test_a_query_that_starts_with_a_dash(hf: Hf) -> None:
    wrong = hf("grep", "-role:user message")
    assert wrong.code == 2
    assert "A query that starts with a dash follows two: holdfast grep -- '-word'" in wrong.err
    assert len(hf("grep", "--", "-role:user message").lines) == 3
    assert len(hf("grep", "-l", "--", "-role:user", "message").lines) == 1


def test_the_index_is_made_kept_and_removed(hf: Hf, url: str) -> None:
    result = hf("grep", "--index", "message")
    assert "Indexed 3 threads; 10 steps were new." in result.err
    assert "without an index" not in result.err
    assert len(result.lines) == 6
    with holdfast.open(url) as store:
        store.thread("t2").put({"say": "needle"}, id="n")
        assert store.search("needle").how == "index"
    assert hf("grep", "needle").lines == ["t2:n:say: needle"]
    assert hf("grep", "--drop-index").err == "The index was removed.\n"
    assert hf("grep", "--drop-index").err == "There was no index.\n"
    assert hf("grep", "--index", "--json") == (0, '{"threads":3,"steps":11}\n', "")
    assert hf("grep", "--drop-index", "--json") == (0, '{"dropped":true}\n', "")
    assert hf("grep", "--index", "--drop-index").code == 2


def test_damage_is_told(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        backend = store._engine.context.stored
        ((row,),) = run(backend.read([Get(STEPS, [("", "t2", 0, 0)])]))
        run(backend.apply([Put(STEPS, row._replace(body=flipped(row.body, -17)))]))
    result = hf("grep", "hello")
    assert result.code == 0
    assert "warning: 1 checkpoint could not be read and may match" in result.err
    told = [json.loads(line) for line in hf("grep", "hello", "--json").err.splitlines()]
    assert told == [{"warning": "1 checkpoint could not be read and may match; see holdfast verify"}]


def test_what_was_said_comes_first_and_marks_of_types_not_at_all(hf: Hf, url: str) -> None:
    call = {"name": "find", "args": {"type": "blue"}, "id": "blue/1", "type": "tool_call"}
    talk = [
        {"type": "ai", "id": "blue", "content": [{"type": "text", "text": "a blue one"}], "tool_calls": [call]},
        {"type": "tool", "tool_call_id": "blue/1", "content": "found: blue"},
    ]
    with holdfast.open(url) as store:
        store.thread("talk").put({"messages": talk, "note": "blue", "kinds": [{"type": "text"}]}, id="k")
    assert [line.split(":")[2] for line in hf("grep", "blue").lines] == [
        "messages[0].content[0].text",
        "messages[1].content",
        "messages[0].tool_calls[0].args.type",
        "messages[0].tool_calls[0].id",
        "note",
        "messages[0].id",
        "messages[1].tool_call_id",
    ]
    assert hf("grep", "tool_call").code == 3
    assert hf("grep", "text").lines == ["talk:k:kinds[0].type: text"]


def test_text_does_nothing_to_a_terminal(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("evil\x1b[31m").put({"say": "needle\x1b[2J \u202ein\nhere", "x": "a needle"}, id="e")
    result = hf("grep", "needle", "--color", "always")
    assert "\x1b[2J" not in result.out
    assert "\u202e" not in result.out
    assert "\x1b[31;1mneedle\x1b[0m" in result.out
    assert len(result.lines) == 2


def test_in_a_terminal_hits_stand_below_their_checkpoint(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("many").put({"items": [f"needle {n}" for n in range(14)], "say": "needle"}, id="m")
        store.thread("many").put({"say": "another needle"}, id="o")
    with kit.Terminal(*kit.command("--store", url, "--no-pager", "grep", "needle")) as terminal:
        assert terminal.wait() == 0
        shown = terminal.plain
    assert "many o step 1, save" in shown
    assert "  say: another needle" in shown
    assert "and 5 more" in shown


def test_it_stops_at_a_limit_unless_asked(hf: Hf, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(url) as store:
        for n in range(300):
            store.thread("long").put({"say": f"{'needle' if not n else 'hay'} {n}"})
    assert hf("grep", "needle").lines == [f"long:{store_id(url)}:say: needle 0"]
    monkeypatch.setattr("holdfast.engine.types.SCAN_LIMIT", 100)
    result = hf("grep", "needle")
    assert (result.code, result.lines) == (3, [])
    assert "stopped after 100 checkpoints without an index; more in threads may match" in result.err
    assert "grep --all" in result.err
    assert "stopped" in hf("grep", "-q", "needle").err, "also if only results are wanted"
    assert "stopped" in json.loads(hf("grep", "needle", "--json").err.splitlines()[0])["warning"]
    result = hf("grep", "needle", "--all")
    assert (result.code, len(result.lines)) == (0, 1)
    assert "stopped" not in result.err
    assert len(hf("grep", "hay", "thread:long").lines) >= 100, "what was found is shown"
    hf("grep", "--index")
    result = hf("grep", "needle")
    assert (result.code, len(result.lines)) == (0, 1)
    assert "stopped" not in result.err


def store_id(url: str) -> str:
    with holdfast.open(url) as store:
        return store.thread("long").log(limit=1000)[-1].id
