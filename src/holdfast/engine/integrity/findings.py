"""The findings of a verification, for programs to act on."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any

import msgspec

from holdfast._fields import Hidden, Local, computed
from holdfast.backends.tables import Key


class VerifyLevel(Enum):
    """How thorough a verification is. Each level includes the ones before it."""

    STRUCTURE = "structure"
    """Rows without their bodies: all of them exist, and are consistent."""
    HASHES = "hashes"
    """Every body is opened, every hash recomputed, and all parts of every state exist."""
    DECODE = "decode"
    """Every state is computed and compared with its folded form, and every value decoded."""

    def __ge__(self, other: VerifyLevel) -> bool:
        order = list(VerifyLevel)
        return order.index(self) >= order.index(other)


class Severity(Enum):
    """How serious a finding is."""

    DAMAGE = "damage"
    """Something is missing, or not what was saved."""
    REMAKEABLE = "remakeable"
    """Rows that are derived from the log are wrong; they can be rebuilt."""
    NOTICE = "notice"
    """Nothing is wrong with what was saved."""


class FindingCode(StrEnum):
    """The kind of a finding. `holdfast explain CODE` explains it."""

    MISSING_STEP = "missing-step"
    DAMAGED_STEP = "damaged-step"
    HASH_MISMATCH = "hash-mismatch"
    PARENT_MISMATCH = "parent-mismatch"
    WRONG_COLUMN = "wrong-column"
    DUPLICATE_ID = "duplicate-id"
    INDEX_MISMATCH = "index-mismatch"
    REVISION_GAP = "revision-gap"
    WRONG_SIZE = "wrong-size"
    MISSING_BRANCH = "missing-branch"
    MISPLACED_BRANCH = "misplaced-branch"
    DUPLICATE_BRANCH = "duplicate-branch"
    MISSING_THREAD = "missing-thread"
    WRONG_COUNT = "wrong-count"
    DANGLING_REF = "dangling-ref"
    MISSING_FOLD = "missing-fold"
    STRAY_FOLD = "stray-fold"
    DAMAGED_FOLD = "damaged-fold"
    FOLD_MISMATCH = "fold-mismatch"
    MISSING_NODE = "missing-node"
    DAMAGED_NODE = "damaged-node"
    MISSING_OBJECT = "missing-object"
    DAMAGED_OBJECT = "damaged-object"
    DAMAGED_WRITE = "damaged-write"
    DAMAGED_EVENT = "damaged-event"
    DAMAGED_ROW = "damaged-row"
    UNDECODABLE = "undecodable"
    UNKNOWN_FORMAT = "unknown-format"
    UNREADABLE_ROWS = "unreadable-rows"
    STORE_CHECK = "store-check"
    LOST_ROWS = "lost-rows"
    STALE_ROWS = "stale-rows"
    STALE_WORDS = "stale-words"
    STALE_FIELDS = "stale-fields"
    ORPHAN = "orphan"
    CUT_OFF = "cut-off"
    OTHER_HISTORY = "other-history"
    ROLLED_BACK = "rolled-back"
    GONE_BRANCH = "gone-branch"
    GONE_THREAD = "gone-thread"
    LOST_LINE = "lost-line"
    PRUNED_SINCE = "pruned-since"
    RENAMED_BRANCH = "renamed-branch"
    CHANGED_NAMES = "changed-names"
    REPLAYED_NAME = "replayed-name"
    CHANGED_WRITES = "changed-writes"
    NOT_COMPARED = "not-compared"


_NOTICES = frozenset(
    {
        FindingCode.REVISION_GAP,
        FindingCode.WRONG_SIZE,
        FindingCode.STRAY_FOLD,
        FindingCode.ORPHAN,
        FindingCode.GONE_BRANCH,
        FindingCode.GONE_THREAD,
        FindingCode.PRUNED_SINCE,
        FindingCode.RENAMED_BRANCH,
        FindingCode.CHANGED_NAMES,
        FindingCode.CHANGED_WRITES,
        FindingCode.NOT_COMPARED,
    }
)
_REMAKEABLE = frozenset({FindingCode.STALE_ROWS, FindingCode.STALE_WORDS, FindingCode.STALE_FIELDS})


def severity_of(code: FindingCode) -> Severity:
    """Return how serious findings of a code are."""
    if code in _NOTICES:
        return Severity.NOTICE
    return Severity.REMAKEABLE if code in _REMAKEABLE else Severity.DAMAGE


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be.

    `place` is the branch and number of the step that it is about, `checkpoint` that step's id, where they are known;
    `space` and `key` name the row, and `column` what in it is wrong. `affected` are ids of checkpoints that cannot be
    read because of it, the first of them, and `affected_count` says how many there are.
    """

    code: FindingCode
    message: str
    tenant: Hidden[Local[str]] = ""
    thread: str = ""
    checkpoint: str = ""
    place: Hidden[tuple[int, int] | None] = None
    space: Hidden[str] = ""
    key: Hidden[Key] = ()
    column: Hidden[str] = ""
    affected: Hidden[list[str]] = []
    affected_count: Hidden[int] = 0

    @property
    @computed
    def severity(self) -> Severity:
        """Return how serious it is."""
        return severity_of(self.code)

    @property
    def same(self) -> tuple[Any, ...]:
        """Return what identifies the finding when it is found again."""
        return (self.code, self.thread, self.space, self.key, self.place, self.message)

    def __str__(self) -> str:
        where = [f"thread {self.thread!r}"] if self.thread else []
        if self.checkpoint:
            where.append(f"checkpoint {self.checkpoint}")
        if self.place is not None:
            where.append(f"branch {self.place[0]}, number {self.place[1]}")
        text = f"{self.code.value}: {self.message}" + (f" ({', '.join(where)})" if where else "")
        return text + (f"; {self.affected_count} checkpoints cannot be read" if self.affected_count else "")


MOST_AFFECTED = 50
"""How many ids of affected checkpoints a finding lists."""
