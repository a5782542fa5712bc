"""The base of stores that are reached over a network, through clients for asyncio.

Such a client runs in an event loop of the store, in one thread, which serves sync callers and every other event loop. A
subclass connects, answers queries and commits a group of batches; this module does the rest: concurrent batches are
sent together, interrupted calls are retried, and the outcome of a batch whose answer was lost is looked up, not
guessed.

**Lost answers.** Each group is sent with a `GroupStamp`. A store saves, in the same transaction as the group, the
number and the outcomes of the last group of each slot. A group that arrives again is answered with these outcomes; one
that arrives after a later group of its slot is refused.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import random
import re
import secrets
import threading
import time
import warnings
import weakref
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from holdfast.backends.distribution import BATCHES, Distribution
from holdfast.backends.interface import Backend, Batch, Create, Ensure, Put, Query, Row, Suspension, closed_error
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.group_commit import Outcome, body_bytes, copy_error
from holdfast.backends.runtime.group_queue import MAX_BYTES, GroupQueue, QueuedBatch, batch_weight
from holdfast.backends.runtime.loop_thread import LoopInbox, LoopThread, inbox_of
from holdfast.errors import HoldfastError, OutcomeUnknownError, TooLargeError, TransientError, UnavailableError

_log = logging.getLogger("holdfast.backends")

T = TypeVar("T")

TIMEOUT = 30.0
"""For how many seconds calls are retried by default."""

PACE = 4 << 20
"""The least bytes that a server takes in a second. A large batch may take longer accordingly."""

_CONNECT_FAILED = re.compile(r"(?:\[Errno |Error )(\d+)\]? (.*?)Connect call failed \([^)]*\)")
"""The message of asyncio for a refused connection, which has the number of the error."""

_MARGIN = 0.1
"""How much before its deadline a call gives up, so that the caller has the answer by then."""

_FIRST_PAUSE = 0.02
_MAX_PAUSE = 1.0

_ANNOUNCEMENT_SECONDS = 1.0
"""For how long a server is waited for that is to announce something."""

_LONGEST_SILENCE = 30.0
"""The longest pause in seconds between two attempts to listen to a server."""


class ServerInterrupted(Exception):
    """The server did not answer, or asks to try again; raised by backends inside their loop.

    With `sent`, a group may have been committed all the same. It is then sent again with its stamp.
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


class Closable(Protocol):
    """Has connections that can be closed."""

    def close(self) -> Awaitable[None] | None: ...


class GroupStamp(NamedTuple):
    """The identity of a group: the client, one of its slots, and a number in that slot."""

    client: str
    slot: int
    number: int


class LoopBackend(Backend):
    """A store with an event loop of its own, in one thread. The abstract methods are called in that loop only."""

    medium: ClassVar[str] = "the server"
    """What stores the rows, in messages."""
    announces: ClassVar[bool] = False
    """Whether it has announcements: `_announce` and `_announcements`."""

    def __init__(self, url: str, timeout: float = TIMEOUT, connect_timeout: float = 0.0) -> None:
        self._url = url
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._was_open = False
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._closed = False
        self._abandoned: list[object] = []
        self._listening: set[asyncio.Task[None]] = set()
        self._group_sizes = Distribution(BATCHES)
        reinit_after_fork(self)

    def group_sizes(self) -> Sequence[Distribution]:
        return (self._group_sizes,)

    @abstractmethod
    async def _connect(self) -> Closable:
        """Open the client, and check that the store exists. Returns what has the connections: it is closed if the store
        is dropped, so it does not refer to the store; and a forked child must not touch it."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the client, after batches in progress."""

    @abstractmethod
    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Implement `read`. May raise `ServerInterrupted`, and is then called again."""

    async def _announce(self, topic: str) -> None:
        """Implement `announce`, in a store with announcements."""

    def _announcements(self, topic: str) -> AsyncGenerator[None]:
        """Yield when the server is listened to, and at each announcement of a topic. Ends if that is not possible."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self._url

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._run_in_loop(lambda: self._answer(queries))

    async def announce(self, topic: str) -> None:
        if not self.announces:
            return

        async def send() -> None:
            async with asyncio.timeout(_ANNOUNCEMENT_SECONDS):
                await self._announce(topic)

        with suppress(HoldfastError, TimeoutError):
            await self._run_once(send)

    async def listen(self, topic: str, heard: Callable[[], None]) -> Callable[[], None] | None:
        if not self.announces:
            return None

        async def begin() -> Callable[[], None]:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._listen(topic, heard))
            self._listening.add(task)
            task.add_done_callback(self._listening.discard)

            def end() -> None:
                with suppress(RuntimeError):  # the store was closed
                    loop.call_soon_threadsafe(task.cancel)

            return end

        return await self._run_once(begin)

    async def _listen(self, topic: str, heard: Callable[[], None]) -> None:
        """Listen until it is cancelled, or is not possible; again when the server is back."""
        pause = _FIRST_PAUSE
        while True:
            try:
                async with aclosing(self._announcements(topic)) as announcements:
                    async for _ in announcements:
                        heard()
                        pause = _FIRST_PAUSE
                return
            except Exception as error:  # noqa: BLE001 - those who wait look from time to time
                _log.debug("%s is not listened to: %s", self.url, error)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all retry at once
            pause = min(2 * pause, _LONGEST_SILENCE)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            try:
                await LoopTask(lambda task: loop.finish(self._shut_down, task))
            finally:
                loop.stop()

    def reinit_locks(self) -> None:
        """A forked child has no thread of the loop, and must not use the connections."""
        self._lock = threading.Lock()
        if self._loop is not None:
            self._abandoned.append(self._loop)
            self._loop = None

    async def start(self) -> None:
        """Connect. Part of opening."""
        try:
            await LoopTask(lambda task: self._schedule(_do_nothing, task))
        except BaseException:
            if self._loop is not None:
                self._loop.give_up()  # do not wait for the rest of the timeout
            await self.close()
            raise

    async def _run_in_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the store's loop, and return its result. Interrupted calls are retried."""
        deadline = time.monotonic() + self._timeout  # the clock of the loop
        task: LoopTask[T] = LoopTask(lambda task: self._schedule(lambda: self._retry(call, deadline), task))
        return await task

    async def _run_once(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work that may take long, such as a check of the whole store. It is not retried as a whole."""

        async def once() -> T:
            try:
                return await work()
            except ServerInterrupted as interrupted:
                raise self._give_up_error(str(interrupted), sent=False) from interrupted

        task: LoopTask[T] = LoopTask(lambda task: self._schedule(once, task))
        return await task

    def _schedule(self, start: Callable[[], Coroutine[Any, Any, T]], task: LoopTask[T]) -> LoopInbox:
        """Run a coroutine in the store's loop, for a task that waits for its result."""
        with self._lock:  # so that nothing is scheduled after the loop was told to stop
            return self._get_loop().run(start, task)

    async def _retry(self, call: Callable[[], Coroutine[Any, Any, T]], deadline: float, change: bool = False) -> T:
        """Call until there is an answer, but not beyond the deadline. `change`: it may change the store."""
        loop = asyncio.get_running_loop()
        first = not self._was_open
        deadline -= min(_MARGIN, self._timeout / 20)
        pause = _FIRST_PAUSE
        unreachable = retried = False
        sent, why = False, ""
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await call()
            except ServerInterrupted as interrupted:
                sent, why = sent or (change and interrupted.sent), str(interrupted)
                unreachable = first and isinstance(interrupted, ServerUnreachable)
            except TimeoutError:
                unreachable = unreachable or (first and not why)
                sent, why = change, why or "no answer was received"
            except HoldfastError as error:
                if sent and not isinstance(error, UnavailableError | OutcomeUnknownError):
                    # Nothing was changed by this attempt, but an earlier one may have succeeded.
                    raise self._give_up_error(str(error), sent) from error
                raise
            if loop.time() + pause >= deadline or (unreachable and not self._connect_timeout):
                raise self._unreachable(why) if unreachable else self._give_up_error(why, sent)
            if first:  # once aloud: the others say the same
                _log.log(logging.DEBUG if retried else logging.WARNING, "opening %s is retried: %s", self.url, why)
                retried = True
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all retry at once
            if loop.time() >= deadline:  # on a busy machine; an attempt would only be cancelled
                raise self._unreachable(why) if unreachable else self._give_up_error(why, sent)
            pause = min(2 * pause, _MAX_PAUSE)

    def _unreachable(self, why: str) -> UnavailableError:
        seconds = self._connect_timeout
        return UnavailableError(
            f"the server could not be reached{f' for {seconds:g} s' if seconds else ''}: {why}",
            where=self.url,
            hint="Start it, or correct the URL" + ("" if seconds else "; connect_timeout=30 retries for 30 seconds"),
            code="unreachable",
        )

    def _give_up_error(self, why: str, sent: bool) -> TransientError:
        seconds = self._timeout if self._was_open else self._connect_timeout or self._timeout
        if sent:
            return OutcomeUnknownError(
                f"{self.medium} did not confirm a change in {seconds:g} s: {why}",
                where=self.url,
                hint="Check whether it was applied before you repeat it; saving again under the same id is always safe",
            )
        return TransientError(
            f"{self.medium} could not be used for {seconds:g} s: {why}",
            where=self.url,
            hint="Nothing was changed. Try again when it is back",
        )

    def _check_size(self, batch: Batch) -> None:
        size = body_bytes(batch)
        if size <= MAX_BYTES:
            return
        limits = self.capabilities
        largest = max(len(change.row.body) for change in batch if isinstance(change, Create | Ensure | Put))
        if largest > limits.max_body:
            raise TooLargeError(
                f"a record of {largest} bytes is over the limit of this store, {limits.max_body}",
                where=self.url,
                hint="Save large values as values of their own, or in parts",
            )
        if size > limits.max_batch:
            raise TooLargeError(
                f"a change of {size} bytes is over the limit of this store, {limits.max_batch}",
                where=self.url,
                hint="Save less at a time",
            )

    def _get_loop(self) -> _Loop:
        """Return the loop, and start it if needed. Called under the lock."""
        if self._closed:
            raise closed_error(self.url)
        if self._loop is not None and self._loop.failed():
            self._loop.stop()
            self._loop = None  # try again
        if self._loop is None:
            self._loop = loop = _Loop(self._start_up)
            _running_loops.add(loop)
            weakref.finalize(self, loop.abandon, self.url).atexit = False
            self._on_new_loop()
        return self._loop

    def _on_new_loop(self) -> None:
        """Prepare for a new loop, before anything runs in it: at the start, and in a forked child."""
        self._listening = set()

    async def _start_up(self) -> Closable:
        deadline = time.monotonic() + (self._connect_timeout or self._timeout)
        connected = await self._retry(self._connect, deadline)
        self._abandoned.append(connected)
        self._was_open = True
        return connected

    async def _shut_down(self) -> None:
        for task in (listening := list(self._listening)):
            task.cancel()
        if listening:
            await asyncio.wait(listening)
        await self._disconnect()


class ServerBackend(LoopBackend):
    """A store that commits groups of batches. The abstract methods are called in the store's loop only."""

    slots: ClassVar[int] = 2
    """How many groups may be in progress at a time. Further batches wait for the next group."""
    group_lines: ClassVar[int | None] = None
    """How many lines the batches of a group may touch together; None for any number. A batch that touches more is a
    group of its own."""

    def __init__(self, url: str, timeout: float = TIMEOUT, connect_timeout: float = 0.0) -> None:
        super().__init__(url, timeout, connect_timeout)
        self._groups: GroupQueue | None = None
        self._client_id = ""
        self._numbers: list[int] = []

    @abstractmethod
    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        """Commit a group of batches, each completely or not at all; a refused one does not affect the others.

        No batch is empty. May raise `ServerInterrupted`, and is then called again with the same stamp. After any other
        error nothing was committed.
        """

    async def apply(self, batch: Batch) -> int | None:
        self._check_size(batch)
        task: LoopTask[int | None] = LoopTask(lambda task: self._submit(batch, task))
        return await task

    def _submit(self, batch: Batch, task: LoopTask[int | None]) -> LoopInbox:
        with self._lock:
            loop = self._get_loop()
            groups = self._groups
            assert groups is not None  # noqa: S101 - created with the loop
            weight = batch_weight(batch)
            deadline = time.monotonic() + self._timeout + weight / PACE
            return loop.call(partial(groups.add, QueuedBatch(batch, weight, task, deadline)), task)

    def _on_new_loop(self) -> None:
        super()._on_new_loop()
        if self._groups is not None:
            self._abandoned.append(self._groups)
        self._groups = GroupQueue(
            self._send,
            self.slots,
            give_up=self._give_up_error,
            max_lines=self.group_lines,
            sizes=self._group_sizes,
        )
        self._client_id, self._numbers = secrets.token_hex(8), [0] * self.slots

    async def _shut_down(self) -> None:
        if self._groups is not None:
            await self._groups.drain()
        await super()._shut_down()

    async def _send(self, batches: list[Batch], slot: int, deadline: float) -> list[Outcome]:
        self._numbers[slot] += 1
        stamp = GroupStamp(self._client_id, slot, self._numbers[slot])
        return await self._retry(lambda: self._commit(batches, stamp), deadline, change=True)


class LoopTask(Suspension[T]):
    """A wait for a result that is set in the store's loop. Cancelling the wait cancels nothing.

    Those of the tasks of an event loop go to the store's loop together at the end of a turn, and so do their results.
    """

    _result: T
    _error: BaseException | None = None
    _is_done = False
    _signal: threading.Lock | None = None
    _caller: LoopInbox | None = None

    def __init__(self, start: Callable[[LoopTask[T]], LoopInbox]) -> None:
        """`start` adds the work to the inbox of the store's loop, which it returns."""
        self._start = start

    def wait(self) -> T:
        self._signal = signal = threading.Lock()
        signal.acquire()
        self._begin().wake()
        signal.acquire()  # until there is a result
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # its traceback refers to this

    def watch(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = loop.create_future()
        self._caller = caller = inbox_of(loop)
        caller.wake_after_turn(self._begin())
        return self._future

    def _begin(self) -> LoopInbox:
        start = self._start
        del self._start  # the first task stays with the loop, which must not keep the store alive
        return start(self)

    def done(self) -> bool:
        """Return whether there is a result."""
        return self._is_done

    def set_result(self, result: T) -> None:
        """Set the result, in the store's loop."""
        self._result = result
        self._deliver()

    def set_exception(self, error: BaseException) -> None:
        """Set an error to raise, in the store's loop."""
        self._error = error
        self._deliver()

    def _deliver(self) -> None:
        self._is_done = True
        if self._signal is not None:
            self._signal.release()
        elif self._caller is not None:
            self._caller.add(self._resolve)
            inbox_of(asyncio.get_running_loop()).wake_after_turn(self._caller)

    def _resolve(self) -> None:
        if self._future.done():
            return  # cancelled
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)


class _Loop:
    """The loop of a store, which first connects. Calls wait for that."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Closable]]) -> None:
        self._thread = LoopThread("holdfast-network")
        self._loop = self._thread.loop
        self._inbox = inbox_of(self._loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self._connected: Future[Closable] = Future()
        self._connected.set_running_or_notify_cancel()
        self._loop.call_soon_threadsafe(self._spawn, begin, self._connected)

    def run(self, start: Callable[[], Coroutine[Any, Any, T]], task: LoopTask[T]) -> LoopInbox:
        """Run a coroutine once the store is connected, and give its result to a task."""
        return self.call(partial(self._spawn, start, task), task)

    def call(self, function: Callable[[], None], task: LoopTask[Any]) -> LoopInbox:
        """Call a function once the store is connected, or fail a task. Returns the inbox to wake."""

        def proceed(connected: Future[Closable]) -> None:
            error = connected.exception()
            if error is None:
                function()
            else:
                task.set_exception(_copy_any_error(error))

        self._inbox.add(partial(self._connected.add_done_callback, proceed))
        return self._inbox

    def finish(self, end: Callable[[], Coroutine[Any, Any, None]], future: LoopTask[None] | Future[None]) -> LoopInbox:
        """Run a coroutine if the store was connected. Returns the inbox to wake."""

        def proceed(connected: Future[Closable]) -> None:
            if connected.exception() is None:
                self._spawn(end, future)
            else:
                future.set_result(None)

        self._inbox.add(partial(self._connected.add_done_callback, proceed))
        return self._inbox

    def give_up(self) -> None:
        """Stop trying to connect."""

        def cancel() -> None:
            if not self._connected.done():
                for task in self._tasks:  # there is only this one, as all others wait for it
                    task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def failed(self) -> bool:
        """Return whether the store could not be connected."""
        return self._connected.done() and self._connected.exception() is not None

    def stop(self) -> None:
        """End the thread. Reads in progress fail, as the store is closed."""
        self._ended = True
        self._inbox.wake()
        self._thread.stop()

    def abandon(self, where: str) -> None:
        """Close the connections of a store that was dropped, and end the thread, which may be the one that calls."""
        if self._ended or self._loop.is_closed():
            return
        warnings.warn(f"the store at {where} was not closed", ResourceWarning, stacklevel=2)
        closed: Future[None] = Future()
        closed.set_running_or_notify_cancel()
        closed.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        self.finish(self._close_connections, closed).wake()

    async def _close_connections(self) -> None:
        closing = self._connected.result().close()
        if closing is not None:
            await closing

    def _spawn(self, start: Callable[[], Coroutine[Any, Any, T]], future: LoopTask[T] | Future[T]) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not future.done():  # cancelled before it started
                future.set_exception(_closed())

        task = self._loop.create_task(_run_into(start, future))
        self._tasks.add(task)
        task.add_done_callback(done)


_running_loops: weakref.WeakSet[_Loop] = weakref.WeakSet()


@atexit.register
def _stop_loops() -> None:
    """End the threads of stores that were not closed, before the interpreter does."""
    for loop in list(_running_loops):
        loop.stop()


async def _run_into(start: Callable[[], Coroutine[Any, Any, T]], future: LoopTask[T] | Future[T]) -> None:
    try:
        result = await start()
    except asyncio.CancelledError:
        future.set_exception(_closed())
    except BaseException as error:  # noqa: BLE001 - raised in the waiting caller
        future.set_exception(error)
    else:
        future.set_result(result)


def _closed() -> UnavailableError:
    return UnavailableError("the store was closed during the operation", hint="Open it again")


async def _do_nothing() -> None:
    """Only wait for the connection."""


def _copy_any_error(error: BaseException) -> BaseException:
    return copy_error(error) if isinstance(error, Exception) else error
