"""`holdfast merge`, and what it asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import holdfast
from holdfast.engine.model.missing import MISSING
from holdfast.history.merge import MergeConflict
from holdfast.interfaces.cli import merge as command
from holdfast.interfaces.cli.base import CliContext
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A thread whose two branches both changed `n` and `plan`, each its own way."""
    url = f"sqlite:///{tmp_path}/merges.db"
    with holdfast.open(url) as store:
        store.thread("t").put({"n": 0, "plan": ["think"], "text": "a\n"})
        store.thread("t").fork("draft")
        store.thread("t").update({"n": 2, "plan": ["think", "theirs"], "theirs": True}, branch="draft")
        store.thread("t").update({"n": 1, "plan": ["think", "ours"]}, branch="main")
    return url


@pytest.fixture
def hf(url: str) -> Hf:
    return lambda *words, typed="": kit.run(*words, store=url, typed=typed)


def state(url: str) -> Any:
    with holdfast.open(url) as store:
        return store.thread("t").get(at="main").state


def test_clashes_are_told_by_place(hf: Hf, url: str) -> None:
    before = state(url)
    refused = hf("merge", "t", "draft")
    assert refused.code == 4
    assert refused.lines == [
        "both changed n", "  base: 0", "  ours: 1", "  theirs: 2",
        "both changed plan[1:2]", "  base: []", "  ours: - ours", "  theirs: - theirs",
    ]  # fmt: skip
    assert "--interactive" in refused.err
    assert "both sides changed the same values differently: n, plan[1:2]" in refused.err
    records = hf("merge", "t", "draft", "--json").records
    assert records == [
        {"path": "n", "base": 0, "ours": 1, "theirs": 2},
        {"path": "plan[1:2]", "base": [], "ours": ["ours"], "theirs": ["theirs"]},
    ]
    assert state(url) == before


def test_a_dry_run_shows_what_would_change_and_saves_nothing(hf: Hf, url: str) -> None:
    before = state(url)
    shown = hf("merge", "t", "draft", "-s", "theirs", "--dry-run")
    assert shown.code == 0
    assert "theirs" in shown.out
    assert hf("merge", "t", "draft", "-s", "theirs", "--dry-run", "--json").records
    assert hf("merge", "t", "draft", "--dry-run").code == 4
    assert state(url) == before


def test_strategies(hf: Hf, url: str) -> None:
    assert hf("merge", "t", "draft", "-s", "union").code == 4
    done = hf("merge", "t", "draft", "-X", "theirs", "--resolve", "plan=union", "-m", "because")
    assert (done.code, done.out.startswith("Merged ")) == (0, True)
    assert state(url) == {"n": 2, "plan": ["think", "ours", "theirs"], "text": "a\n", "theirs": True}
    with holdfast.open(url) as store:
        assert store.thread("t").get().metadata["message"] == "because"
    assert hf("merge", "t", "draft").out == "Already up to date.\n"
    assert hf("merge", "t", "main", "--into", "draft", "--json").records[0]["kind"] == "merge"
    for words in (["--resolve", "plan"], ["--resolve", "plan=mine"], ["-s", "mine"], ["-i", "--json"]):
        assert hf("merge", "t", "draft", *words).code == 2
    assert hf("merge", "t", "nope").code == 3
    assert hf("merge", "t", "draft", "--into", "nope").code == 3


def test_people_are_asked(hf: Hf, url: str) -> None:
    done = hf("merge", "t", "draft", "-i", typed="b\nx\nt\nb\n")
    assert done.code == 0
    assert "Only lists and texts can be combined." in done.err
    assert done.err.count("both changed") == 2
    assert state(url) == {"n": 2, "plan": ["think", "ours", "theirs"], "text": "a\n", "theirs": True}


def test_what_is_nothing_or_long_is_shown(hf: Hf, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(url) as store:
        store.thread("t").update({}, remove=["text"], branch="main")
        store.thread("t").update({"text": {"lines": ["a", "b"], "by": "them"}}, branch="draft")
    shown = hf("merge", "t", "draft", "--into", "main", "--resolve", "n=ours", "--resolve", "plan=ours").lines
    assert shown == [
        "both changed text", "  base:", "    a", "    ", "  ours: (nothing)",
        "  theirs:", "    lines:", "      - a", "      - b", "    by: them",
    ]  # fmt: skip
    monkeypatch.setattr("click.edit", lambda text, extension: "[1, 2]")
    words = ("--into", "main", "-i", "--resolve", "n=ours", "--resolve", "plan=ours")
    assert hf("merge", "t", "draft", *words, typed="e\n").code == 0
    assert state(url)["text"] == [1, 2]


def test_a_checkpoint_that_is_followed_by_another(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        head = store.thread("t").find("main").id
        store.thread("t").update({"more": 1}, branch="main")
    refused = hf("merge", "t", "draft", "--into", head, "-s", "ours")
    assert (refused.code, refused.out) == (4, "")
    assert "follows" in refused.err


def test_people_may_quit(hf: Hf, url: str) -> None:
    before = state(url)
    quit_ = hf("merge", "t", "draft", "-i", typed="o\nq\n")
    assert (quit_.code, "Nothing was merged." in quit_.err) == (4, True)
    assert state(url) == before


def test_people_are_not_asked_what_is_settled(hf: Hf, url: str) -> None:
    done = hf("merge", "t", "draft", "-i", "--resolve", "plan=union", "--resolve", "n=union", typed="o\n")
    assert done.code == 0
    assert done.err.count("both changed") == 1  # of numbers there is no union
    assert state(url)["plan"] == ["think", "ours", "theirs"]
    assert state(url)["n"] == 1


def test_in_a_terminal_with_an_editor(url: str, tmp_path: Path) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import sys\n"
        "text = open(sys.argv[1]).read()\n"
        "assert '// n: the merged value as JSON' in text and '// theirs:\\n// 2' in text, text\n"
        "open(sys.argv[1], 'w').write('// mine\\n{\"$tuple\": [1, 2]}\\n')\n"
    )
    words = kit.command("--store", url, "merge", "t", "draft", "--interactive")
    with kit.Terminal(*words, env={"EDITOR": f"{sys.executable} {editor}"}) as terminal:
        terminal.expect("both changed n")
        terminal.expect("(e)dit")
        terminal.send("e\n")
        terminal.expect("plan[1:2]")
        terminal.send("theirs\n")
        terminal.expect("Merged ")
    assert state(url) == {"n": (1, 2), "plan": ["think", "theirs"], "text": "a\n", "theirs": True}


@pytest.mark.nightly
def test_ctrl_c_at_a_question(url: str) -> None:
    before = state(url)
    with kit.Terminal(*kit.command("--store", url, "merge", "t", "draft", "-i")) as terminal:
        terminal.expect("(q)uit [o]:")
        assert terminal.interrupt() == 130
    assert state(url) == before


@pytest.mark.parametrize(
    ("written", "value"),
    [("", MISSING), ("// nothing\n", MISSING), ("3", 3), ('{"a": [1]}', {"a": [1]}), ("no json", None), (None, None)],
    ids=repr,
)
def test_what_an_editor_leaves(monkeypatch: pytest.MonkeyPatch, written: str | None, value: Any) -> None:
    monkeypatch.setattr("click.edit", lambda text, extension: written)
    found = command.edit(MergeConflict(("n",), 0, MISSING, {1, 2}))
    assert found == value if value is not None else found is command._ASK


@pytest.mark.parametrize(
    ("ours", "theirs", "value"),
    [(["a"], ["b", "a"], ["a", "b"]), ("a", "b\n", "a\nb\n"), ("a\n", "b", "a\nb"), (1, 2, None), (MISSING, "a", None)],
    ids=repr,
)
def test_both(ours: Any, theirs: Any, value: Any) -> None:
    assert command.both(MergeConflict(("x",), MISSING, ours, theirs)) == value


def test_an_answer_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = command.ConflictPrompt(CliContext(), {})
    answers = iter(["t"])
    monkeypatch.setattr(click, "prompt", lambda *_, err: next(answers))
    clash = MergeConflict(("n",), 0, 1, 2)
    assert [asked(clash), asked(MergeConflict(("n",), 0, 1, 2))] == [2, 2]
