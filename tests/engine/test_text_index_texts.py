"""The text that an edit brings, and the words in it."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec import default_codec, msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, EditText, KeepRun, Set
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state
from holdfast.engine.paths import path_text
from holdfast.engine.text_index.extract import (
    ChannelsAroundEdit,
    ExtractedText,
    edited_items,
    edited_texts,
    replaced,
    role_of,
    texts,
)
from holdfast.engine.text_index.tokenize import LONGEST, TextFinder, fold, in_order, needed, words_of
from holdfast.errors import CorruptError
from tests.codec.values import values

KEY = pack_name("c")


def nothing_large(pointer: bytes) -> bytes:
    raise AssertionError(pointer)


def of(value: bytes) -> list[ExtractedText]:
    return list(texts(EditMap(put=((KEY, Set(value)),)), ChannelsAroundEdit(), nothing_large))


def packed(value: Any) -> bytes:
    return default_codec.pack(value)


def between(old: dict[str, Any], new: dict[str, Any], *, exact: bool = True) -> list[tuple[str, str]]:
    """What differs from one state to another."""
    before, after = pack_state(default_codec, old), pack_state(default_codec, new)
    edit = diff_maps(before, after)
    known = (
        ChannelsAroundEdit(before, after)
        if exact
        else ChannelsAroundEdit({}, {key: after[key] for key in edited_texts(edit)})
    )
    return [(path_text(each.path), each.text) for each in texts(edit, known, nothing_large)]


@given(values)
def test_any_value_can_be_looked_at(value: Any) -> None:
    found = of(packed({"here": value}))
    assert all(each.path[0] == "c" and type(each.text) is str for each in found)


@pytest.mark.parametrize("value", [5, 1.5, None, True, b"bytes", Decimal("1.5"), 1 << 80, range(3)], ids=repr)
def test_what_has_no_text(value: Any) -> None:
    assert of(packed(value)) == []


@pytest.mark.parametrize(
    "payload", [b"\xa1x", b"\x90", b"\x91\xa1x", b"\x93\xa1x\xa1y\xa1z"], ids=["text", "none", "one", "three"]
)
@pytest.mark.parametrize("tag", sorted({*Tag} - {Tag.SHAPED, Tag.STR}))
def test_payloads_of_another_shape_do_no_harm(tag: int, payload: bytes) -> None:
    assert all(type(each.text) is str for each in of(msgpack.ext(tag, payload)))


@pytest.mark.parametrize("data", [b"\xa5ab", b"\xa2\xff\xff", b"\x81\x80\x01"], ids=["short", "no text", "odd key"])
def test_what_is_no_packed_value_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        of(data)


def test_keys_of_any_kind_are_shown() -> None:
    value = {1: "a", None: "b", b"\x01": "c", "odd key": "d"}
    assert [path_text(each.path) for each in of(packed(value))] == [
        "c.1",
        "c.None",
        "c[\"b'\\\\x01'\"]",
        'c["odd key"]',
    ]
    assert path_text(()) == ""


def test_edits_of_bytes_bring_no_text() -> None:
    old, new = {"c": bytes(5000)}, {"c": bytes(5000) + b"x"}
    assert between(old, new) == []
    before, after = pack_state(default_codec, old), pack_state(default_codec, new)
    assert edited_texts(diff_maps(before, after)) == [KEY]


def test_items_whose_lists_are_not_known_are_looked_at_all_the_same() -> None:
    change = EditMap(put=((pack_name("a"), Set(packed("needle"))),))
    edit = EditMap(put=((KEY, EditList((KeepRun(0, 3), ChangeItem(5, change)))),))
    assert edited_items(edit) == [KEY]
    (found,) = texts(edit, ChannelsAroundEdit(), nothing_large)
    assert (found.path, found.role) == (("c", 3, "a"), "")
    short: PackedMap = {KEY: []}
    (found,) = texts(edit, ChannelsAroundEdit(short, short), nothing_large)
    assert found.path == ("c", 3, "a")


def test_a_text_edit_without_its_text_brings_nothing() -> None:
    edit = EditMap(put=((KEY, EditText((KeepRun(0, 3), b"new"))),))
    assert list(texts(edit, ChannelsAroundEdit(), nothing_large)) == []


def test_what_is_replaced_and_what_is_known_of_it() -> None:
    old, new = {"c": {"l": ["a", "b"]}}, {"c": {"l": ["a", "b", "c"]}}
    edit = diff_maps(pack_state(default_codec, old), pack_state(default_codec, new))
    assert replaced(edit) == [KEY]
    assert between(old, new) == [("c.l[2]", "c")]
    assert [text for _, text in between(old, new, exact=False)] == ["a", "b", "c"]
    assert between({"c": {"k": "a"}}, {"c": ["a", "b"]}) == [("c[1]", "b")]


def test_large_values_are_loaded() -> None:
    large = packed("needle " * 20_000)
    pointer = b"\xc1\xc1" + bytes(40)
    edit = EditMap(put=((KEY, EditList(((pointer,),))),))
    (found,) = texts(edit, ChannelsAroundEdit(), lambda _: large)
    assert found.text.startswith("needle")
    more = EditMap(put=((KEY, EditText((KeepRun(0, 7), b"x"))),))
    (found,) = texts(more, ChannelsAroundEdit(after={KEY: pointer}), lambda _: packed("needle x"))
    assert (found.text, found.fresh) == ("needle x", ((7, 8),))


def test_roles_have_one_name() -> None:
    assert role_of("human") == role_of("user") == "user"
    assert role_of("critic") == "critic"


# Words ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=40), max_size=4))
def test_words_of_texts_are_those_of_each(found: list[str]) -> None:
    assert words_of(found) == {word for text in found for word in in_order(text)}
    for word in words_of(found):
        assert word
        assert " " not in word
        assert len(word) <= LONGEST


@given(st.text(max_size=20), st.text(max_size=8).filter(str.strip), st.text(max_size=20), st.booleans())
def test_whatever_is_found_has_the_words_that_are_needed(before: str, text: str, after: str, prefix: bool) -> None:
    whole = before + text + after
    if any(TextFinder(text, prefix=prefix).spans(fold(whole).text)):
        words, prefixes = needed(text, prefix=prefix)
        there = words_of([whole])
        assert there.issuperset(words)
        assert all(any(word.startswith(each) for word in there) for each in prefixes)


@given(st.text(max_size=30), st.data())
def test_spans_are_places_in_what_is_shown(text: str, data: st.DataObject) -> None:
    folded = fold(text)
    start = data.draw(st.integers(0, len(folded.text)))
    end = data.draw(st.integers(start, len(folded.text)))
    low, high = folded.span(start, end)
    assert 0 <= low <= high <= len(folded.shown)
    assert folded.text[start:end] in folded.shown[low:high].casefold()


def test_hits_that_overlap_what_is_no_hit() -> None:
    assert list(TextFinder("a a").spans("ba a a")) == [(3, 6)]
    assert list(TextFinder("an").spans("banana an")) == [(7, 9)]
    assert list(TextFinder("日本").spans("日本日本語")) == [(0, 2), (2, 4)]
