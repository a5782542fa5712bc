"""How far the work of an agent has got: named steps, of which some are done, one or more are at work, and some are to
come.

All of it is plain data in the agent's `workflow`, where other entries have room, too.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime
from typing import Any

from holdfast.agents.api.tools import changing
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.engine.model.scopes import check_key
from holdfast.errors import InvalidError

_STEPS = "steps"


class Workflow(MutableMapping[str, Any]):
    """`agent.workflow`: a dict, with a few methods for the entry `steps` of it::

    agent.workflow.plan("fetch", "read", "write")
    agent.workflow.begin("fetch")
    agent.workflow.done("fetch")
    agent.workflow.percent  # 33.3
    """

    def __init__(self, data: AgentData, keeper: AgentPersister | None = None) -> None:
        self._agent = data
        self._keeper = keeper

    @property
    def _data(self) -> dict[str, Any]:
        """What is kept of it: another dict, once the agent took on what was saved."""
        return self._agent.workflow

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        with changing(self._keeper):
            self._data[key] = value

    def __delitem__(self, key: str) -> None:
        with changing(self._keeper):
            del self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"<Workflow {self.finished} of {self.total} steps>" if self.total else f"<Workflow {self._data!r}>"

    # Steps ----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """The steps by name, in their order: each with its status (`planned`, `begun`, `done`, `failed`), when it was
        begun and ended, how often it was begun, and the error that it failed with."""
        return {name: dict(step) for name, step in self._data.get(_STEPS, {}).items()}

    def plan(self, *names: str) -> None:
        """Say which steps there will be. Those that there are already stay as they are."""
        checked = [check_key(name, "name of a step") for name in names]
        with changing(self._keeper):
            for name in checked:
                self._data.setdefault(_STEPS, {}).setdefault(name, {"status": "planned", "attempts": 0})

    def begin(self, name: str) -> None:
        """A step is at work now; again, if it failed or was interrupted."""
        check_key(name, "name of a step")
        with changing(self._keeper):
            step = self._data.setdefault(_STEPS, {}).setdefault(name, {"attempts": 0})
            step.update(status="begun", attempts=step["attempts"] + 1, started=self._now(), ended=None, error="")

    def done(self, name: str | None = None) -> None:
        """A step is done; the one that is at work, if none is named."""
        self._end(name, "done", "")

    def fail(self, name: str | None = None, error: BaseException | str = "") -> None:
        """A step has failed; the one that is at work, if none is named."""
        said = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        self._end(name, "failed", said)

    def _end(self, name: str | None, status: str, error: str) -> None:
        wanted = self.current if name is None else name
        if wanted is None or wanted not in self._data.get(_STEPS, {}):
            raise InvalidError(
                "no step is at work" if wanted is None else f"the workflow has no step {wanted!r}",
                hint="Begin it first: workflow.begin(name)",
            )
        with changing(self._keeper):
            self._data[_STEPS][wanted].update(status=status, ended=self._now(), error=error)

    @property
    def current(self) -> str | None:
        """The step that is at work: the last that was begun and not ended."""
        steps = enumerate(self.steps.items())
        begun = [(step["started"], place, name) for place, (name, step) in steps if step["status"] == "begun"]
        return max(begun)[2] if begun else None

    @property
    def finished(self) -> int:
        """How many steps are done."""
        return sum(step["status"] == "done" for step in self._data.get(_STEPS, {}).values())

    @property
    def total(self) -> int:
        """How many steps there are."""
        return len(self._data.get(_STEPS, {}))

    @property
    def percent(self) -> float:
        """How much of the steps is done: from 0 to 100."""
        return 100.0 * self.finished / self.total if self.total else 0.0

    def _now(self) -> datetime:
        return datetime.now(UTC) if self._keeper is None else self._keeper.now()
