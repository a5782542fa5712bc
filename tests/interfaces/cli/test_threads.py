"""`holdfast threads` and `holdfast stats`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.agents import PersistentAgent
from holdfast.interfaces.cli.exit_codes import FINDINGS, INTEGRITY
from tests.damaged import flipped
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


class Noter(PersistentAgent, name="cli-noter"):
    """An agent with notes."""

    notes: list[str] = []


def names(result: kit.Result) -> list[str]:
    return [line.split()[0] for line in result.lines[1:]]


def test_a_table(hf: Hf) -> None:
    found = hf("threads")
    assert found.lines[0].split() == ["NAME", "STEPS", "BRANCHES", "SIZE", "UPDATED"]
    assert names(found) == ["chat/anna", "t1", "t2"]
    assert re.fullmatch(r"t1 +8 +2 +\d.* k?B +\d+ \w+ ago", found.lines[2])


def test_as_json(hf: Hf) -> None:
    records = hf("threads", "--json").records
    assert [record["thread"] for record in records] == ["chat/anna", "t1", "t2"]
    assert records[1]["steps"] == 8
    assert records[1]["latest"] == "c5"
    assert records[1]["updated"].endswith("Z")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("t", ["t1", "t2"]), ("*a*", ["chat/anna"]), ("t*2", ["t2"]), ("nope", []), ("*", ["chat/anna", "t1", "t2"])],
)
def test_patterns(hf: Hf, pattern: str, found: list[str]) -> None:
    assert hf("threads", pattern, "--names").lines == found


def test_orders(hf: Hf) -> None:
    assert names(hf("threads", "--sort", "updated")) == ["chat/anna", "t2", "t1"]
    assert names(hf("threads", "--sort", "created", "-r")) == ["t1", "t2", "chat/anna"]
    assert names(hf("threads", "--sort", "steps"))[0] == "t1"
    assert names(hf("threads", "--sort", "size", "-n", "1")) == ["t1"]
    assert names(hf("threads", "--sort", "branches"))[0] == "t1"
    assert names(hf("threads", "-r")) == ["t2", "t1", "chat/anna"]
    assert hf("threads", "-n", "0", "--names").out == ""


def test_those_that_a_query_finds(hf: Hf) -> None:
    assert hf("threads", "--where", "steps>1", "--names").lines == ["t1"]
    assert hf("threads", "--where", "steps>>1").code == 2


def test_none(hf: Hf) -> None:
    assert hf("threads", "nope") == (0, "", "No threads match.\n")
    assert hf("threads", "--where", "steps>1000") == (0, "", "No threads match.\n")
    assert hf("threads", "--tenant", "none") == (0, "", "There are no threads.\n")
    assert hf("threads", "nope", "-q") == (0, "", "")


def test_more_than_a_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.cli.threads._PAGE", 2)
    assert names(kit.run("threads", store=url)) == ["chat/anna", "t1", "t2"]
    assert kit.run("status", "--json", store=url).records[0]["threads"] == 3


def test_stats(hf: Hf) -> None:
    lines = hf("status").lines
    assert lines[0].startswith("Store:    sqlite:///")
    assert "Contents: 3 threads" in lines
    assert not any(line.startswith("Steps:") for line in lines), "that would read all threads"
    (record,) = hf("status", "--json").records
    assert (record["threads"], record["complete"]) == (3, True)
    assert "steps" not in record
    lines = hf("status", "--all").lines
    assert "Contents: 3 threads" in lines
    assert any(line.startswith("Steps:    10 in 4 branches, ") for line in lines)
    assert any(line.startswith("Largest:  thread t1 (") for line in lines)
    assert "Durable:  yes" in lines
    (record,) = hf("status", "--all", "--json").records
    assert (record["threads"], record["steps"], record["branches"]) == (3, 10, 4)
    assert record["largest"] == "t1"
    assert record["bytes"] > record["line_bytes"]


def test_stats_of_little(url: str) -> None:
    found = kit.run("status", "--tenant", "nobody", store=url)
    assert "Tenant:   nobody" in found.lines
    assert "Contents: no threads" in found.lines
    found = kit.run("status", store="memory://")
    assert any(line.startswith("Durable:  no") for line in found.lines)


def test_stats_tell_how_a_store_of_several_is_doing(url: str) -> None:
    found = kit.run("status", store=f"retry:?store={url}")
    assert any(line.startswith("Retried:") for line in found.lines)
    with holdfast.open(url) as store:
        assert store.thread("t1").info().steps == 8


def test_all_kinds_are_counted_alike(url: str, hf: Hf) -> None:
    with holdfast.open(url) as store:
        store.state(agent="researcher")["goal"] = "find message 4"
        store.sessions.start("s1", user="alice").state["mood"] = "calm"
        agent = Noter().attach(store, "notes-1")
        agent.notes.append("a message to the sea")
        agent.start()
        agent.stop()
    kinds = {"threads": 3, "agents": 1, "scopes": 1, "sessions": 1}
    (counted,) = hf("status", "--all", "--kind", "all", "--json").records
    (verified,) = hf("verify", "--json").records
    assert {name: verified[name] for name in kinds} == kinds
    assert {name: counted[name] for name in ("threads", "agents", "scopes")} == {"threads": 3, "agents": 1, "scopes": 2}
    assert (counted["system"], counted["steps"]) == (verified["system"], verified["steps"])
    listed = hf("threads", "--kind", "all", "--json").records
    assert len(listed) == sum(kinds.values()) + counted["system"]
    assert sum(each["steps"] for each in listed) == counted["steps"]
    assert "3 threads, 1 agent, 2 scopes, " in hf("status").out
    assert "3 threads, 1 agent, 1 scope, 1 session, " in hf("verify").out
    for kind, name in (("agent", "notes-1"), ("scope", "agent:researcher"), ("session", "user:alice/session:s1")):
        assert hf("threads", "--kind", kind, "--names").lines == [name]
        assert hf("threads", "--kind", kind, "x", "--names").lines == []
    found = [line.partition(":")[0] for line in hf("grep", "message").lines]
    assert set(found) == {"t1", "agent notes-1", "scope agent"}
    assert hf("grep", "sea", "--kind", "thread").code == 3


NEAR = [
    ("show chat/ana", "chat/anna"),
    ("verify chat-anna", "chat/anna"),
    ("prune chat/ann --keep-last 1 --dry-run", "chat/anna"),
    ("tag t1 -d god", "good"),
    ("switch t1 othe", "other"),
    ("jobs run nigthly", "nightly"),
    ("agent show note", "notes-1"),
    ("state get agent:resercher goal", "agent:researcher"),
]


def test_similar_names_are_suggested(url: str, hf: Hf, subtests: pytest.Subtests) -> None:
    with holdfast.open(url) as store:
        store.jobs.add("nightly", "verify")
        store.state(agent="researcher")["goal"] = 1
        Noter().attach(store, "notes-1").stop()
    for typed, name in NEAR:
        with subtests.test(typed=typed):
            found = hf(*typed.split())
            assert found.code == 3
            assert f"Did you mean {name}?" in found.err
    assert "Did you mean" not in hf("log", "quite-another").err


def test_a_damaged_thread_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    with holdfast.open(url) as store:
        for thread in ("a", "b"):
            store.thread(thread).put({"n": 1})
    assert kit.run("threads", store=url).code == kit.run("status", store=url).code == 0
    (first,) = (tmp_path / "store").rglob("line=b/birth")
    first.write_bytes(flipped(first.read_bytes(), 60))
    listed = kit.run("threads", store=url)
    assert listed.code == INTEGRITY
    assert (listed.lines[2].split()[0], listed.lines[2].split()[-1]) == ("b", "damaged")
    assert "damaged: b" in listed.err
    as_json = kit.run("threads", "--json", store=url)
    assert [(each["thread"], each["damaged"]) for each in as_json.records] == [("a", False), ("b", True)]
    assert as_json.error["exit_code"] == INTEGRITY
    for options in ((), ("--all",)):
        counted = kit.run("status", "--json", *options, store=url)
        assert counted.code == INTEGRITY
        assert (counted.records[0]["threads"], counted.records[0]["damaged"]) == (2, 1)
    assert kit.run("export", tmp_path / "all.hfx", store=url).code == INTEGRITY
    assert kit.run("copy", f"{tmp_path}/copy.db", store=url).code == INTEGRITY
    made = kit.run("backup", "create", "-r", tmp_path / "repository", store=url)
    assert (made.code, "'b' is damaged" in made.err) == (FINDINGS, True)
    with holdfast.open(tmp_path / "restored.db") as restored:
        restored.backups(tmp_path / "repository").restore()
        assert [each.thread for each in restored.threads()] == ["a"]
    assert kit.run("delete", "b", "--yes", store=url).code == 0
    assert kit.run("threads", "--names", store=url).lines == ["a"]
