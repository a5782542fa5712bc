"""The native core of the codec (`native/`), if it was built, and `HOLDFAST_CORE` does not ask for the one in Python."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from holdfast.errors import InvalidError

NATIVE, PYTHON = "native", "python"


def _find() -> ModuleType | None:
    wanted = os.environ.get("HOLDFAST_CORE", "")
    if wanted not in ("", NATIVE, PYTHON):
        raise InvalidError(
            f"there is no core named {wanted!r}",
            where="HOLDFAST_CORE",
            hint=f"Set it to {NATIVE} or {PYTHON}, or not at all",
        )
    if wanted == PYTHON:
        return None
    try:
        # Not `from holdfast import …`, which would be an arrow to the package and all that it imports.
        from holdfast._native import Core
    except ImportError as error:
        if wanted == NATIVE:
            what = f"the native core cannot be loaded: {error}"
            raise InvalidError(what, where="HOLDFAST_CORE", hint="Install a wheel for this platform, or Rust") from None
        return None
    return sys.modules[Core.__module__]


native: ModuleType | None = _find()
"""The module of the native core; None if the one in Python runs."""

core: str = PYTHON if native is None else NATIVE
"""The core of the codec that this process runs: `python` or `native`."""
