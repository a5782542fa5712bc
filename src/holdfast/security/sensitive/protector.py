"""The protector: applies policies to what is about to be stored, and records what it replaced."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from holdfast._named_tuple import NamedTuple
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.engine.engine import Engine
from holdfast.engine.events import place_of
from holdfast.engine.model.diff import diff
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    Operation,
    Set,
    apply,
)
from holdfast.engine.model.operators import Rule
from holdfast.engine.model.packed_state import POINTER, Packed, PackedMap, as_map, flatten, unpack_name
from holdfast.engine.model.scopes import place_of_line
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.namespaces import AGENTS, is_thread, line_kind, root_of
from holdfast.engine.paths import path_text
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.subject_names import METADATA_KEY
from holdfast.errors import DeniedError, InvalidError
from holdfast.security.audit.thread_audit import record
from holdfast.security.sensitive import checks
from holdfast.security.sensitive.detector import Detector, Recognizer, SensitiveSpan, mask
from holdfast.security.sensitive.formats import BETWEEN, BY_NAME, FIELD, is_secret_name
from holdfast.security.sensitive.markers import ANY_MARKER, MarkerCheck, Markers, mask_markers
from holdfast.security.sensitive.packed_values import Path, replace_texts, texts_of

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

log: Final = logging.getLogger("holdfast.redaction")

_RANDOM: Final = "high-entropy"

_SIGNATURES: Final = frozenset({"signature", "encrypted_content", "thought_signature", "thoughtSignature", "data"})
"""Fields of messages in which providers send random text that they want back as it was."""

_MOST_RECORDED = 4096
"""How many replaced values are remembered, so that they are not recorded again when the same state is saved again."""

_SUBJECT: Final = ("metadata", METADATA_KEY)

_MOST_PATHS = 100
"""How many paths a record has at most."""


class Replacement(NamedTuple):
    """Something that a policy replaced, or would have."""

    path: str
    format: str
    action: str
    policy: str
    marker: str


class ProtectedEntry(NamedTuple):
    """A packed key of a dict as it is stored, its text for paths, and the name of its field."""

    key: bytes
    label: str
    name: str


class TextProtector:
    """Replaces sensitive data in the texts of one channel."""

    def __init__(
        self,
        policies: PolicySet,
        rules: ChannelRules,
        domain: str,
        *,
        redact_only: bool = False,
        has_subject: bool = False,
    ) -> None:
        """`has_subject` says that an entry `subject` of metadata names the person whose data it is. It stays as it is:
        nobody would find the data again, to export or erase it."""
        self._policies = policies
        self._rules = rules
        self._domain = domain
        self._redact_only = redact_only
        self._has_subject = has_subject
        self.replaced: list[Replacement] = []

    def protect(self, packed: Packed, path: Path, name: str) -> Packed | None:
        """Return the packed value to store; None if nothing is found in it."""
        if isinstance(packed, bytes):
            return self._protect_bytes(packed, path, name)
        if isinstance(packed, list):
            items = [self._protect_bytes(item, (*path, place), name) for place, item in enumerate(packed)]
            if not any(items):
                return None
            return [old if new is None else new for old, new in zip(packed, items, strict=True)]
        entries: PackedMap = {}
        for key, value in packed.items():
            entry = self.protect_entry(key, path)
            new = self.protect(value, (*path, entry.label), entry.name)
            entries[entry.key] = value if new is None else new
        return None if entries == packed else entries

    def protect_entry(self, key: bytes, path: Path) -> ProtectedEntry:
        """Return the key to store in place of one of a dict, and what it is called."""
        new = self._protect_bytes(key, (*path, "(key)"), "") or key
        return ProtectedEntry(new, _label(new), _label(key))

    def _protect_bytes(self, packed: bytes, path: Path, name: str) -> bytes | None:
        if packed.startswith(POINTER):
            return None
        texts = texts_of(packed, name)
        if not texts or not find_any(self._rules.detector, texts, self._policies.markers):
            return None
        new = replace_texts(packed, path, name, self._replace, in_bytes=not self._rules.is_internal)
        return None if new == packed else new

    def _replace(self, path: Path, name: str, text: str) -> str:
        if self._has_subject and _SUBJECT in (path[-2:], path[-3:-1]):  # one name, or one of a list
            return text
        for found in reversed(find_text(self._rules.detector, name, text, self._policies.markers)):
            marker = self._marker(text[found.start : found.end], found.format, path)
            text = text[: found.start] + marker + text[found.end :]
        return text

    def replace_text(self, text: str, path: Path = ()) -> str:
        """Return a text without sensitive data."""
        return self._replace(path, "", text)

    def _marker(self, value: str, format_: str, path: Path) -> str:
        policy = self._rules.policy(format_)
        action = "redact" if self._redact_only else policy.action
        if action == "allow":
            return value
        if action == "refuse":
            self.replaced.append(Replacement(path_text(path), format_, action, policy.name, ""))
            return "…"  # nothing is stored, and the paths of errors must not have it
        if policy.markers is None:
            marker = f"[redacted:{format_}]"
        elif action == "redact":
            marker = policy.markers.redact(value, format_)
        else:
            marker = policy.markers.tokenise(value, format_, self._domain)
        self.replaced.append(Replacement(path_text(path), format_, action, policy.name, marker))
        return marker


def find_any(detector: Detector, texts: Sequence[tuple[str, str]], markers: Sequence[MarkerCheck]) -> bool:
    """Whether anything may be found in texts: all are searched at once."""
    if detector.by_field and any(is_secret_name(name) for name, _ in texts if name):
        return True
    # Every message has an id, whose digits would have all formats of numbers searched for.
    joined = BETWEEN.join([text for _, text in texts if len(text) != 36 or not _UUID.fullmatch(text)])
    return bool(detector.find(mask_markers(joined, markers)))


def find_text(detector: Detector, name: str, text: str, markers: Sequence[MarkerCheck]) -> list[SensitiveSpan]:
    """Return what is found in the text of a field. Markers are not searched."""
    masked = mask_markers(text, markers)
    if masked != text and not masked.strip(BETWEEN):
        return []
    last = name.rpartition("/")[2]
    if detector.by_field and is_secret_name(last) and masked == text and checks.is_value(text):
        return [SensitiveSpan(0, len(text), FIELD)]
    found = detector.find(masked)
    return [each for each in found if each.format != _RANDOM] if last in _SIGNATURES else found


def redact_text(detector: Detector, name: str, text: str) -> str:
    """Return the text of a field with the formats of what is found in place of it."""
    for found in reversed(find_text(detector, name, text, ANY_MARKER)):
        text = f"{text[: found.start]}[redacted:{found.format}]{text[found.end :]}"
    return text


def _label(key: bytes) -> str:
    texts = texts_of(key)
    return texts[0][1] if texts else key.hex()


class Protector:
    """Applies the policies of one open store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.policies: PolicySet = PolicySet()
        self._recorded: OrderedDict[tuple[Line, Replacement], None] = OrderedDict()
        self._lock = Lock()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = Lock()

    def _texts(self, line: Line, channel: str, *, has_subject: bool = False) -> TextProtector | None:
        policies = self.policies
        rules = policies.find(line, channel)
        if rules is None:
            return None
        has_records = place_of(line.name) in ("artifacts", "sessions") or line.name.startswith(AGENTS)
        return TextProtector(policies, rules, domain_of(line), has_subject=has_subject or has_records)

    # States and edits ----------------------------------------------------------------------------------------------

    async def protect_state(self, line: Line, edit: EditMap, state: PackedMap) -> PackedMap | None:
        """Return the state to save in place of one, given how it differs from its parent."""
        replaced: PackedMap = {}
        found: list[Replacement] = []
        for key, operation in edit.put:
            channel = unpack_name(key)
            texts = self._texts(line, channel)
            if texts is not None:
                new = _protect_changed(texts, operation, state[key], (channel,), channel)
                if new is not None:
                    replaced[key] = new
                found += texts.replaced
        if found:
            await self._record(line, found)
        return {key: replaced.get(key, value) for key, value in state.items()} if replaced else None

    async def protect_edit(self, line: Line, edit: EditMap, loaded: LoadedState | None) -> EditMap:
        """Return the edit to save in place of one, given the state that it changes."""
        found: list[Replacement] = []
        put: list[tuple[bytes, Operation]] = []
        for key, operation in edit.put:
            channel = unpack_name(key)
            texts = self._texts(line, channel)
            if texts is not None:
                if has_fragments(operation):
                    operation = await self._protect_result(line, key, operation, loaded, texts)
                else:
                    operation = _protect_operation(texts, operation, (channel,), channel)
                found += texts.replaced
            put.append((key, operation))
        if not found:
            return edit
        await self._record(line, found)
        return EditMap(edit.removed, tuple(put), edit.moved)

    async def _protect_result(
        self, line: Line, key: bytes, operation: Operation, loaded: LoadedState | None, texts: TextProtector
    ) -> Operation:
        """Search the value that an edit of parts results in: a part of a secret does not look like one."""
        engine, channel = self._engine, unpack_name(key)
        entry = None if loaded is None else await engine.entries.find(line, loaded, key)
        if entry is None:
            return operation
        (old,) = (await engine.states.resolve_pointers(line, {key: entry.value})).values()
        new = _protect_changed(texts, operation, apply(operation, old), (channel,), channel)
        if new is None:
            return operation
        return diff(old, new) or Set(flatten(new))

    async def protect_writes(self, line: Line, writes: Sequence[PendingWriteRow]) -> Sequence[PendingWriteRow]:
        """Return the pending writes to store in place of some."""
        found: list[Replacement] = []
        rows = list(writes)
        for place, row in enumerate(rows):
            texts = self._texts(line, row.channel)
            if texts is not None:
                new = texts.protect(row.packed, (row.channel,), row.channel)
                if new is not None:
                    rows[place] = row._replace(packed=flatten(new))
                found += texts.replaced
        if found:
            await self._record(line, found)
        return rows

    async def protect_metadata(self, line: Line, metadata: bytes) -> bytes:
        """Return the metadata of a step to store in place of some."""
        texts = self._texts(line, "metadata", has_subject=True) if len(metadata) > 1 else None
        if texts is None:
            return metadata
        new = texts.protect(metadata, ("metadata",), "metadata")
        if texts.replaced:
            await self._record(line, texts.replaced)
        return metadata if new is None else flatten(new)

    async def protect_text(self, line: Line, text: str, what: str) -> str:
        """Return the text to store in place of one about a line, such as the reason of a hold."""
        texts = self._texts(line, what) if text else None
        if texts is None:
            return text
        new = texts.replace_text(text, (what,))
        if texts.replaced:
            await self._record(line, texts.replaced)
        return new

    async def refuse(self, line: Line, packed: bytes, what: str) -> None:
        """Raise `DeniedError` if something has sensitive data that cannot be replaced, such as settings."""
        texts = self._redactor()
        if texts is not None:
            texts.protect(packed, (what,), "")
            if texts.replaced:
                await self._record(line, [each._replace(action="refuse") for each in texts.replaced])

    # Records about changes -----------------------------------------------------------------------------------------

    def redact(self, packed: bytes) -> bytes:
        """Return packed details without sensitive data."""
        texts = self._redactor()
        new = None if texts is None else texts.protect(packed, (), "")
        return packed if new is None else flatten(new)

    def redact_text(self, text: str) -> str:
        """Return the text of a message without sensitive data."""
        texts = self._redactor()
        return text if texts is None else texts.replace_text(text)

    def _redactor(self) -> TextProtector | None:
        policies = self.policies
        rules = policies.everything
        return None if rules is None else TextProtector(policies, rules, "", redact_only=True)

    async def _record(self, line: Line, found: Sequence[Replacement]) -> None:
        """Record what was replaced, before it is stored; raise if something is refused."""
        refused = [each for each in found if each.action == "refuse"]
        chosen = refused or self._new(line, found)
        if not chosen:
            return
        detail = {
            "replaced": [
                {"path": each.path, "format": each.format, "action": each.action, "policy": each.policy}
                for each in chosen[:_MOST_PATHS]
            ],
            "count": len(chosen),
        }
        await record(self._engine, [line], "protect", detail, "denied" if refused else "ok")
        first = chosen[0]
        if refused:
            raise DeniedError(
                f"it contains sensitive data ({first.format}), which the policy {first.policy!r} refuses",
                where=mask(f"{first.path} of {place_of_line(line.name)}"),
                hint="Remove it, or store a reference to it; a policy with another action replaces it",
                code="redaction-refused",
            )
        log.info("%d values were replaced in %s", len(chosen), mask(place_of_line(line.name)))

    def _new(self, line: Line, found: Sequence[Replacement]) -> list[Replacement]:
        """Return what was not recorded yet: a program that goes on with the values that it has saves them again."""
        with self._lock:
            new = [each for each in found if (line, each) not in self._recorded]
            for each in new:
                self._recorded[line, each] = None
            while len(self._recorded) > _MOST_RECORDED:
                self._recorded.popitem(last=False)
        return new


# Operations ----------------------------------------------------------------------------------------------------------


def has_fragments(operation: Operation) -> bool:
    """Whether an operation contains parts of a text, or changes an item."""
    if isinstance(operation, EditMap):
        return any(has_fragments(each) for _, each in operation.put)
    if isinstance(operation, EditList):
        return any(isinstance(part, ChangeItem) for part in operation.parts)
    return isinstance(operation, EditText)


def _protect_operation(texts: TextProtector, operation: Operation, path: Path, name: str) -> Operation:
    """Protect an operation that contains whole values only."""
    if isinstance(operation, Set):
        new = texts.protect(operation.value, path, name)
        return operation if new is None else Set(flatten(new))
    if isinstance(operation, Combine):
        at = (*path, -1) if operation.rule is Rule.APPEND else path
        new = texts.protect(operation.operand, at, name)
        return operation if new is None else Combine(operation.rule, flatten(new))
    if isinstance(operation, EditMap):
        put = []
        for key, each in operation.put:
            entry = texts.protect_entry(key, path)
            # An entry that is changed in part is there already, under this key.
            stored = entry.key if isinstance(each, Set) else key
            put.append((stored, _protect_operation(texts, each, (*path, entry.label), entry.name)))
        return EditMap(operation.removed, tuple(put), operation.moved)
    if isinstance(operation, EditList):
        place, parts = 0, list[KeepRun | ChangeItem | tuple[bytes, ...]]()
        for part in operation.parts:
            if not isinstance(part, KeepRun | ChangeItem):
                part = tuple(
                    flatten(texts.protect(item, (*path, place + number), name) or item)
                    for number, item in enumerate(part)
                )
                place += len(part)
            else:
                place += part.length if isinstance(part, KeepRun) else 1
            parts.append(part)
        return EditList(tuple(parts))
    return operation


def _protect_changed(texts: TextProtector, operation: Operation, value: Packed, path: Path, name: str) -> Packed | None:
    """Protect what an operation changed of a value. None if there is nothing to replace."""
    if isinstance(operation, EditList) and isinstance(value, list):
        place, replaced = 0, dict[int, bytes]()
        for part in operation.parts:
            if isinstance(part, KeepRun):
                place += part.length
                continue
            for _ in range(1 if isinstance(part, ChangeItem) else len(part)):
                new = texts.protect(value[place], (*path, place), name)
                if new is not None:
                    replaced[place] = flatten(new)
                place += 1
        return [replaced.get(place, item) for place, item in enumerate(value)] if replaced else None
    if isinstance(operation, EditMap) and (entries := as_map(value)) is not None:
        keys: dict[bytes, bytes] = {}
        values: PackedMap = {}
        for key, each in operation.put:
            entry = texts.protect_entry(key, path)
            new = _protect_changed(texts, each, entries[key], (*path, entry.label), entry.name)
            if new is not None:
                values[key] = new
            if entry.key != key:
                keys[key] = entry.key
        if not keys and not values:
            return None
        return {keys.get(key, key): values.get(key, each) for key, each in entries.items()}
    return texts.protect(value, path, name)


def policies_of(engine: Engine) -> PolicySet | None:
    """Return the policies of an open store; None if it has none."""
    return engine.protection.policies if isinstance(engine.protection, Protector) else None


Action: TypeAlias = Literal["tokenise", "redact", "refuse", "encrypt", "allow"]
ACTIONS: tuple[Action, ...] = get_args(Action)

_SHARED = ("topic:", "requests:", "pipeline:", "document:")
"""A part of the names of lines with messages between agents."""

_STEPS = "/steps:main"
"""The end of the names of lines with durable steps of agents."""

_STEP_VALUES, _STEP_RECORDS = ("step/", "result/", "signal/", "wait/"), ("timer/",)
"""Their content: values of users, and records with keys and tokens of the store's own besides."""


class SensitivePolicy(msgspec.Struct, frozen=True):
    """A policy."""

    name: str
    action: Action
    formats: frozenset[str]
    scope: str
    """A pattern of scopes, and of the names of threads."""
    key: str
    """A pattern of keys, and of channels of threads."""
    markers: Markers | None = None
    recognizers: Sequence[Recognizer] = ()


def check_action(action: object) -> Action:
    """Return the action that a caller names. `InvalidError` if there is no such action."""
    for each in ACTIONS:
        if each == action:
            return each
    raise InvalidError(f"the action must be one of {', '.join(ACTIONS)}, not {ascii(action)[:80]}")


class ChannelRules:
    """The policies of one channel: a detector of all that they name, and the policy for each format."""

    def __init__(self, policies: Sequence[SensitivePolicy], *, is_internal: bool) -> None:
        """`policies` are in the order of their priority."""
        formats = frozenset().union(*(each.formats for each in policies)) - (BY_NAME if is_internal else set())
        recognizers = [recognizer for each in policies for recognizer in each.recognizers]
        self.detector: Detector = Detector(formats, recognizers)
        self.is_internal = is_internal
        """Whether the channel has records of the store, whose `bytes` are contents of artifacts."""
        self._policies = tuple(policies)

    def policy(self, format_: str) -> SensitivePolicy:
        """Return the policy for a format: the first that names it. What a recognizer found belongs to its policy."""
        for each in self._policies:
            if format_ in each.formats:
                return each
        return next(each for each in self._policies if each.recognizers)


class PolicySet:
    """The policies of a store, in the order in which they were added: later ones go before earlier ones."""

    def __init__(self, policies: Sequence[SensitivePolicy] = ()) -> None:
        self.policies: tuple[SensitivePolicy, ...] = tuple(policies)
        self.markers: list[Markers] = [each.markers for each in policies if each.markers is not None]
        self.find: Callable[[Line, str], ChannelRules | None] = lru_cache(4096)(self._find)

    def _find(self, line: Line, channel: str) -> ChannelRules | None:
        """Return the rules of a channel; None if it has none."""
        if not is_covered(line.name, channel):
            return None
        matching = self._matching(line, channel)
        if not matching or all(each.action == "allow" for each in matching):
            return None
        return _rules(matching, is_internal(line.name, channel))

    def _matching(self, line: Line, channel: str) -> tuple[SensitivePolicy, ...]:
        place = root_of(line).name if is_thread(line.name) else place_of(line.name)
        return tuple(
            each for each in reversed(self.policies) if matcher(each.scope)(place) and matcher(each.key)(channel)
        )

    def allows(self, line: Line, channel: str, format_: str) -> bool:
        """Whether the policy that decides about a format in a channel leaves it as it is."""
        deciding = next((each for each in self._matching(line, channel) if format_ in each.formats), None)
        return deciding is not None and deciding.action == "allow"

    @property
    def everything(self) -> ChannelRules | None:
        """The rules of records about changes, wherever these are."""
        active = tuple(each for each in reversed(self.policies) if each.action != "allow")
        return _rules(active, False) if active else None


@lru_cache(256)
def _rules(policies: tuple[SensitivePolicy, ...], is_internal: bool) -> ChannelRules:
    return ChannelRules(policies, is_internal=is_internal)


def is_covered(name: str, channel: str) -> bool:
    """Whether a channel holds what users put in. Other lines have the rights, the audit, and contents of artifacts."""
    if channel.startswith("\0") or (channel == "__checkpoint__" and is_thread(name)):
        return False
    if line_kind(name) in ("thread", "agent", "scope", "session"):
        return True
    place = place_of(name)
    if place.endswith(_STEPS):
        return not channel or channel.startswith((*_STEP_VALUES, *_STEP_RECORDS))
    return place in ("sessions", "artifacts") or any(part in place for part in _SHARED)


def is_internal(name: str, channel: str) -> bool:
    """Whether a channel has records with ids, names of fields and contents of the store's own besides what users put
    in: all of artifacts, and some of the durable steps of agents."""
    place = place_of(name)
    return place == "artifacts" or (place.endswith(_STEPS) and channel.startswith(_STEP_RECORDS))


def domain_of(line: Line) -> str:
    """Return the name that tokens of a line are bound to: that of its thread, or of its scope."""
    return root_of(line).name
