"""The responses of the HTTP API. The OpenAPI document and the client are generated from these classes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")


class Model(msgspec.Struct, kw_only=True):
    """A response, or a part of one."""


class PageModel(Model, Generic[T]):
    """A page of a list. `next` is the cursor of the page that follows; None on the last one."""

    items: list[T]
    next: str | None


class Problem(Model):
    """An error, as RFC 9457 has it, with the code, the place and the hint that the command line reports."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    where: str = ""
    hint: str = ""
    current: str | None = None
    """Of a stale change: the id of the checkpoint that is HEAD now."""
    diff: DiffModel | None = None
    """Of a stale change: what changed since the caller read."""


class ServiceInfoModel(Model):
    """The server, the store that it serves, and who asks."""

    version: str
    store: str
    tenant: str
    writable: bool
    identity: str
    """Empty for the store's owner."""


class ThreadModel(Model):
    """A thread, or another line."""

    thread: str
    name: str
    kind: str
    created: datetime
    updated: datetime
    steps: int
    branches: int
    bytes: int
    latest: str | None
    damaged: bool


class BranchModel(Model):
    """A branch of a thread."""

    branch: int
    name: str
    base: str | None
    created: datetime
    head: str | None
    ahead: int
    current: bool


class BranchListModel(Model):
    """The branches of a thread."""

    items: list[BranchModel]


class PinInfoModel(Model):
    """A pin of a checkpoint."""

    id: str
    reason: str
    time: datetime


class HoldInfoModel(Model):
    """A hold of a thread."""

    thread: str
    reason: str
    time: datetime


class ThreadDetailModel(Model):
    """A thread with its branches, tags, labels, pins and holds."""

    thread: ThreadModel
    owner: str
    head: CheckpointModel | None
    branches: list[BranchModel]
    tags: dict[str, str]
    labels: dict[str, list[str]]
    pins: list[PinInfoModel]
    holds: list[HoldInfoModel]


class CheckpointModel(Model):
    """A checkpoint, without its state."""

    thread: str
    id: str
    parent: str | None
    merged: str | None
    branch: int
    step: int
    time: datetime
    kind: str
    hash: str
    metadata: dict[str, Any]
    stamp: str
    schema: str
    actor: str
    correlation: str
    cause: str


class CheckpointDetailModel(Model):
    """A checkpoint with what refers to it, and the names of its channels."""

    checkpoint: CheckpointModel
    branch_name: str
    revision: str
    tags: list[str]
    labels: list[str]
    pins: list[PinInfoModel]
    channels: list[str]
    pending: list[PendingWriteModel]


class PendingWriteModel(Model):
    """A value that a task wrote after a checkpoint, before the next one includes it."""

    task_id: str
    channel: str
    interrupt: bool
    value: Any
    """None if it is large; `preview` shows its start."""
    preview: str


class LogEntryModel(Model):
    """A checkpoint in a log."""

    id: str
    short: str
    revision: str
    branch: int
    branch_name: str
    step: int
    time: datetime
    kind: str
    hash: str
    position: str
    parents: list[str]
    """The positions of the parents."""
    parent_ids: list[str | None]
    head: bool
    branches: list[str]
    tags: list[str]
    labels: list[str]
    damage: str
    summary: list[str]
    message: str
    metadata: dict[str, Any]
    matches: bool


class ValueNodeModel(Model):
    """A value of a state: its kind, its size, and how it begins."""

    path: str
    key: str
    kind: Literal["object", "array", "string", "number", "boolean", "null", "large"]
    type: str
    """The type in Python, where that is not the usual one of the kind."""
    length: int | None
    bytes: int | None
    preview: str
    complete: bool
    """Whether the preview is the whole value."""


class ValuePartModel(Model):
    """A value, with a page of the values that it contains."""

    node: ValueNodeModel
    value: Any
    """The value as plain JSON; None if it is large."""
    items: list[ValueNodeModel]
    start: int
    total: int


class ToolCallModel(Model):
    """A call of a tool in a message."""

    id: str
    name: str
    arguments: str


class MessageModel(Model):
    """A message of a conversation."""

    index: int
    path: str
    role: str
    name: str
    text: str
    complete: bool
    tool_calls: list[ToolCallModel]
    tool_call_id: str
    images: list[str]
    """Small images in the message, as `data:` URLs."""
    not_shown: list[str]
    """Other images in the message: their addresses, which are not fetched, or their types."""


class ConversationModel(Model):
    """Messages of a state, the oldest first."""

    channel: str | None
    items: list[MessageModel]
    start: int
    total: int


class DiffSideModel(Model):
    """A side of a comparison."""

    thread: str
    id: str
    branch: int
    step: int
    time: datetime | None


class ChannelSummaryModel(Model):
    """How much of a channel differs."""

    channel: str
    kind: Literal["add", "remove", "change", "move"]
    added: int
    changed: int
    removed: int
    moved: int


class ChangeModel(Model):
    """A difference between two states."""

    kind: Literal["add", "remove", "change", "move"]
    path: str
    was: str
    old: str | None
    """The value as text, or as JSON on several lines; None where there is none."""
    new: str | None
    words: list[tuple[str, str]]
    """Of two texts, their words: `=` in both, `-` in the old, `+` in the new."""
    complete: bool


class DiffModel(Model):
    """The difference between two states."""

    old: DiffSideModel | None
    new: DiffSideModel | None
    summary: list[ChannelSummaryModel]
    changes: list[ChangeModel]
    total: int
    """How many changes there are, also those that are left out."""


class WriterModel(Model):
    """The checkpoint that wrote a value; without an id, one that was pruned."""

    id: str
    branch: int
    step: int
    time: datetime | None
    kind: str
    by: str


class BlameEntryModel(Model):
    """A value, and the checkpoint that wrote it."""

    path: str
    preview: str
    writer: WriterModel


class ValueChangeModel(Model):
    """A checkpoint that changed a value, and the changes."""

    writer: WriterModel
    changes: list[ChangeModel]


class SearchHitModel(Model):
    """A text that matches."""

    path: str
    role: str
    excerpt: str
    spans: list[tuple[int, int]]


class SearchMatchModel(Model):
    """A checkpoint that matches."""

    thread: str
    id: str
    time: datetime
    step: int
    branch: int
    kind: str
    hits: list[SearchHitModel]
    more: int


class SearchPageModel(Model):
    """Checkpoints that match."""

    items: list[SearchMatchModel]
    next: str | None
    how: str
    examined: int
    stopped: bool


class ScopeModel(Model):
    """A scope that has state."""

    scope: str
    keys: int
    version: int
    updated: datetime


class StateItemModel(Model):
    """A key of a scope, and its value as plain JSON."""

    key: str
    value: Any
    version: int
    expires: datetime | None


class KeyChangeModel(Model):
    """A change of a key."""

    key: str
    action: str
    before: int
    version: int
    time: datetime
    actor: str
    correlation: str
    id: str


class SessionModel(Model):
    """A session."""

    id: str
    scope: str
    status: str
    user: str | None
    owner: str | None
    started: datetime
    ended: datetime | None
    reason: str
    metadata: dict[str, Any]


class ArtifactModel(Model):
    """An artifact."""

    id: str
    type: str
    producer: str
    name: str
    sha256: str
    size: int
    created: datetime
    metadata: dict[str, Any]
    uri: str
    stored: bool
    by: str


class AgentModel(Model):
    """An agent."""

    id: str
    kind: str
    status: str
    state: str
    version: int
    created: datetime
    updated: datetime
    messages: int
    metadata: dict[str, Any]
    damaged: bool
    pending: str


class TransitionModel(Model):
    """A change of an agent: a transition, a change of its status, or a recovery."""

    kind: str
    trigger: str
    source: str
    target: str
    outcome: str
    time: datetime
    duration: float
    error: str
    actor: str
    checkpoint: str


class JobRunModel(Model):
    """A run of a job."""

    started: datetime
    ended: datetime | None
    outcome: str
    message: str


class JobModel(Model):
    """A scheduled job."""

    name: str
    kind: str
    schedule: str
    paused: bool
    due: datetime | None
    failures: int
    runs: list[JobRunModel]


class JobListModel(Model):
    """The jobs of a store."""

    items: list[JobModel]


class CheckModel(Model):
    """A check of the doctor. `holdfast explain CODE` explains its code."""

    code: str
    level: Literal["ok", "note", "warning", "problem"]
    found: str
    remedy: str


class DoctorModel(Model):
    """The checks of the doctor. `ok` says whether there is nothing to do."""

    ok: bool
    items: list[CheckModel]


class AlertModel(Model):
    """An alert: a rule, its state, and what is wrong."""

    rule: str
    state: Literal["ok", "pending", "firing", "resolved"]
    severity: str
    about: str
    message: str
    since: datetime | None
    silenced_until: datetime | None


class AlertListModel(Model):
    """The alerts of all rules."""

    items: list[AlertModel]


class HealthModel(Model):
    """Whether the server is alive, or ready to serve."""

    status: Literal["ok", "unavailable"]


class FindingModel(Model):
    """Something that is not as it should be."""

    code: str
    message: str
    thread: str
    checkpoint: str


class VerifyReportModel(Model):
    """The result of a verification; `next` is where to continue."""

    ok: bool
    level: str
    threads: int
    agents: int
    scopes: int
    steps: int
    bytes: int
    seconds: float
    found: int
    findings: list[FindingModel]
    next: str | None


class AuditRecordModel(Model):
    """A record of the audit."""

    time: datetime
    kind: str
    actor: str
    action: str
    scope: str
    key: str
    outcome: str
    correlation: str
    duration: float
    detail: dict[str, Any]
    id: str


class StatsModel(Model):
    """Statistics of the store."""

    url: str
    bytes: int
    threads: int
    agents: int
    scopes: int
    system: int
    damaged: int
    complete: bool


class PruneReportModel(Model):
    """What was pruned, or would be."""

    dry_run: bool
    threads: int
    kept: int
    dropped: int
    rows: int
    bytes: int


class CallResultModel(Model):
    """The result of a call of the Python API, in the form of `Codec.to_json`."""

    result: Any


class DoneModel(Model):
    """A change that has no other result, or the ids that it concerned."""

    ids: list[str] = []


class CountModel(Model):
    """How many a change concerned."""

    count: int


class StoreChangesModel(Model):
    """What changed in the store: names of threads, ids of agents, and scopes. If it is not complete, anything may have
    changed."""

    threads: list[str]
    agents: list[str]
    scopes: list[str]
    complete: bool
