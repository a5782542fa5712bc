"""Appending steps: the hot path.

A step is prepared against its parent: the difference of the two states, its hash, perhaps the nodes of a fold; then it
is created at the position after the parent, which only one step can have. A writer that loses the race opens a branch,
is refused, or retries on top of the winner, as the caller chooses.

Inside a process, `AppendQueue` keeps writers of one line from racing: those that wait together are appended as a chain.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Get, Put, Row
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, LINKS, NODES, OBJECTS, STEPS, WRITES
from holdfast.engine.append_batch import AppendBatch, Chain, ChangeRefused, Condition, IdExists, PreparedStep, tag_taken
from holdfast.engine.append_tip import reload_tip, tip_to_append
from holdfast.engine.artifact_links import link_rows
from holdfast.engine.branch_graph import Position
from holdfast.engine.context import EngineContext
from holdfast.engine.copy_mark import creation_conditions
from holdfast.engine.fields import new_entries
from holdfast.engine.guard import Preconditions, both_preconditions
from holdfast.engine.ids import new_id
from holdfast.engine.inherited_schemas import InheritedSchemas
from holdfast.engine.line_head import is_in_history
from holdfast.engine.lines import MAIN, At, LineIndex, LineTip, OnBranch, Root
from holdfast.engine.loaded_states import NodeRows, child_state, folded_state
from holdfast.engine.model.large_pointers import LARGE
from holdfast.engine.model.large_values import set_aside
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import HEAVY, EditMap
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.model.steps import NO_ORIGIN, KeySchemas, PendingWriteRow, Step, StepHeader, StepOrigin, StepParent
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import is_thread
from holdfast.engine.optimistic import Attempts
from holdfast.engine.pending_writes import ROOM, forget_writes, known_writes
from holdfast.engine.row_format import (
    AT_HEAD,
    Branch,
    Line,
    LineInfo,
    StepRef,
    add_origin,
    fold_row,
    info_row,
    node_row,
    object_rows,
    origin_mark,
    step_body,
)
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.engine.step_info import StepInfo, StepInfoReader
from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    QuotaError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from holdfast.engine.field_index import FieldIndex
    from holdfast.engine.projection.projector import Projector
    from holdfast.engine.protection import Protection
    from holdfast.engine.schema_bindings import LineSchema
    from holdfast.engine.text_index.indexer import TextIndexer

_MARK_WEIGHT = 200
"""The weight in the cache of the note that a line is marked as one with origins."""

_SALT = 16
"""The number of bytes of a salt."""

_HEAVY = 256 << 10
"""Where folds are rarer than usual, this many bytes of changes cause one anyway."""

MAX_REWRITES = 50
"""How often a line may be rewritten while a step is prepared. A node that is still missing then is lost."""


class OnConflict(Enum):
    """The reaction when another step occupies the position after the parent."""

    RETRY = "retry"
    """Append to whichever step is the latest then."""
    BRANCH = "branch"
    """Open a branch at the parent."""
    REFUSE = "refuse"
    """Raise `ConflictError`."""


Edit: TypeAlias = "Callable[[StepRef | None, LoadedState | None], Awaitable[EditMap]]"
"""Computes the change of the parent's state, given the parent as of the attempt."""

ConvertState: TypeAlias = "Callable[[PackedMap | Edit, StepRef | None, LoadedState | None], Awaitable[Any]]"
"""Returns what to save in place of a state or an edit, given the parent as of the attempt."""


class AppendRequest(Struct, eq=False):
    """A step to append: a whole packed state, or an edit of the parent's."""

    line: Line
    state: PackedMap | Edit
    parent: At = None
    on_conflict: OnConflict = OnConflict.RETRY
    id: str = ""
    metadata: bytes = b"\x80"
    """A packed dict. An edit may set this and `readable` to describe its result."""
    readable: str = ""
    kind: str = "save"
    origin: StepOrigin = NO_ORIGIN
    """Who saves it and why, of a step of a thread."""
    events: str = ""
    """The digest of the step's event rows, where it has some. An edit may set it."""
    artifacts: tuple[str, ...] = ()
    """The artifacts that a step of a thread is linked with."""
    attached_changes: Callable[[str], Sequence[Change]] | None = None
    """Given the step's id, returns changes that are applied together with the step, or not at all."""
    preconditions: Preconditions | None = None
    """Returns conditions besides the line's own, at every attempt; called with whether one has failed already."""
    permit: Preconditions | None = None
    """Returns the conditions on which whoever saves a step of a thread may do so."""
    other_changes: Sequence[Change] = ()
    """Changes of other lines that are applied together with the step. `ChangeRefused` if a condition among them does
    not hold."""
    is_limited: bool = True
    """Whether the quota of the tenant applies."""
    if_changed: bool = False
    """Save nothing where the state equals the parent's; the parent is then returned."""
    stamp: str = ""
    schema: str = ""
    """A reference to the schema of the state. Without one, it is that of the parent. `convert` may set it."""
    convert: ConvertState | None = None
    """Brings the state, or the result of the edit, into the form of its schema."""
    line_schema: LineSchema | None = None
    """The schema of the state, where it is not that which is bound to the line."""
    is_unversioned: bool = False
    """Whether the state is one from before there was a schema, and has the version of those."""
    key_schemas: KeySchemas = ()
    """References to the schemas of single channels. An edit may set them."""
    time: int = 0
    """The time of a step that is moved; now, if 0."""
    new_branch: str = ""
    """The name of a branch that starts with this step."""
    moves_head: bool = False
    """Whether HEAD moves to the branch of the step, which the request names or creates."""
    keeps_head: bool = False
    """Whether a branch that a conflict opens is beside HEAD: it will be merged."""
    stays_beside: bool = False
    """Whether HEAD stays on its branch, where the step follows a parent on another one."""
    merged: tuple[StepParent, ...] = ()
    """The further parents of a merge. Its time is not before theirs; its changes are relative to the first parent."""
    fold_every: int = 0
    """The number of steps from one folded state to the next, where it is not the usual one."""
    is_pure: bool = False
    """The edit calls no code of the caller, so that another thread may compute it. A whole state always is."""

    def release(self) -> None:
        """Drop the functions of a request that was saved. They refer to it, so that it and the values that they write
        would stay in memory until the garbage collector runs."""
        if not isinstance(self.state, dict):
            self.state = {}
            self.attached_changes = self.preconditions = self.permit = None
        self.convert = None

    async def conditions(self, again: bool) -> Sequence[Change]:
        """Return all conditions besides the line's own, given whether an attempt has failed already."""
        every = both_preconditions(self.permit, self.preconditions)
        return () if every is None else await every(again)

    @property
    def is_conditional(self) -> bool:
        """Whether there are conditions besides the line's own."""
        return self.permit is not None or self.preconditions is not None

    @property
    def follows_latest(self) -> bool:
        """Whether the step follows whichever step is the last one, of the line or of a branch, when it is stored."""
        return self.on_conflict is OnConflict.RETRY and (self.parent is None or isinstance(self.parent, OnBranch))

    @property
    def may_chain(self) -> bool:
        """Whether it may be stored in one batch with independent requests, which it does not affect."""
        return (
            self.follows_latest
            and not (self.id or self.new_branch or self.merged)
            and not self.is_conditional
            and not self.other_changes
            and (self.is_pure or isinstance(self.state, dict))
        )


_is_limited = attrgetter("is_limited")


class HeadMove(NamedTuple):
    """The effect of a step on HEAD of its line."""

    beside: int = AT_HEAD
    """The column `beside` of the step."""
    to_other_branch: bool = False
    """Whether HEAD moves to another branch that exists. Whatever does that changes the version of the line, since a
    step beside HEAD names the branch that HEAD is on when it is stored."""
    switched_from: StepRef | None = None
    """The step that is HEAD before a switch."""


_FOLLOWS = HeadMove()


class Appender:
    """Appends steps to lines."""

    def __init__(
        self,
        context: EngineContext,
        lines: LineIndex,
        states: StateLoader,
        heads: StepInfoReader,
        projector: Projector,
        indexer: TextIndexer,
        fields: FieldIndex,
    ) -> None:
        self._context = context
        self._lines = lines
        self._states = states
        self._heads = heads
        self._projector = projector
        self._indexer = indexer
        self._fields = fields
        self._max_fold = context.backend.capabilities.max_batch // 3
        """The most bytes of changes that are folded before their turn: the step and its nodes are one batch."""
        self._max_cached = context.cache.max_bytes // 4
        """The most bytes of changes whose nodes are cached."""
        self.inherited: InheritedSchemas = InheritedSchemas(context, lines, states, heads)
        self.protection: Protection | None = None
        """Replaces sensitive data; set when the first policy is added."""

    async def append(self, *requests: AppendRequest, chain: Chain | None = None) -> list[StepInfo]:
        """Append one step to each of some lines, all or none; several to one line follow each other.

        For a request with `if_changed` that changes nothing, its parent is returned. With a chain, as many requests are
        appended as fit into a batch and have no error, one at least; an error is that of the first.
        """
        occupied: dict[int, list[Position]] = {}  # per request, the parents whose next position others had occupied
        rewrites = together = 0
        attempts = Attempts("appending a step", requests[0].line, self._context.metrics)
        while True:
            attempt = await attempts.begin()
            batch = AppendBatch()
            if len(requests) > 1 and chain is None:
                # Steps that are saved together have one time, so that a store as of a time has all of them or none.
                batch.time = max(together, self._context.clock())
            try:
                for number, request in enumerate(requests):
                    try:
                        await self._add(
                            batch, request, occupied.get(number, ()), again=attempt > 0, chained=chain is not None
                        )
                    except Exception:
                        if chain is None or number == 0:
                            raise
                        requests = requests[:number]
                        break
                if batch.time and (latest := max((each.point.time for each in batch.steps), default=0)) > batch.time:
                    together = latest  # a parent is from the future: a clock was wrong
                    continue
                added = batch.steps
                if [each for each in added if new_entries(each.line, each.point, each.parent)]:
                    batch.changes += await self._fields.rows(added)
                if self._projector.on:
                    for line, steps in batch.by_line().items():
                        if (follower := self._projector.follower) is None:
                            batch.add_rows(await self._projector.rows(line, steps))
                        else:
                            batch.changes += follower.marks(line, steps)
                            batch.followed[line] = steps
                if self._indexer.on:
                    for line, steps in batch.by_line().items():
                        batch.changes += await self._indexer.rows(line, steps)
            except MissingNode:
                # Nodes are removed when a line is rewritten; if they are lost, retrying will not help.
                rewrites += 1
                if rewrites > MAX_REWRITES:
                    raise
                await self._start_over(requests)
                continue
            except (NotFoundError, InvalidError, CorruptError, ConflictError, UnsupportedError):
                # The cached tip of a line may be out of date, and the change valid for the stored one.
                if await self._up_to_date(batch):
                    raise
                continue
            if chain is not None:
                chain.in_flight, chain.ids = True, batch.ids()
            try:
                limited = all(map(_is_limited, requests))
                failed = await (self._context.apply if limited else self._context.backend.apply)(batch.changes)
            except (TransientError, UnavailableError):
                raise
            except HoldfastError as error:
                # Nothing was stored. Perhaps only a part of a chain is too much.
                if chain is not None and len(requests) > 1:
                    chain.in_flight = False
                    requests = requests[:1]
                    continue
                if isinstance(error, TooLargeError) and (
                    early := max((each.folded_early for each in batch.steps), default=0)
                ):
                    self._max_fold = early  # this store takes the step, perhaps, but not with its nodes
                    continue
                # Another writer may have created the line, or stored what is to be saved.
                if not isinstance(error, QuotaError) or await self._up_to_date(batch):
                    raise
                continue
            if failed is None:
                heads = [self.remember(each) for each in added]
                for rows in batch.rows:
                    self._projector.remember(rows)
                if self._projector.follower is not None:
                    for line, steps in batch.followed.items():
                        self._projector.follower.add(line, steps)
                if len(heads) == len(requests):
                    return heads
                return [await self._head(request, each) for request, each in zip(requests, batch.results, strict=True)]
            if chain is not None:
                chain.in_flight = False
                number, condition, _ = batch.locate(failed)
                if number and condition is Condition.ATTACHED:
                    requests = requests[:number]
                    continue
            await self._handle_failure(requests, batch, failed, occupied)

    async def _head(self, request: AppendRequest, result: PreparedStep | StepRef) -> StepInfo:
        point = result.point if isinstance(result, PreparedStep) else result
        return await self._heads.head(request.line, point)

    async def _handle_failure(
        self, requests: Sequence[AppendRequest], batch: AppendBatch, failed: int, occupied: dict[int, list[Position]]
    ) -> None:
        """Handle a condition that did not hold: return to try again, or raise."""
        for rows in batch.rows:
            self._projector.forget(rows.line)
        number, condition, parent = batch.locate(failed)
        if condition in (Condition.ROWS, Condition.PRECONDITION):
            return
        request = requests[number]
        line = request.line
        if condition is Condition.OTHER:
            raise ChangeRefused(batch.index_among_others(failed))
        if condition is Condition.ATTACHED:
            attached = request.attached_changes("") if request.attached_changes is not None else ()
            raise tag_taken(line, next((str(each.row.key[3]) for each in attached if isinstance(each, Create)), ""))
        await reload_tip(self._lines, line)
        result = batch.results[number]
        prepared = result.point if isinstance(result, PreparedStep) else result
        await self._require_new_id(request, 0 if batch.looked_up else prepared.time)
        if condition is Condition.STEP:
            if request.on_conflict is OnConflict.REFUSE:
                raise ConflictError(
                    f"another checkpoint follows {'the start' if parent is None else parent.id} already",
                    where=f"thread {line}",
                    hint="Read the latest state and apply the change to it, or fork a branch",
                )
            occupied.setdefault(number, []).append(_position_of(parent))

    async def _require_new_id(self, request: AppendRequest, since: int | None = None) -> None:
        """Raise `IdExists` if a step of the line has the id: that of a rival, if it was saved since a time."""
        row = await self._lines.find_id(request.line, request.id, request.parent) if request.id else None
        if row is not None:
            raise IdExists(row, rival=since is not None and StepRef.of(row).time >= since)

    async def _start_over(self, requests: Sequence[AppendRequest]) -> None:
        """Drop the cached states of the parents."""
        for request in requests:
            tip = await self._lines.load_tip(request.line)
            if tip is not None:
                parent = await self._parent(request, tip)
                if parent is not None:
                    self._states.forget(request.line, parent.hash)

    async def _up_to_date(self, batch: AppendBatch) -> bool:
        """Return whether the cached tips of the lines were right. They are up to date afterwards."""
        return all([tip == await self._lines.load_tip(line) for line, tip in batch.tips.items()])

    # One step -------------------------------------------------------------------------------------------------

    async def _add(
        self, batch: AppendBatch, request: AppendRequest, occupied: Sequence[Position], *, again: bool, chained: bool
    ) -> None:
        """Prepare a step on its current parent, and add it to the batch."""
        line = request.line
        before = batch.last(line) if batch.results else None
        if before is None:
            tip = self._lines.cached_tip(line)
            if request.id:
                batch.looked_up = again or tip is None
            if tip is None or tip.generation:
                tip = await tip_to_append(self._lines, line)
            batch.tips[line] = tip
        else:
            tip = LineTip(before.info, before.point, is_only_branch=False)
        if tip is not None and request.id and not tip.is_followed_by(request.id, request.parent):
            await self._require_new_id(request)
        conditions: list[Change] = []
        if tip is None:
            if request.parent is not None and not isinstance(request.parent, Root) and request.parent != MAIN:
                await self._lines.find(line, request.parent)  # raises
            tip = LineTip(self._lines.new_info(), None, is_only_branch=True)
            free = await creation_conditions(self._context, line, check=again)
            conditions = [*free, Create(LINES, info_row(line, tip.info))]
            batch.new_versions.add(line)  # it is in no cache yet
        elif before is None:
            conditions = [self._lines.line_unchanged(line, tip.info)]
        number = await self._lines.branch(line, request.parent.name) if isinstance(request.parent, OnBranch) else None
        earlier = batch.step(line, request.parent, number) if batch.results else None
        parent = await self._parent(request, tip) if earlier is None else earlier.point
        loaded = earlier.loaded if earlier is not None else None
        if loaded is None and parent is not None:
            loaded = await self._states.get(line, parent)
            if loaded.form not in (0, tip.info.form):
                raise MissingNode("a line was rewritten")
        info = tip.info
        position, branches = None, False
        # A request for the latest step retries on the winner, unless the winner's id is lower.
        retries = request.on_conflict is not OnConflict.BRANCH
        if request.new_branch or (occupied and occupied.count(_position_of(parent)) > retries):
            if request.new_branch:
                await self._lines.check_free(line, request.new_branch)
            position, branches = Position(max(await self._lines.free_branch(line), batch.free_branch(line)), 0), True
        elif number is not None and parent is not None and parent.branch != number:
            position = Position(number, 0)  # the branch's first own step
        head = batch.head(line) if batch.results else None
        move = await self._move_head(request, tip, head, parent, number, opens=branches)
        left = move.switched_from
        # Without a new version, another writer could give the same id to a step on another branch.
        renewed = branches or move.to_other_branch or (request.id and tip.has_branches)
        if renewed and line not in batch.new_versions:
            switched_from = info.switched_from if left is None else left.id
            info = info._replace(version=info.version + 1, switched_from=switched_from)
            conditions.append(Put(LINES, info_row(line, info)))
            batch.new_versions.add(line)
        prepared = await self.prepare(
            request, info, parent, loaded, conditions, position, new_branch=branches, beside=move.beside, now=batch.time
        )
        if left is not None:
            end = await self._lines.head(line, left.branch)
            prepared.add(Expect(STEPS, (*line, end.branch, end.seq + 1), None), Condition.PRECONDITION)
        if required := await request.conditions(again) if request.is_conditional else ():
            prepared.add_preconditions(required)
        if parent is None or parent != tip.point:
            prepared.add_preconditions(await self.inherited.conditions_on_use(request, parent, loaded, refresh=again))
        for change in request.other_changes:
            prepared.add(change, Condition.OTHER)
        if not request.if_changed or parent is None or prepared.step.edit != EditMap():
            if chained:
                batch.require_fit(prepared.changes)
            batch.add(prepared)
            return
        # Nothing changed: the parent is returned, and gets what was to be stored with the step.
        if parent is tip.point and tip.is_only_branch and before is None:
            # It is the latest according to the cache: that must still be so.
            conditions.append(Expect(STEPS, (*line, parent.branch, parent.seq + 1), None))
        attached = await self.attached_changes(request, parent.id)
        if chained:
            batch.require_fit(attached)
        batch.add_unchanged(parent, conditions, attached)

    async def _move_head(
        self,
        request: AppendRequest,
        tip: LineTip,
        earlier: StepRef | None,
        parent: StepRef | None,
        number: int | None,
        *,
        opens: bool,
    ) -> HeadMove:
        """Return whether a step becomes HEAD of its line, or is saved beside it.

        Without a parent a step follows HEAD, and becomes HEAD. What is saved to another branch by its name is beside
        HEAD. What is saved after a certain step follows its example: after one that was saved beside HEAD it is beside
        HEAD, and after one that was HEAD it becomes HEAD. So a graph can be run on a fork by the id of a checkpoint,
        and the line does not notice; and a graph that returns to one of its own checkpoints, as in LangGraph, continues
        from there.

        A switch draws a line: what was HEAD before is beside it from then on, so that a graph that was running does not
        undo the switch. Of those steps, only what is in the history of HEAD can be returned to, except the one that
        HEAD was switched away from: a graph that follows it was running.

        `earlier` is the HEAD that a step of the same batch becomes, `parent` the step that this one follows, and
        `number` that of the branch which the request names. `opens` says that it opens a branch.
        """
        if request.moves_head:
            left = None if opens else await self._lines.latest_step(request.line)
            return _FOLLOWS if left is not None and left.branch == number else HeadMove(AT_HEAD, True, left)
        leaves = bool(request.new_branch or (opens and request.keeps_head))
        if not leaves:
            if parent is None or request.parent is None:
                return _FOLLOWS
            # The usual case: it follows what was appended last, and HEAD is on the same branch as then.
            if (
                parent == tip.point
                and not request.stays_beside
                and (number is None or (number == parent.branch and parent.beside != AT_HEAD))
            ):
                return HeadMove(parent.beside)
        head = earlier or (tip.point if tip.is_only_branch else await self._lines.latest_step(request.line))
        if head is None:
            return _FOLLOWS
        if leaves or parent is None:
            return HeadMove(head.branch)
        if number is not None:
            return _FOLLOWS if number == head.branch else HeadMove(head.branch)
        if parent.branch == head.branch:
            return _FOLLOWS
        if request.stays_beside:
            return HeadMove(head.branch)
        switched_from = tip.info.switched_from
        if parent.beside == AT_HEAD and parent.id > switched_from:
            return HeadMove(AT_HEAD, True)
        if parent.id != switched_from and is_in_history(await self._lines.branch_graph(request.line), head, parent):
            return HeadMove(AT_HEAD, True)
        return HeadMove(head.branch)

    async def attached_changes(self, request: AppendRequest, id: str) -> list[Change]:
        """Return the attached changes for a step that exists already, without names that it has."""
        attached: list[Change] = []
        for change in request.attached_changes(id) if request.attached_changes is not None else ():
            if isinstance(change, Create):
                (rows,) = await self._context.backend.read([Get(change.space, [change.row.key])])
                if rows and rows[0].columns[0] != id:
                    raise tag_taken(request.line, str(change.row.key[3]))
                if rows:
                    continue
            attached.append(change)
        return attached

    async def _parent(self, request: AppendRequest, tip: LineTip) -> StepRef | None:
        at, point = request.parent, tip.point
        if at is None:
            # A request that refuses conflicts is compared with the store, and not with a cache that may be out of date.
            up_to_date = tip.is_only_branch and request.on_conflict is not OnConflict.REFUSE
            return point if up_to_date else await self._lines.latest_step(request.line)
        if isinstance(at, Root):
            return None
        if at == MAIN and point is None:
            return None
        return point if point is not None and point.id == at else await self._lines.find(request.line, at)

    async def prepare(
        self,
        request: AppendRequest,
        info: LineInfo,
        parent: StepRef | None,
        loaded: LoadedState | None,
        conditions: Sequence[Change] = (),
        position: Position | None = None,
        *,
        new_branch: bool = False,
        revision: int = 0,
        beside: int = AT_HEAD,
        writes: Sequence[PendingWriteRow] | None = None,
        now: int = 0,
    ) -> PreparedStep:
        """Prepare a step and the changes that store it: after its parent, or at a given position.

        Its time is that of the request, `now`, or that of the clock; but not before its parent's.

        A step after its parent takes over the writes that led to it: some that no row has, or those of which this
        process knows the rows."""
        line = request.line
        edit, packed = await self.edit(request, parent, loaded)
        if not (schema := request.schema) and loaded is not None and parent is not None and loaded.schema != "":
            schema = await self.inherited.inherit(request, edit, parent, loaded)
        time = max(request.time or now or self._context.clock(), 0 if parent is None else parent.time)
        in_thread = is_thread(line.name)
        id = request.id or new_id(time, "" if parent is None else parent.id, short=not in_thread)
        parents = () if parent is None else (StepParent(parent.branch, parent.seq, parent.hash), *request.merged)
        header = StepHeader(id, parents, time, request.stamp, request.kind, schema, request.metadata)
        readable = request.readable
        if request.key_schemas:
            header = header._replace(key_schemas=request.key_schemas)
        if not in_thread:
            header = header._replace(events=request.events, salt=os.urandom(_SALT))
        elif request.origin != NO_ORIGIN:
            header, readable = header._replace(origin=request.origin), add_origin(readable, request.origin)
        step = Step(header, edit)
        sizes = step.sizes
        objects: dict[bytes, bytes] = {}
        if max(sizes) > LARGE:
            edit, objects = set_aside(edit, info.salt)
            step = Step(header, edit)
            sizes = step.sizes
        base = _position_of(parent)
        follows = position is None
        taken: Sequence[Change] = ()
        if writes is None and follows and parent is not None and sum(sizes) + ROOM <= self._context.max_bytes:
            writes = known_writes(self._context, line, info.version, parent.id)
            taken = [Delete(WRITES, (*line, parent.id, write.task, write.place)) for write in writes]
        body = step_body(line, step, self._context.max_bytes, writes or (), info.salt)
        commit = step.commit(info.salt)
        position = Position(base.branch, base.seq + 1) if position is None else position
        child = child_state(loaded, WrittenBy(*position), step, packed, sum(sizes))
        child.schema = schema
        if objects:
            child.fresh = {**child.fresh, **objects}
        ws = None
        more: list[Ensure | Put] = []
        weight, limit = child.tail_weight, _HEAVY if request.fold_every else HEAVY
        early = weight if limit < weight < self._max_fold else 0
        if early or len(child.tail) >= (request.fold_every or self._context.fold_every):
            rows = NodeRows(line, info.form) if weight > self._max_cached else None
            ws, root = await self._states.fold(line, child, info.salt, rows)
            objects.update(ws.objects)
            if rows is None:
                more = [Ensure(NODES, node_row(line, info.form, node, data)) for node, data in ws.created.items()]
                child = folded_state(child, info.form, root, {**child.fresh, **ws.created, **ws.objects})
            else:
                more = [Ensure(NODES, row) for row in rows.rows]
                child = folded_state(child, info.form, root, ChainMap({**child.fresh, **ws.objects}, rows))
                ws = None  # the nodes would displace all else from the cache
            own_header = header if sum(sizes) > HEAVY else None
            more.append(Put(FOLDS, fold_row(line, position, commit, info, root, own_header)))
        marks = request.origin != NO_ORIGIN and self._context.cache.get(("origin", line)) != info.created
        if marks:
            more.append(Ensure(LINKS, Row(origin_mark(line), (info.created, ""))))
        for pointer, value in objects.items():
            more += [Ensure(OBJECTS, row) for row in object_rows(line, pointer, value)]
        size = len(body) if parent is None or not follows else len(body) + parent.size
        for row_change in more:
            size += len(row_change.row.body)
        depth = 0 if parent is None else parent.depth + 1
        tail = len(child.tail)
        point = StepRef(*position, id, revision, depth, commit, time, request.kind, readable, tail, size, beside)
        prepared = PreparedStep(line, info, point, step, child, parent, ws, early, marks)
        for condition in conditions:
            prepared.add(condition, Condition.LINE)
        if new_branch:
            branch = Branch(position.branch, base.branch, base.seq + 1, time, request.new_branch)
            prepared.add(Create(BRANCHES, branch.row(line)), Condition.BRANCH)
        prepared.add(Create(STEPS, point.row(line, body)), Condition.STEP)
        prepared.changes += (*taken, *more)
        for change in request.attached_changes(id) if request.attached_changes is not None else ():
            prepared.add(change, Condition.ATTACHED)
        if request.artifacts:
            prepared.changes += link_rows(line, id, depth + 1, time, [id], request.artifacts)
        return prepared

    async def edit(
        self, request: AppendRequest, parent: StepRef | None, loaded: LoadedState | None
    ) -> tuple[EditMap, PackedMap | None]:
        """Return the edit of a step; and the state it results in, if that is in memory."""
        new = request.state
        if request.convert is not None:
            new = await request.convert(new, parent, loaded)
        elif isinstance(new, dict):
            new = await self.inherited.keep_aside(request, new, loaded)
        if not isinstance(new, dict):
            edit = await new(parent, loaded)
            if self.protection is not None:
                edit = await self.protection.protect_edit(request.line, edit, loaded)
            return edit, None
        edit = await self._states.difference(request.line, loaded, new)
        if self.protection is not None:
            protected = await self.protection.protect_state(request.line, edit, new)
            if protected is not None:
                new, edit = protected, await self._states.difference(request.line, loaded, protected)
        return edit, new

    def remember(self, prepared: PreparedStep) -> StepInfo:
        """Cache a step that was just stored: the next one will be compared with it."""
        line, point, parent, loaded = prepared.line, prepared.point, prepared.parent, prepared.loaded
        loaded.head = head = prepared.head
        if loaded.fresh:
            loaded.fresh = {}
        self._lines.note_append(line, prepared.info, point, parent)
        self._states.cache_state(line, point.hash, loaded)
        if prepared.ws is not None:
            self._states.keep_nodes(prepared.ws)
        if parent is not None:
            self._states.demote(line, parent.hash)
            forget_writes(self._context, line, parent.id)
        if prepared.marks_origin:
            self._context.cache.put(("origin", line), prepared.info.created, _MARK_WEIGHT)
        return head


def _position_of(parent: StepRef | None) -> Position:
    return Position(0, -1) if parent is None else Position(parent.branch, parent.seq)
