"""`holdfast verify`, `heads` and `repair`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast.backends.port import Delete
from holdfast.backends.spaces import STEPS
from holdfast.engine.drivers import run
from tests.cli import kit

Run = Callable[..., kit.Result]


def lose(url: str, *key: str | int) -> None:
    """Remove a step's row."""
    with holdfast.open(url) as store:
        run(store.engine.ground.backend.apply([Delete(STEPS, ("", *key))]))


def test_a_sound_store(hf: Run) -> None:
    done = hf("verify")
    assert (done.code, "sound" in done.out) == (0, True)
    assert hf("verify", "t1", "--level", "decode").code == 0
    assert json.loads(hf("verify", "--json").out)["sound"] is True
    assert hf("verify", "none").code == 3


def test_damage_is_told_and_mended_from_a_copy(hf: Run, url: str, tmp_path: Path) -> None:
    copy = f"sqlite:///{tmp_path}/copy.db"
    with holdfast.open(url) as store:
        store.copy_to(copy)
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
    assert json.loads(done.out)["mended"][0]["thread"] == "t1"
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
        store.delete("t2")
    assert hf("verify", "t1").code == 0
    assert hf("verify", "t2", "--heads", tmp_path / "more.json").code == 6


def test_a_file_that_does_not_open_is_salvaged(hf: Run, url: str, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    data = bytearray(path.read_bytes())
    data[300] ^= 1  # in the first page, which lists the tables
    path.write_bytes(data)
    assert hf("verify").code == 5
    assert hf("repair", "--yes").code == 0
    assert hf("verify").code == 0
    assert list(tmp_path.glob("agents.db.damaged-*"))
