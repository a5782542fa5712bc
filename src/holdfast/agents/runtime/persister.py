"""Save and load one live agent. The API for programs is in `holdfast.agents.api`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.agents.definition.options import AgentOptions
from holdfast.agents.definition.spec import Spec, warn_of_unsaved
from holdfast.agents.runtime.autosave import AutosaveWorker, DirtyTracker, SaveTimer
from holdfast.agents.runtime.data import AgentData, Attempt, CapturedState, SavedState, apply_changes
from holdfast.agents.runtime.field_operators import CapturedRuns
from holdfast.agents.runtime.field_schema import FieldSchema
from holdfast.agents.runtime.message_buffer import UnsavedMessages
from holdfast.agents.runtime.metrics import count_step
from holdfast.agents.runtime.two_phase import Lifecycle, make_save_lock
from holdfast.agents.storage.agent_line import AgentLine, Delta
from holdfast.agents.storage.conflicts import Sides, resolve_conflict
from holdfast.agents.storage.record import CONVERSATION, DICTS, PENDING, AgentPosition, AgentRecord, PendingChange
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fair_lock import FairLock
from holdfast.backends.runtime.metrics import Metrics
from holdfast.engine import validation
from holdfast.engine.claims import Claim
from holdfast.engine.events import Event
from holdfast.engine.guard import Permit, acting, current_authority
from holdfast.engine.ids import new_id
from holdfast.engine.model.diff import diff
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import (
    Packed,
    PackedMap,
    as_map,
    flatten,
    pack_channel,
    pack_name,
    pack_state,
    unpack,
    unpack_name,
    unpack_state,
)
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.engine.value_schemas import NO_MARK, SchemaMark
from holdfast.errors import (
    ClaimLostError,
    ConflictError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from holdfast.hooks.feature_hooks import FeatureHooks

if TYPE_CHECKING:
    from holdfast.schemas.attachment import ValueAttachment


_MARK = pack_name("conversation_schema")


class ConversationSchema:
    """Checks and upgrades the messages of one agent."""

    def __init__(self, line: AgentLine, spec: Spec) -> None:
        self._line = line
        self._spec = spec
        self._mark = NO_MARK
        self.attached: ValueAttachment | None = None
        """Set once the class's declaration was checked against the store; None if there is none."""

    async def attach(self) -> None:
        """Check what the class declares against what the store has, and register it: once for each class."""
        if self._spec.conversation is not None and self.attached is None:
            from holdfast.agents.runtime.field_schema import attach_class

            self.attached = await attach_class(self._line, self._spec.conversation, "conversation", self._spec.name)

    def check(self, added: Sequence[Any]) -> object:
        """Raise an error for messages that cannot be saved, or do not fit the schema."""
        packed = self._line.handle.codec.pack_items(added)
        declaration = self._spec.conversation
        if declaration is not None and declaration.validate != "off":
            from holdfast.schemas.attached_version import report_problems

            reference = declaration.schema.schema_reference
            problems = declaration.schemas.check(reference, list(added))
            report_problems(reference, problems, f"new messages of {self._line.where}", declaration.validate)
        return packed

    def write(self, channels: PackedMap, saved: Mapping[bytes, Packed]) -> None:
        """Add the version of the messages to the channels to save, given those that were saved."""
        if self.attached is not None:
            mark = self._mark if self._mark.reference else SchemaMark(self.attached.reference)
            channels[_MARK] = mark.pack(self._line.handle.codec)
        elif _MARK in saved:
            channels[_MARK] = saved[_MARK]

    async def upgrade(self, point: StepRef, channels: Mapping[bytes, Packed], count: int) -> list[Any] | None:
        """Return all messages in the version of the class; None if they are stored so. `channels` are those of a step,
        and `count` is the number of its messages."""
        stored, attached = self._stored_mark(channels), self.attached
        self._mark = stored
        if attached is None and stored.reference and count:
            inherited = self._line.handle.engine.appender.inherited
            where = f"conversation of {self._line.where}"
            await inherited.require_unversioned(self._line.line, stored.reference, where)
        if attached is None or stored.reference == attached.reference:
            return None
        if not count:
            self._mark = NO_MARK
            return None
        codec, where = self._line.handle.codec, f"conversation of {self._line.where}"
        packed = pack_channel(codec, CONVERSATION, await self._line.read_messages(point))
        upgraded = await attached.read(packed, stored, where)
        if upgraded is packed:
            return None
        _, self._mark = attached.write(upgraded, packed, stored, where)
        messages: list[Any] = unpack(codec, upgraded)
        return messages

    def is_same(self, saved: Mapping[bytes, Packed], theirs: Mapping[bytes, Packed]) -> bool:
        """Return whether another save left the messages in the version that they had."""
        return self._stored_mark(saved) == self._stored_mark(theirs)

    def _stored_mark(self, channels: Mapping[bytes, Packed]) -> SchemaMark:
        packed = channels.get(_MARK)
        return NO_MARK if packed is None else SchemaMark.unpack(self._line.handle.codec, packed)


_METADATA, _FIELDS = pack_name("metadata"), pack_name("fields")

_DICTS = tuple(name for name in DICTS if name != "fields")
"""The dicts of an agent's data."""


class AgentPersister:
    """Saves and loads one live agent."""

    line: AgentLine

    def __init__(
        self,
        line: AgentLine,
        agent: Any,
        spec: Spec,
        data: AgentData,
        options: AgentOptions | None = None,
        former: AgentPersister | None = None,
    ) -> None:
        """`former` is the persister that the agent had so far: the new one continues from what that has saved."""
        self.line, line.machine = line, spec.machine
        self.agent = agent
        self.spec = spec
        self.data = data
        self.options: AgentOptions = options or spec.options
        self.point: StepRef | None = None
        """The step that the next one follows."""
        self.lock: threading.RLock = threading.RLock()
        """Acquired to capture the state, and to make changes that belong together."""
        self.save_lock: FairLock = make_save_lock()
        """Acquired to save: steps of this agent are saved one after the other."""
        self.uncertain_attempt: Attempt | None = None
        """A step of which it is uncertain whether it was saved. That is resolved before anything else is saved."""
        self.refusal_uncertain: bool = False
        """Whether it is uncertain that the record of a refused transition, which changes nothing, was saved."""
        self.worker: AutosaveWorker = AutosaveWorker.of(line.handle.engine)
        self.statistics: Metrics = Metrics(self.worker.statistics)
        self.tracker: DirtyTracker | None = None
        """Set if the agent is saved automatically."""
        self.sync: bool = True
        """Whether the agent belongs to a `Store`."""
        self.open_blocks = 0
        """More than 0 while nothing is to be saved in the background. Changed under the lock."""
        self.committing_thread = 0
        """The thread that is saving a step."""
        self.error: BaseException | None = None
        """The error of the last save."""
        self.claim: Claim | None = None
        """The claim of the run that the agent works in: whoever saves it, does so on its condition."""
        self.live_run: Any = None
        """The run of an agent that recovers, while it works in this program."""
        self.is_retired: bool = False
        """Whether the agent has another persister by now."""
        self.lifecycle: Lifecycle = Lifecycle(self)
        self.schema: FieldSchema = FieldSchema(line, spec, agent)
        self._conversation = ConversationSchema(line, spec)
        self._saved_channels: dict[bytes, Packed] = {}
        self._message_cache: tuple[int, int, list[bytes]] = (0, 0, [])
        data.conversation.check = self._conversation.check
        count = self.find_method("count_tokens")
        if count is not None:
            data.conversation.set_counter(count)
        if not data.state and spec.machine is not None:
            data.state = spec.machine.initial
        self._belongs_to_parent = False
        """Whether the agent came from the process that this one was forked from, and was not saved here."""
        self._former: AgentPersister | None = None
        """Set until the first save or load, which takes over from it."""
        if former is not None:
            former.retire()
            self._former = former = former._former or former
            data.conversation.read_from(self.read_messages)
            if former.line.line == line.line:
                self.point, self.uncertain_attempt = former.point, former.uncertain_attempt
                self.lifecycle = former.lifecycle
                self.lifecycle.persister = self
        self.worker.register(self)

    def autosave(self, *, sync: bool) -> None:
        """Save the agent automatically, if its options say so."""
        self.sync = sync
        if self.options.autosave is not None:
            self.tracker = DirtyTracker(self, self.options.autosave, self.worker, sync=sync)
            self.data.conversation.on_change = self.mark_changed
            if self._former is not None:
                self.tracker.add_changes(1)  # there may be some that the former persister has not saved

    def retire(self) -> None:
        """Save nothing any more: the agent gets another persister. Raises `InvalidError` in the middle of a change."""
        with self.lock:
            if self.open_blocks:
                raise InvalidError(
                    "the agent is in the middle of a change",
                    where=self.where,
                    hint="Attach it again when the transition or the change block has ended",
                )
            self.is_retired = True
            tracker, self.tracker, self.data.conversation.on_change = self.tracker, None, None
        if tracker is not None:
            tracker.retire()
        self.worker.unregister(self)

    def mark_changed(self, count: int = 1) -> None:
        """Count changes. With `write_through`, where the caller can wait, they are saved when this returns."""
        tracker = self.tracker
        if tracker is not None:
            tracker.add_changes(count)
            if self.open_blocks or self.committing_thread == threading.get_ident():
                return
            if tracker.saves_in_caller:
                run(self.save(if_changed=True))
            elif tracker.claim_conflict():
                with suppress(HoldfastError):  # `error` has it, and the next save of the program raises it
                    run(self.save(if_changed=True))

    def reinit_locks(self) -> None:
        """Reset after a fork."""
        self.lock, self.save_lock, self._belongs_to_parent = threading.RLock(), make_save_lock(), True
        self.lifecycle.reinit_locks()
        if self.tracker is not None:
            self.tracker.reinit_locks()

    def find_method(self, name: str) -> Callable[..., Any] | None:
        """Return a method of the agent's author, such as `on_start`; None if there is none."""
        return self.spec.find_method(self.agent, name)

    @property
    def version(self) -> int:
        """The number of steps of the agent; 0 if it was never saved."""
        return 0 if self.point is None else self.point.depth + 1

    @property
    def needs_save(self) -> bool:
        """Whether the agent is saved when the store is closed: it runs here, and is not in the middle of a change."""
        if self.tracker is not None:
            return self.tracker.needs_save
        runs = self.lifecycle.owns_status and self.data.status == "running" and self.data.pending is None
        return runs and not self._belongs_to_parent

    def has_changes(self) -> bool:
        """Return whether changes of the agent would be lost with the process. Of one that was never saved, nothing is
        expected to be stored."""
        if self.point is None or self._belongs_to_parent or not self.lock.acquire(blocking=False):
            return False
        try:
            return bool(self.capture().delta)
        except Exception:  # noqa: BLE001 - what cannot be saved differs from what was
            return True
        finally:
            self.lock.release()

    # Saving and loading ---------------------------------------------------------------------------------------

    def capture(self) -> CapturedState:
        """Capture the agent's state, and how it differs from what was saved. Raises `InvalidError` if the agent's own
        `validate` refuses it."""
        with self.lock:
            mark = 0 if self.tracker is None else self.tracker.start_capture()
            messages = self.data.conversation.unsaved_messages()
            packed = self._pack_channels(messages)
            added = [*self._pack_messages(messages), *messages.received]
            position = self.data.position
        delta = Delta(base_count=messages.base_count, added=added)
        if messages.is_rewrite or (added and not messages.base_count):
            delta.messages, delta.added = list(added), ()
        operators: CapturedRuns = {}
        upgrades = self.schema.differs(packed, self._saved_channels)
        for name, value in packed.items():
            saved = self._saved_channels.get(name)
            if name == _FIELDS and saved is not None and self.data.operators and not upgrades:
                change, operators = self.data.operators.capture(as_map(saved) or {}, value)
            else:
                change = Set(flatten(value)) if saved is None else diff(saved, value)
            if change is not None:
                delta.put[unpack_name(name)] = change
        delta.removed = [unpack_name(name) for name in self._saved_channels if name not in packed]
        return CapturedState(delta, packed, messages, position, operators, mark)

    def _pack_messages(self, messages: UnsavedMessages) -> list[bytes]:
        """Pack the messages to add. Those that were packed for a save that failed are not packed again: otherwise the
        work would grow for as long as a store is unavailable. The caller has the lock."""
        epoch, base_count, packed = self._message_cache
        if (epoch, base_count) != (messages.epoch, messages.base_count) or len(packed) > len(messages.added):
            packed = []
        packed = [*packed, *self.line.handle.codec.pack_items(messages.added[len(packed) :])]
        self._message_cache = messages.epoch, messages.base_count, packed
        return packed

    def _pack_channels(self, messages: UnsavedMessages) -> dict[bytes, Packed]:
        """Pack all channels except the conversation. The caller has the lock."""
        data = self.data
        if data.created is None:
            data.created = to_datetime(self.line.handle.now())
        fields = {**data.undeclared_fields, **self.spec.persist(self.agent)}
        self.schema.check_valid(data.state, fields)
        warn_of_unsaved(self.agent, self.spec, data.configuration)
        state = {
            "class": self.spec.name,
            "schema": self.spec.schema,
            "created": data.created,
            "status": data.status,
            "state": data.state,
            **{name: fields if name == "fields" else getattr(data, name) for name in DICTS},
            "counts": {"messages": messages.length, "tokens": messages.tokens},
        }
        if data.pending is not None:
            state[PENDING] = data.pending.to_dict()
        channels = pack_state(self.line.handle.codec, state)
        self.schema.write(channels, self._saved_channels)
        self._conversation.write(channels, self._saved_channels)
        return channels

    @property
    def where(self) -> str:
        """The agent's name for errors."""
        return self.line.where

    async def save(self, kind: str = "save", *, if_changed: bool = False, background: bool = False) -> StepRef:
        """Save the agent. In the background, raises `AgentBusy` if it is in the middle of something."""
        event = self.build_event("agent", "autosave" if background else "save")
        return await self.commit(kind, [event], hook="agent.save", if_changed=if_changed, background=background)

    async def commit(
        self,
        kind: str,
        events: Sequence[Event],
        *,
        hook: str = "",
        if_changed: bool = False,
        position: AgentPosition | None = None,
        background: bool = False,
    ) -> StepRef:
        """Save a step of the agent. If a position is given, the agent takes it by this step or not at all: no other
        step comes in between."""
        async with self.save_lock.acquire():
            if self.is_retired:
                raise InvalidError("the agent was attached again in the meantime", where=self.where)
            with SaveTimer(self), acting(current_authority()._replace(claim=self.claim)):
                await self.resolve_uncertain()
                before = self.data.position
                if position is not None:
                    self._set_position(position)
                try:
                    return await self._commit(kind, events, hook, if_changed, background, moves=position is not None)
                except BaseException:
                    if position is not None:
                        self._set_position(before)
                    raise

    def _set_position(self, position: AgentPosition) -> None:
        with self.lock:
            self.data.position = position

    async def _commit(
        self, kind: str, events: Sequence[Event], hook: str, if_changed: bool, background: bool, *, moves: bool
    ) -> StepRef:
        permit = await self.line.allow("write")
        await self._attach_schemas()
        # The first step creates the agent, whichever operation saves it.
        names = [*(["agent.create"] if self.point is None else []), *([hook] if hook else [])]
        called = [await self.call_hooks(name) for name in dict.fromkeys(names)]
        events = [*events, *(event for hooks in called for event in hooks.events)]
        metrics = self.line.handle.engine.context.metrics
        attempts = Attempts("saving an agent", self.where, metrics, code="agent-conflict")
        while True:
            await attempts.begin()
            captured = self.tracker.capture() if background and self.tracker is not None else self.capture()
            if if_changed and not captured.delta and self.point is not None:
                self.statistics.add(unchanged=1)
                if self.tracker is not None:
                    self.tracker.mark_saved(captured.mark)
                return self.point
            try:
                (point,) = await self.send(self.build_attempt(kind, captured, events, permit))
            except ClaimLostError:
                raise
            except ConflictError as conflict:
                if not moves and await self.resolve_uncertain():
                    continue  # the conflict was with the agent's own step, which arrived only now
                if background and self.tracker is not None and self.tracker.sync:
                    raise  # what the agent does just now, in its own thread, would be lost
                await self._resolve(conflict)
                continue
            for hooks in called:
                hooks.call_after(self.version, point.id)
            return point

    def build_attempt(
        self,
        kind: str,
        captured: CapturedState,
        events: Sequence[Event],
        permit: Permit,
        instead_of: StepRef | None = None,
    ) -> Attempt:
        """Build a step with an id of its own: it can be sent again without being saved twice."""
        line, parent = self.line, self.point
        length, metadata = captured.messages.length, captured.packed[_METADATA]
        summary = line.summarize(self.spec.name, captured.position, length, metadata)
        after = max("" if parent is None else parent.id, "" if instead_of is None else instead_of.id)
        id = new_id(line.handle.now(), after)
        schemas = {"fields": self.schema.attached, CONVERSATION: self._conversation.attached}
        request = line.build_request(kind, captured.delta, parent, summary, events, permit, id, instead_of, schemas)
        return Attempt(request, captured, events)

    async def send(self, attempt: Attempt, *others: Attempt) -> list[StepRef]:
        """Save steps, all or none: the first is this agent's, and the others belong to agents whose persisters the
        caller informs by `mark_saved`. If the outcome is uncertain, the next save resolves it."""
        try:
            points = await self.line.save(attempt.request, *(each.request for each in others))
        except BaseException as error:
            if not others and (
                isinstance(error, OutcomeUnknownError | UnavailableError) or not isinstance(error, HoldfastError)
            ):
                before = self.uncertain_attempt
                shared = before is not None and before.redo is not None
                self.uncertain_attempt = attempt._replace(earlier=before) if shared else attempt
            raise
        self.mark_saved(attempt, points[0])
        return points

    def mark_saved(self, attempt: Attempt, point: StepRef) -> None:
        """Note that a step was saved."""
        self.point, self._saved_channels, self.uncertain_attempt = point, attempt.captured.packed, None
        self._belongs_to_parent = False
        self._message_cache = (0, 0, [])
        self.data.conversation.mark_saved(attempt.captured.messages)
        self.data.operators.mark_saved(attempt.captured.operators)
        count_step(self.statistics, attempt.events)
        if self.tracker is not None:
            self.tracker.record_step(attempt.captured.mark)

    async def resolve_uncertain(self) -> bool:
        """Resolve a step of which it is uncertain whether it was saved: it is saved by now, or never will be. Returns
        whether it was, if there was one; the agent then has the position of that step. The caller has the save
        lock."""
        if self._former is not None:
            return await self._take_over(self._former)
        if self.refusal_uncertain:
            newest = await self.line.latest_step()
            if self.point is not None and newest is not None and await self.line.is_unchanged(self.point, newest):
                self.point = newest
            self.refusal_uncertain = False
        attempt = self.uncertain_attempt
        if attempt is None:
            return False
        if attempt.redo is not None:
            return await self._resolve_shared(attempt, attempt.redo)
        try:
            await self.send(attempt)
        except ConflictError:
            self.uncertain_attempt = attempt.earlier  # another was first; or that one
            return await self.resolve_uncertain()
        self._set_position(attempt.captured.position)
        return True

    async def _take_over(self, former: AgentPersister) -> bool:
        """Continue from what the former persister saved, usually through a handle of the store that failed or was
        closed. Returns whether a step was saved of which that was uncertain."""
        async with former.save_lock.acquire():  # its last save may still be under way
            newest, lines = await self.line.latest_step(), self.line.handle.engine.lines
            saved, attempt = False, former.uncertain_attempt
            if newest is None or former.line.line != self.line.line:
                await self.data.conversation.move(former.read_messages)
                self.point, attempt = None, None
            else:
                self.point, self._saved_channels = former.point, former._saved_channels
            while attempt is not None and not saved:
                with suppress(NotFoundError):
                    point = await lines.find(self.line.line, attempt.request.id)
                    saved = attempt.redo is None or attempt.redo()
                    if saved:
                        self.mark_saved(attempt, point)
                    if attempt.redo is None:
                        self._set_position(attempt.captured.position)
                attempt = attempt.earlier
            self._former = self.uncertain_attempt = None
            return saved

    async def _resolve_shared(self, attempt: Attempt, redo: Callable[[], bool]) -> bool:
        """Resolve a step that was to be saved together with another agent's. It is not sent again: if it is not there,
        the next save takes its place, or conflicts with it if it arrives after all."""
        newest = await self.line.latest_step()
        if newest is None or newest.id != attempt.request.id:
            return False
        self.uncertain_attempt = None
        if not redo():
            return False
        self.mark_saved(attempt, newest)
        return True

    async def _resolve(self, conflict: ConflictError) -> None:
        """Merge another's save with what was to be saved, by the agent's policy; otherwise raise the conflict."""
        how, base, line = self.options.on_conflict, self.point, self.line
        newest = await line.latest_step()
        await line.check_restored(base, conflict)
        if base is not None and newest is not None and await line.is_unchanged(base, newest):
            self.point = newest
            return
        if how == "raise" or base is None or newest is None or newest.id == base.id:
            raise conflict
        await line.allow("read")
        theirs = await line.read_channels(newest)
        record = await line.read_record(newest, theirs)
        self._check_class(record)
        if not await line.is_ancestor(base, newest):
            raise conflict  # the agent was deleted and created again: the sides have no common base
        if not self._conversation.is_same(self._saved_channels, theirs):
            raise conflict
        stored, theirs = theirs, await self.schema.read(theirs)
        saved = await self.schema.read(self._saved_channels)
        with self.lock:
            messages = self.data.conversation.unsaved_messages()
            sides = Sides(*map(self.schema.comparable, (saved, self._pack_channels(messages), theirs)))
            runs = self.data.operators.current_runs(*(as_map(side[_FIELDS]) or {} for side in sides[:2]))
            if messages.is_rewrite and how != "overwrite" and record.messages != messages.base_count:
                raise conflict
            state = resolve_conflict(line.handle.codec, how, sides, runs, self.where)
            self.schema.check_valid(state["state"], state["fields"])
            if how != "overwrite":
                self._apply(state)
            else:
                self.data.position = AgentPosition(state["status"], state["state"], self._pending(state))
            # Last: an agent that could not apply the state must not continue from there.
            self.point, self._saved_channels = newest, stored
            merged = pack_state(line.handle.codec, {"fields": state["fields"]})
            self.data.operators.rebase(*(as_map(side[_FIELDS]) or {} for side in (theirs, merged)))
            if not messages.is_rewrite:  # messages of both sides are retained in any case
                self.data.conversation.rebase(record.messages, record.tokens, self.read_messages)

    def _apply(self, state: Mapping[str, Any]) -> None:
        """Take over the values of channels. The caller has the lock. The author's own code comes first: if it raises,
        nothing else is changed."""
        data, pending = self.data, self._pending(state)
        undeclared = self.spec.restore(self.agent, state["fields"])
        for name in _DICTS:
            setattr(data, name, dict(state[name]))
        data.status, data.state, data.created = state["status"], state["state"], state["created"]
        data.pending, data.undeclared_fields = pending, undeclared

    def _pending(self, state: Mapping[str, Any]) -> PendingChange | None:
        pending = state.get(PENDING)
        return None if pending is None else PendingChange.of(pending, self.where)

    async def call_hooks(self, hook: str, **details: Any) -> FeatureHooks:
        """Call the hooks before a change with the state that is to be saved, and apply what they change of it. Raises
        `VetoError`."""
        line, scope = self.line, str(self.line.scope)
        engine, codec = line.handle.engine, line.handle.codec
        if engine.hooks is None or not any(engine.hooks.matching(hook, scope, line.id)):
            return FeatureHooks(MISSING)
        with self.lock:
            data = self.data
            value = {name: getattr(data, name) for name in _DICTS}
            value["fields"] = {**data.undeclared_fields, **self.spec.persist(self.agent)}
            value = codec.unpack(codec.pack(value))  # a copy: the agent's own changes are not those of hooks
        metadata = {"class": self.spec.name, "status": self.data.status, "state": self.data.state, **details}
        hooks = await line.call_hooks(hook, metadata, value)
        if hooks.value is not value:
            self._apply_hook_changes(value, hooks.value)
        return hooks

    def _apply_hook_changes(self, before: Mapping[str, Any], after: Any) -> None:
        """Apply only what hooks changed, since the agent may have changed in the meantime."""
        after = validation.require_mapping(after, "state of the agent, as a hook left it")
        with self.lock:
            for name in _DICTS:
                apply_changes(getattr(self.data, name), before[name], after.get(name, {}))
            fields = {**self.data.undeclared_fields, **self.spec.persist(self.agent)}
            if apply_changes(fields, before["fields"], after.get("fields", {})):
                self.data.undeclared_fields = self.spec.restore(self.agent, fields)

    async def load(self, point: StepRef) -> AgentRecord:
        """Load the state of a step. If that fails, the agent is as it was, except for what its own `restore` did."""
        line = self.line
        await line.allow("read")
        await self._attach_schemas()
        values = await line.read_channels(point)
        record = await line.read_record(point, values)
        self._check_class(record)
        fields = await self.schema.upgrade(values, record.schema)
        self.schema.check_valid(record.state, fields)
        messages = await self._conversation.upgrade(point, values, record.messages)
        state = {**unpack_state(line.handle.codec, values), "fields": fields}
        with self.lock:
            self._apply(state)
            self.data.conversation.reset(record.messages, record.tokens, self.read_messages)
            if messages is not None:
                self.data.conversation.upgrade(messages)
            self.point, self._saved_channels, self.uncertain_attempt, self._former = point, values, None, None
            if self.tracker is not None:
                self.tracker.mark_loaded()
        await line.handle.guard.saw(line.scope, ())
        return replace(record, fields=fields)

    async def _attach_schemas(self) -> None:
        await self.schema.attach()
        await self._conversation.attach()

    def saved_state(self) -> SavedState:
        """Return the state of the agent, which was saved or loaded just now."""
        conversation = self.data.conversation
        with self.lock:
            channels = self._pack_channels(conversation.unsaved_messages())
            return SavedState(self.point, channels, len(conversation), conversation.tokens, self.data.operators.copy())

    async def revert(self, saved: SavedState) -> None:
        """Return to a saved state: fields, conversation, tools and all else. The step that follows saves it again."""
        conversation, moved = self.data.conversation, self.point is not saved.point
        messages = []
        if moved and saved.point is not None:  # the agent was saved since
            messages = await self.line.read_messages(saved.point, 0, saved.messages)
        with self.lock:
            self._apply(unpack_state(self.line.handle.codec, saved.channels))
            self.data.operators = saved.operators.copy()
            if moved:
                conversation.replace(messages)
            else:
                conversation.reset(saved.messages, saved.tokens, self.read_messages)

    def _check_class(self, record: AgentRecord) -> None:
        """Refuse the record of an agent of another class, which would be lost with the next step."""
        if record.kind != self.spec.name:
            raise InvalidError(
                f"the stored agent's class is {record.kind!r}, but this one's is {self.spec.name!r}",
                where=self.where,
                hint="Use another id; if the class was renamed, declare it under the name that it had",
            )

    async def read_messages(self, start: int, stop: int) -> list[Any]:
        """Read a range of the saved messages."""
        if self._former is not None:
            async with self.save_lock.acquire():
                await self.resolve_uncertain()
        if self.point is None:
            return []
        await self.line.allow("read")
        messages = await self.line.read_messages(self.point, start, stop)
        await self.line.handle.guard.saw(self.line.scope, ())
        return messages

    async def write_through(self) -> None:
        """Save unsaved changes now, if the agent is saved at every change."""
        tracker = self.tracker
        if tracker is not None and tracker.settings.write_through and tracker.unsaved and not self.open_blocks:
            await self.save(if_changed=True)

    def build_event(self, kind: str, action: str, detail: Mapping[str, Any] | None = None) -> Event:
        """Build an event that records something done with the agent."""
        packed = b"" if detail is None else self.line.handle.codec.pack(detail)
        return Event(kind, self.line.handle.guard.actor, action, self.line.id, detail=packed)

    def now(self) -> datetime:
        return to_datetime(self.line.handle.now())
