"""`holdfast state`: keys and values of scopes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import encode, plain
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, yes_option
from holdfast.interfaces.cli.completion_types import KEY, SCOPE
from holdfast.interfaces.cli.formatting import in_words, plural
from holdfast.interfaces.cli.output import on_terminal
from holdfast.interfaces.cli.scope_args import (
    SPAN,
    as_option,
    open_as,
    open_state,
    parse_value,
    read_value,
    version_or_time,
)
from holdfast.interfaces.cli.state_history import diff, history, rollback, watch
from holdfast.interfaces.cli.state_list import list_

if TYPE_CHECKING:
    from datetime import timedelta


@group("state", default="list")
def state(session: CliContext) -> None:
    """Read and change the state of scopes: keys and values with their history.

    A SCOPE consists of parts: agent:researcher, workflow:w1/step:fetch, user:alice, or global. In a name, a slash is
    %2F and a percent sign %25.

    \b
    holdfast state set agent:researcher plan '{"goal": "tides"}'
    holdfast state get agent:researcher plan
    holdfast state list agent:researcher --values
    holdfast state history agent:researcher plan
    """


# One key --------------------------------------------------------------------------------------------------------


@command("get")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
@click.option("--at", "when", metavar="WHEN", help="An older value: a version (12), or a time (2h, yesterday, …).")
@as_option
def get(session: CliContext, scope: str, key: str, when: str | None, identity: str | None) -> None:
    """Print the value of a key.

    In a pipe, text and bytes are written as they are, without a newline, and everything else as JSON, which
    `holdfast state set` reads.

    \b
    holdfast state get agent:researcher plan
    holdfast state get agent:researcher plan --at yesterday
    holdfast state get agent:a report > report.md
    """
    from holdfast import MISSING

    state = open_state(session, scope, identity)
    if when is None:
        item = state.item(key)
        value, record = item.value, {"scope": scope, **item._asdict()}
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


@command("set")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
@click.argument("value")
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
    identity: str | None,
) -> None:
    """Set a key to a value: JSON, or with --text text. - is standard input.

    \b
    holdfast state set agent:researcher plan '{"goal": "tides", "done": 0}'
    holdfast state set agent:researcher mood curious --text --ttl 2h
    holdfast state set agent:researcher report - --text < report.md
    """
    if text and raw:
        raise click.UsageError("give --text or --bytes, not both")
    new = read_value(value, f"key {key!r} of {scope}", text=text, raw=raw)
    state = open_state(session, scope, identity, write=True, create=create)
    version = state.set(key, new, ttl=ttl, expected=expected)
    session.tell(f"{key} is at version {version}.", {"scope": scope, "key": key, "version": version})


@command("patch")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
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
    identity: str | None,
) -> None:
    """Change parts of a value, which is a dict.

    PATH is a key of it, or a path such as plan.goal; VALUE is JSON, or with --text text. A missing key starts as an
    empty dict.

    \b
    holdfast state patch agent:researcher plan done=3 owner.name='"Ada"'
    holdfast state patch agent:researcher plan --remove draft
    """
    edits: dict[tuple[Any, ...], Any] = {}
    for each in changes:
        path, equals, value = each.partition("=")
        if not equals or not path:
            raise click.UsageError(f"a change is PATH=VALUE, not {each!r}")
        edits[_parse(path)] = value if text else parse_value(value, f"{path} in key {key!r} of {scope}")
    state = open_state(session, scope, identity, write=True)
    version = state.patch(key, edits, remove=[_parse(each) for each in remove], expected=expected)
    session.tell(f"{key} is at version {version}.", {"scope": scope, "key": key, "version": version})


def _parse(text: str) -> tuple[str, ...]:
    from holdfast.history import parse_path

    path = parse_path(text)
    if not all(type(part) is str for part in path):
        raise InvalidError("only entries of dicts are patched", where=text, hint="Set the whole list: PATH='[1, 2]'")
    return path


@command("delete")
@click.argument("scope", type=SCOPE)
@click.argument("keys", nargs=-1, type=KEY, metavar="[KEY]...")
@click.option("--all", "everything", is_flag=True, help="All keys of the scope; asks first.")
@click.option("--expected", type=click.IntRange(1), metavar="N", help="Only if the key has this version.")
@dry_run_option
@yes_option
@as_option
def delete(
    session: CliContext,
    scope: str,
    keys: tuple[str, ...],
    everything: bool,
    expected: int | None,
    dry_run: bool,
    yes: bool,
    identity: str | None,
) -> None:
    """Delete keys, all or none.

    Their history is kept, and `holdfast state rollback` restores them.

    \b
    holdfast state delete agent:researcher plan mood
    holdfast state delete agent:researcher --all --dry-run
    """
    if everything is bool(keys):
        raise InvalidError("give keys or --all", hint="holdfast state delete SCOPE KEY, or SCOPE --all")
    if expected is not None and len(keys) != 1:
        raise InvalidError("--expected needs exactly one key")
    store = open_as(session, identity, write=not dry_run)
    state = store.state(scope)
    if everything:
        count = len(state)
        if not dry_run and count:
            session.confirm(f"Delete {plural(count, 'key')} of {scope}?", yes=yes)
            state.clear()
    elif dry_run:
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
    record = {"scope": scope, "keys": list(keys) or None, "deleted": count, "dry_run": dry_run}
    session.tell(f"{'Would delete' if dry_run else 'Deleted'} {plural(count, 'key')} of {scope}.", record)


@command("expire")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
@click.argument("ttl", metavar="SPAN|never")
@as_option
def expire(session: CliContext, scope: str, key: str, ttl: str, identity: str | None) -> None:
    """Set when a key expires, or that it never does.

    \b
    holdfast state expire agent:researcher draft 2h
    holdfast state expire agent:researcher draft never
    """
    span = None if ttl == "never" else SPAN.convert(ttl, None, click.get_current_context())
    version = open_state(session, scope, identity, write=True).expire(key, span)
    when = "never expires" if span is None else f"expires {in_words(span.total_seconds())}"
    session.tell(f"{key} {when}.", {"scope": scope, "key": key, "version": version})


# Scopes ---------------------------------------------------------------------------------------------------------


@command("copy")
@click.argument("scope", type=SCOPE)
@click.argument("other", type=SCOPE)
@click.option("--overwrite", is_flag=True, help="Overwrite existing keys.")
@as_option
def copy(session: CliContext, scope: str, other: str, overwrite: bool, identity: str | None) -> None:
    """Copy all keys of a scope to another, or none if that has one of them, unless --overwrite is given.

    \b
    holdfast state copy agent:researcher agent:writer
    """
    store = open_as(session, identity, write=True)
    count = store.state(scope).copy_to(store.state(other), on_conflict="overwrite" if overwrite else "raise")
    session.tell(f"Copied {plural(count, 'key')} to {other}.", {"scope": scope, "other": other, "copied": count})


@command("move")
@click.argument("scope", type=SCOPE)
@click.argument("other", type=SCOPE)
@click.option("--overwrite", is_flag=True, help="Overwrite existing keys.")
@as_option
def move(session: CliContext, scope: str, other: str, overwrite: bool, identity: str | None) -> None:
    """Move all keys of a scope to another, or none if that has one of them, unless --overwrite is given.

    \b
    holdfast state move agent:draft agent:researcher
    """
    store = open_as(session, identity, write=True)
    count = store.state(scope).move_to(store.state(other), on_conflict="overwrite" if overwrite else "raise")
    session.tell(f"Moved {plural(count, 'key')} to {other}.", {"scope": scope, "other": other, "moved": count})


state.add(list_, get, set_, patch, delete, expire, history, diff, rollback, watch, copy, move)
