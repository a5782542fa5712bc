"""Temporary storage for what a rewrite would store, during a dry run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Self

_IN_MEMORY = 8 << 20
"""How many bytes are in memory; more go to a temporary file."""


class ScratchNodes(Mapping[bytes, bytes]):
    """Nodes by id and large values by pointer, any number of them and not all in memory."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it is closed at the end of the block
        self._positions: dict[bytes, tuple[int, int]] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()

    def store(self, values: Mapping[bytes, bytes]) -> None:
        """Add values."""
        for name, value in values.items():
            if name not in self._positions:
                self._file.seek(self._end)
                self._file.write(value)
                self._positions[name] = (self._end, len(value))
                self._end += len(value)

    def __getitem__(self, name: bytes) -> bytes:
        start, length = self._positions[name]
        self._file.seek(start)
        return self._file.read(length)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)
