"""`holdfast threads` and `holdfast stats`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def names(result: kit.Result) -> list[str]:
    return [line.split()[0] for line in result.lines[1:]]


def test_a_table(hf: Hf) -> None:
    found = hf("threads")
    assert found.lines[0].split() == ["THREAD", "STEPS", "BRANCHES", "SIZE", "UPDATED"]
    assert names(found) == ["chat/anna", "t1", "t2"]
    assert found.lines[2].split()[:3] == ["t1", "8", "2"]
    assert found.lines[1].endswith("ago")


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
    assert hf("threads", "nope") == (0, "", "No thread matches.\n")
    assert hf("threads", "--where", "steps>1000") == (0, "", "No thread matches.\n")
    assert hf("threads", "--tenant", "none") == (0, "", "There are no threads.\n")
    assert hf("threads", "nope", "-q") == (0, "", "")


def test_more_than_a_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.interfaces.cli.threads._PAGE", 2)
    monkeypatch.setattr("holdfast.interfaces.cli.stats._PAGE", 2)
    assert names(kit.run("threads", store=url)) == ["chat/anna", "t1", "t2"]
    assert kit.run("stats", "--json", store=url).records[0]["threads"] == 3


def test_stats(hf: Hf) -> None:
    lines = hf("stats").lines
    assert lines[0].startswith("Store:        sqlite:///")
    assert "Threads:      3" in lines
    assert any(line.startswith("Steps:        10 in 4 branches, ") for line in lines)
    assert any(line.startswith("Largest:      t1 (") for line in lines)
    assert "Durable:      yes" in lines
    (record,) = hf("stats", "--json").records
    assert (record["threads"], record["steps"], record["branches"]) == (3, 10, 4)
    assert record["largest"] == "t1"
    assert record["store_bytes"] > record["bytes"]


def test_stats_of_little(url: str) -> None:
    found = kit.run("stats", "--tenant", "nobody", store=url)
    assert "Tenant:  nobody" in found.lines
    assert "Threads: 0" in found.lines
    found = kit.run("stats", store="memory://")
    assert any(line.startswith("Durable: no") for line in found.lines)


def test_stats_tell_how_a_store_of_several_is_doing(url: str) -> None:
    found = kit.run("stats", store=f"retry:?store={url}")
    assert any(line.startswith("Retried:") for line in found.lines)
    with holdfast.open(url) as store:
        assert store.thread("t1").info().steps == 8
