"""`holdfast state`: the keys of scopes, looked at and changed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, yes_option
from holdfast.interfaces.cli.completion_types import KEY, SCOPE
from holdfast.interfaces.cli.formatting import in_words, plural
from holdfast.interfaces.cli.json_output import encode, plain
from holdfast.interfaces.cli.output import on_terminal
from holdfast.interfaces.cli.scope_args import SPAN, acting, as_option, moment, parse_value, read_value, state_of
from holdfast.interfaces.cli.state_history import diff, history, rollback, watch
from holdfast.interfaces.cli.state_list import list_, list_scopes

if TYPE_CHECKING:
    from datetime import timedelta


@group("state", invoke_without_command=True)
def state(session: CliContext) -> None:
    """Look at and change the state of scopes: keys and values, every change of which is kept.

    A SCOPE is written as its parts: agent:researcher, workflow:w1/step:fetch, user:alice, or global. In a name, a slash
    is %2F and a percent sign %25.

    \b
    holdfast state set agent:researcher plan '{"goal": "tides"}'
    holdfast state get agent:researcher plan
    holdfast state list agent:researcher --values
    holdfast state history agent:researcher plan
    """
    if click.get_current_context().invoked_subcommand is None:
        list_scopes(session, None, "", "", "", None)


# One key --------------------------------------------------------------------------------------------------------


@command("get")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
@click.option("--at", "when", metavar="WHEN", help="As it was: at a version (12), or at a time (2h, yesterday, …).")
@as_option
def get(session: CliContext, scope: str, key: str, when: str | None, identity: str | None) -> None:
    """Write the value of a key.

    A terminal shows it for people. In a pipe, a text and bytes are written as they are, without a line's end,
    and all else as JSON that `holdfast state set` reads again.

    \b
    holdfast state get agent:researcher plan
    holdfast state get agent:researcher plan --at yesterday
    holdfast state get agent:a report > report.md
    """
    from holdfast.engine.model.missing import MISSING

    found = state_of(session, scope, identity)
    if when is None:
        item = found.item(key)
        value, record = item.value, {"scope": scope, **item._asdict()}
    else:
        value = found.get_at(key, moment(when), MISSING)
        if value is MISSING:
            raise NotFoundError(
                "there was no such key then",
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
@click.option("--text", is_flag=True, help="The value is a text, and not JSON.")
@click.option("--bytes", "raw", is_flag=True, help="The value is bytes, and not JSON.")
@click.option("--ttl", type=SPAN, metavar="SPAN", help="Have it expire after so long: 90s, 2h, 3d.")
@click.option(
    "--expected", type=click.IntRange(0), metavar="N", help="Only if the key has this version; 0: is not there."
)
@click.option("--create", is_flag=True, help="Make the store, if it is not there.")
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
    """Give a key a value: JSON, unless --text is given. - reads it from standard input.

    \b
    holdfast state set agent:researcher plan '{"goal": "tides", "done": 0}'
    holdfast state set agent:researcher mood curious --text --ttl 2h
    holdfast state set agent:researcher report - --text < report.md
    """
    if text and raw:
        raise click.UsageError("--text and --bytes say two things: give one of them")
    given = read_value(value, f"key {key!r} of {scope}", text=text, raw=raw)
    found = state_of(session, scope, identity, write=True, create=create)
    version = found.set(key, given, ttl=ttl, expected=expected)
    session.tell(f"{key} is at version {version}.", {"scope": scope, "key": key, "version": version})


@command("patch")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
@click.argument("changes", nargs=-1, metavar="[PLACE=VALUE]...")
@click.option("--remove", multiple=True, metavar="PLACE", help="Take this place away; may be repeated.")
@click.option("--text", is_flag=True, help="The values are texts, and not JSON.")
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
    """Change parts of a value, and write only those.

    The value is a dict; where there is no such key, it starts as an empty one.

    PLACE is a key of it, or a path such as plan.goal; VALUE is JSON, unless --text is given.

    \b
    holdfast state patch agent:researcher plan done=3 owner.name='"Ada"'
    holdfast state patch agent:researcher plan --remove draft
    """
    wanted: dict[tuple[Any, ...], Any] = {}
    for each in changes:
        place, equals, value = each.partition("=")
        if not equals or not place:
            raise click.UsageError(f"a change is PLACE=VALUE, not {each!r}")
        wanted[_place(place)] = value if text else parse_value(value, f"{place} in key {key!r} of {scope}")
    found = state_of(session, scope, identity, write=True)
    version = found.patch(key, wanted, remove=[_place(each) for each in remove], expected=expected)
    session.tell(f"{key} is at version {version}.", {"scope": scope, "key": key, "version": version})


def _place(text: str) -> tuple[str, ...]:
    from holdfast.engine.paths import parse_path

    found = parse_path(text)
    if not all(type(part) is str for part in found):
        raise InvalidError(
            "only entries of dicts are patched", where=text, hint="Set a list as a whole: PLACE='[1, 2]'"
        )
    return found


@command("delete")
@click.argument("scope", type=SCOPE)
@click.argument("keys", nargs=-1, type=KEY, metavar="[KEY]...")
@click.option("--all", "everything", is_flag=True, help="All keys of the scope. Asks first.")
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
    """Take keys away.

    All that are named go, or none if one of them is not there. Their history stays, and `holdfast state rollback`
    brings them back.

    \b
    holdfast state delete agent:researcher plan mood
    holdfast state delete agent:researcher --all --dry-run
    """
    if everything is bool(keys):
        raise InvalidError("keys are named, or --all is given", hint="holdfast state delete SCOPE KEY, or SCOPE --all")
    if expected is not None and len(keys) != 1:
        raise InvalidError("a version is expected of one key", hint="Name one key")
    there = acting(session, identity, write=not dry_run)
    found = there.state(scope)
    if everything:
        gone = len(found)
        if not dry_run and gone:
            session.confirm(f"Delete {_these(gone)} of {scope}?", yes=yes)
            found.clear()
    elif dry_run:
        gone = len([found.item(key) for key in keys])
    elif expected is not None:
        if not found.delete(keys[0], expected=expected):
            raise NotFoundError("there is no such key", where=f"key {keys[0]!r} of {scope}")
        gone = 1
    else:
        with there.transaction() as together:
            mine = together.state(scope)
            for key in dict.fromkeys(keys):
                if not mine.has(key):
                    raise NotFoundError(
                        "there is no such key",
                        where=f"key {key!r} of {scope}",
                        hint="Nothing was deleted; see state list",
                    )
                mine.delete(key)
        gone = len(together.written)
    record = {"scope": scope, "keys": list(keys) or None, "deleted": gone, "dry_run": dry_run}
    session.tell(f"{_these(gone)} of {scope} {'would go' if dry_run else 'deleted'}.", record)


def _these(count: int) -> str:
    return plural(count, "key")


@command("expire")
@click.argument("scope", type=SCOPE)
@click.argument("key", type=KEY)
@click.argument("ttl", metavar="SPAN|never")
@as_option
def expire(session: CliContext, scope: str, key: str, ttl: str, identity: str | None) -> None:
    """Have a key expire after so long, or never. Its value stays as it is until then.

    \b
    holdfast state expire agent:researcher draft 2h
    holdfast state expire agent:researcher draft never
    """
    span = None if ttl == "never" else SPAN.convert(ttl, None, click.get_current_context())
    version = state_of(session, scope, identity, write=True).expire(key, span)
    when = "never expires" if span is None else f"expires {in_words(span.total_seconds())}"
    session.tell(f"{key} {when}.", {"scope": scope, "key": key, "version": version})


# Scopes ---------------------------------------------------------------------------------------------------------


@command("copy")
@click.argument("scope", type=SCOPE)
@click.argument("other", type=SCOPE)
@click.option("--overwrite", is_flag=True, help="Take the place of keys that are there.")
@as_option
def copy(session: CliContext, scope: str, other: str, overwrite: bool, identity: str | None) -> None:
    """Copy all keys of a scope into another.

    None is copied if that has one of them already, unless --overwrite is given.

    \b
    holdfast state copy agent:researcher agent:writer
    """
    there = acting(session, identity, write=True)
    count = there.state(scope).copy_to(there.state(other), on_conflict="overwrite" if overwrite else "raise")
    session.tell(f"{_these(count)} copied to {other}.", {"scope": scope, "other": other, "copied": count})


@command("move")
@click.argument("scope", type=SCOPE)
@click.argument("other", type=SCOPE)
@click.option("--overwrite", is_flag=True, help="Take the place of keys that are there.")
@as_option
def move(session: CliContext, scope: str, other: str, overwrite: bool, identity: str | None) -> None:
    """Move all keys of a scope into another.

    All at once; none, if that has one of them already, unless --overwrite is given.

    \b
    holdfast state move agent:draft agent:researcher
    """
    there = acting(session, identity, write=True)
    count = there.state(scope).move_to(there.state(other), on_conflict="overwrite" if overwrite else "raise")
    session.tell(f"{_these(count)} moved to {other}.", {"scope": scope, "other": other, "moved": count})


for _each in (list_, get, set_, patch, delete, expire, history, diff, rollback, watch, copy, move):
    state.add_command(_each)
