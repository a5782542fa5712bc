"""Erasures and stores with a copy: neither of the two, nor the journal, has any byte of the person when it has caught
up, or was rebuilt from a copy that is older than the erasure."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConfigError
from tests.security.erasure.people import few_states, found_in, opened_rows, plant_few

KINDS = ["write-behind", "mirror"]


def _has_bytes(folder: Path, name: str) -> bool:
    return any(b"planted-u-1" in path.read_bytes() for path in folder.glob(f"{name}*"))


def _replace(folder: Path, old: str, new: str) -> None:
    for path in folder.glob(f"{new}*"):
        path.unlink()
    shutil.copy(folder / old, folder / new)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_that_is_rebuilt_from_an_old_copy_gets_the_ledger(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:?local={tmp_path}/local.db&remote={tmp_path}/remote.db"
    with holdfast.open(url) as store:
        plant_few(store)
    shutil.copy(tmp_path / "remote.db", tmp_path / "before.db")
    with holdfast.open(url) as store, holdfast.open(tmp_path / "newer.db") as newer:
        store.erasure.erase("u-1")
        store.maintenance.copy_to(newer)
        expected = few_states(newer, "u-2")
    assert not _has_bytes(tmp_path, "local.db")
    assert not _has_bytes(tmp_path, "remote.db")
    for path in tmp_path.glob("local.db*"):
        path.unlink()
    _replace(tmp_path, "before.db", "remote.db")
    with holdfast.open(f"{url}&restore=true") as store, holdfast.open(tmp_path / "newer.db") as newer:
        assert found_in(opened_rows(store))["u-1"]
        assert _has_bytes(tmp_path, "local.db")  # the control
        assert _has_bytes(tmp_path, "remote.db")
        newer.maintenance.copy_to(store)
        assert found_in(opened_rows(store))["u-1"] == set()
        assert few_states(store, "u-2") == expected
        assert store.erasure.certificates() == newer.erasure.certificates()
        assert store.maintenance.verify(level="decode").findings == []
    assert not _has_bytes(tmp_path, "local.db")
    assert not _has_bytes(tmp_path, "remote.db")


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_was_away_is_purged_when_it_has_caught_up(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="holdfast.copies")
    url = f"{kind}:?local={tmp_path}/local.db&remote={tmp_path}/remote.db&patience=0.2"
    with holdfast.open(url) as store:
        plant_few(store)
    (tmp_path / "remote.db").rename(tmp_path / "away.db")
    (tmp_path / "remote.db").write_bytes(bytes(range(256)) * 20)
    with holdfast.open(f"{url}&drain=0.1") as store:
        report = store.erasure.erase("u-1")
        assert report.certificate is not None
        assert any("until it has caught up" in each for each in report.certificate.unreachable)
        before = few_states(store, "u-2")
    assert _has_bytes(tmp_path, "away.db")  # the control
    _replace(tmp_path, "away.db", "remote.db")
    with holdfast.open(url):
        pass  # closing waits for the copy
    assert not _has_bytes(tmp_path, "local.db")
    assert not _has_bytes(tmp_path, "remote.db")
    for name in ("local.db", "remote.db"):
        with holdfast.open(tmp_path / name) as store:
            assert found_in(opened_rows(store))["u-1"] == set()
            assert few_states(store, "u-2") == before


def test_an_old_copy_that_is_put_back_is_refused_and_nothing_comes_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="holdfast.copies")
    url = f"write-behind:?local={tmp_path}/local.db&remote={tmp_path}/remote.db&patience=0.2&drain=0.1"
    with holdfast.open(url) as store:
        plant_few(store)
    shutil.copy(tmp_path / "remote.db", tmp_path / "before.db")
    with holdfast.open(url) as store:
        store.erasure.erase("u-1")
    _replace(tmp_path, "before.db", "remote.db")
    try:
        with holdfast.open(url) as store:
            (problem, *_) = store.maintenance.repair().left
            told = problem.message
            assert found_in(opened_rows(store))["u-1"] == set()
    except ConfigError as refused:  # the copy was reached before the patience was over
        told = refused.what
    assert "reset to an older state" in told
    assert not _has_bytes(tmp_path, "local.db")
