"""The progress of an agent's work, by named steps.

It is plain data in the agent's `workflow`, which may have other entries, too.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from holdfast.agents.api.tools import DataPart
from holdfast.agents.storage.record import error_text
from holdfast.engine.model.scopes import check_key
from holdfast.errors import InvalidError

_STEPS = "steps"


class Workflow(DataPart, MutableMapping[str, Any]):
    """The progress of an agent, `agent.workflow`: a dict, with a few methods for its entry `steps`::

    agent.workflow.plan("fetch", "read", "write")
    agent.workflow.begin("fetch")
    agent.workflow.complete("fetch")
    agent.workflow.percent  # 33.3
    """

    @property
    def _data(self) -> dict[str, Any]:
        return self._agent_data.workflow

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        with self._change():
            self._data[key] = value

    def __delitem__(self, key: str) -> None:
        with self._change():
            del self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        steps = f"{self.done_count} of {self.step_count} steps"
        return f"<Workflow {steps if self.step_count else repr(self._data)}>"

    # Steps ----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """The steps by name, in their order: each with its `status` (`planned`, `begun`, `done`, `failed`), when it
        `started` and `ended`, its `attempts`, and the `error` that it failed with."""
        return {name: dict(step) for name, step in self._data.get(_STEPS, {}).items()}

    def plan(self, *names: str) -> None:
        """Add steps. Those that exist stay as they are."""
        checked = [check_key(name, "name of a step") for name in names]
        with self._change():
            for name in checked:
                self._data.setdefault(_STEPS, {}).setdefault(name, {"status": "planned", "attempts": 0})

    def begin(self, name: str) -> None:
        """Begin a step; again, if it failed or was interrupted."""
        check_key(name, "name of a step")
        with self._change():
            step = self._data.setdefault(_STEPS, {}).setdefault(name, {"attempts": 0})
            step.update(status="begun", attempts=step["attempts"] + 1, started=self._now(), ended=None, error="")

    def complete(self, name: str | None = None) -> None:
        """Mark a step as done: by default the current one."""
        self._end(name, "done", "")

    def fail(self, name: str | None = None, error: BaseException | str = "") -> None:
        """Mark a step as failed: by default the current one."""
        text = error_text(error) if isinstance(error, BaseException) else str(error)
        self._end(name, "failed", text)

    def _end(self, name: str | None, status: str, error: str) -> None:
        step = self.current if name is None else name
        if step is None or step not in self._data.get(_STEPS, {}):
            raise InvalidError(
                "no step is active" if step is None else f"the workflow has no step {step!r}",
                hint="Begin it first: workflow.begin(name)",
            )
        with self._change():
            self._data[_STEPS][step].update(status=status, ended=self._now(), error=error)

    @property
    def current(self) -> str | None:
        """The current step: the last that was begun and not ended."""
        steps = enumerate(self.steps.items())
        active = [(step["started"], index, name) for index, (name, step) in steps if step["status"] == "begun"]
        return max(active)[2] if active else None

    @property
    def done_count(self) -> int:
        """The number of steps that are done."""
        return sum(step["status"] == "done" for step in self._data.get(_STEPS, {}).values())

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return len(self._data.get(_STEPS, {}))

    @property
    def percent(self) -> float:
        """The share of the steps that are done, from 0 to 100."""
        return 100.0 * self.done_count / self.step_count if self.step_count else 0.0
