"""`holdfast merge`: merging a branch, with conflicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import ConflictError, HoldfastError, InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import BRANCH, REVISION, THREAD
from holdfast.interfaces.cli.exit_codes import CONFLICT
from holdfast.interfaces.cli.formatting import safe

if TYPE_CHECKING:
    from holdfast.history.merge import MergeConflict

STRATEGIES = ("ours", "theirs", "union")


@command("merge", thread=THREAD, theirs=REVISION)
@click.option("--into", type=BRANCH, default="HEAD", help="The branch to merge into; by default that of HEAD.")
@click.option("-s", "-X", "--strategy", type=click.Choice(STRATEGIES), help="How to resolve conflicts.")
@click.option(
    "--resolve",
    multiple=True,
    metavar="PATH=STRATEGY",
    help="How to resolve conflicts at or below a path: messages=union.",
)
@click.option("-i", "--interactive", is_flag=True, help="Ask for each conflict.")
@click.option("-m", "--message", help="A message for the metadata.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would change; nothing is saved.")
def merge(
    session: CliContext,
    thread: str,
    theirs: str,
    into: str,
    strategy: str | None,
    resolve: tuple[str, ...],
    interactive: bool,
    message: str | None,
    dry_run: bool,
) -> None:
    """Merge a branch.

    What THEIRS, a branch or another revision, changed since the common ancestor is merged into --into, in a checkpoint
    with two parents. Conflicts are resolved by a strategy, by path, or interactively; else nothing is saved.

    holdfast merge chat draft
    holdfast merge chat draft --into main -s union
    """
    store = session.open(write=True)
    rules: Any = dict(map(_parse_rule, resolve))
    if interactive:
        if session.json:
            raise InvalidError("give --interactive or --json, not both")
        rules = ConflictPrompt(session, rules)
    before = store.thread(thread).find(into).id
    try:
        merged = store.thread(thread).merge(
            theirs,
            into,
            strategy=strategy,
            resolve=rules or None,
            metadata=None if message is None else {"message": message},
            dry_run=dry_run,
        )
    except ConflictError as error:
        if error.conflicts:
            _show(session, error.conflicts)
            error.hint = "Resolve them with --strategy, --resolve PATH=STRATEGY or --interactive"
        raise
    if dry_run:
        found = store.thread(thread).diff(before, state=merged.state).without_internal()
        session.report(found.text() if found else "Nothing would change.", found.to_json())
        return
    same = merged.id == before
    session.report(
        "Already up to date." if same else f"Merged {merged.merged} into {merged.parent}: {merged.id}.", merged
    )


def _parse_rule(text: str) -> tuple[str, str]:
    path, _, strategy = text.rpartition("=")
    if not path or strategy not in STRATEGIES:
        raise InvalidError(f"{text!r} is not PATH=STRATEGY", hint="Write messages=union, plan=ours, …=theirs")
    return path, strategy


def _show(session: CliContext, conflicts: tuple[MergeConflict, ...]) -> None:
    """Write the conflicts."""
    for conflict in conflicts:
        sides = {side: getattr(conflict, side) for side in ("base", "ours", "theirs") if _is(conflict, side)}
        session.report(_describe(session, conflict), {"path": conflict.where, **sides})
    session.out.flush()


def _is(conflict: MergeConflict, side: str) -> bool:
    from holdfast.engine.model.missing import MISSING

    return getattr(conflict, side) is not MISSING


def _describe(session: CliContext, conflict: MergeConflict) -> Iterator[str]:
    from holdfast.interfaces.cli.value_view import SHORT, ValueWriter

    out = session.out
    yield out.style(f"both changed {safe(conflict.where)}", "bold")
    for side, color in (("base", "dim"), ("ours", "green"), ("theirs", "cyan")):
        if not _is(conflict, side):
            yield f"  {out.style(side, color)}: (nothing)"
            continue
        first, *rest = ValueWriter(out, SHORT).value(getattr(conflict, side))
        if rest:
            yield f"  {out.style(side, color)}:"
            yield from (f"    {line}" for line in (first, *rest))
        else:
            yield f"  {out.style(side, color)}: {first}"


class ConflictPrompt:
    """Asks the user to resolve conflicts, each once, also if the merge is repeated because others wrote meanwhile."""

    def __init__(self, session: CliContext, rules: dict[str, str]) -> None:
        self._session = session
        self._rules = rules
        self._answers: list[tuple[MergeConflict, Any]] = []

    def __call__(self, conflict: MergeConflict) -> Any:
        for earlier, answer in self._answers:
            if repr(earlier) == repr(conflict):
                return answer
        value = self._by_rule(conflict)
        if value is _ASK:
            value = self._ask(conflict)
        self._answers.append((conflict, value))
        return value

    def _by_rule(self, conflict: MergeConflict) -> Any:
        from holdfast.engine.paths import parse_path

        for path, strategy in sorted(self._rules.items(), key=lambda rule: -len(parse_path(rule[0]))):
            if conflict.path[: len(parse_path(path))] == parse_path(path):
                value = both(conflict) if strategy == "union" else getattr(conflict, strategy)
                return _ASK if value is None and strategy == "union" else value
        return _ASK

    def _ask(self, conflict: MergeConflict) -> Any:
        for line in _describe(self._session, conflict):
            click.echo(line, err=True)
        while True:
            key = click.prompt("Take (o)urs, (t)heirs, (b)oth, (e)dit, (q)uit", "o", err=True).strip().lower()
            if key in ("o", "ours"):
                return conflict.ours
            if key in ("t", "theirs"):
                return conflict.theirs
            if key in ("b", "both"):
                value = both(conflict)
                if value is not None:
                    return value
                click.echo("Only lists and texts can be combined.", err=True)
            elif key in ("e", "edit"):
                value = edit(conflict)
                if value is not _ASK:
                    return value
            elif key in ("q", "quit"):
                self._session.note("Nothing was merged.")
                raise click.exceptions.Exit(CONFLICT)


_ASK = object()
"""Means that there is no answer yet."""


def both(conflict: MergeConflict) -> Any:
    """Combine both sides: the items of lists, the lines of texts. None for other values."""
    ours, theirs = conflict.ours, conflict.theirs
    if isinstance(ours, list) and isinstance(theirs, list):
        existing = [*ours, *(conflict.base if isinstance(conflict.base, list) else ())]
        return [*ours, *(item for item in theirs if item not in existing)]
    if isinstance(ours, str) and isinstance(theirs, str):
        return f"{ours}{'' if ours.endswith(chr(10)) else chr(10)}{theirs}"
    return None


def edit(conflict: MergeConflict) -> Any:
    """Let the user edit a value as JSON: `MISSING` if it is left empty, `_ASK` if it is not JSON."""
    from msgspec import DecodeError
    from msgspec.json import decode

    from holdfast.codec import default_codec
    from holdfast.engine.model.missing import MISSING

    lines = [f"// {conflict.where}: the merged value as JSON. Lines that start with // are ignored.", ""]
    lines += _json_lines(conflict.ours)
    for side in ("base", "theirs"):
        lines += ["", f"// {side}:", *(f"// {line}" for line in _json_lines(getattr(conflict, side)))]
    text = click.edit("\n".join(lines) + "\n", extension=".json")
    if text is None:
        return _ASK
    content = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    if not content.strip():
        return MISSING
    try:
        return default_codec.from_json(decode(content))
    except (DecodeError, HoldfastError) as error:
        click.echo(f"This is not JSON: {safe(str(error))}", err=True)
        return _ASK


def _json_lines(value: Any) -> list[str]:
    """Format a value as lines of JSON with type marks."""
    from msgspec import json

    from holdfast.codec import default_codec
    from holdfast.engine.model.missing import MISSING

    if value is MISSING:
        return []
    return json.format(json.encode(default_codec.to_json(value)), indent=2).decode().splitlines()
