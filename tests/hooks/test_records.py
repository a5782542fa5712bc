"""What is recorded of the calls of hooks, the statistics of it, and its retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.access import check_audit
from holdfast.errors import InvalidError
from holdfast.hooks.context import HookExecution
from tests.security.sensitive.test_protection import FixedKeys
from tests.support.cases import case

KEY = "ghp_" + "x7Kq2mWv9" * 4
VALUE = {"note": f"the token is {KEY}", "mail": "ada@example.org", "n": 7}


def recorded(store: Store, name: str, **options: Any) -> HookExecution:
    store.hooks.after("state.set", name=name, **options)(lambda _: None)
    store.state(agent="a")["plan"] = VALUE
    assert store.hooks.drain(60)
    store.hooks.remove(name)
    (found,) = store.hooks.history(name)
    return found


def test_values_are_recorded_as_the_hook_or_the_store_says(tmp_path: Path, subtests: pytest.Subtests) -> None:
    with holdfast.open(tmp_path / "store.db") as store:
        with case(subtests, "by default"):
            assert recorded(store, "default").detail == {}
        with case(subtests, "digest"):
            one, two = recorded(store, "one", record="digest"), recorded(store, "two", record="digest")
            assert one.detail["value"].startswith("blake2b:")
            assert one.detail["value"] != two.detail["value"]  # each has a salt
            assert not one.is_exact
        with case(subtests, "redacted"):
            found = recorded(store, "redacted", record="redacted")
            assert found.detail["value"] == {
                "note": "the token is [redacted:github-token]",
                "mail": "[redacted:email]",
                "n": 7,
            }
            assert not found.is_exact
        with case(subtests, "full"):
            for name, record in (("full", "full"), ("true", True)):
                found = recorded(store, name, record=record)
                assert (found.detail["value"], found.is_exact) == (VALUE, True)
        with case(subtests, "of the store"):
            store.hooks.record_as("digest")
            assert recorded(store, "of store").detail["recording"] == "digest"
            assert recorded(store, "own", record="full").is_exact
            assert recorded(store, "none", record=False).detail == {}
        with case(subtests, "a policy goes first"):
            store.redaction.protect("redact", keys=FixedKeys())
            found = recorded(store, "policy", record="full")
            assert (found.detail["recording"], found.is_exact) == ("redacted", False)
            assert KEY not in str(found)
        with case(subtests, "unknown"), pytest.raises(InvalidError):
            store.hooks.after("state.set", record="everything")(lambda _: None)  # type: ignore[arg-type]
    assert KEY.encode() in (tmp_path / "store.db").read_bytes()  # the control: a full record has it


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
def test_statistics_and_the_history_of_all_scopes(url: str, tmp_path: Path) -> None:
    with holdfast.open(url if url == "memory://" else tmp_path / "store.db") as store:

        @store.hooks.before("state.set", name="strict", max_failures=1000)
        def strict(call: Any) -> None:
            if call.key == "veto":
                raise holdfast.errors.VetoError("no")
            if call.key == "bad":
                raise ValueError(call.key)

        store.hooks.after("state.*", name="follow")(lambda _: None)
        for number in range(10):
            store.state(agent=str(number % 3))["bad" if number == 4 else "n"] = number
        with pytest.raises(holdfast.errors.VetoError):
            store.state(agent="0")["veto"] = 1
        assert store.hooks.drain(60)
        found = {each.hook: each for each in store.hooks.statistics()}
        strict_, follow = found["strict"], found["follow"]
        assert (strict_.calls, strict_.failures, strict_.vetoes, follow.calls) == (11, 1, 1, 10)
        assert strict_.failure_rate == pytest.approx(1 / 11)
        assert 0 < follow.average <= follow.worst <= follow.total
        every = store.hooks.statistics(since="1h")
        assert [each.hook for each in every.failing()] == ["strict"]
        assert [each.hook for each in every.most_called(1)] == ["strict"]
        assert len(every.slowest()) == 2
        assert store.hooks.statistics("nobody") == []
        whole = list(store.hooks.history(limit=1000))
        assert len(whole) == 21
        assert list(store.hooks.history(limit=4).all()) == whole
        assert [each.time for each in whole] == sorted((each.time for each in whole), reverse=True)
        assert {each.hook for each in store.hooks.history("follow", limit=3).all()} == {"follow"}


def test_old_records_go_to_a_file_by_number_and_size(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store.db") as store:
        store.hooks.after("state.*", name="follow", record="full")(lambda _: None)
        for number in range(4):
            store.state(agent="a")["n"] = number
            assert store.hooks.drain(60)  # each is recorded in a step of its own
        with pytest.raises(InvalidError):
            store.maintenance.archive_hooks(tmp_path / "none.jsonl")
        assert store.maintenance.archive_hooks(tmp_path / "0.jsonl", keep_within="1h").rows == 0
        would = store.maintenance.archive_hooks(tmp_path / "1.jsonl", keep_last=2, dry_run=True)
        done = store.maintenance.archive_hooks(tmp_path / "1.jsonl", keep_last=2)
        assert (would.rows, done.rows) == (2, 2)
        assert [each.detail["value"] for each in store.hooks.history()] == [3, 2]
        assert check_audit(tmp_path / "1.jsonl").ok
        assert store.audit.verify().ok
        assert store.maintenance.archive_hooks(tmp_path / "2.jsonl", keep_last=3).rows == 0
        assert store.maintenance.archive_hooks(tmp_path / "3.jsonl", keep_within="1h", max_bytes=300).rows == 1
        assert [each.detail["value"] for each in store.hooks.history()] == [3]
        assert store.audit.verify().ok
        settings = {"folder": str(tmp_path / "jobs"), "keep_last": 1}
        store.jobs.add("hooks", "archive-hooks", settings=settings)
        assert store.jobs.run("hooks").outcome == "ok"
        with pytest.raises(InvalidError):
            store.jobs.add("bad", "archive-hooks", settings={"folder": "x"})


def test_at_least_as_many_stay_as_were_asked_for(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store.db") as store:
        store.hooks.after("state.*", name="follow")(lambda _: None)
        for start in (0, 10, 20):
            store.state(agent="a").batch({f"k{number}": number for number in range(start, start + 10)})
            assert store.hooks.drain(60)  # ten are recorded together
        done = store.maintenance.archive_hooks(tmp_path / "1.jsonl", keep_last=5)
        left = store.hooks.history(limit=50)
        assert 5 <= len(left) < 30
        assert done.rows + len(left) == 30
        assert "k29" in {each.key for each in left}
        count = len(left)
        assert store.maintenance.archive_hooks(tmp_path / "2.jsonl", keep_last=50).rows == 0
        assert store.maintenance.archive_hooks(tmp_path / "3.jsonl", keep_last=count).rows == 0
        assert store.audit.verify().ok
