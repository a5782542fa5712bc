"""What a client tells a graph to do: to resume, to change its state, to go on elsewhere."""

from __future__ import annotations

from typing import Any

import msgspec
from langgraph.types import Command, Send

from holdfast.errors import InvalidError


class _Send(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    input: Any = None


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    resume: Any = None
    goto: str | _Send | list[str | _Send] | None = None


def to_command(given: Any) -> Command[Any]:
    """Return the command that a client sent."""
    try:
        found = msgspec.convert(given, _Command)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the command is wrong: {error}"[:300]) from None
    goto = found.goto if isinstance(found.goto, list) else [] if found.goto is None else [found.goto]
    places = [Send(each.node, each.input) if isinstance(each, _Send) else each for each in goto]
    return Command(update=found.update, resume=found.resume, goto=places)
