"""Steps and the chain of their hashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import EditMap, Set, encode_operation
from holdfast.engine.model.packed_state import pack_state
from holdfast.engine.model.steps import Step, StepHeader, StepOrigin, StepParent
from holdfast.errors import CorruptError
from tests.engine.model.histories import codec, states
from tests.support.cases import case

SALT = b"s" * 16

headers = st.builds(
    StepHeader,
    id=st.text(max_size=10),
    parents=st.lists(
        st.builds(StepParent, st.integers(0, 9), st.integers(0, 99), st.binary(min_size=32, max_size=32)), max_size=2
    ).map(tuple),
    time=st.integers(0, 2**62),
    stamp=st.text(max_size=5),
    kind=st.sampled_from(["save", "merge", "restore"]),
    schema=st.sampled_from(["", "1.2.0"]),
    metadata=st.dictionaries(st.text(max_size=3), st.integers()).map(codec.pack),
    events=st.just(""),
    salt=st.just(b""),
    origin=st.builds(StepOrigin, *[st.sampled_from(["", "a", "b"])] * 3),
)


@given(headers, states)
def test_stored_form(header: StepHeader, state: dict[str, Any]) -> None:
    step = Step(header, diff_maps({}, pack_state(codec, state)))
    back = Step.decode(step.encode(), header.id, header.schema)
    assert back == step
    assert back.commit(SALT) == step.commit(SALT)


@given(headers, headers)
def test_the_hash_covers_the_header(one: StepHeader, other: StepHeader) -> None:
    def named(header: StepHeader) -> StepHeader:  # a parent is named by its hash; its place is only a hint
        return header._replace(parents=tuple(StepParent(0, 0, parent.commit) for parent in header.parents))

    assert (Step(one).commit(SALT) == Step(other).commit(SALT)) == (named(one) == named(other))


def test_the_hash_covers_every_change() -> None:
    base = EditMap((b"\xa1r",), ((b"\xa1a", Set(b"\x01")),), (b"\xa1a",))
    commits = {
        Step(StepHeader("1"), edit).commit
        for edit in (
            base,
            EditMap((), base.put, base.moved),
            EditMap(base.removed, base.put, ()),
            EditMap(base.removed, ((b"\xa1a", Set(b"\x02")),), base.moved),
            EditMap(base.removed, ((b"\xa1b", Set(b"\x01")),), base.moved),
            EditMap(base.removed, (), base.moved),
        )
    }
    assert len(commits) == 6


def test_every_flipped_bit_of_a_step_is_noticed() -> None:
    data = Step(
        StepHeader("id", (StepParent(0, 3, b"p" * 32),), 5, "s"), EditMap((), ((b"\xa1a", Set(b"\x01")),))
    ).encode()
    step = Step.decode(data, "id")
    for i in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[i] ^= 1 << bit
            try:
                other = Step.decode(bytes(damaged), "id")
                if other.commit(SALT) != step.commit(SALT):
                    continue
            except CorruptError:
                continue
            # Where a parent stands is a hint for finding it; its hash is what names it.
            assert [p.commit for p in other.header.parents] == [p.commit for p in step.header.parents]
            assert other.header.parents != step.header.parents


FIELDS = [[], 0, "", "save", b"\x80"]
EDIT = encode_operation(EditMap())


NO_STEPS: list[Any] = [
    1,
    [],
    [1, 2],
    [FIELDS, [b"", EDIT], "events", b""],
    [FIELDS, [b"", encode_operation(Set(b""))]],
    [FIELDS, [b"", "no bytes"]],
    [FIELDS, [b""]],
    [FIELDS, []],
    [FIELDS[:-1], [b"", EDIT]],
    [[[1], 0, "", "save", b"\x80"], [b"", EDIT]],
    [[[[0, 0, b"short"]], 0, "", "save", b"\x80"], [b"", EDIT]],
    [[[[0, 0]], 0, "", "save", b"\x80"], [b"", EDIT]],
]


def test_a_step_is_decoded() -> None:
    assert Step.decode(codec.pack([FIELDS, [b"", EDIT]]), "id") == Step(StepHeader("id"))


def test_what_is_no_step(subtests: pytest.Subtests) -> None:
    for value in NO_STEPS:
        with case(subtests, value), pytest.raises(CorruptError):
            Step.decode(codec.pack(value), "id")


def test_bytes_that_are_no_step() -> None:
    with pytest.raises(CorruptError, match="the stored form of a step is malformed"):
        Step.decode(b"\xc1", "id")
