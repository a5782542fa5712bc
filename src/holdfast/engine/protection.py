"""Protection of sensitive data: the seam between the engine and policies that replace or refuse what is to be stored.

Nothing of this costs anything in a store without policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.engine.model.operations import EditMap
    from holdfast.engine.model.packed_state import PackedMap
    from holdfast.engine.model.steps import PendingWriteRow
    from holdfast.engine.row_format import Line
    from holdfast.engine.state_loader import LoadedState


class Protection(Protocol):
    """Replaces sensitive data before it is stored, or raises `DeniedError` to refuse it. What is replaced is recorded
    before these return."""

    async def protect_state(self, line: Line, edit: EditMap, state: PackedMap) -> PackedMap | None:
        """Return the state to save in place of one, given how it differs from its parent: only that is searched. None
        if there is nothing to replace."""

    async def protect_edit(self, line: Line, edit: EditMap, loaded: LoadedState | None) -> EditMap:
        """Return the edit to save in place of one, given the state that it changes."""

    async def protect_writes(self, line: Line, writes: Sequence[PendingWriteRow]) -> Sequence[PendingWriteRow]:
        """Return the pending writes to store in place of some."""

    async def protect_metadata(self, line: Line, metadata: bytes) -> bytes:
        """Return the metadata of a step to store in place of some."""

    async def protect_text(self, line: Line, text: str, what: str) -> str:
        """Return the text to store in place of one about a line, such as the reason of a hold."""

    async def refuse(self, line: Line, packed: bytes, what: str) -> None:
        """Raise `DeniedError` if something has sensitive data that cannot be replaced, such as settings."""

    def redact(self, packed: bytes) -> bytes:
        """Return packed details of a record about a change, such as the values that a hook was called with, without
        sensitive data. Nothing is refused."""

    def redact_text(self, text: str) -> str:
        """Return the text of a message without sensitive data."""
