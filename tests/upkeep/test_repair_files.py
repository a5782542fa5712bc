"""Stores whose own files are damaged: every flipped byte is found, and mended from a copy or salvaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.backends.sqlite import salvage as salvaging
from holdfast.backends.sqlite.salvage import salvage
from holdfast.engine.records import is_sound
from holdfast.errors import Conflict, HoldfastError
from holdfast.store import Store
from holdfast.upkeep.heads import Heads

Truth = dict[str, dict[str, Any]]


def url(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file:///{folder}"


def everything(store: Store) -> Truth:
    return {
        thread.thread: {
            each.id: (store.get(thread.thread, each.id).state, each.hash) for each in store.log(thread.thread)
        }
        for thread in store.threads()
    }


def made(kind: str, folder: Path) -> tuple[Truth, Heads]:
    """A small store, closed; what is in it, and its heads."""
    folder.mkdir()
    with holdfast.open(url(kind, folder)) as store:
        for turn in range(34):
            for thread in ("chat", "notes"):
                store.put(thread, {"messages": [f"{thread} message {n}" for n in range(turn)], "turn": turn})
        store.name("chat", "end")
        store.fork("chat", store.log("chat", limit=3)[-1].id, branch="side")
        store.put("chat", {"x": 1}, branch="side")
        return everything(store), store.heads()


def flipped(folder: Path, broken: Path, chance: Random, at: int | None = None) -> str:
    """A copy of a store with one bit flipped; says where."""
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(folder, broken)
    files = sorted(path for path in broken.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    place = chance.randrange(sum(sizes)) if at is None else at
    for path, size in zip(files, sizes, strict=True):
        if place < size:
            data = bytearray(path.read_bytes())
            data[place] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            return f"{path.relative_to(broken)}, byte {place}"
        place -= size
    raise AssertionError


def check_flip(kind: str, folder: Path, broken: Path, truth: Truth, heads: Heads, what: str, *, copy: bool) -> str:
    """A flipped bit is found, or makes no difference; and it is mended."""
    try:
        store = holdfast.open(url(kind, broken))
    except HoldfastError:
        return "does not open"
    with store:
        report = store.verify(heads=heads)
        if report.sound:
            assert everything(store) == truth, what
            return "no difference"
        done = store.repair(url(kind, folder) if copy else ())
        assert done.sound, (what, done.left)
        now = everything(store)
        if copy:
            assert now == truth, what
        else:
            assert all(truth[thread][id] == each for thread, found in now.items() for id, each in found.items()), what
        assert store.verify(level="decode").damage == [], what
        return "mended"


@pytest.mark.torture
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_flipped_bit_anywhere_is_found_and_mended(tmp_path: Path, kind: str, copy: bool) -> None:
    truth, heads = made(kind, tmp_path / "whole")
    chance = Random(f"{kind}{copy}")
    outcomes = []
    for _ in range(3 if kind == "sqlite" else 8):
        what = flipped(tmp_path / "whole", tmp_path / "broken", chance)
        outcomes.append(check_flip(kind, tmp_path / "whole", tmp_path / "broken", truth, heads, what, copy=copy))
    assert "mended" in outcomes, outcomes  # not every object of a store of files is still needed


@pytest.mark.torture
@pytest.mark.parametrize("shard", range(16))
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_every_byte(tmp_path: Path, kind: str, shard: int) -> None:
    truth, heads = made(kind, tmp_path / "whole")
    size = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    chance = Random(shard)
    for place in range(shard, size, 16):
        what = flipped(tmp_path / "whole", tmp_path / "broken", chance, place)
        check_flip(kind, tmp_path / "whole", tmp_path / "broken", truth, heads, what, copy=bool(place % 2))


def broken_page(path: Path) -> None:
    """Damage a page in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_damaged_file_is_kept(tmp_path: Path) -> None:
    made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    broken_page(path)
    before = path.read_bytes()
    done = salvage(str(path), is_sound)
    assert Path(done.damaged).read_bytes() == before
    assert done.rows > 60
    with holdfast.open(f"sqlite:///{path}") as store:
        assert store.verify().sound or store.repair().sound


def test_a_file_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    code = (
        "import sys, holdfast\n"
        "store = holdfast.open(sys.argv[1])\n"
        "store.threads()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, f"sqlite:///{path}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(Conflict, match="another process"):
            salvage(str(path), is_sound)
    finally:
        other.communicate("")
    assert salvage(str(path), is_sound).holes == []


@pytest.mark.parametrize("step", ["_free_name", "_flush"])
def test_an_interrupted_salvage_leaves_the_old_file_or_the_new(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, _ = made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(salvaging, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            salvage(str(path), is_sound)
    with holdfast.open(f"sqlite:///{path}") as store:
        assert everything(store) == truth
    salvage(str(path), is_sound)
    with holdfast.open(f"sqlite:///{path}") as store:
        assert everything(store) == truth


def test_what_was_moved_aside_and_not_written_anew_is_finished(tmp_path: Path) -> None:
    truth, _ = made("file", tmp_path / "whole")
    with holdfast.open(url("file", tmp_path / "whole")) as store:
        backend: Any = store.engine.ground.backend
        from holdfast.engine.drivers import run

        aside = run(backend.move_aside("", "chat", "now"))
        assert aside is not None
        store.engine.ground.cache.clear()
        assert [each.thread for each in store.threads()] == ["notes"]
        assert store.repair().sound
        assert everything(store) == truth
        assert backend.unfinished() == []
