"""Results of the doctor's checks: the level, the finding, and the remedy."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast._fields import computed


class CheckLevel(StrEnum):
    """How serious a result is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; there is nothing to do."""
    WARNING = "warning"
    """Works now, and may not later."""
    PROBLEM = "problem"
    """Does not work, or data are at risk."""


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a check. Its `code` stays the same from release to release."""

    code: str
    level: CheckLevel
    found: str
    remedy: str = ""

    @property
    @computed
    def ok(self) -> bool:
        """Whether there is nothing to do."""
        return self.level in (CheckLevel.OK, CheckLevel.NOTE)


def ok(code: str, found: str) -> CheckResult:
    """Return a result without a finding."""
    return CheckResult(code, CheckLevel.OK, found)


def note(code: str, found: str, remedy: str = "") -> CheckResult:
    """Return a result that is good to know."""
    return CheckResult(code, CheckLevel.NOTE, found, remedy)


def warning(code: str, found: str, remedy: str) -> CheckResult:
    """Return a result that may become a problem."""
    return CheckResult(code, CheckLevel.WARNING, found, remedy)


def problem(code: str, found: str, remedy: str) -> CheckResult:
    """Return a result that is a problem."""
    return CheckResult(code, CheckLevel.PROBLEM, found, remedy)
