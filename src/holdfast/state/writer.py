"""Writing keys: the changes become a step of each scope's line, and all steps one batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change
from holdfast.codec import msgpack
from holdfast.engine import artifact_links, trace_context
from holdfast.engine.append import AppendRequest
from holdfast.engine.events import Event
from holdfast.engine.guard import Permit, Preconditions, both_preconditions
from holdfast.engine.loaded_states import unfolded_state
from holdfast.engine.model.diff import diff
from holdfast.engine.model.operations import Combine, EditList, EditMap, EditText, KeepRun, Operation, Set, apply
from holdfast.engine.model.operators import UpdateOperator, combine
from holdfast.engine.model.packed_state import Packed, as_items, as_map, flatten, pack_name
from holdfast.engine.model.scopes import ITEMS, Scope
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState, weigh
from holdfast.engine.state_reader import pack_operator
from holdfast.engine.step_info import StepInfo
from holdfast.engine.system_line import LineChange, StepAudit, audited_request
from holdfast.engine.value_schemas import NO_MARK, SchemaMark
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.reader import KeyVersion, ScopeView, StoredValue
from holdfast.state.session_guard import session_id, sessions_active

if TYPE_CHECKING:
    from holdfast.engine.value_schemas import ValueSchema
    from holdfast.state.item_index import ItemChanges
    from holdfast.state.key_hooks import KeyHooks

FOLD_EVERY = 128
"""Steps of scopes are small, and many keys are in nodes of their own: they are folded less often than threads."""

_WORTH_COMPARING = 256
"""A value of more packed bytes is compared with the old one, to store only the difference."""

_MANY = 256
"""The step of more keys than this does not have their previous versions."""


Compute: TypeAlias = "Callable[[StoredValue | None], Awaitable[Packed | None]]"
"""Computes a new value from the current one, if there is one; None deletes the key."""


@dataclass(slots=True)
class KeyWrite:
    """A change of a key."""

    key: str
    action: str = "set"
    """`set`, `patch`, `delete`, or another name for the history."""
    packed: Packed = b""
    """The new value, if it does not depend on the old one."""
    compute: Compute | None = None
    """Computes the new value, if it does."""
    parts: Mapping[tuple[Any, ...], Any] = field(default_factory=dict)
    removed: Sequence[tuple[Any, ...]] = ()
    """The changes of a patch below the key, which may be operators, and what it removes."""
    operator: UpdateOperator | None = None
    """The operator to apply to the value."""
    made: Callable[[Packed], None] | None = None
    """Called with the value that the operator makes, at each attempt."""
    expected: int | None = None
    """The version that the key must have; 0 for none."""
    expires: int = 0
    """When it expires, in nanoseconds since 1970; 0 for never."""
    keep_expiry: bool = False
    must_exist: bool = False
    whole: bool = False
    """Whether to store the whole value, and not the difference from the old one: its step can then be read alone."""
    mark: SchemaMark | None = None
    """The version of the schema of a value that comes from elsewhere, such as another scope."""
    scope_schema: str = ""
    """The version of the scope as a whole that it comes from."""
    ttl: int = 0
    """How long an item lives after it was changed or read, in nanoseconds; 0 for ever."""
    vectors: Mapping[str, bytes] | None = None
    """The vectors of an item, by the paths of the texts that they stand for."""
    outcome: str = "ok"
    """The outcome that its event has: a value may say that something failed."""

    @property
    def is_patch(self) -> bool:
        """Whether it changes parts of the value."""
        return bool(self.parts or self.removed)


class WrittenKey(NamedTuple):
    """A key that was changed: its versions before and after; 0 where it does not exist."""

    scope: Scope
    key: str
    action: str
    before: int
    version: int
    id: str


Writes: TypeAlias = "Sequence[KeyWrite] | Callable[[ScopeView], Awaitable[Sequence[KeyWrite]]]"
"""Changes of one scope's keys; or a function that computes them from the scope, at each attempt."""

Check: TypeAlias = Callable[[ScopeView], Awaitable[None]]
"""Checks a scope at each attempt, and raises an error to refuse the changes."""


async def write(
    handle: StoreHandle, writes: Mapping[Scope, Writes], checks: Mapping[Scope, Check] | None = None
) -> list[WrittenKey]:
    """Change keys in one scope or several, all or none."""
    written, _ = await commit(handle, writes, checks)
    return written


async def commit(
    handle: StoreHandle,
    writes: Mapping[Scope, Writes],
    checks: Mapping[Scope, Check] | None = None,
    *,
    requests: Sequence[AppendRequest] = (),
    preconditions: Preconditions | None = None,
) -> tuple[list[WrittenKey], list[StepInfo]]:
    """Change keys together with checkpoints to save, on further conditions."""
    edits, together = await _prepare(handle, writes, checks, requests, preconditions)
    heads = await handle.engine.writer.save(*together)
    if handle.engine.hooks is not None:
        for edit, head in zip(edits, heads, strict=False):
            if edit.hooks is not None and edit.hooks.pending:
                edit.hooks.call_after(head.point.seq + 1, head.point.id)
    written = [
        WrittenKey(scope, key, action, before, head.point.seq + 1 if action != "delete" else 0, head.point.id)
        for edit, head in zip(edits, heads, strict=False)
        for scope, key, action, before, _, _ in edit.written
    ]
    return written, heads[len(edits) :]


async def commit_request(
    handle: StoreHandle, scope: Scope, writes: Writes, preconditions: Preconditions | None = None
) -> AppendRequest:
    """Return the request that changes keys of a scope, to be saved with others."""
    _, (request,) = await _prepare(handle, {scope: writes}, None, (), preconditions, is_whole=False)
    return request


async def _prepare(
    handle: StoreHandle,
    writes: Mapping[Scope, Writes],
    checks: Mapping[Scope, Check] | None,
    requests: Sequence[AppendRequest],
    preconditions: Preconditions | None,
    *,
    is_whole: bool = True,
) -> tuple[list[_LineEdit], list[AppendRequest]]:
    """Return the edits of scopes, and all requests. `is_whole` says that nothing else is saved with them."""
    # A change that is made alone needs no correlation id: the id of its step is one. What hooks change belongs to it,
    # and is made before there is that id.
    is_alone = is_whole and len(writes) == 1 and not requests and handle.engine.hooks is None
    trace = (trace_context.current_or_default if is_alone else trace_context.current_or_new)(session_id(writes))
    edits, together = list[_LineEdit](), list[AppendRequest]()
    for scope, several in writes.items():
        keys = () if callable(several) else [each.key for each in several]
        permit = await handle.guard.allow("write", scope, keys)
        check = None if checks is None else checks.get(scope)
        edit = _LineEdit(handle, scope, several, trace, permit, check)
        edits.append(edit)
        together.append(edit.request)
    together += requests
    sessions = sessions_active(handle, writes)
    if sessions is not None:
        await sessions(False)  # before anyone is told of a value: the conditions are evaluated after the edit
    for more in (preconditions, sessions):
        if more is not None:
            together[0].preconditions = both_preconditions(together[0].preconditions, more)
    return edits, together


def edit_request(
    handle: StoreHandle,
    line: Line,
    kind: str,
    edit: Callable[[ScopeView], Awaitable[LineChange]],
    preconditions: Preconditions | None = None,
) -> AppendRequest:
    """Return the request for an audited step of a scope's line that is not a change of keys by a caller."""
    return audited_request(
        handle.engine,
        line,
        kind,
        handle.guard.actor,
        lambda parent, loaded, time: edit(ScopeView(handle, line, parent, loaded, time)),
        preconditions,
        fold_every=FOLD_EVERY,
    )


class _LineEdit:
    """The changes of one scope, computed again at each attempt."""

    def __init__(
        self,
        handle: StoreHandle,
        scope: Scope,
        writes: Writes,
        trace: trace_context.Trace,
        permit: Permit,
        check: Check | None,
    ) -> None:
        self._handle = handle
        self._scope = scope
        self._writes = writes
        self._trace = trace
        self._check = check
        self._line = handle.line(scope)
        self.written: list[WrittenKey] = []
        self._audit = StepAudit(handle.engine, self._line, handle.guard.actor, trace)
        self._time = self._version = 0
        self.hooks = None if handle.engine.hooks is None else _key_hooks()(handle, self._line.name, trace)
        self._items = (
            _item_changes()(handle.codec, handle.engine.protection)
            if scope.parts and scope.parts[-1].kind == ITEMS
            else None
        )
        self._schemas: dict[bytes, ValueSchema] = {}
        """The schemas of the keys that the step sets, by their packed names."""
        conditions = permit.guards
        if handle.engine.value_schemas is not None:
            conditions = both_preconditions(conditions, self._schemas_unchanged)
        self.request = AppendRequest(
            self._line,
            self._edit,
            attached_changes=self._attach,
            preconditions=conditions,
            fold_every=FOLD_EVERY,
        )

    async def _schemas_unchanged(self, again: bool) -> list[Change]:
        """Return the conditions on which values of these versions may be written."""
        schemas = {each.reference: each for each in self._schemas.values()}
        return [change for each in schemas.values() for change in await each.conditions(again)]

    async def _edit(self, parent: StepRef | None, loaded: LoadedState | None) -> EditMap:
        if self.hooks is not None and self._version:  # it is not the first attempt
            self.hooks.reset()
        self._version = 1 if parent is None else parent.seq + 2
        view = ScopeView(self._handle, self._line, parent, loaded, self._handle.now())
        if self._check is not None:
            await self._check(view)
        writes = await self._writes(view) if callable(self._writes) else self._writes
        computed, sources = list[KeyWrite](), set[str]()
        for each in writes:
            if each.compute is not None or each.operator is not None:
                computed.append(each)
            if each.scope_schema:
                sources.add(each.scope_schema)
        if self.request.convert is None:
            self.request.schema = await self._schema_of(view, sources) if sources else ""
        if computed and any(each.action != "expire" for each in computed):
            # What is computed of a value tells what it was; and whoever may read it may do so no longer, at a later
            # attempt.
            seen = [each.key for each in computed]
            await self._handle.guard.allow("read", self._scope, seen)
            await self._handle.guard.saw(self._scope, seen)
        put: list[tuple[bytes, Operation]] = []
        removed: list[bytes] = []
        self.written = []
        if self._schemas:
            self._schemas, self.request.key_schemas = {}, ()
        for each in writes:
            await self._edit_key(view, parent, loaded, each, put, removed)
        self._describe(writes, put[0][0] if put else removed[0] if removed else b"")
        return EditMap(tuple(removed), tuple(put))

    async def _schema_of(self, view: ScopeView, schemas: set[str]) -> str:
        """Return the version that the scope gets, from those that its keys are copied from. Raises `UnsupportedError`
        if it has keys of another."""
        found = ""
        for schema in schemas:
            here = await view.scope_schema()
            if here == schema or not await view.keys():
                found = schema
            elif here or not await self._handle.engine.appender.inherited.is_unversioned(self._line, schema):
                raise UnsupportedError(
                    f"keys of {schema} would be beside those of {here or 'a scope without a version'}",
                    where=f"scope {self._scope}",
                    hint="Attach the schema, so that what is copied is upgraded: store.schemas.attach(…)",
                    code="schema-mixed",
                )
        return found

    async def _edit_key(
        self,
        view: ScopeView,
        parent: StepRef | None,
        loaded: LoadedState | None,
        each: KeyWrite,
        put: list[tuple[bytes, Operation]],
        removed: list[bytes],
    ) -> None:
        """Add the change of one key to what is put and removed."""
        marked = self._handle.engine.value_schemas is not None
        schema = view.schema(each.key) if marked and each.action != "delete" else None
        is_plain = await view.is_plain(each.key)
        old: StoredValue | KeyVersion | None
        if schema is not None or self._needs_value(each):
            old = await (view.find_stored(each.key) if marked else view.find(each.key))
        else:
            old = await view.find_version(each.key, expires=not is_plain)
        live = None if old is None or 0 < old.expires <= view.now else old
        version = 0 if live is None else live.version
        stored = live if isinstance(live, StoredValue) else None
        current = stored if schema is None or stored is None else await view.upgraded(each.key, stored)
        if each.expected is not None and version != each.expected:
            raise ConflictError(
                f"the key has version {version}, and version {each.expected} was expected",
                where=f"key {each.key!r} of {self._scope}",
                hint="Read it again and apply the change to the current value, or say how to merge",
                code="version-mismatch",
            )
        if each.must_exist and live is None:
            raise NotFoundError("there is no such key", where=f"key {each.key!r} of {self._scope}")
        action, packed, packed_key = each.action, each.packed, pack_name(each.key)
        if each.compute is not None:
            computed = await each.compute(current)
            if computed is None:
                action = "delete"
            else:
                packed = computed
        self.written.append(WrittenKey(self._scope, each.key, action, version, 0, ""))
        parts: Sequence[tuple[bytes, Operation]] | None = None
        if each.operator is not None:
            operation = pack_operator(self._handle.codec, (each.key,), each.operator)
            packed = self._combine(each.key, operation, current)
            # An operator is not applied to a value that has expired, or is of an older version.
            parts = [(packed_key, operation if live is old and current is stored else Set(flatten(packed)))]
        elif each.is_patch:
            edit = self._handle.engine.edit_parts(self._line, each.parts, each.removed)
            if current is not None and current is not stored:  # of an older version: it is stored as a whole
                upgraded = unfolded_state({packed_key: current.entry.value}, {}, current.entry.origin)
                packed = current.entry.value
                for _, part in (await edit(parent, upgraded)).put:
                    packed = apply(part, packed)
            else:
                parts = (await (edit(None, None) if live is None else edit(parent, loaded))).put
        if self.hooks is not None:
            patch = None if parts is None else parts[0][1] if parts else EditMap()
            changed = await self.hooks.before(each.key, action, packed, patch, current, version)
            if changed is not None:
                packed, parts = changed, None
        if each.made is not None:
            each.made(packed)
        if action == "delete":
            if self._items is not None and isinstance(old, StoredValue):
                removed += await self._items.removals(view, each.key, old)
            if old is not None:
                removed.append(packed_key)
                removed += [names.pack_ttl(each.key)] * bool(old.expires)
                if not is_plain and await view.find_mark(each.key) is not NO_MARK:
                    removed.append(names.pack_mark(each.key))
            return
        if schema is None and each.mark is None and live is not None and not is_plain and action != "expire":
            reference = (await view.find_mark(each.key)).reference
            if reference:
                inherited = self._handle.engine.appender.inherited
                await inherited.require_unversioned(self._line, reference, view.where(each.key))
        if schema is not None:
            if each.mark is not None and each.mark.reference != schema.reference:
                packed = await schema.read(packed, each.mark, view.where(each.key))
            packed, parts, mark = _fit(schema, packed, parts, stored, view.where(each.key))
            self._schemas[packed_key] = schema
            self.request.key_schemas += ((packed_key, mark.reference),)
        if schema is not None or each.mark is not None:
            mark = mark if schema is not None else each.mark or NO_MARK
            if mark != await view.find_mark(each.key):
                put.append((names.pack_mark(each.key), Set(flatten(mark.pack(self._handle.codec)))))
        if parts is not None:
            put += parts
        elif stored is not None and not each.whole and weigh(packed) > _WORTH_COMPARING:
            change = diff(stored.entry.value, packed)
            put.append((packed_key, _unchanged(packed) if change is None else change))
        else:
            put.append((packed_key, Set(flatten(packed))))
        if self._items is not None and action != "expire":
            await self._items.add(
                view,
                each.key,
                old if isinstance(old, StoredValue) else None,
                packed if parts is None else _patched(live, parts),
                each.ttl,
                each.vectors,
                put,
                removed,
            )
        expires = each.expires
        if each.keep_expiry and live is not None:
            expires = live.expires
        if expires != (0 if old is None else old.expires):
            if expires:
                put.append((names.pack_ttl(each.key), Set(self._handle.codec.pack(expires))))
            else:
                removed.append(names.pack_ttl(each.key))

    def _combine(self, key: str, operation: Combine, stored: StoredValue | None) -> Packed:
        """Return the value of a key after an operator."""
        try:
            return combine(operation.rule, operation.operand, None if stored is None else stored.entry.value)
        except InvalidError as error:
            raise InvalidError(
                error.what, where=f"key {key!r} of {self._scope}", hint="Set the key to such a value first"
            ) from None

    def _needs_value(self, each: KeyWrite) -> bool:
        """Whether the old value is needed, and not only its version: it may be large."""
        if each.compute is not None or each.operator is not None or self._items is not None:
            return True
        if self.hooks is not None and (self.hooks.wants_old or each.is_patch):
            return True  # of a patch, hooks are told what comes of it
        return (
            each.action != "delete" and not each.is_patch and not each.whole and weigh(each.packed) > _WORTH_COMPARING
        )

    def _describe(self, writes: Sequence[KeyWrite], first: bytes) -> None:
        """Set the metadata of the step: who made it and why, and the previous versions of its keys. `first` is the
        packed name of the first channel that it changes."""
        more: dict[str, object] = {}
        if self._trace.artifacts:
            more["artifacts"] = list(self._trace.artifacts)
        written = self.written
        if len(written) == 1 and pack_name(written[0].key) == first:  # which names the key
            more["before"] = written[0].before
        elif len(written) <= _MANY:
            more["before"] = {each.key: each.before for each in written}
        actor, self._time = self._handle.guard.actor, self._handle.now()
        events = [
            Event("change", actor, done.action, done.key, each.outcome)
            for done, each in zip(written, writes, strict=True)
        ]
        if self.hooks is not None:
            if self.hooks.notes:
                events = [self._with_notes(event, self.hooks) for event in events]
            events += self.hooks.events
        self._audit.describe(self.request, self._time, events, more)
        if len(written) == 1:
            self.request.kind = written[0].action
            return
        actions = {each.action for each in written}
        if actions != {"set", "delete"} and len(actions) > 1:
            actions -= {"delete"}  # which the keys that it took away tell by themselves
        self.request.kind = actions.pop() if len(actions) == 1 else "batch"

    def _with_notes(self, event: Event, hooks: KeyHooks) -> Event:
        """Return the event of a change with the notes of hooks."""
        detail = hooks.packed_notes(event.target)
        return event._replace(detail=detail) if detail else event

    def _attach(self, id: str) -> list[Change]:
        made = self._audit.rows(id)
        if self.hooks is not None:
            made += self.hooks.pending_rows(id)
        if self._trace.artifacts:
            keys = [each.key for each in self.written]
            made += artifact_links.link_rows(self._line, id, self._version, self._time, keys, self._trace.artifacts)
        return made


@cache
def _key_hooks() -> Callable[[StoreHandle, str, trace_context.Trace], KeyHooks | None]:
    """Return the function that finds hooks. It is imported late, since most stores have none."""
    from holdfast.state.key_hooks import key_hooks

    return key_hooks


@cache
def _item_changes() -> type[ItemChanges]:
    """Return the class that changes the index of items. It is imported late, since most scopes have none."""
    from holdfast.state.item_index import ItemChanges

    return ItemChanges


def _patched(live: StoredValue | KeyVersion | None, parts: Sequence[tuple[bytes, Operation]]) -> Packed:
    """Return the value that comes of changing parts of one."""
    old = live.entry.value if isinstance(live, StoredValue) else None
    return apply(parts[0][1], old) if parts else old or b"\x80"


def _fit(
    schema: ValueSchema,
    packed: Packed,
    parts: Sequence[tuple[bytes, Operation]] | None,
    stored: StoredValue | None,
    where: str,
) -> tuple[Packed, Sequence[tuple[bytes, Operation]] | None, SchemaMark]:
    """Return what to store of a value, or of parts of it, so that it fits its schema, and its version."""
    old, mark = (None, NO_MARK) if stored is None else (stored.entry.value, stored.mark)
    if parts is None:
        packed, mark = schema.write(packed, old, mark, where)
        return packed, None, mark
    new = apply(parts[0][1], old) if parts else old
    if new is None:
        return packed, parts, mark
    fitted, mark = schema.write(new, old, mark, where)
    return (packed, parts, mark) if fitted is new else (fitted, None, mark)


def _unchanged(packed: Packed) -> Operation:
    """Return the change that keeps a value, but gives the key a new version."""
    if as_map(packed) is not None:
        return EditMap()
    items = as_items(packed)
    if items is not None:
        return EditList((KeepRun(0, len(items)),))
    if isinstance(packed, bytes) and (msgpack.is_str(packed) or msgpack.is_bin(packed)):
        return EditText((KeepRun(0, len(msgpack.content(packed))),))
    return Set(flatten(packed))
