"""Kinds of jobs: what scheduled work there is, by name.

A kind is a function and a check of its settings. Those of this package are in `holdfast.maintenance.jobs.builtin`;
other packages plug theirs in through the entry point group `holdfast.jobs`, whose objects are `JobType`s under their
names; a program adds its own with `Kinds.add`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from holdfast.errors import InvalidError
from holdfast.security.handle import HasHandle, StoreHandle


class JobContextBase(Protocol):
    """What a job is given when it runs, as far as this layer knows it. Programs use `holdfast.jobs.JobContext`."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its settings, checked."""

    @property
    def store(self) -> HasHandle:
        """The store, for its tenant."""

    @property
    def mark(self) -> str:
        """What the last run kept with `keep`, if it did not get to its end."""

    def keep(self, mark: str) -> None:
        """Have the next run know how far this one is, should it be stopped, fail or be killed. Stored from time to
        time, and at the end; what is kept last counts."""

    def progress(self, done: int, total: int | None, what: str) -> None:
        """Tell how far it is, often. If the job is to stop, or its lease went to another, this does not return: what
        it raises is to end the job."""


class JobHost(Protocol):
    """A store that has jobs."""

    _handle: StoreHandle

    def _for_jobs(self) -> HasHandle:
        """The store that jobs work on, whose operations wait in the calling thread."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: in words, and whether that is well."""

    summary: str
    ok: bool = True


Work: TypeAlias = Callable[[Any], Any]
"""Does a job, given a `JobContext`. Either a plain function, or a coroutine function that awaits nothing but operations
of the store, as in `await ThreadOperations.put(job.store.thread("chat-1"), state)`. Returns a `JobResult`, or a summary
in words, or nothing."""

Check: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Raises `InvalidError` if settings are wrong."""


def no_settings(settings: Mapping[str, Any]) -> None:
    """The check of a kind that has no settings."""
    known_only(settings)


def known_only(settings: Mapping[str, Any], **types: type) -> None:
    """Refuse settings of other names, and values of other types."""
    for name, value in settings.items():
        if name not in types:
            known = f"There are {', '.join(types)}" if types else "It has none"
            raise InvalidError(f"this kind of job has no setting {name!r}", hint=known)
        if type(value) is not types[name]:
            wanted = types[name].__name__
            raise InvalidError(
                f"the setting {name} is of type {wanted}, not {type(value).__name__}", where=repr(value)[:80]
            )


@dataclass(frozen=True, slots=True)
class JobType:
    """A kind of job."""

    name: str
    about: str
    """What it does, in a line."""
    work: Work
    check: Check = no_settings
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it can be told, by name, each in a line."""
