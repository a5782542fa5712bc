"""Errors as responses: `application/problem+json`, with codes, places and hints."""

from __future__ import annotations

import re

import msgspec

from holdfast.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    RequestTimeoutError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.interfaces.cli.exit_codes import command_hint
from holdfast.interfaces.http.models import DiffModel, Problem

MEDIA_TYPE = "application/problem+json"

_BY_CODE = {"unauthenticated": 401, "wrong-host": 421, "rate-limited": 429, "version-mismatch": 412, "no-route": 404}
_BY_CLASS: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (TooLargeError, 413),
    (InvalidError, 400),
    (DeniedError, 403),
    (UnsupportedError, 422),
    (QuotaError, 507),
    (OutcomeUnknownError, 504),
    (RequestTimeoutError, 504),
    (TransientError, 503),
    (UnavailableError, 503),
    (ConfigError, 422),
    (CorruptError, 500),
)
_TITLES = {
    400: "The request is wrong",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    408: "The request took too long",
    409: "A conflict with another change",
    412: "Changed since it was read",
    413: "Too large",
    421: "A name that this server does not have",
    422: "Not supported",
    429: "Too many requests",
    500: "The store or the server has a fault",
    503: "Not available now",
    504: "No answer in time",
    507: "The quota is used up",
}
STATUSES = frozenset(_TITLES)
"""All statuses of errors."""


def status_of(error: HoldfastError) -> int:
    """Return the status of the response to an error."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((status for kind, status in _BY_CLASS if isinstance(error, kind)), 500)


class StaleError(ConflictError):
    """The thread has changed since the caller read it: `current` is HEAD now, and `diff` what changed."""

    def __init__(self, current: str | None, diff: DiffModel | None = None) -> None:
        super().__init__(
            "the thread has changed since it was read",
            where=f"HEAD is {current}",
            hint="Read it again, and repeat the change if it still applies",
            code="version-mismatch",
        )
        self.current = current
        self.diff = diff


def api_problem(error: HoldfastError) -> Problem:
    """Return the response of the API to an error. Its hint is that of the library, for programs, and commands in it are
    for whoever has the store; pages show commands (`to_problem`)."""
    hint = error.hint
    if _COMMAND.search(hint):
        hint = f"On the machine of the store: {hint}"
    elif not hint and isinstance(error, CorruptError):
        hint = "maintenance.verify() finds what is affected, and the owner of the store can repair it"
    return msgspec.structs.replace(to_problem(error), hint=hint)


_COMMAND = re.compile(r"\bholdfast [a-z]|(?<!-)--[a-z]")


def to_problem(error: HoldfastError) -> Problem:
    """Return the response to an error."""
    status = status_of(error)
    stale = error if isinstance(error, StaleError) else None
    return Problem(
        type=f"urn:holdfast:error:{error.code}",
        title=_TITLES[status],
        status=status,
        detail=error.what,
        code=error.code,
        where=error.where,
        hint=command_hint(error),
        current=None if stale is None else stale.current,
        diff=None if stale is None else stale.diff,
    )


def internal_problem() -> Problem:
    """Return the response to an error that is a bug. It tells nothing of the cause, which the log has."""
    return Problem(
        type="urn:holdfast:error:internal",
        title=_TITLES[500],
        status=500,
        detail="the server has a fault",
        code="internal",
        hint="Its log has the cause",
    )
