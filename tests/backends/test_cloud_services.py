"""Azure Blob Storage and Google Cloud Storage, as emulators serve them.

By day on the emulation of Google's, which starts quickly; nightly also on Azurite. `tools/matrix_suite.py` runs all of
the suite for backends on both, and `test_server_faults.py` kills the servers.
"""

from __future__ import annotations

import asyncio
import base64
import operator
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from langgraph.graph import START, StateGraph
from obstore import exceptions

import holdfast
from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.conformance.suite import ShortConformance
from holdfast.backends.object_store.cloud import Bucket
from holdfast.backends.object_store.object_storage import RetryingStorage, deadline_in, gather_limited
from holdfast.errors import ConfigError, DeniedError, HoldfastError
from holdfast.langgraph import HoldfastSaver
from holdfast.testing import Stores
from tests import servers
from tests.servers.gcs import write_service_account
from tests.servers.places import EMULATED, place
from tests.support.nightly import mostly_nightly

SERVERS = {"azure": servers.azure, "gcs": servers.gcs}
ON_BOTH = pytest.mark.parametrize("kind", mostly_nightly(EMULATED, daily=["gcs"]))


@pytest.mark.nightly
@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
@pytest.mark.parametrize("kind", EMULATED)
class TestConformance(ShortConformance):
    lacks = frozenset({"words", "times"})
    histories = 5

    @pytest.fixture
    def stores(self, kind: str, tmp_path: Path) -> Stores:
        return Stores(place(kind, tmp_path))


@ON_BOTH
def test_a_store_is_opened_again(kind: str) -> None:
    url, options = SERVERS[kind]()
    with holdfast.open(url, **options) as store:
        for number in range(40):  # more than are folded into one object
            store.thread("chat").put({"number": number})
        store.thread("Ünïcode, a/b?").put({"n": 1})
    with holdfast.open(url, **options) as store:
        assert [each.name for each in store.threads()] == ["chat", "Ünïcode, a/b?"]
        assert store.thread("chat").get().state == {"number": 39}
        assert len(list(store.thread("chat").log().all())) == 40
        assert store.maintenance.verify().findings == []


@ON_BOTH
def test_a_graph_goes_on_after_a_turn(kind: str, tmp_path: Path) -> None:
    class State(TypedDict):
        messages: Annotated[list[str], operator.add]

    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"messages": [f"answer {len(state['messages'])}"]})
    builder.add_edge(START, "answer")
    config: Any = {"configurable": {"thread_id": "chat"}}
    for messages in (["question", "answer 1"], ["question", "answer 1", "question", "answer 3"]):
        with HoldfastSaver.from_conn_string(place(kind, tmp_path)) as saver:
            result = builder.compile(checkpointer=saver).invoke({"messages": ["question"]}, config)
        assert result == {"messages": messages}


@pytest.mark.nightly
@ON_BOTH
def test_many_clients_write_one_thread(kind: str, tmp_path: Path) -> None:
    """Each save is there once: none overwrites that of another client, and none is made twice."""
    url = place(kind, tmp_path)
    with ExitStack() as stack:
        clients = [stack.enter_context(holdfast.open(url)) for _ in range(4)]

        def write(client: int) -> None:
            for number in range(10):
                clients[client].thread("shared").put({"by": client}, metadata={"by": client, "number": number})

        with ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(write, range(len(clients))))
    with holdfast.open(url) as store:
        log = list(store.thread("shared").log().all())
        counts = Counter((each.metadata["by"], each.metadata["number"]) for each in log)
        assert counts == {(client, number): 1 for client in range(4) for number in range(10)}
        assert store.maintenance.verify().findings == []


@ON_BOTH
def test_of_writers_that_create_one_object_one_wins(kind: str) -> None:
    url, options = SERVERS[kind]()
    bucket, *_ = Bucket.at(url, options)

    async def race(name: str) -> None:
        contents = [f"{writer:03}".encode() * 100 for writer in range(24)]
        won = await asyncio.gather(*(bucket.create(name, content) for content in contents))
        assert won.count(True) == 1
        assert await bucket.get(name) == contents[won.index(True)]

    async def race_often() -> None:
        for number in range(10):
            await race(f"race/{number}")

    asyncio.run(race_often())


@ON_BOTH
def test_objects_are_read_listed_and_deleted(kind: str) -> None:
    url, options = SERVERS[kind]()
    bucket, *_ = Bucket.at(url, options)
    names = [f"folder/{letter}/{number:02}" for letter in "abc" for number in range(4)]

    async def use() -> None:
        await asyncio.gather(*(bucket.put(name, name.encode()) for name in names))
        await bucket.put("folders", b"")
        assert await bucket.get("folder/a/01", 7, 3) == b"a/0"
        assert await bucket.get("folder/a/01", 7, 100) == b"a/01"
        assert await bucket.get("folders", 0, 2) == b""  # of one byte, Azurite says that it ends before it begins
        assert await bucket.get("missing") is None
        assert await bucket.get("missing", 0, 1) is None
        assert [each.name for each in await bucket.list_page("folder", "folder/b/!")] == names[4:]
        assert sorted(await bucket.list_folders("folder")) == ["a", "b", "c"]
        # Some services refuse the whole request for the missing ones.
        await bucket.delete(["missing", *names[:6], "missing too"])
        assert [each.name for each in await bucket.list_objects("folder")] == names[6:]

    asyncio.run(use())


def test_a_page_with_a_missing_object_is_deleted_by_many_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, those of a full page would take longer than a store waits."""
    bucket, *_ = Bucket.at("gs://bucket", {"endpoint": "http://127.0.0.1:1"})

    async def delete() -> None:
        together = asyncio.Barrier(8)

        async def fake(storage: object, names: list[str]) -> None:
            if len(names) == 1:
                await together.wait()
            raise FileNotFoundError

        monkeypatch.setattr("obstore.delete_async", fake)
        async with asyncio.timeout(60):
            await bucket.delete([str(number) for number in range(8)])

    asyncio.run(delete())


@pytest.mark.nightly
@pytest.mark.parametrize("kind", EMULATED)
def test_listings_and_deletions_have_pages(kind: str) -> None:
    url, options = SERVERS[kind]()
    bucket = RetryingStorage(Bucket.at(url, options)[0])  # as it is used: Azurite resets connections when it is busy
    names = [f"many/{number:04}" for number in range(1100)]

    async def use() -> None:
        with deadline_in(100):
            await gather_limited([bucket.put(name, b"1") for name in names])
            assert [each.name for each in await bucket.list_page("many")] == names[:1000]
            assert [each.name for each in await bucket.list_page("many", names[999])] == names[1000:]
            assert [each.name for each in await bucket.list_objects("many")] == names
            await bucket.delete([*names[:500], "many/missing", *names[500:]])
            assert await bucket.list_objects("many") == []

    asyncio.run(use())


# Errors


def wrong_key(kind: str, folder: Path) -> dict[str, str]:
    """Options with a key that is not the service's."""
    if kind == "azure":
        return {"account_key": base64.b64encode(b"wrong").decode()}
    path = folder / "wrong.json"
    write_service_account(path, generate_private_key(65537, 2048))
    return {"service_account": str(path)}


@ON_BOTH
def test_a_wrong_key_is_refused(kind: str, tmp_path: Path) -> None:
    url, options = SERVERS[kind]()
    with pytest.raises(ConfigError, match="login was refused") as caught:
        holdfast.open(url, **{**options, **wrong_key(kind, tmp_path)})
    assert caught.value.code == "login-refused"


@ON_BOTH
def test_a_bucket_that_is_not_there(kind: str) -> None:
    url, options = SERVERS[kind]()
    elsewhere = f"{url.partition(':')[0]}://no-such-bucket/prefix"
    with pytest.raises(ConfigError, match="no such bucket"):
        holdfast.open(elsewhere, **options)
    bucket, *_ = Bucket.at(elsewhere, options)
    with pytest.raises(ConfigError, match="no such bucket"):
        asyncio.run(bucket.list_objects(""))


AZURE_ERROR = """Server returned non-2xx status code: 403 Forbidden: <?xml version="1.0" encoding="utf-8"?><Error>
<Code>{}</Code><Message>{}
RequestId:9d5a3d1c-301e-0070-2b5c-7d8cd2000000
Time:2026-01-02T03:04:05.6789Z</Message></Error>"""
NO_ROLE = "Error performing GET http://169.254.169.254/metadata/identity/oauth2/token - HTTP error: kind: Connect,"


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (
            exceptions.PermissionDeniedError(AZURE_ERROR.format("AuthenticationFailed", "Server failed")),
            ConfigError,
            "login was refused: AuthenticationFailed: Server failed (at",
        ),
        (
            exceptions.PermissionDeniedError(
                AZURE_ERROR.format("AuthorizationFailure", "Server failed to authenticate the request.")
            ),
            ConfigError,
            "login was refused: AuthorizationFailure: Server failed to authenticate the request. (at",
        ),
        (
            exceptions.PermissionDeniedError(AZURE_ERROR.format("AuthorizationPermissionMismatch", "Not authorized.")),
            DeniedError,
            "AuthorizationPermissionMismatch: Not authorized. (at",
        ),
        (
            exceptions.GenericError(AZURE_ERROR.format("ContainerNotFound", "It does not exist.")),
            ConfigError,
            "no such bucket",
        ),
        (exceptions.GenericError(AZURE_ERROR.format("ServerBusy", "Ingress is over the limit.")), None, "ServerBusy"),
        (exceptions.GenericError(NO_ROLE), ConfigError, "Pass account_key, or"),
    ],
    ids=["signature", "signature-azurite", "permission", "container", "busy", "no-keys"],
)
def test_errors_of_azure_are_told_apart(error: Exception, expected: type[HoldfastError] | None, says: str) -> None:
    bucket, *_ = Bucket.at("az://container/prefix", {"account_name": "account", "account_key": "a2V5"})

    async def fail() -> None:
        raise error

    with pytest.raises(expected or ServerInterrupted) as caught:
        asyncio.run(bucket._request(fail()))
    assert says in str(caught.value)
    assert "RequestId" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "option"), [("s3", "secret_access_key"), ("gs", "service_account")])
def test_without_keys_the_options_of_the_service_are_named(scheme: str, option: str) -> None:
    bucket, *_ = Bucket.at(f"{scheme}://bucket", {"endpoint": "http://127.0.0.1:1"})

    async def fail() -> None:
        raise exceptions.GenericError(NO_ROLE)

    with pytest.raises(ConfigError, match=option):
        asyncio.run(bucket._request(fail()))
