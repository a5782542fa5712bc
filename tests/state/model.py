"""What scoped state should be: dicts of dicts, with all that they ever were."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Held(NamedTuple):
    """What a key holds."""

    value: Any
    version: int
    expires: int = 0


class Happened(NamedTuple):
    """A change of a key, as the history tells it."""

    key: str
    there: bool
    before: int
    version: int


@dataclass
class Line:
    """One scope: what it was after each step, when that was, and what the step changed."""

    states: list[dict[str, Held]] = field(default_factory=lambda: [{}])
    times: list[int] = field(default_factory=lambda: [0])
    changes: list[list[Happened]] = field(default_factory=lambda: [[]])

    @property
    def version(self) -> int:
        return len(self.states) - 1


class Model:
    """Scopes, by their text."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def line(self, scope: str) -> Line:
        return self.lines.get(scope, Line())

    def at(self, scope: str, version: int, now: int | None = None) -> dict[str, Held]:
        """What was there at a version, without what had expired by then, or by another time."""
        line = self.line(scope)
        moment = line.times[version] if now is None else now
        return {key: held for key, held in line.states[version].items() if not 0 < held.expires <= moment}

    def live(self, scope: str, now: int) -> dict[str, Held]:
        """What is there now."""
        return self.at(scope, self.line(scope).version, now)

    def values(self, scope: str, now: int) -> dict[str, Any]:
        return {key: held.value for key, held in self.live(scope, now).items()}

    def step(
        self, scope: str, now: int, puts: dict[str, tuple[Any, int]], deletes: tuple[str, ...] | list[str] = ()
    ) -> int:
        """One step: values and when they expire, and keys that go. Returns its number."""
        line = self.lines.setdefault(scope, Line())
        live, state, version = self.live(scope, now), dict(line.states[-1]), line.version + 1
        changes = []
        for key in deletes:
            state.pop(key, None)
            changes.append(Happened(key, False, live[key].version if key in live else 0, 0))
        for key, (value, expires) in puts.items():
            state[key] = Held(value, version, expires)
            changes.append(Happened(key, True, live[key].version if key in live else 0, version))
        line.states.append(state)
        line.times.append(max(line.times[-1], now))
        line.changes.append(sorted(changes))
        return version
