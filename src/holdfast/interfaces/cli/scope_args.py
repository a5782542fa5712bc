"""Arguments of commands on scoped state: identities, values, durations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast._views import encode
from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, context_option
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.formatting import safe

if TYPE_CHECKING:
    from holdfast.history.diff_result import Diff
    from holdfast.state.scope_state import State

F = TypeVar("F", bound=Callable[..., Any])

CELL = 60
"""The most characters of a value in a table."""


as_option = context_option(
    "identity",
    "--as",
    type=SCOPE,
    metavar="WHO",
    help="Act as this identity, such as agent:b, with its rights; what it does is in the audit.",
)
"""`--as`: act as an identity instead of the store's owner."""


def open_state(session: CliContext, scope: str, *, write: bool = False, create: bool = False) -> State:
    """Open the state of a scope."""
    from holdfast.engine.model.scopes import Scope

    Scope.parse(scope)  # fails before a store is opened
    return session.open_as(write=write, create=create).state(scope)


def version_or_time(text: str) -> int | str:
    """Parse a version, which is a number, or a time."""
    return int(text) if text.isascii() and text.isdigit() else text


class DurationType(click.ParamType[timedelta]):
    """A duration, such as `90s`, `2h` or `3d`."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """How long that is."""
        from holdfast.time_parser import parse_duration

        try:
            return parse_duration(value, positive=True)
        except InvalidError as error:
            self.fail(f"{error.what}: {error.hint}", param, ctx)


SPAN = DurationType()


class TimeType(click.ParamType[datetime]):
    """A time, such as `2h` ago, `yesterday` or `2026-11-01`."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse it, relative to now."""
        from holdfast.time_parser import parse_time

        try:
            return parse_time(value, datetime.now(UTC).astimezone())
        except InvalidError as error:
            self.fail(f"{error.what}: {error.hint}", param, ctx)


TIME = TimeType()


def parse_value(text: str, where: str) -> Any:
    """Parse a value: JSON, also with the type marks of `Codec.to_json`."""
    from msgspec import DecodeError
    from msgspec.json import decode

    from holdfast.codec import default_codec

    try:
        return default_codec.from_json(decode(text))
    except (DecodeError, UnicodeError) as error:
        raise InvalidError(
            f"the value is not JSON: {error}",
            where=where,
            hint=f"""Give --text for text, or write it as JSON: '"{text[:20]}"'""" if text.strip() else "Give a value",
        ) from None


def read_value(given: str, where: str, *, text: bool, raw: bool = False) -> Any:
    """Read the value of an argument, or of standard input if that is `-`."""
    if raw:
        return sys.stdin.buffer.read() if given == "-" else given.encode()
    if given == "-":
        try:
            given = sys.stdin.read()
            given.encode()  # invalid bytes may have become halves of surrogate pairs
        except UnicodeError:
            raise InvalidError("standard input is not UTF-8 text", where=where, hint="Give --bytes") from None
    return given if text else parse_value(given, where)


def diff_record(changes: Diff) -> dict[str, Any]:
    """Return a difference as a record, without its sides, which the command names."""
    return {name: value for name, value in changes.to_json().items() if name in ("summary", "changes")}


def short(value: object) -> str:
    """Format a value for a table."""
    text = safe(value if isinstance(value, str) else encode(value))
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"
