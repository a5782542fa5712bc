"""Drivers of the engine's coroutines, for sync callers and for asyncio.

The engine is written once, as coroutines that await only the `Suspension`s of a store. `run` waits in the calling
thread; `arun` awaits. `operation` turns one coroutine function into a method of a sync class and of an async one, and
declares what interfaces must know of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import update_wrapper, wraps
from operator import methodcaller
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast._lazy import load
from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Suspension, reads_may_lag

if TYPE_CHECKING:
    import asyncio

    from holdfast.backends.runtime.metrics import MetricsRegistry

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
A = TypeVar("A")

_watch = methodcaller("watch")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this thread, and return its result."""
    try:
        suspension = coroutine.send(None)
        while True:
            try:
                value = suspension.wait()
            except BaseException as error:  # noqa: BLE001 - raised in the coroutine
                suspension = coroutine.throw(error)
            else:
                suspension = coroutine.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def complete(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do work even if the task is cancelled or Ctrl-C is pressed just now: once more, since it may be half done. The
    interruption is raised then."""
    try:
        return await work()
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        with suppress(Exception):  # the caller must see the interruption
            await work()
        raise


def arun(coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Run a coroutine in the running event loop, and return its result."""
    return drive(coroutine, _watch)


async def drive(coroutine: Coroutine[Any, Any, T], wait: Callable[[Suspension[Any]], Awaitable[Any]]) -> T:
    """Run a coroutine, and return its result. `wait` awaits each of its suspensions."""
    try:
        suspension = coroutine.send(None)
        while True:
            try:
                value = await wait(suspension)
            except BaseException as error:  # noqa: BLE001 - raised in the coroutine
                suspension = coroutine.throw(error)
            else:
                suspension = coroutine.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


def make_both(
    function: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Return two methods for a coroutine function: one that waits in the calling thread, one to be awaited.

    Calls are measured if the object has a `_handle` of a store.
    """
    name = operation_name(function.__qualname__)
    inner: Any = function
    while inner is not None:  # an error of a call names the class that the caller has
        inner.__qualname__ = inner.__qualname__.replace("Operations.", ".")
        inner = getattr(inner, "__wrapped__", None)

    def sync(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        metrics = _metrics_of(self)
        if metrics is None:
            return run(function(self, *args, **kwargs))
        start = time.perf_counter()
        try:
            result = run(function(self, *args, **kwargs))
        except BaseException as error:
            metrics.end_operation(name, start, error)
            raise
        metrics.end_operation(name, start)
        return result

    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        metrics = _metrics_of(self)
        if metrics is None:
            return await arun(function(self, *args, **kwargs))
        start = time.perf_counter()
        try:
            result = await arun(function(self, *args, **kwargs))
        except BaseException as error:
            metrics.end_operation(name, start, error)
            raise
        metrics.end_operation(name, start)
        return result

    update_wrapper(sync, function)
    update_wrapper(awaited, function)
    return sync, awaited


def _metrics_of(operations: object) -> MetricsRegistry | None:
    """Return the registry of the store that an object works on: by its handle, an agent's persister, or the store of a
    saver."""
    handle = getattr(operations, "_handle", None)
    if handle is None:
        handle = getattr(getattr(getattr(operations, "_persister", None), "line", None), "handle", None)
    if handle is None:
        handle = getattr(getattr(operations, "_checkpoints", None), "_handle", None)
    engine = getattr(handle, "engine", None)  # classes of programs may have a `_handle` of another kind
    return None if engine is None else engine.context.metrics


def operation_name(qualified: str) -> str:
    """Return the name of an operation in metrics: `thread.put` for `ThreadOperations.put`."""
    owner, _, name = qualified.rpartition(".")
    owner = re.sub(r"^(_|Async|Holdfast)|(Operations|References|Listing)$", "", owner.rpartition(".")[2])
    return f"{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', owner).lower()}.{name.lstrip('_')}"


class SyncApi:
    """Marks classes whose operations wait in the calling thread."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _take_functions(cls, "_sync")


class AsyncApi:
    """Marks classes whose operations are awaited."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _take_functions(cls, "_async")


def _take_functions(cls: type, form: str) -> None:
    """Give a class ordinary functions for the operations that it inherits: tools and calls see methods like others."""
    inherited = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for name, value in inherited.items():
        if isinstance(value, Operation | SyncOrAsync):
            setattr(cls, name, getattr(value, form))


class Declaration(NamedTuple):
    """The facts that interfaces must know of an operation, or of all operations of a class."""

    changes: bool = False
    """Whether it changes something. One that has the parameter `dry_run` changes nothing with it."""
    confirm: bool = False
    """Whether a browser must confirm it: it gives others access, or cannot be undone."""
    rights: tuple[str, ...] | None = None
    """The rights that an identity needs; None for the usual ones: to read, or to write what it changes."""
    not_remote: str = ""
    """Why it cannot be called on a served store; empty if it can."""
    not_in_scripts: str = ""
    """Why scripts do not have it; empty if they do."""
    may_lag: bool = False
    """Whether a replica may answer it: nothing that it reads is the base of a change."""


FILES = "It reads or writes files of the host."
FUNCTION = "It takes a function."
OBJECTS = "It takes or returns an object of Python."
"""Reasons why interfaces do not have operations."""


class Operation(Generic[P, T]):
    """A method written as a coroutine function, for sync and async classes alike, with its declaration.

    In a subclass of `SyncApi` it is called and returns; in a subclass of `AsyncApi` it is awaited. Through the class,
    as in `Operations.put(store, …)`, it returns the coroutine itself, for other operations to await.
    """

    def __init__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], declaration: Declaration
    ) -> None:
        self._sync, self._async = make_both(_from_replica(function) if declaration.may_lag else function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = self._function = function
        self.declaration = declaration

    def __call__(self, instance: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._function(instance, *args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Operation[P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return MethodType(self._sync if isinstance(instance, SyncApi) else self._async, instance)


def _from_replica(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Let a replica answer what an operation reads, if its store has one and the owner calls: rights of identities are
    revoked at once."""

    @wraps(function)
    def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        reading, handle = function(self, *args, **kwargs), self._handle
        return read_behind(reading) if handle.engine.context.lags and handle.is_owner else reading

    return called


async def read_behind(reading: Coroutine[Any, Any, T], may_lag: bool = True) -> T:
    """Let a replica answer what a coroutine reads, or not."""
    token = reads_may_lag.set(may_lag)
    try:
        return await reading
    finally:
        reads_may_lag.reset(token)


def as_change(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Let no replica answer what a part of an operation reads: it changes something, as when collected records of the
    audit are written first."""
    return read_behind(work, may_lag=False) if reads_may_lag.get() else work


class _Decorator(Protocol):
    def __call__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /) -> Operation[P, T]: ...


@overload
def operation(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /) -> Operation[P, T]: ...
@overload
def operation(
    *,
    changes: bool = ...,
    confirm: bool = ...,
    rights: tuple[str, ...] = ...,
    not_remote: str = ...,
    not_in_scripts: str = ...,
    may_lag: bool = ...,
    local: str = ...,
) -> _Decorator: ...
def operation(function: Any = None, /, *, local: str = "", **declared: Any) -> Any:
    """Make an operation of a coroutine function. Without arguments, it reads, and every interface has it.

    The arguments are the fields of `Declaration`; `local` says why neither served stores nor scripts have it.
    """
    if local:
        declared |= {"not_remote": local, "not_in_scripts": local}

    def decorate(function: Any) -> Operation[Any, Any]:
        rights = getattr(function, "rights", None)  # of a function that checks them itself
        return Operation(function, Declaration(**{"rights": rights, **declared}))

    return decorate if function is None else decorate(function)


C = TypeVar("C", bound=type[Any])


def declare(
    *, confirm: bool = False, not_remote: str = "", not_in_scripts: str = "", local: str = ""
) -> Callable[[C], C]:
    """Return a decorator of a class of operations: what it declares holds for all of them."""
    declared = Declaration(confirm=confirm, not_remote=not_remote or local, not_in_scripts=not_in_scripts or local)

    def decorate(cls: C) -> C:
        cls._declaration = declared
        return cls

    return decorate


def operations_of(cls: type) -> dict[str, Operation[Any, Any]]:
    """Return the public operations of a class and of those that it derives from, by name."""
    return _declared_members(cls, Operation)


def parts_of(cls: type) -> dict[str, Part[Any, Any]]:
    """Return the parts of a class and of those that it derives from, by name."""
    return _declared_members(cls, Part)


def _declared_members(cls: type, kind: type[Any]) -> dict[str, Any]:
    inherited = [item for base in reversed(cls.__mro__) for item in vars(base).items()]
    return {name: value for name, value in inherited if isinstance(value, kind) and not name.startswith("_")}


def declaration_of(cls: type, name: str) -> Declaration | None:
    """Return the declaration of an operation, with what its class declares for all; None if there is no such."""
    found = (vars(base).get(name) for base in cls.__mro__)
    declared = next((each.declaration for each in found if isinstance(each, Operation)), None)
    if declared is None or name.startswith("_"):
        return None
    whole = class_declaration(cls)
    return declared._replace(
        confirm=declared.confirm or (whole.confirm and declared.changes),
        not_remote=declared.not_remote or whole.not_remote,
        not_in_scripts=declared.not_in_scripts or whole.not_in_scripts,
    )


def class_declaration(cls: type) -> Declaration:
    """Return what a class declares for all of its operations."""
    found: Declaration = getattr(cls, "_declaration", Declaration())
    return found


class SyncOrAsync(Generic[P, T, A]):
    """A method that does not wait, with one result for a sync class and another for an async one."""

    def __init__(self, sync: Callable[Concatenate[Any, P], T], other: Callable[Concatenate[Any, P], A]) -> None:
        self._sync, self._async = sync, other
        self.__doc__ = other.__doc__ = sync.__doc__
        self.__wrapped__ = sync

    def __set_name__(self, owner: type, name: str) -> None:
        for function in (self._sync, self._async):  # `help` describes functions under their own names only
            function.__name__, function.__qualname__ = name, f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> SyncOrAsync[P, T, A]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, A]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return MethodType(self._sync if isinstance(instance, SyncApi) else self._async, instance)


def sync_or_async(
    sync: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[Concatenate[Any, P], A]], SyncOrAsync[P, T, A]]:
    """Return a decorator of a method for async classes, which has another one for sync classes."""
    return lambda other: SyncOrAsync(sync, other)


class Part(Generic[T, A]):
    """A part of an object, such as `store.audit`: of one class where operations are called, and of the class with the
    same name after `Async` where they are awaited. Their module is loaded when it is first used."""

    class_name: str

    def __init__(
        self, place: str, doc: str, make: Callable[[Any, Any], Any] = lambda kind, owner: kind(owner._handle)
    ) -> None:
        self._module, _, self.class_name = place.rpartition(".")
        self._make = make
        self.__doc__ = doc

    @overload
    def __get__(self, instance: None, owner: type) -> Part[T, A]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> T: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> A: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        if isinstance(instance, SyncApi):
            return self._make(self.load_class(), instance)
        return self._make(load(self._module, f"Async{self.class_name}"), instance)

    def load_class(self) -> type[Any]:
        """Return the class of the part where operations are called."""
        found: type[Any] = load(self._module, self.class_name)
        return found


class Pause(Suspension[None]):
    """A pause of some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> None:
        time.sleep(self._seconds)

    def watch(self) -> asyncio.Future[None]:
        import asyncio

        return asyncio.ensure_future(asyncio.sleep(self._seconds))
