"""The text that an edit of a state adds: every string in its new values, with its path.

Values are read in their packed form: no object is created. Keys of dicts and names of classes are not text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from msgspec.msgpack import Ext

from holdfast.codec import msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    LoadLarge,
    Operation,
    Set,
)
from holdfast.engine.model.packed_state import Packed, as_items, as_map, is_container, pack_name, unpack_name
from holdfast.engine.projection.rendering import ROLES, is_hidden

Path: TypeAlias = tuple[str | int, ...]
"""A channel's name, and the keys and numbers below it."""

AROUND = 256
"""Of a long text that was changed in places, this many characters around each change are read."""

_PARTS = (("content",), ("tool_calls",), ("invalid_tool_calls",))
"""The lists in a message whose items have a `type`, such as `tool_call`, which is not text."""


class ExtractedText(NamedTuple):
    """A string that an edit adds.

    `role` is that of the message it is in, if any; `said` if it is the content of the message. Where a longer text was
    changed in places, `fresh` are the new parts of this one; None if all of it is new.
    """

    path: Path
    text: str
    role: str = ""
    said: bool = False
    fresh: tuple[tuple[int, int], ...] | None = None

    def brings(self, start: int, end: int) -> bool:
        """Return whether a part of it is new, or contains something new."""
        if self.fresh is None:
            return True
        return any((low < end and start < high) or start < low == high < end for low, high in self.fresh)


class ChannelsAroundEdit(NamedTuple):
    """Channels before an edit and after it, as far as they are needed."""

    before: Mapping[bytes, Packed] = MappingProxyType({})
    after: Mapping[bytes, Packed] = MappingProxyType({})


def replaced(edit: EditMap) -> list[bytes]:
    """Return the channels with small lists or dicts that are set as a whole, whose old values are needed."""
    return _channels(edit, lambda each: isinstance(each, Set) and is_container(each.value))


def edited_texts(edit: EditMap) -> list[bytes]:
    """Return the channels with texts that are changed in parts: their new values are needed."""
    return _channels(edit, lambda each: isinstance(each, EditText))


def edited_items(edit: EditMap) -> list[bytes]:
    """Return the channels with list items that are changed or appended: their new values are needed for the roles and
    positions of messages."""
    return [key for key, operation in edit.put if not _is_hidden(key) and _edits_items(operation)]


def texts(edit: EditMap, around: ChannelsAroundEdit, load: LoadLarge) -> Iterator[ExtractedText]:
    """Yield the strings that an edit adds, and that it changes. `load` is called for large values.

    Without the old values of `replaced` channels, all text in them is taken as new. Without the new values of
    `edited_items`, messages have no role.
    """
    for key, operation in edit.put:
        if not _is_hidden(key):
            old, now = around.before.get(key), around.after.get(key)
            yield from _operation(_Place((unpack_name(key),)), operation, old, now, load)


def role_of(name: str) -> str:
    """Return the common name of a role: LangChain calls a user human."""
    return ROLES.get(name, name)


# Operations -------------------------------------------------------------------------------------------------------


def _is_hidden(key: bytes) -> bool:
    return is_hidden(unpack_name(key))


def _channels(edit: EditMap, test: Callable[[Operation], bool]) -> list[bytes]:
    return [key for key, operation in edit.put if not _is_hidden(key) and _has(operation, test)]


def _has(operation: Operation, test: Callable[[Operation], bool]) -> bool:
    if isinstance(operation, EditMap):
        return any(_has(each, test) for _, each in operation.put)
    if isinstance(operation, EditList):
        return any(isinstance(part, ChangeItem) and _has(part.operation, test) for part in operation.parts)
    return test(operation)


def _edits_items(operation: Operation) -> bool:
    if isinstance(operation, EditMap):
        return any(_edits_items(each) for _, each in operation.put)
    if isinstance(operation, Combine):
        return operation.items is not None
    return isinstance(operation, EditList) and any(isinstance(part, ChangeItem) for part in operation.parts)


class _Place(NamedTuple):
    """The path of a value, and the role of the message that it is part of, if any."""

    path: Path
    role: str = ""
    said: bool = False

    def below(self, part: str | int, role: str | None = None) -> _Place:
        """Return the place of a part; with a role, of a part of a message."""
        if role is None:
            return _Place((*self.path, part), self.role, self.said)
        return _Place((*self.path, part), role, part == "content")


def _operation(
    place: _Place, operation: Operation, old: Packed | None, now: Packed | None, load: LoadLarge
) -> Iterator[ExtractedText]:
    if isinstance(operation, Set):
        yield from _set(place, operation.value, old, load)
        return
    old, now = _load_pointer(old, load), _load_pointer(now, load)
    if isinstance(operation, EditText):
        if isinstance(now, bytes) and msgpack.is_str(now):
            yield from _windows(place, operation, msgpack.content(now))
    elif isinstance(operation, EditMap):
        old_entries, new_entries = _entries_of(old), _entries_of(now)
        role = _role_in(new_entries)
        for key, change in operation.put:
            label = _label(key)
            if role is None or label not in ("role", "type"):
                yield from _operation(
                    place.below(label, role), change, old_entries.get(key), new_entries.get(key), load
                )
    elif isinstance(operation, Combine):
        items = operation.items
        if items is None:
            yield from _packed(place, operation.operand, load)
        else:
            start = max(len(_items_of(now)) - len(items), 0)
            yield from _list(place, EditList((KeepRun(0, start), tuple(items))), [], [], load)
    else:
        yield from _list(place, operation, _items_of(old), _items_of(now), load)


def _role_in(entries: Mapping[bytes, Packed]) -> str | None:
    """Return the role, if a dict is a message."""
    fields: dict[str, Any] = {}
    for name in ("content", "tool_calls", "role", "type"):
        value = entries.get(pack_name(name))
        if value is not None:
            fields[name] = msgpack.parse(value) if isinstance(value, bytes) and msgpack.is_str(value) else value
    return _message_role(fields)


def _load_pointer(packed: Packed | None, load: LoadLarge) -> Packed | None:
    return load(packed) if isinstance(packed, bytes) and is_pointer(packed) else packed


def _entries_of(packed: Packed | None) -> Mapping[bytes, Packed]:
    return {} if packed is None else as_map(packed) or {}


def _items_of(packed: Packed | None) -> list[bytes]:
    return [] if packed is None else as_items(packed) or []


def _set(place: _Place, value: bytes, old: Packed | None, load: LoadLarge) -> Iterator[ExtractedText]:
    """Yield the text of a value; of a list or dict that replaces another, what that did not contain as often."""
    if old is None or not is_container(value):
        yield from _packed(place, value, load)
        return
    old_counts = Counter(each.text for each in _old_texts(old, load))
    for each in _packed(place, value, load):
        if old_counts[each.text]:
            old_counts[each.text] -= 1
        else:
            yield each


def _old_texts(old: Packed, load: LoadLarge) -> Iterator[ExtractedText]:
    if isinstance(old, bytes):
        yield from _packed(_Place(()), old, load)
    else:
        for item in old if isinstance(old, list) else old.values():
            yield from _old_texts(item, load)


def _list(at: _Place, edit: EditList, old: list[bytes], now: list[bytes], load: LoadLarge) -> Iterator[ExtractedText]:
    place = 0
    for part in edit.parts:
        if isinstance(part, KeepRun):
            place += part.length
        elif isinstance(part, ChangeItem):
            was = old[part.place] if part.place < len(old) else None
            item = now[place] if place < len(now) else None
            yield from _operation(at.below(place), part.operation, was, item, load)
            place += 1
        else:
            for item in part:
                yield from _packed(at.below(place), item, load)
                place += 1


def _windows(place: _Place, edit: EditText, content: bytes) -> Iterator[ExtractedText]:
    """Yield the new parts of a text, with what is around them."""
    text, new_spans = content.decode(errors="replace"), []
    at, last_run = 0, None
    for part in edit.parts:
        size = part.length if isinstance(part, KeepRun) else len(part)
        if not isinstance(part, KeepRun) or last_run is not None:  # two runs that are adjacent now may form a new word
            start = len(content[:at].decode(errors="ignore"))
            new = "" if isinstance(part, KeepRun) else content[at : at + size].decode(errors="replace")
            new_spans.append((start, start + len(new)))
        last_run = part if isinstance(part, KeepRun) else None
        at += size
    windows: list[tuple[int, int, list[tuple[int, int]]]] = []
    for low, high in new_spans:
        start, end = _to_space(text, low - AROUND, -1), _to_space(text, high + AROUND, 1)
        if windows and start <= windows[-1][1]:
            first, _, spans = windows.pop()
            windows.append((first, end, [*spans, (low, high)]))
        else:
            windows.append((start, end, [(low, high)]))
    for start, end, spans in windows:
        parts = tuple((low - start, high - start) for low, high in spans)
        yield ExtractedText(place.path, text[start:end], place.role, place.said, parts)


def _to_space(text: str, place: int, step: int) -> int:
    """Return the nearest position between words, in a direction; not far away, if there is none."""
    end = min(max(place + step * AROUND, 0), len(text))
    place = min(max(place, 0), len(text))
    while place != end and not text[place - (step < 0)].isspace():
        place += step
    return place


# Values -----------------------------------------------------------------------------------------------------------


def _packed(place: _Place, packed: bytes, load: LoadLarge) -> Iterator[ExtractedText]:
    if is_pointer(packed):
        packed = load(packed)
    shaped = packed.startswith(msgpack.SHAPED_MARK)
    raw = msgpack.parse(packed.removeprefix(msgpack.ESCAPE))
    yield from _value(place.path, raw[2] if shaped else raw, place.role, place.said)


def _value(path: Path, raw: Any, role: str, said: bool) -> Iterator[ExtractedText]:
    kind = type(raw)
    if kind is str:
        yield ExtractedText(path, raw, role, said)
    elif kind is dict:
        yield from _entries(path, raw.items(), role, said)
    elif kind is list:
        for place, item in enumerate(raw):
            yield from _value((*path, place), item, role, said)
    elif kind is Ext:
        extract = _EXTRACTORS.get(raw.code)
        if extract is not None:
            yield from extract(path, raw.data, role, said)


def _entries(path: Path, entries: Iterable[tuple[Any, Any]], role: str, said: bool) -> Iterator[ExtractedText]:
    entries = [(key if type(key) is str else _key_text(key), item) for key, item in entries]
    own = _message_role(dict(entries))
    part = role != "" and own is None and type(path[-1]) is int and path[-2:-1] in _PARTS
    for key, item in entries:
        if own is None:
            if not part or key != "type":
                yield from _value((*path, key), item, role, said and key == "text")
        elif key not in ("role", "type"):
            yield from _value((*path, key), item, own, key == "content")


def _message_role(fields: Mapping[str, Any]) -> str | None:
    """Return the role, if it is a message."""
    if "content" not in fields and "tool_calls" not in fields:
        return None
    role, kind = fields.get("role"), fields.get("type")
    if type(role) is str:
        return role_of(role)
    return ROLES.get(kind) if type(kind) is str else None


def _label(key: bytes) -> str:
    raw = msgpack.parse(key)
    return raw if type(raw) is str else _key_text(raw)


def _key_text(key: Any) -> str:
    return bytes(key.data).hex() if type(key) is Ext else str(key)


_Extractor: TypeAlias = Callable[[Path, bytes, str, bool], Iterator[ExtractedText]]


def _items(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    yield from _value(path, msgpack.parse(payload), role, said)


def _nth(place: int) -> _Extractor:
    def extract(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
        parts = msgpack.parse(payload)
        if type(parts) is list and len(parts) > place:
            yield from _value(path, parts[place], role, said)

    return extract


def _pairs(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    parts = msgpack.parse(payload)
    if type(parts) is list:
        yield from _entries(path, zip(parts[::2], parts[1::2], strict=False), role, said)


def _model(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    """Yield the text of a pydantic model's fields, and of its extra ones."""
    parts = msgpack.parse(payload)
    if type(parts) is list:
        fields = [each for each in (*parts[1:2], *parts[3:4]) if type(each) is dict]
        yield from _entries(path, [entry for each in fields for entry in each.items()], role, said)


def _surrogates(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    yield ExtractedText(path, payload.decode(errors="replace"), role, said)


_EXTRACTORS: dict[int, _Extractor] = {
    **dict.fromkeys((Tag.TUPLE, Tag.SET, Tag.FROZENSET), _items),
    **dict.fromkeys((Tag.DICT, Tag.ORDEREDDICT, Tag.COUNTER), _pairs),
    **dict.fromkeys((Tag.DATACLASS, Tag.ATTRS, Tag.NAMEDTUPLE, Tag.EXCEPTION, Tag.REGISTERED), _nth(1)),
    **dict.fromkeys((Tag.PYDANTIC, Tag.PYDANTIC_V1), _model),
    **dict.fromkeys((Tag.DEQUE, Tag.DEFAULTDICT, Tag.PATH), _nth(1)),
    Tag.REGEX: _nth(0),
    Tag.SHAPED: _nth(2),
    Tag.STR: _surrogates,
}
"""The types whose payload contains text of the user's."""
