"""Announcements: who listens to a topic of a store hears of them, in any process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.wrappers import open_parts
from tests import servers
from tests.support.nightly import mostly_nightly

_STARTS: dict[str, Callable[[], str]] = {
    "postgres": servers.postgres,
    "mongodb": servers.mongodb,
    "redis": servers.redis,
}


class Heard:
    """Counts what is heard."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    @property
    def count(self) -> int:
        """How often it was called."""
        with self._changed:
            return self._count

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        """Wait until it was called so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, seconds), self._count


@contextmanager
def opened(url: str) -> Iterator[Backend]:
    (backend,) = run(open_parts(url))
    try:
        yield backend
    finally:
        run(backend.close())


@pytest.mark.parametrize("kind", mostly_nightly(_STARTS, daily=["postgres"]))
def test_an_announcement_is_heard_elsewhere_by_those_who_listen_to_its_topic(kind: str) -> None:
    url, heard, other, left = _STARTS[kind](), Heard(), Heard(), Heard()
    with opened(url) as store, opened(url) as from_elsewhere:
        for topic, each in (("one", heard), ("two", other)):
            assert run(store.listen(topic, each)) is not None
            each.wait_for(1)  # it listens now
        end = run(from_elsewhere.listen("one", left))
        assert end is not None
        left.wait_for(1)
        run(from_elsewhere.announce("one"))
        heard.wait_for(2)
        left.wait_for(2)
        end()
        run(from_elsewhere.announce("two"))
        other.wait_for(2)
        run(store.announce("one"))
        heard.wait_for(3)
        assert (left.count, other.count) == (2, 2)


@pytest.mark.time_limit(120)
def test_who_listens_listens_again_when_the_server_is_back() -> None:
    heard = Heard()
    with servers.postgres_server() as server, opened(server.url) as store:
        run(store.listen("one", heard))
        heard.wait_for(1)
        server.kill()
        run(store.announce("one"))  # a hint that is lost, and no error
        server.restart()
        heard.wait_for(2)  # it may have missed some
        run(store.announce("one"))
        heard.wait_for(3)


def test_behind_a_pooler_nothing_is_heard_and_what_is_announced_is() -> None:
    heard, silent = Heard(), Heard()
    with servers.pgbouncer_server() as pooler:
        url = pooler.behind.fresh()
        with opened(url) as direct, opened(pooler.through(url)) as pooled:
            run(direct.listen("one", heard))
            heard.wait_for(1)
            run(pooled.listen("one", silent))
            run(pooled.announce("one"))
            heard.wait_for(2)
            assert silent.count == 0


def test_a_store_without_announcements_says_so_and_a_composition_passes_them_on(tmp_path: Path) -> None:
    with opened(str(tmp_path / "a.db")) as store:
        assert run(store.listen("one", Heard())) is None
        run(store.announce("one"))
    heard = Heard()
    with opened(f"retry:?store={servers.postgres()}") as store:
        assert run(store.listen("one", heard)) is not None
        heard.wait_for(1)
        run(store.announce("one"))
        heard.wait_for(2)
