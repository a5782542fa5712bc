"""The attacks that were published against LangGraph's savers: each works on the release that had the flaw, in an
environment of its own, and is dead on every store of Holdfast.

| | affected | attack |
|---|---|---|
| CVE-2025-64439 | langgraph-checkpoint < 3.0 | a value that JSON revives by calling any function |
| CVE-2026-27794 | langgraph-checkpoint < 4.0 | a pickle in the cache |
| CVE-2026-28277 | langgraph-checkpoint 4.0 (langgraph <= 1.0.9) | msgpack that calls any function, in a checkpoint |
| CVE-2026-48775 | langgraph-checkpoint < 4.1.1 | JSON that calls any method of a known class, in a checkpoint |
| CVE-2025-8709 | langgraph-checkpoint-sqlite <= 2.0.10 | operators of a filter of the store |
| CVE-2025-64104 | langgraph-checkpoint-sqlite <= 2.0.10 | keys of a filter of the store |
| CVE-2025-67644 | langgraph-checkpoint-sqlite < 3.0.1 | keys of a filter of checkpoints |
| CVE-2026-27022 | @langchain/langgraph-checkpoint-redis < 1.0.2 | values of a filter, in a query of RediSearch |
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from msgspec.msgpack import encode

import holdfast
from holdfast.codec import OpaqueValue, default_codec
from holdfast.errors import HoldfastError
from holdfast.langgraph import HoldfastSaver
from holdfast.store.store import Store
from holdfast.testing.security.filters import REDIS_VALUE, SQL_KEY, check_filters
from holdfast.testing.security.payloads import (
    Canary,
    constructor_payload,
    method_payload,
    msgpack_payload,
    pickle_payload,
)
from holdfast.testing.security.stored_rows import check_forged_values, check_stored_rows, check_values, reopened
from tests.security.vulnerable import run_attack, run_node
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path)


# The attacks, on the releases that they were found in ----------------------------------------------------------------

_CHECKPOINTS = """
import sqlite3
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.base import empty_checkpoint
saver = SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))
saver.setup()
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
"""

_STORED_VALUE = (
    _CHECKPOINTS
    + """
checkpoint = empty_checkpoint()
checkpoint["channel_values"] = {"from the user": payload, "text": "\\ud800"}
saver.put(config, checkpoint, {}, {})
saver.get_tuple(config)
"""
)

_STORED_BYTES = (
    _CHECKPOINTS
    + """
import base64
saver.put(config, empty_checkpoint(), {}, {})
kind, data = payload
saver.conn.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", (kind, base64.b64decode(data)))
try:
    saver.get_tuple(config)
except Exception as error:
    print(repr(error))
"""
)

_CACHED_BYTES = """
import base64
from langgraph.cache.sqlite import SqliteCache
cache = SqliteCache(path=":memory:")
cache.set({(("ns",), "key"): (1, None)})
cache._conn.execute("UPDATE cache SET encoding = 'pickle', val = ?", (base64.b64decode(payload),))
cache.get([(("ns",), "key")])
"""

_STORE_FILTER = """
from langgraph.store.sqlite import SqliteStore
with SqliteStore.from_conn_string(":memory:") as store:
    store.setup()
    store.put(("mine",), "note", {"owner": "mine"})
    store.put(("victim",), "note", {"owner": "victim"})
    for item in store.search(("mine",), filter=payload):
        print(item.namespace[0])
"""

_CHECKPOINT_FILTER = (
    _CHECKPOINTS
    + """
for owner in ("mine", "victim"):
    saver.put({"configurable": {"thread_id": owner, "checkpoint_ns": ""}}, empty_checkpoint(), {"owner": owner}, {})
for found in saver.list({"configurable": {"thread_id": "mine"}}, filter=payload):
    print(found.config["configurable"]["thread_id"])
"""
)

_REDIS_FILTER = """
import { RedisSaver } from "@langchain/langgraph-checkpoint-redis";
const client = { ft: {
    create: async () => "OK",
    info: async () => ({}),
    search: async (index, query) => { console.log(query); return { total: 0, documents: [] }; },
} };
const saver = new RedisSaver(client);
const filter = JSON.parse(process.env.PAYLOAD);
for await (const found of saver.list({ configurable: { thread_id: "mine" } }, { filter })) console.log(found);
"""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.nightly
def test_constructors_in_json_worked(canary: Canary) -> None:
    """CVE-2025-64439: a value from a user, beside a character that msgpack refuses, is called when it is read."""
    run_attack(
        # With ormsgpack of that time: the flaw needs its message about the character.
        ("langgraph-checkpoint==2.1.2", "langgraph-checkpoint-sqlite==2.0.11", "ormsgpack==1.10.0"),
        _STORED_VALUE,
        constructor_payload(canary),
    )
    assert canary.path.exists()


@pytest.mark.nightly
def test_pickles_in_the_cache_worked(canary: Canary) -> None:
    """CVE-2026-27794: whoever can write to the cache has it unpickle."""
    run_attack(
        ("langgraph-checkpoint==3.0.1", "langgraph-checkpoint-sqlite==3.0.1"),
        _CACHED_BYTES,
        _text(pickle_payload(canary)),
    )
    assert canary.path.exists()


@pytest.mark.nightly
def test_msgpack_worked(canary: Canary) -> None:
    """CVE-2026-28277: whoever can write to the database has any function called."""
    run_attack(
        ("langgraph-checkpoint==4.0.0", "langgraph-checkpoint-sqlite==3.0.3"),
        _STORED_BYTES,
        ["msgpack", _text(msgpack_payload(canary))],
    )
    assert canary.path.exists()


@pytest.mark.nightly
def test_methods_in_json_worked(canary: Canary) -> None:
    """CVE-2026-48775: and any method of a class that is taken for safe, one of which unpickles."""
    run_attack(
        ("langgraph-checkpoint==4.1.0", "langgraph-checkpoint-sqlite==3.1.1"),
        _STORED_BYTES,
        ["json", _text(json.dumps(method_payload(canary)).encode())],
    )
    assert canary.path.exists()


_STORE_KEY = SQL_KEY.replace("'{}'", "value")
_OLD_STORE = ("langgraph-checkpoint==2.1.2", "langgraph-checkpoint-sqlite==2.0.10")


@pytest.mark.nightly
@pytest.mark.parametrize("value", [{"$eq": "x"}, {"$gt": "x"}, "x"], ids=["CVE-2025-8709", "$gt", "CVE-2025-64104"])
def test_filters_of_the_store_worked(value: Any) -> None:
    """CVE-2025-8709 and CVE-2025-64104: a filter is part of the SQL, with an operator and without."""
    assert run_attack(_OLD_STORE, _STORE_FILTER, {"owner": "mine"}) == ["mine"]  # the control
    assert "victim" in run_attack(_OLD_STORE, _STORE_FILTER, {_STORE_KEY: value})


@pytest.mark.nightly
def test_filters_of_checkpoints_worked() -> None:
    """CVE-2025-67644: the keys of a filter are part of the SQL."""
    requirements = ("langgraph-checkpoint==3.0.1", "langgraph-checkpoint-sqlite==3.0.0")
    assert run_attack(requirements, _CHECKPOINT_FILTER, {"owner": "mine"}) == ["mine"]  # the control
    assert "victim" in run_attack(requirements, _CHECKPOINT_FILTER, {SQL_KEY: "x"})


@pytest.mark.nightly
def test_filters_in_redisearch_worked() -> None:
    """CVE-2026-27022: a value adds an alternative, beside the thread that was asked for. The query is seen where the
    saver sends it, since no server with RediSearch can be installed here."""
    packages = ("@langchain/langgraph-checkpoint-redis@1.0.0",)
    (control,) = run_node(packages, _REDIS_FILTER, {"owner": "mine"})
    assert control == "(@thread_id:{mine}) (@owner:{mine})"
    (query,) = run_node(packages, _REDIS_FILTER, {"owner": REDIS_VALUE})
    assert query == "(@thread_id:{mine}) (@owner:{x}) | (@thread_id:{*})"


# The same, on Holdfast -----------------------------------------------------------------------------------------------


@pytest.fixture(params=mostly_nightly(KINDS, daily=["memory", "sqlite"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(place(request.param, tmp_path)) as store:
        yield store


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def _put(saver: HoldfastSaver, thread: str, values: dict[str, Any], metadata: dict[str, Any]) -> RunnableConfig:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, 1)
    return saver.put(_config(thread), checkpoint, metadata, dict.fromkeys(values, 1))  # type: ignore[arg-type]


def test_values_are_dead(store: Store, canary: Canary) -> None:
    """CVE-2025-64439, CVE-2026-27794, CVE-2026-28277 and CVE-2026-48775: from a user, and from the database."""
    saver = HoldfastSaver(store)
    values = {
        "constructor": constructor_payload(canary),
        "text": "\ud800",
        "method": method_payload(canary),
        "pickle": pickle_payload(canary),
        "msgpack": msgpack_payload(canary),
    }
    config = _put(saver, "t", values, {"source": "input", "constructor": values["constructor"]})
    saver.put_writes(config, list(values.items()), "task")
    with reopened(store) as again:
        found = HoldfastSaver(again).get_tuple(_config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert found.metadata["constructor"] == values["constructor"]  # type: ignore[typeddict-item]
        assert [(name, value) for _, name, value in found.pending_writes or ()] == list(values.items())
    canary.check("a value of a graph")
    stored = OpaqueValue(0, encode(["os", "mkdir", str(canary.path)]))
    assert default_codec.pack(stored) == msgpack_payload(canary)  # what is in the database is the payload
    _put(saver, "bytes", {"stored": stored}, {})
    with reopened(store) as again:
        HoldfastSaver(again).get_tuple(_config("bytes"))
    canary.check("bytes in the database")
    check_values(store, canary)
    check_forged_values(store, canary)
    check_stored_rows(store, canary)


def test_filters_are_dead(store: Store) -> None:
    """CVE-2025-8709, CVE-2025-64104, CVE-2025-67644 and CVE-2026-27022."""
    saver = HoldfastSaver(store)

    def matches(metadata: dict[str, Any]) -> list[str]:
        threads = [each.config["configurable"]["thread_id"] for each in saver.list(_config("mine"), filter=metadata)]
        everywhere = {each.config["configurable"]["thread_id"] for each in saver.list(None, filter=metadata)}
        assert set(threads) == everywhere, "without a thread, a filter matches others"
        return threads

    check_filters(store, matches)
    for key in (_STORE_KEY, SQL_KEY):
        for value in ("x", {"$eq": "x"}, {"$gt": "x"}):
            assert matches({key: value}) == []
    try:
        assert matches({"owner": REDIS_VALUE}) == []
    except HoldfastError as error:
        pytest.fail(f"a text in a filter is refused: {error}")
