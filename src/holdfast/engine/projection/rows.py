"""What readable rows are made of: steps about to be stored, and where the items of their lists come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.backends.interface import Backend, Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import (
    AGENT_STATES,
    CONVERSATIONS,
    METADATA,
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
from holdfast.engine.model.steps import Step, StepHeader
from holdfast.engine.projection.rendering import CAP, key_text, to_text
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.errors import TooDeepError

NO_CHANNELS: Mapping[str, tuple[str, int]] = {}


class ProjectedStep(NamedTuple):
    """A step that is about to be stored: what rows are made of."""

    info: LineInfo
    point: StepRef
    step: Step
    loaded: LoadedState
    parent: StepRef | None
    branches: Sequence[Branch]
    """Those that are made, or get another name, together with it."""


class ProjectedThread(NamedTuple):
    """What the rows of a thread say: its row, if it has one; of each channel, how it is shown and how many items."""

    row: tuple[Scalar, ...] | None
    channels: Mapping[str, tuple[str, int]]
    version: int
    """Of the line, for which these are the names of its branches."""
    names: Mapping[int, str]

    @property
    def checkpoint(self) -> str:
        return "" if self.row is None else str(self.row[0])

    @property
    def hash(self) -> str:
        return "" if self.row is None else str(self.row[5])

    def label(self, number: int) -> str:
        """What a branch is called."""
        name = self.names.get(number, "")
        if not name and not number and MAIN.name not in self.names.values():
            return MAIN.name
        return name or f"branch {number}"


@dataclass
class RowChanges:
    """The changes that bring a thread's rows up to date, and what is then known of them."""

    line: Line
    changes: list[Change] = field(default_factory=list)
    after: ProjectedThread | None = None

    def put(self, space: Table, key: Key, *columns: Scalar) -> None:
        """Write a row."""
        self.changes.append(Put(space, Row((*self.line, *key), columns)))


class NewItems(NamedTuple):
    """So many items that a step brought."""

    step: int
    length: int


Piece = KeepRun | NewItems

NOBODY = StepRef(0, 0, "", 0, 0, b"", 0, "", "", 0, 0)


def first_step(line: Line) -> Scan:
    return Scan(STEPS, tuple(line), limit=1, bodies=False)


def newest_step(line: Line) -> Scan:
    return Scan(STEPS, tuple(line), reverse=True, limit=1, by="id")


def nothing_shown(line: Line) -> list[Change]:
    """Show nothing of a thread's state."""
    return [Delete(space, tuple(line)) for space in (AGENT_STATES, STATE_VALUES, CONVERSATIONS)]


_HIDDEN = ("\0", "__", "branch:to:", "join:")
"""How such names start: those of the frameworks' own channels, and LangGraph's for what runs next."""


def is_hidden(name: str) -> bool:
    """Whether a channel is a framework's own, and none of the user's: what people look at leaves it out."""
    return name.startswith(_HIDDEN)


def chain_to(made: Sequence[ProjectedStep], latest: ProjectedStep) -> list[ProjectedStep]:
    """The steps that lead to one, of those that are made together."""
    by_hash = {each.point.hash: each for each in made}
    chain = [latest]
    while (parent := chain[0].parent) is not None and parent.hash in by_hash:
        chain.insert(0, by_hash[parent.hash])
    return chain


def touched(chain: Sequence[ProjectedStep]) -> dict[bytes, list[tuple[int, Operation | None]]]:
    """What steps do to each channel, from when it was last set anew on; None where it is removed."""
    touched: dict[bytes, list[tuple[int, Operation | None]]] = {}
    for number, each in enumerate(chain):
        for key in each.step.edit.removed:
            touched[key] = [(number, None)]
        for key, operation in each.step.edit.put:
            if isinstance(operation, SetValue):
                touched[key] = []
            touched.setdefault(key, []).append((number, operation))
    return touched


def edited(pieces: Sequence[Piece], edit: EditList, step: int) -> list[Piece]:
    """The list that a step makes of another one, as to where each item comes from."""
    edited: list[Piece] = []
    for part in edit.parts:
        if isinstance(part, KeepRun):
            edited += _cut(pieces, part.start, part.length)
        else:
            edited.append(NewItems(step, len(part) if type(part) is tuple else 1))
    return edited


def _cut(pieces: Iterable[Piece], start: int, length: int) -> Iterator[Piece]:
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


def entries_of(header: StepHeader) -> Iterator[tuple[str, str]]:
    """The entries of a step's metadata, as text."""
    try:
        plain = to_plain(header.metadata)
    except TooDeepError:
        return
    entries = plain if type(plain) is dict else {"": plain}
    seen: set[str] = set()
    for name, value in entries.items():
        key, text = key_text(name), to_text(value)
        if key not in seen:
            seen.add(key)
            yield key, text if len(text) <= CAP else "null"


async def transitions(backend: Backend, line: Line) -> list[Row]:
    """The readable rows of a thread's steps."""
    (rows,) = await backend.read([Scan(TRANSITIONS, tuple(line))])
    return rows


async def relabelled(backend: Backend, line: Line, branch: Branch) -> list[Change]:
    """The changes that go together with another name of a branch, whether or not rows are written here."""
    heads, found = await backend.read([Get(AGENT_STATES, [tuple(line)]), Scan(TRANSITIONS, tuple(line))])
    rows = RowChanges(line)
    # Whoever writes rows meanwhile may not know the name.
    rows.changes.append(Expect(AGENT_STATES, tuple(line), heads[0].columns if heads else None))
    label = ProjectedThread(None, NO_CHANNELS, 0, {branch.branch: branch.name}).label(branch.branch)
    for row in found:
        parent, _, number, *rest = row.columns
        if number == branch.branch:
            rows.put(TRANSITIONS, row.key[2:], parent, label, number, *rest)
    return rows.changes


async def without(
    backend: Backend, line: Line, gone: Set[str], branches: Iterable[Branch], transitions: Sequence[Row]
) -> list[Change]:
    """The changes that go together with the pruning of steps, whether or not rows are written here.

    `branches` are those that are left, `transitions` the rows of the steps that there were when it was chosen which go.

    If the checkpoint goes that is shown, nothing is shown of the thread until `Projector.follow`.
    """
    heads, values, talk = await backend.read(
        [Get(AGENT_STATES, [tuple(line)]), Scan(STATE_VALUES, tuple(line)), Scan(CONVERSATIONS, tuple(line))]
    )
    rows = RowChanges(line)
    rows.changes.append(Expect(AGENT_STATES, tuple(line), heads[0].columns if heads else None))
    if not heads and not transitions:
        return rows.changes
    left = ProjectedThread(None, NO_CHANNELS, 0, {each.branch: each.name for each in branches})
    for row in transitions:
        if row.key[2] in gone:
            rows.changes += (Delete(TRANSITIONS, row.key), Delete(METADATA, row.key))
            continue
        parent, branch, number, *rest = row.columns
        now = ("" if parent in gone else parent, left.label(int(number)))
        if now != (parent, branch):
            rows.put(TRANSITIONS, row.key[2:], *now, number, *rest)
    if not heads or heads[0].columns[0] in gone:
        return rows.changes + nothing_shown(line)
    head = heads[0].columns
    if head[1] in gone:
        rows.put(AGENT_STATES, (), head[0], "", *head[2:6], int(head[6]) + 1)
    for space, found, place in ((STATE_VALUES, values, 2), (CONVERSATIONS, talk, 3)):
        for row in found:
            if row.columns[place] in gone:
                rows.put(space, row.key[2:], *row.columns[:place], "", *row.columns[place + 1 :])
    return rows.changes
