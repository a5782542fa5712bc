"""The security kit on the stores that Holdfast has, clear and encrypted; and that it finds what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.store.store import Store
from holdfast.testing import SecuritySuite
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly


class _Suite(SecuritySuite):
    """By day without what takes long: the probes run in `test_probe`, altered backups in `test_backup`, and altered
    exports in `test_portable_hostile`."""

    test_isolation = pytest.mark.nightly(SecuritySuite.test_isolation)
    test_hostile_exports = pytest.mark.nightly(SecuritySuite.test_hostile_exports)
    test_hostile_backups = pytest.mark.nightly(SecuritySuite.test_hostile_backups)


class TestStores(_Suite):
    @pytest.fixture(params=mostly_nightly(KINDS, daily=["memory"]))
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
        with holdfast.open(place(request.param, tmp_path), encryption=False) as store:
            yield store


@pytest.mark.nightly
class TestEncryptedStores(_Suite):
    @pytest.fixture(params=("sqlite", "postgres", "mongodb", "redis", "s3", "file"))
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
        keys = Encryption(LocalKeys(b"k" * 32))
        with holdfast.open(place(request.param, tmp_path), encryption=keys) as store:
            yield store
