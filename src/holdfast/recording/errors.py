"""Errors as they are recorded, and as a replay raises them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.codec import Codec
from holdfast.errors import HoldfastError

_MAX_TEXT = 2000


class RecordedError(Exception):
    """An error of a class that cannot be stored or is not known here, by its name and its text."""


def store_error(error: BaseException) -> Any:
    """Return an error as it is recorded: as it is, or else the name of its class and its text."""
    try:
        Codec().pack(error)
    except HoldfastError:
        kind = type(error)
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "text": str(error)[:_MAX_TEXT]}
    return error


def restore_error(stored: Any) -> BaseException:
    """Return a recorded error. One whose class is not loaded, or takes other arguments, is a `RecordedError`."""
    if isinstance(stored, BaseException):
        return stored
    if not isinstance(stored, Mapping):
        return RecordedError(str(stored)[:_MAX_TEXT])
    module, _, name = str(stored.get("class", "")).partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    text = str(stored.get("text", ""))
    if isinstance(found, type) and issubclass(found, BaseException):
        with suppress(TypeError):  # of a class with a layout of its own
            error: BaseException = BaseException.__new__(found, text)  # none of its own code runs
            return error
    return RecordedError(f"{name}: {text}")
