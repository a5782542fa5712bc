"""The security suite: hostile keys, values, rows, filters, archives and identities, against a store of your own.

::

    from holdfast.testing import SecuritySuite

    class TestSecurity(SecuritySuite):
        @pytest.fixture
        def store(self, tmp_path):
            with holdfast.open(tmp_path / "agents.db") as store:
                yield store
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from holdfast.testing.security.archives import check_backups, check_exports, check_snapshots
from holdfast.testing.security.filters import HOSTILE_FILTERS, HOSTILE_QUERIES, check_filters
from holdfast.testing.security.isolation import check_isolation
from holdfast.testing.security.names import HOSTILE_KEYS
from holdfast.testing.security.payloads import Canary
from holdfast.testing.security.stored_rows import check_forged_values, check_stored_rows, check_values


class SecuritySuite:
    """Tests that every store passes. A subclass, whose name starts with `Test`, overrides the fixture `store`: an empty
    store for each test, opened as the program opens its own, with its policies, hooks, schemas and encryption.

    The hostile keys, filters and queries are plain data, for a program's own endpoints. `check_isolation` is the test
    of the same name as a function.
    """

    hostile_keys = HOSTILE_KEYS
    hostile_filters = HOSTILE_FILTERS
    hostile_queries = HOSTILE_QUERIES
    check_isolation = staticmethod(check_isolation)

    @pytest.fixture
    def store(self) -> Store:
        """The store to attack."""
        raise NotImplementedError

    @pytest.fixture
    def canary(self, tmp_path: Path) -> Canary:
        """The directory that the payloads would create."""
        return Canary(tmp_path)

    def test_hostile_keys(self, store: Store) -> None:
        """A key or a name is refused, or names only itself."""
        check_keys(store)

    def test_hostile_values(self, store: Store, canary: Canary) -> None:
        """Values that are code elsewhere come back as they are."""
        assert check_values(store, canary)

    def test_forged_values(self, store: Store, canary: Canary) -> None:
        """Stored bytes that name functions run nothing."""
        assert check_forged_values(store, canary)

    def test_forged_rows(self, store: Store, canary: Canary) -> None:
        """Rows that somebody replaced in the database are found, or harmless."""
        assert check_stored_rows(store, canary)

    def test_hostile_filters(self, store: Store) -> None:
        """Filters and queries are no way into the database."""
        assert check_filters(store)

    def test_hostile_exports(self, store: Store, canary: Canary) -> None:
        """Altered exports are refused as a whole."""
        assert check_exports(store, canary)

    def test_hostile_snapshots(self, tmp_path: Path, canary: Canary) -> None:
        """Altered snapshots are refused."""
        assert check_snapshots(tmp_path, canary)

    def test_hostile_backups(self, store: Store, tmp_path: Path, canary: Canary) -> None:
        """Altered backups are found, and not restored as something else."""
        assert check_backups(store, tmp_path, canary)

    def test_isolation(self, store: Store, tmp_path: Path) -> None:
        """An agent without rights gets nothing of another's, through any public function."""
        assert check_isolation(store, tmp_path)


def check_keys(store: Store) -> int:
    """Check that each hostile key, and name of a thread, a tag or a branch, is refused or names only itself."""
    state, count = store.state(agent="kit"), 0
    state["plain"] = "plain"
    saved: dict[str, str] = {}
    for name, key in HOSTILE_KEYS.items():
        count += 1
        try:
            store.thread(key).put({"name": name})
            saved[key] = name
        except (HoldfastError, LookupError):
            assert all(each.thread != key for each in store.threads().all()), f"{name} was refused, and is there"
        for use in (state.__setitem__, state.append):
            try:
                use(f"k{key}" if use == state.append else key, name)
            except (HoldfastError, LookupError):
                continue
    for key, name in saved.items():
        assert store.thread(key).get().state == {"name": name}, f"the thread {name} is another's"
    assert sorted(saved) == sorted(each.thread for each in store.threads().all())
    assert state["plain"] == "plain"
    return count
