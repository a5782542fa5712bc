"""Types of jobs: a function, and a check of its settings.

The types of this package are in `holdfast.maintenance.jobs.builtin`. Other packages provide theirs as entry points of
the group `holdfast.jobs`, `JobType`s under their names; a program adds its own with `JobTypes.add`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

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
    def due_ns(self) -> int:
        """When it was due, which is the same when a run that was killed is repeated; 0 if it was run by hand."""

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

Check: TypeAlias = Callable[[Mapping[str, Any]], object]
"""Raises `InvalidError` if settings are wrong."""


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
    check: Check = known_only
    settings: Mapping[str, str] = field(default_factory=dict)
    """One-line descriptions of its settings, by name."""
    reaches_out: bool = True
    """Whether a job may name repositories, files or addresses, which the program that runs it opens."""


class Setting(NamedTuple):
    """A setting of a type of jobs: the type of its value, a one-line description, whether it must be given, and a
    function that raises `InvalidError` for a wrong value."""

    kind: type
    about: str
    required: bool = False
    parse: Callable[[Any], object] = bool


def declare(
    name: str,
    about: str,
    work: Work,
    settings: Mapping[str, Setting] = MappingProxyType({}),
    check: Check = bool,
    *,
    reaches_out: bool = True,
) -> JobType:
    """Return a type whose settings are declared. `check` is for what concerns several of them."""
    kinds = {each: setting.kind for each, setting in settings.items()}

    def check_settings(given: Mapping[str, Any]) -> None:
        known_only(given, **kinds)
        for each, setting in settings.items():
            if setting.required and not given.get(each):
                raise InvalidError(f"a job of the type {name} needs the setting {each}", hint=f"It is {setting.about}")
            if each in given:
                setting.parse(given[each])
        check(given)

    texts = {each: setting.about for each, setting in settings.items()}
    return JobType(name, about, work, check_settings, texts, reaches_out)


def select_settings(settings: Mapping[str, Any], rules: type, others: Collection[str]) -> dict[str, Any]:
    """Return the settings that are fields of a dataclass of rules. `InvalidError` for one that is neither such a field
    nor one of the others."""
    names = [each.name for each in fields(rules)]
    unknown = sorted(settings.keys() - {*names, *others})
    if unknown:
        known = ", ".join([*names, *others])
        raise InvalidError(f"this type of job has no setting {unknown[0]!r}", hint=f"There are {known}")
    return {name: value for name, value in settings.items() if name in names}


def one_of(name: str, values: Collection[str]) -> Callable[[str], None]:
    """Return a function that refuses all other values of a setting."""

    def check(value: str) -> None:
        if value not in values:
            raise InvalidError(f"{name} cannot be {value!r}", hint=f"It is one of {', '.join(values)}")

    return check
