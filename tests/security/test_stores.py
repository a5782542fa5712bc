"""Rights and the audit are the same on every kind of store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import DeniedError
from tests.servers.places import place
from tests.state.kit import Place
from tests.support.nightly import mostly_nightly

STORES = ["sqlite", "file", "postgres", "mongodb", "redis", "s3"]


@pytest.fixture(params=mostly_nightly(STORES, daily=["sqlite", "file", "postgres"]))
def stores(request: pytest.FixtureRequest) -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        made = Place(place(request.param, Path(folder)))
        yield made
        made.close()


def test_rights_are_given_and_taken_between_two_that_have_it_open(stores: Place, tmp_path: Path) -> None:
    one, other = stores.open(), stores.open()
    one.state(agent="a").batch({"plan": 1, "secret": 2})
    state = other.as_identity(agent="b").state(agent="a")
    with pytest.raises(DeniedError):
        state.get("plan")
    given = one.access.grant("agent:b", ["read", "write"], "agent:a", keys="plan")
    state["plan"] = 2
    assert state["plan"] == 2
    with pytest.raises(DeniedError):
        state["secret"] = 3

    def late(value: int) -> int:
        one.access.revoke(given)
        return value + 1

    with pytest.raises(DeniedError, match="revoked"):  # by the time that it is to be written
        state.change("plan", late)
    with pytest.raises(DeniedError, match="revoked"):
        state.get("plan")
    assert one.state(agent="a")["plan"] == 2
    other.audit.query()  # writes what was read
    kinds = [row.kind for row in one.audit.query(scope="agent:a", actor="agent:b")]
    assert sorted(kind for kind in kinds if kind != "read") == ["change", "denied", "denied", "denied", "denied"]
    assert "read" in kinds  # one row of both reads, or one each where some seconds lay between them
    assert one.audit.verify().ok
    assert other.audit.export(tmp_path / "audit.jsonl").rows == len(one.audit.query())
