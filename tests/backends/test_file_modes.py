"""Files that hold states: only their owner reads them, whatever the umask, unless `file_mode` allows more."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

import holdfast
from holdfast import snapshots
from holdfast.errors import ConfigError


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the process takes from the permissions of its files."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of all files and folders below a folder."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.stat().st_mode) for each in folder.rglob("*")}


URLS = ("sqlite:///{}/agents.db", "file://{}/agents")


@pytest.mark.parametrize("url", URLS)
def test_only_the_owner_reads_a_store(tmp_path: Path, url: str) -> None:
    with holdfast.open(url.format(tmp_path)) as store:
        for n in range(3):
            store.thread("chat").put({"n": n})
        found = modes(tmp_path)
    assert len(found) >= 2  # SQLite's log, too
    assert set(found.values()) <= {0o600, 0o700}, found


@pytest.mark.parametrize("url", URLS)
def test_a_mode_lets_a_group_use_a_store(tmp_path: Path, url: str) -> None:
    location = url.format(tmp_path)
    for options, given in (({"file_mode": 0o660}, location), ({}, f"{location}?file_mode=660")):
        with holdfast.open(given, **options) as store:  # type: ignore[arg-type]
            store.thread("chat").put({"n": 1})
            found = modes(tmp_path)
        assert set(found.values()) <= {0o660, 0o770}, found


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("mode", [0o66, 0o777, 0o060, "rw", "", -1, "0o660", 660])
def test_a_mode_is_that_of_a_file_of_this_user(tmp_path: Path, url: str, mode: object) -> None:
    with pytest.raises(ConfigError, match="file_mode"):
        holdfast.open(url.format(tmp_path), file_mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_the_permissions_of_a_file_that_is_there_stay(tmp_path: Path) -> None:
    file = tmp_path / "agents.db"
    file.touch()
    file.chmod(0o640)
    with holdfast.open(file) as store:
        store.thread("chat").put({"n": 1})
        assert set(modes(tmp_path).values()) == {0o640}


def test_only_the_owner_reads_exports_backups_and_snapshots(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"messages": ["a secret"]})
        store.maintenance.export(tmp_path / "all.hfx")
        store.backups(f"file://{tmp_path}/backups").create()
        snapshots.snapshot([HumanMessage("a secret")], tmp_path / "messages.hfsnap")
    found = modes(tmp_path)
    assert {"all.hfx", "messages.hfsnap", "backups"} <= found.keys()
    assert set(found.values()) <= {0o600, 0o700}, found
