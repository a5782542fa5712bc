"""`holdfast verify`, `heads` and `repair`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Delete
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import salvage
from holdfast.backends.tables import STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.integrity.check import LineReport
from holdfast.engine.integrity.verify import look_at_rows
from holdfast.engine.row_format import Line
from holdfast.maintenance.verify import verifier
from tests.interfaces.cli import kit

Run = Callable[..., kit.Result]


def lose(url: str, *key: str | int) -> None:
    """Remove a step's row."""
    with holdfast.open(url) as store:
        run(store._engine.context.backend.apply([Delete(STEPS, ("", *key))]))


def test_a_sound_store(hf: Run) -> None:
    done = hf("verify")
    assert (done.code, done.out.startswith("OK (")) == (0, True)
    assert hf("verify", "t1", "--level", "decode").code == 0
    assert json.loads(hf("verify", "--json").out)["ok"] is True
    assert hf("verify", "none").code == 3


def test_damage_is_told_and_mended_from_a_copy(hf: Run, url: str, tmp_path: Path) -> None:
    copy = f"sqlite:///{tmp_path}/copy.db"
    with holdfast.open(url) as store:
        store.maintenance.copy_to(copy)
    lose(url, "t1", 0, 2)
    done = hf("verify")
    assert done.code == 5
    assert "missing-step" in done.out
    told = hf("repair", "--from", copy, "--dry-run")
    assert "restored" in told.out
    assert hf("verify").code == 5
    assert hf("repair", "--from", copy).code != 0  # nobody there to be asked
    done = hf("repair", "--from", copy, "--yes", "--json")
    assert done.code == 0
    assert json.loads(done.out)["repaired"][0]["thread"] == "t1"
    assert hf("verify").code == 0


def test_what_is_lost_is_named(hf: Run, url: str) -> None:
    lose(url, "t1", 0, 4)
    done = hf("repair", "--yes")
    assert done.code == 0
    assert "lost: " in done.out
    assert hf("verify").code == 0


def test_heads_show_a_cut_off_end(hf: Run, url: str, tmp_path: Path) -> None:
    assert hf("heads", tmp_path / "heads.json").code == 0
    assert hf("verify", "--heads", tmp_path / "heads.json", "--write-heads", tmp_path / "more.json").code == 0
    lose(url, "t1", 0, 5)
    done = hf("verify", "--heads", tmp_path / "heads.json")
    assert (done.code, "cut-off" in done.out) == (5, True)
    with holdfast.open(url) as store:
        store.thread("t2").delete()
    assert "cut-off" not in hf("verify", "t1").out
    assert hf("verify", "t2", "--heads", tmp_path / "more.json").code == 6


def test_a_file_that_does_not_open_is_salvaged(hf: Run, url: str, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    data = bytearray(path.read_bytes())
    data[:16] = bytes(16)  # by which a file is known as one of SQLite
    path.write_bytes(data)
    assert hf("verify").code == 5
    assert hf("repair", "--yes").code == 0
    assert hf("verify").code == 0
    assert list(tmp_path.glob("agents.db.damaged-*"))


@pytest.mark.nightly
def test_interrupted_in_the_middle(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/many.db", f"sqlite:///{tmp_path}/copy.db"
    with holdfast.open(url) as store:
        for number in range(8):
            with store.transaction() as together:
                for n in range(30):
                    together.put(f"t{number:02}", {"n": n, "list": list(range(n))}, id=f"{n:02}")
        store.maintenance.copy_to(copy)
        truth = {each.thread: store.thread(each.thread).get().state for each in store.threads()}
        for number in range(8):
            run(store._engine.context.backend.apply([Delete(STEPS, ("", f"t{number:02}", 0, 10))]))
    mending = "holdfast.maintenance.repair.repairer:_Repair._thread"
    with kit.halted("repair", "--from", copy, "--yes", "--store", url, after=3, at=mending) as terminal:
        terminal.expect("halted")
        terminal.send("\x03")
        assert terminal.wait() == 130
    with holdfast.open(url) as store:
        assert store.maintenance.verify().damaged == sorted(truth)[3:]
    assert kit.run("repair", "--from", copy, "--yes", store=url).code == 0
    assert kit.run("verify", "--level", "decode", store=url).code == 0
    with holdfast.open(url) as store:
        assert {each.thread: store.thread(each.thread).get().state for each in store.threads()} == truth


@pytest.mark.parametrize("damage", ["beginning", "cut", "noise"])
def test_a_store_that_does_not_open(hf: Run, url: str, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_MAX_FAILED", 500)  # of as many ranges as there are of noise, each fails
    path = Path(url.removeprefix("sqlite:///"))
    with holdfast.open(url) as store:
        truth = [each.id for each in store.thread("t1").log().all()]
    data = path.read_bytes()
    broken = {
        "beginning": bytes(100) + data[100:],
        "cut": data[: len(data) - 2 * 4096],
        "noise": bytes(range(256)) * 80,
    }[damage]
    path.write_bytes(broken)
    assert hf("threads").code == 5
    told = hf("repair", "--dry-run")
    assert path.read_bytes() == broken
    assert told.code == 5
    done = hf("repair", "--yes")
    if damage == "noise":
        assert done.code == 5
        assert "nothing in the file can be read" in done.err
        assert path.read_bytes() == broken
        return
    assert "could be salvaged" in told.err
    assert "The damaged file is now " in done.err
    assert hf("verify").code == 0
    if damage == "beginning":
        with holdfast.open(url) as store:
            assert [each.id for each in store.thread("t1").log().all()] == truth


def test_ctrl_c_says_where_to_go_on(hf: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(url, "t1", 0, 2)

    async def interrupted(ground: EngineContext, line: Line, *rest: Any) -> LineReport:
        if line.name > "t1":
            raise KeyboardInterrupt
        return await look_at_rows(ground, line, *rest)

    monkeypatch.setattr(verifier, "look_at_rows", interrupted)
    done = hf("verify")
    assert done.code == 130
    assert "missing-step" in done.out  # what was found is told at once
    assert "holdfast verify --after t1" in done.err
    monkeypatch.undo()
    done = hf("verify", "--after", "t1")
    assert (done.code, done.out.startswith("OK (")) == (0, True)


def test_notices_alone_have_a_code_of_their_own(hf: Run, url: str, tmp_path: Path) -> None:
    assert hf("heads", tmp_path / "heads.json", "--json").records[0]["threads"] > 1
    with holdfast.open(url) as store:
        store.thread("t1").tag("finished")
    done = hf("verify", "--heads", tmp_path / "heads.json", "--json")
    assert (done.code, done.records[0]["ok"]) == (6, True)
    assert [each["code"] for each in done.records[0]["findings"]] == ["changed-names"]
    assert "changed-names" in hf("verify", "--heads", tmp_path / "heads.json").out
