"""SQLite's errors as Holdfast's."""

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
"""Another connection is in the way; it may be gone in a moment."""

INPUT = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    apsw.BindingsError,
    TypeError,
    OverflowError,
    UnicodeEncodeError,
)
"""A value that does not fit into its column: the fault of one batch, and of nobody else's."""

_READING = frozenset({apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ})


def _code(error: apsw.Error) -> int:
    code: int = getattr(error, "extendedresult", 0)  # apsw declares it nowhere
    return code


def breaks_store(error: apsw.Error) -> bool:
    """Whether it is open what is stored now: writing or flushing failed. Reading again could not tell."""
    return isinstance(error, apsw.IOError) and not is_damage(error) and _code(error) not in _READING


def is_damage(error: apsw.Error) -> bool:
    """Whether the bytes in the file are wrong."""
    if isinstance(error, apsw.IOError):
        return _code(error) == apsw.SQLITE_IOERR_DATA
    # The tables are ours: a statement that SQLite does not understand means that they are not there.
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.SQLError)


def translate(error: Exception, where: str) -> HoldfastError:
    """The error to raise in place of SQLite's, where nothing was made."""
    said = str(error)
    if isinstance(error, apsw.NotADBError):
        return CorruptError(
            f"the file is not a SQLite database, or its beginning is damaged: {said}",
            where=where,
            hint="Check the path; if it is right, run holdfast repair, or restore the file from a backup",
        )
    if isinstance(error, apsw.Error) and is_damage(error):
        return CorruptError(
            f"the file is damaged: {said}", where=where, hint="Keep a copy of it, and run holdfast repair"
        )
    if isinstance(error, apsw.TooBigError):
        return TooLargeError(f"a row is larger than SQLite stores: {said}", where=where)
    if isinstance(error, INPUT):
        return InvalidError(f"a value does not fit into its column: {said}", where=where)
    if isinstance(error, BUSY):
        return TransientError(
            f"other processes kept the file locked for too long: {said}",
            where=where,
            hint="Try again, or raise the option busy_timeout; a process that hangs in the middle of writing also "
            "causes this",
            code="busy",
        )
    if isinstance(error, apsw.FullError):
        return TransientError(
            f"the disk is full: {said}",
            where=where,
            hint="Nothing of this batch was stored, and nothing stored before is lost; make room and try again",
            code="disk-full",
        )
    if isinstance(error, apsw.NoMemError | apsw.IOError):
        return TransientError(
            f"reading failed: {said}",
            where=where,
            hint="Nothing was changed; try again, and if it stays, look at the disk",
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return DeniedError(
            f"the file may not be written: {said}",
            where=where,
            hint="Grant this user writing to the file and to its directory",
        )
    return UnavailableError(f"SQLite failed: {said}", where=where, hint="Open the store anew")


def translate_opening(error: apsw.Error, where: str) -> HoldfastError:
    """The same, while a store is opened."""
    if isinstance(error, apsw.CantOpenError):
        return ConfigError(
            f"the file cannot be opened: {error}",
            where=where,
            hint="Its directory must exist, and this user must be allowed to read and write there",
        )
    return translate(error, where)


def broken(error: Exception, where: str) -> UnavailableError:
    """The error once writing or flushing failed."""
    return UnavailableError(
        f"writing failed, and what was being written may or may not be stored: {error}",
        where=where,
        hint="Look at the disk, then open the store anew: until then nothing more is read or written",
        code="write-failed",
    )
