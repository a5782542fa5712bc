"""Many cheap cases in one test: each that fails is reported by its name, and those that pass cost nothing."""

from __future__ import annotations

from types import TracebackType

import pytest
from _pytest._io.saferepr import saferepr


def _shown(part: object) -> str:
    return part if isinstance(part, str) and part.isprintable() else saferepr(part)


class case:
    """Run one case of a table; if it fails or is skipped, report it as a subtest with this name and continue.

    `subtests.test` itself takes as long for each case as a test of its own, also for those that pass.
    """

    def __init__(self, subtests: pytest.Subtests, *name: object) -> None:
        self._subtests = subtests
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        __tracebackhide__ = True
        if not isinstance(error, Exception | pytest.fail.Exception | pytest.skip.Exception):
            return False
        with self._subtests.test(", ".join(map(_shown, self._name))):
            raise error
        return True
