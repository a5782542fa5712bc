"""Lines that two persons write: what one of them wrote is gone, and what the other wrote is not."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import QUARANTINE, STEPS, Table
from holdfast.engine.row_format import Line
from holdfast.maintenance.erasure.mixed_lines import LineEraser
from holdfast.maintenance.repair.quarantine import QuarantineWriter
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.security.erasure.people import opened_rows

_WORD = re.compile(r"<(u-[12])-word-(\d+)>")

MOVES = ["move", "copy", "rename"]
"""Edits that put what somebody wrote elsewhere."""

OPERATORS = ["append", "add_to_set", "max"]
"""Edits that do not read what they change."""

_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["u-1", "u-2", "u-2"]),
        st.sampled_from(
            ["list", "text", "dict", "nested", "large", "drop", "key", "branch", "restore", *MOVES, *OPERATORS]
        ),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=14,
)


def _edit(state: dict[str, Any], how: str, word: str, number: int) -> dict[str, Any]:
    """Return a state that somebody changed."""
    items, text, entries = [*state["list"]], state["text"], {**state["dict"]}
    words = text.split()
    match how:
        case "list":
            items.insert(number % (len(items) + 1), {"content": word})
        case "nested":
            entries[f"k{number % 3}"] = {"inner": [word, *entries.get(f"k{number % 3}", {}).get("inner", [])]}
        case "large":
            return {**state, "large": f"{state['large']} {word * 1200}"}
        case "text":
            text = " ".join([*words[: number % (len(words) + 1)], word, *words[number % (len(words) + 1) :]])
        case "dict":
            entries[word] = word
        case "drop" if items:
            del items[number % len(items)]
        case "move" if items:
            items.append(items.pop(number % len(items)))
        case "copy" if f"key {number % 4}" in state:
            items.append({"quoted": state[f"key {number % 4}"]})
        case "rename" if f"k{number % 3}" in entries:
            entries[f"r{number % 3}"] = entries.pop(f"k{number % 3}")
        case "key":
            return {**state, f"key {number % 4}": word}
    return {**state, "list": items, "text": text, "dict": entries}


@given(_EDITS)
@example([("u-1", "list", 0), ("u-1", "list", 0), ("u-2", "move", 0)])
@example([("u-1", "dict", 0), ("u-1", "dict", 0), ("u-2", "dict", 0)])
@example([("u-1", "key", 0), ("u-2", "copy", 0)])
@example([("u-1", "nested", 0), ("u-2", "rename", 0)])
@example([("u-1", "append", 0), ("u-2", "append", 0), ("u-1", "add_to_set", 0), ("u-2", "add_to_set", 0)])
@example([("u-1", "max", 0), ("u-1", "max", 0), ("u-2", "append", 0)])
@example([("u-1", "max", 0), ("u-2", "max", 0), ("u-1", "max", 0)])
def test_only_what_the_other_wrote_is_left(edits: list[tuple[str, str, int]]) -> None:
    with holdfast.open("memory://") as store:
        thread = store.thread("group")
        thread.put({"list": [], "text": "", "dict": {}, "large": ""})
        store.erasure.mark_mixed("group")
        for step, (user, how, number) in enumerate(edits):
            if how == "branch":
                thread.fork(f"branch {step}", at=thread.log()[number % len(thread.log())].id)
                thread.switch(f"branch {step}")
            elif how == "restore":
                thread.restore(thread.log()[number % len(thread.log())].id)
            elif how == "append":
                thread.append("list", {"content": f"<{user}-word-{step}>"}, metadata={"subject": user})
            elif how == "add_to_set":
                thread.add_to_set(
                    "set", f"<{user}-word-{step}>", f"<{user}-word-{number % 3}>", metadata={"subject": user}
                )
            elif how == "max":
                thread.max("top", f"<{user}-word-{step}>", metadata={"subject": user})
            else:
                state = _edit(thread.get().state, how, f"<{user}-word-{step}>", number)
                thread.put(state, metadata={"subject": user})
        heads = {each.name: set(_WORD.findall(repr(thread.get(at=each.name).state))) for each in thread.branches()}
        hashes = {each.id: each.hash for each in thread.log().all()}
        wrote = any(user == "u-1" and how not in ("branch", "restore") for user, how, _ in edits)
        report = store.erasure.erase("u-1")
        left = "".join(map(repr, opened_rows(store)))
        assert "<u-1-word" not in left
        for name, words in heads.items():
            now = thread.get(at=name).state
            assert set(_WORD.findall(repr(now))) == {word for word in words if word[0] == "u-2"}, name
            if not words:
                assert now["list"] == []
        # What stays has the hashes that it had.
        assert {each.id: each.hash for each in thread.log().all() if each.kind != "erase"}.items() <= hashes.items()
        assert store.maintenance.verify(level="decode").findings == []
        assert report.rewritten == ({"threads": 1} if wrote else {})


_WORDS = ["the", "meeting", "is", "on", "Friday", "at", "5", "6", "pm", "thank", "you", "all,", "room", "see"]
_TEXTS = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=14).map(" ".join)


@given(st.lists(st.tuples(st.sampled_from(["u-1", "u-2", "u-3"]), _TEXTS), min_size=2, max_size=10))
@settings(max_examples=settings().max_examples // 5)
def test_messages_of_others_are_as_they_were(messages: list[tuple[str, str]]) -> None:
    with holdfast.open("memory://") as store:
        thread, topics = store.thread("group"), {}
        for user in ("u-1", "u-2", "u-3"):
            store.access.grant(f"user:{user}", ["read", "write"], custom="topic/news")
            topics[user] = store.as_identity(user=user).sharing.topic("news")
        saved: list[Any] = []
        for number, (user, text) in enumerate(messages):
            topics[user].publish(text)
            saved.append({"role": "user", "content": text, "number": number})
            thread.put({"messages": [*saved], "last": {"role": "user", "content": text}}, metadata={"subject": user})
        others = [each for each, (user, _) in zip(saved, messages, strict=True) if user != "u-1"]
        store.erasure.mark_mixed("group")
        store.erasure.export("u-2", exported := io.BytesIO())
        parts = [json.loads(line) for line in exported.getvalue().splitlines()]
        own = [text for user, text in messages if user == "u-2"]
        assert [each["written"]["message"] for each in parts if "message" in each.get("written", {})] == own
        store.erasure.erase("u-1")
        assert [each.value for each in store.sharing.topic("news").read()] == [each["content"] for each in others]
        state = thread.get().state
        assert state.get("messages", []) == others
        if messages[-1][0] != "u-1" and not _extends([text for _, text in messages]):
            assert state["last"] == {"role": "user", "content": messages[-1][1]}
        assert store.maintenance.verify().findings == []


def _extends(texts: list[str]) -> bool:
    """Return whether a text is one before it with more words, as if somebody had added them."""
    return any(set(one.split()) <= set(two.split()) for one, two in pairwise(texts))


def test_a_document_loses_what_one_person_wrote_and_no_other_word() -> None:
    ours = [f"Paragraph {number}: we agreed on the plan for the harbour, and on who does what." for number in range(9)]
    theirs = "I live in Harbour Street 7, and my number is 555-0100"
    with holdfast.open("memory://") as store:
        page = store.thread("page")
        for user, lines in (
            ("u-2", ours[:6]),
            ("u-1", [*ours[:3], theirs, *ours[3:6]]),
            ("u-2", [*ours[:2], ours[2].replace("harbour", "port"), theirs, *ours[3:]]),
            ("u-1", [*ours[:2], ours[2].replace("harbour", "port"), theirs, *ours[3:], "Call me"]),
        ):
            page.put({"text": "\n".join(lines)}, metadata={"subject": user})
        store.erasure.erase("u-1")
        text = page.get().state["text"]
        assert [line for line in text.splitlines() if line] == [
            *ours[:2],
            ours[2].replace("harbour", "port"),
            *ours[3:],
        ]


def test_pending_writes_and_damaged_rows_go_too(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        writes = Checkpointer(store)
        for name, users in (("group", ("u-2", "u-1", "u-2")), ("lost", ("u-1", "u-2")), ("fine", ("u-2", "u-2"))):
            thread, messages = store.thread(name), list[str]()
            for user in users:
                messages.append(f"<{user}-word-1>")
                saved = thread.put({"messages": [*messages]}, metadata={"subject": user})
                answer = "<u-2-word-2>" if name == "fine" else f"<u-1-word-{name}>"
                writes.put_writes(name, saved.id, [("out", answer)], task_id="t")
        backend, rows = store._engine.context.backend, run(_rows(store, STEPS))
        run(LineEraser(store._engine, Line("", "lost"), {}, {(0, 0)}).erase())  # its step of u-1 is no more
        for name in ("group", "lost", "fine"):
            quarantine = QuarantineWriter(backend, Line("", name), 1)
            for row in rows:
                if row.key[1] == name:
                    run(backend.apply([run(quarantine.keep(STEPS, row, "damaged"))]))
        left = b"".join(opened_rows(store))
        assert left.count(b"<u-1-word-group>") > 0
        assert left.count(b"<u-1-word-1>") > 0
        store.erasure.erase("u-1")
        left = b"".join(opened_rows(store))
        assert b"<u-1-word" not in left
        assert b"<u-2-word-2>" in left
        assert {row.key[1] for row in run(_rows(store, QUARANTINE))} == {"fine"}
        assert store.thread("group").get().state == {"messages": ["<u-2-word-1>", "<u-2-word-1>"]}
        assert store.maintenance.verify(level="decode").findings == []


async def _rows(store: Store, table: Table) -> list[Row]:
    return [row async for row in scan_rows(store._engine.context.backend, table, ())]
