"""Drivers of the engine's coroutines, for sync callers and for asyncio.

The engine is written once, as coroutines that await only the `Suspension`s of a store. `run` waits in the calling
thread; `arun` awaits. `sync_and_async` turns one coroutine function into a method of a sync class and of an async one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import update_wrapper
from operator import methodcaller
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from holdfast._lazy import load
from holdfast.backends.interface import Suspension

if TYPE_CHECKING:
    import asyncio

    from holdfast.backends.runtime.metrics import MetricsRegistry

__all__ = [
    "AsyncApi",
    "Part",
    "Pause",
    "SyncApi",
    "arun",
    "drive",
    "make_both",
    "run",
    "sync_and_async",
    "sync_or_async",
]

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
        if isinstance(value, sync_and_async | sync_or_async):
            setattr(cls, name, getattr(value, form))


class sync_and_async(Generic[P, T]):  # noqa: N801 - used as a decorator
    """A method written as a coroutine function, for sync and async classes alike.

    In a subclass of `SyncApi` it is called and returns; in a subclass of `AsyncApi` it is awaited. Through the class,
    as in `Operations.put(store, …)`, it returns the coroutine itself, for other operations to await.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._sync, self._async = make_both(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = self._function = function

    def __call__(self, instance: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._function(instance, *args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> sync_and_async[P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return MethodType(self._sync if isinstance(instance, SyncApi) else self._async, instance)


class sync_or_async(Generic[P, T, A]):  # noqa: N801 - used as a decorator
    """A method that does not wait, with one result for a sync class and another for an async one."""

    def __init__(self, sync: Callable[Concatenate[Any, P], T], other: Callable[Concatenate[Any, P], A]) -> None:
        self._sync, self._async = sync, other
        self.__doc__ = other.__doc__ = sync.__doc__
        self.__wrapped__ = sync

    @overload
    def __get__(self, instance: None, owner: type) -> sync_or_async[P, T, A]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, A]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return MethodType(self._sync if isinstance(instance, SyncApi) else self._async, instance)


class Part(Generic[T, A]):
    """A part of an object, such as `store.audit`: of one class where operations are called, and of the class with the
    same name after `Async` where they are awaited. Their module is loaded when it is first used."""

    def __init__(
        self, place: str, doc: str, make: Callable[[Any, Any], Any] = lambda kind, owner: kind(owner._handle)
    ) -> None:
        self._module, _, self._name = place.rpartition(".")
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
        name = self._name if isinstance(instance, SyncApi) else f"Async{self._name}"
        return self._make(load(self._module, name), instance)


class Pause(Suspension[None]):
    """A pause of some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> None:
        time.sleep(self._seconds)

    def watch(self) -> asyncio.Future[None]:
        import asyncio

        return asyncio.ensure_future(asyncio.sleep(self._seconds))
