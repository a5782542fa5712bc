"""`holdfast prune`, `pin` and `hold`: what goes is said, and asked about, before it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import NODES
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from tests.engine.lines import Clock, backend, store_on
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def ids(url: str, thread: str = "t1") -> list[str]:
    with holdfast.open(url) as store:
        return [each.id for each in store.thread(thread).log().all()]


def test_a_dry_run_says_what_would_go_and_why(hf: Hf, url: str) -> None:
    done = hf("prune", "t1", "--keep-last", "2", "--dry-run")
    assert done.code == 0
    words = [line.split() for line in done.lines]
    assert ["keep", "c5"] in [each[:2] for each in words]
    assert ["drop", "c3"] in [each[:2] for each in words]
    assert any(each[:2] == ["keep", "c1"] and each[-4:] == ["tag", "good,", "label", "seen"] for each in words)
    assert done.lines[-1].startswith("4 checkpoints of 1 thread would be removed, 4 kept; ")
    assert len(ids(url)) == 8


def test_it_is_done_with_yes(hf: Hf, url: str) -> None:
    done = hf("prune", "t1", "--keep-last", "2", "--yes")
    assert done.code == 0, done.err
    assert done.lines[-1].startswith("4 checkpoints of 1 thread removed, 4 kept; ")
    assert ids(url) == ["c5", "c4", "c1", "b4"]


def test_json(hf: Hf, url: str) -> None:
    planned = hf("prune", "--all", "--keep-last", "2", "--dry-run", "--json").records
    done = hf("prune", "--all", "--keep-last", "2", "--yes", "--json").records
    assert [each.get("thread") for each in done] == ["t1", None], "what loses nothing is not listed"
    assert done[:-1] == planned[:-1]
    total = done[-1]["total"]["pruned"]
    assert (total["threads"], total["dropped"], total["dry_run"]) == (1, 4, False)
    assert {each["id"] for each in done[0]["checkpoints"] if not each["kept"]} == {"c0", "c2", "c3", "b3"}
    assert total["bytes"] == planned[-1]["total"]["pruned"]["bytes"]
    assert len(ids(url)) == 4


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["t1", "--keep-latest", "--drop-tagged"], ["c5", "b4"]),
        (["t1", "--keep-latest"], ["c5", "c4", "c1", "b4"]),
        (["--all", "--keep-label", "se*", "--drop-tagged"], ["c5", "c4", "c1", "b4"]),
        (["--prefix", "t", "--keep-where", "meta.n:2", "--drop-tagged"], ["c5", "c2", "b4"]),
        (["--where", "steps>3", "--keep-last", "3"], ["c5", "c4", "c3", "c1", "b4"]),
        (["t1", "--keep-within", "1d"], ["c5", "c4", "c3", "c2", "c1", "c0", "b4", "b3"]),
        (["t1", "--keep-yearly", "1", "--drop-tagged", "--local"], ["c5", "b4"]),
        (["t1", "--max-size", "1GB"], ["c5", "c4", "c3", "c2", "c1", "c0", "b4", "b3"]),
        (["t1", "--max-thread-size", "0.001KiB"], ["c5", "c4", "c1", "b4"]),
    ],
    ids=" ".join,
)
def test_rules(hf: Hf, url: str, arguments: list[str], left: list[str]) -> None:
    done = hf("prune", *arguments, "--yes")
    assert done.code == 0, done.err
    assert ids(url) == left
    assert ("exceed the limit by" in done.err) == ("0.001KiB" in arguments)


@pytest.fixture
def _in_vienna(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Vienna")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_vienna")
def test_local_days_are_those_of_their_own_season(tmp_path: Path) -> None:
    on = backend("sqlite", tmp_path)
    moments = [
        datetime(2026, month, 10, hour, 30, tzinfo=UTC)
        for month, hours in ((1, (22, 23)), (7, (21, 22)))
        for hour in hours
    ]  # each an hour before and after midnight in Vienna
    for number, moment in enumerate(moments):
        clock = Clock(int(moment.timestamp()) * 10**9)
        store_on(on, clock=clock).thread("t").put({"n": number}, id=str(number))
    run(on.close())
    done = kit.run("prune", "t", "--keep-daily", "4", "--local", "--yes", store=f"sqlite:///{tmp_path}/store.db")
    assert done.code == 0, done.err
    assert done.lines[-1].startswith("0 checkpoints of 0 threads removed, 4 kept; ")
    done = kit.run("prune", "t", "--keep-daily", "4", "--yes", store=f"sqlite:///{tmp_path}/store.db")
    assert done.lines[-1].startswith("2 checkpoints of 1 thread removed, 2 kept; "), "by UTC they are two days"


WRONG: list[tuple[list[str], str]] = [
    ([], "no rule for what to keep"),
    (["t1"], "no rule for what to keep"),
    (["--keep-last", "3"], "no thread is selected"),
    (["t1", "--all", "--keep-last", "3"], "give --all or a selection"),
    (["t1", "--keep-last", "0"], "x>=1"),
    (["t1", "--max-size", "much"], "is not a size"),
    (["t1", "--keep-within", "soon"], "is not a valid age"),
    (["t1", "--keep-where", "meta.n<"], ""),
    (["t1", "--prefix", "t", "--keep-last", "3"], "by name, or by a prefix"),
]


def test_wrong_use(hf: Hf, url: str, subtests: pytest.Subtests) -> None:
    for arguments, said in WRONG:
        with subtests.test(said=said):
            done = hf("prune", *arguments, "--yes")
            assert done.code == 2
            assert said in done.err
            assert len(ids(url)) == 8


def test_nobody_to_ask(hf: Hf, url: str) -> None:
    done = hf("prune", "t1", "--keep-last", "2", typed="y\n")
    assert done.code == 2
    assert "--yes" in done.err
    assert len(ids(url)) == 8


def test_no_such_thread(hf: Hf) -> None:
    assert hf("prune", "nope", "--keep-last", "2", "--yes").code == 3


@pytest.mark.parametrize(("answer", "code", "left"), [("y\r", 0, 4), ("n\r", 1, 8), ("\x03", 130, 8)])
def test_it_asks_in_a_terminal(url: str, answer: str, code: int, left: int) -> None:
    with kit.in_terminal("prune", "t1", "--keep-last", "2", "--store", url, "--no-pager") as terminal:
        terminal.expect("4 checkpoints of 1 thread would be removed")
        terminal.expect("Continue?")
        assert terminal.answer(answer) == code
    assert len(ids(url)) == left


def test_nothing_to_do_is_not_asked_about(url: str) -> None:
    with kit.in_terminal("prune", "t1", "--keep-last", "20", "--store", url, "--no-pager") as terminal:
        assert terminal.wait() == 0
    assert "Continue?" not in terminal.text


@pytest.mark.nightly
def test_interrupted_in_the_middle(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    states: dict[str, dict[str, Any]] = {}
    with holdfast.open(url) as store:
        for number in range(8):
            with store.transaction() as together:
                for n in range(40):
                    state = {"n": n, "list": list(range(n)), "text": f"{number} {n}" * 50}
                    together.put(f"t{number:02}", state, id=f"{n:02}")
                    states.setdefault(f"t{number:02}", {})[f"{n:02}"] = state
    with kit.halted("prune", "--all", "--keep-last", "5", "--yes", "--store", url, after=4) as terminal:
        terminal.expect("halted")
        terminal.send("\x03")
        assert terminal.wait() == 130
    with holdfast.open(url) as store:
        counts = set()
        for thread, expected in states.items():
            found = {each.id: store.thread(thread).get(each.id).state for each in store.thread(thread).log().all()}
            assert found == {id: expected[id] for id in found}
            counts.add(len(found))
        assert counts == {5, 40}
        report = store.maintenance.prune(keep_last=5)  # no lease was left behind
        assert not report.problems
    assert kit.run("prune", "--all", "--keep-last", "5", "--yes", store=url).code == 0


def test_pins(hf: Hf, url: str) -> None:
    assert hf("pin", "t1").out == ""
    assert hf("pin", "t1", "c2", "-m", "for the auditors").out == "c2 is pinned.\n"
    assert hf("pin", "t1", "HEAD~2", "--json").records == [{"thread": "t1", "id": "c3", "pinned": True, "reason": None}]
    assert "for the auditors" in hf("pin", "t1").out
    assert [each["id"] for each in hf("pin", "t1", "--json").records] == ["c3", "c2"]
    hf("prune", "t1", "--keep-latest", "--drop-tagged", "--yes")
    assert ids(url) == ["c5", "c3", "c2", "b4"]
    assert hf("pin", "t1", "c2", "-d").out == "c2 is no longer pinned.\n"
    assert hf("pin", "t1", "c2", "-d").code == 3
    assert hf("pin", "t1", "-m", "why").code == 2


def test_holds(hf: Hf, url: str) -> None:
    assert hf("hold").out == ""
    assert hf("hold", "t1", "-m", "case 17").out == "t1 is held.\n"
    assert "case 17" in hf("hold").out
    assert [each["reason"] for each in hf("hold", "--json").records] == ["case 17"]
    done = hf("prune", "t1", "--keep-last", "1", "--yes")
    assert (done.code, "case 17" in done.err) == (1, True)
    done = hf("prune", "--all", "--keep-last", "1", "--yes")
    assert (done.code, "case 17" in done.err) == (1, True)
    assert hf("hold", "t1", "-d", "--json").records == [{"thread": "t1", "held": False, "reason": None}]
    assert hf("hold", "t1", "-d").code == 3
    assert hf("hold", "-d").code == 2
    assert hf("prune", "t1", "--keep-last", "1", "--yes").code == 0
    assert len(ids(url)) == 4


def test_threads_that_could_not_be_pruned(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        run(Lease(store._engine.context, Line("", "t1"), "rewrite").acquire())
    done = hf("prune", "--all", "--keep-last", "1", "--yes")
    assert (done.code, "in progress" in done.err) == (4, True)
    assert hf("prune", "--all", "--keep-last", "1", "--yes", "--json").code == 4


def test_orphans(hf: Hf, url: str) -> None:
    with holdfast.open(url) as store:
        backend = store._engine.context.backend
        run(backend.apply([Put(NODES, Row(("", "t1", 99, b"node"), (), b"x" * 100))]))
        run(backend.apply([Put(NODES, Row(("", "gone", 1, b"node"), (), b"x" * 100))]))
    done = hf("prune", "--orphans", "--dry-run")
    assert done.lines[-1].startswith("1 orphaned row would be removed")
    assert "gone: 1 row" in done.out
    assert "to be removed later" in done.out
    done = hf("prune", "--orphans", "--grace", "0s", "--yes", "--json")
    assert done.records[-1]["total"]["orphans"]["rows"] == 2
    done = hf("prune", "--all", "--keep-last", "1", "--orphans", "--grace", "0s", "--yes")
    assert done.lines[-1] == "0 orphaned rows removed, 0 B."
