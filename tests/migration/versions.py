"""Three versions of a chat's state, and the migrations between them, for tests of schemas in stores."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from holdfast.schemas import Migration, Schema, SchemaSet, add, convert, remove, rename, split


class Chat1(TypedDict):
    """The first version."""

    msgs: list[str]
    count: int
    name: str
    scratch: NotRequired[str]


class Chat2(TypedDict):
    """A channel is renamed, one retyped, one split, one added, one removed."""

    messages: list[str]
    count: str
    first: str
    last: str
    plan: list[str]


class Chat21(TypedDict):
    """A channel more, which older programs need not know."""

    messages: list[str]
    count: str
    first: str
    last: str
    plan: list[str]
    mood: NotRequired[str]


class Chat3(TypedDict):
    """A channel is removed."""

    messages: list[str]
    first: str
    last: str
    plan: list[str]
    mood: NotRequired[str]


TO_2 = Migration(
    "chat",
    "1.0.0",
    "2.0.0",
    rename("msgs", "messages"),
    convert("count", str, int),
    split("name", ("first", "last"), separator=" "),
    add("plan", default=[]),
    remove("scratch"),
)
TO_3 = Migration("chat", "2.1.0", "3.0.0", remove("count"))

CHAT_1 = Schema("chat", "1.0.0", Chat1)
CHAT_2 = Schema("chat", "2.0.0", Chat2)
CHAT_21 = Schema("chat", "2.1.0", Chat21)
CHAT_3 = Schema("chat", "3.0.0", Chat3)

ONE = SchemaSet(CHAT_1)
TWO = SchemaSet(CHAT_1, CHAT_2, TO_2)
TWO_ONE = SchemaSet(CHAT_1, CHAT_2, CHAT_21, TO_2)
THREE = SchemaSet(CHAT_1, CHAT_2, CHAT_21, CHAT_3, TO_2, TO_3)


def first(number: int = 0) -> dict[str, object]:
    """Return a state of the first version."""
    return {"msgs": ["hello", f"m{number}"], "count": number, "name": f"Ann B{number}", "scratch": f"s{number}"}


def second(number: int = 0) -> dict[str, object]:
    """Return the same state in the second version."""
    return {
        "messages": ["hello", f"m{number}"],
        "count": str(number),
        "first": "Ann",
        "last": f"B{number}",
        "plan": [],
    }
