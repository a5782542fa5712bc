"""`holdfast branch`, `switch`, `fork`, `restore`, `tag`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def names(hf: Hf) -> list[str]:
    return [each["name"] for each in hf("branch", "t1", "--json").records]


# branch -----------------------------------------------------------------------------------------------------------


def test_branches_are_listed(hf: Hf) -> None:
    shown = hf("branch", "t1")
    assert shown.code == 0
    head, main, other = (line.split() for line in shown.lines)
    assert head == ["CURRENT", "BRANCH", "HEAD", "OWN", "STARTS", "FROM"]
    assert main == ["*", "main", "c5", "6"]
    assert other == ["other", "b4", "2", "c2"]
    record = hf("branch", "t1", "--json").records[1]
    assert (record["name"], record["head"], record["ahead"], record["current"]) == ("other", "b4", 2, False)
    assert hf("branch", "nobody").code == 3


def test_branches_are_made(hf: Hf) -> None:
    assert hf("branch", "t1", "new").out == "Started branch new at c5.\n"
    assert hf("branch", "t1", "old", "other~1").out == "Started branch old at b3.\n"
    assert names(hf) == ["main", "other", "new", "old"]
    again = hf("branch", "t1", "new")
    assert (again.code, "already" in again.err) == (4, True)
    assert hf("branch", "t1", "x", "nope").code == 3
    assert hf("branch", "t1", "a", "b", "c").code == 2


def test_branches_are_renamed(hf: Hf) -> None:
    assert hf("branch", "t1", "-m", "other", "another").out == "Renamed other to another.\n"
    assert names(hf) == ["main", "another"]
    assert hf("branch", "t1", "-m", "another").code == 2
    assert hf("branch", "t1", "-m", "main", "trunk").code == 2
    assert hf("branch", "t1", "-m", "nope", "x").code == 3
    assert hf("branch", "t1", "--rename", "another", "more", "--json").records == [
        {"thread": "t1", "name": "more", "renamed_from": "another"}
    ]


def test_branches_are_deleted(hf: Hf) -> None:
    refused = hf("branch", "t1", "-d", "other", "--yes")
    assert (refused.code, "not merged" in refused.err, "-D other" in refused.err) == (4, True, True)
    assert (
        hf("branch", "t1", "-D", "other", "--dry-run").out
        == "Would delete branch other and 2 checkpoints of its own.\n"
    )
    asked = hf("branch", "t1", "-D", "other")  # nobody is there to say yes
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert names(hf) == ["main", "other"]
    gone = hf("branch", "t1", "-D", "other", "-y", "--json").records
    assert gone == [{"thread": "t1", "name": "other", "ids": ["b3", "b4"], "deleted": True}]
    assert names(hf) == ["main"]
    hf("branch", "t1", "empty")
    assert hf("branch", "t1", "-d", "empty").code == 0  # nothing is lost, and so nobody is asked
    assert hf("branch", "t1", "-d", "empty").code == 3
    assert hf("branch", "t1", "-d").code == 2
    assert hf("branch", "t1", "-d", "-m", "x").code == 2
    assert hf("branch", "t1", "-D", "main", "-y").code == 2


def test_people_are_asked_before_a_branch_is_deleted(url: str) -> None:
    with kit.Terminal(*kit.command("--store", url, "branch", "t1", "-D", "other")) as terminal:
        terminal.expect("Delete other of t1, and 2 checkpoints that only they have?")
        terminal.send("n\n")
        terminal.expect("Nothing was changed.")
    with kit.Terminal(*kit.command("--store", url, "branch", "t1", "-D", "other")) as terminal:
        terminal.expect("Delete other")
        terminal.send("y\n")
        terminal.expect("Deleted branch other")


# switch, fork, restore --------------------------------------------------------------------------------------------


def test_switch(hf: Hf, url: str) -> None:
    switched = hf("switch", "t1", "other")
    assert switched.out.startswith("Switched t1 to other, at ")
    assert hf("show", "t1", "--path", "count").out == "400\n"
    assert hf("switch", "t1", "-c", "fresh", "c1").code == 0
    with holdfast.open(url) as store:
        assert store.thread("t1").get().state["count"] == 1
    assert hf("switch", "t1", "-c", "newest", "--json").records[0]["kind"] == "switch"
    assert hf("switch", "t1", "nope").code == 3
    assert hf("switch", "t1", "main", "c1").code == 2
    assert hf("switch", "t1", "-c", "main").code == 4


def test_fork(hf: Hf, url: str) -> None:
    assert hf("fork", "t1", "plain", "c2").out == "Started branch plain at c2.\n"
    edited = hf("fork", "t1", "edited", "c2", "--set", "count=7", "--set", "plan.goal=rest", "--remove", "messages")
    assert edited.out.startswith("Started branch edited at c2, with ")
    with holdfast.open(url) as store:
        assert store.thread("t1").get(at="edited").state == {"count": 7, "plan": {"goal": "rest"}}
    assert hf("fork", "t1", "other").code == 4
    assert hf("fork", "t1", "wrong", "--set", "count").code == 2
    assert hf("fork", "t1", "wrong", "--remove", "nope").code == 3
    assert hf("fork", "t1", "listed", "--json", "--set", 'l=[1, {"a": null}]').records[0]["ahead"] == 1
    with holdfast.open(url) as store:
        assert store.thread("t1").get(at="listed").state["l"] == [1, {"a": None}]


def test_restore(hf: Hf, url: str) -> None:
    assert hf("restore", "t1", "good").out.endswith(" has the state of c1.\n")
    assert hf("restore", "t1", "#0", "--branch", "other", "--json").records[0]["metadata"] == {"restored": "c0"}
    with holdfast.open(url) as store:
        assert store.thread("t1").get(at="main").state["count"] == 1
        assert store.thread("t1").get(at="other").state["count"] == 0
    assert hf("restore", "t1", "HEAD~99").code == 3
    assert hf("restore", "t1").code == 2


def test_undo(hf: Hf, url: str) -> None:
    done = hf("undo", "t1", "2", "--dry-run")
    assert done.out == "Would undo 2 checkpoints (messages: -2, count: changed).\n"
    done = hf("undo", "t1", "2")
    assert done.out.startswith("Undid 2 checkpoints (messages: -2, count: changed): ")
    assert done.out.endswith(" has the state of c3.\n")
    with holdfast.open(url) as store:
        thread = store.thread("t1")
        assert thread.get().state["count"] == 3
        assert thread.find("HEAD~1").id == "c5", "no checkpoint is removed"
    assert hf("undo", "t1").code == 0
    with holdfast.open(url) as store:
        assert store.thread("t1").get().state["count"] == 5, "an undo is undone, too"
    assert hf("undo", "t1", "--branch", "other").out.endswith(" has the state of b3.\n")
    assert "there is no checkpoint before 'HEAD'" in hf("undo", "t2").err
    assert hf("undo", "nobody").code == 3


def test_a_revision_is_given_as_an_option_too(hf: Hf) -> None:
    assert hf("fork", "t1", "a", "--at", "c2").out == hf("fork", "t1", "b", "c2").out.replace("branch b", "branch a")
    assert hf("branch", "t1", "c", "--at", "good").out == "Started branch c at c1.\n"
    assert hf("restore", "t1", "--at", "c0").out.endswith(" has the state of c0.\n")
    assert hf("show", "t1", "--at", "c1", "--json").records[0]["id"] == "c1"
    assert hf("tag", "t1", "v1", "--at", "c1").out == "c1 has the tag v1.\n"
    both = hf("fork", "t1", "d", "c2", "--at", "c2")
    assert (both.code, "not both" in both.err) == (2, True)
    assert "holdfast log t1 --oneline" in hf("restore", "t1").err
    assert "--at says where a new branch starts" in hf("branch", "t1", "--at", "c1").err


def test_append(hf: Hf, url: str) -> None:
    assert hf("append", "t1", "said", '{"text": "hi"}', "[2]").out.endswith(" has 2 items more at said.\n")
    assert hf("append", "t1", "said", "ho", "--text", "--branch", "other", "--json").records[0]["kind"] == "update"
    with holdfast.open(url) as store:
        assert store.thread("t1").get(at="main").state["said"] == [{"text": "hi"}, [2]]
        assert store.thread("t1").get(at="other").state["said"] == ["ho"]
    assert hf("append", "t1", "count", "1").code == 2
    assert hf("append", "t1", "said", "not JSON").code == 2
    assert hf("append", "t1", "said").code == 2
    assert hf("append", "new", "said", "1").out.endswith(" has 1 item more at said.\n")


# tag --------------------------------------------------------------------------------------------------------------


def test_tags_and_labels_are_listed(hf: Hf) -> None:
    assert [line.split() for line in hf("tag", "t1").lines] == [["TAG", "ID"], ["good", "c1"]]
    assert [line.split() for line in hf("label", "t1").lines] == [
        ["LABEL", "IDS"],
        ["seen", "c1,", "c4"],
    ]
    assert hf("tag", "t1", "--json").records == [{"thread": "t1", "tag": "good", "id": "c1"}]
    assert hf("label", "t1", "--json").records == [{"thread": "t1", "label": "seen", "ids": ["c1", "c4"]}]
    for command in ("tag", "label"):
        assert hf(command, "t2").out == ""
        assert hf(command, "nobody").code == 3


def test_tags_and_labels_are_added(hf: Hf, url: str) -> None:
    assert hf("label", "t1", "fine").out == "c5 has the label fine.\n"
    assert hf("label", "t1", "fine", "HEAD~1").out == "c4 has the label fine.\n"
    assert hf("tag", "t1", "best", "other").out == "b4 has the tag best.\n"
    taken = hf("tag", "t1", "best")
    assert (taken.code, "another checkpoint has the" in taken.err, "--force" in taken.err) == (4, True, True)
    assert hf("tag", "t1", "-f", "best", "--json").records == [{"thread": "t1", "id": "c5", "tag": "best"}]
    with holdfast.open(url) as store:
        assert store.thread("t1").tags() == {"best": "c5", "good": "c1"}
        assert store.thread("t1").labels()["fine"] == ["c4", "c5"]
    for command in ("tag", "label"):
        assert hf(command, "t1", "x", "nope").code == 3
        assert hf(command, "t1", "-d").code == 2


def test_tags_and_labels_are_removed(hf: Hf, url: str) -> None:
    assert hf("label", "t1", "-d", "seen", "c4").out == "Removed the label seen from c4.\n"
    assert hf("label", "t1", "-d", "seen", "c4").out == "Removed the label seen from none.\n"
    assert hf("label", "t1", "-d", "seen").out == "Removed the label seen from c1.\n"
    assert hf("label", "t1", "-d", "seen").code == 3
    assert hf("tag", "t1", "-d", "seen").code == 3
    assert hf("tag", "t1", "-d", "good", "--json").records == [
        {"thread": "t1", "tag": "good", "id": "c1", "removed": True}
    ]
    assert hf("tag", "t1", "-d", "good").code == 3
    with holdfast.open(url) as store:
        assert (store.thread("t1").tags(), store.thread("t1").labels()) == ({}, {})


@pytest.mark.parametrize("words", [["branch", "t1"], ["switch", "t1", "other"], ["tag", "t1", "x"]], ids=" ".join)
def test_without_a_store(words: list[str], tmp_path: Path) -> None:
    assert kit.run(*words, store=f"sqlite:///{tmp_path}/none.db").code == 10
