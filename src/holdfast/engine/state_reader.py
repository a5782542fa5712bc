"""Reads parts of a state, and changes parts of it, without reading the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from holdfast.codec import Codec, msgpack
from holdfast.codec.json_codec import fields_of, from_json, is_mark, to_json
from holdfast.engine.model import draft_reader
from holdfast.engine.model.diff import MAX_EDITS, diff
from holdfast.engine.model.drafts import Draft, MapDraft
from holdfast.engine.model.large_pointers import is_pointer, parse_pointer
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    KeepRun,
    Operation,
    Set,
    has_operator,
    set_to,
)
from holdfast.engine.model.operators import Rule, UpdateOperator, combine
from holdfast.engine.model.packed_state import Packed, flatten, inner, is_container, pack_name, pack_state, unpack
from holdfast.engine.model.workspace import MissingNode, Rounds, Workspace
from holdfast.engine.paths import path_text
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState, PartialState, StateLoader, weigh
from holdfast.errors import CorruptError, HoldfastError, InvalidError, NotFoundError

if TYPE_CHECKING:
    from holdfast.engine.append import Edit

T = TypeVar("T")

_WORTH_COMPARING = 1024
"""A larger value is compared with the old one, which is read for that."""


class ValueOutline(msgspec.Struct, frozen=True):
    """The outline of a value: a `dict`, a `list` with its length, or another `value` with the size of its packed form.
    A value that is stored apart, because it is large, is `large`, whatever it is."""

    kind: Literal["dict", "list", "value", "large"]
    length: int | None = None
    bytes: int | None = None


class AbsentPath(NotFoundError):
    """The state has nothing at a path. A mapping raises `KeyError` for this, but not for a deleted state."""


class StateReader(PartialState):
    """Reads values at paths of a state. Each read returns new objects."""

    def __init__(
        self,
        states: StateLoader,
        codec: Codec,
        line: Line,
        point: StepRef | None,
        loaded: LoadedState | None = None,
        check_exists: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(states, line, point, loaded)
        self._codec = codec
        self._check_exists = check_exists
        self._can_reload = point is not None and loaded is None
        self._parsed: tuple[tuple[bytes, ...], MapDraft | None] | None = None

    async def names(self) -> list[str]:
        """Return the names of the state's channels, in order."""

        async def read() -> list[bytes] | None:
            return await self.nodes(draft_reader.keys(self._ws, await self._state()))

        keys = await self._read(read)
        return [str(name) for name in self._codec.unpack_items(keys or [])]

    async def has(self, path: Sequence[Any]) -> bool:
        """Return whether there is a value at a path."""
        return await self._read(lambda: self._find(path)) is not None

    async def value(self, path: Sequence[Any]) -> Any:
        """Return the value at a path: a channel's name, then keys of dicts and indexes of lists."""
        return unpack(self._codec, await self.packed(path))

    async def packed(self, path: Sequence[Any]) -> Packed:
        """Return the packed value at a path."""

        async def read() -> Packed:
            return await self._resolve(draft_reader.whole(self._ws, await self._require(path)))

        return await self._read(read)

    async def keys(self, path: Sequence[Any]) -> list[Any]:
        """Return the keys of the dict at a path, in order."""

        async def read() -> list[bytes] | None:
            value = await self._load_large(await self._require(path))
            return None if value is None else await self.nodes(draft_reader.keys(self._ws, value))

        keys = await self._read(read)
        if keys is None:
            raise InvalidError("the value at this path is not a dict", where=path_text(path))
        return self._codec.unpack_items(keys)

    async def outline(self, path: Sequence[Any]) -> ValueOutline:
        """Return what kind of value is at a path, and how large it is. A large one is not read."""
        value = await self._read(lambda: self._require(path))
        if isinstance(value, bytes) and is_pointer(value):
            return ValueOutline("large", bytes=parse_pointer(value).size)
        size = len(value) if isinstance(value, bytes) else None
        if draft_reader.is_dict(value):
            return ValueOutline("dict", bytes=size)
        length = draft_reader.length(value)
        return ValueOutline("value" if length is None else "list", length, size)

    async def length(self, path: Sequence[Any]) -> int:
        """Return how many items the list at a path has."""
        return await self._read(lambda: self._length(path))

    async def slice(self, path: Sequence[Any], start: int | None, stop: int | None) -> list[Any]:
        """Return items of the list at a path, as `list[start:stop]` does."""

        async def read() -> Packed:
            first, last, _ = slice(start, stop).indices(await self._length(path))
            value = await self._load_large(await self._require(path))
            items = draft_reader.items(self._ws, cast(Draft, value), first, max(first, last))
            return await self._resolve(items)

        return list(unpack(self._codec, await self._read(read)))

    async def _length(self, path: Sequence[Any]) -> int:
        value = await self._load_large(await self._require(path))
        length = None if value is None else draft_reader.length(value)
        if length is None:
            raise InvalidError("the value at this path is not a list", where=path_text(path))
        return length

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read, and again if the line was rewritten since the first read. `NotFoundError` if the step was deleted."""
        try:
            try:
                return await read()
            except MissingNode:
                if self.point is None or not self._can_reload:
                    raise
                self._states.forget(self._line, self.point.hash)
                self._loaded, self._draft, self._ws, self._parsed = None, None, Workspace(), None
                return await read()
        except CorruptError:
            if self._check_exists is not None:
                await self._check_exists()
            raise

    async def old(self, path: Sequence[Any]) -> Packed | None:
        """Return the packed value at a path, if there is one. Large values may be pointers."""
        value = await self._find(path)
        return None if value is None else await self.nodes(draft_reader.whole(self._ws, value))

    async def is_dict(self, path: Sequence[Any]) -> bool | None:
        """Return whether the value at a path is a dict; None if there is no value."""
        value = await self._load_large(await self._find(path))
        return None if value is None else draft_reader.is_dict(value)

    async def is_list(self, path: Sequence[Any]) -> bool:
        """Return whether the value at a path is a list."""
        value = await self._load_large(await self._find(path))
        return value is not None and draft_reader.length(value) is not None

    async def _require(self, path: Sequence[Any]) -> Draft:
        value = await self._find(path)
        if value is None:
            raise AbsentPath("the state has nothing there", where=path_text(path))
        return value

    async def _find(self, path: Sequence[Any]) -> Draft | None:
        """Return the value at a path, which may be a pointer to a large one; None if there is none."""
        state, keys = await self._state(), self._codec.pack_items(path)
        if len(keys) == 1:
            return await self.nodes(draft_reader.entry(self._ws, state, keys))
        parent = await self._dict_at(state, tuple(keys[:-1]))
        start, rest = (state, keys) if parent is None else (parent, keys[-1:])
        value = await self.nodes(draft_reader.entry(self._ws, start, rest))
        if value is not None:
            return value
        # A value on the way may be a pointer, or a key be stored as an equal one of another type.
        below: Draft | None = state
        for key, packed in zip(path, keys, strict=True):
            below = await self._load_large(below)
            if below is None:
                return None
            _, below = await self._equal_entry(below, key, packed)
        return below

    async def _dict_at(self, state: Draft, keys: tuple[bytes, ...]) -> MapDraft | None:
        """Return the dict at a path, parsed; None if it is none. The last one is cached: more keys may follow."""
        if self._parsed is None or self._parsed[0] != keys:
            value = await self.nodes(draft_reader.entry(self._ws, state, keys))
            self._parsed = keys, draft_reader.parse_dict(value)
        return self._parsed[1]

    async def stored_key(self, path: Sequence[Any], key: Any) -> Any:
        """Return the key of the dict at a path that equals this number, which may be of another type; else this one."""
        value = await self._load_large(await self._find(path)) if path else None
        return key if value is None else (await self._equal_entry(value, key, self._codec.pack(key)))[0]

    async def _equal_entry(self, value: Draft, key: Any, packed: bytes) -> tuple[Any, Draft | None]:
        """Return the entry of a dict or list whose key equals this one: in Python 1, True and 1.0 are one key."""
        found = await self.nodes(draft_reader.entry(self._ws, value, [packed]))
        if found is None and type(key) in _NUMBERS and draft_reader.is_dict(value):
            for other in _equal_numbers(key):
                found = await self.nodes(draft_reader.entry(self._ws, value, [self._codec.pack(other)]))
                if found is not None:
                    return other, found
        return key, found

    async def _load_large(self, value: Draft | None) -> Draft | None:
        """Return a value, loaded if it is a pointer to a large one."""
        if not isinstance(value, bytes) or not is_pointer(value):
            return value
        return flatten((await self._states.resolve_pointers(self._line, {b"": value}))[b""])

    async def _resolve(self, rounds: Rounds[Packed]) -> Packed:
        """Read a value, with large values in place of their pointers."""
        resolved = await self._states.resolve_pointers(self._line, {b"": await self.nodes(rounds)})
        return resolved[b""]


_NUMBERS = frozenset({bool, int, float})


def _equal_numbers(key: float) -> list[float]:
    """Return the numbers of other types that equal this one, and the other zero."""
    equal: list[float] = [key == 1] if key in (0, 1) else []
    if key == key // 1:  # neither a fraction nor infinite nor NaN
        equal.append(int(key))
    with suppress(OverflowError):
        equal.append(float(key))
    return [other for other in (*equal, *([0.0, -0.0] if key == 0 else [])) if other == key]


# Changing -----------------------------------------------------------------------------------------------------


class _Remove:
    """Marks a value to remove."""


_REMOVE = _Remove()


class _ChangeTree(dict[bytes, tuple[Any, Any]]):
    """The changes below a key: keys and changes by packed key, since 1 and True are equal in Python."""

    indexed = False
    """Whether a path given as text has an index here: of a list, then, and not a key of a new dict."""


def change_parts(
    states: StateLoader,
    codec: Codec,
    line: Line,
    put: Mapping[tuple[Any, ...], Any],
    removed: Iterable[tuple[Any, ...]] = (),
    text_paths: Collection[tuple[Any, ...]] = (),
) -> Edit:
    """Return an edit that sets values at paths and removes others, and reads no more of the state than it needs.

    A value may be an update operator, which changes the value at the path. `text_paths` are those of the paths that
    were given as text.
    """
    tree = _ChangeTree()
    for path, value in put.items():
        is_operator = isinstance(value, UpdateOperator)
        packed = pack_operator(codec, path, value) if is_operator else _pack_value(codec, path, value)
        _add_change(codec, tree, path, packed, is_text=path in text_paths)
    for path in removed:
        _add_change(codec, tree, path, _REMOVE)

    async def edit(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:
        return await _EditBuilder(states, codec, line, parent, loaded).edit((), tree)

    return edit


def pack_operator(codec: Codec, path: Sequence[Any], operator: UpdateOperator) -> Combine:
    """Return the operation of an update operator on the value at a path."""
    try:
        (operand,) = codec.pack_items((operator.operand,))
    except HoldfastError:
        _raise_located(codec, path, operator.operand)
        raise
    if len(path) > 1:
        _check_depth(codec, path, operand)
    return Combine(operator.rule, operand)


def _pack_value(codec: Codec, path: Sequence[Any], value: Any) -> Packed:
    try:
        (packed,) = pack_state(codec, {"": value}).values()
    except HoldfastError:
        _raise_located(codec, path, value)
        raise
    if len(path) > 1:
        _check_depth(codec, path, flatten(packed))
    return packed


def _raise_located(codec: Codec, path: Sequence[Any], value: Any) -> None:
    """Pack a value that cannot be packed: the error names the whole path."""
    for key in reversed(path):
        value = {key: value}
    codec.pack(value)


def _check_depth(codec: Codec, path: Sequence[Any], packed: bytes) -> None:
    """Refuse a value that would nest deeper at its path than the format allows."""
    flat = inner(packed)
    for key in path[:0:-1]:
        flat = msgpack.join_map([(codec.pack(key), flat)])
    msgpack.check_depth(flat)


def _add_change(
    codec: Codec, tree: _ChangeTree, path: Sequence[Any], leaf: Packed | Combine | _Remove, *, is_text: bool = False
) -> None:
    if not path or type(path[0]) is not str:
        raise InvalidError("a path starts with the name of a channel", where=repr(tuple(path)))
    if len(path) > MAX_EDITS:
        raise InvalidError(
            f"a path has at most {MAX_EDITS} keys, and this one {len(path)}",
            where=path_text(path[:3]),
            hint="Set a value higher up",
        )
    *stem, last = packed_path = [pack_name(path[0]), *(codec.pack_items(path[1:]) if len(path) > 1 else ())]
    if any(map(msgpack.is_ext, packed_path[1:])):
        # A dict with such keys is one value of the format: whether an equal key exists is known only by reading all.
        raise InvalidError(
            "the keys on a path must be strings, bytes, None or numbers of at most 64 bits",
            where=path_text(path),
            hint="Set the whole dict",
        )
    for packed, key in zip(stem, path, strict=False):
        tree.indexed |= is_text and type(key) is int
        _, below = tree.setdefault(packed, (key, _ChangeTree()))
        if not isinstance(below, _ChangeTree):
            raise InvalidError("the same value is changed twice", where=path_text(path))
        tree = below
    tree.indexed |= is_text and type(path[-1]) is int
    if last in tree:
        raise InvalidError("the same value is changed twice", where=path_text(path))
    tree[last] = (path[-1], leaf)


def _merge_changes(path: tuple[Any, ...], a: object, b: object) -> _ChangeTree:
    """Return the changes of two trees for one value."""
    if not isinstance(a, _ChangeTree) or not isinstance(b, _ChangeTree):
        raise InvalidError("the same value is changed twice", where=path_text(path))
    merged = _ChangeTree(a)
    merged.indexed = a.indexed or b.indexed
    for packed, (key, change) in b.items():
        if packed in merged:
            change = _merge_changes((*path, key), merged[packed][1], change)
        merged[packed] = key, change
    return merged


class _EditBuilder:
    """Builds an edit from a tree of changes and the state to change."""

    def __init__(
        self, states: StateLoader, codec: Codec, line: Line, parent: StepRef | None, loaded: LoadedState | None
    ) -> None:
        self._states = states
        self._codec = codec
        self._line = line
        self._parent = parent
        self._loaded = loaded

    @cached_property
    def _state(self) -> StateReader:
        """The state to change; most changes need not read it."""
        return StateReader(self._states, self._codec, self._line, self._parent, self._loaded)

    async def edit(self, path: tuple[Any, ...], tree: _ChangeTree) -> EditMap:
        removed: list[bytes] = []
        put: list[tuple[bytes, Operation]] = []
        done: set[bytes] = set()
        for packed_key, (key, change) in tree.items():
            if type(key) in _NUMBERS:
                key = await self._state.stored_key(path, key)
                packed_key = self._codec.pack(key)
            child = (*path, key)
            if packed_key in done:
                raise InvalidError("the same value is changed twice", where=path_text(child))
            done.add(packed_key)
            if isinstance(change, _Remove):
                if not await self._state.has(child):
                    raise NotFoundError("there is nothing to remove", where=path_text(child))
                removed.append(packed_key)
            else:
                operation = await self._operation(child, packed_key, change)
                if operation is not None:
                    put.append((packed_key, operation))
        return EditMap(tuple(removed), tuple(put))

    async def _set(self, path: tuple[Any, ...], new: Packed) -> Operation | None:
        if weigh(new) > _WORTH_COMPARING:
            old = await self._state.old(path)
            if old is not None:
                return diff(old, new)
        return set_to(new)

    async def _operation(
        self, path: tuple[Any, ...], packed_key: bytes, change: _ChangeTree | Packed | Combine
    ) -> Operation | None:
        """Return the operation on the value at a path; None if it changes nothing."""
        if isinstance(change, Combine):
            # Most operators follow others of their kind, and most appends another: the value is not read then.
            is_list = change.rule is Rule.APPEND and len(path) == 1 and _last_kind(self._loaded, packed_key) is list
            if not is_list:
                await self._check_operator(path, change)
            return change
        if not isinstance(change, _ChangeTree):
            return await self._set(path, change)
        kind = _last_kind(self._loaded, packed_key) if len(path) == 1 else None
        is_dict = await self._state.is_dict(path) if kind is None else kind is dict
        if is_dict is None:
            return Set(self._new_dict(path, change))
        if is_dict:
            return await self.edit(path, change)
        if await self._state.is_list(path):
            return await self._edit_list(path, change)
        return Set(_with_fields(self._codec, path, flatten(await self._state.packed(path)), change))

    async def _check_operator(self, path: tuple[Any, ...], operator: Combine) -> None:
        """Raise `InvalidError` if an operator cannot be applied to the value at a path. A long list is not read."""
        if operator.rule is Rule.APPEND and await self._state.is_list(path):
            return
        old = await self._state.packed(path) if await self._state.has(path) else None
        try:
            combine(operator.rule, operator.operand, old)
        except InvalidError as error:
            raise InvalidError(error.what, where=path_text(path), hint="Set the value as a whole first") from None

    async def _edit_list(self, path: tuple[Any, ...], tree: _ChangeTree) -> EditList:
        """Return the operation that changes, or removes, items of a list that exist."""
        length = await self._state.length(path)
        changes: dict[int, tuple[bytes, _ChangeTree | Packed | Combine | _Remove]] = {}
        for packed_key, (key, change) in tree.items():
            child = (*path, key)
            if type(key) is not int:
                raise InvalidError("an item of a list must be addressed by its index", where=path_text(child))
            if not -length <= key < length:
                raise NotFoundError(
                    f"the list has {length} items",
                    where=path_text(child),
                    hint="To add items, put the state, or set the whole list",
                )
            index = key % length
            _, other = changes.get(index, (packed_key, None))
            if other is not None:  # the same item, counted from the start and from the end
                change = _merge_changes(child, other, change)
            changes[index] = packed_key, change
        parts: list[KeepRun | ChangeItem | tuple[bytes, ...]] = []
        start = 0
        for index, (packed_key, change) in sorted(changes.items()):
            if index > start:
                parts.append(KeepRun(start, index - start))
            start = index + 1
            if isinstance(change, _Remove):
                continue
            operation = await self._operation((*path, index), packed_key, change)
            if has_operator(operation):
                raise InvalidError(
                    "an operator can only change a value in nested dicts, not inside an item of a list",
                    where=path_text((*path, index)),
                    hint="A merge could not tell which item it was; change the item as a whole",
                )
            if operation is None:
                parts.append(KeepRun(index, 1))
            else:
                parts.append((operation.value,) if isinstance(operation, Set) else ChangeItem(index, operation))
        if start < length:
            parts.append(KeepRun(start, length - start))
        return EditList(tuple(parts))

    def _new_dict(self, path: tuple[Any, ...], tree: _ChangeTree) -> bytes:
        """Return a new dict with the changes of a tree."""
        if tree.indexed:
            raise NotFoundError(
                "the value at this path is not a list", where=path_text(path), hint="Set the whole value first"
            )
        entries: dict[bytes, Packed] = {}
        for packed_key, (key, change) in tree.items():
            if isinstance(change, _Remove):
                raise NotFoundError("there is nothing to remove", where=path_text((*path, key)))
            if isinstance(change, _ChangeTree):
                entries[packed_key] = self._new_dict((*path, key), change)
            else:
                entries[packed_key] = change.operand if isinstance(change, Combine) else change
        if len({key for key, _ in tree.values()}) < len(tree):
            raise InvalidError("the same value is changed twice", where=path_text(path))
        return flatten(entries)


def _with_fields(codec: Codec, path: tuple[Any, ...], packed: bytes, tree: _ChangeTree) -> bytes:
    """Return an object of a class, such as a message, with other values in its fields. It stays packed: the class is
    not needed, and none of its code is called."""
    root = to_json(packed)
    if fields_of(root) is not root:
        _set_fields(codec, path, root, tree)
        try:
            changed = from_json(root)
            codec.unpack(changed)  # what cannot be read again is not saved
        except (InvalidError, CorruptError) as error:
            raise InvalidError(error.what, where=path_text(path), hint="Set the whole value") from None
        return changed
    raise InvalidError(
        "the value is neither a dict with plain keys nor a list nor an object with fields, and has no keys to set",
        where=path_text(path),
        hint="Set the whole value",
    )


def _set_fields(codec: Codec, path: tuple[Any, ...], value: Any, tree: _ChangeTree) -> None:
    """Make changes in a value in JSON form."""
    inside = fields_of(value)
    is_object = inside is not value and type(inside) is dict
    if type(inside) not in (dict, list) or (type(inside) is dict and is_mark(inside)):
        raise InvalidError("the value has no keys to set", where=path_text(path), hint="Set the whole value")
    removed: list[int] = []
    for key, change in tree.values():
        child = (*path, key)
        if type(inside) is list:
            if type(key) is not int or not -len(inside) <= key < len(inside):
                raise NotFoundError(f"the list has {len(inside)} items", where=path_text(child))
        elif type(key) is not str:
            raise InvalidError("the keys here are texts", where=path_text(child), hint="Set the whole value")
        elif key not in inside and (is_object or isinstance(change, _Remove)):
            names = f"It has {', '.join(inside)}" if is_object else ""
            raise NotFoundError(f"there is no {key!r}", where=path_text(path), hint=names)
        if isinstance(change, _Remove):
            if is_object:
                raise InvalidError("a field cannot be removed", where=path_text(child), hint="Set it to None")
            if type(inside) is list:
                removed.append(key % len(inside))
            else:
                del inside[key]
        elif isinstance(change, _ChangeTree):
            if type(inside) is dict and key not in inside:
                inside[key] = {}
            _set_fields(codec, child, inside[key], change)
        elif isinstance(change, Combine):
            raise InvalidError(
                "an operator can only change a value in nested dicts, not in a field of an object",
                where=path_text(child),
                hint="Set the value that it should have",
            )
        else:
            inside[key] = to_json(flatten(change))
    for index in sorted(set(removed), reverse=True):
        del inside[index]
    if is_object:
        _note_set(value, tree)


def _note_set(value: dict[str, Any], tree: _ChangeTree) -> None:
    """Note that fields of a model of Pydantic are set, and are no longer at their defaults."""
    (content,) = value.values()
    more = content[-1] if type(content) is list else None
    if type(more) is dict and type(more.get("unset")) is list:
        changed = {key for key, _ in tree.values()}
        more["unset"] = [name for name in more["unset"] if name not in changed]


def _last_kind(loaded: LoadedState | None, channel: bytes) -> type | None:
    """Return which kind of value the last unfolded change makes a channel: `dict`, `list` or another, `object`. None if
    that is not clear."""
    for _, edit in reversed(loaded.tail if loaded is not None else ()):
        if channel in edit.removed:
            return None
        for key, operation in edit.put:
            if key == channel:
                return _kind_after(operation)
    return None


def _kind_after(operation: Operation) -> type | None:
    if isinstance(operation, EditMap):
        return dict
    if isinstance(operation, EditList) or (isinstance(operation, Combine) and operation.rule is Rule.APPEND):
        return list
    if not isinstance(operation, Set):
        return None
    packed = operation.packed  # a large one is in parts
    if not isinstance(packed, bytes):
        return list if isinstance(packed, list) else dict
    if is_pointer(packed):
        return None
    return dict if msgpack.is_map(packed) else list if is_container(packed) else object
