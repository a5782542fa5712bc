"""`holdfast quota`: limits are shown, set and removed, and what exceeds them is refused."""

from __future__ import annotations

from collections.abc import Callable

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def test_limits_are_set_one_by_one_and_removed(hf: Hf) -> None:
    (record,) = hf("quota", "--json").records
    assert record["limits"] == {"bytes": None, "threads": None, "steps": None}
    assert record["used"]["threads"] == 3
    assert hf("quota", "--threads", "3").code == 0
    (record,) = hf("quota", "--bytes", "10MB", "--json").records
    assert record["limits"] == {"bytes": 10_000_000, "threads": 3, "steps": None}
    (record,) = hf("quota", "--threads", "none", "--steps", "1000", "--json").records
    assert record["limits"] == {"bytes": 10_000_000, "threads": None, "steps": 1000}
    lines = hf("quota").lines
    assert [line.split()[0] for line in lines] == ["QUOTA", "bytes", "threads", "steps"]
    assert lines[2].split() == ["threads", "3", "none"]
    assert lines[3].split()[2:] == ["1,000"]
    (record,) = hf("quota", "--remove", "--json").records
    assert set(record["limits"].values()) == {None}


def test_a_command_that_exceeds_a_limit_says_what_to_do(hf: Hf, url: str) -> None:
    assert hf("quota", "--steps", "0").code == 0
    done = hf("state", "set", "agent:x", "key", "1")
    assert done.code == 1
    assert "error[quota-exceeded]" in done.err
    assert "raise the quota: holdfast quota" in done.err
    with holdfast.open(url) as store:
        assert list(store.state(agent="x").keys()) == []


def test_wrong_use(hf: Hf) -> None:
    for arguments in (["--threads", "-1"], ["--bytes", "many"], ["--remove", "--steps", "1"], ["--threads", "1.5"]):
        assert hf("quota", *arguments).code == 2, arguments
    (record,) = hf("quota", "--json").records
    assert set(record["limits"].values()) == {None}
