"""What others do to a session between any two reads or writes of an operation upon it."""

from __future__ import annotations

import itertools
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from holdfast.backends.interface import Backend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import ConflictError, DeniedError, NotFoundError, VetoError
from holdfast.hooks.context import HookContext
from holdfast.state.sessions.records import OnEnd
from holdfast.store.store import Store
from tests.state.kit import Clock, store_on
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import by_day, mostly_nightly

IDLE = 60
OLD, NEW, LATE = ({"agent": name} for name in ("old", "new", "late"))
SCOPES: tuple[dict[str, str], ...] = ({}, OLD, NEW, LATE)

Acknowledged = list[tuple[dict[str, str], str]]


class Run:
    """A session, somebody who does something to it, and another who does something else meanwhile."""

    def __init__(self, backend: Backend, tenant: str, on_end: OnEnd, *, expired: bool, same: bool) -> None:
        self.clock, self.on_end = Clock(), on_end
        self._backend, self._tenant = backend, tenant
        self._interfering = InterferingBackend(backend)
        self._store = store_on(self._interfering, self.clock, tenant)
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

    def go(self, first: str, second: str, moment: Moment) -> None:
        """Do the first, and the second at a moment of it."""

        def other() -> None:
            with suppress(ConflictError, DeniedError, NotFoundError):
                self.do(second, self._other)

        with moment.interfere(self._interfering, other), suppress(ConflictError, DeniedError, NotFoundError):
            self.do(first, self._store)

    def check(self) -> None:
        """All that was acknowledged is there, or all of it is gone that was to go."""
        store = self.fresh()
        try:
            session = store.sessions.get("s")
        except NotFoundError:
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


@pytest.mark.parametrize(
    ("kind", "first", "on_end", "same"),
    mostly_nightly(
        [
            case
            for case in itertools.product(
                ("memory", "sqlite"), ("end", "collect", "resume", "delete"), ("archive", "delete"), (True, False)
            )
            if case[0] == "memory" or not case[3]
        ],
        daily=[("memory", "end", "delete", False), ("memory", "collect", "archive", True)],
    ),
)
def test_whatever_others_do_meanwhile(kind: str, first: str, on_end: OnEnd, same: bool, tmp_path: Path) -> None:
    backend: Backend = (
        MemoryBackend()
        if kind == "memory"
        else run(SQLiteBackend.open(f"sqlite:///{tmp_path}/s.db", synchronous="normal"))
    )
    numbers = count()
    try:
        for second in SECONDS[3:] if first == "resume" else SECONDS:

            def scenario(moment: Moment, second: str = second) -> None:
                each = Run(backend, str(next(numbers)), on_end, expired=first == "collect", same=same)
                if first == "resume":
                    each.do("end", each.fresh())
                each.go(first, second, moment)
                each.check()

            at_every_moment(scenario, ["any"], at_least=3, stride=by_day(1, 3))
    finally:
        run(backend.close())


def test_a_session_that_ends_meanwhile_is_not_restored_if_hooks_object() -> None:
    clock = Clock()
    backend = InterferingBackend()
    store = store_on(backend, clock)
    session = store.sessions.start("s", on_end="archive")

    @store.hooks.before("session.restore", inline=True)
    def objects(_: HookContext) -> None:
        raise VetoError("not again")

    with pytest.raises(VetoError), backend.interfere(session.end, "any", at=2):
        store.sessions.resume("s")
    assert store.sessions.get("s").status == "archived"


@pytest.mark.parametrize("value", [float("nan"), 1, True], ids=str)
def test_metadata_that_compares_oddly(value: object) -> None:
    """NaN is unlike itself, and 1 like True."""
    clock = Clock()
    backend = InterferingBackend()
    store = store_on(backend, clock)
    store.sessions.start("s", on_end="archive", idle=IDLE, metadata={"odd": value})
    store.sessions.start("t", idle=IDLE)
    with backend.interfere(lambda: store.sessions.update("s", {"odd": True}), "any", at=1):
        store.sessions.end("s")
    assert store.sessions.get("s").metadata["odd"] is True
    store.sessions.resume("s")
    store.sessions.update("s", {"odd": value})
    clock.sleep(IDLE + 1)
    assert store.sessions.collect().ended == 2
