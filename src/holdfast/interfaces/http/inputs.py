"""The parameters and bodies of requests. A field whose name is in the path of a route is a part of the path, and the
others are in the query."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
"""How many items a page has at most."""


class Input(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a request, or its body. A name that is not known is an error, and not ignored."""


class NoParams(Input):
    """No parameters."""


class PageParams(Input):
    """A page: at most `limit` items, from where the `next` of another page says."""

    limit: Limit = 100
    cursor: str | None = None


class ThreadsParams(PageParams):
    """Which threads to list."""

    prefix: str = ""
    where: str | None = None
    kind: Literal["thread", "agent", "scope", "session", "access", "audit", "system", "all"] = "thread"


class ThreadParams(Input):
    """A thread."""

    thread: str


class CheckpointParams(ThreadParams):
    """A checkpoint of a thread, by a revision: `HEAD`, `draft`, `#12`, `HEAD~2`, a tag, the start of an id."""

    at: str


class LogParams(ThreadParams):
    """Which checkpoints of a log to list, and from where on."""

    at: str | None = None
    all_branches: bool = False
    first_parent: bool = False
    where: str | None = None
    limit: Limit = 100
    cursor: str | None = None


class ValueParams(CheckpointParams):
    """A part of a state: the value at a path, and a page of what it contains. Without a path, the channels."""

    path: str = ""
    start: int = 0
    limit: Limit = 50
    internal: bool = False
    reveal: bool = False
    """Whether tokens of sensitive data are replaced by what they stand for. It needs the right `keys`, and is recorded
    in the audit."""


class ContentParams(CheckpointParams):
    """A value of a state, as a file."""

    path: str
    reveal: bool = False
    """Whether tokens of sensitive data are replaced by what they stand for. It needs the right `keys`, and is recorded
    in the audit."""


class MessagesParams(CheckpointParams):
    """Messages of a state: the last ones, or those from `start` on, of a channel or of the first that has any."""

    channel: str | None = None
    start: int | None = None
    limit: Limit = 50
    reveal: bool = False
    """Whether tokens of sensitive data are replaced by what they stand for. It needs the right `keys`, and is recorded
    in the audit."""


class DiffParams(ThreadParams):
    """Two checkpoints to compare; without `a`, the parent of `b`."""

    a: str | None = None
    b: str = "HEAD"
    other: str | None = None
    large: bool = False
    internal: bool = False


class PathParams(ThreadParams, kw_only=True):
    """A value of a state, in the history that leads to a checkpoint."""

    path: str
    at: str = "HEAD"
    limit: Limit = 100
    cursor: str | None = None


class SearchParams(Input):
    """A search for checkpoints."""

    query: str
    limit: Limit = 20
    cursor: str | None = None
    scan_limit: int = 10_000


class ScopesParams(PageParams):
    """Which scopes to list."""

    prefix: str = ""
    pattern: str = ""


class ScopeItemsParams(PageParams, kw_only=True):
    """Which keys of a scope to list, with their values."""

    scope: str
    prefix: str = ""


class KeyHistoryParams(PageParams, kw_only=True):
    """The changes of a key of a scope."""

    scope: str
    key: str


class ArtifactsParams(PageParams):
    """Which artifacts to list."""

    type: str | None = None
    producer: str | None = None


class AgentsParams(PageParams):
    """Which agents to list."""

    prefix: str = ""
    status: (
        Literal["created", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed"]
        | None
    ) = None
    state: str | None = None


class AgentParams(PageParams, kw_only=True):
    """An agent."""

    id: str


class VerifyParams(Input):
    """What to verify: a thread, or the whole store, and how far."""

    thread: str | None = None
    level: Literal["structure", "hashes", "decode"] = "hashes"
    after: str = ""
    limit: int = 1000


class AuditParams(PageParams):
    """Which records of the audit to list."""

    actor: str | None = None
    scope: str | None = None
    thread: str | None = None
    kind: str = ""
    action: str = ""
    outcome: str = ""
    since: str | None = None
    until: str | None = None


class EventParams(Input):
    """An event, by the id of the step that recorded it."""

    id: str


class TimelineParams(PageParams):
    """Which events of the timeline to list."""

    query: str = ""
    thread: str | None = None
    scope: str | None = None
    errors: bool = False
    since: str | None = None
    until: str | None = None
    oldest_first: bool = False


class StatsParams(Input):
    """How to count."""

    exact: bool = False


# Changes ----------------------------------------------------------------------------------------------------------


class ForkRequest(Input):
    """A branch to start: at a checkpoint, perhaps with an edited state."""

    branch: str
    at: str = "HEAD"
    changes: dict[str, Any] = {}
    remove: list[str] = []


class RestoreRequest(Input):
    """A checkpoint whose state is saved again."""

    at: str
    branch: str | None = None


class MergeRequest(Input):
    """A branch, or a revision, to merge into another."""

    theirs: str
    into: str = "HEAD"
    strategy: Literal["ours", "theirs", "union"] | None = None
    resolve: dict[str, Literal["ours", "theirs", "union"]] = {}
    """How to resolve conflicts at or below a path."""


class SwitchRequest(Input):
    """The branch to make the current one."""

    branch: str


class TagParams(ThreadParams, kw_only=True):
    """A tag of a thread."""

    tag: str


class TagRequest(Input):
    """The checkpoint that a tag names."""

    at: str = "HEAD"
    move: bool = False


class LabelParams(ThreadParams, kw_only=True):
    """A label of a thread."""

    label: str


class LabelRemovalParams(LabelParams):
    """A label to remove: from one checkpoint, or from all of the thread."""

    at: str | None = None


class LabelRequest(Input):
    """A checkpoint."""

    at: str = "HEAD"


class PinRequest(Input):
    """A pin."""

    at: str = "HEAD"
    reason: str = ""


class PinParams(ThreadParams):
    """A pin to remove."""

    at: str = "HEAD"
    reason: str | None = None


class BranchParams(ThreadParams, kw_only=True):
    """A branch of a thread."""

    branch: str
    force: bool = False
    dry_run: bool = False


class PruneRequest(Input):
    """Which checkpoints to keep. Nothing is removed unless `dry_run` is false."""

    threads: list[str]
    keep_last: int | None = None
    keep_within: str | None = None
    dry_run: bool = True


class DeletionParams(Input):
    """A thread to delete; its name is repeated in `confirm`."""

    thread: str
    confirm: str


class DoctorParams(Input):
    """How thorough the doctor is."""

    full: bool = False


class AlertParams(Input):
    """A rule of alerts."""

    rule: str


class SilenceRequest(Input):
    """For how long nothing is sent about a rule, such as `2h`; `0` to send again."""

    duration: str


# State, sessions, artifacts, agents -------------------------------------------------------------------------------


class CheckpointRequest(Input):
    """A state to save as a new checkpoint, as JSON."""

    state: dict[str, Any]
    tag: str | None = None
    branch: str | None = None
    metadata: dict[str, Any] = {}


class UpdateRequest(Input):
    """Changes of a state: values by path, and paths to remove."""

    changes: dict[str, Any] = {}
    remove: list[str] = []
    branch: str | None = None
    metadata: dict[str, Any] = {}


class KeyParams(Input):
    """A key of a scope. The global scope is named `global`."""

    scope: str
    key: str


class ItemRequest(Input):
    """The value of a key, as JSON, and how long it lasts, such as `2h`."""

    value: Any
    ttl: str | None = None


class IdPageParams(PageParams, kw_only=True):
    """The id of an artifact, and a page of what belongs to it."""

    id: str


class IdParams(Input):
    """The id of a session, an artifact or an agent."""

    id: str


class SessionRequest(Input):
    """A session to start."""

    session: str | None = None
    """Its id; by default, a new one."""
    user: str | None = None
    metadata: dict[str, Any] = {}
    ttl: str | None = None
    idle: str | None = None
    on_end: Literal["delete", "archive", "keep"] = "delete"


class EndRequest(Input):
    """Why a session ends."""

    reason: str = ""


class ResolutionRequest(Input):
    """How to resolve a change of an agent that is half-done."""

    how: Literal["back", "forward"]


class StepParams(IdParams, kw_only=True):
    """A durable step of an agent."""

    key: str


class StepResolutionRequest(Input):
    """What became of a durable step: its `result`, its `error`, or that it is to run again."""

    how: Literal["result", "error", "retry"]
    result: Any = None
    error: str | None = None


class TimerParams(IdParams, kw_only=True):
    """A timer of an agent, or a sleep by its key."""

    name: str


class TimerRequest(Input):
    """When a timer is due, such as `2h` or a time, and the signal that it sends: by default, of the timer's name."""

    when: str
    signal: str | None = None
    value: Any = None


class SignalsParams(IdParams):
    """Which signals that wait for an agent to list: all, or those of a name."""

    name: str | None = None


class SignalRequest(Input):
    """A signal to an agent."""

    name: str
    value: Any = None
    signal_id: str | None = None
    """One whose id was sent before is not sent again."""
    create: bool = False
    """Whether it is kept for an agent that does not exist yet."""


class AgentStateRequest(Input):
    """The state of an agent that has no class. What is null stays as it was."""

    type: str | None = None
    state: str | None = None
    data: dict[str, Any] | None = None


class TransitionRequest(Input):
    """A transition that an agent without a class took elsewhere, or that was refused there."""

    source: str
    target: str
    trigger: str = ""
    success: bool = True
    error: str = ""
    data: Any = None


# Hooks, jobs, erasure, backups ------------------------------------------------------------------------------------


class HookParams(PageParams):
    """Which executions of hooks to list."""

    hook: str | None = None
    scope: str | None = None
    key: str | None = None
    point: str | None = None
    failed: bool = False
    slower_than: str | None = None
    """A duration, such as `0.1s`."""
    since: str | None = None


class HookStatisticsParams(Input):
    """Which executions of hooks to summarize."""

    hook: str | None = None
    scope: str | None = None
    since: str | None = None


class HookExecutionParams(Input):
    """An execution of a hook, by its reference."""

    reference: str


class UndeliveredParams(PageParams):
    """Which undelivered calls of durable hooks to list."""

    hook: str | None = None
    state: Literal["pending", "failed"] | None = None


class RetryParams(Input):
    """Which calls of durable hooks that were given up to make soon: those of a hook, or all."""

    hook: str | None = None


class HookReplayRequest(Input):
    """How to replay a call of a hook."""

    value: Any = None
    """Given to the hook in place of the recorded value, if it is not null."""
    changes: dict[str, Any] | None = None
    """Others of `key`, `value`, `old`, `actor` and `metadata` than were recorded."""


class RecordingParams(ThreadParams):
    """Which checkpoints of a thread to look at for recorded calls: from one back, so many."""

    at: str | None = None
    limit: Limit = 50
    cursor: str | None = None


class ReplayRequest(Input):
    """What of a recorded thread to replay."""

    since: str | None = None
    """The checkpoint to replay from."""
    until: str | None = None
    """The checkpoint to replay up to."""
    changes: dict[str, Any] = {}
    """Results of calls to replace, by the names of the calls."""


class NameParams(Input):
    """The name of a job, or of a repository."""

    name: str


class ErasureRequest(Input):
    """Whose data to erase. Nothing is erased unless `dry_run` is false, and `confirm` repeats the name."""

    subject: str
    dry_run: bool = True
    confirm: str = ""


class BackupRequest(Input):
    """Why a backup is made."""

    reason: str = ""


class RepositoryParams(Input):
    """A repository, and how thoroughly it is verified."""

    name: str
    level: str | None = None


# Calls of the Python API ------------------------------------------------------------------------------------------


class CallParams(Input):
    """An operation of a part of the store."""

    part: str
    operation: str


class CallRequest(Input):
    """The arguments of a call, in the form of `Codec.to_json`."""

    names: list[Any] = []
    """Of a thread, its name; of a state, the text of its scope."""
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    identity: str = ""
    """For the store's owner: the identity to act as; empty for who makes the call."""
