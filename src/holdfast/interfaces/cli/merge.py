"""`holdfast merge`: what another branch changed, brought in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import ConflictError, HoldfastError, InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import BRANCH, REVISION, THREAD
from holdfast.interfaces.cli.exit_codes import CONFLICT
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.prompt import ask

if TYPE_CHECKING:
    from holdfast.history.merge import MergeConflict

STRATEGIES = ("ours", "theirs", "union")


@command("merge")
@click.argument("thread", type=THREAD)
@click.argument("theirs", type=REVISION)
@click.option("--into", type=BRANCH, default="HEAD", help="The branch that goes on with it; the latest checkpoint's.")
@click.option(
    "-s", "-X", "--strategy", type=click.Choice(STRATEGIES), help="What settles what both sides changed differently."
)
@click.option(
    "--resolve",
    multiple=True,
    metavar="PATH=STRATEGY",
    help="The same for what is at a place or below: messages=union.",
)
@click.option("-i", "--interactive", is_flag=True, help="Ask what is to be there, for each.")
@click.option("-m", "--message", help="Say why; it is kept in the metadata.")
def merge(
    session: CliContext,
    thread: str,
    theirs: str,
    into: str,
    strategy: str | None,
    resolve: tuple[str, ...],
    interactive: bool,
    message: str | None,
) -> None:
    """Bring another branch's changes in.

    What THEIRS, a branch or any other revision, changed since the common ancestor is brought into --into, in a
    checkpoint with two parents. Where both sides changed the same thing differently nothing is saved, unless it is
    settled: by a strategy, by place, or by you.

    \b
    holdfast merge chat draft
    holdfast merge chat draft --into main -s union
    """
    store = session.open(write=True)
    ways: Any = dict(map(_way, resolve))
    if interactive:
        if session.json:
            raise InvalidError("what is asked and what is written would mix", hint="Give --interactive or --json")
        ways = _Asking(session, ways)
    before = store.thread(thread).resolve(into).id
    try:
        made = store.thread(thread).merge(
            theirs,
            into,
            strategy=strategy,
            resolve=ways or None,
            metadata=None if message is None else {"message": message},
        )
    except ConflictError as refused:
        if refused.conflicts:
            _show(session, refused.conflicts)
            refused.hint = "Settle it with --strategy, with --resolve PATH=STRATEGY, or one by one with --interactive"
        raise
    if session.json:
        session.emit(made)
    elif made.id == before:
        session.out.line("Already up to date.")
    else:
        session.out.line(safe(f"Merged {made.merged} into {made.parent}: {made.id}."))


def _way(text: str) -> tuple[str, str]:
    path, _, strategy = text.rpartition("=")
    if not path or strategy not in STRATEGIES:
        raise InvalidError(
            f"{text!r} does not say how to settle a place", hint="Write messages=union, plan=ours, …=theirs"
        )
    return path, strategy


def _show(session: CliContext, clashes: tuple[MergeConflict, ...]) -> None:
    """Tell of each place that both sides changed."""
    if session.json:
        sides = ("base", "ours", "theirs")
        session.emit_all(
            {"clash": clash.where, **{side: _plain(getattr(clash, side)) for side in sides if _is(clash, side)}}
            for clash in clashes
        )
        return
    for clash in clashes:
        for line in _described(session, clash):
            session.out.line(line)
    session.out.flush()


def _plain(value: Any) -> Any:
    from holdfast.interfaces.cli.json_output import plain

    return plain(value)


def _is(clash: MergeConflict, side: str) -> bool:
    from holdfast.engine.model.missing import MISSING

    return getattr(clash, side) is not MISSING


def _described(session: CliContext, clash: MergeConflict) -> Iterator[str]:
    from holdfast.interfaces.cli.value_view import ROOM, ValueWriter

    out = session.out
    yield out.style(f"both changed {safe(clash.where)}", "bold")
    for side, color in (("base", "dim"), ("ours", "green"), ("theirs", "cyan")):
        if not _is(clash, side):
            yield f"  {out.style(side, color)}: (nothing)"
            continue
        first, *rest = ValueWriter(out, ROOM).value(getattr(clash, side))
        if rest:
            yield f"  {out.style(side, color)}:"
            yield from (f"    {line}" for line in (first, *rest))
        else:
            yield f"  {out.style(side, color)}: {first}"


class _Asking:
    """Asks people what is to be there. What they said once they are not asked again when others wrote meanwhile."""

    def __init__(self, session: CliContext, ways: dict[str, str]) -> None:
        self._session = session
        self._ways = ways
        self._said: list[tuple[MergeConflict, Any]] = []

    def __call__(self, clash: MergeConflict) -> Any:
        for known, said in self._said:
            if repr(known) == repr(clash):
                return said
        value = self._by_place(clash)
        if value is _ASK:
            value = self._asked(clash)
        self._said.append((clash, value))
        return value

    def _by_place(self, clash: MergeConflict) -> Any:
        from holdfast.engine.paths import parse_path

        for path, strategy in sorted(self._ways.items(), key=lambda way: -len(parse_path(way[0]))):
            if clash.path[: len(parse_path(path))] == parse_path(path):
                found = both(clash) if strategy == "union" else getattr(clash, strategy)
                return _ASK if found is None and strategy == "union" else found
        return _ASK

    def _asked(self, clash: MergeConflict) -> Any:
        for line in _described(self._session, clash):
            click.echo(line, err=True)
        while True:
            key = ask("Take (o)urs, (t)heirs, (b)oth, (e)dit, (q)uit", "o").lower()
            if key in ("", "o", "ours"):
                return clash.ours
            if key in ("t", "theirs"):
                return clash.theirs
            if key in ("b", "both"):
                value = both(clash)
                if value is not None:
                    return value
                click.echo("Only of lists and texts both can be taken.", err=True)
            elif key in ("e", "edit"):
                value = edited(clash)
                if value is not _ASK:
                    return value
            elif key in ("q", "quit"):
                self._session.note("Nothing was merged.")
                raise click.exceptions.Exit(CONFLICT)


_ASK = object()
"""Stands for no answer."""


def both(clash: MergeConflict) -> Any:
    """What both sides have: of lists the items, of texts the lines. None of other things."""
    ours, theirs = clash.ours, clash.theirs
    if isinstance(ours, list) and isinstance(theirs, list):
        known = [*ours, *(clash.base if isinstance(clash.base, list) else ())]
        return [*ours, *(item for item in theirs if item not in known)]
    if isinstance(ours, str) and isinstance(theirs, str):
        return f"{ours}{'' if ours.endswith(chr(10)) else chr(10)}{theirs}"
    return None


def edited(clash: MergeConflict) -> Any:
    """What people make of a value in their editor, as JSON; nothing, if they leave none. `_ASK` if it is no JSON."""
    from msgspec import DecodeError
    from msgspec.json import decode

    from holdfast.codec import default_codec
    from holdfast.engine.model.missing import MISSING

    lines = [f"// {clash.where}: what is to be there, as JSON. Lines that start with // are left out.", ""]
    lines += _json_lines(clash.ours)
    for side in ("base", "theirs"):
        lines += ["", f"// {side}:", *(f"// {line}" for line in _json_lines(getattr(clash, side)))]
    text = click.edit("\n".join(lines) + "\n", extension=".json")
    if text is None:
        return _ASK
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    if not kept.strip():
        return MISSING
    try:
        return default_codec.from_json(decode(kept))
    except (DecodeError, HoldfastError) as error:
        click.echo(f"That cannot be read: {safe(str(error))}", err=True)
        return _ASK


def _json_lines(value: Any) -> list[str]:
    """A value as JSON from which it can be made again, in lines."""
    from msgspec import json

    from holdfast.codec import default_codec
    from holdfast.engine.model.missing import MISSING

    if value is MISSING:
        return []
    return json.format(json.encode(default_codec.to_json(value)), indent=2).decode().splitlines()
