"""Stores that are reached over a network, through clients written for asyncio.

Such a client runs in a loop of its own, in one thread of the store, which serves sync callers and every event loop. A
backend here says how to connect, how to answer queries and how to commit a group of batches; this module does what is
the same for all of them: batches that come at the same time are sent together, what was cut off is sent again, and the
outcome of a batch whose answer was lost is found out, not guessed.

**How an answer that was lost is found.** Each group is sent under a `GroupStamp`. A store keeps, in the same
transaction as the group, the number and the outcomes of the last group of each slot. A group that arrives again is
answered with these outcomes; one that was overtaken by a later group of its slot is refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, NamedTuple, TypeVar

from holdfast.backends.interface import Backend, Batch, Create, Ensure, Put, Query, Row, Suspension
from holdfast.backends.runtime.fork_safety import renew_after_fork
from holdfast.backends.runtime.group_commit import Outcome, again, size_of
from holdfast.errors import HoldfastError, OutcomeUnknownError, TooLargeError, TransientError, UnavailableError

_log = logging.getLogger("holdfast.backends")

T = TypeVar("T")

TIMEOUT = 30.0
"""For how many seconds to go on trying, unless told otherwise."""

_MAX_BATCHES = 256
_MAX_BYTES = 4 << 20

_ROW = 2 << 10
"""How many bytes the columns of a row count for. Most have fewer."""
PACE = 4 << 20
"""How many bytes a server takes in a second, at least. A large change may take so much longer."""

_CONNECT_FAILED = re.compile(r"(?:\[Errno |Error )(\d+)\]? (.*?)Connect call failed \([^)]*\)")
"""How asyncio says that a connection was refused: by its number."""

_ENDING = 5.0
"""For how many seconds what is cancelled may take to end."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


class ServerInterrupted(Exception):
    """The server did not answer, or asks to try again; raised by backends inside their loop.

    `sent` tells that a group may have been made all the same. It is then sent again under its stamp.
    """

    def __init__(self, why: str, *, sent: bool = False) -> None:
        super().__init__(why)
        self.sent = sent


class ServerUnreachable(ServerInterrupted):
    """The connection was refused, or the name of the host does not resolve.

    When a store is first opened, it is retried only for as long as `connect_timeout` says: a wrong URL is the more
    likely reason then. Later it is retried like any other interruption.
    """

    def __init__(self, why: str, *, sent: bool = False) -> None:
        super().__init__(_CONNECT_FAILED.sub(lambda found: found[2] + os.strerror(int(found[1])), why), sent=sent)


class GroupStamp(NamedTuple):
    """What tells a group from all others: whose it is, and the how many-th of its slot."""

    client: str
    slot: int
    number: int


class LoopBackend(Backend):
    """A store that works in a loop of its own, in one thread. The methods to give are called in that loop only."""

    def __init__(self, url: str, timeout: float = TIMEOUT, connect_timeout: float = 0.0) -> None:
        self._url = url
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._was_open = False
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._closed = False
        self._left: list[object] = []
        renew_after_fork(self)

    @abstractmethod
    async def _connect(self) -> object:
        """Open the client, and see that the store is there. Returns what a forked child must not touch."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the client. Batches under way are to be made first."""

    @abstractmethod
    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        """As `read`. May raise `ServerInterrupted`, and is then called again."""

    @property
    def url(self) -> str:
        return self._url

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._asked(lambda: self._answer(queries))

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            try:
                await LoopTask(lambda future: loop.finish(self._end, future))
            finally:
                loop.stop()

    def renew_locks(self) -> None:
        """For a forked child: it has neither the loop's thread nor a right to use the connections."""
        self._lock = threading.Lock()
        if self._loop is not None:
            self._left.append(self._loop)
            self._loop = None

    async def start(self) -> None:
        """Connect. Part of opening."""
        try:
            await LoopTask(lambda future: self._have_run(_nothing, future))
        except BaseException:
            if self._loop is not None:
                self._loop.give_up()  # who was interrupted does not want to wait for the rest of the timeout
            await self.close()
            raise

    async def _asked(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine in the store's loop returns; tried again while it is interrupted, until the deadline."""
        asked: LoopTask[T] = LoopTask(lambda future: self._have_run(lambda: self._insist(question), future))
        return await asked

    async def _run_once(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work that may take long, such as a check of the whole store. It is not retried as a whole."""

        async def once() -> T:
            try:
                return await work()
            except ServerInterrupted as interrupted:
                raise self._gave_up(str(interrupted), sent=False) from interrupted

        task: LoopTask[T] = LoopTask(lambda future: self._have_run(once, future))
        return await task

    def _have_run(self, start: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        """Have a coroutine run in the store's loop, and its result put into a future."""
        with self._lock:  # so that nothing comes to the loop after the one that ends it
            self._running().run(start, future)

    async def _insist(
        self, question: Callable[[], Coroutine[Any, Any, T]], change: bool = False, longer: float = 0
    ) -> T:
        loop = asyncio.get_running_loop()
        first = not self._was_open
        seconds = self._connect_timeout if first and self._connect_timeout else self._timeout
        deadline = loop.time() + seconds + longer
        pause = _FIRST_PAUSE
        unreachable = False
        sent, why = False, ""
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await question()
            except ServerInterrupted as interrupted:
                sent, why = sent or interrupted.sent, str(interrupted)
                unreachable = first and isinstance(interrupted, ServerUnreachable)
            except TimeoutError:
                sent, why = change, why or "no answer came"
            except HoldfastError as error:
                if sent and not isinstance(error, UnavailableError | OutcomeUnknownError):
                    # It is true of this try only that nothing was made.
                    raise self._gave_up(str(error), sent) from error
                raise
            if loop.time() + pause >= deadline or (unreachable and not self._connect_timeout):
                raise self._unreachable(why) if unreachable else self._gave_up(why, sent, seconds)
            if first:
                _log.warning("opening %s is retried: %s", self.url, why)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come back at once
            if loop.time() >= deadline:  # the machine is busy; a try would only be broken off in the middle
                raise self._unreachable(why) if unreachable else self._gave_up(why, sent, seconds)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unreachable(self, why: str) -> UnavailableError:
        seconds = self._connect_timeout
        return UnavailableError(
            f"the server could not be reached{f' for {seconds:g} s' if seconds else ''}: {why}",
            where=self.url,
            hint="Start it, or correct the URL" + ("" if seconds else "; connect_timeout=30 retries for 30 seconds"),
            code="unreachable",
        )

    def _gave_up(self, why: str, sent: bool, seconds: float | None = None) -> TransientError:
        seconds = self._timeout if seconds is None else seconds
        if sent:
            return OutcomeUnknownError(
                f"the server did not say in {seconds:g} s whether it made a change: {why}",
                where=self.url,
                hint="Look whether it did before you do it again; saving again under the same id is always safe",
            )
        return TransientError(
            f"the server could not be used for {seconds:g} s: {why}",
            where=self.url,
            hint="Nothing was done. Try again when it is back",
        )

    def _check_size(self, batch: Batch) -> None:
        size = size_of(batch)
        if size <= _MAX_BYTES:
            return
        limits = self.capabilities
        largest = max(len(change.row.body) for change in batch if isinstance(change, Create | Ensure | Put))
        if largest > limits.max_body:
            raise TooLargeError(
                f"a record of {largest} bytes is over the {limits.max_body} that this store keeps",
                where=self.url,
                hint="Save large values as values of their own, or in parts",
            )
        if size > limits.max_batch:
            raise TooLargeError(
                f"a change of {size} bytes is over the {limits.max_batch} that this store makes at once",
                where=self.url,
                hint="Save less at a time",
            )

    def _running(self) -> _Loop:
        """The loop, for one who has the lock."""
        if self._closed:
            raise UnavailableError("the store is closed", where=self.url, hint="Open it again", code="closed")
        if self._loop is not None and self._loop.failed():
            self._loop.stop()
            self._loop = None  # perhaps it goes better now
        if self._loop is None:
            self._loop = loop = _Loop(self._begin)
            self._finalizer = weakref.finalize(self, loop.stop)
            self._anew()
        return self._loop

    def _anew(self) -> None:
        """Called when there is a new loop, before anything runs in it: at the start, and in a forked child."""

    async def _begin(self) -> None:
        self._left.append(await self._insist(self._connect))
        self._was_open = True

    async def _end(self) -> None:
        await self._disconnect()


class ServerBackend(LoopBackend):
    """A store behind a client for asyncio. The methods to give are called in the store's own loop only."""

    slots: ClassVar[int] = 2
    """How many groups may be on their way at a time. What comes meanwhile waits, and makes up the next group."""

    def __init__(self, url: str, timeout: float = TIMEOUT, connect_timeout: float = 0.0) -> None:
        super().__init__(url, timeout, connect_timeout)
        self._groups: _Groups | None = None

    @abstractmethod
    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        """Make a group of batches, each whole or not at all; one that is refused does not keep the others from it.

        No batch is empty. May raise `ServerInterrupted`, and is then called again with the same stamp. Any other error
        says that nothing was made.
        """

    async def apply(self, batch: Batch) -> int | None:
        self._check_size(batch)
        asked: LoopTask[int | None] = LoopTask(lambda future: self._submit(batch, future))
        return await asked

    def _submit(self, batch: Batch, future: Future[int | None]) -> None:
        with self._lock:
            loop = self._running()
            groups = self._groups
            assert groups is not None  # noqa: S101 - comes with the loop
            loop.call(groups.add, _Ticket(batch, future), future)

    def _anew(self) -> None:
        if self._groups is not None:
            self._left.append(self._groups)
        self._groups = _Groups(self._send, self.slots)

    async def _end(self) -> None:
        if self._groups is not None:
            await self._groups.drain()
        await super()._end()

    async def _send(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        return await self._insist(lambda: self._commit(batches, stamp), change=True, longer=longer_for(batches))


class LoopTask(Suspension[T]):
    """Something the store's loop does."""

    def __init__(self, begin: Callable[[Future[T]], None]) -> None:
        self._begin = begin

    def wait(self) -> T:
        return self._begun().result()

    def watch(self) -> asyncio.Future[T]:
        return asyncio.wrap_future(self._begun())

    def _begun(self) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # whoever stops waiting takes nothing back
        self._begin(future)
        return future


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._work, name="holdfast-network", daemon=True)
        self._thread.start()
        self._begun: Future[None] = Future()
        self._begun.set_running_or_notify_cancel()
        self._loop.call_soon_threadsafe(self._spawn, begin, self._begun)

    def run(self, start: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        """Have a coroutine run after the store was connected, and its result put into a future."""

        def later(begun: Future[None]) -> None:
            error = begun.exception()
            if error is None:
                self._spawn(start, future)
            else:
                future.set_exception(_another(error))

        self._then(later)

    def finish(self, end: Callable[[], Coroutine[Any, Any, None]], future: Future[None]) -> None:
        """The same for what is only to be done where the store was connected."""

        def later(begun: Future[None]) -> None:
            if begun.exception() is None:
                self._spawn(end, future)
            else:
                future.set_result(None)

        self._then(later)

    def give_up(self) -> None:
        """Stop trying to connect."""

        def cancel() -> None:
            if not self._begun.done():
                for task in self._tasks:  # all others wait for this one
                    task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def call(self, function: Callable[[T], None], argument: T, future: Future[Any]) -> None:
        """Have a function called, or its future fail, after the store was connected."""

        def later(begun: Future[None]) -> None:
            error = begun.exception()
            if error is None:
                function(argument)
            else:
                future.set_exception(_another(error))

        self._then(later)

    def failed(self) -> bool:
        """Whether the store could not be connected."""
        return self._begun.done() and self._begun.exception() is not None

    def stop(self) -> None:
        """End the thread. Whoever still waits for a read is told that the store is closed."""
        if not self._loop.is_closed() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _then(self, later: Callable[[Future[None]], None]) -> None:
        if self._begun.done():
            self._loop.call_soon_threadsafe(later, self._begun)
        else:
            self._begun.add_done_callback(lambda begun: self._loop.call_soon_threadsafe(later, begun))

    def _spawn(self, start: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not future.done():  # cancelled before it began
                future.set_exception(_closed())

        task = self._loop.create_task(_fill(start, future))
        self._tasks.add(task)
        task.add_done_callback(done)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            deadline = self._loop.time() + _ENDING
            # Reads that were under way, and what the client does by itself; all there is, if nobody closed the store.
            while (left := asyncio.all_tasks(self._loop)) and (seconds := deadline - self._loop.time()) > 0:
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(left, timeout=seconds))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _fill(start: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
    try:
        result = await start()
    except asyncio.CancelledError:
        future.set_exception(_closed())
    except BaseException as error:  # noqa: BLE001 - goes to whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)


def _closed() -> UnavailableError:
    return UnavailableError("the store was closed meanwhile", hint="Open it again")


async def _nothing() -> None:
    """To wait for what comes before."""


class _Ticket(NamedTuple):
    """A batch, and where its outcome goes."""

    batch: Batch
    future: Future[int | None]


class _Groups:
    """Sends batches in groups, some at a time. Lives in the store's loop."""

    def __init__(
        self, send: Callable[[list[Batch], GroupStamp], Coroutine[Any, Any, list[Outcome]]], slots: int
    ) -> None:
        self._send = send
        self._client = secrets.token_hex(8)
        self._free = deque(range(slots))
        self._numbers = [0] * slots
        self._queued: deque[_Ticket] = deque()
        self._open: set[asyncio.Future[None]] = set()
        """One for each group under way, done when its batches have been answered."""

    def add(self, ticket: _Ticket) -> None:
        """Send a batch, now or with others. One that is empty is answered after all that came before it."""
        if not ticket.batch and not self._open and not self._queued:
            ticket.future.set_result(None)
            return
        self._queued.append(ticket)
        self._start()

    async def drain(self) -> None:
        """Wait until all is answered."""
        while self._open:
            await asyncio.wait(self._open)

    def _start(self) -> None:
        while self._free and self._queued:
            group = self._next_group()
            if not group:
                return
            slot = self._free.popleft()
            self._numbers[slot] += 1
            task = asyncio.get_running_loop().create_task(
                self._commit(group, GroupStamp(self._client, slot, self._numbers[slot]))
            )
            self._open.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._open.discard(task)
        self._start()

    def _next_group(self) -> list[_Ticket]:
        """What is sent next; nothing, where the first that waits has to wait for those under way."""
        group: list[_Ticket] = []
        size = 0
        while self._queued:
            ticket = self._queued[0]
            if not ticket.batch:
                if group or self._open:
                    break
                self._queued.popleft().future.set_result(None)
                continue
            size += _weight_of(ticket.batch)
            if group and (size > _MAX_BYTES or len(group) == _MAX_BATCHES):
                break
            group.append(self._queued.popleft())
        return group

    async def _commit(self, group: list[_Ticket], stamp: GroupStamp) -> None:
        try:
            outcomes = await self._send([ticket.batch for ticket in group], stamp)
        except BaseException as error:  # noqa: BLE001 - the answer to all of them
            outcomes = [error if isinstance(error, HoldfastError) else _broken(error)] * len(group)
        finally:
            self._free.append(stamp.slot)
        for ticket, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Exception):
                ticket.future.set_exception(again(outcome))
            else:
                ticket.future.set_result(outcome)


def longer_for(batches: Sequence[Batch]) -> float:
    """For how many seconds more than usual it is to be tried to make these batches."""
    return sum(map(_weight_of, batches)) / PACE


def _weight_of(batch: Batch) -> int:
    """About how many bytes a batch has."""
    return size_of(batch) + _ROW * len(batch)


def _another(error: BaseException) -> BaseException:
    """The same error, for another caller."""
    return again(error) if isinstance(error, Exception) else error


def _broken(error: BaseException) -> Exception:
    failure = UnavailableError(f"the commit broke off: {error!r}", hint="Open the store anew, and see what was made")
    failure.__cause__ = error
    return failure
