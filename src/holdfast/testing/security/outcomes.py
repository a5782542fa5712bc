"""The outcome of a hostile call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError


def is_refused(use: Callable[[], Any], what: str) -> bool:
    """Return whether a call raises an error of Holdfast. `AssertionError` for any other error."""
    try:
        use()
    except HoldfastError:
        return True
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of an error of Holdfast, {what}: {error}") from error
    return False
