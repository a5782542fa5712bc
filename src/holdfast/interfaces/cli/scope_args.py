"""What the commands on scoped state share: whose state it is, values as they are typed, lengths of time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.json_output import encode

if TYPE_CHECKING:
    from holdfast.state.scope_state import State
    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

CELL = 60
"""How many characters of a value stand in a table, at most."""


def as_option(function: F) -> F:
    """`--as`: act as an identity, and not as the store's owner."""
    text = "Act as this identity, such as agent:b: what it may not do is denied, and all is in the audit."
    return click.option("--as", "identity", type=SCOPE, metavar="WHO", help=text)(function)


def acting(
    session: CliContext, identity: str | None, *, write: bool = False, create: bool = False
) -> Store | IdentityView:
    """The store as its owner has it, or as an identity does. What an identity reads is noted: so that takes writing."""
    store = session.open(write=write or identity is not None, create=create)
    return store if identity is None else store.as_identity(identity)


def state_of(
    session: CliContext, scope: str, identity: str | None, *, write: bool = False, create: bool = False
) -> State:
    """The state of a scope."""
    from holdfast.engine.model.scopes import Scope

    Scope.parse(scope)  # before a store is opened for it
    return acting(session, identity, write=write, create=create).state(scope)


def moment(text: str) -> int | str:
    """A version, if it is a number; else a time."""
    return int(text) if text.isascii() and text.isdigit() else text


class DurationType(click.ParamType[timedelta]):
    """A length of time, such as `90s`, `2h` or `3d`."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """How long that is."""
        from holdfast.time_parsing import parse_duration

        try:
            return parse_duration(value, positive=True)
        except InvalidError as error:
            self.fail(f"{error.what}: {error.hint}", param, ctx)


SPAN = DurationType()


def parse_value(text: str, where: str) -> Any:
    """A value as it is typed: JSON, also with the type marks that `Codec.to_json` writes."""
    from msgspec import DecodeError
    from msgspec.json import decode

    from holdfast.codec import default_codec

    try:
        return default_codec.from_json(decode(text))
    except (DecodeError, UnicodeError) as error:
        raise InvalidError(
            f"the value is not JSON: {error}",
            where=where,
            hint=f"""Give --text for a text, or write it as JSON: '"{text[:20]}"'"""
            if text.strip()
            else "Give a value",
        ) from None


def read_value(given: str, where: str, *, text: bool, raw: bool = False) -> Any:
    """The value that a command is given, or finds on standard input."""
    if raw:
        return sys.stdin.buffer.read() if given == "-" else given.encode()
    if given == "-":
        try:
            given = sys.stdin.read()
            given.encode()  # some settings let bytes that are no text pass as halves of characters
        except UnicodeError:
            raise InvalidError("standard input is no text in UTF-8", where=where, hint="Give --bytes") from None
    return given if text else parse_value(given, where)


def short(value: object) -> str:
    """A value on one line of a table."""
    told = safe(value if isinstance(value, str) else encode(value))
    return told if len(told) <= CELL else f"{told[: CELL - 1]}…"
