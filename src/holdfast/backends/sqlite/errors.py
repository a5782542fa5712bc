"""Translates errors of SQLite to those of Holdfast."""

from __future__ import annotations

import apsw

from holdfast.errors import (
    ConfigError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    TooLargeError,
    TransientError,
    UnavailableError,
)

BUSY = (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)
"""Another connection has a lock."""

INPUT = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    apsw.BindingsError,
    TypeError,
    OverflowError,
    UnicodeEncodeError,
)
"""A value does not fit into its column: the fault of one batch alone."""

_READING = frozenset({apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ})
_NO_SPACE = apsw.SQLITE_IOERR_SHMSIZE
"""There is no space for the index of the log, which is created before anything is read or written."""


def _code(error: apsw.Error) -> int:
    code: int = getattr(error, "extendedresult", 0)  # apsw declares it nowhere
    return code


def is_write_failure(error: apsw.Error) -> bool:
    """Return whether writing or flushing failed: then it is unknown what is stored, and reading could not tell."""
    return isinstance(error, apsw.IOError) and not (is_damage(error) or is_full(error) or _code(error) in _READING)


def is_full(error: Exception) -> bool:
    """Return whether there is no space on the disk."""
    return isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and _code(error) == _NO_SPACE)


def is_damage(error: apsw.Error) -> bool:
    """Return whether the file is damaged."""
    if isinstance(error, apsw.IOError):
        return _code(error) == apsw.SQLITE_IOERR_DATA
    # Statements are correct for a store: if SQLite does not understand one, tables are missing.
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.SQLError)


def translate(error: Exception, where: str) -> HoldfastError:
    """Return the error to raise, for an action that changed nothing."""
    text = str(error)
    if isinstance(error, apsw.NotADBError):
        return CorruptError(
            f"the file is not a SQLite database, or its beginning is damaged: {text}",
            where=where,
            hint="Check the path; if it is right, run holdfast repair, or restore the file from a backup",
        )
    if isinstance(error, apsw.Error) and is_damage(error):
        return damaged(text, where)
    if isinstance(error, UnicodeDecodeError):
        return damaged(f"a string is not UTF-8: {text}", where)
    if isinstance(error, apsw.TooBigError):
        return TooLargeError(f"a row is larger than SQLite stores: {text}", where=where)
    if isinstance(error, INPUT):
        return InvalidError(f"a value does not fit into its column: {text}", where=where)
    if isinstance(error, BUSY):
        return TransientError(
            f"other processes kept the file locked for too long: {text}",
            where=where,
            hint="Try again, or raise the option busy_timeout; a process that hangs in the middle of writing also "
            "causes this",
            code="busy",
        )
    if is_full(error):
        return disk_full(text, where)
    if isinstance(error, apsw.NoMemError | apsw.IOError):
        return TransientError(
            f"reading failed: {text}",
            where=where,
            hint="Nothing was changed; try again, and if it persists, check the disk",
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return DeniedError(
            f"this user may not write to the file: {text}",
            where=where,
            hint="Grant this user write permission on the file and its directory",
        )
    return UnavailableError(f"SQLite failed: {text}", where=where, hint="Open the store again")


def disk_full(why: str, where: str) -> TransientError:
    """Return the error to raise if there is no space for a batch."""
    return TransientError(
        f"the disk is full: {why}",
        where=where,
        hint="Nothing of this batch was stored, and nothing stored before is lost; free some space, by deleting or "
        "pruning threads too, and try again",
        code="disk-full",
    )


def damaged(what: str, where: str) -> CorruptError:
    """Return the error for a damaged file."""
    return CorruptError(f"the file is damaged: {what}", where=where, hint="Make a copy of it, and run holdfast repair")


def translate_opening(error: apsw.Error, where: str) -> HoldfastError:
    """Return the error to raise, while a store is opened."""
    if isinstance(error, apsw.CantOpenError):
        return ConfigError(
            f"the file cannot be opened: {error}",
            where=where,
            hint="Its directory must exist, and this user must be allowed to read and write there",
        )
    return translate(error, where)


def translate_writing(error: apsw.Error, where: str) -> HoldfastError:
    """Return the error to raise, while a file is opened again after a failure."""
    return write_failed(error, where) if is_write_failure(error) else translate(error, where)


def write_failed(error: Exception, where: str) -> UnavailableError:
    """Return the error to raise after writing or flushing failed."""
    return UnavailableError(
        f"writing failed, and what was being written may or may not be stored: {error}",
        where=where,
        hint="Check the disk. Each further call opens the file again, and works as soon as it can be written",
        code="write-failed",
    )
