"""Threads in the interchange format: written, read by other programs, and brought back as they were."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import random
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError, UnsupportedError
from holdfast.schemas import Schema
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.servers.places import DURABLE, place
from tests.support.kills import MOMENTS, kill_at_write, run_in_child
from tests.support.nightly import by_day, by_night, examples, mostly_nightly

MESSAGES = [{"role": "user", "content": f"question {number} ü"} for number in range(40)]


def fill(store: Store) -> None:
    """A thread with a fork, a merge, tags, labels, values of many types, large ones, and appends."""
    thread = store.thread("chat")
    thread.put({"messages": [], "plan": {"goal": "x", "done": 0}, "t": (1, 2)}, metadata={"user": "alice", "n": 1.5})
    for number, message in enumerate(MESSAGES):
        thread.append("messages", message)
        if number == 5:
            thread.tag("five")
            thread.fork("shorter")
    thread.update({"plan.done": 1, "document": "long " * 40_000})
    thread.put({"plan": {"done": 1, "goal": "x"}, "messages": MESSAGES[:2]}, labels=["good"])
    thread.fork("other", at="five")
    thread.append("aside", {"role": "user", "content": "on the other"}, branch="other")
    thread.merge("other")
    store.thread("second").put({"messages": [b"bytes", {"$odd": 1}, {1: "one"}], "$mark": None})


def history(store: Store, name: str) -> list[tuple[Any, ...]]:
    thread = store.thread(name)
    return [
        (each.id, each.parent, each.merged, each.kind, each.metadata, each.time, each.actor, thread.get(each.id).state)
        for each in thread.log().all()
    ]


def lines_of(file: Path) -> list[dict[str, Any]]:
    data = file.read_bytes()
    return [*map(json.loads, (gzip.decompress(data) if file.suffix == ".gz" else data).splitlines())]


def write(file: Path, *lines: dict[str, Any] | str) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{each}\n" for each in text))
    return file


HEADER = {"type": "holdfast-history", "version": 1}
BEGIN = {"type": "thread", "thread": "chat"}
END = {"type": "end", "checkpoints": 1}
FIRST = {"type": "checkpoint", "id": "1", "time": "2026-11-01T10:00:00Z", "state": {"messages": ["hello"]}}
SECOND = {
    "type": "checkpoint",
    "id": "2",
    "parent": "1",
    "time": "2026-11-01T10:00:01Z",
    "patch": [{"op": "add", "path": "/messages/-", "value": "there"}],
}


@pytest.mark.parametrize("name", ["chats.jsonl", "chats.jsonl.gz"])
def test_threads_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    with holdfast.open("memory://") as store, holdfast.open(tmp_path / "b.db") as other:
        fill(store)
        report = store.maintenance.export(file, format="jsonl")
        imported = other.maintenance.import_(file, format="jsonl")
        assert (imported.threads, imported.skipped) == (("chat", "second"), ())
        assert imported.rows == report.records
        for thread in ("chat", "second"):
            assert identical(history(other, thread), history(store, thread))
        good = store.thread("chat").log(label="good")
        for each in (store, other):
            chat = each.thread("chat")
            assert chat.get("five").state["messages"] == MESSAGES[:6]
            assert {branch.name for branch in chat.branches()} == {"main", "shorter", "other"}
            assert [entry.id for entry in chat.log(label="good")] == [entry.id for entry in good]
        assert not other.maintenance.verify().findings
        again = other.maintenance.import_(file, format="jsonl")
        assert (again.threads, again.skipped, again.rows) == ((), ("chat", "second"), 0)
        assert store.maintenance.import_(file, format="jsonl").threads == (), "where it came from"
        other.maintenance.export(tmp_path / "again.jsonl", format="jsonl")
    assert lines_of(tmp_path / "again.jsonl")[1:] == lines_of(file)[1:]


def test_the_file_is_as_the_page_says(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        fill(store)
        store.maintenance.export(tmp_path / "f.jsonl", threads=["chat"], format="jsonl")
    header, begin, first, second, *others, end = lines_of(tmp_path / "f.jsonl")
    assert (header["type"], header["version"], begin) == ("holdfast-history", 1, BEGIN)
    assert first["state"] == {"messages": [], "plan": {"goal": "x", "done": 0}, "t": {"$tuple": [1, 2]}}
    assert first["metadata"] == {"user": "alice", "n": 1.5}
    assert second["parent"] == first["id"]
    assert second["patch"] == [{"op": "add", "path": "/messages/0", "value": MESSAGES[0]}]
    assert end["checkpoints"] == len(others) + 2
    assert list(end["tags"]) == ["five"]
    assert list(end["branches"]) == ["shorter"], "one without checkpoints of its own"
    whole = [each for each in others if "state" in each]
    assert 0 < len(whole) < 5, "those after another checkpoint, and where a dict changed its order"


def test_what_another_program_wrote_is_imported(tmp_path: Path) -> None:
    task = {"task": "t", "channel": "messages", "value": {"role": "user"}}
    file = write(tmp_path / "f.jsonl", HEADER, BEGIN, {**FIRST, "writes": [task]}, SECOND, {**END, "checkpoints": 2})
    with holdfast.open("memory://") as store:
        assert store.maintenance.import_(file, format="jsonl", dry_run=True).threads == ("chat",)
        assert store.threads() == [], "only tried"
        assert store.maintenance.import_(file, format="jsonl").rows == 3
        thread = store.thread("chat")
        assert thread.get().state == {"messages": ["hello", "there"]}
        assert thread.get("1").state == {"messages": ["hello"]}
        assert thread.get("2").time.isoformat() == str(SECOND["time"]).replace("Z", "+00:00")
        assert store.maintenance.import_(file, format="jsonl", as_thread="copy").threads == ("copy",)
        thread.append("messages", "more")
        assert store.maintenance.import_(file, format="jsonl").skipped == ("chat",), "the store has more"
        longer = {**SECOND, "id": "3", "parent": "2"}
        write(file, HEADER, BEGIN, {**FIRST, "writes": [task]}, SECOND, longer, {**END, "checkpoints": 3})
        with pytest.raises(ConflictError, match="line 5"):
            store.maintenance.import_(file, format="jsonl")
        assert store.maintenance.import_(file, format="jsonl", as_thread="copy").rows == 1, "it goes on"


BAD: dict[str, tuple[list[Any], int]] = {
    "no JSON": ([HEADER, BEGIN, "{"], 3),
    "another format": ([{"type": "holdfast-export", "version": 1}], 1),
    "no header": ([BEGIN], 1),
    "an empty file": ([], 0),
    "a second header": ([HEADER, HEADER], 2),
    "an unknown member": ([HEADER, BEGIN, {**FIRST, "stat": 1}], 3),
    "a number for a name": ([HEADER, {**BEGIN, "thread": 1}], 2),
    "a reserved name": ([HEADER, {**BEGIN, "thread": "$state"}], 2),
    "a reserved id": ([HEADER, BEGIN, {**FIRST, "id": "HEAD~1"}], 3),
    "no state": ([HEADER, BEGIN, {**FIRST, "state": None}], 3),
    "a list as a state": ([HEADER, BEGIN, {**FIRST, "state": []}], 3),
    "a type that does not exist": ([HEADER, BEGIN, {**FIRST, "state": {"a": {"$nonsense": 1}}}], 3),
    "a patch of nothing": ([HEADER, BEGIN, SECOND], 3),
    "a patch of another checkpoint": ([HEADER, BEGIN, FIRST, {**SECOND, "parent": "0"}], 4),
    "a patch that does not fit": ([HEADER, BEGIN, FIRST, {**SECOND, "patch": [{"op": "remove", "path": "/x"}]}], 4),
    "an operation that is not known": ([HEADER, BEGIN, FIRST, {**SECOND, "patch": [{"op": "move", "path": "/x"}]}], 4),
    "an operation without a value": ([HEADER, BEGIN, FIRST, {**SECOND, "patch": [{"op": "add", "path": "/x"}]}], 4),
    "a patch of everything": (
        [HEADER, BEGIN, FIRST, {**SECOND, "patch": [{"op": "replace", "path": "", "value": 1}]}],
        4,
    ),
    "a parent that is not there": ([HEADER, BEGIN, FIRST, {**SECOND, "patch": None, "state": {}, "parent": "0"}], 4),
    "a reserved channel of a write": (
        [HEADER, BEGIN, {**FIRST, "writes": [{"task": "t", "channel": "__recorded__", "value": 1}]}],
        3,
    ),
    "a year that no store has": ([HEADER, BEGIN, {**FIRST, "time": "1900-01-01T00:00:00Z"}], 3),
    "a time at the end of all times": ([HEADER, BEGIN, {**FIRST, "time": "0001-01-01T00:00:00+23:00"}], 3),
    "a time without a zone": ([HEADER, BEGIN, {**FIRST, "time": "2026-01-01T00:00:00"}], 3),
    "a write with a huge number": (
        [HEADER, BEGIN, {**FIRST, "writes": [{"task": "t", "channel": "c", "value": 1, "number": 2**70}]}],
        3,
    ),
    "two writes with one number": (
        [HEADER, BEGIN, {**FIRST, "writes": [{"task": "t", "channel": "c", "value": each} for each in (1, 2)]}],
        3,
    ),
    "an index with a zero before it": (
        [HEADER, BEGIN, FIRST, {**SECOND, "patch": [{"op": "replace", "path": "/messages/00", "value": 1}]}],
        4,
    ),
    "a checkpoint outside": ([HEADER, FIRST], 2),
    "a thread in a thread": ([HEADER, BEGIN, BEGIN], 3),
    "a thread twice": ([HEADER, BEGIN, FIRST, END, BEGIN], 5),
    "lost lines": ([HEADER, BEGIN, FIRST, {**END, "checkpoints": 2}], 4),
    "no end": ([HEADER, BEGIN, FIRST], 3),
    "a tag on nothing": ([HEADER, BEGIN, FIRST, {**END, "tags": {"v1": "7"}}], 4),
    "a branch on nothing": ([HEADER, BEGIN, FIRST, {**END, "branches": {"side": "7"}}], 4),
    "the main branch once more": ([HEADER, BEGIN, FIRST, {**END, "branches": {"main": "1"}}], 4),
    "a reserved branch": ([HEADER, BEGIN, FIRST, {**SECOND, "branch": "HEAD"}], 4),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_with_a_file_is_said_with_its_line(what: str, tmp_path: Path) -> None:
    lines, number = BAD[what]
    file = write(tmp_path / "f.jsonl", *lines)
    with holdfast.open("memory://") as store:
        for dry_run in (True, False):
            with pytest.raises(HoldfastError, match=f"line {number} of .*f.jsonl") as caught:
                store.maintenance.import_(file, format="jsonl", dry_run=dry_run)
            assert isinstance(caught.value, InvalidError)
        good = write(tmp_path / "g.jsonl", HEADER, {**BEGIN, "thread": "good"}, FIRST, END)
        assert store.maintenance.import_(good, format="jsonl").threads == ("good",)


def test_other_versions_threads_and_kinds_are_refused(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        store.state(user="u")["a"] = 1
        with pytest.raises(UnsupportedError, match="version 2"):
            store.maintenance.import_(write(tmp_path / "2", {**HEADER, "version": 2}), format="jsonl")
        file = write(tmp_path / "f", HEADER, BEGIN, FIRST, END)
        with pytest.raises(NotFoundError, match="'other'"):
            store.maintenance.import_(file, format="jsonl", threads=["other"])
        for act in (
            lambda: store.maintenance.export(tmp_path / "x", format="jsonl", kinds=["scope"]),
            lambda: store.maintenance.import_(file, format="jsonl", kinds="all"),
            lambda: store.maintenance.import_(file, format="xml"),
        ):
            with pytest.raises(InvalidError):
                act()
        with pytest.raises(InvalidError, match="holdfast export"):
            store.maintenance.import_(file)


def test_an_import_that_ended_goes_on(tmp_path: Path) -> None:
    """After each line, as after a kill there: what is saved is in the order of the file, a transaction each."""
    with holdfast.open("memory://") as store:
        fill(store)
        store.maintenance.export(tmp_path / "f.jsonl", format="jsonl")
        expected = {name: history(store, name) for name in ("chat", "second")}
    lines = (tmp_path / "f.jsonl").read_text().splitlines()
    with holdfast.open("memory://") as other:
        for count in range(2, len(lines), 9):
            with pytest.raises(InvalidError, match="ends early"):
                other.maintenance.import_(write(tmp_path / "part.jsonl", *lines[:count]), format="jsonl")
        assert other.maintenance.import_(tmp_path / "f.jsonl", format="jsonl").threads == ("chat", "second")
        assert {name: history(other, name) for name in expected} == expected
        assert not other.maintenance.verify().findings


@pytest.mark.time_limit(240)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_an_import_that_is_killed_goes_on_to_the_same_result(tmp_path: Path) -> None:
    """By day three times, by night at ten random moments of a longer import."""
    file, url, killed = tmp_path / "f.jsonl", str(tmp_path / "new.db"), 0
    writes = random.Random(48).choices(range(1, 12), k=10) if by_night() else [7, 7, 7]
    with holdfast.open("memory://") as store:
        fill(store)
        for number in range(by_day(120, 0)):
            store.thread("long").append("messages", {"role": "user", "content": f"{number} " * 20})
        store.maintenance.export(file, format="jsonl")
        for number, moment in zip(writes, cycle(MOMENTS), strict=False):

            def work(_: Any, number: int = number, moment: Any = moment) -> None:
                kill_at_write(number, moment)
                with holdfast.open(url) as target:
                    target.maintenance.import_(file, format="jsonl")

            killed += run_in_child(work)[1]
        assert killed == len(writes)
        with holdfast.open(url) as target:
            target.maintenance.import_(file, format="jsonl")
            for info in store.threads():
                assert identical(history(target, info.thread), history(store, info.thread))
            assert not target.maintenance.verify().findings


# Beside other features -----------------------------------------------------------------------------------------------


def test_an_encrypted_store_says_what_leaves_it(tmp_path: Path) -> None:
    file = write(tmp_path / "f.jsonl", HEADER, BEGIN, FIRST, SECOND, {**END, "checkpoints": 2})
    keys = LocalKeys(b"k" * 32)
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(keys)) as store:
        assert store.maintenance.import_(file, format="jsonl").threads == ("chat",)
        with pytest.raises(HoldfastError) as refused:
            store.maintenance.export(tmp_path / "x.jsonl", format="jsonl")
        assert refused.value.code == "clear-refused"
    assert b"there" not in (tmp_path / "a.db").read_bytes()
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(keys, clear=["export"])) as store:
        store.maintenance.export(tmp_path / "x.jsonl", format="jsonl")
    assert lines_of(tmp_path / "x.jsonl")[3]["patch"] == [{"op": "add", "path": "/messages/1", "value": "there"}]


def test_policies_for_sensitive_data_hold_for_what_is_imported(tmp_path: Path) -> None:
    secret = "anna@example.com"
    states = [{"a": f"ask {secret}"}, {"a": f"ask {secret}", "b": secret}]
    with holdfast.open("memory://") as store, holdfast.open(tmp_path / "b.db") as other:
        for state in states:
            store.thread("chat").put(state, metadata={"to": secret})
        store.maintenance.export(tmp_path / "f.jsonl", format="jsonl")
        other.redaction.protect("redact", formats="personal")
        other.maintenance.import_(tmp_path / "f.jsonl", format="jsonl")
        assert secret not in repr(history(other, "chat"))
        assert other.maintenance.import_(tmp_path / "f.jsonl", format="jsonl").skipped == ("chat",)


def test_what_was_erased_does_not_come_back(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for name, user in (("hers", "anna"), ("his", "bob")):
            store.thread(name).put({"n": 1}, metadata={"user": user})
        store.maintenance.export(tmp_path / "f.jsonl", format="jsonl")
        store.erasure.erase("anna", metadata_keys=("user",))
        store.maintenance.import_(tmp_path / "f.jsonl", format="jsonl")
        assert [info.thread for info in store.threads()] == ["his"]


@pytest.mark.parametrize("whole", [False, True], ids=["a thread", "a tenant"])
def test_what_was_erased_does_not_come_back_to_whom_it_was_assigned(tmp_path: Path, whole: bool) -> None:
    file = tmp_path / "f.jsonl"
    with holdfast.open("memory://") as store, holdfast.open("memory://") as other:
        store.thread("hers").put({"n": 1})
        store.thread("his").put({"n": 1})
        store.erasure.set_subject("anna", None if whole else "hers")
        store.maintenance.export(file, format="jsonl")
        imported = other.maintenance.import_(file, format="jsonl").threads
        assert set(imported) == {"hers", "his"}, "elsewhere it comes"
        assert other.erasure.subject("hers") == "anna", "with whose it is"
        assert other.erasure.subject("his") == ("anna" if whole else None)
        store.erasure.erase("anna")
        left = [] if whole else ["his"]
        for options in ({"dry_run": True}, {}, {"as_thread": "again", "threads": ["hers"]}):
            report = store.maintenance.import_(file, format="jsonl", **options)
            assert report.threads == ()
            assert [info.thread for info in store.threads()] == left


def test_pruned_histories_held_threads_schemas_and_tenants(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    with holdfast.open(tmp_path / "a.db") as store:
        thread = store.thread("chat")
        for number in range(6):
            thread.put({"n": number}, tag="third" if number == 2 else None)
        store.maintenance.prune(["chat"], keep_last=2)
        assert len(history(store, "chat")) == 3
        thread.hold(reason="evidence")
        store.maintenance.export(file, format="jsonl")
        expected = history(store, "chat")
    with holdfast.open(tmp_path / "b.db", tenant="acme") as other:
        wrong = {"type": "object", "properties": {"n": {"type": "string"}}, "additionalProperties": False}
        other.schemas.attach(Schema("chat", "1.0.0", wrong), threads="chat")
        with pytest.raises(InvalidError, match="line 3"):
            other.maintenance.import_(file, format="jsonl")
        right = {**wrong, "properties": {"n": {"type": "integer"}}}
        other.schemas.detach(threads="chat")
        other.schemas.attach(Schema("counter", "1.0.0", right), threads="chat")
        other.maintenance.import_(file, format="jsonl")
        assert identical(history(other, "chat"), expected), "what was pruned is not asked for"
        assert any(each.action == "import" for each in other.audit.query())
    with holdfast.open(tmp_path / "b.db") as other:
        assert other.threads() == []


@pytest.mark.parametrize("to", mostly_nightly(DURABLE, daily=["postgres"]))
def test_every_store_takes_it(to: str, tmp_path: Path) -> None:
    with holdfast.open("memory://") as store, holdfast.open(place(to, tmp_path)) as other:
        fill(store)
        store.maintenance.export(tmp_path / "f.jsonl", format="jsonl")
        other.maintenance.import_(tmp_path / "f.jsonl", format="jsonl")
        other.maintenance.export(tmp_path / "again.jsonl", format="jsonl")
    assert lines_of(tmp_path / "again.jsonl")[1:] == lines_of(tmp_path / "f.jsonl")[1:]


def test_asyncio_and_open_files(tmp_path: Path) -> None:
    async def both() -> Any:
        async with await holdfast.aopen("memory://") as store:
            data = io.BytesIO(write(tmp_path / "f.jsonl", HEADER, BEGIN, FIRST, END).read_bytes())
            await store.maintenance.import_(data, format="jsonl")
            out = io.BytesIO()
            await store.maintenance.export(out, format="jsonl")
            return [json.loads(line) for line in out.getvalue().splitlines()]

    assert [line["type"] for line in asyncio.run(both())] == ["holdfast-history", "thread", "checkpoint", "end"]


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("ab$/~0"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "$c", "/~"]), VALUES, max_size=3), min_size=1, max_size=6))
def test_any_history_comes_back(tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, Any]]) -> None:
    file = tmp_path_factory.mktemp("law") / "f.jsonl"
    with holdfast.open("memory://") as store, holdfast.open("memory://") as other:
        for state in states:
            store.thread("chat").put(state)
        store.maintenance.export(file, format="jsonl")
        other.maintenance.import_(file, format="jsonl")
        assert identical(history(other, "chat"), history(store, "chat"))
