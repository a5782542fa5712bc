"""How a command ends: exit codes, and errors as people and programs read them."""

from __future__ import annotations

import os
import sys
from typing import Any

from click.exceptions import ClickException, NoArgsIsHelpError

from holdfast.errors import ConflictError, CorruptError, HoldfastError, NotFoundError, SnapshotError
from holdfast.interfaces.cli.formatting import safe

OK, ERROR, USAGE, NOT_FOUND, CONFLICT, INTEGRITY, FINDINGS, NO_STORE = 0, 1, 2, 3, 4, 5, 6, 10
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What the shell reports of git when whoever reads its output has had enough."""

EXIT_CODES = {
    OK: "all is well",
    ERROR: "an error that has no code of its own",
    USAGE: "the command line is wrong",
    NOT_FOUND: "a thread, checkpoint, branch or anything else that was named is not there",
    CONFLICT: "somebody else was first, or both sides changed the same thing",
    INTEGRITY: "stored bytes are not what was written",
    FINDINGS: "the command did its work, and what it looked for was found: damage, differences",
    NO_STORE: "there is no such store, or none is named",
    INTERRUPTED: "interrupted, as by Ctrl-C",
    BROKEN_PIPE: "whoever read the output stopped reading",
}


_BY_CODE = {"no-store": NO_STORE, "no-store-named": NO_STORE, "invalid": USAGE}
_BY_CLASS: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFoundError, NOT_FOUND),
    (ConflictError, CONFLICT),
    (CorruptError, INTEGRITY),
)


def exit_code(error: HoldfastError) -> int:
    """The exit code for an error."""
    known = _BY_CODE.get(error.code)
    if known is not None:
        return known
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), ERROR)


_CALLS = {
    "log()": "holdfast log",
    "threads()": "holdfast threads",
    "branches()": "holdfast branch",
    "sessions.list()": "holdfast session list",
    "store.agents.list()": "holdfast agent list",
    "keys()": "holdfast state list",
    "history()": "holdfast state history",
    "access.grants()": "holdfast grant list",
    "access.roles()": "holdfast grant roles",
    "store.audit.export()": "holdfast audit export",
    'on_end="archive"': "--on-end archive",
}


_HINTS = {
    "no-store-named": "Name one with --store sqlite:///agents.db, HOLDFAST_STORE, or [stores.default] in holdfast.toml",
}


def _as_commands(error: HoldfastError) -> str:
    """A hint for those who type commands, and do not call functions."""
    hint = _HINTS.get(error.code, error.hint)
    for call, words in _CALLS.items():
        hint = hint.replace(call, words)
    if isinstance(error, CorruptError) and not isinstance(error, SnapshotError) and "holdfast" not in hint:
        mending = "holdfast verify says what is affected, and holdfast repair mends what can be mended"
        return f"{hint}. {mending}" if hint else mending
    return hint


def report(error: HoldfastError, *, as_json: bool, color: bool) -> int:
    """Tell on stderr what went wrong. Returns the exit code."""
    return _tell(
        error.code, error.what, error.where, _as_commands(error), exit_code(error), as_json=as_json, color=color
    )


def report_usage(error: ClickException, *, as_json: bool, color: bool) -> int:
    """The same for what click has to say of the command line."""
    if isinstance(error, NoArgsIsHelpError):
        sys.stderr.write(f"{error.format_message()}\n")
        return USAGE
    context = getattr(error, "ctx", None)
    path = "holdfast" if context is None else context.command_path
    usage = "" if context is None or as_json else context.get_usage()
    if usage:
        sys.stderr.write(f"{safe(usage, lines=True)}\n")
    hint = f"See {path} --help"
    return _tell("usage", error.format_message(), "", hint, error.exit_code, as_json=as_json, color=color)


def report_unforeseen(error: BaseException, *, as_json: bool, color: bool) -> int:
    """The same for an error that is a mistake of this program."""
    what = f"{type(error).__name__}: {error}"
    hint = "This is a mistake in holdfast. Run the command with --verbose, and report what it says"
    if isinstance(error, OSError) and not isinstance(error, HoldfastError):
        hint = "The operating system says so"
    return _tell("internal", what, "", hint, ERROR, as_json=as_json, color=color)


def _tell(code: str, what: str, where: str, hint: str, exit_code: int, *, as_json: bool, color: bool) -> int:
    if as_json:
        from holdfast.interfaces.cli.json_output import encode

        told: dict[str, Any] = {"code": code, "message": what, "where": where, "hint": hint, "exit_code": exit_code}
        _write(encode({"error": told}) + "\n")
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


def give_up_output() -> None:
    """Point stdout to nowhere: whoever read it is gone, and flushing at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
