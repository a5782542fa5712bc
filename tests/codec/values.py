"""Generated values of every supported type, and a strict comparison of two values."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import ipaddress
import pathlib
import re
import struct
import zoneinfo
from typing import Any

import attrs
import pydantic
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.types import Command, Interrupt, Send

from tests.codec import app


def identical(one: Any, other: Any) -> bool:
    """Equal, of exactly the same type and in the same order, all the way down."""
    if one is other:  # pandas' NaT and NA do not say that they equal themselves
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, complex):
        return identical(one.real, other.real) and identical(one.imag, other.imag)
    if isinstance(one, decimal.Decimal):
        return str(one) == str(other)
    if isinstance(one, list | tuple | collections.deque):
        same_bound = not isinstance(one, collections.deque) or one.maxlen == other.maxlen
        return same_bound and len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, dict):
        factories = getattr(one, "default_factory", None) is getattr(other, "default_factory", None)
        return factories and identical(list(one), list(other)) and identical(list(one.values()), list(other.values()))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(identical(a, b) for b in other) for a in one)
    if isinstance(one, pydantic.BaseModel):
        keep_set = not type(one).__module__.startswith("langchain_core")
        return (
            identical(one.__dict__, other.__dict__)
            and identical(one.__pydantic_extra__, other.__pydantic_extra__)
            and identical(one.__pydantic_private__, other.__pydantic_private__)
            and (not keep_set or one.__pydantic_fields_set__ == other.__pydantic_fields_set__)
        )
    if dataclasses.is_dataclass(one):
        return all(identical(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if attrs.has(type(one)):
        return identical(attrs.astuple(one, recurse=False), attrs.astuple(other, recurse=False))
    if isinstance(one, Send):
        return identical((one.node, one.arg), (other.node, other.arg))
    if isinstance(one, BaseException):
        links = ((one.__cause__, other.__cause__), (one.__context__, other.__context__))
        return (
            identical(one.args, other.args) and identical(vars(one), vars(other)) and all(identical(*p) for p in links)
        )
    if isinstance(one, dt.datetime | dt.time):
        return one == other and one.fold == other.fold and identical(one.tzinfo, other.tzinfo)
    if isinstance(one, range):
        return (one.start, one.stop, one.step) == (other.start, other.stop, other.step)
    return bool(one == other) or (bool(one != one) and repr(one) == repr(other))  # NumPy's NaT


zones = st.sampled_from(
    [
        None,
        dt.UTC,
        dt.timezone(dt.timedelta(hours=-5, minutes=-30)),
        dt.timezone(dt.timedelta(0), "Z"),
        dt.timezone(dt.timedelta(seconds=3601, microseconds=5), "odd"),
        zoneinfo.ZoneInfo("Europe/Berlin"),
        zoneinfo.ZoneInfo("UTC"),
    ]
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**200), max_value=2**200),
    st.floats(),
    st.text(),
    st.text(st.characters(codec=None), max_size=5),  # lone surrogates too
    st.binary(),
)

hashable = st.one_of(
    scalars,
    st.complex_numbers(allow_nan=False),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(allow_nil=True),
    st.dates(),
    st.datetimes(timezones=zones.filter(lambda z: z is not None)),
    st.datetimes(),
    st.times(timezones=st.sampled_from([None, dt.UTC])),
    st.timedeltas(),
    zones,
    st.builds(range, st.integers(-99, 99), st.integers(-99, 99), st.integers(1, 9)),
    st.sampled_from([app.Colour.GREEN, app.Level.HIGH, app.Word.YES, app.Access.READ | app.Access.RUN, app.Access(0)]),
    st.sampled_from([app.IntAccess.WRITE, app.Colour.ALSO_RED, int, dict]),
    st.builds(pathlib.PurePosixPath, st.text(st.characters(exclude_characters="\0", codec="utf-8"))),
    st.builds(pathlib.PureWindowsPath, st.sampled_from(["C:\\x", "a/b", ""])),
    st.builds(pathlib.Path, st.sampled_from(["", "/", "a/b", "../x"])),
    st.ip_addresses(),
    st.sampled_from([ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_interface("fe80::1/64")]),
    st.sampled_from([re.compile("a+", re.IGNORECASE), re.compile(b"\x00", re.DOTALL)]),
    st.builds(app.Point, st.floats(allow_nan=False), st.integers()),
    st.builds(app.Pair, st.integers(), st.text()),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    names = st.text(max_size=5)
    by_name = st.dictionaries(names, inner, max_size=4)
    return st.one_of(
        lists,
        by_name,
        st.dictionaries(hashable, inner, max_size=3),
        lists.map(tuple),
        st.builds(collections.deque, lists, st.none() | st.just(4)),
        st.builds(lambda d: collections.defaultdict(list, d), by_name),
        st.builds(collections.OrderedDict, by_name),
        st.builds(app.Plan, names, lists),
        st.builds(app.Slotted, inner, inner),
        st.builds(lambda a: app.FrozenSlots(a=a), inner),
        st.builds(app.Child, names, lists, inner),
        st.builds(app.Outer.Inner, inner),
        st.builds(app.Defined, inner, lists),
        st.builds(app.Frozen, inner),
        st.builds(app.Pair, inner, inner),
        st.builds(app.Old, inner, inner),
        st.builds(lambda a: app.FrozenModel(a=a), inner),
        st.builds(lambda d: app.Extra(**d), st.dictionaries(st.sampled_from(["b", "c"]), inner)),
        st.builds(lambda c, d: HumanMessage(c, additional_kwargs=d), names, by_name),
        st.builds(lambda a: ToolMessage("t", tool_call_id="1", artifact=a), inner),
        st.builds(lambda d: Document("text", metadata=d), by_name),
        st.builds(Send, names, inner),
        st.builds(lambda u: Command(update=u, goto=[Send("n", u)]), inner),
        st.builds(lambda v: Interrupt(v, id="i"), inner),
        st.builds(ValueError, inner),
    )


leaves = st.one_of(
    hashable,
    st.binary().map(bytearray),
    st.complex_numbers(),
    st.decimals(),
    st.sets(hashable, max_size=3),
    st.frozensets(st.tuples(st.integers(), st.text()), max_size=3),
    st.builds(collections.Counter, st.lists(st.text(max_size=1), max_size=4)),
    st.builds(app.Model, name=st.text(), tags=st.lists(st.text(max_size=2), max_size=2)),
    st.just(app.Root([1, 2])),
    st.just(app.IntBox(value=3)),
    st.builds(AIMessage, st.text(), id=st.text()),
    st.builds(SystemMessage, st.text()),
    st.just(RemoveMessage(id="x")),
)

values = st.recursive(leaves, containers, max_leaves=12)
"""Anything that can be saved."""

states = st.dictionaries(st.text(max_size=6), values, max_size=4)
