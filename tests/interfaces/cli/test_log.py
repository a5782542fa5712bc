"""`holdfast log`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.store.log_reader import LogReader
from tests.engine.lines import store_on
from tests.interfaces.cli import kit
from tests.support.counting import CountingBackend

Hf = Callable[..., kit.Result]


def first_words(result: kit.Result) -> list[str]:
    """The ids: the number of the step comes before them."""
    return [line.split()[1] for line in result.lines]


def test_the_history_of_the_latest(hf: Hf) -> None:
    found = hf("log", "t1")
    assert found.code == 0
    assert re.findall(r"^checkpoint (\S+)", found.out, re.MULTILINE) == ["c5", "c4", "c3", "c2", "c1", "c0"]
    top = found.lines[:6]
    assert top[0] == "checkpoint c5 (HEAD -> main)"
    assert top[1] == "Step:     5 on main"
    assert re.fullmatch(r"Time:     \w{3} \w{3} \d\d [\d:]{8} \d{4} [+-]\d{4} \(\d+ (second|minute)s? ago\)", top[2])
    assert top[3:5] == ["Kind:     save", 'Metadata: {"source":"loop","n":5}']
    assert "checkpoint c1 (tag: good, label: seen)" in found.lines
    assert "    messages[6], count=5" in found.lines


def test_the_history_of_a_time(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        times = {each.id: each.time for each in store.thread("t1").log()}
    since, until = times["c3"].isoformat(), times["c4"].isoformat()
    assert first_words(hf("log", "t1", "--oneline", "--since", since)) == ["c5", "c4", "c3"]
    assert first_words(hf("log", "t1", "--oneline", "--since", since, "--until", until, "-n", "1")) == ["c4"]
    everywhere = hf("log", "t1", "--all", "--since", since, "--json").records
    assert {each["id"] for each in everywhere} == {"c5", "c4", "c3", "b3", "b4"}
    assert hf("log", "t1", "--until", "2020-01-01").out == ""
    assert "'soonish' is not a time" in hf("log", "t1", "--since", "soonish").err


def test_one_line_each(hf: Hf) -> None:
    found = hf("log", "t1", "--oneline")
    assert first_words(found) == ["c5", "c4", "c3", "c2", "c1", "c0"]
    assert found.lines[1].startswith("#4 c4 (label: seen) user: message 4 [messages[5], count=4] (")


def test_a_line_leads_with_what_was_said(url: str, hf: Hf) -> None:
    talk: list[dict[str, object]] = [{"role": "user", "content": f"old {n} " * 40} for n in range(20)]
    said: list[tuple[dict[str, object], str]] = [
        ({"role": "user", "content": "\n  Hello,\nyou"}, "user: Hello, [messages +1] ("),
        (
            {"type": "ai", "content": "", "tool_calls": [{"name": "find", "args": {"q": 1}}]},
            'assistant calls find({"q":1}) [',
        ),
        ({"type": "tool", "name": "find", "content": "three\x1b[2J"}, "tool find: three\\x1b[2J [messages +1] ("),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "word " * 40}]},
            "assistant: " + "word " * 9 + "wor… [",
        ),
        ({"role": "assistant", "content": ""}, "messages +1 ("),
        ({"role": "assistant", "content": "long " * 40_000}, "messages +1 ("),
    ]
    with holdfast.open(url) as store:
        store.thread("talk").put({"messages": talk})
        for message, _ in said:
            talk.append(message)
            store.thread("talk").put({"messages": talk})
        store.thread("talk").put({"messages": talk, "n": 1})
    lines = [line.split(" ", 2)[2] for line in hf("log", "talk", "--oneline").lines]
    assert lines[0].startswith("(HEAD -> main) n=1 (")
    for line, (_, start) in zip(reversed(lines[1:-1]), said, strict=True):
        assert line.startswith(start)
    assert "    user: Hello,\n    messages +1\n" in hf("log", "talk").out


def test_internal_channels_are_for_those_who_ask(url: str, hf: Hf) -> None:
    inner = {"__checkpoint__": {"v": 1}, "branch:to:model": None, "join:a+b:c": ["a"]}
    with holdfast.open(url) as store:
        store.thread("graph").put({**inner, "n": 1}, id="g0")
        store.thread("graph").put({"n": 1}, id="g1")
    g1, g0 = hf("log", "graph", "--oneline").lines
    assert g1.startswith("#1 g1 (HEAD -> main) only internal channels (")
    assert g0.startswith("#0 g0 n=1 (")
    g1, g0 = hf("log", "graph", "--oneline", "--all-channels").lines
    assert g1.startswith("#1 g1 (HEAD -> main) -__checkpoint__, -branch:to:model, -join:a+b:c (")
    assert g0.startswith("#0 g0 __checkpoint__{1}, branch:to:model=null, join:a+b:c[1], n=1 (")
    assert hf("log", "graph", "--json").records[1]["changed"] == [*inner, "n"]
    assert "__checkpoint__" not in hf("log", "graph", "-p").out
    assert "__checkpoint__ (added)" in hf("log", "graph", "-p", "--all-channels").out
    shown = hf("show", "graph", "g0").out
    assert "\nn: 1\n\n… 3 internal channels (--all-channels shows all)\n" in shown
    assert "__checkpoint__" not in shown
    assert "… " not in hf("show", "graph", "g1").out
    assert hf("show", "graph", "g0", "--all-channels").out.count("\n__checkpoint__:\n  v: 1\n") == 1
    assert "\n__checkpoint__:\n  v: 1\n" in hf("show", "graph", "g0", "--channel", "__checkpoint__").out
    assert hf("show", "graph", "g0", "--json").records[0]["state"] == {**inner, "n": 1}


@pytest.mark.parametrize("few", [("-n", "2"), ("-2",), ("--limit=2",)], ids="-".join)
def test_only_some(hf: Hf, few: tuple[str, ...]) -> None:
    assert first_words(hf("log", "t1", "--oneline", *few)) == ["c5", "c4"]


def test_none_at_all(hf: Hf) -> None:
    assert hf("log", "t1", "-0") == (0, "", "")


def test_where_it_starts(hf: Hf) -> None:
    assert first_words(hf("log", "t1", "c1", "--oneline")) == ["c1", "c0"]
    assert first_words(hf("log", "t1", "HEAD~4", "--oneline")) == ["c1", "c0"]
    branch = ["b4", "b3", "c2", "c1", "c0"]
    assert first_words(hf("log", "t1", "other", "--oneline")) == branch
    assert first_words(hf("log", "t1", "--branch", "other", "--oneline")) == branch
    assert sorted(first_words(hf("log", "t1", "--all", "--oneline"))) == [
        *("b3", "b4", "c0", "c1", "c2", "c3", "c4", "c5")
    ]
    assert hf("log", "t1", "c1", "--all").code == 2


def test_a_graph(hf: Hf) -> None:
    found = hf("log", "t1", "--graph", "--oneline", "--all")
    assert [line[: line.index(" (") if " (" in line else None].rstrip() for line in found.lines] == [
        "* other#4 b4",
        "* other#3 b3 count=300",
        "| * #5 c5",
        "| * #4 c4",
        "| * #3 c3 assistant: message 3 [messages[4], count=3]",
        "|/",
        "* #2 c2 user: message 2 [messages[3], count=2]",
        "* #1 c1",
        "* #0 c0 user: message 0 [messages[1], count=0]",
    ]
    whole = hf("log", "t1", "--graph", "--all")
    assert "* checkpoint b4 (other)" in whole.lines
    assert "| | Step:     3 on main" in whole.lines
    assert whole.lines[-2:] == ["      messages[1], count=0", ""]


def test_a_merge_has_two_parents(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        merged = store.thread("t1").merge("other", into="main", strategy="theirs")
    found = hf("log", "t1", "main", "--graph", "--oneline")
    assert found.lines[0].startswith("* ")
    assert found.lines[1].rstrip() == "|\\"
    assert "|/" in found.lines
    (top, *_) = hf("log", "t1", "main", "--json").records
    assert top["id"] == merged.id
    assert top["parent_ids"] == ["c5", "b4"]
    assert "Merge:    c5 b4" in hf("log", "t1", "main").lines
    own = hf("log", "t1", "main", "--first-parent", "--json").records
    assert [record["id"] for record in own][1:] == ["c5", "c4", "c3", "c2", "c1", "c0"]


def test_as_json(hf: Hf) -> None:
    records = hf("log", "t1", "--json").records
    assert [record["id"] for record in records] == ["c5", "c4", "c3", "c2", "c1", "c0"]
    top = records[0]
    assert top["parent_ids"] == ["c4"]
    assert top["metadata"] == {"source": "loop", "n": 5}
    assert (top["head"], top["branches"], top["revision"]) == (True, ["main"], "#5")
    assert (records[4]["tags"], records[4]["labels"]) == (["good"], ["seen"])
    assert top["changed"] == ["messages", "count"]
    assert top["branch_name"] == "main"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", top["time"])
    assert records[-1]["parent_ids"] == []


def test_who_saved_a_checkpoint(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        store.access.grant("agent:writer", ["read", "write"], thread="t2")
        store.as_identity("agent:writer").thread("t2").put({"n": 1})
    for command in ("log", "show"):
        assert re.search("^Actor: +agent:writer$", hf(command, "t2").out, re.MULTILINE), command
        assert hf(command, "t2", "--json").records[0]["actor"] == "agent:writer"
    assert "Actor:" not in hf("show", "t1").out  # by the store's owner


def test_with_what_each_changed(hf: Hf) -> None:
    found = hf("log", "t1", "-1", "-p")
    assert "    + assistant: message 5" in found.lines
    (record,) = hf("log", "t1", "-1", "-p", "--json").records
    assert {"op": "replace", "path": "/count", "value": 5} in record["patch"]


def test_a_patch_with_large_values(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        store.thread("large").put({"text": "x" * 2_000_000})
    found = hf("log", "large", "-p", "--json")
    assert found.code == 0
    assert found.records[0]["patch"] == [{"op": "add", "path": "/text", "value": "x" * 2_000_000}]


def test_those_that_a_query_finds(hf: Hf) -> None:
    assert first_words(hf("log", "t1", "--oneline", "--where", "meta.n>=4")) == ["c5", "c4"]
    assert first_words(hf("log", "t1", "--oneline", "--where", "meta.n<4", "-n", "1")) == ["c3"]
    found = hf("log", "t1", "--graph", "--oneline", "--all", "--where", "-meta.n:2")
    assert "c2" not in found.out
    assert found.lines[-1].startswith("* #0 c0")
    wrong = hf("log", "t1", "--where", "nonsense:1")
    assert (wrong.code, wrong.out) == (2, "")
    assert "column 1" in wrong.err


def test_a_query_that_rows_answer_opens_nothing(hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.text_index.indexer.TextIndexer.brought", None)
    assert first_words(hf("log", "t1", "--oneline", "--where", "kind:save step<2")) == ["c1", "c0"]


def test_wrong_names(hf: Hf) -> None:
    for arguments in (("nope",), ("t1", "nope"), ("t1", "HEAD~99"), ("t1", "--branch", "nope")):
        found = hf("log", *arguments)
        assert (found.code, found.out) == (3, "")
        assert found.err.startswith("error[not-found]: ")


def test_ids_are_as_short_as_they_may_be(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        made = [store.thread("u").put({"n": n}).id for n in range(3)]
    shown = first_words(hf("log", "u", "--oneline"))
    assert len({len(id) for id in shown}) == 1
    for short, whole in zip(shown, reversed(made), strict=True):
        assert whole.startswith(short)
        assert hf("show", "u", short, "--json").records[0]["id"] == whole


def test_names_do_nothing_to_the_terminal(url: str, hf: Hf) -> None:
    nasty = "a\x1b[2Jb\nc\x9b31m"
    with holdfast.open(url) as store:
        store.thread(nasty).put({nasty: nasty}, id=nasty, metadata={nasty: nasty}, tag=nasty, labels=[nasty])
        store.thread(nasty).fork(nasty)
    for arguments in (
        ("log", nasty),
        ("log", nasty, "--oneline", "--graph"),
        ("show", nasty),
        ("threads",),
        ("threads", "--names"),
        ("status",),
        *((name, nasty, "--json") for name in ("log", "show")),
        ("threads", "--json"),
    ):
        found = hf(*arguments)
        assert found.code == 0
        assert not set(found.out) & set("\x1b\x9b"), arguments
        assert not [line for line in found.lines if line.startswith("c\\x9b")]


def test_pruned_checkpoints_are_passed_by(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        for number in range(5):
            store.thread("p").put({"n": number}, id=f"p{number}")
        store.maintenance.prune(keep_last=2, threads=["p"])
    assert first_words(hf("log", "p", "--oneline")) == ["p4", "p3"]
    assert [line.split()[2] for line in hf("log", "p", "--oneline", "--graph").lines] == ["p4", "p3"]


def test_a_damaged_checkpoint_is_shown_as_such(url: str, hf: Hf, tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "agents.db")) as connection:
        connection.execute("UPDATE steps SET body = zeroblob(40) WHERE line = 't1' AND id = 'c3'")
    found = hf("log", "t1", "--oneline")
    assert found.code == 5
    assert first_words(found) == ["c5", "c4", "c3", "c2", "c1", "c0"]
    assert found.lines[2].startswith("#3 c3 damaged: ")
    assert re.search("^Damage: +", hf("log", "t1").out, re.MULTILINE)
    assert [bool(record.get("damage")) for record in hf("log", "t1", "--json").records].index(True) == 2


def test_a_long_history_is_read_as_it_is_looked_at(url: str) -> None:
    with holdfast.open(url) as store, store.transaction() as together:
        for number in range(1000):
            together.put("long", {"n": number}, id=f"{number:05}")
    counting = CountingBackend(run(backend_for(url).open(url)))
    with store_on(counting) as store:
        history = LogReader(store.thread("long"))
        history.start()
        entries = history.entries()
        assert [next(entries).id for _ in range(30)] == [f"{n:05}" for n in range(999, 969, -1)]
        few = counting.reads
        assert few < 12
        assert len(list(entries)) == 970
        assert counting.reads > 2 * few
