"""The result of a replay."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast._fields import computed
from holdfast.errors import ConflictError, UnsupportedError
from holdfast.recording.comparison import plain
from holdfast.recording.journal import Divergence, DivergenceKind, current_journal


class ReplayReport(msgspec.Struct, frozen=True):
    """The result of a replay: how many steps and calls were repeated, and where it first differs from the recording.

    `complete` is False if the recording cannot be replayed exactly, and `note` says why. `state` is that at the
    end, as JSON has it.
    """

    thread: str
    steps: int
    calls: int
    seconds: float
    divergence: Divergence | None = None
    divergences: int = 0
    complete: bool = True
    note: str = ""
    state: Any = None
    is_open: bool = False
    """Whether the thread is not finished: an interrupt or an error stopped it, or its process ended."""
    effects: tuple[str, ...] = ()
    """Everything that the code did beside its models and tools, with where: connections, writes, processes, stores. A
    task ends with the first one, and the replay goes on with the step after it."""

    @property
    @computed
    def matches(self) -> bool:
        """Whether the replay was as the recording."""
        return self.divergence is None and self.complete

    def check(self) -> ReplayReport:
        """Raise `ConflictError` if the replay differs, and `UnsupportedError` if it cannot be exact."""
        if self.divergence is not None:
            raise ConflictError(
                f"the replay differs from the recording: {self.divergence}",
                where=f"thread {self.thread!r}",
                hint="Record the run again if the change is intended",
                code="replay-diverged",
            )
        if not self.complete:
            raise UnsupportedError(
                f"the run cannot be replayed exactly: {self.note}",
                where=f"thread {self.thread!r}",
                hint="Record the run in full",
                code="replay-incomplete",
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found = {name: getattr(self, name) for name in self.__struct_fields__ if name != "divergence"}
        first = self.divergence
        described = None if first is None else {name: getattr(first, name) for name in first.__struct_fields__}
        return {**found, "matches": self.matches, "divergence": described}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> ReplayReport:
        """Return the report that a process wrote."""
        fields = {name: found[name] for name in cls.__struct_fields__ if name in found}
        first = fields.pop("divergence", None)
        fields["effects"] = tuple(fields.get("effects", ()))
        return cls(**fields, divergence=None if first is None else Divergence(**first))


def build_report(
    thread: str,
    found: Sequence[Divergence],
    *,
    steps: int,
    calls: int,
    start: float,
    note: str,
    state: Any = None,
    is_open: bool = False,
) -> ReplayReport:
    """Build the report of a run that began at `start`, with the divergences in the order in which they were found.

    The first is that of the least position in the run. An effect of a task that was tried again is listed once."""
    by_position = sorted(found, key=lambda each: each.position)
    return ReplayReport(
        thread,
        steps,
        calls,
        time.monotonic() - start,
        by_position[0] if found else None,
        len(found),
        not note,
        note,
        plain(state),
        is_open,
        tuple(dict.fromkeys(str(each) for each in by_position if each.kind == "effect")),
    )


def divergence_here(kind: DivergenceKind, what: str, step: int = 0) -> Divergence:
    """Return a divergence of the task that runs here; if there is none, of a step."""
    journal = current_journal.get()
    return Divergence(kind, what, step) if journal is None else Divergence(kind, what, journal.step, journal.key)
