"""Names of the system lines that security has."""

from __future__ import annotations

from holdfast.engine.model.scopes import MARK

ACCESS = MARK + "access"
"""The name of the line."""
