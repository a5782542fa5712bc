"""`holdfast state`: keys and values of scopes."""

from __future__ import annotations

import shlex
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import encode, plain
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, limit_option, yes_option
from holdfast.interfaces.cli.completion_types import KEY, SCOPE
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import clock, in_words, plural, safe
from holdfast.interfaces.cli.output import on_terminal
from holdfast.interfaces.cli.scope_args import (
    SPAN,
    as_option,
    diff_record,
    open_state,
    parse_value,
    read_value,
    short,
    version_or_time,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.state.scope_state import State
    from holdfast.state.watcher import WatchedChange


@group("state", default="list")
def state(session: CliContext) -> None:
    """Read and change the state of scopes: keys and values with their history.

    A SCOPE consists of parts: agent:researcher, workflow:w1/step:fetch, user:alice, or global. In a name, a slash is
    %2F and a percent sign %25.

    holdfast state set agent:researcher plan '{"goal": "tides"}'
    holdfast state get agent:researcher plan
    holdfast state list agent:researcher --values
    holdfast state history agent:researcher plan
    """


# One key --------------------------------------------------------------------------------------------------------


@command("get", scope=SCOPE, key=KEY)
@click.option("--at", "when", metavar="WHEN", help="An older value: a version (12), or a time (2h, yesterday, …).")
@as_option
def get(session: CliContext, scope: str, key: str, when: str | None) -> None:
    """Print the value of a key.

    In a pipe, text and bytes are written as they are, without a newline, and everything else as JSON, which
    `holdfast state set` reads.

    holdfast state get agent:researcher plan
    holdfast state get agent:researcher plan --at yesterday
    holdfast state get agent:a report > report.md
    """
    from holdfast.engine.model.missing import MISSING

    state = open_state(session, scope)
    if when is None:
        item = state.item(key)
        value, record = item.value, {"scope": scope, **plain(item)}
    else:
        value = state.get_at(key, version_or_time(when), MISSING)
        if value is MISSING:
            raise NotFoundError(
                "there was no such key at that time",
                where=f"key {key!r} of {scope} at {when}",
                hint="See holdfast state history",
            )
        record = {"scope": scope, "key": key, "value": value, "at": when}
    if session.json:
        session.emit(record)
    else:
        _write(session, value)


def _write(session: CliContext, value: Any) -> None:
    if on_terminal(sys.stdout):
        from holdfast.interfaces.cli.value_view import ALL, ValueWriter

        session.out.page()
        for line in ValueWriter(session.out, ALL).value(value):
            session.out.line(line)
    elif isinstance(value, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
    elif type(value) is str:
        sys.stdout.write(plain(value))
    else:
        from holdfast.codec import default_codec

        session.out.line(encode(default_codec.to_json(value)))


@command("set", scope=SCOPE, key=KEY)
@click.option("--text", is_flag=True, help="The value is text, not JSON.")
@click.option("--bytes", "raw", is_flag=True, help="The value is bytes, not JSON.")
@click.option("--ttl", type=SPAN, metavar="SPAN", help="When it expires: 90s, 2h, 3d.")
@click.option("--expected", type=click.IntRange(0), metavar="N", help="Only if the key has this version; 0 is none.")
@click.option("--create", is_flag=True, help="Create the store if there is none.")
@as_option
def set_(
    session: CliContext,
    scope: str,
    key: str,
    value: str,
    text: bool,
    raw: bool,
    ttl: timedelta | None,
    expected: int | None,
    create: bool,
) -> None:
    """Set a key to a value: JSON, or with --text text. - is standard input.

    holdfast state set agent:researcher plan '{"goal": "tides", "done": 0}'
    holdfast state set agent:researcher mood curious --text --ttl 2h
    holdfast state set agent:researcher report - --text < report.md
    """
    if text and raw:
        raise click.UsageError("give --text or --bytes, not both")
    new = read_value(value, f"key {key!r} of {scope}", text=text, raw=raw)
    state = open_state(session, scope, write=True, create=create)
    version = state.set(key, new, ttl=ttl, expected=expected)
    session.tell(f"{key} is at version {version}.", {"scope": scope, "key": key, "version": version})


@command("patch", scope=SCOPE, key=KEY)
@click.argument("changes", nargs=-1, metavar="[PATH=VALUE]...")
@click.option("--remove", multiple=True, metavar="PATH", help="Remove this path; may be repeated.")
@click.option("--text", is_flag=True, help="The values are text, not JSON.")
@click.option("--expected", type=click.IntRange(0), metavar="N", help="Only if the key has this version.")
@as_option
def patch(
    session: CliContext,
    scope: str,
    key: str,
    changes: tuple[str, ...],
    remove: tuple[str, ...],
    text: bool,
    expected: int | None,
) -> None:
    """Change parts of a value, which is a dict.

    PATH is a key of it, or a path such as plan.goal; VALUE is JSON, or with --text text. A missing key starts as an
    empty dict.

    holdfast state patch agent:researcher plan done=3 owner.name='"Ada"'
    holdfast state patch agent:researcher plan --remove draft
    """
    edits: dict[tuple[Any, ...], Any] = {}
    for each in changes:
        path, equals, value = each.partition("=")
        if not equals or not path:
            raise click.UsageError(f"a change must be PATH=VALUE, not {each!r}")
        edits[_parse(path)] = value if text else parse_value(value, f"{path} in key {key!r} of {scope}")
    state = open_state(session, scope, write=True)
    version = state.patch(key, edits, remove=[_parse(each) for each in remove], expected=expected)
    session.tell(f"{key} is at version {version}.", {"scope": scope, "key": key, "version": version})


def _parse(text: str) -> tuple[str, ...]:
    from holdfast.engine.paths import parse_path

    path = parse_path(text)
    if not all(type(part) is str for part in path):
        raise InvalidError("only entries of dicts are patched", where=text, hint="Set the whole list: PATH='[1, 2]'")
    return path


@command("delete", scope=SCOPE)
@click.argument("keys", nargs=-1, type=KEY, metavar="[KEY]...")
@click.option("--all", "everything", is_flag=True, help="All keys of the scope; asks first.")
@click.option("--expected", type=click.IntRange(1), metavar="N", help="Only if the key has this version.")
@dry_run_option
@yes_option
@as_option
def delete(session: CliContext, scope: str, keys: tuple[str, ...], everything: bool, expected: int | None) -> None:
    """Delete keys, all or none.

    Their history is kept, and `holdfast state rollback` restores them.

    holdfast state delete agent:researcher plan mood
    holdfast state delete agent:researcher --all --dry-run
    """
    if everything is bool(keys):
        raise InvalidError("give keys or --all", hint="holdfast state delete SCOPE KEY, or SCOPE --all")
    if expected is not None and len(keys) != 1:
        raise InvalidError("--expected needs exactly one key")
    store = session.open_as(write=not session.dry_run)
    state = store.state(scope)
    if everything:
        count = len(state)
        if not session.dry_run and count:
            session.confirm(f"Delete {plural(count, 'key')} of {scope}?")
            state.clear()
    elif session.dry_run:
        count = len([state.item(key) for key in keys])
    elif expected is not None:
        if not state.delete(keys[0], expected=expected):
            raise NotFoundError("there is no such key", where=f"key {keys[0]!r} of {scope}")
        count = 1
    else:
        unique = list(dict.fromkeys(keys))
        for key in unique:
            if key not in state:
                raise NotFoundError(
                    "there is no such key", where=f"key {key!r} of {scope}", hint="Nothing was deleted; see state list"
                )
        state.batch({}, delete=unique)
        count = len(unique)
    record = {"scope": scope, "keys": list(keys) or None, "deleted": count, "dry_run": session.dry_run}
    session.tell(f"{'Would delete' if session.dry_run else 'Deleted'} {plural(count, 'key')} of {scope}.", record)


@command("expire", scope=SCOPE, key=KEY)
@click.argument("ttl", metavar="SPAN|never")
@as_option
def expire(session: CliContext, scope: str, key: str, ttl: str) -> None:
    """Set when a key expires, or that it never does.

    holdfast state expire agent:researcher draft 2h
    holdfast state expire agent:researcher draft never
    """
    span = None if ttl == "never" else SPAN.convert(ttl, None, click.get_current_context())
    version = open_state(session, scope, write=True).expire(key, span)
    when = "never expires" if span is None else f"expires {in_words(span.total_seconds())}"
    session.tell(f"{key} {when}.", {"scope": scope, "key": key, "version": version})


# Scopes ---------------------------------------------------------------------------------------------------------


@command("copy", scope=SCOPE, other=SCOPE)
@click.option("--overwrite", is_flag=True, help="Overwrite existing keys.")
@as_option
def copy(session: CliContext, scope: str, other: str, overwrite: bool) -> None:
    """Copy all keys of a scope to another, or none if that has one of them, unless --overwrite is given.

    holdfast state copy agent:researcher agent:writer
    """
    store = session.open_as(write=True)
    count = store.state(scope).copy_to(store.state(other), on_conflict="overwrite" if overwrite else "raise")
    session.tell(f"Copied {plural(count, 'key')} to {other}.", {"scope": scope, "other": other, "copied": count})


@command("move", scope=SCOPE, other=SCOPE)
@click.option("--overwrite", is_flag=True, help="Overwrite existing keys.")
@as_option
def move(session: CliContext, scope: str, other: str, overwrite: bool) -> None:
    """Move all keys of a scope to another, or none if that has one of them, unless --overwrite is given.

    holdfast state move agent:draft agent:researcher
    """
    store = session.open_as(write=True)
    count = store.state(scope).move_to(store.state(other), on_conflict="overwrite" if overwrite else "raise")
    session.tell(f"Moved {plural(count, 'key')} to {other}.", {"scope": scope, "other": other, "moved": count})


@command("list", scope=SCOPE)
@click.option("--prefix", default="", metavar="TEXT", help="Only those that start with this.")
@click.option("--pattern", default="", metavar="PATTERN", help="Only those that match: plan/*, agent:*, **.")
@click.option("--values", is_flag=True, help="Also show values, versions and expiry.")
@click.option("--after", default="", metavar="NAME", help="Start after this key or scope.")
@limit_option()
@as_option
def list_(
    session: CliContext, scope: str | None, prefix: str, pattern: str, values: bool, after: str, limit: int | None
) -> None:
    """List the scopes, or the keys of one.

    holdfast state list                        the scopes
    holdfast state list --prefix user:alice/   those in Alice's
    holdfast state list agent:researcher --pattern 'plan/*' --values
    """
    if scope is None:
        if values:
            raise InvalidError("--values needs a scope", hint="holdfast state list SCOPE --values")
        scopes = session.open_as().scopes(prefix, pattern=pattern, cursor=after)
        none = "There are no scopes." if not prefix and not pattern else "No scopes match."
        session.list(islice(scopes.all(), limit), none=none)
        return
    state = open_state(session, scope)
    empty = "There are no such keys." if prefix or pattern else "The scope is empty."
    if not values:
        session.out.page()
        key = None
        for key in islice(state.list_keys(prefix, pattern=pattern, cursor=after).all(), limit):
            session.report(key, {"scope": scope, "key": key})
        if key is None:
            session.note(empty)
        return
    items = islice(state.list_items(prefix, pattern=pattern, cursor=after).all(), limit)
    session.list(items, none=empty, of={"scope": scope}, value=lambda item: short(item.value))


_COLORS = {"delete": "red", "deleted": "red", "pruned": "yellow"}


@command("history", scope=SCOPE, key=KEY)
@click.option("--values", is_flag=True, help="Also show the new values.")
@click.option("--before", type=click.IntRange(1), metavar="VERSION", help="Continue with those before this version.")
@limit_option(100)
@as_option
def history(session: CliContext, scope: str, key: str | None, values: bool, before: int | None, limit: int) -> None:
    """Show the changes of a scope or of a key, the latest first.

    holdfast state history agent:researcher plan --values
    holdfast state history agent:researcher -n 20 --json
    """
    state = open_state(session, scope)
    entries = state.history(key, limit=limit, cursor=None if before is None else str(before))
    new = {id(each): state.get_at(each.key, each.version) for each in entries if values and each.version}
    if session.json:
        for each in entries:
            session.emit(each, {"scope": scope, **({"value": new[id(each)]} if id(each) in new else {})})
        return
    none = f"{scope} has no changes." if key is None else f"{scope} never had the key {key}."
    said: Any = {"value": lambda each: short(new[id(each)]) if id(each) in new else ""} if values else {}
    session.list(entries, none=none, first=("version", "time"), **said)


@command("diff", scope=SCOPE)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option("--stat", is_flag=True, help="Show the summary only.")
@click.option("--word", is_flag=True, help="Show changed words as [-old-]{+new+}.")
@click.option("--exit-code", is_flag=True, help=f"End with exit code {FINDINGS} if anything differs.")
@as_option
def diff(session: CliContext, scope: str, a: str, b: str | None, stat: bool, word: bool, exit_code: bool) -> None:
    """Compare a scope at two times.

    A and B are versions, such as 12, or times, such as 2h, yesterday or 2026-11-01; the default of B is now.

    holdfast state diff agent:researcher 3 7
    holdfast state diff agent:researcher yesterday --stat
    """
    changes = open_state(session, scope).diff(version_or_time(a), None if b is None else version_or_time(b))
    out = session.out
    lines = [
        out.style(f"--- {safe(scope)} at {safe(a)}", "bold"),
        out.style(f"+++ {safe(scope)} {'now' if b is None else f'at {safe(b)}'}", "bold"),
        *(f" {safe(str(counts))}" for counts in changes.summary),
        *(() if stat else ("", *map(out.diff_line, changes.lines(by_word=word)))),
    ]
    session.report(lines if changes else (), diff_record(changes), {"scope": scope, "a": a, "b": b})
    session.exit_if(exit_code and changes, FINDINGS)


@command("rollback", scope=SCOPE)
@click.option("--key", type=KEY, metavar="KEY", help="Only this key.")
@dry_run_option
@yes_option
@as_option
def rollback(session: CliContext, scope: str, at: str, key: str | None) -> None:
    """Roll a scope or a key back to an older version.

    AT is a version, such as 12, or a time, such as 2h or yesterday. It is a new step: the history is kept, and the
    rollback can be rolled back, too.

    holdfast state rollback agent:researcher 12 --dry-run
    holdfast state rollback agent:researcher 2h --key plan --yes
    """
    state = open_state(session, scope, write=not session.dry_run)
    plan = _plan(state, version_or_time(at), key)
    record = {"scope": scope, "at": at, "changes": plan, "changed": 0, "dry_run": session.dry_run}
    if not session.json and (session.dry_run or not session.yes):
        for each, what in plan.items():
            effect = {"set": "would be rolled back", "delete": "would be deleted"}[what]
            session.out.line(f"{session.out.style(safe(each), 'yellow')} {effect}")
    if session.dry_run or not plan:
        session.tell("Nothing has changed since then." if not plan else "Nothing was changed.", record)
        return
    session.confirm(f"Roll back {plural(len(plan), 'key')} of {scope}?")
    changed = state.rollback(version_or_time(at), key)
    session.tell(f"Rolled back {plural(changed, 'key')} of {scope}.", record | {"changed": changed})


def _plan(state: State, at: int | str, key: str | None) -> dict[str, str]:
    """Return what a rollback does to each key: `set` or `delete`."""
    from holdfast.codec import default_codec
    from holdfast.engine.model.missing import MISSING

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


@command("watch", scope=SCOPE)
@click.option("--pattern", default="**", metavar="PATTERN", help="Only keys that match: plan/*.")
@click.option("--nested", is_flag=True, help="Also the scopes in it, existing and new.")
@click.option("--cursor", metavar="CURSOR", help="Continue another watch; '' is the start of the history.")
@limit_option()
@as_option
def watch(session: CliContext, scope: str, pattern: str, nested: bool, cursor: str | None, limit: int | None) -> None:
    """Show changes by any process as they are made, each once and in order, until Ctrl-C.

    With --json every line has a cursor: give the last one with --cursor to continue without a gap.

    holdfast state watch agent:researcher
    holdfast state watch user:alice --nested --json
    """
    count = 0
    with open_state(session, scope).watch(pattern, cursor=cursor, nested=nested) as changes:
        session.note(f"Watching {scope}. Ctrl-C ends.")
        try:
            for change in changes:
                _write_change(session, change)
                count += 1
                if count == limit:
                    break
        finally:
            if count or cursor is not None:
                again = f"holdfast state watch {shlex.quote(scope)}{' --nested' if nested else ''}"
                session.note(f"\nTo continue: {again} --cursor {shlex.quote(changes.cursor)}")


def _write_change(session: CliContext, change: WatchedChange) -> None:
    from msgspec.structs import replace

    from holdfast.engine.model.missing import MISSING

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


state.add(list_, get, set_, patch, delete, expire, history, diff, rollback, watch, copy, move)
