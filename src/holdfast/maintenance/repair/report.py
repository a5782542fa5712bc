"""What mending did to a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.engine.integrity.findings import Finding


class LostCheckpoint(NamedTuple):
    """A checkpoint that could not be kept. Its id is empty where that is not known."""

    thread: str
    checkpoint: str
    branch: int
    step: int
    reason: str


@dataclass
class ThreadRepairReport:
    """What was done to a thread, or would be: how many rows came from sources, were made anew from others, and went to
    quarantine; which checkpoints are lost; and what could not be mended."""

    thread: str
    restored: int = 0
    remade: int = 0
    quarantined: int = 0
    lost: list[LostCheckpoint] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def add(self, other: ThreadRepairReport) -> None:
        """What another pass did."""
        self.restored += other.restored
        self.remade += other.remade
        self.quarantined += other.quarantined
        self.lost += other.lost
        self.sources += [url for url in other.sources if url not in self.sources]
        self.found = self.found or other.found
        self.left = other.left
