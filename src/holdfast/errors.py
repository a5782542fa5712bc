"""Every error Holdfast raises, as one tree.

::

    HoldfastError
    ├── NotFound        (LookupError)      what was named is not there
    ├── Conflict                           the place in the line is taken
    ├── Transient                          may work when tried again; the only kind that is retried
    │   └── Uncertain                      and what was to be done may have been done
    ├── Unavailable     (OSError)          the store is closed, or failed and must be opened anew
    ├── Corrupt         (ValueError)       stored bytes are not what was written
    ├── Denied          (PermissionError)  the caller may not do this, or the key is gone
    │   └── Veto                           a hook refused the change
    ├── Unsupported     (TypeError)        this cannot be kept or done here
    ├── Invalid         (ValueError)       the caller's input breaks a rule
    │   ├── CircularReference              a value contains itself
    │   ├── TooDeep                        a value is nested too deeply
    │   └── TooLarge                       a value exceeds a size limit
    ├── Unanswered      (TimeoutError)     no answer to a request came in time
    ├── HandlerFailed                      who answers a request, or works on an item, raised an error
    ├── SnapshotError                      about a snapshot, each also of the kind beside it
    │   ├── SnapshotNotFound    (NotFound)     there is none at that place
    │   ├── SnapshotExists      (Conflict)     there is one already, and it is not overwritten
    │   ├── SnapshotCorrupt     (Corrupt)      it is damaged, forged, or none
    │   ├── SnapshotRefused     (Denied)       it holds, or would hold, what is not let through
    │   ├── SnapshotUnsupported (Unsupported)  this cannot be kept in one, or not be read by this release
    │   ├── SnapshotInvalid     (Invalid)      what the caller gave does not fit it
    │   └── SnapshotTooLarge    (TooLarge)     it exceeds a limit
    └── Config                             settings are wrong or something is not installed

A message says what is wrong, where, and what to do about it. The three parts are kept as attributes,
so that a program can show them its own way.

Each has a `code` that stays the same from release to release: that of its class, or a finer one, where a class covers
situations that are looked up separately (`FINER`). `holdfast explain CODE` says what it means and what to do.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """Base of all errors of this library."""

    code: str = "error"

    def __init__(self, what: str, *, where: str = "", hint: str = "", code: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        if code:
            self.code = code
        super().__init__(what)

    def __str__(self) -> str:
        text = f"{self.what} (at {self.where})" if self.where else self.what
        return f"{text}. {self.hint}" if self.hint else text


class NotFound(HoldfastError, LookupError):
    """What was named is not there."""

    code = "not-found"


class Conflict(HoldfastError):
    """Somebody else was first: the place in the line is taken, or both sides changed the same thing."""

    code = "conflict"
    clashes: tuple[Any, ...] = ()
    """What both sides changed, where a merge was refused: `holdfast.history.merge.Clash`es."""


class Transient(HoldfastError):
    """A failure that may pass. The only kind that is retried."""

    code = "transient"


class Uncertain(Transient):
    """No answer came: a change may have been made, or may yet be. Saving again under the same id is safe."""

    code = "uncertain"


class Unavailable(HoldfastError, OSError):
    """The store is closed, or its medium failed: it does nothing more until it is opened anew."""

    code = "unavailable"


class Corrupt(HoldfastError, ValueError):
    """Stored bytes are damaged, forged, or not what they claim to be."""

    code = "corrupt"


class Denied(HoldfastError, PermissionError):
    """The caller may not do this, or the key that would allow it is missing."""

    code = "denied"


class Veto(Denied):
    """A hook refused the change. Raised by hooks, with the reason: `raise Veto("the budget is spent")`."""

    code = "vetoed"


class Unsupported(HoldfastError, TypeError):
    """A value, format or operation that cannot be handled here."""

    code = "unsupported"


class Invalid(HoldfastError, ValueError):
    """The caller's input breaks a rule."""

    code = "invalid"


class CircularReference(Invalid):
    """A value contains itself."""

    code = "circular-reference"


class TooDeep(Invalid):
    """A value is nested more deeply than the format allows."""

    code = "too-deep"


class TooLarge(Invalid):
    """A value, or what a record claims to hold, exceeds a size limit."""

    code = "too-large"


class Unanswered(HoldfastError, TimeoutError):
    """No answer to a request came in time. The request was cancelled: nobody will answer it any more."""

    code = "unanswered"


class HandlerFailed(HoldfastError):
    """Who was to answer a request raised an error: `kind` is the name of its class there, `message` its text."""

    code = "handler-failed"

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", code: str = "", kind: str = "", message: str = ""
    ) -> None:
        super().__init__(what, where=where, hint=hint, code=code)
        self.kind = kind
        self.message = message


class SnapshotError(HoldfastError):
    """About a snapshot. What is raised is one of the kinds below, or of the general ones where storage is at fault."""

    code = "snapshot"


class SnapshotNotFound(SnapshotError, NotFound):
    """There is no snapshot at that place."""

    code = "snapshot-not-found"


class SnapshotExists(SnapshotError, Conflict):
    """There is something at that place already, and it is not overwritten unasked."""

    code = "snapshot-exists"


class SnapshotCorrupt(SnapshotError, Corrupt):
    """The file is damaged, forged, cut off, or no snapshot at all."""

    code = "snapshot-corrupt"


class SnapshotRefused(SnapshotError, Denied):
    """It holds something that is not let through: a class that is not allowed, a secret, a template that runs code."""

    code = "snapshot-refused"


class SnapshotUnsupported(SnapshotError, Unsupported):
    """This cannot be kept in a snapshot, or the snapshot was made by a newer release."""

    code = "snapshot-unsupported"


class SnapshotInvalid(SnapshotError, Invalid):
    """What the caller gave does not fit the snapshot: tools that differ, a secret that is missing, a wrong name."""

    code = "snapshot-invalid"


class SnapshotTooLarge(SnapshotError, TooLarge):
    """The snapshot, or what it unpacks to, exceeds a limit."""

    code = "snapshot-too-large"


class Config(HoldfastError):
    """Settings are wrong, or an optional part is not installed."""

    code = "config"


FINER = {
    "no-store": NotFound,
    "busy": Transient,
    "disk-full": Transient,
    "closed": Unavailable,
    "write-failed": Unavailable,
    "not-installed": Config,
    "no-store-named": Config,
    "under-way": Conflict,
    "lease-lost": Conflict,
    "version-mismatch": Conflict,
    "session-ended": Denied,
    "grant-revoked": Denied,
    "grant-expired": Denied,
    "hook-failed": Veto,
    "no-responder": Unanswered,
    "responder-died": Unanswered,
    "agent-conflict": Conflict,
    "agent-exists": Conflict,
    "agent-class-unknown": NotFound,
    "agent-schema": Unsupported,
    "agent-invalid": Invalid,
    "no-transition": Invalid,
    "nested-transition": Invalid,
    "transition-incomplete": Conflict,
    "transfer-refused": Denied,
    "tool-denied": Denied,
}
"""Codes that say more than their class does."""

BY_CODE: dict[str, type[HoldfastError]] = {
    each.code: each for each in list(vars().values()) if isinstance(each, type) and issubclass(each, HoldfastError)
}
"""The classes by their codes."""
