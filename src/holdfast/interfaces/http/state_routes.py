"""Operations of the API on states, scoped state, sessions, artifacts and agents."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.cli.json_output import plain
from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import fields_of, to_checkpoint, to_diff
from holdfast.interfaces.http.values import small_json
from holdfast.state import Session, State, StateItem
from holdfast.store import Checkpoint, Path, Thread

STATES = RouteTable()


# States of threads ------------------------------------------------------------------------------------------------


@STATES.post("/threads/{thread}/checkpoints")
def save_checkpoint(call: Call, params: inputs.ThreadParams, body: inputs.CheckpointRequest) -> models.CheckpointModel:
    """Save a state as a new checkpoint. With If-Match, only if HEAD is still that checkpoint."""
    thread = call.store.thread(params.thread)
    return _saved(call, thread, lambda fields: thread.put(body.state, tag=body.tag, ttl=body.ttl, **fields), body)


@STATES.post("/threads/{thread}/updates")
def save_update(call: Call, params: inputs.ThreadParams, body: inputs.UpdateRequest) -> models.CheckpointModel:
    """Save a checkpoint that differs from the latest at some paths. With If-Match, only if HEAD is still that."""
    thread = call.store.thread(params.thread)
    changes: dict[Path, Any] = dict(body.changes.items())
    return _saved(call, thread, lambda fields: thread.update(changes, remove=body.remove, **fields), body)


def _saved(
    call: Call, thread: Thread[Any], save: Any, body: inputs.CheckpointRequest | inputs.UpdateRequest
) -> models.CheckpointModel:
    """Save with the fields of a request. A condition is checked in one step with the change."""
    fields: dict[str, Any] = {"branch": body.branch, "metadata": body.metadata or None}
    parent = call.expected(lambda: thread.resolve().id)
    if not parent:
        return to_checkpoint(save(fields))
    if body.branch is not None:
        raise InvalidError("with If-Match, a checkpoint follows that one: leave out the branch")
    del fields["branch"]
    try:
        found: Checkpoint[Any] = save(fields | {"parent": parent, "on_conflict": "raise"})
    except ConflictError:
        head = thread.resolve()
        if head.id == parent:
            raise
        raise StaleError(head.id, to_diff(thread.diff(parent, head.id).without_internal())) from None
    return to_checkpoint(found)


# Scoped state -----------------------------------------------------------------------------------------------------


@STATES.get("/scopes/{scope}/keys/{key}")
def get_item(call: Call, params: inputs.KeyParams) -> models.StateItemModel:
    """Read a key of a scope."""
    return _item(_state(call, params).item(params.key))


@STATES.put("/scopes/{scope}/keys/{key}")
def set_item(call: Call, params: inputs.KeyParams, body: inputs.ItemRequest) -> models.StateItemModel:
    """Set a key of a scope. With If-Match, only if it still has that version; 0 for a key that does not exist."""
    state = _state(call, params)
    version = state.set(params.key, body.value, ttl=body.ttl, expected=_version(call, params))
    found = state.item(params.key)
    return _item(found if found.version == version else found._replace(value=body.value, version=version))


@STATES.delete("/scopes/{scope}/keys/{key}")
def delete_item(call: Call, params: inputs.KeyParams) -> models.DoneModel:
    """Delete a key of a scope. With If-Match, only if it still has that version."""
    deleted = _state(call, params).delete(params.key, expected=_version(call, params))
    return models.DoneModel(ids=[params.key] if deleted else [])


def _state(call: Call, params: inputs.KeyParams) -> State:
    return call.store.state("" if params.scope == "global" else params.scope)


def _version(call: Call, params: inputs.KeyParams) -> int | None:
    def current() -> str:
        try:
            return str(_state(call, params).item(params.key).version)
        except NotFoundError:
            return "0"

    version = call.expected(current)
    if not version:
        return None
    if not version.isdecimal() or len(version) > 18:
        raise InvalidError("If-Match has the version of the key", where=version[:40])
    return int(version)


def _item(item: StateItem) -> models.StateItemModel:
    return models.StateItemModel(**fields_of(models.StateItemModel, item, value=small_json(item.value)))


# Sessions ---------------------------------------------------------------------------------------------------------


@STATES.get("/sessions/{id}")
def get_session(call: Call, params: inputs.IdParams) -> models.SessionModel:
    """Describe a session."""
    return _session(call.store.sessions.get(params.id))


@STATES.post("/sessions")
def start_session(call: Call, params: inputs.NoParams, body: inputs.SessionRequest) -> models.SessionModel:  # noqa: ARG001
    """Start a session."""
    return _session(
        call.store.sessions.start(
            body.session,
            user=body.user,
            metadata=body.metadata or None,
            ttl=body.ttl,
            idle=body.idle,
            on_end=body.on_end,
        )
    )


@STATES.post("/sessions/{id}/end", status=200)
def end_session(call: Call, params: inputs.IdParams, body: inputs.EndRequest) -> models.SessionModel:
    """End a session. Ending it again is no error."""
    return _session(call.store.sessions.end(params.id, body.reason))


def _session(session: Session) -> models.SessionModel:
    return models.SessionModel(**fields_of(models.SessionModel, session, scope=str(session.scope)))


# Artifacts --------------------------------------------------------------------------------------------------------


@STATES.get("/artifacts/{id}")
def get_artifact(call: Call, params: inputs.IdParams) -> models.ArtifactModel:
    """Describe an artifact."""
    return models.ArtifactModel(**fields_of(models.ArtifactModel, call.store.artifacts.get(params.id)))


@STATES.get("/artifacts/{id}/changes")
def list_artifact_changes(call: Call, params: inputs.IdPageParams) -> models.PageModel[admin_models.ArtifactLinkModel]:
    """List the changes that were made with an artifact."""
    page = call.store.artifacts.changes(params.id, limit=params.limit, cursor=params.cursor)
    items = [
        admin_models.ArtifactLinkModel(**fields_of(admin_models.ArtifactLinkModel, each, scope=str(each.scope)))
        for each in page
    ]
    return models.PageModel(items=items, next=page.next)


# Agents -----------------------------------------------------------------------------------------------------------


@STATES.get("/agents/{id}")
def get_agent(call: Call, params: inputs.IdParams) -> admin_models.AgentDetailModel:
    """Describe an agent: its configuration, fields, context, tools and workflow."""
    found = call.store.agents.load(params.id)
    pending = "" if found.pending is None else str(found.pending.kind)
    return admin_models.AgentDetailModel(
        agent=models.AgentModel(**fields_of(models.AgentModel, found, damaged=False, pending=pending)),
        schema=found.schema,
        **{
            name: plain(dict(getattr(found, name)))
            for name in ("configuration", "fields", "context", "tools", "workflow")
        },
    )


@STATES.post("/agents/{id}/resolutions", status=200)
def resolve_agent(call: Call, params: inputs.IdParams, body: inputs.ResolutionRequest) -> admin_models.RecoveryModel:
    """Resolve a change of an agent that is half-done: undo it, or finish it."""
    done = call.store.agents.resolve(params.id, body.how)
    return admin_models.RecoveryModel(**fields_of(admin_models.RecoveryModel, done))
