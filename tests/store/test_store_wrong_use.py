"""Wrong use: every bad input raises an error that says what, where, and what to do; and nothing is saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import holdfast
from holdfast import Store
from holdfast.errors import (
    CircularReferenceError,
    ConfigError,
    ConflictError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)

SURROGATE = "bad \ud800"
LONG = "x" * 1025


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


WRONG: dict[str, tuple[Callable[[Store], object], type[HoldfastError], str]] = {
    "thread with surrogates": (
        lambda s: s.thread(SURROGATE).put({}),
        InvalidError,
        "name of a thread is not text.*ud800",
    ),
    "thread too long": (
        lambda s: s.thread(LONG).put({}),
        InvalidError,
        "at most 1024 bytes of UTF-8, and this one has 1025.*shorter",
    ),
    "thread too long in bytes": (lambda s: s.thread("é" * 513).get(), InvalidError, "and this one has 1026"),
    "thread no string": (
        lambda s: s.thread(5).put({}),  # type: ignore[call-overload]
        InvalidError,
        "name of a thread must be a string, not int .at 5.",
    ),
    "thread None": (lambda s: s.thread(None).log(), InvalidError, "must be a string, not NoneType"),  # type: ignore[call-overload]
    "id empty": (lambda s: s.thread("t").put({}, id=""), InvalidError, "id of a checkpoint must not be empty"),
    "id HEAD": (lambda s: s.thread("t").put({}, id="HEAD"), InvalidError, "id of a checkpoint cannot be 'HEAD'"),
    "id @": (lambda s: s.thread("t").put({}, id="@"), InvalidError, "id of a checkpoint cannot be '@'"),
    "id main": (lambda s: s.thread("t").put({}, id="main"), InvalidError, "id of a checkpoint cannot be 'main'"),
    "id main of an update": (lambda s: s.thread("t").update({}, id="main"), InvalidError, "cannot be 'main'"),
    "id HEAD~1": (lambda s: s.thread("t").put({}, id="HEAD~1"), InvalidError, "cannot be 'HEAD~1'"),
    "id #3": (lambda s: s.thread("t").put({}, id="#3"), InvalidError, "cannot be '#3'"),
    "id @{now}": (lambda s: s.thread("t").put({}, id="@{now}^2"), InvalidError, "cannot be '@{now}\\^2'"),
    "tag main": (lambda s: s.thread("t").put({}, tag="main"), InvalidError, "tag cannot be 'main'"),
    "tag HEAD": (lambda s: s.thread("t").tag("HEAD"), InvalidError, "tag cannot be 'HEAD'"),
    "branch main~1": (lambda s: s.thread("t").fork("main~1"), InvalidError, "'main~1' is a reserved revision"),
    "id main of a Checkpointer": (
        lambda s: holdfast.savers.Checkpointer(s).put("t", {}, id="main"),
        InvalidError,
        "cannot be 'main'",
    ),
    "id with surrogates": (
        lambda s: s.thread("t").put({}, id=SURROGATE),
        InvalidError,
        "id of a checkpoint is not text",
    ),
    "id too long": (lambda s: s.thread("t").put({}, id=LONG), InvalidError, "id of a checkpoint may have at most 1024"),
    "tag too long": (lambda s: s.thread("t").put({}, tag=LONG), InvalidError, "tag may have at most 1024"),
    "tag no string": (lambda s: s.thread("t").tag(5), InvalidError, "tag must be a string, not int"),  # type: ignore[arg-type]
    "label with surrogates": (
        lambda s: s.thread("t").put({}, labels=["ok", SURROGATE]),
        InvalidError,
        "label is not text",
    ),
    "label no string": (lambda s: s.thread("t").label(b"x"), InvalidError, "label must be a string, not bytes"),  # type: ignore[arg-type]
    "branch too long": (lambda s: s.thread("t").fork(LONG), InvalidError, "name of a branch may have at most 1024"),
    "on_conflict": (
        lambda s: s.thread("t").put({}, on_conflict="refuse"),  # type: ignore[arg-type]
        InvalidError,
        "on_conflict must be 'raise', 'branch', 'overwrite', 'merge' or a function, not 'refuse'",
    ),
    "overwrite after a parent": (
        lambda s: s.thread("t").put({}, parent="1", on_conflict="overwrite"),
        InvalidError,
        "cannot overwrite what others saved",
    ),
    "parent and branch": (lambda s: s.thread("t").put({}, parent="1", branch="main"), InvalidError, "give one of them"),
    "at a negative step": (lambda s: s.thread("t").get(-1), InvalidError, "0 or more, not -1.*'HEAD~1'"),
    "at true": (lambda s: s.thread("t").get(True), InvalidError, "not bool"),
    "at bytes": (lambda s: s.thread("t").get(b"1"), InvalidError, "not bytes"),  # type: ignore[arg-type]
    "a schema that is no dict": (lambda s: s.thread("t", int), UnsupportedError, "TypedDict"),
    "unknown id": (
        lambda s: s.thread("t").get("nope"),
        NotFoundError,
        r"no checkpoint has the id or the tag 'nope', .*\(at thread 't'\). .*log\(\)",
    ),
    "unknown thread": (
        lambda s: s.thread("nobody").get(),
        NotFoundError,
        r"no such thread.*'nobody'\). See threads\(\)",
    ),
    "unknown parent": (lambda s: s.thread("t").put({}, parent="nope"), NotFoundError, "no checkpoint with id 'nope'"),
    "parent in a new thread": (
        lambda s: s.thread("new").put({}, parent="nope"),
        NotFoundError,
        "no such thread.*'new'",
    ),
    "compact nothing": (lambda s: s.maintenance.compact("nobody"), NotFoundError, "'nobody'"),
    "channel no string": (
        lambda s: s.thread("t").put({1: 2}),
        InvalidError,
        "name of a channel must be a string, not int",
    ),
    "value": (
        lambda s: s.thread("t").put({"messages": [1, 2, 3, AIMessage("x", additional_kwargs={"client": object()})]}),
        UnsupportedError,
        r"object cannot be saved.*\(at messages\[3\].additional_kwargs.client\). .*holdfast.register",
    ),
    "value in itself": (lambda s: s.thread("t").put({"a": circle()}), CircularReferenceError, "a"),
    "metadata": (lambda s: s.thread("t").put({}, metadata={"client": object()}), UnsupportedError, r"\(at client\)"),
    "through a number": (
        lambda s: s.thread("t").update({("n", "x"): 1}),
        InvalidError,
        r"neither a dict with plain keys nor a list.*\(at n\)",
    ),
    "past the end of a list": (lambda s: s.thread("t").update({"l[9]": 1}), NotFoundError, r"list has.*\(at l\[9\]\)"),
    "a key of a list": (lambda s: s.thread("t").update({"l.x": 1}), InvalidError, r"its index \(at l\.x\)"),
    "an index of nothing": (
        lambda s: s.thread("t").update({"zz[0]": 1}),
        NotFoundError,
        r"is not a list.*\(at zz\)",
    ),
    "a range": (lambda s: s.thread("t").update({"l[0:1]": 1}), InvalidError, r"range of items \(at l\[0:1\]\)"),
    "an item twice": (
        lambda s: s.thread("t").update({"l[0]": 1, "l[-1]": 2}),
        InvalidError,
        r"changed twice \(at l\[-1\]\)",
    ),
    "path without text": (
        lambda s: s.thread("t").update({"": 1}),
        InvalidError,
        r"path cannot be empty\. .*messages\[3\]",
    ),
    "blank after a name": (lambda s: s.thread("t").update({"d .k": 1}), InvalidError, r"column 2 of 'd \.k'"),
    "no function": (lambda s: s.transaction(5), InvalidError, "transaction expects a function, got int"),  # type: ignore[call-overload]
    "hold of a thread": (
        lambda s: s.maintenance.hold("t", kind="thread"),
        InvalidError,
        r"by its handle\. Use store\.thread",
    ),
    "no attempt": (lambda s: s.transaction(lambda _: None, attempts=0), InvalidError, "attempts must be at least 1"),
    "no index": (
        lambda s: s.thread("t").get(lazy=True).state.slice("l", start="x"),
        InvalidError,
        "start must be a whole number or None, not str",
    ),
    "hook in no scope": (
        lambda s: s.hooks.before("state.set", scope=5),  # type: ignore[arg-type]
        InvalidError,
        "scope of a hook must be a pattern, not int",
    ),
    "not a built-in hook": (
        lambda s: s.hooks.add(circle),  # type: ignore[arg-type]
        InvalidError,
        r"^circle is not a built-in hook",
    ),
    "no path": (lambda s: s.thread("t").update({"d..k": 1}), InvalidError, "column 2 of 'd..k'"),
    "through what is deeper": (
        lambda s: s.thread("t").update({("d", "k", "x"): 1}),
        InvalidError,
        r"neither a dict with plain keys nor a list.*\(at d\.k\)",
    ),
    "remove past a list": (
        lambda s: s.thread("t").update({}, remove=["l[9]"]),
        NotFoundError,
        r"list has.*\(at l\[9\]\)",
    ),
    "remove what is not there": (
        lambda s: s.thread("t").update({}, remove=["zz"]),
        NotFoundError,
        r"nothing to remove \(at zz\)",
    ),
    "remove a key not there": (
        lambda s: s.thread("t").update({}, remove=[("d", "z")]),
        NotFoundError,
        r"remove \(at d\.z\)",
    ),
    "remove below nothing": (
        lambda s: s.thread("t").update({}, remove=[("z", "k")]),
        NotFoundError,
        r"remove \(at z\.k\)",
    ),
    "remove in a new thread": (lambda s: s.thread("new").update({}, remove=["z"]), NotFoundError, "nothing to remove"),
    "two changes": (
        lambda s: s.thread("t").update({"d": 1, ("d", "k"): 2}),
        InvalidError,
        r"changed twice \(at d\.k\)",
    ),
    "two changes, the other way": (
        lambda s: s.thread("t").update({("d", "k"): 2, "d": 1}),
        InvalidError,
        r"changed twice \(at d\)",
    ),
    "set and remove": (lambda s: s.thread("t").update({"d": 1}, remove=["d"]), InvalidError, r"changed twice \(at d\)"),
    "empty path": (
        lambda s: s.thread("t").update({(): 1}),
        InvalidError,
        "a tuple that starts with the name of a channel",
    ),
    "path of a number": (
        lambda s: s.thread("t").update({(5,): 1}),
        InvalidError,
        r"starts with the name.*\(at \(5,\)\)",
    ),
    "updated value": (lambda s: s.thread("t").update({"d": {"c": [object()]}}), UnsupportedError, r"\(at d.c\[0\]\)"),
}


def test_wrong_use_is_refused_with_a_reason(store: Store, subtests: pytest.Subtests) -> None:
    first = store.thread("t").put({"n": 1, "l": [1], "d": {"k": 1}}, id="1")
    for what, (wrong, kind, text) in WRONG.items():
        with subtests.test(what):
            with pytest.raises(kind, match=f"(?s){text}") as caught:
                wrong(store)
            assert type(caught.value) is kind
            assert [each.thread for each in store.threads()] == ["t"]
            assert store.thread("t").log() == [first]
            assert (store.thread("t").tags(), store.thread("t").labels(), len(store.thread("t").branches())) == (
                {},
                {},
                1,
            )
    assert store.thread("t").update({"n": 2}).parent == "1"


RAW: dict[str, tuple[Callable[[Store], object], type[HoldfastError]]] = {
    "id to find with surrogates": (lambda s: s.thread("t").get(SURROGATE), InvalidError),
    "revision no revision": (lambda s: s.thread("t").get(at=1.5), InvalidError),  # type: ignore[arg-type]
    "negative limit": (lambda s: s.threads(limit=-1), InvalidError),
    "state None": (lambda s: s.thread("t").put(None), InvalidError),
    "metadata no dict": (lambda s: s.thread("t").put({}, metadata="abc"), InvalidError),  # type: ignore[arg-type]
    "kind with surrogates": (lambda s: s.thread("t").put({}, kind=SURROGATE), InvalidError),
    "kind no string": (lambda s: s.thread("t").put({}, kind=5), InvalidError),  # type: ignore[arg-type]
    "tags one string": (lambda s: s.thread("t").put({}, labels="abc"), InvalidError),
    "remove one string": (lambda s: s.thread("t").update({}, remove="abc"), InvalidError),
    "unhashable key": (lambda s: s.thread("t").update({}, remove=[("d", [1])]), InvalidError),
    "a number as path": (lambda s: s.thread("t").update({5: 1}), InvalidError),  # type: ignore[dict-item]
    "changes no dict": (lambda s: s.thread("t").update([1]), InvalidError),  # type: ignore[arg-type]
}


def test_wrong_types_are_refused_too(subtests: pytest.Subtests) -> None:
    for what, (wrong, kind) in RAW.items():
        with subtests.test(what), holdfast.open("memory://") as store:
            store.thread("t").put({"n": 1, "l": [1], "d": {"k": 1}}, id="1")
            with pytest.raises(kind):
                wrong(store)


def test_a_changed_part_that_can_not_be_saved_is_named_plainly(store: Store) -> None:
    with pytest.raises(UnsupportedError) as caught:
        store.thread("t").update({("d", "k"): {"c": [object()]}})
    assert caught.value.where in ("d['k'].c[0]", "d.k.c[0]")


# Opening and closing ----------------------------------------------------------------------------------------------


UNOPENED: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "given as a URL or a path, not ''.*sqlite:///agents.db"),
    ("nonsense://x", {}, "no backend supports nonsense: URLs .at nonsense://x.. There are az, .*sqlite"),
    ("memory://name", {}, "has no name .at memory://name.. Open memory://"),
    ("memory://", {"nonsense": 1}, "does not accept the option 'nonsense'"),
    ("sqlite:///", {}, "does not name a SQLite file .at sqlite:///.. Write sqlite:///agents.db"),
    ("sqlite://x.db", {}, "does not name a SQLite file"),
    ("sqlite:///:memory:", {}, "For a store in memory open memory://"),
    ("sqlite:///no/such/folder/x.db", {}, "cannot be opened.*directory must exist"),
    (
        "sqlite:///x.db?nonsense=1",
        {},
        "the option 'nonsense' .*busy_timeout, read_only and file_mode",
    ),
    ("sqlite:///x.db", {"nonsense": 1}, "the option 'nonsense'"),
    ("sqlite:///x.db?synchronous=maybe", {}, "synchronous cannot be 'maybe' .*It is one of full, normal"),
    ("sqlite:///x.db", {"busy_timeout": -1}, "busy_timeout cannot be -1"),
    ("memory://", {"cache_bytes": -1}, "cache_bytes must be a number of bytes, not -1"),
    ("memory://", {"cache_bytes": "64 MB"}, "cache_bytes must be a number of bytes, not '64 MB'"),
    ("memory://", {"cache_bytes": True}, "cache_bytes must be a number of bytes, not True"),
    ("memory://", {"cache_bytes": None}, "cache_bytes must be a number of bytes, not None"),
]


def test_a_store_that_can_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, options, text in UNOPENED:
        with subtests.test(url, options=options):
            with pytest.raises(ConfigError, match=text):
                holdfast.open(url, **options)
            assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tenant", [SURROGATE, LONG, None, 5], ids=["surrogate", "long", "None", "number"])
def test_bad_tenants(tenant: Any) -> None:
    with pytest.raises(InvalidError, match="the name of a tenant"):
        holdfast.open("memory://", tenant=tenant)


CLOSED: dict[str, Callable[[Store], object]] = {
    "put": lambda s: s.thread("t").put({}),
    "update": lambda s: s.thread("t").update({"a": 1}),
    "restore": lambda s: s.thread("t").restore("HEAD"),
    "get": lambda s: s.thread("t").get(),
    "lazy": lambda s: s.thread("t").get(lazy=True),
    "log": lambda s: s.thread("t").log(),
    "threads": lambda s: s.threads(),
    "thread": lambda s: s.thread("t").info(),
    "status": lambda s: s.status(),
    "tag": lambda s: s.thread("t").tag("x"),
    "label": lambda s: s.thread("t").label("x"),
    "unlabel": lambda s: s.thread("t").unlabel("x"),
    "tags": lambda s: s.thread("t").tags(),
    "labels": lambda s: s.thread("t").labels(),
    "fork": lambda s: s.thread("t").fork("b"),
    "branches": lambda s: s.thread("t").branches(),
    "delete": lambda s: s.thread("t").delete(),
    "compact": lambda s: s.maintenance.compact("t"),
}


def test_a_closed_store_says_so(url: str, subtests: pytest.Subtests) -> None:
    with holdfast.open(url) as store:
        store.thread("t").put({"a": 1})
    store.close()  # again does nothing
    for what, call in CLOSED.items():
        with subtests.test(what), pytest.raises(UnavailableError, match="the store is closed .*Open it again"):
            call(store)


def test_a_transaction_on_a_closed_store(url: str) -> None:
    store = holdfast.open(url)
    together = store.transaction()
    with pytest.raises(UnavailableError), together:  # noqa: PT012 - the end of the block is what fails
        together.put("t", {})
        store.close()
    assert together.checkpoints == []
    with pytest.raises(InvalidError, match="not open"):
        together.put("t", {})


def test_a_block_that_fails_closes_the_store(url: str) -> None:
    with pytest.raises(ZeroDivisionError), holdfast.open(url) as store:
        store.thread("t").put({"n": 1 / 0})
    with pytest.raises(UnavailableError):
        store.threads()


def test_errors_can_be_caught_by_pythons_own_classes(store: Store) -> None:
    store.thread("t").put({"n": 1})
    with pytest.raises(LookupError):
        store.thread("nobody").get()
    with pytest.raises(ValueError, match="0 or more"):
        store.thread("t").get(-1)
    with pytest.raises(TypeError):
        store.thread("t").put({"o": object()})
    with pytest.raises(HoldfastError) as caught:
        store.thread("t").fork("main")
    assert isinstance(caught.value, ConflictError)
    assert (caught.value.what, caught.value.where) == ("the thread already has a branch 'main'", "thread 't'")
    assert caught.value.hint == "Use another name"


def test_a_field_that_does_not_exist_is_an_error_of_the_call(store: Store) -> None:
    calls: dict[str, Callable[[], object]] = {
        "Thread.put": lambda: store.thread("t").put({}, tga="x"),  # type: ignore[call-arg]
        "Thread.update": lambda: store.thread("t").update({}, tga="x"),  # type: ignore[call-arg]
        "Transaction.put": lambda: store.transaction(lambda each: each.put("t", {}, tga="x")),  # type: ignore[call-arg]
    }
    for call, use in calls.items():
        with pytest.raises(TypeError, match=rf"^{call}\(\) got an unexpected keyword argument 'tga'$"):
            use()


def test_a_thread_keeps_its_name(store: Store) -> None:
    with pytest.raises(AttributeError):
        store.thread("t").name = "other"  # type: ignore[misc]
