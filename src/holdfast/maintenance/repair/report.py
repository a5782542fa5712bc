"""The result of the repair of a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.engine.integrity.findings import Finding


class LostCheckpoint(NamedTuple):
    """A checkpoint that is lost. Its id is empty if it is unknown, and its step -1 if even that is."""

    thread: str
    checkpoint: str
    branch: int
    step: int
    reason: str


@dataclass
class ThreadRepairReport:
    """The repair of a thread: the number of rows that were restored from sources, rebuilt from others, and quarantined;
    the checkpoints that are lost; and the findings that are left."""

    thread: str
    restored: int = 0
    rebuilt: int = 0
    quarantined: int = 0
    lost: list[LostCheckpoint] = field(default_factory=list)
    lost_hold: bool = False
    """Whether a damaged row that may have been a hold was removed."""
    sources: list[str] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def add(self, other: ThreadRepairReport) -> None:
        """Add the result of another pass."""
        self.restored += other.restored
        self.rebuilt += other.rebuilt
        self.quarantined += other.quarantined
        self.lost += other.lost
        self.lost_hold = self.lost_hold or other.lost_hold
        self.sources += [url for url in other.sources if url not in self.sources]
        self.found = self.found or other.found
        self.left = other.left
