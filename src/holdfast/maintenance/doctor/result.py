"""What the doctor says of one thing: how it is, what was found, and the remedy."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing has to be done."""
    WARNING = "warning"
    """Works now, and may not later."""
    PROBLEM = "problem"
    """Does not work, or data are at risk."""


class Check(NamedTuple):
    """What was looked at, and what was found. `code` stays the same from release to release."""

    code: str
    level: Level
    found: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return self.level in (Level.OK, Level.NOTE)


def ok(code: str, found: str) -> Check:
    """All is well."""
    return Check(code, Level.OK, found)


def note(code: str, found: str, remedy: str = "") -> Check:
    """Good to know."""
    return Check(code, Level.NOTE, found, remedy)


def warning(code: str, found: str, remedy: str) -> Check:
    """May become a problem."""
    return Check(code, Level.WARNING, found, remedy)


def problem(code: str, found: str, remedy: str) -> Check:
    """Is a problem."""
    return Check(code, Level.PROBLEM, found, remedy)
