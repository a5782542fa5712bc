"""The input of readable rows: steps about to be stored, and where the items of their lists come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from msgspec.json import decode

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Backend, Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import (
    BEHIND,
    BY_CHECKPOINT,
    CONVERSATION_HISTORY,
    HEADS,
    STATE_VALUES,
    STEPS,
    TRANSITIONS,
    Key,
    Scalar,
    Table,
)
from holdfast.codec.plain_json import to_plain
from holdfast.engine.lines import MAIN
from holdfast.engine.model.operations import EditList, KeepRun, Operation
from holdfast.engine.model.operations import Set as SetValue
from holdfast.engine.model.scopes import unquoted
from holdfast.engine.model.steps import Step, StepHeader
from holdfast.engine.namespaces import AGENTS, CONTENT_KINDS, line_kind
from holdfast.engine.projection.rendering import (
    CAP,
    CONVERSATION,
    RenderedMessage,
    clean_text,
    key_text,
    time_text,
    to_text,
)
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef, open_body
from holdfast.engine.state_loader import LoadedState
from holdfast.errors import CorruptError, TooDeepError

NO_CHANNELS: Mapping[str, tuple[str, int]] = {}


class ProjectedStep(NamedTuple):
    """A step that is about to be stored."""

    info: LineInfo
    point: StepRef
    step: Step
    loaded: LoadedState
    parent: StepRef | None
    branches: Sequence[Branch]
    """Branches that are created or renamed together with it."""
    events: Sequence[Row] = ()
    """The events of an agent that are stored together with it."""


class Head(NamedTuple):
    """The columns of a row of `heads`."""

    agent: str
    type: str
    status: str
    state: str
    checkpoint: str
    parent: str
    kind: str
    created: str
    time: str
    steps: int
    hash: str
    version: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Head | None:
        """Return the columns of a row that was read, if there is one."""
        return cls(*rows[0].columns) if rows else None  # type: ignore[arg-type]


class ProjectedThread(NamedTuple):
    """The stored rows of a thread: its row, if any; of each channel, how it is shown and how many items it has."""

    row: Head | None
    channels: Mapping[str, tuple[str, int]]
    version: int
    """The version of the line that has these names of branches."""
    names: Mapping[int, str]

    @property
    def checkpoint(self) -> str:
        return "" if self.row is None else self.row.checkpoint

    @property
    def hash(self) -> str:
        return "" if self.row is None else self.row.hash

    def label(self, number: int) -> str:
        """Return the label of a branch."""
        name = self.names.get(number, "")
        if not name and not number and MAIN.name not in self.names.values():
            return MAIN.name
        return name or f"branch {number}"


@dataclass
class RowChanges:
    """The changes that bring a thread's rows up to date, and the rows afterwards."""

    line: Line
    changes: list[Change] = field(default_factory=list)
    after: ProjectedThread | None = None

    def put(self, space: Table, key: Key, *columns: Scalar) -> None:
        """Write a row."""
        self.changes.append(Put(space, Row((*self.line, *key), columns)))

    def put_message(self, channel: str, number: int, message: RenderedMessage, point: StepRef) -> None:
        """Add the row of a message that a step wrote."""
        said = message.role, message.name, message.content, message.tool_calls
        by = point.id, time_text(point.time)
        self.put(CONVERSATION_HISTORY, (channel, number), agent_id(self.line), *said, *by, message.json)

    def shorten(self, channel: str, shown_as: tuple[str, int], length: int) -> None:
        """Remove the messages of a channel from a number on."""
        kind, items = shown_as
        if kind != CONVERSATION:
            return
        if not length:
            self.changes.append(Delete(CONVERSATION_HISTORY, (*self.line, channel)))
            return
        self.changes += (Delete(CONVERSATION_HISTORY, (*self.line, channel, number)) for number in range(length, items))


class NewItems(NamedTuple):
    """A number of items that a step added."""

    step: int
    length: int


Piece = KeepRun | NewItems

NOBODY = StepRef(0, 0, "", 0, 0, b"", 0, "", "", 0, 0)


def first_step(line: Line) -> Scan:
    return Scan(STEPS, tuple(line), limit=1, bodies=False)


def clear_state(line: Line) -> list[Change]:
    """Return the changes that remove a thread's state from the rows."""
    return [Delete(space, tuple(line)) for space in (HEADS, STATE_VALUES, CONVERSATION_HISTORY)]


def chain_to(steps: Sequence[ProjectedStep], latest: ProjectedStep) -> list[ProjectedStep]:
    """Return those of some steps that lead to one of them."""
    by_hash = {each.point.hash: each for each in steps}
    chain = [latest]
    while (parent := chain[0].parent) is not None and parent.hash in by_hash:
        chain.insert(0, by_hash[parent.hash])
    return chain


def operations_by_channel(chain: Sequence[ProjectedStep]) -> dict[bytes, list[tuple[int, Operation | None]]]:
    """Return the operations of steps on each channel, since it was last set as a whole; None where it is removed."""
    operations: dict[bytes, list[tuple[int, Operation | None]]] = {}
    for number, each in enumerate(chain):
        for key in each.step.edit.removed:
            operations[key] = [(number, None)]
        for key, operation in each.step.edit.put:
            if isinstance(operation, SetValue):
                operations[key] = []
            operations.setdefault(key, []).append((number, operation))
    return operations


def edit_pieces(pieces: Sequence[Piece], edit: EditList, step: int) -> list[Piece]:
    """Return where each item of a list comes from after a step."""
    edited_pieces: list[Piece] = []
    for part in edit.parts:
        if isinstance(part, KeepRun):
            edited_pieces += _slice_pieces(pieces, part.start, part.length)
        else:
            edited_pieces.append(NewItems(step, len(part) if type(part) is tuple else 1))
    return edited_pieces


def _slice_pieces(pieces: Iterable[Piece], start: int, length: int) -> Iterator[Piece]:
    for piece in pieces:
        count = piece.length
        low, high = max(start, 0), min(start + length, count)
        if low < high:
            yield (
                KeepRun(piece.start + low, high - low)
                if isinstance(piece, KeepRun)
                else NewItems(piece.step, high - low)
            )
        start -= count


def is_shown(line: Line) -> bool:
    """Return whether a line has readable rows: threads, agents, scopes and sessions do, and the store's own records,
    such as the audit and the ledger of erasures, do not."""
    return line_kind(line.name) in CONTENT_KINDS


def has_transitions(line: Line) -> bool:
    """Return whether a line is that of an agent, whose steps may record transitions."""
    return line.name.startswith(AGENTS)


def agent_id(line: Line) -> str:
    """Return the id of the agent whose line it is; empty if it is none's."""
    return clean_text(unquoted(line.name.removeprefix(AGENTS))) if line.name.startswith(AGENTS) else ""


def agent_columns(line: Line, changes: Iterable[Change], before: Head | None) -> tuple[str, str, str, str]:
    """Return an agent's columns of its row in `heads`: as the values that are written say, or else as before."""
    id = agent_id(line)
    if not id:
        return "", "", "", ""
    shown = {"class": "", "status": "", "state": ""}
    if before is not None:
        shown = {"class": before.type, "status": before.status, "state": before.state}
    for change in changes:
        if isinstance(change, Put) and change.space is STATE_VALUES and (name := str(change.row.key[2])) in shown:
            value = decode(str(change.row.columns[-1]))
            shown[name] = value if isinstance(value, str) else ""
    return id, shown["class"], shown["status"], shown["state"]


def transition_columns(line: Line, event: Row, max_bytes: int) -> tuple[Scalar, ...] | None:
    """Return the columns of the transition that an event records; None if it is about something else."""
    time, kind, actor, action, _, outcome, _, _, duration = event.columns
    if kind != "transition":
        return None
    try:
        plain = to_plain(open_body(event, max_bytes)) if event.body else {}
    except (CorruptError, TooDeepError):
        plain = {}
    detail = plain if type(plain) is dict else {}
    data = to_text(detail.get("data"))
    return (
        agent_id(line),
        *(clean_text(str(detail.get(name) or "")) for name in ("from", "to")),
        clean_text(str(action)),
        time_text(int(time)),
        "true" if outcome == "ok" else "false",
        clean_text(str(detail.get("error") or ""))[:CAP],
        data if len(data) <= CAP else "null",
        clean_text(str(actor)),
        to_text(int(duration) / 1e9),
    )


def entries_of(header: StepHeader) -> Iterator[tuple[str, str]]:
    """Yield the entries of a step's metadata, as text."""
    try:
        plain = to_plain(header.metadata)
    except TooDeepError:
        return
    entries = plain if type(plain) is dict else {"": plain}
    keys: set[str] = set()
    for name, value in entries.items():
        key, text = key_text(name), to_text(value)
        if key not in keys:
            keys.add(key)
            yield key, text if len(text) <= CAP else "null"


async def transitions(backend: Backend, line: Line) -> list[Row]:
    """Return the readable rows of a thread's steps."""
    (rows,) = await backend.read([Scan(TRANSITIONS, tuple(line))])
    return rows


async def relabelled(backend: Backend, line: Line, branch: Branch) -> list[Change]:
    """Return the changes of rows when a branch is renamed, whether or not rows are written by this store."""
    heads, transitions = await backend.read([Get(HEADS, [tuple(line)]), Scan(TRANSITIONS, tuple(line))])
    rows = RowChanges(line)
    # A writer of rows may not know the new name yet.
    rows.changes.append(Expect(HEADS, tuple(line), Head.of(heads)))
    label = ProjectedThread(None, NO_CHANNELS, 0, {branch.branch: branch.name}).label(branch.branch)
    for row in transitions:
        parent, _, number, *rest = row.columns
        if number == branch.branch:
            rows.put(TRANSITIONS, row.key[2:], parent, label, number, *rest)
    return rows.changes


async def without(
    backend: Backend, line: Line, ids: Set[str], branches: Iterable[Branch], transitions: Sequence[Row]
) -> list[Change]:
    """Return the changes of rows when steps are pruned, whether or not rows are written by this store.

    `branches` are those that remain, `transitions` the rows of all steps when the selection was made.

    If the checkpoint that is shown is pruned, nothing is shown of the thread until `Projector.follow`.
    """
    own = tuple(line)
    heads, *tables = await backend.read(
        [Get(HEADS, [own]), *(Scan(table, own) for table in (STATE_VALUES, CONVERSATION_HISTORY, BEHIND))]
    )
    values, talk, marks = tables
    rows = RowChanges(line)
    rows.changes += (Delete(BEHIND, mark.key) for mark in marks if mark.key[2] in ids)
    rows.changes.append(Expect(HEADS, tuple(line), Head.of(heads)))
    if not heads and not transitions:
        return rows.changes
    remaining = ProjectedThread(None, NO_CHANNELS, 0, {each.branch: each.name for each in branches})
    for row in transitions:
        if row.key[2] in ids:
            rows.changes += (Delete(table, row.key) for table in BY_CHECKPOINT)
            continue
        parent, branch, number, *rest = row.columns
        now = ("" if parent in ids else parent, remaining.label(int(number)))
        if now != (parent, branch):
            rows.put(TRANSITIONS, row.key[2:], *now, number, *rest)
    head = Head.of(heads)
    if head is None or head.checkpoint in ids:
        return rows.changes + clear_state(line)
    if head.parent in ids:
        rows.put(HEADS, (), *head._replace(parent="", version=head.version + 1))
    for space, stored in ((STATE_VALUES, values), (CONVERSATION_HISTORY, talk)):
        column = list(space.columns).index("checkpoint")
        for row in stored:
            if row.columns[column] in ids:
                rows.put(space, row.key[2:], *row.columns[:column], "", *row.columns[column + 1 :])
    return rows.changes
