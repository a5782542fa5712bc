"""Calls are answered by task and number, whatever their order, unless the code makes them in another one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from holdfast.recording.comparison import difference
from holdfast.recording.journal import Call, DivergedRun, Divergence, ReplayJournal, TaskJournal


def recorded() -> list[Call]:
    """Calls `a` and `b`, the second after the first was over, and `c` after both."""
    journal = TaskJournal("1:node", 1)
    for name in "abc":
        journal.invoke("call", name, [], name.upper)
    return [Call.of_record(call) for call in journal.to_record()]


def replayed() -> tuple[ReplayJournal, list[Divergence]]:
    found: list[Divergence] = []
    return ReplayJournal("1:node", 1, recorded(), lambda _, a, b: difference(a, b), found.append), found


def test_parallel_calls_come_in_any_order() -> None:
    journal, found = replayed()
    with ThreadPoolExecutor(1) as pool:  # one thread, one after the other: each in a context of its own
        answers = [
            pool.submit(copy_context().run, journal.invoke, "call", name, [], str).result() for name in ("b", "a")
        ]
    assert answers == ["B", "A"]
    assert journal.invoke("call", "c", [], str) == "C"
    journal.close()
    assert not found

    async def main() -> list[str]:
        return list(await asyncio.gather(*(other.ainvoke("call", name, [], str) for name in ("c", "b", "a"))))

    other, _ = replayed()
    assert asyncio.run(main()) == ["C", "B", "A"]


def test_calls_that_were_exchanged_diverge() -> None:
    journal, found = replayed()
    assert copy_context().run(journal.invoke, "call", "a", [], str) == "A"

    def exchanged() -> None:
        journal.invoke("call", "c", [], str)
        with pytest.raises(DivergedRun):
            journal.invoke("call", "b", [], str)

    copy_context().run(exchanged)
    assert [(each.kind, each.what) for each in found] == [("order", "call c is called before call b, and was after it")]


def test_a_call_that_is_not_made_is_missing() -> None:
    journal, found = replayed()
    copy_context().run(journal.invoke, "call", "b", [], str)
    journal.close()
    assert [(each.kind, each.number) for each in found] == [("missing", 0)]
