"""Operations of the API that save states and keys, under conditions, read contents, and resolve steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.agents.steps.records import StepRecord
from holdfast.engine.paths import Path
from holdfast.engine.types import Checkpoint
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import to_diff
from holdfast.state.reader import StateItem
from holdfast.store.thread import Thread

STATES = RouteTable()


# States of threads ------------------------------------------------------------------------------------------------


@STATES.post("/threads/{thread}/checkpoints")
def save_checkpoint(
    call: Call,
    thread: str,
    *,
    state: dict[str, Any],
    tag: str | None = None,
    branch: str | None = None,
    metadata: dict[str, Any] | None = None,
    ttl: str | None = None,
) -> Checkpoint[Any]:
    """Save a state as a new checkpoint. With If-Match, only if HEAD is still that checkpoint."""
    opened = call.store.thread(thread)
    return _saved(
        call, opened, branch, lambda **fields: opened.put(state, tag=tag, metadata=metadata, ttl=ttl, **fields)
    )


@STATES.post("/threads/{thread}/updates")
def save_update(
    call: Call,
    thread: str,
    *,
    changes: dict[str, Any] | None = None,
    remove: list[str] | None = None,
    branch: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> Checkpoint[Any]:
    """Save a checkpoint that differs from the latest at some paths. With If-Match, only if HEAD is still that."""
    opened = call.store.thread(thread)
    changed: dict[Path, Any] = dict((changes or {}).items())
    return _saved(
        call,
        opened,
        branch,
        lambda **fields: opened.update(changed, remove=remove or (), metadata=metadata, **fields),
    )


def _saved(
    call: Call, thread: Thread[Any], branch: str | None, save: Callable[..., Checkpoint[Any]]
) -> Checkpoint[Any]:
    """Save on a branch. A condition is checked in one step with the change."""
    parent = call.expected(lambda: thread.find().id)
    if not parent:
        return save(branch=branch)
    if branch is not None:
        raise InvalidError("If-Match already names the parent checkpoint: leave out the branch")
    try:
        return save(parent=parent, on_conflict="raise")
    except ConflictError:
        head = thread.find()
        if head.id == parent:
            raise
        raise StaleError(head.id, to_diff(thread.diff(parent, head.id).without_internal())) from None


# Scoped state -----------------------------------------------------------------------------------------------------


@STATES.put("/scopes/{scope}/keys/{key}")
def set_item(call: Call, scope: str, key: str, *, value: Any, ttl: str | None = None) -> StateItem:
    """Set a key of a scope. With If-Match, only if it still has that version; 0 for a key that does not exist."""
    state = call.store.state(scope)
    version = state.set(key, value, ttl=ttl, expected=_version(call, scope, key))
    found = state.item(key)
    return found if found.version == version else replace(found, value=value, version=version)


@STATES.delete("/scopes/{scope}/keys/{key}")
def delete_item(call: Call, scope: str, key: str) -> models.DoneModel:
    """Delete a key of a scope. With If-Match, only if it still has that version."""
    deleted = call.store.state(scope).delete(key, expected=_version(call, scope, key))
    return models.DoneModel(ids=[key] if deleted else [])


def _version(call: Call, scope: str, key: str) -> int | None:
    def current() -> str:
        try:
            return str(call.store.state(scope).item(key).version)
        except NotFoundError:
            return "0"

    version = call.expected(current)
    if not version:
        return None
    if not version.isdecimal() or len(version) > 18:
        raise InvalidError("If-Match must be the version of the key", where=version[:40])
    return int(version)


# Steps of agents --------------------------------------------------------------------------------------------------


@STATES.post("/agents/{id}/steps/{key}/resolutions", status=200)
def resolve_step(
    call: Call,
    id: str,
    key: str,
    *,
    how: Literal["result", "error", "retry"],
    result: Any = None,
    error: str | None = None,
) -> StepRecord:
    """Record what became of a step whose outcome is unknown, or that failed."""
    call.refuse_condition()
    others = [result is not None and how != "result", error is not None and how != "error"]
    if any(others) or (how == "error" and error is None):
        raise InvalidError(
            "pass exactly one of result, error and retry to resolve a step",
            where=f"how {how}",
            hint="Give a result with how=result, an error with how=error, and neither with how=retry",
        )
    steps = call.store.agents.steps(id)
    if how == "result":
        return steps.resolve(key, result=result)
    return steps.resolve(key, error=error, retry=how == "retry")
