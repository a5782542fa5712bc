"""`holdfast diff`: the difference between two states."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, all_channels_option, command, migrate_option
from holdfast.interfaces.cli.completion_types import REVISION, THREAD
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import local, plural, safe
from holdfast.interfaces.cli.output import Output

if TYPE_CHECKING:
    from holdfast.history.diff_result import ChannelChanges, Diff, DiffSide
    from holdfast.schemas.schema_set import SchemaSet
    from holdfast.store.store import Store


@command("diff", thread=THREAD, a=REVISION, b=REVISION)
@click.option("--with", "other", type=THREAD, metavar="THREAD", help="B is a checkpoint of this thread.")
@click.option("--file", "file", metavar="FILE", help="Compare A with the state in a JSON file; - is standard input.")
@click.option("--stat", is_flag=True, help="Show the summary only.")
@click.option("--word", is_flag=True, help="Show changed words as [-old-]{+new+}.")
@click.option("--patch", is_flag=True, help="Write a JSON Patch (RFC 6902) from A to B.")
@click.option("--large", is_flag=True, help="Also fetch large values that differ.")
@migrate_option
@all_channels_option
@click.option("--exit-code", is_flag=True, help=f"End with exit code {FINDINGS} if anything differs.")
def diff(
    session: CliContext,
    thread: str,
    a: str | None,
    b: str | None,
    other: str | None,
    file: str | None,
    stat: bool,
    word: bool,
    patch: bool,
    large: bool,
    migrate: bool,
    all_channels: bool,
    exit_code: bool,
) -> None:
    """Compare two states.

    Without A and B: what the latest checkpoint changed. With A: from A to the latest. A and B are revisions: HEAD~2, a
    branch, the start of an id, '#12', @{yesterday}; A..B is the same as A B.

    holdfast diff chat                      what the latest checkpoint changed
    holdfast diff chat main..draft --word
    holdfast diff chat @{yesterday} --stat
    """
    store = session.open()
    if a is not None and b is None and ".." in a and not _is_revision(store, thread, a):
        a, _, b = a.partition("..")
        a, b = a or "HEAD", b or "HEAD"
    if file is not None and (b is not None or other is not None):
        raise InvalidError("give a revision or --file, not both")
    state = None if file is None else _state(file)
    # A patch needs the large values, too.
    found = store.thread(thread).diff(
        a, b or "HEAD", other=other, state=state, large=large or patch, migrate=_schemas() if migrate else False
    )
    if patch:
        _patch(session, found)
    elif session.json:
        record = found.to_json()
        for name, side in (("old", found.old), ("new", found.new)):
            if record[name] is not None:
                record[name]["time"] = side.time
        session.emit(record)
    else:
        _show(session.out, found, file, stat=stat, word=word, all_channels=all_channels)
    session.exit_if(exit_code and found, FINDINGS)


def _schemas() -> SchemaSet:
    from holdfast.interfaces.cli.migrate import load_declared

    return load_declared()


def _is_revision(store: Store, thread: str, text: str) -> bool:
    try:
        store.thread(thread).find(text)
    except (NotFoundError, InvalidError):
        return False
    return True


def _state(file: str) -> dict[str, Any]:
    """Read a state from a file, in JSON, also with type marks."""
    from msgspec import DecodeError
    from msgspec.json import decode

    from holdfast.codec import default_codec

    try:
        data = sys.stdin.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except OSError as error:
        raise InvalidError(f"the file cannot be read: {error.strerror}", where=file) from None
    try:
        state = default_codec.from_json(decode(data))
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"the file is not JSON: {error}", where=file) from None
    if type(state) is not dict:
        raise InvalidError("the file does not contain a state: expected a JSON object of channels", where=file)
    return state


def _patch(session: CliContext, found: Diff) -> None:
    from holdfast._views import encode

    operations = found.patch()
    if session.json or not operations:
        session.out.line(encode(operations))
        return
    out = session.out
    out.page()
    for number, operation in enumerate(operations):
        start, end = "[" if not number else " ", "]" if number == len(operations) - 1 else ","
        out.line(f"{start}{encode(operation)}{end}")


def _show(out: Output, complete: Diff, file: str | None, *, stat: bool, word: bool, all_channels: bool) -> None:
    if not complete:
        return
    found = complete if all_channels else complete.without_internal()
    out.page()
    out.line(out.style(f"--- {_side(found.old, None)}", "bold"))
    out.line(out.style(f"+++ {_side(found.new, file)}", "bold"))
    for counts in found.summary:
        out.line(f" {_counts(out, counts)}")
    left_out = len(complete.summary) - len(found.summary)
    if left_out:
        out.line(out.style(f" … {plural(left_out, 'internal channel')} (--all-channels shows all)", "dim"))
    if stat or not found:
        return
    out.line()
    for line in found.lines(by_word=word):
        out.line(out.diff_line(line))


def _side(side: DiffSide, file: str | None) -> str:
    if not side.id:
        return safe(file) if file is not None else "nothing"
    when = "" if side.time is None else f", {local(side.time)}"
    return f"{safe(side.thread)} {safe(side.id)} (step {side.step}{when})"


def _counts(out: Output, counts: ChannelChanges) -> str:
    name, _, text = str(counts).rpartition(": ")
    styles = {"+": "green", "-": "red", "~": "yellow", "added": "green", "removed": "red"}
    parts = [out.style(part, *((styles[key],) if (key := _sign(part)) in styles else ())) for part in text.split(" ")]
    return f"{safe(name)}: {' '.join(parts)}"


def _sign(part: str) -> str:
    return part[:1] if part[:1] in "+-~" else part
