"""Sessions and artifacts on every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import DeniedError
from holdfast.state.artifacts.content import CHUNK
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite", "file", "postgres")))
def test_sessions_and_artifacts(kind: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * (CHUNK // 128)
    with holdfast.open(place(kind, tmp_path), tenant="acme") as store:
        for on_end in ("delete", "archive", "keep"):
            session = store.sessions.start(on_end, user="u", idle=1e-6, on_end=on_end)
            session.state.batch({"k": 1, "large": "x" * 70_000})
            store.state(user="u", session=on_end, agent="x")["b"] = 2
        store.sessions.start("alive", user="u", idle=3600).state["k"] = 1
        collected = store.sessions.collect()
        assert (collected.ended, collected.held) == (3, 0)
        assert [session.status for session in store.sessions.list(user="u")] == ["active", "archived", "ended", "ended"]
        for on_end in ("delete", "archive", "keep"):
            inside = store.state(user="u", session=on_end, agent="x")
            assert dict(inside) == ({"b": 2} if on_end == "keep" else {})
            for scope in (inside, store.state(user="u", session=on_end)):
                with pytest.raises(DeniedError):
                    scope["k"] = 2
        again = store.sessions.resume("archive")
        assert dict(again.state) == {"k": 1, "large": "x" * 70_000}
        for each in store.sessions.list():
            store.sessions.delete(each.id)
        small = store.artifacts.register(b"1", id="é/1", type="t")
        large = store.artifacts.register(content, id="large")
        assert store.artifacts.register(content, id="same").same_as == "large"
        with store.artifacts.using("é/1", "large"):
            store.state(agent="a").batch({"k/ü": 1, "l": 2})
        assert [each.key for each in store.artifacts.changes("é/1")] == ["k/ü", "l"]
        assert [each.artifact for each in store.artifacts.of("agent:a", "k/ü", version=1)] == ["large", "é/1"]
        store.artifacts.delete("large")
        assert store.artifacts.read("same") == content
        assert store.artifacts.list() == [store.artifacts.get("same"), small]
        assert large.sha256 == store.artifacts.verify("same").sha256
