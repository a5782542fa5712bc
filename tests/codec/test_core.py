"""Both cores give the same bytes, values and errors; the native one keeps nothing that it was given."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from holdfast.codec import Codec
from holdfast.codec.bulk_packing import MODEL_NUMBERS
from holdfast.codec.message_cache import MessageParts
from holdfast.errors import TooLargeError
from tests.codec.test_message_cache import anything, messages, outcome, plain_messages
from tests.codec.values import identical
from tests.support.core_oracle import NATIVE, PYTHON, check, sources
from tests.support.cores import CORES, codec_of, counts
from tests.support.nightly import by_day

ROOT = Path(__file__).resolve().parents[2]
native_only = pytest.mark.skipif("native" not in CORES, reason="the native core is not built")

EDGES: list[Any] = [
    *(
        sign * ((1 << bits) + more)
        for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64)
        for more in (-1, 0, 1)
        for sign in (1, -1)
    ),
    *("x" * size for size in (0, 31, 32, 255, 256, 65535, 65536)),
    *(b"x" * size for size in (0, 255, 256, 65535, 65536)),
    *([None] * size for size in (0, 15, 16, 65535, 65536)),
    *(dict.fromkeys(range(size)) for size in (0, 15, 16, 70000)),
    *(0.0, -0.0, float("inf"), 1e308, True, False, None),
    *("é" * 16, "\ud800", ["\ud800"], {"\ud800": 1}, {b"k": 1.5, None: 2, True: 3, 0.5: 4}, {(1,): 2}, (1,), {1}),
    *([None, 5], [None, 5, {}], [[None, 5, {}]], [None, HumanMessage("a")], {"m": [HumanMessage("a")]}),
    *(
        HumanMessage("a", extra=1),
        HumanMessage("x" * 300, additional_kwargs={"k": {1: [b"", "é"]}}),
        [HumanMessage("a" * 70000)],
    ),
    AIMessage("", additional_kwargs={"k": HumanMessage("inside")}),
]


class Text(str):
    """A str that is more than one."""


class Numbers(list[int]):
    """A list that is more than one."""


OTHERS: list[Any] = [Text("a"), Numbers([1]), {Text("a"): 1}, [Text("a")], HumanMessage(Text("a")), object(), len, type]


def nested(depth: int, of: Any = 1) -> Any:
    """Lists in lists."""
    for _ in range(depth):
        of = [of]
    return of


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def doubled(times: int) -> list[Any]:
    """Few objects that are many values."""
    items: list[Any] = ["x"]
    for _ in range(times):
        items = [items, items]
    return items


@native_only
@given(st.lists(messages | plain_messages | anything, max_size=20))
def test_the_bytes_are_the_same(values: list[Any]) -> None:
    assert outcome(lambda: NATIVE.pack_items(values)) == outcome(lambda: PYTHON.pack_items(values))
    assert outcome(lambda: NATIVE.pack_cached(values, None)[0]) == outcome(lambda: PYTHON.pack_cached(values, None)[0])
    assert outcome(lambda: NATIVE.pack({"v": values})) == outcome(lambda: PYTHON.pack({"v": values}))


@native_only
def test_the_bytes_of_values_at_the_limits_are_the_same() -> None:
    PYTHON.pack(HumanMessage("known from now on"))
    deep = [nested(depth) for depth in (46, 47, 48, 49, 50)]
    inmost: tuple[Any, ...] = (1, [])
    deep += [
        HumanMessage("", additional_kwargs={"k": nested(depth, inside)})
        for depth in (44, 45, 46, 47)
        for inside in inmost
    ]
    for value in [*EDGES, *OTHERS, *deep, circle(), doubled(12)]:
        for way in (
            Codec.pack,
            lambda codec, each: codec.pack_items([each]),
            lambda codec, each: codec.pack({"k": each}),
        ):
            assert outcome(lambda: way(NATIVE, value)) == outcome(lambda: way(PYTHON, value))  # noqa: B023
        assert outcome(lambda: NATIVE.pack_cached([value], None)[0]) == outcome(lambda: PYTHON.pack_items([value]))  # noqa: B023


@native_only
def test_the_limit_of_bytes_is_the_same() -> None:
    small, reference = (codec_of(CORES[name], max_bytes=64) for name in ("native", "python"))
    for size in range(50, 70):
        for value in ("x" * size, b"x" * size, [1] * size, {"k": "x" * size}, HumanMessage("x" * (size - 50))):
            for way in (
                Codec.pack,
                lambda codec, each: codec.pack_items([each] * 20),
                lambda codec, each: codec.pack_cached([each], None)[0],
            ):
                assert outcome(lambda: way(small, value)) == outcome(lambda: way(reference, value))  # noqa: B023
    items = PYTHON.pack_items(["x" * 40, "x" * 70])
    for codec in (small, reference):
        with pytest.raises(TooLargeError):
            codec.unpack_cached(items, MessageParts.of(items))


@native_only
def test_few_objects_that_are_many_values_are_declined_at_once() -> None:
    start = time.process_time()
    assert CORES["native"].pack(doubled(60), 1 << 40) is None
    assert time.process_time() - start < 2


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Packed bytes with some of them changed."""
    forged = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(forged) + 1)
        match rng.randrange(4):
            case 0:
                forged[at : at + 1] = [rng.randrange(256)]
            case 1:
                del forged[at : at + rng.randint(1, 4)]
            case 2:
                forged[at:at] = rng.randbytes(rng.randint(1, 4))
            case _:
                forged[at : at + 1] = rng.choice(
                    [b"\x93\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\0\0\0\1", b"\xcf", b"\xa1\xff"]
                )
    return bytes(forged)


def check_mutated(number: int, seed: int) -> None:
    rng = random.Random(seed)
    good = sources()
    for _ in range(number):
        check(mutated(rng, rng.choice(good)))


@native_only
def test_forged_bytes_give_the_same_value_or_error() -> None:
    check_mutated(by_day(20_000, 3_000), 1)


@native_only
@pytest.mark.nightly
@pytest.mark.time_limit(3600)
def test_a_million_forged_bytes_give_the_same_value_or_error() -> None:
    check_mutated(1_000_000, random.randrange(1 << 32))


@native_only
def test_what_is_packed_and_unpacked_is_not_kept() -> None:
    """Every reference that the native core takes is given back."""
    chat = [HumanMessage("a", id=str(number), additional_kwargs={"k": [{}]}) for number in range(40)]
    items = PYTHON.pack_items(chat)
    forged = [*items, mutated(random.Random(1), items[0])[:-1]]
    parts = [*chat, *(vars(each) for each in chat), *(each.additional_kwargs for each in chat), *items, *MODEL_NUMBERS]
    parts += [None, True, chat[0].model_fields_set]
    core: Any = CORES["native"]

    def use() -> None:
        _, seen = NATIVE.pack_cached(chat.copy(), None)
        NATIVE.pack_cached([*chat[3:], HumanMessage("new")], seen)
        values, made, _, _ = NATIVE.unpack_cached(items, MessageParts.of(items))
        again, made, _, loan = NATIVE.unpack_cached(items[1:], made)
        del values, again
        NATIVE.unpack_cached(items, made, loan)
        assert core.unpack_messages(None, forged, made, loan, 1 << 20) is None
        assert core.pack_each([circle(), (1,), "\ud800", chat[0]], 1 << 20)[:3] == [None] * 3
        assert core.pack_messages([*chat, (1,)], None, 1 << 20) is None

    def held() -> tuple[list[int], int]:
        gc.collect()
        return list(map(sys.getrefcount, parts)), len(gc.get_objects())

    for _ in range(20):
        use()
    before, objects = held()
    for _ in range(50):
        use()
    after, objects_after = held()
    # Others refer to None and True, too.
    assert all(abs(now - then) < 40 for now, then in zip(after, before, strict=True))
    assert after[:-3] == before[:-3]
    assert objects_after < objects + 40


@native_only
def test_a_panic_is_declined() -> None:
    _, declined = counts()["pack"]
    _native: Any = pytest.importorskip("holdfast._native")
    assert _native.panics() is None
    assert counts()["pack"][1] == declined + 1
    assert CORES["native"].pack([1], 10) == PYTHON.pack([1])


@native_only
def test_usual_calls_are_not_declined() -> None:
    PYTHON.pack(HumanMessage("known from now on"))
    before = counts()
    chat = [HumanMessage(str(number)) for number in range(20)]
    items, seen = NATIVE.pack_cached(chat.copy(), None)
    NATIVE.pack_cached([*chat[2:], HumanMessage("new")], seen)
    NATIVE.pack({"step": 1, "parents": {}})
    NATIVE.unpack_cached(items, MessageParts.of(items))
    after = counts()
    assert {
        name: (after[name][0] - calls, after[name][1] - declined) for name, (calls, declined) in before.items()
    } == {
        "pack": (1, 0),
        "pack_messages": (2, 0),
        "unpack_each": (0, 0),
        "unpack_messages": (1, 0),
    }


@native_only
@given(st.lists(messages | plain_messages | anything, max_size=12))
def test_what_is_unpacked_is_the_same(values: list[Any]) -> None:
    items = outcome(lambda: PYTHON.pack_items(values))
    if isinstance(items, list):
        assert identical(NATIVE.unpack_items(items), PYTHON.unpack_items(items))


@native_only
def test_messages_that_were_trimmed_or_changed_in_the_middle_are_known() -> None:
    values = [HumanMessage(str(number), id=str(number)) for number in range(40)]
    packed, seen = NATIVE.pack_cached(values.copy(), None)
    values[20].content = "changed"
    fewer = [*values[3:10], *values[12:]]
    again, _ = NATIVE.pack_cached(fewer, seen)
    assert again == PYTHON.pack_items(fewer)
    assert sum(one is other for one in again for other in packed) == len(fewer) - 1


CHOICES: dict[str, Callable[[], set[str]]] = {
    "python": lambda: {"python"},
    "": lambda: {"native"} if "native" in CORES else {"python"},
    "native": lambda: {"native"} if "native" in CORES else {"the native core cannot be loaded"},
    "other": lambda: {"there is no core named 'other'"},
}


@pytest.mark.parametrize("wanted", CHOICES)
def test_the_environment_chooses(wanted: str) -> None:
    code = "import holdfast; from holdfast.codec.core import CORE; assert holdfast.core == CORE.name; print(CORE.name)"
    environment = {**os.environ, "HOLDFAST_CORE": wanted}
    ran = subprocess.run((sys.executable, "-c", code), env=environment, capture_output=True, text=True, check=False)
    assert any(said in ran.stdout + ran.stderr for said in CHOICES[wanted]())


@native_only
@pytest.mark.nightly
@pytest.mark.time_limit(1800)
@pytest.mark.parametrize("core", sorted(CORES))
def test_the_tests_of_the_codec_pass_with_each_core(core: str) -> None:
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/codec",
        *map(str, sorted(ROOT.glob("tests/test_golden*.py"))),
    )
    environment = {**os.environ, "HOLDFAST_CORE": core}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]
