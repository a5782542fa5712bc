"""Exit codes, and the errors of a command as text or JSON."""

from __future__ import annotations

import os
import sys
from typing import Any

from click.exceptions import ClickException, NoArgsIsHelpError, NoSuchOption

from holdfast.errors import ConflictError, CorruptError, HoldfastError, NotFoundError, SnapshotError
from holdfast.interfaces.cli.formatting import near, safe

OK, ERROR, USAGE, NOT_FOUND, CONFLICT, INTEGRITY, FINDINGS, NO_STORE = 0, 1, 2, 3, 4, 5, 6, 10
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit code of git, too, when the reader of its output closes it."""

EXIT_CODES = {
    OK: "success",
    ERROR: "another error",
    USAGE: "the command line is wrong",
    NOT_FOUND: "a thread, checkpoint, branch or anything else was not found",
    CONFLICT: "a conflict with another writer, or between two branches",
    INTEGRITY: "stored data is damaged",
    FINDINGS: "success, with findings: notices, differences, failed jobs",
    NO_STORE: "there is no store",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "the reader of the output closed it",
}


_BY_CODE = {"no-store": NO_STORE, "no-store-named": NO_STORE, "invalid": USAGE}
_BY_CLASS: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFoundError, NOT_FOUND),
    (ConflictError, CONFLICT),
    (CorruptError, INTEGRITY),
)


def exit_code(error: HoldfastError) -> int:
    """Return the exit code for an error."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), ERROR)


_CALLS = {
    "log()": "holdfast log",
    "threads()": "holdfast threads",
    "branches()": "holdfast branch",
    "sessions.list()": "holdfast session list",
    "store.jobs.list()": "holdfast jobs",
    "store.agents.list()": "holdfast agent list",
    "keys()": "holdfast state list",
    "thread.history()": "holdfast log -p",
    "history()": "holdfast state history",
    "access.grants()": "holdfast grant list",
    "store.maintenance.set_quota(…)": "holdfast quota",
    "access.tokens()": "holdfast token list",
    "access.roles()": "holdfast grant roles",
    "store.audit.export()": "holdfast audit export",
    'on_end="archive"': "--on-end archive",
}


_HINTS = {
    "no-store-named": "Name one with --store sqlite:///agents.db, HOLDFAST_STORE, or [stores.default] in holdfast.toml",
}


_OF_FILES = {"certificate-invalid"}
"""The codes of what is damaged outside of a store."""


def command_hint(error: HoldfastError) -> str:
    """Return the hint of an error, with commands in place of functions."""
    hint = _HINTS.get(error.code, error.hint)
    for call, words in _CALLS.items():
        hint = hint.replace(call, words)
    of_store = isinstance(error, CorruptError) and not isinstance(error, SnapshotError) and error.code not in _OF_FILES
    if of_store and "holdfast" not in hint:
        commands = "holdfast verify shows what is affected, and holdfast repair repairs it"
        return f"{hint}. {commands}" if hint else commands
    return hint


def report(error: HoldfastError, *, as_json: bool, color: bool) -> int:
    """Report an error on stderr. Returns the exit code."""
    return _report(
        error.code, error.what, error.where, command_hint(error), exit_code(error), as_json=as_json, color=color
    )


def report_usage(error: ClickException, *, as_json: bool, color: bool) -> int:
    """Report an error in the command line on stderr. Returns the exit code."""
    if isinstance(error, NoArgsIsHelpError):
        sys.stderr.write(f"{error.format_message()}\n")
        return USAGE
    context = getattr(error, "ctx", None)
    path = "holdfast" if context is None else context.command_path
    usage = "" if context is None or as_json else context.get_usage()
    if usage:
        sys.stderr.write(f"{safe(usage, lines=True)}\n")
    hint = f"See {path} --help"
    if isinstance(error, NoSuchOption):
        error = NoSuchOption(error.option_name, possibilities=near(error.option_name, error.possibilities or ()))
    what = " ".join(error.format_message().split())  # click lists choices on lines of their own
    return _report("usage", what, "", hint, error.exit_code, as_json=as_json, color=color)


def report_unexpected(error: BaseException, *, as_json: bool, color: bool) -> int:
    """Report an error that is a bug on stderr. Returns the exit code."""
    what = f"{type(error).__name__}: {error}"
    hint = "This is a bug in holdfast. Run the command with --verbose, and report the output"
    if isinstance(error, OSError) and not isinstance(error, HoldfastError):
        hint = "The operating system reported this error"
    return _report("internal", what, "", hint, ERROR, as_json=as_json, color=color)


def _report(code: str, what: str, where: str, hint: str, exit_code: int, *, as_json: bool, color: bool) -> int:
    if as_json:
        from holdfast._views import encode

        record: dict[str, Any] = {"code": code, "message": what, "where": where, "hint": hint, "exit_code": exit_code}
        _write(encode({"error": record}) + "\n")
        return exit_code
    red, off = ("\x1b[1;31m", "\x1b[0m") if color else ("", "")
    lines = [f"{red}error[{code}]:{off} {safe(what)}"]
    if where:
        lines.append(f"  at: {safe(where)}")
    if hint:
        first, *rest = safe(hint, lines=True).split("\n")
        lines += [*([f"  hint: {first}"] if first else []), *(f"  {line}" for line in rest)]
    _write("\n".join(lines) + "\n")
    return exit_code


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def discard_output() -> None:
    """Redirect stdout to the null device: its reader is gone, and flushing at exit would fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
