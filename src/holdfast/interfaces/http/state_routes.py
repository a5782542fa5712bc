"""Operations of the API on states, scoped state, sessions, artifacts and agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from holdfast.agents import AgentRecord, Recovery
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import FileContent, Limit, RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import to_diff
from holdfast.state import Artifact, ArtifactLink, Session, StateItem
from holdfast.store import Checkpoint, Page, Path, Thread

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
    parent = call.expected(lambda: thread.resolve().id)
    if not parent:
        return save(branch=branch)
    if branch is not None:
        raise InvalidError("with If-Match, a checkpoint follows that one: leave out the branch")
    try:
        return save(parent=parent, on_conflict="raise")
    except ConflictError:
        head = thread.resolve()
        if head.id == parent:
            raise
        raise StaleError(head.id, to_diff(thread.diff(parent, head.id).without_internal())) from None


# Scoped state -----------------------------------------------------------------------------------------------------


@STATES.get("/scopes/{scope}/keys/{key}")
def get_item(call: Call, scope: str, key: str) -> StateItem:
    """Read a key of a scope. The global scope is named `global`."""
    return call.state(scope).item(key)


@STATES.put("/scopes/{scope}/keys/{key}")
def set_item(call: Call, scope: str, key: str, *, value: Any, ttl: str | None = None) -> StateItem:
    """Set a key of a scope. With If-Match, only if it still has that version; 0 for a key that does not exist."""
    state = call.state(scope)
    version = state.set(key, value, ttl=ttl, expected=_version(call, scope, key))
    found = state.item(key)
    return found if found.version == version else found._replace(value=value, version=version)


@STATES.delete("/scopes/{scope}/keys/{key}")
def delete_item(call: Call, scope: str, key: str) -> models.DoneModel:
    """Delete a key of a scope. With If-Match, only if it still has that version."""
    deleted = call.state(scope).delete(key, expected=_version(call, scope, key))
    return models.DoneModel(ids=[key] if deleted else [])


def _version(call: Call, scope: str, key: str) -> int | None:
    def current() -> str:
        try:
            return str(call.state(scope).item(key).version)
        except NotFoundError:
            return "0"

    version = call.expected(current)
    if not version:
        return None
    if not version.isdecimal() or len(version) > 18:
        raise InvalidError("If-Match has the version of the key", where=version[:40])
    return int(version)


# Sessions ---------------------------------------------------------------------------------------------------------


@STATES.get("/sessions")
def list_sessions(call: Call, *, limit: Limit = 100, cursor: str | None = None) -> Page[Session]:
    """List sessions in the order of their ids."""
    return call.store.sessions.list(limit=limit, cursor=cursor)


@STATES.get("/sessions/{id}")
def get_session(call: Call, id: str) -> Session:
    """Describe a session."""
    return call.store.sessions.get(id)


@STATES.post("/sessions")
def start_session(
    call: Call,
    *,
    session: str | None = None,
    user: str | None = None,
    metadata: dict[str, Any] | None = None,
    ttl: str | None = None,
    idle: str | None = None,
    on_end: Literal["delete", "archive", "keep"] = "delete",
) -> Session:
    """Start a session, by default with a new id."""
    return call.store.sessions.start(session, user=user, metadata=metadata, ttl=ttl, idle=idle, on_end=on_end)


@STATES.post("/sessions/{id}/end", status=200)
def end_session(call: Call, id: str, *, reason: str = "") -> Session:
    """End a session. Ending it again is no error."""
    return call.store.sessions.end(id, reason)


# Artifacts --------------------------------------------------------------------------------------------------------


@STATES.get("/artifacts/{id}")
def get_artifact(call: Call, id: str) -> Artifact:
    """Describe an artifact."""
    return call.store.artifacts.get(id)


@STATES.get("/artifacts/{id}/content")
def get_artifact_content(call: Call, id: str) -> FileContent:
    """Read the content of an artifact, or a range of its bytes."""
    return FileContent(call.store.artifacts.read(id), "application/octet-stream")


@STATES.get("/artifacts/{id}/changes")
def list_artifact_changes(call: Call, id: str, *, limit: Limit = 100, cursor: str | None = None) -> Page[ArtifactLink]:
    """List the changes that were made with an artifact."""
    return call.store.artifacts.changes(id, limit=limit, cursor=cursor)


# Agents -----------------------------------------------------------------------------------------------------------


@STATES.get("/agents/{id}")
def get_agent(call: Call, id: str) -> AgentRecord:
    """Describe an agent: its configuration, fields, context, tools and workflow."""
    return call.store.agents.load(id)


@STATES.post("/agents/{id}/resolutions", status=200)
def resolve_agent(call: Call, id: str, *, how: Literal["back", "forward"]) -> Recovery:
    """Resolve a change of an agent that is half-done: undo it, or finish it."""
    return call.store.agents.resolve(id, how)
