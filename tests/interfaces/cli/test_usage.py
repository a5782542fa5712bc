"""`holdfast usage`, as people and programs see it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import holdfast
from holdfast.history.usage import KEYS
from holdfast.interfaces.cli.usage import usage
from tests.history.test_usage import answer
from tests.interfaces.cli import kit


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command over two threads, with a price for one of their models."""
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        store.thread("support-1").put({"messages": [answer(1_000_000)]}, metadata={"user": "alice"})
        store.thread("other").put({"messages": [answer(50, "o3")]}, metadata={"user": "bob\x1b[31m"})
    (tmp_path / "holdfast.toml").write_text('[prices]\n"gpt-5" = { input = 1, output = 10 }\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "holdfast.toml"))
    return partial(kit.run, store=url)


def test_a_table_with_the_total(hf: Any) -> None:
    result = hf("usage", "--by", "user")
    assert result.lines[0].split() == ["USER", "MESSAGES", "INPUT", "TOKENS", "CACHED", "OUTPUT", "TOKENS", "COST"]
    assert result.lines[1].split() == ["alice", "1", "1,000,000", "0", "100,000", "2.00"]
    assert result.lines[-1].split() == ["total", "2", "1,000,050", "0", "100,005", "2.00"]
    assert "\x1b" not in result.out
    assert "no price for o3" in result.err


def test_the_keys_are_those_of_the_operation() -> None:
    (by,) = [each.type for each in usage.params if each.name == "by"]
    assert isinstance(by, click.Choice)
    assert tuple(by.choices) == KEYS


def test_a_pattern_and_a_query(hf: Any) -> None:
    (row,) = hf("usage", "support-*", "--by", "thread", "--json").records[0]["sums"]
    assert (row["key"], row["cost"]) == ("support-1", 2.0)
    assert not hf("usage", "support-*", "--where", "meta.user=bob OR meta.user=carol", "--json").records[0]["sums"]
    assert hf("usage", "--where", "meta.user=alice", "--json").records[0]["total"]["input"] == 1_000_000
    assert "No message says" in hf("usage", "none").err
    assert "not a time" in hf("usage", "--since", "soon").err
