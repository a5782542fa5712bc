"""Tests of values: they are returned as they were stored."""

from __future__ import annotations

import json
import random

from holdfast.backends.conformance.kit import Driven, Suite, case, same
from holdfast.backends.conformance.rows import meaning, row_of, step
from holdfast.backends.interface import Create, Delete, Get, Put, Row, Scan
from holdfast.backends.tables import (
    LINES,
    METADATA,
    NODES,
    OBJECTS,
    REFS,
    STATE_VALUES,
    STEPS,
    TABLES,
    WRITES,
    JsonText,
    Scalar,
    WordList,
)

NAMES = {
    "empty": "",
    "NUL": "\0",
    "NUL inside": "a\0b",
    "a number": "17",
    "a number with zeros": "007",
    "a float": "1e5",
    "blank at the end": "a ",
    "line break": "a\r\nb",
    "quotes": '\'; DROP TABLE "steps"; --',
    "pattern": "%_*?[a]\\",
    "path": "../../etc/passwd",
    "key syntax": "a/b:c|d,e$f.g{h}",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "upper case": "NAME",
    "lower case": "name",
    "astral": "\U0001f600",
    "last of the plane": "\uffff",
    "byte order mark": "\ufeffa",
    "1,024 bytes": "n" * 1024,
    "1,024 bytes of three": "한" * 341 + "x",
    "1,024 bytes of four": "😀" * 256,
}

JSON = {
    "null": "null",
    "false": "false",
    "zero": "0",
    "the least number": str(-(2**63)),
    "the greatest number": str(2**63 - 1),
    "a fraction": "0.1",
    "a large fraction": "1e300",
    "no text": '""',
    "text": '"text"',
    "text of all kinds": '"\\u0001\\n\\"\\\\ \u00e9 e\u0301 \U0001f600 \uffff"',
    "a date that is text": '"2024-01-01T00:00:00Z"',
    "an empty list": "[]",
    "an empty object": "{}",
    "a list": '[1, 1.5, "a", null, true, [], {}]',
    "names": '{"": 1, "a b": 2, "a.b": 3, "$set": 4, "_id": 5, "\U0001f600": 6, "1": 7}',
    "names of special meaning": '[{"$date": 1}, {"$oid": "x"}, {"$numberLong": "1"}, {"$ref": "a", "$id": 1}]',
    "deep": "[" * 80 + "]" * 80,
}
"""Values of a JSON column: text without NUL, numbers of up to 64 bits, a depth of up to 80."""


class Values(Suite):
    """Names, numbers and bodies."""

    def test_a_name_is_any_text(self, store: Driven) -> None:
        for kind, name in NAMES.items():
            with case(kind):
                _name(store, name)

    def test_names_that_look_alike_are_different(self, store: Driven) -> None:
        rows = [row_of(LINES, "tenant", name, body=name.encode()) for name in NAMES.values()]
        assert store.apply(*(Create(LINES, row) for row in rows)) is None
        for row in rows:
            assert store.read(Get(LINES, [row.key])) == [[row]]
        assert len(store.scan(LINES, ("tenant",))) == len(rows)

    def test_values_keep_their_types(self, store: Driven) -> None:
        row = step(5, id="12", revision=3, hash=b"12", time=2**63 - 1, kind="0", metadata="[1]", tail=0, size=2**53 + 1)
        row = row._replace(body=bytes(range(256)))
        store.fill(STEPS, [row])
        for found in (*store.read(Get(STEPS, [row.key]), Scan(STEPS, ())), store.scan(STEPS, ("tenant",), by="id")):
            assert found == [row]
            assert isinstance(found[0], Row)
            assert type(found[0].key) is type(found[0].columns) is tuple
            kinds = [type(value) for value in found[0].key + found[0].columns]
            assert kinds == list(STEPS.all_columns.values())
            assert type(found[0].body) is bytes

    def test_numbers_go_up_to_63_bits(self, store: Driven) -> None:
        for number in (0, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1):
            row = step(number, branch=number, revision=number, time=number, size=number)
            store.fill(STEPS, [row])
            assert store.read(Get(STEPS, [row.key]), Scan(STEPS, row.key)) == [[row], [row]]

    def test_every_space_keeps_its_rows(self, store: Driven) -> None:
        samples: dict[type, Scalar] = {str: "text", int: 7, bytes: b"\0bytes\xff", JsonText: '{"a": [1, "b", null]}'}
        samples[WordList] = "some words"
        rows = {
            space: Row(
                tuple(samples[kind] for kind in space.key.values()),
                tuple(samples[kind] for kind in space.columns.values()),
                space.name.encode(),
            )
            for space in TABLES
        }
        assert store.apply(*(Create(space, row) for space, row in rows.items())) is None
        expected = {space.name: [meaning(space, row)] for space, row in rows.items()}
        assert _everything(store) == expected
        assert store.apply(Delete(STEPS, ("text",))) is None
        assert _everything(store) == {**expected, "steps": []}

    def test_json_means_what_it_meant(self, store: Driven) -> None:
        for kind, text in JSON.items():
            with case(kind):
                _json(store, kind, text)

    def test_bodies_of_any_size(self, store: Driven) -> None:
        for size in (0, 1, 4095, 65536, 1 << 20, 5 << 20):
            body = random.Random(size).randbytes(min(size, store.backend.capabilities.max_body))  # noqa: S311
            row = row_of(OBJECTS, "tenant", "line", b"digest %d" % size, 0, body=body)
            with case(size):
                store.fill(OBJECTS, [row])
                assert same(store.read(Get(OBJECTS, [row.key]))[0], [row])

    def test_bodies_of_little_variety(self, store: Driven) -> None:
        bodies = [b"\0" * 5000, b"\xff" * 5000, b"", b"\0", b"null", b"'", b"\\x00"]
        rows = [row_of(NODES, "tenant", "line", 0, bytes([n]), body=body) for n, body in enumerate(bodies)]
        store.fill(NODES, rows)
        assert same(store.scan(NODES), rows)

    def test_tenants_and_lines_are_apart(self, store: Driven) -> None:
        owners = [
            ("a", "b"),
            ("a", "bc"),
            ("ab", "c"),
            ("abc", ""),
            ("", "abc"),
            ("a\0b", "c"),
            ("a", "b\0c"),
            ("A", "b"),
        ]
        rows = {owner: row_of(STEPS, *owner, 0, 0, body=repr(owner).encode()) for owner in owners}
        assert store.apply(*(Create(STEPS, row) for row in rows.values())) is None
        for owner, row in rows.items():
            assert store.scan(STEPS, owner) == [row]
        assert store.apply(Delete(STEPS, ("a", "b"))) is None
        del rows["a", "b"]
        assert sorted(store.scan(STEPS)) == sorted(rows.values())
        assert store.apply(Delete(STEPS, ("a",))) is None
        assert sorted(store.scan(STEPS)) == sorted(row for (tenant, _), row in rows.items() if tenant != "a")


def _name(store: Driven, name: str) -> None:
    rows = {
        LINES: row_of(LINES, name, name, body=b"l", created=1),
        REFS: row_of(REFS, name, name, name, name, name, body=b"r", time=3),
        WRITES: row_of(WRITES, name, name, name, name, -3, body=b"w", path=name, channel=name),
    }
    assert store.apply(*(Create(space, row) for space, row in rows.items())) is None
    for place, (space, row) in enumerate(rows.items()):
        assert store.read(Get(space, [row.key]), Scan(space, row.key[:1])) == [[row], [row]]
        assert store.apply(Create(space, row)) == 0, f"taken, {place}"
    assert store.apply(*(Delete(space, (name, name)) for space in rows)) is None
    assert store.scan(WRITES) == store.scan(REFS) == store.scan(LINES) == []


def _json(store: Driven, tenant: str, text: str) -> None:
    rows = {
        METADATA: row_of(METADATA, tenant, "thread", "checkpoint", "key", value=text),
        STATE_VALUES: row_of(STATE_VALUES, tenant, "thread", "channel", kind="value", items=3, value=text),
    }
    assert store.apply(*(Create(space, row) for space, row in rows.items())) is None
    for space, row in rows.items():
        for found in (
            *store.read(Get(space, [row.key]), Scan(space, row.key[:2])),
            store.scan(space, (tenant,), bodies=False),
        ):
            assert [meaning(space, each) for each in found] == [meaning(space, row)]
            assert _kinds(json.loads(str(found[0].columns[-1]))) == _kinds(json.loads(text))
    again = rows[METADATA]._replace(columns=('[{"put": "again"}]',))
    assert store.apply(Put(METADATA, again), Put(METADATA, again._replace(key=(*again.key[:3], "other")))) is None
    assert [meaning(METADATA, row)[1] for row in store.scan(METADATA, (tenant,))] == [[[{"put": "again"}]]] * 2


def _everything(store: Driven) -> dict[str, list[object]]:
    found = store.everything()
    return {space.name: [meaning(space, row) for row in found[space.name]] for space in TABLES}


def _kinds(tree: object) -> object:
    """Return the types in a tree of JSON: in Python, true equals 1. JSON has one type of numbers."""
    if isinstance(tree, dict):
        return {key: _kinds(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_kinds(item) for item in tree]
    return float if type(tree) is int else type(tree)
