"""The result of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast._fields import computed
from holdfast.errors import ConflictError, UnsupportedError
from holdfast.recording.journal import Divergence


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What became of a replay: how many steps and calls were repeated, and where it first differs from the recording.

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
        found = {name: getattr(self, name) for name in self.__slots__ if name != "divergence"}
        first = self.divergence
        described = None if first is None else {name: getattr(first, name) for name in first.__slots__}
        return {**found, "matches": self.matches, "divergence": described}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> ReplayReport:
        """Return the report that a process wrote."""
        fields = {name: found[name] for name in cls.__slots__ if name in found}
        first = fields.pop("divergence", None)
        fields["effects"] = tuple(fields.get("effects", ()))
        return cls(**fields, divergence=None if first is None else Divergence(**first))


def effects_of(divergences: Sequence[Divergence]) -> tuple[str, ...]:
    """Return the effects among divergences, as text, in their order in the run; those of a task that was tried again
    once."""
    found = sorted((each for each in divergences if each.kind == "effect"), key=lambda each: each.position)
    return tuple(dict.fromkeys(map(str, found)))


def first_of(divergences: Sequence[Divergence]) -> Divergence | None:
    """Return the first divergence by its position in the run, not by when it was found."""
    return min(divergences, key=lambda each: each.position, default=None)
