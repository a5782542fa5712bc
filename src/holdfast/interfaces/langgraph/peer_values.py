"""Reading the values that LangGraph's savers stored, without running what they name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from threading import local
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import InvalidModuleError, JsonPlusSerializer

from holdfast.errors import ConfigError, InvalidError, UnsupportedError


class PeerSerializer(JsonPlusSerializer):
    """LangGraph's serializer, which makes only objects of LangGraph's own safe classes and of those that are allowed,
    each as `module:Class`. Others are refused, where LangGraph would return a part of them; pickles always."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        allowed = [_parse_class(each) for each in allow]
        super().__init__(
            allowed_json_modules=[(*module.split("."), name) for module, name in allowed] or None,
            allowed_msgpack_modules=allowed or None,
        )

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Read a value."""
        if data[0] == "pickle":
            raise pickle_error()
        refused: list[str] = []
        _refusals.current = refused
        try:
            found = super().loads_typed(data)
        except (InvalidModuleError, NotImplementedError) as error:
            raise UnsupportedError(
                f"a value cannot be read: {str(error).splitlines()[0]}", where="a database of LangGraph's"
            ) from None
        finally:
            _refusals.current = None
        if refused:
            raise UnsupportedError(
                f"the database has an object of the class {refused[0]}, which is not allowed",
                where="a database of LangGraph's",
                hint=f"If the class is yours and making one does no harm, allow it: --allow {refused[0]}",
                code="class-refused",
            )
        return found


_refusals = local()
"""What is refused in the value that this thread reads."""


def _note(event: SerdeEvent) -> None:
    current = getattr(_refusals, "current", None)
    if current is not None and event["kind"] != "msgpack_unregistered_allowed":
        current.append(f"{event['module']}:{event['name']}")


register_serde_event_listener(_note)


def _parse_class(text: str) -> tuple[str, str]:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise InvalidError(f"a class is given as module:Class, not {text!r}"[:120], where="allow")
    return module, name


def refuse_pickle(saver: BaseCheckpointSaver[Any]) -> None:
    """Raise `ConfigError` if a saver would unpickle what is stored."""
    serde: Any = saver.serde
    while serde is not None:
        if getattr(serde, "pickle_fallback", False):
            raise pickle_error()
        inner = None
        with suppress(AttributeError):
            inner = serde.serde  # of one that encrypts
        serde = inner


def pickle_error() -> ConfigError:
    """Build the error for pickled values."""
    return ConfigError(
        "pickled values are not read: a pickle runs the code that it names",
        where="a database of LangGraph's",
        hint="Let the application that wrote them save the threads again, without pickle_fallback",
        code="pickle-refused",
    )
