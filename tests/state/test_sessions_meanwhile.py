"""What others do to a session between any two reads or writes of an operation upon it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from holdfast.backends.memory import Memory
from holdfast.backends.port import Backend, Batch, Query, Row
from holdfast.backends.sqlite import SQLite
from holdfast.backends.wrap import Wrapper
from holdfast.engine.drivers import run
from holdfast.errors import Conflict, Denied, NotFound, Veto
from holdfast.hooks.calls import Call
from holdfast.state.session_records import OnEnd
from holdfast.store import Store
from tests.state.kit import Clock, store_on

IDLE = 60
OLD, NEW, LATE = ({"agent": name} for name in ("old", "new", "late"))
SCOPES: tuple[dict[str, str], ...] = ({}, OLD, NEW, LATE)

Acknowledged = list[tuple[dict[str, str], str]]


class Pausing(Wrapper):
    """Has somebody else do something before one of the calls that follow."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.left = 0
        self.other: Callable[[], object] | None = None

    def _pause(self) -> None:
        self.left -= 1
        if self.left < 0 and self.other is not None:
            other, self.other = self.other, None
            other()

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self._pause()
        return await super().read(queries)

    async def apply(self, batch: Batch) -> int | None:
        self._pause()
        return await super().apply(batch)


class Run:
    """A session, somebody who does something to it, and another who does something else meanwhile."""

    def __init__(self, backend: Backend, tenant: str, on_end: OnEnd, *, expired: bool, same: bool) -> None:
        self.clock, self.on_end = Clock(), on_end
        self._backend, self._tenant = backend, tenant
        self._pausing = Pausing(backend)
        self._store = store_on(self._pausing, self.clock, tenant)
        self._other = self._store if same else self.fresh()
        self.acknowledged: Acknowledged = []
        self.updated = False
        self._start(self._store)
        self._set(self._store, {}, OLD)
        if expired:
            self.clock.sleep(IDLE + 1)

    def fresh(self) -> Store:
        """The store as somebody finds it who remembers nothing."""
        return store_on(self._backend, self.clock, self._tenant)

    def _start(self, store: Store) -> None:
        store.sessions.start("s", idle=IDLE, on_end=self.on_end)

    def _set(self, store: Store, *scopes: dict[str, str]) -> None:
        key = f"key {len(self.acknowledged)}"
        with store.transaction() as transaction:
            for scope in scopes:
                transaction.state(session="s", **scope)[key] = 1
        self.acknowledged += [(scope, key) for scope in scopes]

    def do(self, what: str, store: Store) -> None:
        """One operation or several."""
        match what:
            case "set":
                self._set(store, {})
            case "set new":
                self._set(store, NEW)
            case "set both":
                self._set(store, {}, LATE)
            case "update":
                store.sessions.update("s", {"seen": True})
                self.updated = True
            case "come back":
                store.sessions.end("s")
                store.sessions.resume("s")
                self._set(store, NEW)
            case "start anew":
                store.sessions.delete("s")
                self.acknowledged, self.updated = [], False
                self._start(store)
                self._set(store, NEW)
            case _:
                getattr(store.sessions, what)(*(() if what == "collect" else ("s",)))

    def go(self, first: str, second: str, pause: int) -> bool:
        """The second before so many calls of the first. False if the first has not so many."""

        def other() -> None:
            with suppress(Conflict, Denied, NotFound):
                self.do(second, self._other)

        self._pausing.left, self._pausing.other = pause, other
        with suppress(Conflict, Denied, NotFound):
            self.do(first, self._store)
        done, self._pausing.other = self._pausing.other is None, None
        return done

    def check(self) -> None:
        """All that was acknowledged is there, or all of it is gone that was to go."""
        store = self.fresh()
        try:
            session = store.sessions.get("s")
        except NotFound:
            session = None
        live = [scope for scope in SCOPES if dict(store.state(session="s", **scope))]
        if session is None or (session.ended and self.on_end == "delete"):
            assert live == []
            return
        if session.ended:
            assert live == []
        assert not self.updated or session.metadata == {"seen": True}
        store.sessions.resume("s")
        for scope, key in self.acknowledged:
            assert key in store.state(session="s", **scope), (scope, key)


SECONDS = ("set", "set new", "set both", "update", "come back", "start anew")


@pytest.mark.parametrize("on_end", ["archive", "delete"])
@pytest.mark.parametrize("first", ["end", "collect", "resume", "delete"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_whatever_others_do_meanwhile(kind: str, first: str, on_end: OnEnd, tmp_path: Path) -> None:
    backend: Backend = (
        Memory() if kind == "memory" else run(SQLite.open(f"sqlite:///{tmp_path}/s.db", synchronous="normal"))
    )
    numbers = count()
    try:
        for second in SECONDS[3:] if first == "resume" else SECONDS:
            for same in (True, False) if kind == "memory" else (False,):
                for pause in count():
                    each = Run(backend, str(next(numbers)), on_end, expired=first == "collect", same=same)
                    if first == "resume":
                        each.do("end", each.fresh())
                    if not each.go(first, second, pause):
                        break
                    each.check()
                assert pause > 0
    finally:
        run(backend.close())


def test_a_session_that_ends_meanwhile_is_not_restored_if_hooks_object() -> None:
    clock = Clock()
    pausing = Pausing(Memory())
    store = store_on(pausing, clock)
    session = store.sessions.start("s", on_end="archive")

    @store.hooks.before("session.restore", inline=True)
    def objects(_: Call) -> None:
        raise Veto("not again")

    pausing.left, pausing.other = 2, session.end
    with pytest.raises(Veto):
        store.sessions.resume("s")
    assert store.sessions.get("s").status == "archived"


@pytest.mark.parametrize("value", [float("nan"), 1, True], ids=str)
def test_metadata_that_compares_oddly(value: object) -> None:
    """NaN is unlike itself, and 1 like True."""
    clock = Clock()
    pausing = Pausing(Memory())
    store = store_on(pausing, clock)
    store.sessions.start("s", on_end="archive", idle=IDLE, metadata={"odd": value})
    store.sessions.start("t", idle=IDLE)
    pausing.left, pausing.other = 1, lambda: store.sessions.update("s", {"odd": True})
    store.sessions.end("s")
    assert store.sessions.get("s").metadata["odd"] is True
    store.sessions.resume("s")
    store.sessions.update("s", {"odd": value})
    clock.sleep(IDLE + 1)
    assert store.sessions.collect().ended == 2
