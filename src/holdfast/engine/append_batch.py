"""Steps that are appended together: the changes of one batch, and the conditions among them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct, field

from holdfast.backends.interface import Change, Create, Ensure, Expect, Put, Row
from holdfast.backends.tables import BRANCHES, EVENTS, STEPS, Key
from holdfast.engine.lines import At, LineTip
from holdfast.engine.model.steps import Step
from holdfast.engine.model.workspace import Workspace
from holdfast.engine.projection.rows import ProjectedStep, RowChanges, has_transitions
from holdfast.engine.row_format import AT_HEAD, Branch, Line, LineInfo, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo
from holdfast.errors import ConflictError

_CHAIN_BYTES = 1 << 20
"""The bytes of bodies up to which steps are chained. A larger step is stored alone."""


class Condition(Enum):
    """The kinds of conditions that a change of a batch depends on."""

    LINE = "the line is as it was"
    BRANCH = "the branch's number is free"
    STEP = "the place is free"
    ATTACHED = "the caller's own"
    PRECONDITION = "what the caller's own rest on"
    OTHER = "what changes together with the line"
    ROWS = "the readable rows are as they were"


class PreparedStep(Struct, eq=False):
    """A step ready to commit, with the changes that store it, some of them conditional."""

    line: Line
    info: LineInfo
    point: StepRef
    step: Step
    loaded: LoadedState
    parent: StepRef | None
    ws: Workspace | None
    folded_early: int = 0
    """The weight of the changes that were folded before their turn; 0 if none were."""
    marks_origin: bool = False
    """Whether it marks its line as one with steps that have origins."""
    changes: list[Change] = field(default_factory=list)
    conditions: dict[int, Condition] = field(default_factory=dict)

    def add(self, change: Change, condition: Condition) -> None:
        """Add a change that has a condition."""
        self.conditions[len(self.changes)] = condition
        self.changes.append(change)

    def set_beside(self, branch: int) -> None:
        """Let the step say that it is beside HEAD on that branch."""
        self.point = self.point._replace(beside=branch)
        for number, change in enumerate(self.changes):
            if isinstance(change, Create) and change.space is STEPS:
                self.changes[number] = Create(STEPS, self.point.row(self.line, change.row.body))

    def add_preconditions(self, changes: Sequence[Change]) -> None:
        """Add conditions before everything else: they are about the store as it is before the step."""
        shift = len(changes)
        moved = {position + shift: condition for position, condition in self.conditions.items()}
        self.conditions = dict.fromkeys(range(shift), Condition.PRECONDITION) | moved
        self.changes[:0] = changes

    def projected(self) -> ProjectedStep:
        """Return the step for the projector and the indexer."""
        branches = [Branch.of(each.row) for each in self.changes if isinstance(each, Create) and each.space is BRANCHES]
        events: list[Row] = []
        if has_transitions(self.line):
            events = [each.row for each in self.changes if isinstance(each, Put) and each.space is EVENTS]
        return ProjectedStep(self.info, self.point, self.step, self.loaded, self.parent, branches, events)

    @property
    def head(self) -> StepInfo:
        """Return the description of the step."""
        return StepInfo(self.point, self.step.header, None if self.parent is None else self.parent.id)


class Chain(Struct):
    """The progress of independent requests that are appended one after the other, as many as fit into a batch."""

    in_flight: bool = False
    """Whether a batch was submitted whose outcome is not recorded yet."""
    ids: list[str] = field(default_factory=list)
    """The ids of the steps in that batch; an empty one for a request that changes nothing."""


class DoesNotFit(Exception):
    """A step is not added to a batch, but comes into the next one."""


class IdExists(Exception):
    """Another step has the id. It is that of a `rival` if it was saved at the same time."""

    def __init__(self, row: Row, *, rival: bool = False) -> None:
        super().__init__(row.key)
        self.row = row
        self.rival = rival


class ChangeRefused(Exception):
    """A condition among the other changes of a request does not hold: the one with this index."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class AppendBatch(Struct, eq=False):
    """Steps that are appended together."""

    changes: list[Change] = []
    results: list[PreparedStep | StepRef] = []
    """For each request, the prepared step, or the parent that is returned instead."""
    tips: dict[Line, LineTip | None] = {}
    """The tips of the lines that the batch is based on."""
    looked_up: bool = False
    """Whether the id of its only step was looked up in the store for it, and was free."""
    time: int = 0
    """The time of all steps, where there are several, unless it is 0."""
    new_versions: set[Line] = set()
    """The lines that get a new version, or are new."""
    rows: list[RowChanges] = []
    """Readable rows that are stored with the steps."""
    followed: dict[Line, list[ProjectedStep]] = {}
    """Steps whose readable rows are written afterwards."""
    _starts: list[tuple[int, dict[int, Condition], StepRef | None]] = []
    """For each step, the index of its first change, its conditions, and its parent."""
    _row_conditions: set[int] = set()
    """The indexes of conditions of readable rows."""
    _by_line: dict[Line, list[PreparedStep]] = {}
    _keys: set[tuple[str, Key]] = set()
    _bytes: int = 0
    """The keys and the size of what is written, of a chain."""

    def ids(self) -> list[str]:
        """Return the ids of the steps; an empty one for a request whose parent is returned."""
        return [each.point.id if isinstance(each, PreparedStep) else "" for each in self.results]

    def require_fit(self, changes: Sequence[Change]) -> None:
        """Raise `DoesNotFit` if more changes make the batch too large, or write what it writes already."""
        rows = [(each.space, each.row) for each in changes if isinstance(each, Create | Ensure | Put)]
        keys = {(space.name, row.key) for space, row in rows}
        self._bytes += sum(len(row.body) for _, row in rows)
        if self.results and (self._bytes > _CHAIN_BYTES or not keys.isdisjoint(self._keys)):
            raise DoesNotFit
        self._keys |= keys

    @property
    def steps(self) -> list[PreparedStep]:
        return [each for each in self.results if isinstance(each, PreparedStep)]

    def add(self, prepared: PreparedStep) -> None:
        self._starts.append((len(self.changes), prepared.conditions, prepared.parent))
        self.changes += prepared.changes
        self.results.append(prepared)
        self._by_line.setdefault(prepared.line, []).append(prepared)

    def add_unchanged(self, parent: StepRef, conditions: Sequence[Change], attached: Sequence[Change]) -> None:
        """Add the changes of a request whose parent is returned, and their conditions."""
        kinds = [Condition.LINE] * len(conditions) + [Condition.ATTACHED] * len(attached)
        self._starts.append((len(self.changes), dict(enumerate(kinds)), parent))
        self.changes += [*conditions, *attached]
        self.results.append(parent)

    def by_line(self) -> dict[Line, list[ProjectedStep]]:
        """Return the steps of each line, for the projector and the indexer."""
        steps: dict[Line, list[ProjectedStep]] = {}
        for each in self.steps:
            steps.setdefault(each.line, []).append(each.projected())
        return steps

    def add_rows(self, rows: RowChanges) -> None:
        start = len(self.changes)
        for position, change in enumerate(rows.changes):
            if isinstance(change, Expect):
                self._row_conditions.add(start + position)
        self.changes += rows.changes
        self.rows.append(rows)

    def locate(self, failed: int) -> tuple[int, Condition, StepRef | None]:
        """Return the step, the condition and the parent that a change of the batch belongs to."""
        number = max(number for number, (start, _, _) in enumerate(self._starts) if start <= failed)
        start, conditions, parent = self._starts[number]
        return number, Condition.ROWS if failed in self._row_conditions else conditions[failed - start], parent

    def index_among_others(self, failed: int) -> int:
        """Return which of the other changes of its request a change of the batch is."""
        number, _, _ = self.locate(failed)
        start, conditions, _ = self._starts[number]
        others = [position for position, condition in conditions.items() if condition is Condition.OTHER]
        return others.index(failed - start)

    def last(self, line: Line) -> PreparedStep | None:
        steps = self._by_line.get(line)
        return steps[-1] if steps else None

    def step(self, line: Line, at: At, branch: int | None) -> PreparedStep | None:
        """Return the step of this batch that is named, that is HEAD, or that is the last one of a branch."""
        for each in reversed(self._by_line.get(line, ())):
            point = each.point
            is_head = at is None and point.beside == AT_HEAD
            if is_head or point.id == at or point.branch == branch:
                return each
        return None

    def head(self, line: Line) -> StepRef | None:
        """Return the step of this batch that is HEAD of a line."""
        step = self.step(line, None, None)
        return None if step is None else step.point

    def free_branch(self, line: Line) -> int:
        return 1 + max((each.point.branch for each in self._by_line.get(line, ())), default=0)


def tag_taken(line: Line, tag: str) -> ConflictError:
    """Return the error for a tag that another step has."""
    return ConflictError(
        f"another checkpoint has the tag {tag!r}", where=f"thread {line}", hint="Use another tag, or move this one"
    )
