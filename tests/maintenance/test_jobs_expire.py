"""The job `expire` takes expired keys away and ends sessions whose time is up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.backends.runtime.drivers import run
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError
from holdfast.maintenance.jobs.api import Jobs
from holdfast.state.reader import ScopeView, read_scope
from holdfast.store.store import Store
from tests.maintenance.kit import DAY, HOUR, SECOND, Clock, timed


@pytest.fixture
def store(clock: Clock) -> Store:
    return timed(clock)


def done(store: Store, **settings: Any) -> tuple[str, str]:
    Jobs(store).add("job", "expire", settings=settings, replace=True)
    ended = Jobs(store).run("job")
    return ended.outcome, ended.summary


def still_there(store: Store, scope: str) -> dict[str, int]:
    return run(read_scope(store._handle, Scope.parse(scope), ScopeView.expired))


def test_expired_keys_are_taken_away_by_a_step_of_their_scope(store: Store, clock: Clock) -> None:
    for scope in ("agent:a", "user:u/session:s", "global"):
        state = store.state(scope)
        state["stays"] = 1
        state.set("later", 1, ttl=7200)
        state.set("soon", {"n": 1}, ttl=60)
    store.thread("thread").put({"n": 1})
    clock.now += HOUR
    assert done(store)[1].startswith("3 expired keys of 3 scopes removed, 0 sessions ended, 0 forgotten")
    for scope in ("agent:a", "user:u/session:s", "global"):
        assert still_there(store, scope) == {}
        assert dict(store.state(scope)) == {"later": 1, "stays": 1}
        last = store.state(scope).history(limit=1)[0]
        assert (last.key, last.action, last.cause) == ("soon", "delete", "expired")
    assert done(store)[1].startswith("0 expired keys of 0 scopes")
    assert len(store.state("agent:a").history()) == 4
    assert store.audit.verify().ok


def test_a_key_that_was_written_again_stays(store: Store, clock: Clock) -> None:
    state = store.state(agent="a")
    state.set("k", 1, ttl=60)
    clock.now += HOUR
    state["k"] = 2
    assert done(store)[1].startswith("0 expired keys")
    assert state["k"] == 2


def test_sessions_are_collected_however_many(store: Store, clock: Clock) -> None:
    for number in range(120):
        store.sessions.start(f"s{number}", idle=60, on_end="archive", retention=DAY // SECOND)
    store.sessions.start("held", ttl=60).state["k"] = 1
    run(store._engine.holds.hold(Line("", f"{MARK}session:held"), "a dispute"))
    clock.now += HOUR
    store.sessions.touch("s7")
    outcome, said = done(store)
    assert (outcome, "119 sessions ended, 0 forgotten" in said) == ("ok", True)
    assert said.endswith("; 1 are held, or a hook objects to their end")
    assert [session.id for session in store.sessions.list(status="active")] == ["s7"]
    assert [session.id for session in store.sessions.list(status="expired")] == ["held"]
    clock.now += 2 * DAY
    assert "1 sessions ended, 119 forgotten" in done(store)[1]


def test_content_that_was_to_be_an_artifacts_is_removed(store: Store, clock: Clock) -> None:
    class Broken:
        left = 3

        def read(self, size: int) -> bytes:
            self.left -= 1
            if not self.left:
                raise OSError("the cable was pulled")
            return random.Random(1).randbytes(size)

    with pytest.raises(OSError, match="cable"):
        store.artifacts.register(Broken())
    assert "content" not in done(store)[1]
    clock.now += 2 * HOUR
    assert done(store, grace="1h")[1].endswith("; content of 1 unfinished artifacts removed")


def test_wrong_settings(store: Store) -> None:
    for wrong in ({"grace": 1}, {"grace": "soon"}, {"limit": 5}):
        with pytest.raises(InvalidError):
            Jobs(store).add("job", "expire", settings=wrong)
