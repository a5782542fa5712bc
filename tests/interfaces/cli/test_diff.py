"""`holdfast diff` and `holdfast blame`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonpatch
import pytest

import holdfast
from tests.interfaces.cli.kit import Result

Run = Callable[..., Result]


def test_what_the_latest_checkpoint_changed(hf: Run) -> None:
    done = hf("diff", "t1")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("--- t1 c4 (step 4, ")
    assert done.lines[1].startswith("+++ t1 c5 (step 5, ")
    assert done.lines[2:] == [
        " messages: +1",
        " count: changed",
        "",
        "messages[5] (added)",
        "+ assistant: message 5",
        "",
        "count",
        "- 4",
        "+ 5",
    ]


def test_internal_channels(hf: Run, url: str) -> None:
    """What a framework keeps for itself is left out for people, and said to be."""
    with holdfast.open(url) as store:
        store.thread("own").put({"n": 1, "__pregel_tasks": [1], "branch:to:x": None})
        store.thread("own").put({"n": 2, "__pregel_tasks": [2], "branch:to:x": 1})
        store.thread("own").put({"n": 2, "__pregel_tasks": [3], "branch:to:x": 1})
    done = hf("diff", "own", "#0", "#1")
    assert done.lines[2:] == [" n: changed", " … 2 internal channels (--all-channels shows all)", "", "n", "- 1", "+ 2"]
    assert hf("diff", "own").lines[2:] == [" … 1 internal channel (--all-channels shows all)"]
    assert " __pregel_tasks: ~1" in hf("diff", "own", "--all-channels").lines
    assert [each["channel"] for each in hf("diff", "own", "--json").records[0]["summary"]] == ["__pregel_tasks"]
    assert "__pregel_tasks" not in hf("log", "own", "-p").out
    assert "__pregel_tasks[0]" in hf("log", "own", "-p", "--all-channels").out


def test_a_branch_with_dots_in_its_name(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("t1").fork("c1..c3", at="c4")
    assert hf("diff", "t1", "c1..c3", "--stat").lines[2:] == [" messages: +1", " count: changed"]


def test_the_checkpoint_before_was_pruned(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        for number in range(3):
            store.thread("short").put({"n": number})
        store.maintenance.prune(threads="short", keep_latest=True)
    done = hf("diff", "short")
    assert (done.code, "was pruned" in done.err, "Name the checkpoint" in done.err) == (3, True, True)
    done = hf("log", "short", "-p")
    assert (done.code, "was pruned)" in done.out) == (0, True)
    assert hf("log", "short", "-p", "--json").records[0]["patch"] is None


@pytest.mark.parametrize("revisions", [("c1", "c3"), ("c1..c3",), ("good", "#3"), ("HEAD~4", "HEAD~2")])
def test_two_revisions(hf: Run, revisions: tuple[str, ...]) -> None:
    done = hf("diff", "t1", *revisions, "--stat")
    assert done.lines[2:] == [" messages: +2", " count: changed"]


def test_from_a_revision_to_the_latest(hf: Run) -> None:
    assert hf("diff", "t1", "c5", "--json").records[0]["changes"] == []
    assert hf("diff", "t1", "c4..", "--json").records == hf("diff", "t1", "--json").records
    assert hf("diff", "t1", "..c4", "--json").records[0]["new"]["id"] == "c4"


def test_nothing_differs(hf: Run) -> None:
    done = hf("diff", "t1", "c2", "c2", "--exit-code")
    assert (done.code, done.out) == (0, "")
    assert hf("diff", "t1", "c2", "c2", "--patch").out == "[]\n"


def test_exit_code(hf: Run) -> None:
    assert hf("diff", "t1", "--exit-code").code == 6
    assert hf("diff", "t1").code == 0


def test_json(hf: Run) -> None:
    (record,) = hf("diff", "t1", "c2", "other", "--json").records
    assert [record["old"]["id"], record["new"]["id"], record["new"]["branch"]] == ["c2", "b4", 1]
    assert record["changes"] == [{"kind": "change", "path": "count", "old": 2, "new": 400}]


def test_patch(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        old, new = store.thread("t1").get("c0").state, store.thread("t1").get("c5").state
    for flags in ((), ("--json",)):
        patch = json.loads(hf("diff", "t1", "c0", "c5", "--patch", *flags).out)
        assert jsonpatch.apply_patch(old, patch) == new


def test_another_thread(hf: Run) -> None:
    done = hf("diff", "t1", "c0", "--with", "chat/anna")
    assert done.lines[1].startswith("+++ chat/anna ")
    assert " count: removed" in done.lines
    assert hf("diff", "t1", "--with", "nobody").code == 3


def test_a_file(hf: Run, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"plan": {"goal": "rest", "steps": ["one", {"$tuple": [1]}]}}))
    done = hf("diff", "t2", "--file", file)
    assert done.lines[1] == f"+++ {file}"
    assert done.lines[-3:] == ["plan.steps[1]", '- "two"', "+ [1]"]
    assert hf("diff", "t2", "--file", "-", typed=file.read_text()).lines[3:] == done.lines[3:]


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, 3), ("{", 2), ("[1]", 2), ('{"x": {"$nonsense": 1}}', 2)],
    ids=["missing", "no JSON", "no state", "wrong mark"],
)
def test_a_file_that_is_none(hf: Run, tmp_path: Path, content: str | None, code: int) -> None:
    file = tmp_path / "state.json"
    if content is not None:
        file.write_text(content)
    done = hf("diff", "t2", "--file", file)
    assert (done.code, done.out) == (code, "")


def test_a_directory_is_no_file(hf: Run, tmp_path: Path) -> None:
    done = hf("diff", "t2", "--file", tmp_path)
    assert done.code == 2
    assert "cannot be read" in done.err


def test_words_and_colours(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("text").put({"t": "the quick fox"})
        store.thread("text").put({"t": "the slow fox", "gone": 1})
        store.thread("text").put({"t": "the slow \x1b[31mfox"})
    assert hf("diff", "text", "#0", "#1", "--word").lines[-4] == "  the [-quick-]{+slow+} fox"
    done = hf("diff", "text", "--color", "always")
    assert "\x1b[32madded\x1b[0m" in hf("diff", "text", "#0", "#1", "--color", "always").out
    assert "\x1b[31m- the slow fox\x1b[0m" in done.out
    assert "the slow \\x1b[31mfox" in done.out, "what a store holds does nothing to the terminal"


def test_what_is_not_there(hf: Run) -> None:
    assert hf("diff", "t1", "nope").code == 3
    assert hf("diff", "nobody").code == 3
    assert hf("diff", "t1", "c0", "c1", "--file", "x").code == 2
    assert hf("diff").code == 2


# Blame --------------------------------------------------------------------------------------------------------


def test_blame(hf: Run) -> None:
    done = hf("blame", "t1", "messages")
    assert done.code == 0
    assert done.lines[0].split() == ["CHECKPOINT", "STEP", "WHEN", "BY", "PATH", "VALUE"]
    rows = [line.split() for line in done.lines[1:]]
    assert [(row[0], row[1]) for row in rows] == [(f"c{n}", str(n)) for n in range(6)]
    assert done.lines[2].endswith("loop  messages[1]  assistant: message 1")


def test_blame_at_and_below(hf: Run) -> None:
    assert hf("blame", "t1", "messages[-1]", "--at", "c2").lines[1].startswith("c2 ")
    assert [line.split()[0] for line in hf("blame", "t1", "messages[1:3]").lines] == ["CHECKPOINT", "c1", "c2"]
    assert len(hf("blame", "t1", "messages", "--limit", "2").lines) == 3
    assert hf("blame", "t2", "plan").lines[1].split()[-2:] == ["plan.goal", "rest"]
    assert hf("blame", "t2", "plan.steps").lines[2].endswith("plan.steps[1]  two")
    assert hf("blame", "t1", "count", "--at", "other").lines[1].startswith("b4 ")


def test_blame_of_many_items(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("long").put({"l": [f"item {n}" for n in range(450)]})
    assert len(hf("blame", "long", "l").lines) == 451
    assert [record["value"] for record in hf("blame", "long", "l", "--json").records][449] == "item 449"


def test_blame_as_json(hf: Run) -> None:
    (record,) = hf("blame", "t1", "messages[3]", "--json").records
    assert record["time"].endswith("Z")
    assert {name: record[name] for name in ("id", "step", "branch", "kind", "by", "path", "pruned")} == {
        "id": "c3",
        "step": 3,
        "branch": 0,
        "kind": "save",
        "by": "loop",
        "path": "messages[3]",
        "pruned": False,
    }
    assert record["value"] == {"role": "assistant", "content": "message 3"}


def test_history(hf: Run) -> None:
    done = hf("blame", "t1", "count", "--history", "--limit", "2")
    assert done.lines[0].startswith("c5  step 5  save  ")
    assert done.lines[0].endswith("  by loop")
    assert done.lines[1:5] == ["  count", "  - 4", "  + 5", ""]
    records = hf("blame", "t1", "count", "--history", "--json", "--at", "other").records
    assert [record["id"] for record in records] == ["b4", "b3", "c2", "c1", "c0"]
    assert records[0]["changes"] == [{"kind": "change", "path": "count", "old": 300, "new": 400}]


def test_blame_of_nothing(hf: Run) -> None:
    assert hf("blame", "t1", "nothing").code == 3
    assert hf("blame", "t1", "messages[99]").code == 3
    done = hf("blame", "t1", "messages[")
    assert done.code == 2
    assert "column 9" in done.err


def test_pruned_checkpoints(hf: Run, url: str) -> None:
    with holdfast.open(url) as store:
        for number in range(4):
            store.thread("old").put({"messages": ["words " * 50 + str(each) for each in range(number + 1)]})
        store.maintenance.prune(threads="old", keep_last=1)
    assert hf("blame", "old", "messages[1]").lines[1].startswith("(pruned) ")
    assert hf("blame", "old", "messages[1]", "--json").records[0]["id"] == ""
    assert hf("blame", "old", "messages[1]", "--history").lines[0].startswith("(pruned)  step 1  pruned ")
