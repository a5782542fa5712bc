"""Stores that are only looked at: `read_only=True`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.interface import Expect
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES
from holdfast.errors import ConfigError, DeniedError, NotFoundError
from holdfast.maintenance.doctor.result import CheckLevel
from holdfast.store.doctor import doctor


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"{request.param}:///{tmp_path}/store"
    with holdfast.open(url) as store:
        for number in range(40):
            store.thread("t").put({"n": number})
    return url


def names(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


def test_it_reads_and_changes_nothing(url: str, tmp_path: Path) -> None:
    before = names(tmp_path)
    with holdfast.open(url, read_only=True) as store:
        assert store.thread("t").get().state == {"n": 39}
        assert len(store.thread("t").log()) == 40
        assert store.status().bytes > 0
        with pytest.raises(DeniedError, match="for reading only"):
            store.thread("t").put({"n": 40})
        with pytest.raises(NotFoundError):
            store.thread("nope").get()
        run(store._engine.context.backend.apply([]))
    assert names(tmp_path) == before


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_it_makes_none(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        holdfast.open(f"{scheme}:///{tmp_path}/nope", read_only=True)
    assert caught.value.code == "no-store"
    assert list(tmp_path.iterdir()) == []


def no_entry(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have all that is in a folder be what this user may not know of."""
    look = os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        if isinstance(path, str | Path) and folder in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **more)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, mode: False)


def test_where_this_user_may_not_look(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_entry(monkeypatch, tmp_path)
    with pytest.raises(DeniedError, match="may not access"):
        holdfast.open(url, read_only=True)
    found = {check.code: check for check in doctor(url)}
    assert found["store-permissions"].level is CheckLevel.PROBLEM
    assert found["store-opens"].level is CheckLevel.PROBLEM


def test_it_is_on_or_off(url: str) -> None:
    with pytest.raises(ConfigError, match="read_only"):
        holdfast.open(url, read_only="perhaps")
    with holdfast.open(f"{url}?read_only=true") as store, pytest.raises(DeniedError):
        store.thread("t").put({})


def test_the_doctor_looks_at_a_file_in_a_folder_that_nobody_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite could not even read it if it were opened as usual: it would make a log beside."""
    path = tmp_path / "store.db"
    holdfast.open(f"sqlite:///{path}").close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    opened: list[str] = []
    connect = apsw.Connection

    def noted(name: str, **more: Any) -> apsw.Connection:
        opened.append(name)
        return connect(name, **more)

    monkeypatch.setattr(apsw, "Connection", noted)
    found = {check.code: check for check in doctor(f"sqlite:///{path}")}
    assert found["store-permissions"].level is CheckLevel.PROBLEM
    assert found["sqlite-vacuum"].level is CheckLevel.OK
    assert opened
    assert all("immutable=1" in name for name in opened if str(tmp_path) in name)


def test_a_file_that_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/a file?.db".replace("?", "%3F").replace(" ", "%20")
    with holdfast.open(url) as store:
        store.thread("t").put({"n": 1})
    monkeypatch.setattr("os.access", lambda *_: False)
    with holdfast.open(url, read_only=True) as store:
        assert store.thread("t").get().state == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a file?.db"]


def test_a_file_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/store"
    monkeypatch.setattr("os.access", lambda *_: False)
    with holdfast.open(url) as writer:
        writer.thread("t").put({"n": 1})
        with holdfast.open(url, read_only=True) as store:
            writer.thread("t").put({"n": 2})
            assert store.thread("t").get().state == {"n": 2}


def test_conditions_are_answered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store"
    with holdfast.open(url) as store:
        store.thread("t").put({})
    with holdfast.open(url, read_only=True) as store:
        backend = store._engine.context.backend
        there, not_there = Expect(LINES, ("", "t"), None), Expect(LINES, ("", "u"), None)
        assert run(backend.apply([not_there, there])) == 1
        assert run(backend.apply([not_there])) is None
        run(backend.tidy())
        assert run(backend.check()) == []
