"""`holdfast state history`, `diff`, `rollback` and `watch`: what a scope was, and what becomes of it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import KEY, SCOPE
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import ago, clock, plural, safe
from holdfast.interfaces.cli.scope_args import as_option, moment, short, state_of

if TYPE_CHECKING:
    from holdfast.state.scope_state import State
    from holdfast.state.watcher import WatchedChange

_HEADS = ("VERSION", "WHEN", "ACTION", "KEY", "BEFORE", "BY")
_COLORS = {"delete": "red", "deleted": "red", "pruned": "yellow"}


@command("history")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY, required=False)
@click.option("--values", is_flag=True, help="Show what the key became, too.")
@click.option("--before", type=click.IntRange(1), metavar="VERSION", help="Go on with what is older than this version.")
@click.option("-n", "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="So many.")
@as_option
def history(
    session: CliContext, scope: str, key: str | None, values: bool, before: int | None, limit: int, identity: str | None
) -> None:
    """Show what was changed, the latest first.

    In a scope, or of one key.

    \b
    holdfast state history agent:researcher plan --values
    holdfast state history agent:researcher -n 20 --json
    """
    found = state_of(session, scope, identity)
    past = found.history(key, limit=limit, before=before)
    held = {id(each): found.get_at(each.key, each.version) for each in past if values and each.version}
    if session.json:
        for each in past:
            record = {"scope": scope, **each._asdict()}
            session.emit(record | {"value": held[id(each)]} if id(each) in held else record)
        return
    if not past:
        session.note(f"Nothing was changed in {scope}." if key is None else f"{key} was never in {scope}.")
        return
    session.out.page()
    heads = (*_HEADS, "VALUE") if values else _HEADS
    rows = []
    for each in past:
        row = (str(each.version or ""), ago(each.time), each.action, each.key, str(each.before or ""), each.actor)
        rows.append((*row, short(held[id(each)]) if id(each) in held else "") if values else row)
    session.out.table(
        heads, rows, right=("VERSION", "BEFORE"), shrink="VALUE" if values else "KEY", styles={"KEY": "yellow"}
    )


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
    """Show what differs between two moments.

    A and B are versions, as in 12, or times, as in 2h, yesterday or 2026-11-01; without B, it is A and now.

    \b
    holdfast state diff agent:researcher 3 7
    holdfast state diff agent:researcher yesterday --stat
    """
    from holdfast.interfaces.cli.patches import painted

    found = state_of(session, scope, identity).diff(moment(a), None if b is None else moment(b))
    if session.json:
        told = found.to_json()
        session.emit({"scope": scope, "a": a, "b": b, "summary": told["summary"], "changes": told["changes"]})
    elif found:
        out = session.out
        out.page()
        out.line(out.style(f"--- {safe(scope)} at {safe(a)}", "bold"))
        out.line(out.style(f"+++ {safe(scope)} {'now' if b is None else f'at {safe(b)}'}", "bold"))
        for counts in found.summary:
            out.line(f" {safe(str(counts))}")
        if not stat:
            out.line()
            for line in found.lines(by_word=word):
                out.line(painted(out, line))
    if exit_code and found:
        raise click.exceptions.Exit(FINDINGS)


@command("rollback")
@click.argument("scope", type=SCOPE)
@click.argument("when")
@click.option("--key", type=KEY, metavar="KEY", help="Only this key.")
@dry_run_option
@yes_option
@as_option
def rollback(
    session: CliContext, scope: str, when: str, key: str | None, dry_run: bool, yes: bool, identity: str | None
) -> None:
    """Have a scope, or a key, be as it was.

    WHEN is a version, as in 12, or a time, as in 2h or yesterday. That is a new step: nothing of
    the history goes, and it can be rolled back itself.

    \b
    holdfast state rollback agent:researcher 12 --dry-run
    holdfast state rollback agent:researcher 2h --key plan --yes
    """
    found = state_of(session, scope, identity, write=not dry_run)
    plan = _plan(found, moment(when), key)
    if session.json and (dry_run or not plan):
        session.emit({"scope": scope, "when": when, "changes": plan, "changed": 0, "dry_run": dry_run})
        return
    if not plan:
        session.note("It is as it was then.")
        return
    if not session.json and (dry_run or not yes):
        for each, what in plan.items():
            word = {"set": "would be set back", "delete": "would go"}[what]
            session.out.line(f"{session.out.style(safe(each), 'yellow')} {word}")
    if dry_run:
        return
    session.confirm(f"Roll back {plural(len(plan), 'key')} of {scope}?", yes=yes)
    changed = found.rollback(moment(when), key)
    if session.json:
        session.emit({"scope": scope, "when": when, "changes": plan, "changed": changed, "dry_run": False})
    else:
        session.note(f"{plural(changed, 'key')} of {scope} rolled back.")


def _plan(found: State, when: int | str, key: str | None) -> dict[str, str]:
    """What a rollback does: the keys that are set back, and those that go."""
    from holdfast.codec import default_codec
    from holdfast.engine.model.missing import MISSING

    if key is None:
        then, now = found.at(when), {item.key: item.value for item in _all(found)}
    else:
        sides = (found.get_at(key, when, MISSING), found.get(key, MISSING))
        then, now = ({} if side is MISSING else {key: side} for side in sides)
    pack = default_codec.pack
    back = {each for each, value in then.items() if each not in now or pack(now[each]) != pack(value)}
    return {
        each: "set" if each in back else "delete" for each in sorted({*then, *now}) if each in back or each not in then
    }


def _all(found: State) -> Any:
    after = ""
    while page := found.list_items(after=after, limit=500):
        yield from page
        after = page[-1].key


@command("watch")
@click.argument("scope", type=SCOPE)
@click.option("--pattern", default="**", metavar="PATTERN", help="Only keys that match: plan/*.")
@click.option("--nested", is_flag=True, help="The scopes inside it, too, also those to come.")
@click.option("--cursor", metavar="CURSOR", help="Go on where another watch was; '' is the start of the history.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="End after so many changes.")
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
    """Show changes as they are made.

    By any process, each once and in order, until Ctrl-C. With --json every line has a cursor: give the last one with
    --cursor to go on without a gap.

    \b
    holdfast state watch agent:researcher
    holdfast state watch user:alice --nested --json
    """
    count = 0
    with state_of(session, scope, identity).watch(pattern, cursor=cursor, nested=nested) as changes:
        session.note(f"Watching {scope}. Ctrl-C ends.")
        try:
            for change in changes:
                _tell(session, change)
                count += 1
                if count == limit:
                    break
        finally:
            if count or cursor is not None:
                again = f"holdfast state watch {shlex.quote(scope)}{' --nested' if nested else ''}"
                session.note(f"\nTo go on after this: {again} --cursor {shlex.quote(changes.cursor)}")


def _tell(session: CliContext, change: WatchedChange) -> None:
    from holdfast.engine.model.missing import MISSING

    if session.json:
        record = {
            "scope": str(change.scope),
            "key": change.key,
            "action": change.action,
            "before": change.before,
            "version": change.version,
            "time": change.time,
            "actor": change.actor,
            "correlation": change.correlation,
            "cause": change.cause,
            "id": change.id,
            "cursor": change.cursor,
        }
        session.emit(record if change.value is MISSING else record | {"value": change.value})
    else:
        out = session.out
        action = out.style(change.action, _COLORS.get(change.action, "green"))
        key = f" {out.style(safe(change.key), 'yellow')}" if change.key else ""
        value = "" if change.value is MISSING else f" = {short(change.value)}"
        by = f", by {safe(change.actor)}" if change.actor else ""
        out.line(f"{clock(change.time)}  {safe(str(change.scope))}  {action}{key}{value} ({_which(change)}{by})")
    session.out.flush()


def _which(change: WatchedChange) -> str:
    if change.action == "deleted":
        return "the whole scope"
    if change.action == "pruned":
        return f"versions {change.before} to {change.version}"
    return f"version {change.version}" if change.version else f"was version {change.before}"
