"""The conformance suite for backends. Test files import `holdfast.testing`."""

from __future__ import annotations

import sys

_TESTS = ("changes", "histories", "lifetime", "processes", "races", "reads", "values", "words", "writes")

if (_pytest := sys.modules.get("pytest")) is not None:
    # Before they are imported: so that a failing assertion shows its values, as in any test file.
    _pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _TESTS))
