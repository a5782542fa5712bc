"""The part of the client for states, sessions, artifacts and agents, and for the store's owner.

Made by `tools/http_client.py` from the table of routes: do not edit it.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.history_client import HistoryClient


class RecordClient(HistoryClient):
    """Operations on states, sessions, artifacts and agents, and those for the store's owner."""

    def save_checkpoint(
        self,
        thread: str,
        state: dict[str, Any],
        *,
        tag: str | None = None,
        branch: str | None = None,
        metadata: dict[str, Any] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> models.CheckpointModel:
        """Save a state as a new checkpoint. With If-Match, only if HEAD is still that checkpoint."""
        params = inputs.ThreadParams(thread=thread)
        found: models.CheckpointModel = self.send(
            "POST",
            "/threads/{thread}/checkpoints",
            params,
            inputs.CheckpointRequest(state=state, tag=tag, branch=branch, metadata=metadata or {}),
            models.CheckpointModel,
            if_match=if_match,
            key=key,
        )
        return found

    def save_update(
        self,
        thread: str,
        *,
        changes: dict[str, Any] | None = None,
        remove: list[str] | None = None,
        branch: str | None = None,
        metadata: dict[str, Any] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> models.CheckpointModel:
        """Save a checkpoint that differs from the latest at some paths. With If-Match, only if HEAD is still that."""
        params = inputs.ThreadParams(thread=thread)
        found: models.CheckpointModel = self.send(
            "POST",
            "/threads/{thread}/updates",
            params,
            inputs.UpdateRequest(changes=changes or {}, remove=remove or [], branch=branch, metadata=metadata or {}),
            models.CheckpointModel,
            if_match=if_match,
            key=key,
        )
        return found

    def get_item(self, scope: str, key: str) -> models.StateItemModel:
        """Read a key of a scope."""
        params = inputs.KeyParams(scope=scope, key=key)
        found: models.StateItemModel = self.send(
            "GET", "/scopes/{scope}/keys/{key}", params, None, models.StateItemModel
        )
        return found

    def set_item(
        self, scope: str, key: str, value: Any, *, ttl: str | None = None, if_match: str = "", idempotency_key: str = ""
    ) -> models.StateItemModel:
        """Set a key of a scope. With If-Match, only if it still has that version; 0 for a key that does not exist."""
        params = inputs.KeyParams(scope=scope, key=key)
        found: models.StateItemModel = self.send(
            "PUT",
            "/scopes/{scope}/keys/{key}",
            params,
            inputs.ItemRequest(value=value, ttl=ttl),
            models.StateItemModel,
            if_match=if_match,
            key=idempotency_key,
        )
        return found

    def delete_item(self, scope: str, key: str, *, if_match: str = "", idempotency_key: str = "") -> models.DoneModel:
        """Delete a key of a scope. With If-Match, only if it still has that version."""
        params = inputs.KeyParams(scope=scope, key=key)
        found: models.DoneModel = self.send(
            "DELETE",
            "/scopes/{scope}/keys/{key}",
            params,
            None,
            models.DoneModel,
            if_match=if_match,
            key=idempotency_key,
        )
        return found

    def get_session(self, id: str) -> models.SessionModel:
        """Describe a session."""
        params = inputs.IdParams(id=id)
        found: models.SessionModel = self.send("GET", "/sessions/{id}", params, None, models.SessionModel)
        return found

    def start_session(
        self,
        *,
        session: str | None = None,
        user: str | None = None,
        metadata: dict[str, Any] | None = None,
        ttl: str | None = None,
        idle: str | None = None,
        on_end: Literal["delete", "archive", "keep"] = "delete",
        if_match: str = "",
        key: str = "",
    ) -> models.SessionModel:
        """Start a session."""
        params = inputs.NoParams()
        found: models.SessionModel = self.send(
            "POST",
            "/sessions",
            params,
            inputs.SessionRequest(
                session=session, user=user, metadata=metadata or {}, ttl=ttl, idle=idle, on_end=on_end
            ),
            models.SessionModel,
            if_match=if_match,
            key=key,
        )
        return found

    def end_session(self, id: str, *, reason: str = "", if_match: str = "", key: str = "") -> models.SessionModel:
        """End a session. Ending it again is no error."""
        params = inputs.IdParams(id=id)
        found: models.SessionModel = self.send(
            "POST",
            "/sessions/{id}/end",
            params,
            inputs.EndRequest(reason=reason),
            models.SessionModel,
            if_match=if_match,
            key=key,
        )
        return found

    def get_artifact(self, id: str) -> models.ArtifactModel:
        """Describe an artifact."""
        params = inputs.IdParams(id=id)
        found: models.ArtifactModel = self.send("GET", "/artifacts/{id}", params, None, models.ArtifactModel)
        return found

    def list_artifact_changes(
        self, id: str, *, limit: int = 100, cursor: str | None = None
    ) -> models.PageModel[admin_models.ArtifactLinkModel]:
        """List the changes that were made with an artifact."""
        params = inputs.IdPageParams(limit=limit, cursor=cursor, id=id)
        found: models.PageModel[admin_models.ArtifactLinkModel] = self.send(
            "GET", "/artifacts/{id}/changes", params, None, models.PageModel[admin_models.ArtifactLinkModel]
        )
        return found

    def get_agent(self, id: str) -> admin_models.AgentDetailModel:
        """Describe an agent: its configuration, fields, context, tools and workflow."""
        params = inputs.IdParams(id=id)
        found: admin_models.AgentDetailModel = self.send(
            "GET", "/agents/{id}", params, None, admin_models.AgentDetailModel
        )
        return found

    def resolve_agent(
        self, id: str, how: Literal["back", "forward"], *, if_match: str = "", key: str = ""
    ) -> admin_models.RecoveryModel:
        """Resolve a change of an agent that is half-done: undo it, or finish it."""
        params = inputs.IdParams(id=id)
        found: admin_models.RecoveryModel = self.send(
            "POST",
            "/agents/{id}/resolutions",
            params,
            inputs.ResolutionRequest(how=how),
            admin_models.RecoveryModel,
            if_match=if_match,
            key=key,
        )
        return found

    def list_steps(
        self, id: str, *, limit: int = 100, cursor: str | None = None
    ) -> models.PageModel[admin_models.StepModel]:
        """List the durable steps of an agent by their keys."""
        params = inputs.AgentParams(limit=limit, cursor=cursor, id=id)
        found: models.PageModel[admin_models.StepModel] = self.send(
            "GET", "/agents/{id}/steps", params, None, models.PageModel[admin_models.StepModel]
        )
        return found

    def get_step(self, id: str, key: str) -> admin_models.StepModel:
        """Describe a durable step of an agent."""
        params = inputs.StepParams(id=id, key=key)
        found: admin_models.StepModel = self.send(
            "GET", "/agents/{id}/steps/{key}", params, None, admin_models.StepModel
        )
        return found

    def resolve_step(
        self,
        id: str,
        key: str,
        how: Literal["result", "error", "retry"],
        *,
        result: Any = None,
        error: str | None = None,
        if_match: str = "",
        idempotency_key: str = "",
    ) -> admin_models.StepModel:
        """Record what became of a step whose outcome is unknown, or that failed."""
        params = inputs.StepParams(id=id, key=key)
        found: admin_models.StepModel = self.send(
            "POST",
            "/agents/{id}/steps/{key}/resolutions",
            params,
            inputs.StepResolutionRequest(how=how, result=result, error=error),
            admin_models.StepModel,
            if_match=if_match,
            key=idempotency_key,
        )
        return found

    def list_timers(self, id: str) -> admin_models.TimerListModel:
        """List the timers and sleeps of an agent, the next one first."""
        params = inputs.IdParams(id=id)
        found: admin_models.TimerListModel = self.send(
            "GET", "/agents/{id}/timers", params, None, admin_models.TimerListModel
        )
        return found

    def set_timer(
        self,
        id: str,
        name: str,
        when: str,
        *,
        signal: str | None = None,
        value: Any = None,
        if_match: str = "",
        key: str = "",
    ) -> admin_models.TimerModel:
        """Set a timer of an agent. One of the same name is replaced."""
        params = inputs.TimerParams(id=id, name=name)
        found: admin_models.TimerModel = self.send(
            "PUT",
            "/agents/{id}/timers/{name}",
            params,
            inputs.TimerRequest(when=when, signal=signal, value=value),
            admin_models.TimerModel,
            if_match=if_match,
            key=key,
        )
        return found

    def cancel_timer(self, id: str, name: str, *, if_match: str = "", key: str = "") -> models.DoneModel:
        """Cancel a timer of an agent, or end a sleep by its key."""
        params = inputs.TimerParams(id=id, name=name)
        found: models.DoneModel = self.send(
            "DELETE", "/agents/{id}/timers/{name}", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def list_signals(self, id: str, *, name: str | None = None) -> admin_models.SignalListModel:
        """List the signals that wait for an agent, in their order."""
        params = inputs.SignalsParams(id=id, name=name)
        found: admin_models.SignalListModel = self.send(
            "GET", "/agents/{id}/signals", params, None, admin_models.SignalListModel
        )
        return found

    def send_signal(
        self,
        id: str,
        name: str,
        *,
        value: Any = None,
        signal_id: str | None = None,
        create: bool = False,
        if_match: str = "",
        key: str = "",
    ) -> admin_models.SentSignalModel:
        """Send a signal to an agent, which gets it when it waits for it. One whose id was sent before is not sent."""
        params = inputs.IdParams(id=id)
        found: admin_models.SentSignalModel = self.send(
            "POST",
            "/agents/{id}/signals",
            params,
            inputs.SignalRequest(name=name, value=value, signal_id=signal_id, create=create),
            admin_models.SentSignalModel,
            if_match=if_match,
            key=key,
        )
        return found

    def save_agent_state(
        self,
        id: str,
        *,
        type: str | None = None,
        state: str | None = None,
        data: dict[str, Any] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> models.AgentModel:
        """Save an agent that has no class: the state that it is in, and its data, which are its fields."""
        params = inputs.IdParams(id=id)
        found: models.AgentModel = self.send(
            "PUT",
            "/agents/{id}/state",
            params,
            inputs.AgentStateRequest(type=type, state=state, data=data),
            models.AgentModel,
            if_match=if_match,
            key=key,
        )
        return found

    def record_transition(
        self,
        id: str,
        source: str,
        target: str,
        *,
        trigger: str = "",
        success: bool = True,
        error: str = "",
        data: Any = None,
        if_match: str = "",
        key: str = "",
    ) -> models.TransitionModel:
        """Record a transition that an agent without a class took elsewhere, or that was refused there."""
        params = inputs.IdParams(id=id)
        found: models.TransitionModel = self.send(
            "POST",
            "/agents/{id}/transitions",
            params,
            inputs.TransitionRequest(
                source=source, target=target, trigger=trigger, success=success, error=error, data=data
            ),
            models.TransitionModel,
            if_match=if_match,
            key=key,
        )
        return found

    def get_job(self, name: str) -> models.JobModel:
        """Describe a job, with its last runs."""
        params = inputs.NameParams(name=name)
        found: models.JobModel = self.send("GET", "/jobs/{name}", params, None, models.JobModel)
        return found

    def run_job(self, name: str, *, if_match: str = "", key: str = "") -> models.JobRunModel:
        """Run a job now, and wait for its end."""
        params = inputs.NameParams(name=name)
        found: models.JobRunModel = self.send(
            "POST", "/jobs/{name}/runs", params, None, models.JobRunModel, if_match=if_match, key=key
        )
        return found

    def pause_job(self, name: str, *, if_match: str = "", key: str = "") -> models.JobModel:
        """Pause a job."""
        params = inputs.NameParams(name=name)
        found: models.JobModel = self.send(
            "PUT", "/jobs/{name}/pause", params, None, models.JobModel, if_match=if_match, key=key
        )
        return found

    def resume_job(self, name: str, *, if_match: str = "", key: str = "") -> models.JobModel:
        """Let a paused job run again."""
        params = inputs.NameParams(name=name)
        found: models.JobModel = self.send(
            "DELETE", "/jobs/{name}/pause", params, None, models.JobModel, if_match=if_match, key=key
        )
        return found

    def list_schemas(self) -> admin_models.SchemaListModel:
        """List the schemas of the store, with the states of each version, and the migrations that were applied."""
        params = inputs.NoParams()
        found: admin_models.SchemaListModel = self.send("GET", "/schemas", params, None, admin_models.SchemaListModel)
        return found

    def list_keys(self) -> admin_models.KeyListModel:
        """List the keys of an encrypted store, without the keys themselves."""
        params = inputs.NoParams()
        found: admin_models.KeyListModel = self.send("GET", "/keys", params, None, admin_models.KeyListModel)
        return found

    def rotate_keys(self, *, if_match: str = "", key: str = "") -> admin_models.KeyModel:
        """Start to use a new key; what is stored is encrypted with it by the job `reencrypt`."""
        params = inputs.NoParams()
        found: admin_models.KeyModel = self.send(
            "POST", "/keys/rotations", params, None, admin_models.KeyModel, if_match=if_match, key=key
        )
        return found

    def list_erasures(self) -> admin_models.CertificateListModel:
        """List the certificates of all erasures, the oldest first."""
        params = inputs.NoParams()
        found: admin_models.CertificateListModel = self.send(
            "GET", "/erasures", params, None, admin_models.CertificateListModel
        )
        return found

    def erase(
        self, subject: str, *, dry_run: bool = True, confirm: str = "", if_match: str = "", key: str = ""
    ) -> admin_models.ErasureReportModel:
        """Erase everything of one person, or, with `dry_run`, say what would be erased."""
        params = inputs.NoParams()
        found: admin_models.ErasureReportModel = self.send(
            "POST",
            "/erasures",
            params,
            inputs.ErasureRequest(subject=subject, dry_run=dry_run, confirm=confirm),
            admin_models.ErasureReportModel,
            if_match=if_match,
            key=key,
        )
        return found

    def list_backups(self) -> admin_models.RepositoryListModel:
        """List the backups in the repositories that jobs of the store use."""
        params = inputs.NoParams()
        found: admin_models.RepositoryListModel = self.send(
            "GET", "/backups", params, None, admin_models.RepositoryListModel
        )
        return found

    def create_backup(
        self, name: str, *, reason: str = "", if_match: str = "", key: str = ""
    ) -> admin_models.BackupModel:
        """Make a backup in the repository of a job."""
        params = inputs.NameParams(name=name)
        found: admin_models.BackupModel = self.send(
            "POST",
            "/backups/{name}",
            params,
            inputs.BackupRequest(reason=reason),
            admin_models.BackupModel,
            if_match=if_match,
            key=key,
        )
        return found

    def verify_backups(self, name: str, *, level: str | None = None) -> admin_models.RepositoryReportModel:
        """Check that all objects of a repository are as they were written."""
        params = inputs.RepositoryParams(name=name, level=level)
        found: admin_models.RepositoryReportModel = self.send(
            "GET", "/backups/{name}/verification", params, None, admin_models.RepositoryReportModel
        )
        return found

    def run_drill(self, name: str, *, if_match: str = "", key: str = "") -> admin_models.DrillModel:
        """Restore the newest backup aside, and a moment before it, and verify them."""
        params = inputs.NameParams(name=name)
        found: admin_models.DrillModel = self.send(
            "POST", "/backups/{name}/drills", params, None, admin_models.DrillModel, if_match=if_match, key=key
        )
        return found

    def repair_backups(self, name: str, *, if_match: str = "", key: str = "") -> admin_models.BackupRepairModel:
        """Repair a repository: rebuild what is damaged, drop what is lost, and list it."""
        params = inputs.NameParams(name=name)
        found: admin_models.BackupRepairModel = self.send(
            "POST", "/backups/{name}/repairs", params, None, admin_models.BackupRepairModel, if_match=if_match, key=key
        )
        return found
