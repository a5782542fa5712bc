"""The states of a line that can have a schema: a scope, values of keys, fields of an agent, metadata of artifacts and
sessions. Those of threads are whole states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.codec import Codec
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, pack_name, unpack, unpack_name
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import line_kind
from holdfast.engine.row_format import Line
from holdfast.engine.value_schemas import NO_MARK, SchemaMark
from holdfast.schemas.attachment import own_keys
from holdfast.state.keys import mark_name
from holdfast.state.sessions.records import LINE as SESSIONS

DocumentKind: TypeAlias = Literal["scope", "key", "agent", "conversation", "artifact", "session"]

FIELDS, SCHEMA, ASIDE, METADATA = map(pack_name, ("fields", "schema", "aside", "metadata"))
MESSAGES, MESSAGES_SCHEMA = pack_name("conversation"), pack_name("conversation_schema")
"""Packed names of channels and fields."""

_CLASS, _TYPE = pack_name("class"), pack_name("type")
_EMPTY: Final = b"\x80"


class Document(NamedTuple):
    """A state in a line: what it is, its version, and its value."""

    kind: DocumentKind
    name: str
    """The key, or the id of an artifact or a session; empty for a whole scope and for an agent's fields."""
    owner: str
    """The scope, the class of an agent, the type of an artifact, or the id of a session."""
    mark: SchemaMark
    value: Packed


def find_documents(codec: Codec, line: Line, reference: str, state: PackedMap) -> Iterator[Document]:
    """Yield all states of a line that can have a schema. `reference` is that of the step."""
    kind = line_kind(line.name)
    if kind == "agent":
        stored = _text(codec, state.get(SCHEMA))
        aside = as_map(state.get(ASIDE, _EMPTY)) or {}
        mark, owner = SchemaMark(stored, aside) if "@" in stored else NO_MARK, _text(codec, state.get(_CLASS))
        yield Document("agent", "", owner, mark, state.get(FIELDS, _EMPTY))
        if MESSAGES in state:
            packed = state.get(MESSAGES_SCHEMA)
            mark = NO_MARK if packed is None else SchemaMark.unpack(codec, packed)
            yield Document("conversation", "", owner, mark, state[MESSAGES])
    elif kind in ("scope", "session"):
        owner = line.name.removeprefix(MARK)
        yield Document("scope", "", owner, SchemaMark(reference), own_keys(state))
        for key, value in own_keys(state).items():
            packed = state.get(pack_name(mark_name(unpack_name(key))))
            mark = NO_MARK if packed is None else SchemaMark.unpack(codec, packed)
            yield Document("key", unpack_name(key), owner, mark, value)
    elif line.name in (ARTIFACTS, SESSIONS):
        for key, value in state.items():
            fields = as_map(value)
            if fields is None or METADATA not in fields or unpack_name(key).startswith("\0"):
                continue
            stored = _text(codec, fields.get(SCHEMA))
            aside = as_map(fields.get(ASIDE, _EMPTY)) or {}
            mark, name = SchemaMark(stored, aside), unpack_name(key)
            if line.name == ARTIFACTS:
                yield Document("artifact", name, _text(codec, fields.get(_TYPE)), mark, fields[METADATA])
            else:
                yield Document("session", name, name, mark, fields[METADATA])


def _text(codec: Codec, packed: Packed | None) -> str:
    return "" if packed is None else str(unpack(codec, packed))
