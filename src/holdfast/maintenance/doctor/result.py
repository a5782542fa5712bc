"""What the doctor says of one thing: how it is, what was found, and the remedy."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class CheckLevel(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing has to be done."""
    WARNING = "warning"
    """Works now, and may not later."""
    PROBLEM = "problem"
    """Does not work, or data are at risk."""


class CheckResult(NamedTuple):
    """What was looked at, and what was found. `code` stays the same from release to release."""

    code: str
    level: CheckLevel
    found: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return self.level in (CheckLevel.OK, CheckLevel.NOTE)


def ok(code: str, found: str) -> CheckResult:
    """All is well."""
    return CheckResult(code, CheckLevel.OK, found)


def note(code: str, found: str, remedy: str = "") -> CheckResult:
    """Good to know."""
    return CheckResult(code, CheckLevel.NOTE, found, remedy)


def warning(code: str, found: str, remedy: str) -> CheckResult:
    """May become a problem."""
    return CheckResult(code, CheckLevel.WARNING, found, remedy)


def problem(code: str, found: str, remedy: str) -> CheckResult:
    """Is a problem."""
    return CheckResult(code, CheckLevel.PROBLEM, found, remedy)
