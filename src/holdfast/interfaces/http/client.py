"""The client of the HTTP API. Made by `tools/http_client.py` from the table of routes: do not edit it."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.interfaces.http import inputs, models
from holdfast.interfaces.http.record_client import RecordClient


class HttpClient(RecordClient):
    """The operations of a served store: `HttpClient("http://127.0.0.1:8765", token)`. Errors are those of a store.

    Changes take `if_match`, the id of the checkpoint that the caller has read as HEAD, and `key`, by which a change
    that is sent again is not made again.
    """

    def get_service(self) -> models.ServiceInfoModel:
        """Describe the server, the store that it serves, and who asks."""
        params = inputs.NoParams()
        found: models.ServiceInfoModel = self.send("GET", "", params, None, models.ServiceInfoModel)
        return found

    def get_stats(self, *, exact: bool = False) -> models.StatsModel:
        """Count: the size of the store, and its threads, agents and scopes."""
        params = inputs.StatsParams(exact=exact)
        found: models.StatsModel = self.send("GET", "/stats", params, None, models.StatsModel)
        return found

    def list_scopes(
        self, *, limit: int = 100, cursor: str | None = None, prefix: str = "", pattern: str = ""
    ) -> models.PageModel[models.ScopeModel]:
        """List the scopes that have state, or had some."""
        params = inputs.ScopesParams(limit=limit, cursor=cursor, prefix=prefix, pattern=pattern)
        found: models.PageModel[models.ScopeModel] = self.send(
            "GET", "/scopes", params, None, models.PageModel[models.ScopeModel]
        )
        return found

    def list_items(
        self, scope: str, *, limit: int = 100, cursor: str | None = None, prefix: str = ""
    ) -> models.PageModel[models.StateItemModel]:
        """List the keys of a scope with their values. The global scope is named `global`."""
        params = inputs.ScopeItemsParams(limit=limit, cursor=cursor, scope=scope, prefix=prefix)
        found: models.PageModel[models.StateItemModel] = self.send(
            "GET", "/scopes/{scope}/items", params, None, models.PageModel[models.StateItemModel]
        )
        return found

    def get_key_history(
        self, scope: str, key: str, *, limit: int = 100, cursor: str | None = None
    ) -> models.PageModel[models.KeyChangeModel]:
        """List the changes of a key of a scope, the latest first."""
        params = inputs.KeyHistoryParams(limit=limit, cursor=cursor, scope=scope, key=key)
        found: models.PageModel[models.KeyChangeModel] = self.send(
            "GET", "/scopes/{scope}/keys/{key}/history", params, None, models.PageModel[models.KeyChangeModel]
        )
        return found

    def list_sessions(self, *, limit: int = 100, cursor: str | None = None) -> models.PageModel[models.SessionModel]:
        """List sessions in the order of their ids."""
        params = inputs.PageParams(limit=limit, cursor=cursor)
        found: models.PageModel[models.SessionModel] = self.send(
            "GET", "/sessions", params, None, models.PageModel[models.SessionModel]
        )
        return found

    def list_artifacts(
        self, *, limit: int = 100, cursor: str | None = None, type: str | None = None, producer: str | None = None
    ) -> models.PageModel[models.ArtifactModel]:
        """List artifacts in the order of their ids."""
        params = inputs.ArtifactsParams(limit=limit, cursor=cursor, type=type, producer=producer)
        found: models.PageModel[models.ArtifactModel] = self.send(
            "GET", "/artifacts", params, None, models.PageModel[models.ArtifactModel]
        )
        return found

    def list_agents(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        prefix: str = "",
        status: Literal[
            "created", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed"
        ]
        | None = None,
        state: str | None = None,
    ) -> models.PageModel[models.AgentModel]:
        """List agents in the order of their ids."""
        params = inputs.AgentsParams(limit=limit, cursor=cursor, prefix=prefix, status=status, state=state)
        found: models.PageModel[models.AgentModel] = self.send(
            "GET", "/agents", params, None, models.PageModel[models.AgentModel]
        )
        return found

    def list_transitions(
        self, id: str, *, limit: int = 100, cursor: str | None = None
    ) -> models.PageModel[models.TransitionModel]:
        """List the transitions of an agent, the latest first."""
        params = inputs.AgentParams(limit=limit, cursor=cursor, id=id)
        found: models.PageModel[models.TransitionModel] = self.send(
            "GET", "/agents/{id}/transitions", params, None, models.PageModel[models.TransitionModel]
        )
        return found

    def list_jobs(self) -> models.JobListModel:
        """List the jobs of the store with their last runs."""
        params = inputs.NoParams()
        found: models.JobListModel = self.send("GET", "/jobs", params, None, models.JobListModel)
        return found

    def run_doctor(self, *, full: bool = False) -> models.DoctorModel:
        """Check the store, and say how to fix what is wrong."""
        params = inputs.DoctorParams(full=full)
        found: models.DoctorModel = self.send("GET", "/doctor", params, None, models.DoctorModel)
        return found

    def list_alerts(self) -> models.AlertListModel:
        """List the alerts of all rules with their states."""
        params = inputs.NoParams()
        found: models.AlertListModel = self.send("GET", "/alerts", params, None, models.AlertListModel)
        return found

    def silence_alert(self, rule: str, duration: str, *, if_match: str = "", key: str = "") -> models.AlertModel:
        """Send nothing about a rule for a time."""
        params = inputs.AlertParams(rule=rule)
        found: models.AlertModel = self.send(
            "PUT",
            "/alerts/{rule}/silence",
            params,
            inputs.SilenceRequest(duration=duration),
            models.AlertModel,
            if_match=if_match,
            key=key,
        )
        return found

    def verify(
        self,
        *,
        thread: str | None = None,
        level: Literal["structure", "hashes", "decode"] = "hashes",
        after: str = "",
        limit: int = 1000,
    ) -> models.VerifyReportModel:
        """Check that a thread, or everything, is as it was written: so many lines at a time."""
        params = inputs.VerifyParams(thread=thread, level=level, after=after, limit=limit)
        found: models.VerifyReportModel = self.send("GET", "/verify", params, None, models.VerifyReportModel)
        return found

    def query_audit(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        actor: str | None = None,
        scope: str | None = None,
        thread: str | None = None,
        kind: str = "",
        action: str = "",
        outcome: str = "",
        since: str | None = None,
        until: str | None = None,
    ) -> models.PageModel[models.AuditRecordModel]:
        """List the records of the audit, the latest first."""
        params = inputs.AuditParams(
            limit=limit,
            cursor=cursor,
            actor=actor,
            scope=scope,
            thread=thread,
            kind=kind,
            action=action,
            outcome=outcome,
            since=since,
            until=until,
        )
        found: models.PageModel[models.AuditRecordModel] = self.send(
            "GET", "/audit", params, None, models.PageModel[models.AuditRecordModel]
        )
        return found

    def list_threads(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        prefix: str = "",
        where: str | None = None,
        kind: Literal["thread", "agent", "scope", "session", "access", "audit", "system", "all"] = "thread",
    ) -> models.PageModel[models.ThreadModel]:
        """List threads by name, or lines of another kind: those with a prefix, those that match a query."""
        params = inputs.ThreadsParams(limit=limit, cursor=cursor, prefix=prefix, where=where, kind=kind)
        found: models.PageModel[models.ThreadModel] = self.send(
            "GET", "/threads", params, None, models.PageModel[models.ThreadModel]
        )
        return found

    def get_thread(self, thread: str) -> models.ThreadDetailModel:
        """Describe a thread: its size, its branches, tags, labels, pins and holds."""
        params = inputs.ThreadParams(thread=thread)
        found: models.ThreadDetailModel = self.send("GET", "/threads/{thread}", params, None, models.ThreadDetailModel)
        return found

    def list_branches(self, thread: str) -> models.BranchListModel:
        """List the branches of a thread."""
        params = inputs.ThreadParams(thread=thread)
        found: models.BranchListModel = self.send(
            "GET", "/threads/{thread}/branches", params, None, models.BranchListModel
        )
        return found

    def get_log(
        self,
        thread: str,
        *,
        at: str | None = None,
        all_branches: bool = False,
        first_parent: bool = False,
        where: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> models.PageModel[models.LogEntryModel]:
        """List the checkpoints that lead to one, to HEAD, or to all branches, with what each changed."""
        params = inputs.LogParams(
            thread=thread,
            at=at,
            all_branches=all_branches,
            first_parent=first_parent,
            where=where,
            limit=limit,
            cursor=cursor,
        )
        found: models.PageModel[models.LogEntryModel] = self.send(
            "GET", "/threads/{thread}/log", params, None, models.PageModel[models.LogEntryModel]
        )
        return found

    def get_checkpoint(self, thread: str, at: str) -> models.CheckpointDetailModel:
        """Describe a checkpoint: its position, tags, labels and pins, its channels, and what is pending after it."""
        params = inputs.CheckpointParams(thread=thread, at=at)
        found: models.CheckpointDetailModel = self.send(
            "GET", "/threads/{thread}/checkpoints/{at}", params, None, models.CheckpointDetailModel
        )
        return found

    def get_value(
        self,
        thread: str,
        at: str,
        *,
        path: str = "",
        start: int = 0,
        limit: int = 50,
        internal: bool = False,
        reveal: bool = False,
    ) -> models.ValuePartModel:
        """Read a part of a state: the value at a path, or a page of what it contains; without a path, the channels."""
        params = inputs.ValueParams(
            thread=thread, at=at, path=path, start=start, limit=limit, internal=internal, reveal=reveal
        )
        found: models.ValuePartModel = self.send(
            "GET", "/threads/{thread}/checkpoints/{at}/value", params, None, models.ValuePartModel
        )
        return found

    def get_messages(
        self,
        thread: str,
        at: str,
        *,
        channel: str | None = None,
        start: int | None = None,
        limit: int = 50,
        reveal: bool = False,
    ) -> models.ConversationModel:
        """Read messages of a state: the last ones, or those from a number on."""
        params = inputs.MessagesParams(thread=thread, at=at, channel=channel, start=start, limit=limit, reveal=reveal)
        found: models.ConversationModel = self.send(
            "GET", "/threads/{thread}/checkpoints/{at}/messages", params, None, models.ConversationModel
        )
        return found

    def get_diff(
        self,
        thread: str,
        *,
        a: str | None = None,
        b: str = "HEAD",
        other: str | None = None,
        large: bool = False,
        internal: bool = False,
    ) -> models.DiffModel:
        """Compare two checkpoints; without `a`, a checkpoint with its parent."""
        params = inputs.DiffParams(thread=thread, a=a, b=b, other=other, large=large, internal=internal)
        found: models.DiffModel = self.send("GET", "/threads/{thread}/diff", params, None, models.DiffModel)
        return found

    def get_blame(
        self, thread: str, path: str, *, at: str = "HEAD", limit: int = 100, cursor: str | None = None
    ) -> models.PageModel[models.BlameEntryModel]:
        """Find the checkpoint that wrote the value at a path, or each item of a list."""
        params = inputs.PathParams(thread=thread, path=path, at=at, limit=limit, cursor=cursor)
        found: models.PageModel[models.BlameEntryModel] = self.send(
            "GET", "/threads/{thread}/blame", params, None, models.PageModel[models.BlameEntryModel]
        )
        return found

    def get_history(
        self, thread: str, path: str, *, at: str = "HEAD", limit: int = 100, cursor: str | None = None
    ) -> models.PageModel[models.ValueChangeModel]:
        """List the checkpoints that changed the value at a path, the latest first."""
        params = inputs.PathParams(thread=thread, path=path, at=at, limit=limit, cursor=cursor)
        found: models.PageModel[models.ValueChangeModel] = self.send(
            "GET", "/threads/{thread}/history", params, None, models.PageModel[models.ValueChangeModel]
        )
        return found

    def search(
        self, query: str, *, limit: int = 20, cursor: str | None = None, scan_limit: int = 10000
    ) -> models.SearchPageModel:
        """Search for checkpoints that match a query."""
        params = inputs.SearchParams(query=query, limit=limit, cursor=cursor, scan_limit=scan_limit)
        found: models.SearchPageModel = self.send("GET", "/search", params, None, models.SearchPageModel)
        return found

    def fork(
        self,
        thread: str,
        branch: str,
        *,
        at: str = "HEAD",
        changes: dict[str, Any] | None = None,
        remove: list[str] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> models.BranchModel:
        """Start a branch at a checkpoint, perhaps with an edited state."""
        params = inputs.ThreadParams(thread=thread)
        found: models.BranchModel = self.send(
            "POST",
            "/threads/{thread}/forks",
            params,
            inputs.ForkRequest(branch=branch, at=at, changes=changes or {}, remove=remove or []),
            models.BranchModel,
            if_match=if_match,
            key=key,
        )
        return found

    def restore(
        self, thread: str, at: str, *, branch: str | None = None, if_match: str = "", key: str = ""
    ) -> models.CheckpointModel:
        """Save a new checkpoint with the state of an older one."""
        params = inputs.ThreadParams(thread=thread)
        found: models.CheckpointModel = self.send(
            "POST",
            "/threads/{thread}/restores",
            params,
            inputs.RestoreRequest(at=at, branch=branch),
            models.CheckpointModel,
            if_match=if_match,
            key=key,
        )
        return found

    def merge(
        self,
        thread: str,
        theirs: str,
        *,
        into: str = "HEAD",
        strategy: Literal["ours", "theirs", "union"] | None = None,
        resolve: dict[str, Literal["ours", "theirs", "union"]] | None = None,
        if_match: str = "",
        key: str = "",
    ) -> models.CheckpointModel:
        """Merge a branch, or any revision, into another branch."""
        params = inputs.ThreadParams(thread=thread)
        found: models.CheckpointModel = self.send(
            "POST",
            "/threads/{thread}/merges",
            params,
            inputs.MergeRequest(theirs=theirs, into=into, strategy=strategy, resolve=resolve or {}),
            models.CheckpointModel,
            if_match=if_match,
            key=key,
        )
        return found

    def switch(self, thread: str, branch: str, *, if_match: str = "", key: str = "") -> models.CheckpointModel:
        """Make a branch the current one."""
        params = inputs.ThreadParams(thread=thread)
        found: models.CheckpointModel = self.send(
            "POST",
            "/threads/{thread}/switches",
            params,
            inputs.SwitchRequest(branch=branch),
            models.CheckpointModel,
            if_match=if_match,
            key=key,
        )
        return found

    def delete_branch(
        self, thread: str, branch: str, *, force: bool = False, dry_run: bool = False, if_match: str = "", key: str = ""
    ) -> models.DoneModel:
        """Delete a branch with the checkpoints that only it has."""
        params = inputs.BranchParams(thread=thread, branch=branch, force=force, dry_run=dry_run)
        found: models.DoneModel = self.send(
            "DELETE", "/threads/{thread}/branches/{branch}", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def set_tag(
        self, thread: str, tag: str, *, at: str = "HEAD", move: bool = False, if_match: str = "", key: str = ""
    ) -> models.DoneModel:
        """Tag a checkpoint."""
        params = inputs.TagParams(thread=thread, tag=tag)
        found: models.DoneModel = self.send(
            "PUT",
            "/threads/{thread}/tags/{tag}",
            params,
            inputs.TagRequest(at=at, move=move),
            models.DoneModel,
            if_match=if_match,
            key=key,
        )
        return found

    def remove_tag(self, thread: str, tag: str, *, if_match: str = "", key: str = "") -> models.DoneModel:
        """Remove a tag; the checkpoint stays."""
        params = inputs.TagParams(thread=thread, tag=tag)
        found: models.DoneModel = self.send(
            "DELETE", "/threads/{thread}/tags/{tag}", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def add_label(
        self, thread: str, label: str, *, at: str = "HEAD", if_match: str = "", key: str = ""
    ) -> models.DoneModel:
        """Label a checkpoint."""
        params = inputs.LabelParams(thread=thread, label=label)
        found: models.DoneModel = self.send(
            "PUT",
            "/threads/{thread}/labels/{label}",
            params,
            inputs.LabelRequest(at=at),
            models.DoneModel,
            if_match=if_match,
            key=key,
        )
        return found

    def remove_label(
        self, thread: str, label: str, *, at: str | None = None, if_match: str = "", key: str = ""
    ) -> models.DoneModel:
        """Remove a label from one checkpoint, or from all of the thread."""
        params = inputs.LabelRemovalParams(thread=thread, at=at, label=label)
        found: models.DoneModel = self.send(
            "DELETE", "/threads/{thread}/labels/{label}", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def add_pin(
        self, thread: str, *, at: str = "HEAD", reason: str = "", if_match: str = "", key: str = ""
    ) -> models.DoneModel:
        """Protect a checkpoint from pruning."""
        params = inputs.ThreadParams(thread=thread)
        found: models.DoneModel = self.send(
            "POST",
            "/threads/{thread}/pins",
            params,
            inputs.PinRequest(at=at, reason=reason),
            models.DoneModel,
            if_match=if_match,
            key=key,
        )
        return found

    def remove_pin(
        self, thread: str, *, at: str = "HEAD", reason: str | None = None, if_match: str = "", key: str = ""
    ) -> models.DoneModel:
        """Remove a pin of a checkpoint, or all that it has."""
        params = inputs.PinParams(thread=thread, at=at, reason=reason)
        found: models.DoneModel = self.send(
            "DELETE", "/threads/{thread}/pins", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def prune(
        self,
        threads: list[str],
        *,
        keep_last: int | None = None,
        keep_within: str | None = None,
        dry_run: bool = True,
        if_match: str = "",
        key: str = "",
    ) -> models.PruneReportModel:
        """Remove old checkpoints of some threads, or, with `dry_run`, say what would be removed."""
        params = inputs.NoParams()
        found: models.PruneReportModel = self.send(
            "POST",
            "/prunes",
            params,
            inputs.PruneRequest(threads=threads, keep_last=keep_last, keep_within=keep_within, dry_run=dry_run),
            models.PruneReportModel,
            if_match=if_match,
            key=key,
        )
        return found

    def delete_thread(self, thread: str, confirm: str, *, if_match: str = "", key: str = "") -> models.DoneModel:
        """Delete a thread with everything that belongs to it; `confirm` repeats its name."""
        params = inputs.DeletionParams(thread=thread, confirm=confirm)
        found: models.DoneModel = self.send(
            "DELETE", "/threads/{thread}", params, None, models.DoneModel, if_match=if_match, key=key
        )
        return found

    def call_read(
        self,
        part: str,
        operation: str,
        *,
        names: list[Any] | None = None,
        arguments: list[Any] | None = None,
        options: dict[str, Any] | None = None,
        identity: str = "",
    ) -> models.CallResultModel:
        """Call an operation of the Python API that reads."""
        params = inputs.CallParams(part=part, operation=operation)
        found: models.CallResultModel = self.send(
            "POST",
            "/reads/{part}/{operation}",
            params,
            inputs.CallRequest(names=names or [], arguments=arguments or [], options=options or {}, identity=identity),
            models.CallResultModel,
        )
        return found

    def call_change(
        self,
        part: str,
        operation: str,
        *,
        names: list[Any] | None = None,
        arguments: list[Any] | None = None,
        options: dict[str, Any] | None = None,
        identity: str = "",
        if_match: str = "",
        key: str = "",
    ) -> models.CallResultModel:
        """Call an operation of the Python API that changes something. Conditions are among its arguments."""
        params = inputs.CallParams(part=part, operation=operation)
        found: models.CallResultModel = self.send(
            "POST",
            "/changes/{part}/{operation}",
            params,
            inputs.CallRequest(names=names or [], arguments=arguments or [], options=options or {}, identity=identity),
            models.CallResultModel,
            if_match=if_match,
            key=key,
        )
        return found
