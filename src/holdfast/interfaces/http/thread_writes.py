"""Operations of the API that change threads: fork, restore, merge, switch, tags, labels, pins, pruning, deletion."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http import inputs, models
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import to_checkpoint, to_diff
from holdfast.store import Path, Thread

WRITES = RouteTable()


def _open(call: Call, name: str) -> Thread[Any]:
    """Return the thread to change. With If-Match, HEAD must still be a checkpoint that it names."""
    thread = call.store.thread(name)
    if call.if_match:
        head = thread.resolve().id
        if head not in call.if_match:
            try:
                diff = to_diff(thread.diff(call.if_match[0], head).without_internal())
            except NotFoundError:  # it was pruned, or never was
                diff = None
            raise StaleError(head, diff)
    return thread


@WRITES.post("/threads/{thread}/forks")
def fork(call: Call, params: inputs.ThreadParams, body: inputs.ForkRequest) -> models.BranchModel:
    """Start a branch at a checkpoint, perhaps with an edited state."""
    thread = _open(call, params.thread)
    changes: dict[Path, Any] = {path: value for path, value in body.changes.items()}  # noqa: C416 - of another type
    made = thread.fork(body.branch, body.at, changes=changes, remove=body.remove)
    return models.BranchModel(**made._asdict())


@WRITES.post("/threads/{thread}/restores")
def restore(call: Call, params: inputs.ThreadParams, body: inputs.RestoreRequest) -> models.CheckpointModel:
    """Save a new checkpoint with the state of an older one."""
    return to_checkpoint(_open(call, params.thread).restore(body.at, branch=body.branch))


@WRITES.post("/threads/{thread}/merges")
def merge(call: Call, params: inputs.ThreadParams, body: inputs.MergeRequest) -> models.CheckpointModel:
    """Merge a branch, or any revision, into another branch."""
    rules: dict[str, Any] = {**body.resolve}
    thread = _open(call, params.thread)
    return to_checkpoint(thread.merge(body.theirs, body.into, strategy=body.strategy, resolve=rules or None))


@WRITES.post("/threads/{thread}/switches")
def switch(call: Call, params: inputs.ThreadParams, body: inputs.SwitchRequest) -> models.CheckpointModel:
    """Make a branch the current one."""
    return to_checkpoint(_open(call, params.thread).switch(body.branch))


@WRITES.delete("/threads/{thread}/branches/{branch}")
def delete_branch(call: Call, params: inputs.BranchParams) -> models.DoneModel:
    """Delete a branch with the checkpoints that only it has."""
    thread = _open(call, params.thread)
    return models.DoneModel(ids=thread.delete_branch(params.branch, force=params.force, dry_run=params.dry_run))


@WRITES.put("/threads/{thread}/tags/{tag}")
def set_tag(call: Call, params: inputs.TagParams, body: inputs.TagRequest) -> models.DoneModel:
    """Tag a checkpoint."""
    _open(call, params.thread).tag(params.tag, body.at, move=body.move)
    return models.DoneModel()


@WRITES.delete("/threads/{thread}/tags/{tag}")
def remove_tag(call: Call, params: inputs.TagParams) -> models.DoneModel:
    """Remove a tag; the checkpoint stays."""
    _open(call, params.thread).untag(params.tag)
    return models.DoneModel()


@WRITES.put("/threads/{thread}/labels/{label}")
def add_label(call: Call, params: inputs.LabelParams, body: inputs.LabelRequest) -> models.DoneModel:
    """Label a checkpoint."""
    _open(call, params.thread).label(params.label, body.at)
    return models.DoneModel()


@WRITES.delete("/threads/{thread}/labels/{label}")
def remove_label(call: Call, params: inputs.LabelRemovalParams) -> models.DoneModel:
    """Remove a label from one checkpoint, or from all of the thread."""
    _open(call, params.thread).unlabel(params.label, params.at)
    return models.DoneModel()


@WRITES.post("/threads/{thread}/pins")
def add_pin(call: Call, params: inputs.ThreadParams, body: inputs.PinRequest) -> models.DoneModel:
    """Protect a checkpoint from pruning."""
    return models.DoneModel(ids=[_open(call, params.thread).pin(body.at, reason=body.reason)])


@WRITES.delete("/threads/{thread}/pins")
def remove_pin(call: Call, params: inputs.PinParams) -> models.DoneModel:
    """Remove a pin of a checkpoint, or all that it has."""
    return models.DoneModel(ids=[_open(call, params.thread).unpin(params.at, reason=params.reason)])


@WRITES.post("/prunes", status=200)
def prune(call: Call, params: inputs.NoParams, body: inputs.PruneRequest) -> models.PruneReportModel:  # noqa: ARG001
    """Remove old checkpoints of some threads, or, with `dry_run`, say what would be removed."""
    rules = {"keep_last": body.keep_last, "keep_within": body.keep_within}
    given = {name: value for name, value in rules.items() if value is not None}
    if not given or not body.threads:
        raise InvalidError("pruning needs threads, and a rule: keep_last or keep_within")
    report = call.owned.maintenance.prune(body.threads, dry_run=body.dry_run, **given)  # type: ignore[arg-type]
    return models.PruneReportModel(
        dry_run=report.dry_run,
        threads=len(report.threads),
        kept=report.kept,
        dropped=report.dropped,
        rows=report.rows,
        bytes=report.bytes,
    )


@WRITES.delete("/threads/{thread}")
def delete_thread(call: Call, params: inputs.DeletionParams) -> models.DoneModel:
    """Delete a thread with everything that belongs to it; `confirm` repeats its name."""
    if params.confirm != params.thread:
        raise InvalidError("a thread is deleted only if confirm repeats its name")
    deleted = _open(call, params.thread).delete()
    return models.DoneModel(ids=[params.thread] if deleted else [])
