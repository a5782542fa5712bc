"""Versions of plans in scopes, of the fields of agents, and of metadata, for tests of schemas beyond threads."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from holdfast import Store
from holdfast.agents import PersistentAgent
from holdfast.agents.definition.spec import registry
from holdfast.schemas import Migration, Schema, SchemaSet, add, convert, remove, rename


class Plan1(TypedDict):
    """The first version."""

    goal: str
    steps: list[str]
    draft: NotRequired[str]


class Plan2(TypedDict):
    """A field is renamed, one removed, one added."""

    aim: str
    steps: list[str]
    done: int


class Plan21(TypedDict):
    """A field more, which older programs need not know."""

    aim: str
    steps: list[str]
    done: int
    owner: NotRequired[str]


TO_PLAN_2 = Migration("plan", "1.0.0", "2.0.0", rename("goal", "aim"), remove("draft"), add("done", default=0))
PLAN_1 = SchemaSet(Schema("plan", "1.0.0", Plan1))
PLAN_2 = SchemaSet(PLAN_1, Schema("plan", "2.0.0", Plan2), TO_PLAN_2)
PLAN_21 = SchemaSet(PLAN_2, Schema("plan", "2.1.0", Plan21))
OLD_PLAN = {"goal": "x", "steps": ["a"], "draft": "d"}
NEW_PLAN = {"aim": "x", "steps": ["a"], "done": 0}
USERS: dict[str, Any] = {"scopes": "user:*"}
PLANS: dict[str, Any] = {**USERS, "key": "plans/*"}


class Fields1(TypedDict):
    """The first version."""

    names: list[str]
    count: int
    note: NotRequired[str]


class Fields2(TypedDict):
    """A field is renamed, one retyped, one removed, one added."""

    greeted: list[str]
    count: float
    mood: str


class Fields21(TypedDict):
    """A field more, which older releases need not know."""

    greeted: list[str]
    count: float
    mood: str
    extra: NotRequired[int]


GREETER_1 = SchemaSet(Schema("greeter", "1.0.0", Fields1))
TO_GREETER_2 = Migration(
    "greeter",
    "1.0.0",
    "2.0.0",
    rename("names", "greeted"),
    convert("count", float, int),
    remove("note"),
    add("mood", default="calm"),
)
GREETER_2 = SchemaSet(GREETER_1, Schema("greeter", "2.0.0", Fields2), TO_GREETER_2)
GREETER_21 = SchemaSet(GREETER_2, Schema("greeter", "2.1.0", Fields21))
FIRST_FIELDS: dict[str, Any] = {"names": ["Ada"], "count": 1, "note": "n"}
SECOND_FIELDS: dict[str, Any] = {"greeted": ["Ada"], "count": 1.0, "mood": "calm"}


def release(schema: Any, fields: dict[str, Any], **options: Any) -> Any:
    """Declare the class as a release of the application has it."""
    registry.forget("tests: greeter in versions")
    space = {"__annotations__": dict.fromkeys(fields, Any), **fields, "__module__": __name__}
    return type("Greeter", (PersistentAgent,), space, name="tests: greeter in versions", schema=schema, **options)


def saved(store: Store, schema: Any = GREETER_1, fields: dict[str, Any] | None = None, id: str = "a") -> Any:
    """Save an agent, and return it."""
    agent = release(schema, FIRST_FIELDS if fields is None else fields)().attach(store, id)
    agent.save()
    return agent


class Image1(TypedDict):
    """The first version."""

    w: int


class Image2(TypedDict):
    """A field is renamed, and one added."""

    width: int
    alt: str


class Image21(TypedDict):
    """A field more, which older programs need not know."""

    width: int
    alt: str
    by: NotRequired[str]


IMAGE_1 = SchemaSet(Schema("image", "1.0.0", Image1))
TO_IMAGE_2 = Migration("image", "1.0.0", "2.0.0", rename("w", "width"), add("alt", default=""))
IMAGE_2 = SchemaSet(IMAGE_1, Schema("image", "2.0.0", Image2), TO_IMAGE_2)
IMAGE_21 = SchemaSet(IMAGE_2, Schema("image", "2.1.0", Image21))
