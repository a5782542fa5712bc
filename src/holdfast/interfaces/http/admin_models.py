"""Responses about agents, artifacts, hooks, recorded runs, schemas, keys, erasure and backups."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from holdfast.interfaces.http.models import AgentModel, MessageModel, Model


class AgentDetailModel(Model):
    """An agent as it was saved, as plain JSON."""

    agent: AgentModel
    schema: str
    configuration: dict[str, Any]
    fields: dict[str, Any]
    context: dict[str, Any]
    tools: dict[str, Any]
    workflow: dict[str, Any]


class RecoveryModel(Model):
    """A change of an agent that was found half-done, and how it was resolved."""

    agent: str
    kind: str
    resolved: Literal["back", "forward", "none"]
    time: datetime
    since: datetime
    version: int


class StepModel(Model):
    """A durable step of an agent. If no process runs one that is `running`, its outcome is unknown."""

    key: str
    state: Literal["running", "waiting", "done", "failed"]
    attempts: int
    function: str
    idempotency_key: str
    started: datetime
    ended: datetime | None
    agent_version: int
    error: str
    error_kind: str
    resolved: str
    """How an unknown outcome was resolved: `retry`, `decided` or `by hand`."""
    by: str
    due: datetime | None
    lease: float


class TimerModel(Model):
    """A timer of an agent, or a sleep, which has no signal."""

    name: str
    due: datetime
    signal: str
    value: Any
    """None if it is large."""


class TimerListModel(Model):
    """The timers and sleeps of an agent."""

    items: list[TimerModel]


class SignalModel(Model):
    """A signal that waits for an agent."""

    name: str
    value: Any
    """None if it is large."""
    id: str
    time: datetime
    actor: str
    correlation: str


class SignalListModel(Model):
    """The signals that wait for an agent."""

    items: list[SignalModel]


class SentSignalModel(Model):
    """Whether a signal is new: one whose id was sent before is not sent again."""

    new: bool


class TimelineEventModel(Model):
    """Something that happened."""

    time: datetime
    kind: str
    action: str
    scope: str
    key: str
    actor: str
    outcome: str
    duration: float
    correlation: str
    cause: str
    id: str
    number: int
    summary: str
    detail: dict[str, Any]
    trace_id: str
    span_id: str


class CausalNodeModel(Model):
    """A step in a tree of causes or effects, with its depth. Nodes follow what they belong to."""

    depth: int
    id: str
    events: list[TimelineEventModel]
    more: bool


class CausalTreeModel(Model):
    """A tree of causes or effects, each node before those that it leads to."""

    items: list[CausalNodeModel]


class ArtifactLinkModel(Model):
    """A change that was made with an artifact."""

    artifact: str
    scope: str
    key: str
    version: int
    id: str
    time: datetime


class HookExecutionModel(Model):
    """An execution of a hook."""

    hook: str
    scope: str
    key: str
    outcome: str
    time: datetime
    duration: float
    actor: str
    correlation: str
    cause: str
    id: str
    detail: dict[str, Any]
    reference: str
    """What names it."""


class UndeliveredCallModel(Model):
    """A call of a durable hook that was not delivered yet, or that was given up."""

    reference: str
    """What names it."""
    hook: str
    state: Literal["pending", "failed"]
    point: str
    scope: str
    key: str
    actor: str
    correlation: str
    id: str
    """The id of the step of the change."""
    created: datetime
    attempts: int
    due: datetime | None
    """When it is made again; null if a process is going to make it now, or it was given up."""
    error: str
    """The class of the error of the last attempt."""


class HookStatisticsModel(Model):
    """The recorded executions of a hook, summed up. Durations are in seconds."""

    hook: str
    calls: int
    failures: int
    vetoes: int
    changed: int
    skipped: int
    total: float
    average: float
    worst: float
    first: datetime
    last: datetime


class HookStatisticsListModel(Model):
    """The statistics of hooks, by name."""

    items: list[HookStatisticsModel]


class ReplayedCallModel(Model):
    """A replayed call of a hook beside the recorded one."""

    hook: str
    scope: str
    key: str
    recorded_outcome: str
    outcome: str
    recorded_seconds: float
    seconds: float
    diff: str
    effect: str
    """What the code was stopped from: using the network, writing a file, starting a process."""
    matches: bool


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


class DivergenceModel(Model):
    """Where a replay first differs from the recording."""

    kind: str
    what: str
    step: int
    task: str
    number: int
    diff: str


class ReplayReportModel(Model):
    """The result of a replay."""

    thread: str
    matches: bool
    steps: int
    calls: int
    seconds: float
    divergence: DivergenceModel | None
    divergences: int
    complete: bool
    note: str
    state: Any
    is_open: bool
    effects: list[str]
    """Everything that the code did beside its models and tools, with where."""


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


class KeyModel(Model):
    """A key of an encrypted store, without the key itself."""

    id: str
    kind: str
    number: int
    state: str
    master: str
    created: datetime
    lines: int
    destroyed_at: datetime | None


class KeyListModel(Model):
    """The keys of an encrypted store."""

    items: list[KeyModel]


class CertificateModel(Model):
    """A certificate of erasure."""

    id: str
    store: str
    tenant: str
    subject_salt: str
    subject_digest: str
    started: str
    finished: str
    erased: dict[str, int]
    rewritten: dict[str, int]
    keys_destroyed: int
    steps_removed: int
    retained: list[str]
    unreachable: list[str]
    public_key: str
    signature: str


class CertificateListModel(Model):
    """The certificates of all erasures."""

    items: list[CertificateModel]


class ErasureReportModel(Model):
    """What was erased of a person, or would be."""

    subject: str
    dry_run: bool
    erased: dict[str, int]
    rewritten: dict[str, int]
    names: list[str]
    held: list[str]
    steps: int
    keys: int
    certificate: CertificateModel | None


class BackupModel(Model):
    """A backup."""

    id: str
    number: int
    time: datetime
    lines: int
    added: int
    bytes: int
    seconds: float
    reason: str
    damaged: list[str]


class RepositoryModel(Model):
    """A repository of backups, by the jobs that use it."""

    name: str
    """The first job that uses it: the name of the repository in this API."""
    jobs: list[str]
    items: list[BackupModel]
    covered_from: datetime | None
    """The first moment to which the store can be restored."""
    covered_until: datetime | None
    """The last one."""
    problem: str
    """Why its backups cannot be listed; empty if they are."""


class RepositoryListModel(Model):
    """The repositories that jobs of the store use."""

    items: list[RepositoryModel]


class BackupFindingModel(Model):
    """A problem of a repository."""

    code: str
    what: str
    where: str
    backup: str
    thread: str


class RepositoryReportModel(Model):
    """The result of verifying a repository."""

    ok: bool
    backups: int
    packs: int
    lines: int
    bytes: int
    seconds: float
    findings: list[BackupFindingModel]


class LostDataModel(Model):
    """What a repair could not bring back."""

    what: str
    backup: str
    tenant: str
    thread: str


class BackupRepairModel(Model):
    """The result of repairing a repository."""

    rebuilt: list[str]
    lost: list[LostDataModel]
    backup: str
    """The backup that was then made of what the store has; empty if none."""


class DrillModel(Model):
    """The result of a recovery drill."""

    ok: bool
    backup: str
    lines: int
    steps: int
    compared: int
    findings: list[str]
    restore_seconds: float
    verify_seconds: float
    moment: datetime | None = None
    """The moment before the backup that was restored as well."""
