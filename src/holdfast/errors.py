"""Every error Holdfast raises, as one tree.

::

    HoldfastError
    ├── NotFoundError              (LookupError)       the named object does not exist
    ├── ConflictError                                  somebody else was first, or both sides changed the same thing
    │   └── ClaimLostError                             the run was taken over, or cancelled: it stores nothing more
    ├── TransientError                                 may work when tried again; the only kind that is retried
    │   └── OutcomeUnknownError                        no answer came: the change may have been made
    ├── UnavailableError           (OSError)           the store is closed, failed, or cannot be reached: open it again
    ├── CorruptError               (ValueError)        stored bytes are not what was written
    ├── DeniedError                (PermissionError)   the caller may not do this, or the key is gone
    │   └── VetoError                                  a hook refused the change
    ├── QuotaError                                     the tenant may not store more
    ├── UnsupportedError           (TypeError)         this cannot be stored or done here
    ├── InvalidError               (ValueError)        the caller's input breaks a rule
    │   ├── CircularReferenceError                     a value contains itself
    │   ├── TooDeepError                               a value is nested too deeply
    │   └── TooLargeError                              a value exceeds a size limit
    ├── RequestTimeoutError        (TimeoutError)      no answer to a request came in time
    ├── HandlerError                                   the handler of a request or of an item raised an error
    ├── ScriptError                                    a script failed, or a limit stopped it
    ├── SnapshotError                                  about a snapshot; each is also of the kind beside it
    │   ├── SnapshotNotFoundError  (NotFoundError)     there is none at that path
    │   ├── SnapshotExistsError    (ConflictError)     there is one already, and it is not overwritten
    │   ├── SnapshotCorruptError   (CorruptError)      it is damaged, forged, or no snapshot
    │   ├── SnapshotRefusedError   (DeniedError)       it holds, or would hold, what is not allowed
    │   ├── SnapshotUnsupportedError (UnsupportedError)  this cannot be stored in one, or not read by this release
    │   ├── SnapshotInvalidError   (InvalidError)      what the caller gave does not fit it
    │   └── SnapshotTooLargeError  (TooLargeError)     it exceeds a limit
    └── ConfigError                                    settings are wrong, or an optional part is not installed

A message says what is wrong, where, and what to do about it. The three parts are kept as attributes,
so that a program can show them its own way.

Each has a `code` that stays the same from release to release: that of its class, or a finer one, where a class covers
situations that are looked up separately (`FINER_CODES`). `holdfast explain CODE` says what it means and what to do.

Programs catch the classes in `__all__`. The others are finer ones, whose `code` tells them apart.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConfigError",
    "ConflictError",
    "CorruptError",
    "DeniedError",
    "HandlerError",
    "HoldfastError",
    "InvalidError",
    "NotFoundError",
    "OutcomeUnknownError",
    "QuotaError",
    "ScriptError",
    "SnapshotError",
    "TransientError",
    "UnavailableError",
    "UnsupportedError",
    "VetoError",
]


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


class NotFoundError(HoldfastError, LookupError):
    """The named object does not exist."""

    code = "not-found"


class ConflictError(HoldfastError):
    """Somebody else was first: the place in the line is taken, or both sides changed the same thing."""

    code = "conflict"
    conflicts: tuple[Any, ...] = ()
    """The conflicts of a merge that was refused: `holdfast.history.merge.MergeConflict`s."""


class ClaimLostError(ConflictError):
    """The run of a thread was taken over by another process, or cancelled: this one stores nothing more."""

    code = "claim-lost"


class TransientError(HoldfastError):
    """A failure that may pass. The only kind that is retried."""

    code = "transient"


class OutcomeUnknownError(TransientError):
    """No answer came: a change may have been made, or may yet be. Saving again under the same id is safe."""

    code = "uncertain"


class UnavailableError(HoldfastError, OSError):
    """The store is closed, its medium failed, or its server cannot be reached: open it again."""

    code = "unavailable"


class CorruptError(HoldfastError, ValueError):
    """Stored bytes are damaged, forged, or not what they claim to be."""

    code = "corrupt"


class DeniedError(HoldfastError, PermissionError):
    """The caller may not do this, or the key that would allow it is missing."""

    code = "denied"


class VetoError(DeniedError):
    """A hook refused the change. Raised by hooks, with the reason: `raise VetoError("the budget is spent")`."""

    code = "vetoed"


class QuotaError(HoldfastError):
    """The tenant may not store more: its quota is used up. Nothing was saved."""

    code = "quota-exceeded"


class UnsupportedError(HoldfastError, TypeError):
    """A value, format or operation that cannot be handled here."""

    code = "unsupported"


class InvalidError(HoldfastError, ValueError):
    """The caller's input breaks a rule."""

    code = "invalid"


class CircularReferenceError(InvalidError):
    """A value contains itself."""

    code = "circular-reference"


class TooDeepError(InvalidError):
    """A value is nested more deeply than the format allows."""

    code = "too-deep"


class TooLargeError(InvalidError):
    """A value, or what a record claims to hold, exceeds a size limit."""

    code = "too-large"


class RequestTimeoutError(HoldfastError, TimeoutError):
    """No answer to a request came in time. The request was cancelled: nobody will answer it any more."""

    code = "unanswered"


class HandlerError(HoldfastError):
    """Who was to answer a request raised an error: `kind` is the name of its class there, `message` its text."""

    code = "handler-failed"

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", code: str = "", kind: str = "", message: str = ""
    ) -> None:
        super().__init__(what, where=where, hint=hint, code=code)
        self.kind = kind
        self.message = message


class ScriptError(HoldfastError):
    """A script in Lua or JavaScript failed, or a limit stopped it: `trace` says where in the script, if that is
    known."""

    code = "script-failed"
    trace: str = ""


class SnapshotError(HoldfastError):
    """About a snapshot: one of the kinds below, each of which is also of a general kind. Where the storage, a store or
    the settings are at fault, the error is of the general kind alone, such as `UnavailableError`."""

    code = "snapshot"


class SnapshotNotFoundError(SnapshotError, NotFoundError):
    """There is no snapshot at that place."""

    code = "snapshot-not-found"


class SnapshotExistsError(SnapshotError, ConflictError):
    """There is something at that place already, and it is not overwritten unasked."""

    code = "snapshot-exists"


class SnapshotCorruptError(SnapshotError, CorruptError):
    """The file is damaged, forged, cut off, or no snapshot at all."""

    code = "snapshot-corrupt"


class SnapshotRefusedError(SnapshotError, DeniedError):
    """It holds something that is not let through: a class that is not allowed, a secret, a template that runs code."""

    code = "snapshot-refused"


class SnapshotUnsupportedError(SnapshotError, UnsupportedError):
    """This cannot be kept in a snapshot, or the snapshot was made by a newer release."""

    code = "snapshot-unsupported"


class SnapshotInvalidError(SnapshotError, InvalidError):
    """The caller's arguments do not fit the snapshot: tools that differ, a secret that is missing, a wrong name."""

    code = "snapshot-invalid"


class SnapshotTooLargeError(SnapshotError, TooLargeError):
    """The snapshot, or what it unpacks to, exceeds a limit."""

    code = "snapshot-too-large"


class ConfigError(HoldfastError):
    """Settings are wrong, or an optional part is not installed."""

    code = "config"


FINER_CODES = {
    "no-repository": NotFoundError,
    "foreign-directory": ConfigError,
    "no-backup": NotFoundError,
    "not-covered": NotFoundError,
    "not-exact": NotFoundError,
    "newer-format": UnsupportedError,
    "older-format": UnsupportedError,
    "backups-removed": CorruptError,
    "restore-conflict": ConflictError,
    "deletion-suspended": DeniedError,
    "owner-only": DeniedError,
    "store-restored": ConflictError,
    "no-store": NotFoundError,
    "busy": TransientError,
    "disk-full": TransientError,
    "closed": UnavailableError,
    "write-failed": UnavailableError,
    "file-replaced": UnavailableError,
    "lost-writes": CorruptError,
    "unreachable": UnavailableError,
    "login-refused": ConfigError,
    "tls-failed": ConfigError,
    "not-installed": ConfigError,
    "no-store-named": ConfigError,
    "not-encrypted": ConfigError,
    "key-missing": DeniedError,
    "key-wrong": DeniedError,
    "key-in-use": ConflictError,
    "tampered": CorruptError,
    "erase-held": DeniedError,
    "certificate-invalid": CorruptError,
    "clear-refused": UnsupportedError,
    "serde-refused": ConfigError,
    "names-hidden": ConfigError,
    "index-declared": ConfigError,
    "prefix-refused": UnsupportedError,
    "pickle-refused": ConfigError,
    "class-refused": UnsupportedError,
    "dimensions": ConfigError,
    "under-way": ConflictError,
    "lease-lost": ConflictError,
    "not-waiting": ConflictError,
    "answered": ConflictError,
    "run-empty": InvalidError,
    "run-input": InvalidError,
    "run-key": ConflictError,
    "run-state": ConflictError,
    "step-arguments": ConflictError,
    "step-done": ConflictError,
    "step-failed": HandlerError,
    "step-function": ConflictError,
    "step-order": ConflictError,
    "step-outcome-unknown": OutcomeUnknownError,
    "step-result": InvalidError,
    "step-version": UnsupportedError,
    "steps-unused": ConflictError,
    "version-mismatch": ConflictError,
    "identity-frozen": DeniedError,
    "session-ended": DeniedError,
    "grant-revoked": DeniedError,
    "grant-expired": DeniedError,
    "unauthenticated": DeniedError,
    "cross-site": DeniedError,
    "wrong-host": DeniedError,
    "unconfirmed": DeniedError,
    "rate-limited": TransientError,
    "hook-failed": VetoError,
    "hook-own-change": VetoError,
    "redaction-refused": DeniedError,
    "redaction-key": ConfigError,
    "no-responder": RequestTimeoutError,
    "responder-died": RequestTimeoutError,
    "agent-conflict": ConflictError,
    "agent-deleted": NotFoundError,
    "agent-exists": ConflictError,
    "agent-class": InvalidError,
    "agent-class-unknown": NotFoundError,
    "agent-schema": UnsupportedError,
    "agent-invalid": InvalidError,
    "no-transition": InvalidError,
    "nested-transition": InvalidError,
    "transition-incomplete": ConflictError,
    "transfer-refused": DeniedError,
    "tool-denied": DeniedError,
    "schema-unsupported": UnsupportedError,
    "schema-recursion": InvalidError,
    "schema-mismatch": InvalidError,
    "schema-changed": ConflictError,
    "schema-cycle": InvalidError,
    "schema-version-unknown": NotFoundError,
    "schema-newer": UnsupportedError,
    "schema-missing": ConflictError,
    "schema-outdated": ConflictError,
    "schema-downgraded": ConflictError,
    "schema-mixed": UnsupportedError,
    "migration-missing": NotFoundError,
    "migration-duplicate": ConflictError,
    "migration-edited": ConflictError,
    "migration-unfit": ConflictError,
    "migration-pending": UnsupportedError,
    "migration-failed": InvalidError,
    "migration-shape": InvalidError,
    "migration-irreversible": UnsupportedError,
    "migration-lossy": InvalidError,
    "migration-impure": InvalidError,
    "replay-diverged": ConflictError,
    "replay-incomplete": UnsupportedError,
    "replay-stopped": UnavailableError,
    "script-syntax": ScriptError,
    "script-timeout": ScriptError,
    "script-memory": ScriptError,
    "script-stopped": ScriptError,
}
"""Codes that say more than their class does."""

ERRORS_BY_CODE: dict[str, type[HoldfastError]] = {
    each.code: each for each in list(vars().values()) if isinstance(each, type) and issubclass(each, HoldfastError)
}
"""The classes by their codes."""
