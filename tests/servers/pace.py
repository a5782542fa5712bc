"""Stores that give up soon, on machines that are slow.

A test in which a store gives up has to wait for that; but a store that gives up after a second does so as well where a
busy machine takes that long to do what it is asked. So it is in a hurry only while it is to give up, and has more time
if even so much was too little to come to what the test is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.backends.async_backend import LoopBackend
from holdfast.backends.interface import Backend
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.store.store import Store


class TooSoon(AssertionError):
    """The time was too short for the machine."""


@contextmanager
def hurried(store: Store | Backend, seconds: float) -> Iterator[None]:
    """A store that goes on trying for so many seconds only, while the block runs."""
    backend = store._engine.context.stored if isinstance(store, Store) else store
    assert isinstance(backend, LoopBackend)
    timed: list[Any] = [backend]
    if isinstance(backend, ObjectStoreBackend):
        timed.append(backend._opened().queues)
    before = backend._timeout
    for each in timed:
        each._timeout = seconds
    try:
        yield
    finally:
        for each in timed:
            each._timeout = before


def given_time(scenario: Callable[[float], None], seconds: float) -> None:
    """Go through something that takes so many seconds; with ever more of them where that was too soon."""
    for factor in (1, 8):
        try:
            scenario(factor * seconds)
            return
        except TooSoon:
            continue
    scenario(64 * seconds)
