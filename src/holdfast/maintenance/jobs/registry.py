"""The types of jobs that a program knows: those of this package, plug-ins, and its own."""

from __future__ import annotations

from difflib import get_close_matches

from holdfast.errors import ConfigError, InvalidError
from holdfast.maintenance.jobs.builtin import KINDS
from holdfast.maintenance.jobs.types import JobType

GROUP = "holdfast.jobs"
"""The entry point group of kinds."""


class JobTypes:
    """The kinds of jobs that are known to a program."""

    def __init__(self) -> None:
        self._own: dict[str, JobType] = {}

    def add(self, kind: JobType) -> None:
        """Know one more."""
        if kind.name in self.names():
            raise InvalidError(f"there is a kind of jobs {kind.name!r} already")
        self._own[kind.name] = kind

    def names(self) -> list[str]:
        """The names of all kinds."""
        from importlib.metadata import entry_points  # takes its time

        return sorted({*KINDS, *self._own, *entry_points(group=GROUP).names})

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in KINDS or name in self.names()

    def get(self, name: str) -> JobType:
        """A kind by its name."""
        found = self._own.get(name) or KINDS.get(name)
        if found is not None:
            return found
        from importlib.metadata import entry_points

        for entry in entry_points(group=GROUP, name=name):
            loaded = entry.load()
            if not isinstance(loaded, JobType) or loaded.name != name:
                raise ConfigError(f"the plug-in {entry.value} is no kind of jobs of the name {name!r}")
            return loaded
        near = get_close_matches(str(name), self.names(), 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise InvalidError(f"there is no kind of jobs {name!r}", hint=f"{meant}There are {', '.join(self.names())}")
