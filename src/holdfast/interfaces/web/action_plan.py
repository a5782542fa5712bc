"""The plan of an action on a thread, as the page shows it: fields, effects, differences, and the request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.engine.types import Checkpoint
from holdfast.errors import ConflictError, HoldfastError, InvalidError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.page_renderer import python_text, segment
from holdfast.store.thread import Thread

T = TypeVar("T")


class ActionField(NamedTuple):
    """A field of the form of an action."""

    name: str
    label: str
    value: str
    kind: str = "text"
    options: Sequence[tuple[str, str]] = ()
    hint: str = ""


class EditRow(NamedTuple):
    """A value to change: its path, and its new value. As `text`; as `json`, where an empty one removes it; or not here,
    if it is `large`."""

    path: str
    value: str
    problem: str = ""
    kind: str = "json"


class ConflictRow(NamedTuple):
    """A conflict of a merge, with its sides as text, and the side that was chosen."""

    path: str
    base: str
    ours: str
    theirs: str
    chosen: str
    combines: bool


class ActionRequest(NamedTuple):
    """The request that makes a change. `then` is the field of the response with the checkpoint to show next."""

    method: str
    address: str
    body: str
    then: str = ""


class ActionPlan(NamedTuple):
    """The plan of an action. Without a request, it cannot be made: `problem` or `effects` say why."""

    fields: Sequence[ActionField]
    button: str
    request: ActionRequest | None = None
    effects: Sequence[str] = ()
    diff: models.DiffModel | None = None
    conflicts: Sequence[ConflictRow] = ()
    rows: Sequence[EditRow] = ()
    problem: models.Problem | None = None
    python: str = ""
    cli: str = ""
    confirm: str = ""
    """The name to type before it can be made; empty if that is not needed."""


class ActionForm:
    """The fields that were filled in, by name, some of them more than once; and whether they were sent, or are those
    of an address."""

    def __init__(self, fields: Mapping[str, Sequence[str]], *, sent: bool = True) -> None:
        self._fields = fields
        self.sent = sent

    def text(self, name: str, default: str = "") -> str:
        """Return a field without the space around it; the default if it is not there."""
        found = self._fields.get(name)
        return found[0].strip() if found else default

    def raw(self, name: str, default: str = "") -> str:
        """Return a field as it was typed; the default if it is not there."""
        found = self._fields.get(name)
        return found[0].replace("\r\n", "\n") if found else default

    def texts(self, name: str) -> Sequence[str]:
        """Return all fields of a name."""
        return self._fields.get(name, ())

    def named(self, start: str) -> dict[str, str]:
        """Return the fields whose names start so, by the rest of their names."""
        return {name.removeprefix(start): values[0] for name, values in self._fields.items() if name.startswith(start)}


class ActionTarget(NamedTuple):
    """The checkpoint that an action is about."""

    call: Call
    name: str
    thread: Thread[Any]
    at: Checkpoint[Any]
    head: Checkpoint[Any]
    detail: models.ThreadDetailModel

    @property
    def address(self) -> str:
        """The address of the thread in the API."""
        return f"/api/v1/threads/{segment(self.name)}"

    @property
    def python(self) -> str:
        """The handle of the thread, as Python."""
        return f"store.thread({python_text(self.name)})"

    @property
    def current(self) -> str:
        """The name of the branch of HEAD."""
        return next((each.name for each in self.detail.branches if each.current and each.name), "main")

    def step(self, id: str) -> str:
        """Return how a checkpoint is called in texts: by its number."""
        found = self.thread.find(id)
        return f"#{found.step}"


def build_request(method: str, address: str, body: Mapping[str, Any] | None, then: str = "") -> ActionRequest:
    """Return the request of a change, with its body as JSON."""
    return ActionRequest(method, address, "" if body is None else json.dumps(body, ensure_ascii=False), then)


class UnmetError(Exception):
    """Something that was filled in does not do: the plan is shown with it, and cannot be made."""

    def __init__(self, plan: ActionPlan, error: HoldfastError) -> None:
        super().__init__(error)
        self.plan: ActionPlan = plan._replace(problem=to_problem(error))


def require(plan: ActionPlan, work: Callable[[], T]) -> T:
    """Do something that what was filled in may not allow."""
    try:
        return work()
    except HoldfastError as error:
        raise UnmetError(plan, error) from None


def branch_field(form: ActionForm) -> ActionField:
    """Return the field with the name of a new branch."""
    return ActionField("branch", "Name of the branch", form.text("branch"), hint="what-if, shorter, retry-2")


def require_new_branch(target: ActionTarget, branch: str) -> None:
    """Check that there can be a branch of this name."""
    if not branch:
        raise InvalidError("the branch has no name yet", hint="Name it: what-if, shorter, retry-2")
    if any(each.name == branch for each in target.detail.branches):
        raise ConflictError(f"there is a branch {branch} already", hint="Choose another name")
