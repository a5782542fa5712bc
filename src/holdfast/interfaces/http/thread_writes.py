"""Operations of the API that change threads: fork, restore, merge, switch, tags, labels, pins, pruning, deletion."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http import models
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import RouteTable
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.thread_reads import to_diff
from holdfast.maintenance import PruneReport
from holdfast.store import BranchInfo, Checkpoint, Thread

WRITES = RouteTable()

_Resolutions = Annotated[
    dict[str, Literal["ours", "theirs", "union"]],
    msgspec.Meta(description="How to resolve conflicts at or below a path."),
]


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
def fork(
    call: Call,
    thread: str,
    *,
    branch: str,
    at: str = "HEAD",
    changes: dict[str, Any] | None = None,
    remove: list[str] | None = None,
) -> BranchInfo:
    """Start a branch at a checkpoint, perhaps with an edited state."""
    return _open(call, thread).fork(branch, at, changes=dict((changes or {}).items()), remove=remove or ())


@WRITES.post("/threads/{thread}/restores")
def restore(call: Call, thread: str, *, at: str, branch: str | None = None) -> Checkpoint[Any]:
    """Save a new checkpoint with the state of an older one."""
    return _open(call, thread).restore(at, branch=branch)


@WRITES.post("/threads/{thread}/merges")
def merge(
    call: Call,
    thread: str,
    *,
    theirs: str,
    into: str = "HEAD",
    strategy: Literal["ours", "theirs", "union"] | None = None,
    resolve: _Resolutions | None = None,
) -> Checkpoint[Any]:
    """Merge a branch, or any revision, into another branch."""
    rules: dict[str, Any] = {**(resolve or {})}
    return _open(call, thread).merge(theirs, into, strategy=strategy, resolve=rules or None)


@WRITES.post("/threads/{thread}/switches")
def switch(call: Call, thread: str, *, branch: str) -> Checkpoint[Any]:
    """Make a branch the current one."""
    return _open(call, thread).switch(branch)


@WRITES.delete("/threads/{thread}/branches/{branch}")
def delete_branch(
    call: Call, thread: str, branch: str, *, force: bool = False, dry_run: bool = False
) -> models.DoneModel:
    """Delete a branch with the checkpoints that only it has."""
    return models.DoneModel(ids=_open(call, thread).delete_branch(branch, force=force, dry_run=dry_run))


@WRITES.put("/threads/{thread}/tags/{tag}")
def set_tag(call: Call, thread: str, tag: str, *, at: str = "HEAD", move: bool = False) -> models.DoneModel:
    """Tag a checkpoint."""
    _open(call, thread).tag(tag, at, move=move)
    return models.DoneModel()


@WRITES.delete("/threads/{thread}/tags/{tag}")
def remove_tag(call: Call, thread: str, tag: str) -> models.DoneModel:
    """Remove a tag; the checkpoint stays."""
    _open(call, thread).untag(tag)
    return models.DoneModel()


@WRITES.put("/threads/{thread}/labels/{label}")
def add_label(call: Call, thread: str, label: str, *, at: str = "HEAD") -> models.DoneModel:
    """Label a checkpoint."""
    _open(call, thread).label(label, at)
    return models.DoneModel()


@WRITES.delete("/threads/{thread}/labels/{label}")
def remove_label(call: Call, thread: str, label: str, *, at: str | None = None) -> models.DoneModel:
    """Remove a label from one checkpoint, or from all of the thread."""
    _open(call, thread).unlabel(label, at)
    return models.DoneModel()


@WRITES.post("/threads/{thread}/pins")
def add_pin(call: Call, thread: str, *, at: str = "HEAD", reason: str = "") -> models.DoneModel:
    """Protect a checkpoint from pruning."""
    return models.DoneModel(ids=[_open(call, thread).pin(at, reason=reason)])


@WRITES.delete("/threads/{thread}/pins")
def remove_pin(call: Call, thread: str, *, at: str = "HEAD", reason: str | None = None) -> models.DoneModel:
    """Remove a pin of a checkpoint, or all that it has."""
    return models.DoneModel(ids=[_open(call, thread).unpin(at, reason=reason)])


@WRITES.post("/prunes", status=200)
def prune(
    call: Call,
    *,
    threads: list[str],
    keep_last: int | None = None,
    keep_within: str | None = None,
    dry_run: bool = True,
) -> PruneReport:
    """Remove old checkpoints of some threads, or, with `dry_run`, say what would be removed."""
    rules = {"keep_last": keep_last, "keep_within": keep_within}
    given = {name: value for name, value in rules.items() if value is not None}
    if not given or not threads:
        raise InvalidError("pruning needs threads, and a rule: keep_last or keep_within")
    return call.owned.maintenance.prune(threads, dry_run=dry_run, **given)  # type: ignore[arg-type]


@WRITES.delete("/threads/{thread}")
def delete_thread(call: Call, thread: str, *, confirm: str) -> models.DoneModel:
    """Delete a thread with everything that belongs to it; `confirm` repeats its name."""
    if confirm != thread:
        raise InvalidError("a thread is deleted only if confirm repeats its name")
    return models.DoneModel(ids=[thread] if _open(call, thread).delete() else [])
