"""`holdfast state`: keys of scopes, looked at, changed, rolled back and watched."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.interfaces.cli.formatting import in_words
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]

RESEARCHER = "agent:researcher"


@pytest.fixture
def filled(hf: Hf, url: str) -> Hf:
    """A store with the scope `agent:researcher`: `plan` (versions 1 and 3), `mood` (2), and one inside it."""
    with holdfast.open(url) as store:
        state = store.state(agent="researcher")
        state["plan"] = {"goal": "tides", "done": 0}
        state["mood"] = "curious"
        state.patch("plan", {"done": 1})
        store.state(agent="researcher", step="fetch")["page"] = 2
        store.state(user="alice")["name"] = "Alice"
    return hf


def value(hf: Hf, scope: str, key: str, *more: str) -> object:
    """What a key holds."""
    (record,) = hf("state", "get", scope, key, *more, "--json").records
    found: object = record["value"]
    return found


# Values ---------------------------------------------------------------------------------------------------------


def test_a_value_is_set_got_and_listed(hf: Hf) -> None:
    done = hf("state", "set", RESEARCHER, "plan", '{"goal": "tides", "done": [1, null, 2.5]}')
    assert (done.code, done.out, done.err) == (0, "", "plan is at version 1.\n")
    assert hf("state", "get", RESEARCHER, "plan").out == '{"goal":"tides","done":[1,null,2.5]}\n'
    assert hf("state", "set", RESEARCHER, "mood", "curious", "--text", "--json").records == [
        {"scope": RESEARCHER, "key": "mood", "version": 2}
    ]
    assert hf("state", "get", RESEARCHER, "mood").out == "curious"
    assert hf("state", "list", RESEARCHER).lines == ["mood", "plan"]


def test_values_come_from_standard_input(hf: Hf) -> None:
    assert hf("state", "set", "global", "a", "-", typed='{"n": 1}').code == 0
    assert value(hf, "global", "a") == {"n": 1}
    assert hf("state", "set", "global", "b", "-", "--text", typed="two\nlines\x1b\n").code == 0
    assert hf("state", "get", "global", "b").out == "two\nlines\x1b\n"


def test_what_get_writes_into_a_pipe_is_what_set_reads(hf: Hf, url: str) -> None:
    held = {"t": (1, 2), "b": b"\x00\xff", "s": {3}, "big": 10**30, "x": float("inf")}
    with holdfast.open(url) as store:
        store.state()["a"] = held
    hf("state", "set", "global", "b", "-", typed=hf("state", "get", "global", "a").out)
    with holdfast.open(url) as store:
        assert store.state()["b"] == held


def test_bytes_are_written_and_read_as_they_are(url: str) -> None:
    raw = bytes(range(256))
    words = kit.command("--store", url, "state", "set", "global", "raw", "-", "--bytes")
    subprocess.run(words, input=raw, env=kit.environment(), check=True, capture_output=True)
    words = kit.command("--store", url, "state", "get", "global", "raw")
    assert subprocess.run(words, env=kit.environment(), check=True, capture_output=True).stdout == raw
    assert kit.run("state", "set", "global", "w", "abc", "--bytes", store=url).code == 0
    with holdfast.open(url) as store:
        assert store.state()["w"] == b"abc"


def test_text_that_is_none(url: str) -> None:
    words = kit.command("--store", url, "state", "set", "global", "raw", "-", "--text")
    done = subprocess.run(words, input=b"\xff\xfe", env=kit.environment(), check=False, capture_output=True)
    assert (done.returncode, b"--bytes" in done.stderr) == (2, True)
    with holdfast.open(url) as store:
        store.state()["half"] = "a\ud800b"
    assert kit.spawn("--store", url, "state", "get", "global", "half").out == "a\N{REPLACEMENT CHARACTER}b"


def test_a_terminal_is_shown_values_for_people(filled: Hf, url: str) -> None:
    filled("state", "set", "global", "nasty", "a\x1b[2Jb", "--text")
    with kit.in_terminal("--no-pager", "state", "get", RESEARCHER, "plan", "--store", url) as terminal:
        assert terminal.wait() == 0
    assert terminal.plain.splitlines() == ["goal: tides", "done: 1"]
    with kit.in_terminal("--no-pager", "state", "get", "global", "nasty", "--store", url) as terminal:
        assert terminal.wait() == 0
    assert "a\\x1b[2Jb" in terminal.text


def test_a_store_is_made_only_when_asked_for(tmp_path: Path) -> None:
    refused = kit.run("state", "set", "global", "a", "1", store="new.db")
    assert (refused.code, "--create" in refused.err) == (10, True)
    assert not (tmp_path / "new.db").exists()
    assert kit.run("state", "set", "global", "a", "1", "--create", store="new.db").code == 0
    assert kit.run("state", "get", "global", "a", store="new.db").out == "1\n"


def test_versions_are_expected(filled: Hf) -> None:
    assert filled("state", "set", RESEARCHER, "plan", "1", "--expected", "3").code == 0
    stale = filled("state", "set", RESEARCHER, "plan", "2", "--expected", "3", "--json")
    assert (stale.code, stale.error["code"]) == (4, "version-mismatch")
    assert filled("state", "set", RESEARCHER, "plan", "2", "--expected", "0").code == 4
    assert filled("state", "patch", RESEARCHER, "other", "a=1", "--expected", "7").code == 4
    assert filled("state", "delete", RESEARCHER, "mood", "--expected", "1").code == 4
    assert filled("state", "delete", RESEARCHER, "mood", "--expected", "2").code == 0
    assert value(filled, RESEARCHER, "plan") == 1


def test_keys_expire(filled: Hf) -> None:
    filled("state", "set", RESEARCHER, "draft", "1", "--ttl", "2h")
    assert "in 1h" in filled("state", "list", RESEARCHER, "--values").out
    assert filled("state", "expire", RESEARCHER, "draft", "never").err == "draft never expires.\n"
    assert value(filled, RESEARCHER, "draft") == 1
    assert filled("state", "get", RESEARCHER, "draft", "--json").records[0]["expires"] is None
    assert filled("state", "expire", RESEARCHER, "draft", "3d").err == "draft expires in 3d.\n"
    assert filled("state", "get", RESEARCHER, "draft", "--json").records[0]["expires"].endswith("Z")
    assert filled("state", "expire", RESEARCHER, "nope", "3d").code == 3
    assert [in_words(each) for each in (-1, 59, 60, 7200, 90000)] == ["in 0s", "in 59s", "in 1m", "in 2h", "in 1d"]


def test_parts_of_a_value_are_patched(filled: Hf) -> None:
    done = filled("state", "patch", RESEARCHER, "plan", "done=3", 'owner.name="Ada"', "--remove", "goal")
    assert (done.code, done.err) == (0, "plan is at version 4.\n")
    assert value(filled, RESEARCHER, "plan") == {"done": 3, "owner": {"name": "Ada"}}
    filled("state", "patch", RESEARCHER, "plan", "goal=high tide", "--text")
    filled("state", "patch", RESEARCHER, "new", "a.b=1")
    assert value(filled, RESEARCHER, "new") == {"a": {"b": 1}}
    assert value(filled, RESEARCHER, "plan")["goal"] == "high tide"  # type: ignore[index]


# Listing --------------------------------------------------------------------------------------------------------


def test_scopes_are_listed(filled: Hf) -> None:
    assert [line.split()[:3] for line in filled("state").lines] == [
        ["SCOPE", "KEYS", "VERSION"],
        [RESEARCHER, "2", "3"],
        ["agent:researcher/step:fetch", "1", "1"],
        ["user:alice", "1", "1"],
    ]
    assert [each["scope"] for each in filled("state", "list", "--prefix", f"{RESEARCHER}/", "--json").records] == [
        "agent:researcher/step:fetch"
    ]
    assert [each["scope"] for each in filled("state", "list", "--pattern", "*:*", "--json").records] == [
        RESEARCHER,
        "user:alice",
    ]
    (one,) = filled("state", "list", "--after", RESEARCHER, "-n", "1", "--json").records
    assert (one["scope"], one["keys"], one["version"]) == ("agent:researcher/step:fetch", 1, 1)
    assert "No scopes match" in filled("state", "list", "--prefix", "nope").err


def test_a_store_without_state_says_so(hf: Hf) -> None:
    assert "There are no scopes" in hf("state").err
    assert hf("state", "list", RESEARCHER).err == "The scope is empty.\n"
    assert hf("state", "list", RESEARCHER, "--values").err == "The scope is empty.\n"
    assert hf("state", "list", RESEARCHER, "--values", "--json").out == ""


def test_keys_are_listed_by_pages(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        store.state().batch({f"k/{number:04}": number for number in range(450)})
        store.state().batch({f"z/{number}/done": True for number in range(3)})
    assert len(hf("state", "list", "global").lines) == 453
    assert len(hf("state", "list", "global", "--values").lines) == 454
    assert hf("state", "list", "global", "--after", "k/0448", "-n", "2").lines == ["k/0449", "z/0/done"]
    assert hf("state", "list", "global", "--pattern", "z/*/done", "--json").records[0] == {
        "scope": "global",
        "key": "z/0/done",
    }
    listed = hf("state", "list", "global", "--prefix", "k/000", "--values", "--json").records
    assert [each["value"] for each in listed] == list(range(10))
    assert "There are no such keys" in hf("state", "list", "global", "--prefix", "nope").err
    assert "There are no such keys" in hf("state", "list", "global", "--prefix", "nope", "--values").err


def test_a_table_of_values_fits_the_terminal(filled: Hf, url: str) -> None:
    filled("state", "set", RESEARCHER, "long", "x" * 500, "--text")
    with kit.in_terminal("--no-pager", "state", "list", RESEARCHER, "--values", "--store", url, columns=60) as terminal:
        assert terminal.wait() == 0
    assert max(map(len, terminal.plain.splitlines())) <= 60
    assert "…" in terminal.plain


# The past -------------------------------------------------------------------------------------------------------


def test_what_a_key_was(filled: Hf) -> None:
    assert value(filled, RESEARCHER, "plan", "--at", "1") == {"goal": "tides", "done": 0}
    assert value(filled, RESEARCHER, "plan", "--at", "now") == {"goal": "tides", "done": 1}
    assert filled("state", "get", RESEARCHER, "mood", "--at", "2").out == "curious"
    gone = filled("state", "get", RESEARCHER, "mood", "--at", "1")
    assert (gone.code, "there was no such key at that time" in gone.err) == (3, True)
    assert filled("state", "get", RESEARCHER, "plan", "--at", "1h").code == 3
    later = filled("state", "get", RESEARCHER, "plan", "--at", "99", "--json")
    assert (later.code, later.error["message"]) == (3, "there is no version 99, or it was pruned")
    assert (later.error["where"], "holdfast state history" in later.error["hint"]) == (RESEARCHER, True)
    assert filled("state", "get", RESEARCHER, "plan", "--at", "someday").code == 2


def test_history(filled: Hf) -> None:
    filled("state", "delete", RESEARCHER, "mood")
    told = [
        (each["version"], each["action"], each["key"])
        for each in filled("state", "history", RESEARCHER, "--json").records
    ]
    assert told == [(0, "delete", "mood"), (3, "patch", "plan"), (2, "set", "mood"), (1, "set", "plan")]
    shown = filled("state", "history", RESEARCHER, "plan", "--values").lines
    assert shown[0].split() == ["VERSION", "TIME", "KEY", "ACTION", "BEFORE", "ACTOR", "VALUE"]
    assert shown[1].endswith('{"goal":"tides","done":1}')
    values = filled("state", "history", RESEARCHER, "--values", "--json").records
    assert ["value" in each for each in values] == [False, True, True, True]
    assert len(filled("state", "history", RESEARCHER, "--before", "3", "-n", "1").lines) == 2
    assert "agent:nobody has no changes" in filled("state", "history", "agent:nobody").err
    assert "never had the key" in filled("state", "history", RESEARCHER, "nope").err


def test_diff(filled: Hf) -> None:
    shown = filled("state", "diff", RESEARCHER, "1")
    assert shown.lines[:4] == [
        f"--- {RESEARCHER} at 1",
        f"+++ {RESEARCHER} now",
        *sorted([" mood: added", " plan: ~1"], key=shown.lines.index),
    ]
    assert "plan.done" in shown.out
    (told,) = filled("state", "diff", RESEARCHER, "1", "2", "--json").records
    assert [each["path"] for each in told["changes"]] == ["mood"]
    assert "plan.done" not in filled("state", "diff", RESEARCHER, "1", "--stat").out
    assert filled("state", "diff", RESEARCHER, "1", "--exit-code").code == 6
    same = filled("state", "diff", RESEARCHER, "3", "3", "--exit-code")
    assert (same.code, same.out) == (0, "")
    assert filled("state", "diff", RESEARCHER, "1h").out.startswith("---")


def test_times_to_expire_are_not_shown_as_keys(filled: Hf) -> None:
    filled("state", "set", RESEARCHER, "draft", "1", "--ttl", "2h")
    (told,) = filled("state", "diff", RESEARCHER, "3", "--json").records
    assert [each["path"] for each in told["changes"]] == ["draft"]


def test_rollback(filled: Hf) -> None:
    before = filled("state", "list", RESEARCHER, "--values").out
    planned = filled("state", "rollback", RESEARCHER, "1", "--dry-run")
    assert (planned.code, planned.lines) == (0, ["mood would be deleted", "plan would be rolled back"])
    (told,) = filled("state", "rollback", RESEARCHER, "1", "--dry-run", "--json").records
    assert told["changes"] == {"mood": "delete", "plan": "set"}
    refused = filled("state", "rollback", RESEARCHER, "1")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert filled("state", "list", RESEARCHER, "--values").out == before
    done = filled("state", "rollback", RESEARCHER, "1", "--key", "plan", "--yes")
    assert (done.out, done.err) == ("", "Rolled back 1 key of agent:researcher.\n")
    assert value(filled, RESEARCHER, "plan") == {"goal": "tides", "done": 0}
    assert value(filled, RESEARCHER, "mood") == "curious"
    (told,) = filled("state", "rollback", RESEARCHER, "1", "--yes", "--json").records
    assert told["changed"] == 1
    assert "Nothing has changed since then" in filled("state", "rollback", RESEARCHER, "1", "--yes").err
    assert filled("state", "rollback", RESEARCHER, "1", "--yes", "--json").records[0]["changed"] == 0
    assert filled("state", "rollback", RESEARCHER, "0", "--dry-run").lines == ["plan would be deleted"]


def test_rollback_asks_on_a_terminal(filled: Hf, url: str) -> None:
    with kit.in_terminal("state", "rollback", RESEARCHER, "1", "--store", url) as terminal:
        terminal.expect("Roll back 2 keys of agent:researcher? [y/N]:")
        terminal.send("n\r")
        assert terminal.wait() == 1
    assert value(filled, RESEARCHER, "mood") == "curious"
    with kit.in_terminal("state", "rollback", RESEARCHER, "1", "--store", url) as terminal:
        terminal.expect("[y/N]:")
        terminal.send("y\r")
        assert terminal.wait() == 0
    assert filled("state", "list", RESEARCHER).lines == ["plan"]


# Deleting, copying, moving --------------------------------------------------------------------------------------


def test_keys_are_deleted_all_or_none(filled: Hf) -> None:
    missing = filled("state", "delete", RESEARCHER, "mood", "nope")
    assert (missing.code, "Nothing was deleted" in missing.err) == (3, True)
    assert filled("state", "list", RESEARCHER).lines == ["mood", "plan"]
    assert (
        filled("state", "delete", RESEARCHER, "mood", "plan", "--dry-run").err
        == "Would delete 2 keys of agent:researcher.\n"
    )
    assert filled("state", "delete", RESEARCHER, "nope", "--dry-run").code == 3
    done = filled("state", "delete", RESEARCHER, "mood", "plan", "mood", "--json").records
    assert done == [{"scope": RESEARCHER, "keys": ["mood", "plan", "mood"], "deleted": 2, "dry_run": False}]
    assert filled("state", "list", RESEARCHER).lines == []
    assert filled("state", "delete", RESEARCHER, "mood", "--expected", "4").code != 0


def test_all_keys_are_deleted_only_after_a_yes(filled: Hf) -> None:
    assert filled("state", "delete", RESEARCHER, "--all").code == 2
    assert (
        filled("state", "delete", RESEARCHER, "--all", "--dry-run").err == "Would delete 2 keys of agent:researcher.\n"
    )
    assert filled("state", "list", RESEARCHER).lines == ["mood", "plan"]
    assert filled("state", "delete", RESEARCHER, "--all", "--yes").err == "Deleted 2 keys of agent:researcher.\n"
    assert filled("state", "list", RESEARCHER).lines == []
    assert filled("state", "delete", RESEARCHER, "--all").err == "Deleted 0 keys of agent:researcher.\n"
    assert filled("state", "rollback", RESEARCHER, "3", "--yes").err == "Rolled back 2 keys of agent:researcher.\n"


def test_scopes_are_copied_and_moved(filled: Hf) -> None:
    assert filled("state", "copy", RESEARCHER, "agent:writer").err == "Copied 2 keys to agent:writer.\n"
    assert filled("state", "copy", RESEARCHER, "agent:writer").code == 4
    assert filled("state", "copy", RESEARCHER, "agent:writer", "--overwrite", "--json").records[0]["copied"] == 2
    assert filled("state", "copy", RESEARCHER, RESEARCHER).code == 2
    assert filled("state", "move", RESEARCHER, "agent:writer").code == 4
    assert filled("state", "move", RESEARCHER, "agent:third").err == "Moved 2 keys to agent:third.\n"
    assert filled("state", "list", RESEARCHER).lines == []
    assert value(filled, "agent:third", "mood") == "curious"


# Acting as somebody ---------------------------------------------------------------------------------------------


def test_acting_as_an_identity(filled: Hf) -> None:
    denied = filled("state", "get", RESEARCHER, "plan", "--as", "agent:b", "--json")
    assert (denied.code, denied.error["code"]) == (1, "denied")
    for words in (
        ["set", RESEARCHER, "plan", "1"],
        ["patch", RESEARCHER, "plan", "done=7"],
        ["delete", RESEARCHER, "plan"],
        ["delete", RESEARCHER, "--all", "--yes"],
        ["expire", RESEARCHER, "plan", "2h"],
        ["copy", RESEARCHER, "agent:b"],
        ["move", RESEARCHER, "agent:b"],
        ["history", RESEARCHER],
        ["diff", RESEARCHER, "1"],
        ["rollback", RESEARCHER, "1", "--yes"],
        ["watch", RESEARCHER],
        ["list", RESEARCHER],
    ):
        done = filled("state", *words, "--as", "agent:b")
        assert (done.code, done.out) == (1, ""), words
        assert "agent:b may not" in done.err
    assert [each["outcome"] for each in filled("audit", "--actor", "agent:b", "--json").records] == ["denied"] * 13
    assert filled("state", "set", "agent:b", "own", "1", "--as", "agent:b").code == 0
    assert [each["scope"] for each in filled("state", "list", "--as", "agent:b", "--json").records] == ["agent:b"]
    filled("grant", "agent:b", "read", RESEARCHER)
    assert filled("state", "get", RESEARCHER, "mood", "--as", "agent:b").out == "curious"
    assert filled("audit", "--actor", "agent:b", "--kind", "read", "--json").records[0]["key"] == "mood"
    assert [each["actor"] for each in filled("state", "history", "agent:b", "--json").records] == ["agent:b"]


# Wrong use ------------------------------------------------------------------------------------------------------


WRONG: list[tuple[list[str], str]] = [
    (["set", RESEARCHER, "mood", "curious"], """Give --text for text, or write it as JSON: '"curious"'"""),
    (["set", RESEARCHER, "mood", ""], "the value is not JSON"),
    (["set", RESEARCHER, "mood", "1", "--text", "--bytes"], "not both"),
    (["set", RESEARCHER, "mood", "1", "--ttl", "soon"], "is not a valid duration"),
    (["set", RESEARCHER, "mood", "1", "--ttl", "0s"], "longer than 0"),
    (["set", "researcher", "mood", "1"], "Such as agent:researcher"),
    (["set", "robot:x", "mood", "1"], "there is no kind of scope 'robot'"),
    (["set", RESEARCHER, "a/../b", "1"], "has a segment '..'"),
    (["set", RESEARCHER, "x" * 300, "1"], "at most 256 characters"),
    (["patch", RESEARCHER, "plan", "done"], "a change must be PATH=VALUE"),
    (["patch", RESEARCHER, "plan", "done=x"], "the value is not JSON"),
    (["patch", RESEARCHER, "plan"], "a patch must change something"),
    (["patch", RESEARCHER, "plan", "steps[0]=1"], "only entries of dicts are patched"),
    (["patch", RESEARCHER, "mood", "a=1"], "neither a dict with plain keys nor a list"),
    (["delete", RESEARCHER], "give keys or --all"),
    (["delete", RESEARCHER, "plan", "--all"], "give keys or --all"),
    (["delete", RESEARCHER, "a", "b", "--expected", "1"], "--expected needs exactly one key"),
    (["list", "--values"], "--values needs a scope"),
    (["list", RESEARCHER, "--pattern", "*" * 20], "at most 16 stars"),
    (["expire", RESEARCHER, "plan", "later"], "is not a valid duration"),
    (["watch", RESEARCHER, "--cursor", "nonsense"], "cursor"),
    (["get", RESEARCHER, "plan", "--as", "b"], "Such as agent:researcher"),
    (["gte", RESEARCHER, "plan"], "No such command 'gte'"),
]


def test_wrong_use_is_told(filled: Hf, subtests: pytest.Subtests) -> None:
    for words, said in WRONG:
        with subtests.test(said=said):
            done = filled("state", *words)
            assert (done.code, done.out) == (2, "")
            assert said in done.err


def test_what_is_not_there(filled: Hf) -> None:
    missing = filled("state", "get", RESEARCHER, "nope")
    assert (missing.code, "holdfast state list" in missing.err) == (3, True)
    assert kit.run("state", store="nope.db").code == 10


# Watching -------------------------------------------------------------------------------------------------------


@contextmanager
def watching(*words: str) -> Iterator[kit.Terminal]:
    with kit.in_terminal(*words) as terminal:
        terminal.expect("Ctrl-C ends.")
        yield terminal


def test_a_watch_sees_what_other_processes_do_until_ctrl_c(filled: Hf, url: str) -> None:
    with watching("state", "watch", RESEARCHER, "--nested", "--store", url) as terminal:
        filled("state", "set", RESEARCHER, "seen", "7")
        terminal.expect("set seen = 7 (version 4)")
        filled("state", "delete", RESEARCHER, "seen", "--as", RESEARCHER)
        terminal.expect("delete seen (was version 4, by agent:researcher)")
        filled("state", "set", "agent:researcher/step:new", "x", "1")
        terminal.expect("agent:researcher/step:new  set x = 1")
        filled("state", "set", "agent:other", "unseen", "1")
        terminal.send("\x03")
        terminal.expect("--nested --cursor ")
        assert terminal.wait() == 130
    assert "unseen" not in terminal.plain
    assert "Traceback" not in terminal.plain


def test_a_watch_goes_on_from_a_cursor_without_a_gap(filled: Hf) -> None:
    first = filled("state", "watch", RESEARCHER, "--cursor", "", "-n", "2", "--json").records
    assert [(each["key"], each["version"], each["value"]) for each in first] == [
        ("plan", 1, {"goal": "tides", "done": 0}),
        ("mood", 2, "curious"),
    ]
    (third,) = filled("state", "watch", RESEARCHER, "--cursor", first[-1]["cursor"], "-n", "1", "--json").records
    assert (third["key"], third["before"], third["version"]) == ("plan", 1, 3)
    filled("state", "delete", RESEARCHER, "mood")
    (fourth,) = filled("state", "watch", RESEARCHER, "--cursor", third["cursor"], "-n", "1", "--json").records
    assert (fourth["action"], "value" in fourth) == ("delete", False)
    shown = filled("state", "watch", RESEARCHER, "--cursor", "", "--pattern", "mo*", "-n", "1")
    assert shown.lines[0].endswith("set mood = curious (version 2)")
    assert "To continue: holdfast state watch agent:researcher --cursor " in shown.err


def test_a_watch_tells_that_a_scope_is_gone_or_pruned(filled: Hf, url: str) -> None:
    filled("session", "start", "s1")
    filled("state", "set", "session:s1", "x", "1")
    (change,) = filled("state", "watch", "session:s1", "--cursor", "", "-n", "1", "--json").records
    filled("session", "end", "s1")
    gone = filled("state", "watch", "session:s1", "--cursor", change["cursor"], "-n", "1")
    assert gone.lines[0].endswith("deleted (the whole scope)")
    filled("prune", "agent:researcher", "--kind", "scope", "--keep-last", "1", "--yes")
    pruned = filled("state", "watch", RESEARCHER, "--cursor", "", "-n", "1")
    assert pruned.lines[0].endswith("pruned (versions 1 to 2)")


def test_a_watch_in_a_pipe_writes_lines_as_they_come(filled: Hf, url: str) -> None:
    words = kit.command("--store", url, "state", "watch", RESEARCHER, "--cursor", "", "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=kit.environment(), text=True) as process:
        try:
            assert process.stdout is not None
            assert [json.loads(process.stdout.readline())["version"] for _ in range(3)] == [1, 2, 3]
            filled("state", "set", RESEARCHER, "more", "1")
            assert json.loads(process.stdout.readline())["key"] == "more"
        finally:
            process.kill()


# Completion -----------------------------------------------------------------------------------------------------


def test_scopes_and_keys_are_completed(filled: Hf, url: str) -> None:
    filled("session", "start", "chat-1")
    filled("grant", "join", "editors", "agent:b")

    def completed(line: str) -> list[str]:
        env = {"HOLDFAST_STORE": url, "_HOLDFAST_COMPLETE": "bash_complete", "HOLDFAST_LINE": f"holdfast {line}"}
        return [each.removeprefix("plain,") for each in kit.completed(**env).out.split()]

    assert completed("state get agent") == [RESEARCHER, "agent:researcher/step:fetch"]
    assert completed(f"state get {RESEARCHER} ") == ["mood", "plan"]
    assert completed(f"state delete {RESEARCHER} mood p") == ["plan"]
    assert completed("state hist") == ["history"]
    assert completed("session end c") == ["chat-1"]
    assert completed("grant leave e") == ["editors"]
