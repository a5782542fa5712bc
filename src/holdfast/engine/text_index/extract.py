"""The text that an edit of a state brings: every string in its new values, with its place.

Values are looked at as they are packed: no class is revived. Keys of dicts and names of classes are no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Ext

from holdfast.codec import msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, EditText, KeepRun, LoadLarge, Operation, Set
from holdfast.engine.model.packed_state import Packed, as_items, as_map, pack_name, unpack_name
from holdfast.engine.projection.rendering import ROLES
from holdfast.engine.projection.rows import is_hidden
from holdfast.errors import CorruptError

Path: TypeAlias = tuple[str | int, ...]
"""A channel's name, and the keys and numbers below it."""

AROUND = 256
"""Of a long text that was changed in places, so many characters around each are looked at, and the words there."""

_PARTS = (("content",), ("tool_calls",), ("invalid_tool_calls",))
"""The lists in a message whose items say in `type` what they are, as in `tool_call`. Nobody said that, so that it is no
text."""

_decode = Decoder().decode


class ExtractedText(NamedTuple):
    """A string that an edit brings.

    `role` is that of the message it is in, if it is in one; `said` if it is what the message says. Where a longer text
    was changed in places, `fresh` are the new parts of what is here; None if all of it is new.
    """

    path: Path
    text: str
    role: str = ""
    said: bool = False
    fresh: tuple[tuple[int, int], ...] | None = None

    def brings(self, start: int, end: int) -> bool:
        """Whether a part of it is new, or has something new in it."""
        if self.fresh is None:
            return True
        return any((low < end and start < high) or start < low == high < end for low, high in self.fresh)


class ChannelsAroundEdit(NamedTuple):
    """Channels as they were before an edit, and as they are after it, as far as that has to be known."""

    before: Mapping[bytes, Packed] = MappingProxyType({})
    after: Mapping[bytes, Packed] = MappingProxyType({})


def replaced(edit: EditMap) -> list[bytes]:
    """The channels of which small lists or dicts are set anew, and not edited: to tell what is new in them, what they
    were has to be known."""
    return _channels(edit, lambda each: isinstance(each, Set) and _is_container(each.value))


def edited_texts(edit: EditMap) -> list[bytes]:
    """The channels of which parts of texts are changed: what those texts are now has to be known."""
    return _channels(edit, lambda each: isinstance(each, EditText))


def edited_items(edit: EditMap) -> list[bytes]:
    """The channels of which items of lists are changed: to tell who says it, if they are messages, what they are now
    has to be known."""
    return [key for key, operation in edit.put if not _is_hidden(key) and _edits_items(operation)]


def texts(edit: EditMap, around: ChannelsAroundEdit, load: LoadLarge) -> Iterator[ExtractedText]:
    """The strings that an edit brings, and that it changes. `load` is asked for large values.

    Without `replaced` channels as they were before, all that is in them is taken for new. Without `edited_items` as
    they are after, nobody is taken to say it.
    """
    for key, operation in edit.put:
        if not _is_hidden(key):
            old, now = around.before.get(key), around.after.get(key)
            yield from _operation(_Place((unpack_name(key),)), operation, old, now, load)


def role_of(name: str) -> str:
    """One name for those who say something: LangChain calls a user human."""
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
    return isinstance(operation, EditList) and any(isinstance(part, ChangeItem) for part in operation.parts)


def _is_container(value: bytes) -> bool:
    bare = value.removeprefix(msgpack.ESCAPE)
    return not value.startswith(msgpack.SHAPED_MARK) and (msgpack.is_array(bare) or msgpack.is_map(bare))


class _Place(NamedTuple):
    """Where a value is, and whose message that is part of, if it is known to be one."""

    path: Path
    role: str = ""
    said: bool = False

    def below(self, part: str | int, role: str | None = None) -> _Place:
        """The place of a part of it; with a role, of a message."""
        if role is None:
            return _Place((*self.path, part), self.role, self.said)
        return _Place((*self.path, part), role, part == "content")


def _operation(
    place: _Place, operation: Operation, old: Packed | None, now: Packed | None, load: LoadLarge
) -> Iterator[ExtractedText]:
    if isinstance(operation, Set):
        yield from _set(place, operation.value, old, load)
        return
    old, now = _whole(old, load), _whole(now, load)
    if isinstance(operation, EditText):
        if isinstance(now, bytes) and msgpack.is_str(now):
            yield from _windows(place, operation, msgpack.content(now))
    elif isinstance(operation, EditMap):
        olds, nows = _entries_of(old), _entries_of(now)
        role = _role_in(nows)
        for key, change in operation.put:
            label = _label(key)
            if role is None or label not in ("role", "type"):
                yield from _operation(place.below(label, role), change, olds.get(key), nows.get(key), load)
    else:
        yield from _list(place, operation, _items_of(old), _items_of(now), load)


def _role_in(entries: Mapping[bytes, Packed]) -> str | None:
    """Who says it, if a dict is a message."""
    found: dict[str, Any] = {}
    for name in ("content", "tool_calls", "role", "type"):
        value = entries.get(pack_name(name))
        if value is not None:
            found[name] = _parsed(value) if isinstance(value, bytes) and msgpack.is_str(value) else value
    return _message_role(found)


def _whole(packed: Packed | None, load: LoadLarge) -> Packed | None:
    return load(packed) if isinstance(packed, bytes) and is_pointer(packed) else packed


def _entries_of(packed: Packed | None) -> Mapping[bytes, Packed]:
    return {} if packed is None else as_map(packed) or {}


def _items_of(packed: Packed | None) -> list[bytes]:
    return [] if packed is None else as_items(packed) or []


def _set(place: _Place, value: bytes, old: Packed | None, load: LoadLarge) -> Iterator[ExtractedText]:
    """What is in a value. Of a list or dict in place of another, what was not in that one as often."""
    if old is None or not _is_container(value):
        yield from _packed(place, value, load)
        return
    there = Counter(each.text for each in _old_texts(old, load))
    for each in _packed(place, value, load):
        if there[each.text]:
            there[each.text] -= 1
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
    """The new parts of a text, with what is around them."""
    text, fresh = content.decode(errors="replace"), []
    at, kept = 0, None
    for part in edit.parts:
        size = part.length if isinstance(part, KeepRun) else len(part)
        if not isinstance(part, KeepRun) or kept is not None:  # two kept runs that now meet may make a new word
            start = len(content[:at].decode(errors="ignore"))
            new = "" if isinstance(part, KeepRun) else content[at : at + size].decode(errors="replace")
            fresh.append((start, start + len(new)))
        kept = part if isinstance(part, KeepRun) else None
        at += size
    windows: list[tuple[int, int, list[tuple[int, int]]]] = []
    for low, high in fresh:
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
    """The nearest place from here on, in a direction, that is between words; not far, if there is none."""
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
    raw = _parsed(packed.removeprefix(msgpack.ESCAPE))
    yield from _value(place.path, raw[2] if shaped else raw, place.role, place.said)


def _parsed(data: bytes) -> Any:
    msgpack.check_depth(data)
    try:
        return _decode(data)
    except (MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise CorruptError(f"packed bytes cannot be read: {error}") from None


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
        show = _TYPED.get(raw.code)
        if show is not None:
            yield from show(path, raw.data, role, said)


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
    """Who says it, if it is a message."""
    if "content" not in fields and "tool_calls" not in fields:
        return None
    role, kind = fields.get("role"), fields.get("type")
    if type(role) is str:
        return role_of(role)
    return ROLES.get(kind) if type(kind) is str else None


def _label(key: bytes) -> str:
    raw = _parsed(key)
    return raw if type(raw) is str else _key_text(raw)


def _key_text(key: Any) -> str:
    return bytes(key.data).hex() if type(key) is Ext else str(key)


_Show: TypeAlias = Callable[[Path, bytes, str, bool], Iterator[ExtractedText]]


def _items(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    yield from _value(path, _parsed(payload), role, said)


def _nth(place: int) -> _Show:
    def show(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
        parts = _parsed(payload)
        if type(parts) is list and len(parts) > place:
            yield from _value(path, parts[place], role, said)

    return show


def _pairs(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    parts = _parsed(payload)
    if type(parts) is list:
        yield from _entries(path, zip(parts[::2], parts[1::2], strict=False), role, said)


def _model(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    """The fields of a pydantic model, and those that it was given besides."""
    parts = _parsed(payload)
    if type(parts) is list:
        fields = [each for each in (*parts[1:2], *parts[3:4]) if type(each) is dict]
        yield from _entries(path, [entry for each in fields for entry in each.items()], role, said)


def _surrogates(path: Path, payload: bytes, role: str, said: bool) -> Iterator[ExtractedText]:
    yield ExtractedText(path, payload.decode(errors="replace"), role, said)


_TYPED: dict[int, _Show] = {
    **dict.fromkeys((Tag.TUPLE, Tag.SET, Tag.FROZENSET), _items),
    **dict.fromkeys((Tag.DICT, Tag.ORDEREDDICT, Tag.COUNTER), _pairs),
    **dict.fromkeys((Tag.DATACLASS, Tag.ATTRS, Tag.NAMEDTUPLE, Tag.EXCEPTION, Tag.REGISTERED), _nth(1)),
    **dict.fromkeys((Tag.PYDANTIC, Tag.PYDANTIC_V1), _model),
    **dict.fromkeys((Tag.DEQUE, Tag.DEFAULTDICT, Tag.PATH), _nth(1)),
    Tag.REGEX: _nth(0),
    Tag.SHAPED: _nth(2),
    Tag.STR: _surrogates,
}
"""The types whose payload holds text of the user's."""
