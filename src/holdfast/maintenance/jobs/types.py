"""Types of jobs: a function, and a check of its settings.

The types of this package are in `holdfast.maintenance.jobs.builtin`. Other packages provide theirs as entry points of
the group `holdfast.jobs`, `JobType`s under their names; a program adds its own with `JobTypes.add`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from holdfast.errors import InvalidError
from holdfast.security.handle import HasHandle, StoreHandle


class JobContextBase(Protocol):
    """The argument of a job's function, in this layer. Programs use `holdfast.jobs.JobContext`."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The checked settings."""

    @property
    def store(self) -> HasHandle:
        """The store, for its tenant."""

    @property
    def mark(self) -> str:
        """The mark of the last run, if that did not finish."""

    def keep(self, mark: str) -> None:
        """Set a mark from which the next run can resume, if this one is stopped, fails or is killed. The last one is
        stored from time to time, and at the end."""

    def progress(self, done: int, total: int | None, what: str) -> None:
        """Report the progress; call it often. If the job is to stop, or lost its lease, it raises an exception that has
        to end the job."""


class JobHost(Protocol):
    """A store that has jobs."""

    _handle: StoreHandle

    def _for_jobs(self) -> HasHandle:
        """Return the store that jobs work on, with blocking operations."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job: a summary, and whether there were no findings."""

    summary: str
    ok: bool = True


Work: TypeAlias = Callable[[Any], Any]
"""Does a job; called with a `JobContext`. Either a plain function, or a coroutine function that awaits only operations
of the store, as in `await ThreadOperations.put(job.store.thread("chat-1"), state)`. Returns a `JobResult`, a summary,
or None."""

Check: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Raises `InvalidError` if settings are wrong."""


def no_settings(settings: Mapping[str, Any]) -> None:
    """Check the settings of a type that has none."""
    known_only(settings)


def known_only(settings: Mapping[str, Any], **types: type) -> None:
    """Refuse settings with other names, and values of other types."""
    for name, value in settings.items():
        if name not in types:
            known = f"There are {', '.join(types)}" if types else "It has none"
            raise InvalidError(f"this kind of job has no setting {name!r}", hint=known)
        if type(value) is not types[name]:
            expected = types[name].__name__
            raise InvalidError(
                f"the setting {name} is of type {expected}, not {type(value).__name__}", where=repr(value)[:80]
            )


@dataclass(frozen=True, slots=True)
class JobType:
    """A type of jobs."""

    name: str
    about: str
    """A one-line description."""
    work: Work
    check: Check = no_settings
    settings: Mapping[str, str] = field(default_factory=dict)
    """One-line descriptions of its settings, by name."""
