"""Responses of the HTTP API that are no records of the library: combinations of them, and parts of values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.engine.types import BranchInfo, Checkpoint, ThreadInfo
from holdfast.history.blame import CheckpointRef
from holdfast.history.diff_result import ChannelChanges, DiffSide
from holdfast.history.search import SearchMatch
from holdfast.history.usage import Tokens
from holdfast.maintenance.doctor.result import CheckResult
from holdfast.maintenance.pins import HoldInfo, PinInfo
from holdfast.store.backup_records import BackupInfo
from holdfast.store.timeline.event import TimelineEvent


class Model(msgspec.Struct, kw_only=True):
    """A response, or a part of one."""


class Problem(Model):
    """An error, as RFC 9457 has it, with its code, place and hint."""

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


class ThreadDetailModel(Model):
    """A thread with its branches, tags, labels, pins and holds."""

    thread: ThreadInfo
    owner: str
    head: Checkpoint[Any] | None
    branches: list[BranchInfo]
    tags: dict[str, str]
    labels: dict[str, list[str]]
    pins: list[PinInfo]
    holds: list[HoldInfo]


class CheckpointDetailModel(Model):
    """A checkpoint with what refers to it, and the names of its channels."""

    checkpoint: Checkpoint[Any]
    branch_name: str
    revision: str
    tags: list[str]
    labels: list[str]
    pins: list[PinInfo]
    channels: list[str]
    pending: list[PendingWriteModel]


class PendingWriteModel(Model):
    """A value that a task wrote after a checkpoint, before the next one includes it."""

    task_id: str
    channel: str
    interrupt: bool
    error: bool
    """Whether it is the error that a task raised."""
    value: Any
    """None if it is large; `preview` shows its start."""
    preview: str


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


class MessageBlockModel(Model):
    """A part of a message besides its text, its images and its calls of tools."""

    kind: Literal["reasoning", "audio", "video", "file", "tool", "other"]
    name: str
    """The name of a file or tool, or its type."""
    text: str
    """What it says, as far as it is text."""


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
    failed: bool
    """Whether it is the result of a tool that failed."""
    images: list[str]
    """Small images in the message, as `data:` URLs."""
    not_shown: list[str]
    """Other images in the message: their addresses, which are not fetched, or their types."""
    blocks: list[MessageBlockModel]
    usage: Tokens | None
    model: str
    """The model that wrote it, as far as the message says so."""
    seconds: float | None
    """How long the model took, as far as the message says so."""


class ConversationModel(Model):
    """Messages of a state, the oldest first."""

    channel: str | None
    items: list[MessageModel]
    start: int
    total: int


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

    old: DiffSide | None
    new: DiffSide | None
    summary: list[ChannelChanges]
    changes: list[ChangeModel]
    total: int
    """How many changes there are, also those that are left out."""


class BlameEntryModel(Model):
    """A value, and the checkpoint that wrote it."""

    path: str
    preview: str
    writer: CheckpointRef


class ValueChangeModel(Model):
    """A checkpoint that changed a value, and the changes."""

    writer: CheckpointRef
    changes: list[ChangeModel]


class SearchPageModel(Model):
    """Checkpoints that match."""

    items: list[SearchMatch]
    next: str | None
    how: str
    examined: int
    stopped: bool


class DoctorModel(Model):
    """The checks of the doctor. `ok` says whether there is nothing to do."""

    ok: bool
    items: list[CheckResult]


class HealthModel(Model):
    """Whether the server is alive, or ready to serve."""

    status: Literal["ok", "unavailable"]


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
    """Changes in the store: names of threads, ids of agents, and scopes. If it is not complete, anything may have
    changed."""

    threads: list[str]
    agents: list[str]
    scopes: list[str]
    complete: bool


class SentSignalModel(Model):
    """Whether a signal is new: one whose id was sent before is not sent again."""

    new: bool


class CausalNodeModel(Model):
    """A step in a tree of causes or effects, with its depth. Nodes follow what they belong to."""

    depth: int
    id: str
    events: list[TimelineEvent]
    more: bool


class RecordedCallModel(Model):
    """A recorded call of a model, a tool or a function. Its input and its result are JSON; what is long is text, and
    cut."""

    name: str
    """Its task and its number, as reports of replays and `changes` name it."""
    kind: str
    called: str
    """The model's class, the tool or the function."""
    input: Any
    """For a model, its parameters, if they are not those of an earlier call."""
    messages: list[MessageModel]
    """The last messages that a model was given, of `given` in all."""
    given: int
    result: Any
    answer: MessageModel | None
    """The result as a message, if it is one."""
    error: str
    chunks: int
    """How many parts of a stream the result came in; 0 if it was not streamed."""
    ended: bool
    complete: bool
    """Whether the input and the result are here in full."""
    time: datetime | None = None
    """When it began; null if that was not recorded."""
    seconds: float = 0.0
    """How long it took."""


class RecordedTaskModel(Model):
    """A task of a recorded run, and what it called."""

    task: str
    mode: str
    """`full`; what was recorded in another mode cannot be replayed."""
    resumed: list[str]
    """The answers to its interrupts."""
    calls: list[RecordedCallModel]


class RecordedStepModel(Model):
    """The tasks that ran after a checkpoint, if they were recorded."""

    id: str
    step: int
    time: datetime
    seconds: float | None
    """The time until the next checkpoint, if that is known."""
    tasks: list[RecordedTaskModel]


class SchemaModel(Model):
    """A schema in a store: the version that is written now, and how many latest states there are of each."""

    name: str
    current: str
    pinned: bool
    states: dict[str, int]
    versions: list[str]
    """All versions that were registered."""
    threads: list[str]
    """The patterns of threads that it is attached to."""
    places: list[str]


class SchemaListModel(Model):
    """The schemas of a store, and the migrations that were applied."""

    items: list[SchemaModel]
    migrations: list[str]


class RepositoryModel(Model):
    """A repository of backups, by the jobs that use it."""

    name: str
    """The first job that uses it: the name of the repository in this API."""
    jobs: list[str]
    items: list[BackupInfo]
    covered_from: datetime | None
    """The first moment to which the store can be restored."""
    covered_until: datetime | None
    """The last one."""
    problem: str
    """Why its backups cannot be listed; empty if they are."""
