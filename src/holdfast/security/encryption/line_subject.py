"""Whose data a new line is, by the rows that create it: its key is encrypted by that person's key."""

from __future__ import annotations

from holdfast.backends.interface import Batch, Create, Ensure, Put
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.row_format import SUBJECT, Line, StepRef
from holdfast.engine.subject_names import MIXED, subject_of_line, subjects_of_step

_WRITES = (Create, Ensure, Put)


def subject_in_batch(batch: Batch, name: tuple[str, str]) -> str:
    """Return the subject of a line that a batch creates: by an assignment, by its name, or by the metadata of a
    thread's first checkpoint; empty for none."""
    line, named = Line(*name), ""
    for change in batch:
        if isinstance(change, _WRITES) and change.row.key[:2] == name:
            if change[0] is REFS and change.row.key[2] == SUBJECT:
                subject = str(change.row.columns[0])
                return "" if subject == MIXED else subject
            if change[0] is STEPS:
                subjects, _ = subjects_of_step(StepRef.of(change.row))
                named = named or (subjects[0] if len(subjects) == 1 else "")
    return subject_of_line(line) or named
