"""What verifying may find: each code's meaning, and what to do about it.

`holdfast explain CODE` and the documentation show these texts. A code never changes its meaning.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.integrity.findings import FindingCode

_REPAIR = "Repair the store from a mirror, a copy or a backup: `holdfast repair --from URL`. Without one, "
_SALVAGE = "`holdfast repair` keeps every checkpoint that still reads, and puts the rest into quarantine."


class FindingText(NamedTuple):
    """What a code stands for, and the remedy."""

    meaning: str
    remedy: str


FINDINGS: dict[FindingCode, FindingText] = {
    # Steps
    FindingCode.MISSING_STEP: FindingText(
        "A place in a branch is empty though later checkpoints of the branch are there. Checkpoints are numbered "
        "without gaps, and a pruned one leaves a stub: so a row was lost.",
        _REPAIR + _SALVAGE,
    ),
    FindingCode.DAMAGED_STEP: FindingText(
        "The stored bytes of a checkpoint are not what was written: the checksum of its envelope does not fit, it "
        "is cut short, or it belongs to another place.",
        _REPAIR + _SALVAGE,
    ),
    FindingCode.HASH_MISMATCH: FindingText(
        "A checkpoint's content does not give the hash that stands for it. Its bytes are whole, so they were "
        "exchanged or altered on purpose rather than by a failing disk.",
        "Find out who writes to the store besides Holdfast. " + _REPAIR + _SALVAGE,
    ),
    FindingCode.PARENT_MISMATCH: FindingText(
        "A checkpoint names a parent, by its place and its hash, and another one is at that place, or none. "
        "Checkpoints were exchanged, put into another order, or lost.",
        _REPAIR + _SALVAGE,
    ),
    FindingCode.WRONG_COLUMN: FindingText(
        "A column that people and queries read says something else than the checkpoint itself, which its hash "
        "covers: its id, time, kind, metadata, depth or how far its state reaches back.",
        "`holdfast repair` writes what follows from the checkpoints themselves.",
    ),
    FindingCode.DUPLICATE_ID: FindingText(
        "Two checkpoints of a thread have the same id and the same revision: a row was copied to another place.",
        _REPAIR + _SALVAGE,
    ),
    FindingCode.INDEX_MISMATCH: FindingText(
        "Looking for checkpoints by id finds others than looking for them by place: the store's own index is out "
        "of step with its rows.",
        "`holdfast repair` has the store make the index anew. For PostgreSQL, run REINDEX on the table steps.",
    ),
    FindingCode.REVISION_GAP: FindingText(
        "An id has a later revision and not the earlier ones, though nothing shows that any checkpoint of the "
        "thread was ever pruned. Nothing is lost by it: the last revision is what counts.",
        "None is needed, if somebody pruned the thread. Otherwise compare it with a copy.",
    ),
    FindingCode.WRONG_SIZE: FindingText(
        "The running total of stored bytes that a checkpoint shows is less than what is stored. It is for people only.",
        "Compact the thread, or let `holdfast repair` do so.",
    ),
    # Branches, lines, names
    FindingCode.MISSING_BRANCH: FindingText(
        "There are checkpoints on a branch that the list of branches does not have.",
        "`holdfast repair` makes the branch's row anew from its first checkpoint; its name comes from the source, "
        "if that has one.",
    ),
    FindingCode.MISPLACED_BRANCH: FindingText(
        "A branch is said to start somewhere else than where its first checkpoint says, or where there is nothing.",
        "`holdfast repair` writes where it starts from what its first checkpoint says.",
    ),
    FindingCode.DUPLICATE_BRANCH: FindingText(
        "Two branches of a thread have one name.",
        "Rename one of them: `holdfast branch --move`.",
    ),
    FindingCode.MISSING_THREAD: FindingText(
        "There are checkpoints of a thread that the list of threads does not have.",
        "`holdfast repair` makes the thread's row anew.",
    ),
    FindingCode.WRONG_COUNT: FindingText(
        "The thread's row counts other pruned checkpoints than there are stubs, or names another set of nodes "
        "than its folded states have.",
        "`holdfast repair` writes what follows from the checkpoints.",
    ),
    FindingCode.DANGLING_REF: FindingText(
        "A name, a tag or a pin points to a checkpoint that is not there, or its own row contradicts itself.",
        "Repair the store from a source, or take the name away: `holdfast tag --delete`.",
    ),
    # Folded states, nodes, large values, pending writes
    FindingCode.MISSING_FOLD: FindingText(
        "A checkpoint's state should be there in folded form, and is not. Later checkpoints need it too, up to "
        "the next folded one.",
        _REPAIR + "folded states that follow from the checkpoints before them are made anew. " + _SALVAGE,
    ),
    FindingCode.STRAY_FOLD: FindingText(
        "A folded state belongs to no checkpoint, or to one whose row does not count on it. Nothing reads it.",
        "Compact the thread, or let `holdfast repair` do so.",
    ),
    FindingCode.DAMAGED_FOLD: FindingText(
        "The root of a folded state is not what was written, or belongs to another checkpoint.",
        _REPAIR + "folded states that follow from the checkpoints before them are made anew. " + _SALVAGE,
    ),
    FindingCode.FOLD_MISMATCH: FindingText(
        "A folded state is whole, and is not the state that the checkpoints before it make.",
        "`holdfast repair` makes it anew from the checkpoints, whose hashes are right.",
    ),
    FindingCode.MISSING_NODE: FindingText(
        "A part of a folded state is not there.",
        _REPAIR + "nodes that follow from the checkpoints before them are made anew. " + _SALVAGE,
    ),
    FindingCode.DAMAGED_NODE: FindingText(
        "A part of a folded state is not what its name, a digest of its content, says.",
        _REPAIR + "nodes that follow from the checkpoints before them are made anew. " + _SALVAGE,
    ),
    FindingCode.MISSING_OBJECT: FindingText(
        "A large value, or a piece of one, is not there though a checkpoint needs it.",
        _REPAIR + _SALVAGE,
    ),
    FindingCode.DAMAGED_OBJECT: FindingText(
        "A piece of a large value is not what was written, or the pieces do not make up the value that they are "
        "named for.",
        _REPAIR + _SALVAGE,
    ),
    FindingCode.DAMAGED_WRITE: FindingText(
        "What a task wrote, to be taken up by the next checkpoint, is not what was written.",
        _REPAIR + "the write goes to quarantine, and the task runs again when the graph goes on.",
    ),
    FindingCode.DAMAGED_EVENT: FindingText(
        "The details of an event, of what was done or tried and by whom, are not what was written.",
        _REPAIR + "the event goes to quarantine; the change that it told of stays.",
    ),
    FindingCode.UNDECODABLE: FindingText(
        "A value is stored as it was written, and cannot be decoded; or the changes of a checkpoint do not fit "
        "the state that they are to change.",
        "Read it with the release of Holdfast that wrote it. If none can, it is a fault of Holdfast: report it.",
    ),
    FindingCode.UNKNOWN_FORMAT: FindingText(
        "A record was written by a newer release of Holdfast, is larger than this program reads, or is sealed "
        "under a key that is not at hand. It was not verified.",
        "Verify with that release, with a higher limit, or with the key.",
    ),
    # The store
    FindingCode.UNREADABLE_ROWS: FindingText(
        "The store itself cannot read some of its rows: a page or file is damaged.",
        _REPAIR + _SALVAGE + " A SQLite file is salvaged into a new one, and the damaged one is kept beside it.",
    ),
    FindingCode.STORE_CHECK: FindingText(
        "The store's own check of its files, tables or indexes found something wrong.",
        "Keep a copy of the files. `holdfast repair` makes a SQLite file anew from what can be read; for a "
        "server, use the tools of its own.",
    ),
    FindingCode.STALE_ROWS: FindingText(
        "Readable rows beside the log do not say what the log says.",
        "`holdfast repair` makes them anew from the log; so does `store.maintenance.project(again=True)`.",
    ),
    FindingCode.STALE_WORDS: FindingText(
        "The index of words does not have what the log has: a search may miss checkpoints.",
        "`holdfast repair` makes it anew from the log; so does `store.maintenance.build_index()`.",
    ),
    FindingCode.ORPHAN: FindingText(
        "Rows that nothing needs: left by something that was interrupted. They take room and do no harm.",
        "Prune the store's orphans, or compact the thread: `holdfast prune --orphans`.",
    ),
    # Against exported heads
    FindingCode.CUT_OFF: FindingText(
        "A branch is shorter than when its head was exported, and nothing says that it was pruned: its newest "
        "checkpoints are gone.",
        "Repair the store from a source that has them.",
    ),
    FindingCode.OTHER_HISTORY: FindingText(
        "Where a branch ended when its head was exported, another checkpoint stands now, or the branch starts "
        "elsewhere: history was rewritten.",
        "Find out who did. Repair the store from a source that has the history of the exported heads.",
    ),
    FindingCode.ROLLED_BACK: FindingText(
        "A thread is in an older state than when its head was exported: an old copy of the store, or a part of "
        "one, was put in place of the newer one.",
        "Put the newer one back, or repair the store from it.",
    ),
    FindingCode.GONE_BRANCH: FindingText(
        "A branch that had a head when heads were exported is not there. The thread was changed since by more "
        "than appending, so it may have been deleted or pruned on purpose.",
        "If nobody deleted it, repair the store from a source. Otherwise export the heads again.",
    ),
    FindingCode.GONE_THREAD: FindingText(
        "A thread that was there when heads were exported is not. A deleted thread leaves nothing, so this cannot "
        "be told from one that was lost.",
        "If nobody deleted it, repair the store from a source. Otherwise export the heads again.",
    ),
    FindingCode.PRUNED_SINCE: FindingText(
        "A branch is shorter than when heads were exported, and the thread was pruned or compacted since: its end "
        "was pruned, it seems.",
        "If nobody pruned it, repair the store from a source. Otherwise export the heads again.",
    ),
    FindingCode.RENAMED_BRANCH: FindingText(
        "A branch has another name than when heads were exported.",
        "If nobody renamed it, rename it back: no hash covers a branch's name.",
    ),
    FindingCode.CHANGED_NAMES: FindingText(
        "Names, tags, pins or holds of a thread are not what they were when heads were exported. No hash covers them.",
        "If nobody changed them, repair the store from a source. Otherwise export the heads again.",
    ),
    FindingCode.CHANGED_WRITES: FindingText(
        "Pending writes of a thread are not what they were when heads were exported, though no checkpoint came "
        "since. No hash covers them, and a task that ran since may have added some.",
        "If nothing ran since, repair the store from a source. Otherwise export the heads again.",
    ),
    FindingCode.NOT_COMPARED: FindingText(
        "A thread was pruned, forked or renamed again and again while it was looked at, so that it could not be "
        "compared with its head.",
        "Verify it again when less is going on.",
    ),
}
"""Every code, and what it stands for."""
