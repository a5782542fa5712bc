"""What all stores behind a network share, on a store in memory that is reached through a loop of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.backends.async_backend import Closable, GroupStamp, ServerBackend, ServerInterrupted
from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Batch, Capabilities, Changes, Create, Get, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import STEPS
from holdfast.errors import ConfigError, OutcomeUnknownError, TooLargeError, TransientError, UnavailableError
from holdfast.testing import BackendConformance, Stores
from tests.servers.pace import hurried
from tests.support.nightly import by_day

SERVERS: dict[str, Server] = {}


class Server:
    """Rows, and what the server remembers of its clients."""

    def __init__(self) -> None:
        self.closed = 0
        self.rows = MemoryBackend()
        self.clients: dict[tuple[str, int], tuple[int, list[Outcome]]] = {}
        self.groups: list[int] = []
        self.before: Callable[[], None] = lambda: None
        """Called when a group arrives."""
        self.after: Callable[[], None] = lambda: None
        """Called before it is answered."""
        self.pause = 0.0
        self.open = True
        """Whether groups that arrive are looked at yet."""

    def close(self) -> None:
        """Count: it stands for the connections of a store that was dropped."""
        self.closed += 1


class Near(ServerBackend):
    """`near://name`: as far away as another thread."""

    schemes = ("near",)
    limits = Capabilities(durable=False, shared=False, max_body=1 << 30, max_batch=1 << 31)
    kept: object = None

    @classmethod
    async def open(cls, url: str, **options: Any) -> Near:
        if not url.startswith("near://"):
            raise ConfigError("this is not near", where=url)
        timeout = options.pop("timeout", 30.0)
        if options:
            raise ConfigError(f"no option {min(options)}", where=url)
        store = cls(url, timeout)
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        return self.limits

    async def _connect(self) -> Closable:
        self.server = SERVERS.setdefault(self.url, Server())
        return self.server

    async def _disconnect(self) -> None:
        self.connected = False

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        await asyncio.sleep(0)
        return await self.server.rows.read(queries)

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        await asyncio.sleep(self.server.pause)
        while not self.server.open:
            await asyncio.sleep(0.001)
        self.server.before()
        number, outcomes = self.server.clients.get(stamp[:2], (0, []))
        if number != stamp.number:
            assert number < stamp.number
            outcomes = [await self.server.rows.apply(batch) for batch in batches]
            self.server.clients[stamp[:2]] = stamp.number, outcomes
            self.server.groups.append(len(batches))
        self.server.after()
        return outcomes

    async def changes(self, since: str | None = None) -> Changes:
        return await self._run_in_loop(lambda: self.server.rows.changes(since))

    async def size(self) -> int:
        return await self._run_in_loop(lambda: self.server.rows.size())

    async def check(self) -> list[str]:
        return await self._run_in_loop(lambda: self.server.rows.check())

    async def tidy(self) -> None:
        await self._run_in_loop(lambda: self.server.rows.tidy())


class TestNear(BackendConformance):
    lacks = frozenset({"durable", "shared", "words", "times"})
    watched = by_day(BackendConformance.watched, 20)

    @pytest.fixture
    def stores(self, request: pytest.FixtureRequest) -> Iterator[Stores]:
        url = f"near://{request.node.nodeid}"
        SERVERS.pop(url, None)
        yield Stores(url, kind=Near)
        SERVERS.pop(url, None)


@pytest.fixture
def near(request: pytest.FixtureRequest) -> Iterator[Near]:
    store = run(Near.open(f"near://{request.node.nodeid}", timeout=60))
    yield store
    run(store.close())


def network_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-network"}


def a_step(seq: int) -> Create:
    return Create(STEPS, row_of(STEPS, "t", "l", 0, seq))


def failing(times: int, sent: bool) -> Callable[[], None]:
    """Is interrupted so many times, and then goes well."""
    left = iter(range(times))

    def fail() -> None:
        if next(left, None) is not None:
            raise ServerInterrupted("the line was cut", sent=sent)

    return fail


def test_a_group_whose_answer_was_lost_is_made_once(near: Near) -> None:
    near.server.after = failing(3, sent=True)
    assert run(near.apply([a_step(0)])) is None
    assert near.server.groups == [1]


def test_a_group_that_did_not_arrive_is_sent_again(near: Near) -> None:
    near.server.before = failing(3, sent=False)
    assert run(near.apply([a_step(0)])) is None
    assert near.server.groups == [1]


def test_what_was_surely_not_made_is_transient(near: Near) -> None:
    near.server.before = failing(1000, sent=False)
    with (
        hurried(near, 0.5),
        pytest.raises(TransientError, match=r"could not be used for 0\.5 s: the line was cut") as caught,
    ):
        run(near.apply([a_step(0)]))
    assert not isinstance(caught.value, OutcomeUnknownError)
    near.server.before = failing(0, sent=False)
    assert run(near.apply([a_step(0)])) is None


def test_a_try_that_comes_too_late_is_not_begun(near: Near, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine sleeps for longer than it should: what was broken off in the middle would be uncertain."""
    monkeypatch.setattr("holdfast.backends.async_backend.random.uniform", lambda least, most: 50.0)
    near.server.before = failing(1000, sent=False)
    with hurried(near, 0.5), pytest.raises(TransientError, match=r"could not be used.*the line was cut") as caught:
        run(near.apply([a_step(0)]))
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_what_may_have_been_made_is_uncertain(near: Near) -> None:
    near.server.after = failing(1000, sent=True)
    with hurried(near, 0.5), pytest.raises(OutcomeUnknownError, match="did not confirm a change in"):
        run(near.apply([a_step(0)]))
    assert run(near.read([Get(STEPS, [("t", "l", 0, 0)])])) != [[]]


def test_an_error_that_follows_a_lost_answer_does_not_say_that_nothing_was_made(near: Near) -> None:
    def fail() -> None:
        near.server.before = refuse
        raise ServerInterrupted("the line was cut", sent=True)

    def refuse() -> None:
        raise ConfigError("the server does not let us in")

    near.server.after = fail
    with pytest.raises(OutcomeUnknownError, match="does not let us in"):
        run(near.apply([a_step(0)]))
    with pytest.raises(ConfigError, match="does not let us in"):
        run(near.apply([a_step(1)]))


def test_a_server_that_says_nothing_is_given_up(near: Near) -> None:
    near.server.pause = 60
    began = time.monotonic()
    with hurried(near, 0.5), pytest.raises(OutcomeUnknownError, match="no answer was received"):
        run(near.apply([a_step(0)]))
    assert time.monotonic() - began < 60
    near.server.pause = 0
    assert run(near.apply([a_step(1)])) is None


def test_a_batch_that_waits_for_others_is_answered_by_its_deadline(near: Near) -> None:
    """Before, it waited for the groups before it, and then had as much time again."""
    near.server.open = False
    groups = near._groups
    assert groups is not None
    with ThreadPoolExecutor(near.slots + 2) as pool:
        sent = []
        for slot in range(near.slots):  # a group each
            sent.append(pool.submit(lambda seq: run(near.apply([a_step(seq)])), slot))
            while len(groups._open) <= slot:
                time.sleep(0.001)
        with hurried(near, 0.5):  # the groups in progress have a minute
            waiting = [pool.submit(lambda seq: run(near.apply([a_step(seq)])), seq) for seq in (10, 11)]
            for each in waiting:
                with pytest.raises(TransientError, match="for the changes before this one") as caught:
                    each.result(30)
                assert not isinstance(caught.value, OutcomeUnknownError)
        near.server.open = True
        assert [each.result() for each in sent] == [None] * near.slots
    assert run(near.read([Get(STEPS, [("t", "l", 0, 10), ("t", "l", 0, 11)])])) == [[]]


def test_a_read_whose_answer_was_lost_is_not_said_to_be_a_change(near: Near) -> None:
    async def fail() -> None:
        raise ServerInterrupted("the line was cut", sent=True)

    with hurried(near, 0.5), pytest.raises(TransientError, match="could not be used") as caught:
        run(near._run_in_loop(fail))
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_batches_that_come_at_once_are_sent_together(near: Near) -> None:
    near.server.open = False
    groups = near._groups
    assert groups is not None
    with ThreadPoolExecutor(40) as pool:
        made = [pool.submit(lambda seq: run(near.apply([a_step(seq)])), seq) for seq in range(40)]
        while len(groups._queued) + sum(map(len, [*groups._open.values()])) < 40:
            time.sleep(0.001)
        near.server.open = True
        assert {each.result() for each in made} == {None}
    assert sum(near.server.groups) == 40
    assert len(near.server.groups) < 20


def test_batches_of_tasks_in_one_turn_are_one_group(near: Near) -> None:
    async def main() -> None:
        await asyncio.gather(*(arun(near.apply([a_step(seq)])) for seq in range(40)))

    asyncio.run(main())
    assert near.server.groups == [40]


def test_two_loops_and_threads_are_answered_each(near: Near) -> None:
    async def task(seq: int) -> None:
        for turn in range(10):
            assert await arun(near.apply([a_step(100 * seq + turn)])) is None
            assert len((await arun(near.read([Get(STEPS, [("t", "l", 0, 100 * seq + turn)])])))[0]) == 1

    async def main(first: int) -> None:
        await asyncio.gather(*(task(seq) for seq in range(first, first + 10)))

    with ThreadPoolExecutor(3) as pool:
        loops = [pool.submit(asyncio.run, main(first)) for first in (0, 10)]
        for seq in range(10_000, 10_020):
            assert run(near.apply([a_step(seq)])) is None
        for each in loops:
            each.result(60)
    assert sum(near.server.groups) == 2 * 10 * 10 + 20


def test_a_cancelled_task_leaves_its_batch_and_the_others(near: Near) -> None:
    async def main() -> None:
        near.server.open = False
        tasks = [asyncio.create_task(arun(near.apply([a_step(seq)]))) for seq in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        near.server.open = True
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), asyncio.CancelledError, type(None)]

    asyncio.run(main())
    assert near.server.groups == [3]


def test_closing_waits_for_the_saves_of_tasks() -> None:
    async def main() -> None:
        store = await arun(Near.open("near://closing-with-saves"))
        saves = [asyncio.create_task(arun(store.apply([a_step(seq)]))) for seq in range(5)]
        await asyncio.sleep(0)  # they are on their way, and nobody has been woken
        await arun(store.close())
        assert await asyncio.gather(*saves) == [None] * 5
        assert store.server.groups == [5]

    asyncio.run(main())


@pytest.mark.parametrize("after", ["thread", "loop", "close"])
def test_a_loop_that_stopped_in_the_middle_of_a_turn_holds_up_nobody(after: str) -> None:
    store = run(Near.open(f"near://stopped-{after}"))
    stopped = asyncio.new_event_loop()

    async def submit() -> None:
        stopped.stop()
        await arun(store.apply([a_step(0)]))

    task = stopped.create_task(submit())
    stopped.run_forever()
    assert store.server.groups == []
    if after == "thread":
        assert run(store.apply([a_step(1)])) is None
    elif after == "loop":
        assert asyncio.run(arun(store.apply([a_step(1)]))) is None
    run(store.close())
    assert sum(store.server.groups) == (1 if after == "close" else 2)
    stopped.run_until_complete(task)  # its answer is there
    stopped.close()


def test_an_empty_batch_waits_for_those_before_it(near: Near) -> None:
    async def main() -> None:
        near.server.pause = 0.1
        first = [asyncio.create_task(arun(near.apply([a_step(seq)]))) for seq in range(3)]
        await asyncio.sleep(0)
        await arun(near.apply([]))
        assert len(await written()) == 3
        await asyncio.gather(*first)

    async def written() -> list[Any]:
        (rows,) = await arun(near.read([Get(STEPS, [("t", "l", 0, seq) for seq in range(3)])]))
        return [row.key for row in rows]

    asyncio.run(main())


def test_an_error_that_nobody_foresaw_is_told(near: Near) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of all things")

    near.server.before = fail
    with pytest.raises(UnavailableError, match="of all things"):
        run(near.apply([a_step(0)]))


def test_what_is_too_large_is_refused(near: Near) -> None:
    large = Create(STEPS, row_of(STEPS, "t", "l", 0, 0, body=bytes(5 << 20)))
    near.limits = Capabilities(durable=False, shared=False, max_body=4 << 20, max_batch=4 << 20)
    with pytest.raises(TooLargeError, match="a record of 5242880 bytes is over the limit of this store, 4194304"):
        run(near.apply([large]))
    near.limits = Capabilities(durable=False, shared=False, max_body=6 << 20, max_batch=6 << 20)
    with pytest.raises(TooLargeError, match="a change of 10485760 bytes is over"):
        run(near.apply([large, Create(STEPS, row_of(STEPS, "t", "l", 0, 1, body=bytes(5 << 20)))]))
    assert near.server.groups == []


def test_closing_ends_the_thread() -> None:
    before = network_threads()
    store = run(Near.open("near://closing"))
    (thread,) = network_threads() - before
    run(store.close())
    assert not thread.is_alive()


def test_a_store_that_is_let_go_of_ends_its_thread() -> None:
    before = network_threads()
    store = run(Near.open("near://let-go"))
    run(store.apply([a_step(0)]))
    server = store.server
    (thread,) = network_threads() - before
    stores = [store]
    del store

    def drop() -> None:
        stores.clear()
        deadline = time.monotonic() + 120
        while thread.is_alive():
            assert time.monotonic() < deadline
            gc.collect()
            time.sleep(0.01)

    with pytest.warns(ResourceWarning, match="the store at near://let-go was not closed"):
        drop()
    assert server.closed == 1


def test_an_opening_that_fails_leaves_no_thread() -> None:
    class Far(Near):
        async def _connect(self) -> Closable:
            raise ConfigError("nobody is there")

    before = network_threads()
    with pytest.raises(ConfigError, match="nobody is there"):
        run(Far.open("near://far"))
    assert network_threads() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_connects_anew(near: Near) -> None:
    run(near.apply([a_step(0)]))
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(run(near.apply([a_step(1)])) is not None)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert run(near.apply([a_step(1)])) is None


class Connecting(Near):
    """Never gets a connection."""

    async def _connect(self) -> Closable:
        raise ServerInterrupted("nobody is there")


def test_an_opening_that_is_cancelled_ends_at_once() -> None:
    async def main() -> None:
        opening = asyncio.create_task(arun(Connecting.open("near://nobody")))
        await asyncio.sleep(0.1)
        opening.cancel()
        await asyncio.wait([opening], timeout=120)
        assert opening.cancelled()

    before = network_threads()
    asyncio.run(main())
    assert network_threads() <= before


def test_closing_while_it_cannot_connect_is_no_failure() -> None:
    before = network_threads()
    store = Connecting("near://nobody", timeout=0.3)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: run(store.apply([a_step(0)])))
        while store._loop is None:
            time.sleep(0.01)
        run(store.close())
        with pytest.raises(TransientError, match="nobody is there"):
            asked.result(60)
    assert network_threads() <= before


def test_what_runs_in_a_loop_that_ends_is_told(near: Near) -> None:
    """As at the end of a program that did not close its store."""
    near.server.pause = 60
    ended = threading.Event()

    async def by_itself() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def begin() -> None:
        near.kept = asyncio.create_task(by_itself())

    run(near._run_in_loop(begin))
    loop = near._loop
    assert loop is not None
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: run(Near.apply(near, [a_step(0)])))
        while near._groups is None or not near._groups._open:
            time.sleep(0.01)
        loop.stop()
        with pytest.raises(UnavailableError, match="the commit failed"):
            asked.result(60)
    assert ended.is_set()
    near._loop = None
