"""The calls that a task of a run made, as they are recorded, and as a replay answers them.

A call is matched by its task and its number among those of the same name, never by when it arrived: parallel tasks, and
parallel calls in one task, give the same result in any order. Of the calls, all is stored, all but sensitive data, or
digests: hooks use the same words.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.codec import Codec
from holdfast.engine.model.missing import MISSING
from holdfast.errors import HoldfastError
from holdfast.recording.comparison import difference, plain

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection


VERSION = 1
"""The version of the stored form."""

RESULTS = "@results"
"""The name of a task's own results, for inputs that refer to them."""

CallKind: TypeAlias = Literal["model", "tool", "call", "clock", "random", "uuid", "step", "timer", "signal", "version"]
"""The kinds of calls: of a chat model, of a tool, of any function that was wrapped; sources of values; and of agents,
the durable steps, timers, signals and versions of the code."""

DivergenceKind: TypeAlias = Literal[
    "input", "order", "call", "missing", "output", "steps", "interrupt", "error", "effect"
]

RecordMode: TypeAlias = Literal["full", "redacted", "digest"]
MODES: Final = ("full", "redacted", "digest")

_TIMED = ("model", "tool", "call", "step")
"""Kinds of calls whose times are recorded."""

_MAX_ERROR = 2000
"""Characters of the text of an error."""


@dataclass(slots=True)
class Call:
    """A call: its input and its result. `start` and `end` count the events of its task, so that it is known which
    calls were over before it began."""

    kind: str
    name: str
    input: Any
    start: int
    end: int = 0
    result: Any = None
    error: Any = None
    """As it is stored: see `store_error`."""
    chunks: list[Any] | None = None
    payload: Any = None
    """An object by which the caller knows this call; it is not recorded."""
    began: int = 0
    took: int = 0
    """When it began, and how long it took, in nanoseconds; 0 if that is not known."""

    def to_record(self) -> list[Any]:
        """Return the stored form."""
        outcome: dict[str, Any] = {} if self.error is None else {"error": self.error}
        if self.chunks:
            outcome["chunks"] = self.chunks
        if self.began:
            outcome["time"] = [self.began, self.took]
        return [self.kind, self.name, self.start, self.end, self.input, self.result, *([outcome] if outcome else ())]

    @classmethod
    def of_record(cls, record: Sequence[Any]) -> Call:
        """Return the call that was stored."""
        kind, name, start, end, given, result, *rest = record
        outcome: Mapping[str, Any] = rest[0] if rest else {}
        # The caller did not wait for one that has no end: a timeout or a cancellation ended it.
        error = outcome.get("error") if end else asyncio.CancelledError()
        began, took = outcome.get("time", (0, 0))
        return cls(kind, name, given, start, end, result, error, outcome.get("chunks"), began=began, took=took)

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, or nobody waited for its end."""
        return self.error is not None and isinstance(restore_error(self.error), asyncio.CancelledError)

    def describe(self) -> str:
        """Return the kind and the name, for people."""
        return self.kind if self.kind == self.name else f"{self.kind} {self.name}"


class Divergence(msgspec.Struct, frozen=True):
    """A difference between a recorded run and its replay: where, of which kind, and as a diff.

    `step` and `task` say where in the run; `number` is that of the call in its task.
    """

    kind: DivergenceKind
    what: str
    step: int = 0
    task: str = ""
    number: int = 0
    diff: str = ""

    @property
    def position(self) -> tuple[int, str, int]:
        """Where it is in the run. The first divergence is that of the least position, not the one found first."""
        return self.step, self.task, self.number

    def __str__(self) -> str:
        where = f"step {self.step}" + (f", task {self.task}" if self.task else "")
        return f"{where}: {self.what}" + (f"\n{self.diff}" if self.diff else "")


class DivergedRun(BaseException):
    """Stops a run that is not as it was recorded. No `except Exception` of the run's own code swallows it."""


class EndOfRecording(BaseException):
    """Stops a run where the recording ends."""


class TaskJournal:
    """The calls of a task while it runs."""

    def __init__(self, key: str = "", step: int = 0, bases: Mapping[str, Sequence[Any]] | None = None) -> None:
        self.key = key
        self.step = step
        self.bases: dict[str, Sequence[Any]] = dict(bases or {})
        """The lists that inputs refer to, by name."""
        self.calls: list[Call] = []
        self.root: object = None
        """The run that the task is part of."""
        self._events = itertools.count(1)

    def begin(self, kind: str, name: str, given: Any) -> Call:
        """Record that a call begins."""
        call = Call(kind, name, given, next(self._events), began=time.time_ns() if kind in _TIMED else 0)
        self.calls.append(call)
        return call

    def end(self, call: Call, result: Any = None, error: BaseException | None = None) -> None:
        """Record how a call ended."""
        call.end, call.result = next(self._events), result
        call.took = max(0, time.time_ns() - call.began) if call.began else 0
        call.error = None if error is None else store_error(error)

    def invoke(self, kind: str, name: str, given: Any, function: Callable[[], Any]) -> Any:
        """Call a function, and record it."""
        with self._recorded(kind, name, given) as results:
            results.append(function())
        return results[0]

    async def ainvoke(self, kind: str, name: str, given: Any, function: Callable[[], Any]) -> Any:
        """Call and await a function, and record it."""
        with self._recorded(kind, name, given) as results:
            results.append(await function())
        return results[0]

    @contextmanager
    def _recorded(self, kind: str, name: str, given: Any) -> Iterator[list[Any]]:
        """Record the call that is made in the block, which adds its result to the list."""
        call, results = self.begin(kind, name, snapshot(given)), list[Any]()
        try:
            with _inside_call():
                yield results
        except BaseException as error:
            self.end(call, error=error)
            raise
        self.end(call, snapshot(results[0]))

    async def choose_version(self, change: str, function: Callable[[], Awaitable[int]]) -> int:
        """Return which version of the code to follow at a change of it, and record it."""
        found: int = await self.ainvoke("version", change, None, function)
        return found

    def to_record(self) -> list[list[Any]]:
        """Return the stored form of the calls that ended, or were cancelled."""
        return [call.to_record() for call in self.calls]


IsEqual: TypeAlias = Callable[[str, Any, Any], str | None]
"""Compares the input of a recorded call of some kind with another one: returns None, or the difference as text."""


@dataclass(slots=True)
class ReplayJournal(TaskJournal):
    """The recorded calls of a task, as they are answered in a replay."""

    key: str
    step: int
    recorded: list[Call]
    compare: IsEqual
    report: Callable[[Divergence], None]
    at_end: bool = False
    """Whether the recording ends in this task: a further call is no divergence."""
    questions: Sequence[Any] = ()
    """The questions that the task asked when it was interrupted, after these calls."""
    bases: dict[str, Any] = field(default_factory=dict)
    root: object = None
    skipped: dict[int, set[int]] = field(default_factory=dict)
    """Of calls that were made, those that were made before them in the recording, and not yet here."""
    left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = list(range(len(self.recorded)))

    def match(self, kind: str, name: str, given: Any) -> Call:
        """Return the recorded call that answers a call. Raises `DivergedRun` if there is none."""
        candidates = [n for n in self.left if (self.recorded[n].kind, self.recorded[n].name) == (kind, name)]
        difference, found = "", None
        for number in candidates:
            problem = self.compare(kind, self.recorded[number].input, given)
            if problem is None:
                found = number
                break
            difference = difference or problem
        described = Call(kind, name, None, 0).describe()
        if found is None:
            if candidates:
                self._diverge("input", f"the input of {described} changed", candidates[0], difference)
            if self.at_end and not self.left:
                raise EndOfRecording
            if self.questions and not self.left:
                what = f"{described} is called, and the recorded run waited for an answer before"
                self._diverge("interrupt", what, len(self.recorded), _diff_questions(self.questions, ()))
            self._diverge("call", self._other_call(described), self.left[0] if self.left else len(self.recorded))
        assert found is not None  # noqa: S101 - the others were raised
        call = self.recorded[found]
        self._check_order(found)
        self.left.remove(found)
        return call

    def _check_order(self, number: int) -> None:
        """Diverge if the code made a later call first. That a call was over before another one began may be chance, if
        they are parallel: it counts only if the same code makes both, one after the other."""
        earlier = _last_call.get()
        _last_call.set(_MadeCall(self, number, earlier))
        while earlier is not None:
            if earlier.journal is self and number in self.skipped.get(earlier.number, ()):
                late, first = self.recorded[number].describe(), self.recorded[earlier.number].describe()
                self._diverge("order", f"{first} is called before {late}, and was after it", number)
            earlier = earlier.earlier
        start = self.recorded[number].start
        skipped = {n for n in self.left if n != number and 0 < self.recorded[n].end < start}
        if skipped:
            self.skipped[number] = skipped

    def _is_optional(self, number: int) -> bool:
        """Return whether a call need not be made here: such as one that may have been made inside a model."""
        call = self.recorded[number]
        if call.kind == "version":
            return True  # the code needs it no more
        return call.kind not in ("model", "tool") and any(
            each.kind == "model" and each.start < call.start and call.end < each.end for each in self.recorded
        )

    def _other_call(self, described: str) -> str:
        if not self.recorded:
            return f"{described} is called, and no call of this task is recorded: it made none, or they were pruned"
        if not self.left:
            return f"{described} is called, and the recording has no further call here"
        return f"{described} is called, and in the recording {self.recorded[self.left[0]].describe()}"

    def invoke(self, kind: str, name: str, given: Any, function: Callable[[], Any]) -> Any:  # noqa: ARG002
        """Return the recorded result; the function is not called."""
        call = self.match(kind, name, given)
        block_if_cancelled(call)
        return answer(call)

    async def ainvoke(self, kind: str, name: str, given: Any, function: Callable[[], Any]) -> Any:  # noqa: ARG002
        """Return the recorded result; the function is not called."""
        call = self.match(kind, name, given)
        await wait_if_cancelled(call)
        return answer(call)

    async def choose_version(self, change: str, function: Callable[[], Awaitable[int]]) -> int:  # noqa: ARG002
        """Return the recorded version; 0 if the recorded code did not know of the change."""
        recorded = ((self.recorded[n].kind, self.recorded[n].name, n) for n in self.left)
        found = next((n for kind, name, n in recorded if (kind, name) == ("version", change)), None)
        if found is None:
            return 0
        self.left.remove(found)
        return int(answer(self.recorded[found]))

    def close(self) -> None:
        """Report the recorded calls that the task did not make."""
        missing = [n for n in self.left if not self._is_optional(n)]
        if missing:
            first = missing[0]
            what = f"{self.recorded[first].describe()} is not called, and was in the recording"
            self.report(Divergence("missing", what, self.step, self.key, first))

    def compare_questions(self, asked: Sequence[Any]) -> None:
        """Report if the task asks something else than was recorded when it is interrupted, or is or was not."""
        diff = _diff_questions(self.questions, asked)
        if not diff:
            return
        if not asked:
            what = "the run does not wait here, and the recorded one waited for an answer"
        elif not self.questions:
            what = "the run waits here for an answer, and the recorded one did not"
        else:
            what = "the run asks something else here than the recorded one"
        self.report(Divergence("interrupt", what, self.step, self.key, len(self.recorded), diff))

    def _diverge(self, kind: DivergenceKind, what: str, number: int, diff: str = "") -> None:
        self.report(Divergence(kind, what, self.step, self.key, number, diff))
        raise DivergedRun(what)


def _diff_questions(recorded: Sequence[Any], asked: Sequence[Any]) -> str:
    """Return the difference of what interrupts ask, in any order, as a diff; empty if there is none."""
    before, after = (sorted(map(plain, each), key=repr) for each in (recorded, asked))
    return difference(before, after) or ""


class _MadeCall(NamedTuple):
    """A call of a replay, and the one that the same code made before it."""

    journal: ReplayJournal
    number: int
    earlier: _MadeCall | None


_last_call: ContextVar[_MadeCall | None] = ContextVar("last call that was made here", default=None)


async def record_call(kind: str, name: str, given: Any, function: Callable[[], Awaitable[Any]]) -> Any:
    """Call and await a function; in the journal of the task that runs here, if there is one."""
    journal = current_journal.get()
    return await (function() if journal is None else journal.ainvoke(kind, name, given, function))


def answer(call: Call) -> Any:
    """Return the result of a recorded call, or raise its error."""
    if call.error is not None:
        raise restore_error(call.error)
    return copy.deepcopy(call.result)


async def wait_if_cancelled(call: Call) -> None:
    """Wait, if a call was cancelled, until it is here, too: whoever cancels it sees the same as in the recorded run,
    such as a timeout. Only the loop of a replay knows how to wait."""
    if call.is_cancelled:
        wait = getattr(asyncio.get_running_loop(), "wait_for_cancellation", None)
        if wait is not None:
            await wait(call.describe())


def block_if_cancelled(call: Call) -> None:
    """Never return, if nobody waited for a call, or cancelled it: in a thread that the caller gave up on."""
    if call.is_cancelled:
        threading.Event().wait()


def snapshot(value: Any) -> Any:
    """Return a value as it is now: the caller may change it before it is stored."""
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what cannot be copied is hardly stored, either
        return value


current_journal: ContextVar[TaskJournal | None] = ContextVar("journal of the task that runs here", default=None)
is_inside_call: ContextVar[bool] = ContextVar("whether a recorded function runs here", default=False)
"""Calls inside a recorded function are part of its call, and not recorded on their own: a replay does not run it."""


@contextmanager
def _inside_call() -> Iterator[None]:
    before, inside = current_journal.set(None), is_inside_call.set(True)
    try:
        yield
    finally:
        is_inside_call.reset(inside)
        current_journal.reset(before)


def encode_items(items: Sequence[Any], bases: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return items with references in place of those that are in one of the bases, which are stored anyway: a run of
    them is `[name, first, count]`, and another item is a list of itself."""
    places = {name: dict(zip(map(id, base), range(len(base)), strict=True)) for name, base in bases.items()}
    found: list[Any] = []
    at = 0
    while at < len(items):
        item = items[at]
        name, first = next(((name, each[id(item)]) for name, each in places.items() if id(item) in each), ("", 0))
        count = _count_same(items[at:], bases[name][first:]) if name else 1
        found.append([name, first, count] if name else [item])
        at += count
    return found


def _count_same(items: Sequence[Any], base: Sequence[Any]) -> int:
    """Return how many items at the start are those of a base. Quick: mostly it is all of a chat, at each turn."""
    if all(map(is_, items, base)):
        return min(len(items), len(base))
    return next(at for at, (a, b) in enumerate(zip(items, base, strict=False)) if a is not b)


def decode_items(encoded: Iterable[Any], bases: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the items that were encoded."""
    items: list[Any] = []
    for each in encoded:
        if len(each) == 3 and isinstance(each[0], str):
            name, first, count = each
            found = bases.get(name, ())
            items += list(found[first : first + count]) or [MISSING] * count
        else:
            items.append(each[0])
    return items


class RecordedError(Exception):
    """An error of a class that cannot be stored or is not known here, by its name and its text."""


def store_error(error: BaseException) -> Any:
    """Return an error as it is recorded: as it is, or else the name of its class and its text."""
    try:
        Codec().pack(error)
    except HoldfastError:
        kind = type(error)
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "text": str(error)[:_MAX_ERROR]}
    return error


def restore_error(stored: Any) -> BaseException:
    """Return a recorded error. One whose class is not loaded, or takes other arguments, is a `RecordedError`."""
    if isinstance(stored, BaseException):
        return stored
    if not isinstance(stored, Mapping):
        return RecordedError(str(stored)[:_MAX_ERROR])
    module, _, name = str(stored.get("class", "")).partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    text = str(stored.get("text", ""))
    if isinstance(found, type) and issubclass(found, BaseException):
        with suppress(TypeError):  # of a class with a layout of its own
            error: BaseException = BaseException.__new__(found, text)  # none of its own code runs
            return error
    return RecordedError(f"{name}: {text}")


_SALT = 8


def digest_call(call: list[Any]) -> list[Any]:
    """Return a call with a digest of its input and result, with a salt of its own: equal ones do not look equal."""
    kind, name, start, end, *rest = call
    times = {key: value for outcome in rest[2:] for key, value in outcome.items() if key == "time"}
    salt = os.urandom(_SALT)
    digest = hashlib.blake2b(repr(plain(rest)).encode(), digest_size=16, salt=salt).hexdigest()
    return [kind, name, start, end, f"blake2b:{salt.hex()}:{digest}", None, *([times] if times else ())]


def pack_recording(
    codec: Codec, record: Mapping[str, Any], redact: Callable[[bytes], bytes], protection: Protection | None
) -> bytes:
    """Pack the record of a task: without what looks sensitive, if its mode is `redacted`, and always without what the
    policies of the store do not let in, after which it is `redacted`, too."""
    mode = record.get("mode", "full")
    packed = codec.pack(dict(record))
    found = redact(packed) if mode == "redacted" else packed
    if protection is not None:
        found = protection.redact(found)
    if found == packed or mode != "full":
        return found
    return codec.pack({**codec.unpack(found), "mode": "redacted"})
