"""`holdfast state history`, `diff`, `rollback` and `watch`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import plain
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, limit_option, yes_option
from holdfast.interfaces.cli.completion_types import KEY, SCOPE
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import clock, plural, safe
from holdfast.interfaces.cli.scope_args import as_option, diff_record, open_state, short, version_or_time

if TYPE_CHECKING:
    from holdfast.state import State, WatchedChange

_COLORS = {"delete": "red", "deleted": "red", "pruned": "yellow"}


@command("history")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY, required=False)
@click.option("--values", is_flag=True, help="Also show the new values.")
@click.option("--before", type=click.IntRange(1), metavar="VERSION", help="Continue with those before this version.")
@limit_option(100)
@as_option
def history(
    session: CliContext, scope: str, key: str | None, values: bool, before: int | None, limit: int, identity: str | None
) -> None:
    """Show the changes of a scope or of a key, the latest first.

    \b
    holdfast state history agent:researcher plan --values
    holdfast state history agent:researcher -n 20 --json
    """
    state = open_state(session, scope, identity)
    entries = state.history(key, limit=limit, cursor=None if before is None else str(before))
    new = {id(each): state.get_at(each.key, each.version) for each in entries if values and each.version}
    if session.json:
        for each in entries:
            session.emit(each, {"scope": scope, **({"value": new[id(each)]} if id(each) in new else {})})
        return
    none = f"{scope} has no changes." if key is None else f"{scope} never had the key {key}."
    said: Any = {"value": lambda each: short(new[id(each)]) if id(each) in new else ""} if values else {}
    session.list(entries, none=none, first=("version", "time"), **said)


@command("diff")
@click.argument("scope", type=SCOPE)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("--stat", is_flag=True, help="Show the summary only.")
@click.option("--word", is_flag=True, help="Show changed words as [-old-]{+new+}.")
@click.option("--exit-code", is_flag=True, help=f"End with exit code {FINDINGS} if anything differs.")
@as_option
def diff(
    session: CliContext,
    scope: str,
    a: str,
    b: str | None,
    stat: bool,
    word: bool,
    exit_code: bool,
    identity: str | None,
) -> None:
    """Compare a scope at two times.

    A and B are versions, such as 12, or times, such as 2h, yesterday or 2026-11-01; the default of B is now.

    \b
    holdfast state diff agent:researcher 3 7
    holdfast state diff agent:researcher yesterday --stat
    """
    changes = open_state(session, scope, identity).diff(version_or_time(a), None if b is None else version_or_time(b))
    out = session.out
    lines = [
        out.style(f"--- {safe(scope)} at {safe(a)}", "bold"),
        out.style(f"+++ {safe(scope)} {'now' if b is None else f'at {safe(b)}'}", "bold"),
        *(f" {safe(str(counts))}" for counts in changes.summary),
        *(() if stat else ("", *map(out.diff_line, changes.lines(by_word=word)))),
    ]
    session.report(lines if changes else (), diff_record(changes), {"scope": scope, "a": a, "b": b})
    session.exit_if(exit_code and changes, FINDINGS)


@command("rollback")
@click.argument("scope", type=SCOPE)
@click.argument("at")
@click.option("--key", type=KEY, metavar="KEY", help="Only this key.")
@dry_run_option
@yes_option
@as_option
def rollback(
    session: CliContext, scope: str, at: str, key: str | None, dry_run: bool, yes: bool, identity: str | None
) -> None:
    """Roll a scope or a key back to an older version.

    AT is a version, such as 12, or a time, such as 2h or yesterday. It is a new step: the history is kept, and the
    rollback can be rolled back, too.

    \b
    holdfast state rollback agent:researcher 12 --dry-run
    holdfast state rollback agent:researcher 2h --key plan --yes
    """
    state = open_state(session, scope, identity, write=not dry_run)
    plan = _plan(state, version_or_time(at), key)
    record = {"scope": scope, "at": at, "changes": plan, "changed": 0, "dry_run": dry_run}
    if not session.json and (dry_run or not yes):
        for each, what in plan.items():
            effect = {"set": "would be rolled back", "delete": "would be deleted"}[what]
            session.out.line(f"{session.out.style(safe(each), 'yellow')} {effect}")
    if dry_run or not plan:
        session.tell("Nothing has changed since then." if not plan else "Nothing was changed.", record)
        return
    session.confirm(f"Roll back {plural(len(plan), 'key')} of {scope}?", yes=yes)
    changed = state.rollback(version_or_time(at), key)
    session.tell(f"Rolled back {plural(changed, 'key')} of {scope}.", record | {"changed": changed})


def _plan(state: State, at: int | str, key: str | None) -> dict[str, str]:
    """Return what a rollback does to each key: `set` or `delete`."""
    from holdfast import MISSING
    from holdfast.codec import default_codec

    if key is None:
        then, now = state.at(at), dict(state.items())
    else:
        sides = (state.get_at(key, at, MISSING), state.get(key, MISSING))
        then, now = ({} if side is MISSING else {key: side} for side in sides)
    pack = default_codec.pack
    back = {each for each, value in then.items() if each not in now or pack(now[each]) != pack(value)}
    return {
        each: "set" if each in back else "delete" for each in sorted({*then, *now}) if each in back or each not in then
    }


@command("watch")
@click.argument("scope", type=SCOPE)
@click.option("--pattern", default="**", metavar="PATTERN", help="Only keys that match: plan/*.")
@click.option("--nested", is_flag=True, help="Also the scopes in it, existing and new.")
@click.option("--cursor", metavar="CURSOR", help="Continue another watch; '' is the start of the history.")
@limit_option()
@as_option
def watch(
    session: CliContext,
    scope: str,
    pattern: str,
    nested: bool,
    cursor: str | None,
    limit: int | None,
    identity: str | None,
) -> None:
    """Show changes by any process as they are made, each once and in order, until Ctrl-C.

    With --json every line has a cursor: give the last one with --cursor to continue without a gap.

    \b
    holdfast state watch agent:researcher
    holdfast state watch user:alice --nested --json
    """
    count = 0
    with open_state(session, scope, identity).watch(pattern, cursor=cursor, nested=nested) as changes:
        session.note(f"Watching {scope}. Ctrl-C ends.")
        try:
            for change in changes:
                _write(session, change)
                count += 1
                if count == limit:
                    break
        finally:
            if count or cursor is not None:
                again = f"holdfast state watch {shlex.quote(scope)}{' --nested' if nested else ''}"
                session.note(f"\nTo continue: {again} --cursor {shlex.quote(changes.cursor)}")


def _write(session: CliContext, change: WatchedChange) -> None:
    from holdfast import MISSING

    action = session.out.style(change.action, _COLORS.get(change.action, "green"))
    key = f" {session.out.style(safe(change.key), 'yellow')}" if change.key else ""
    value = "" if change.value is MISSING else f" = {short(change.value)}"
    by = f", by {safe(change.actor)}" if change.actor else ""
    text = f"{clock(change.time)}  {safe(str(change.scope))}  {action}{key}{value} ({_versions(change)}{by})"
    known = {name: each for name, each in plain(replace(change, value=None)).items() if name != "value"}
    session.report((text,), known if change.value is MISSING else change, page=False)
    session.out.flush()


def _versions(change: WatchedChange) -> str:
    if change.action == "deleted":
        return "the whole scope"
    if change.action == "pruned":
        return f"versions {change.before} to {change.version}"
    return f"version {change.version}" if change.version else f"was version {change.before}"
