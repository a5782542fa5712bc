"""Object storage: the suite for all backends on servers of the S3 protocol, and what is its own."""

from __future__ import annotations

import itertools
import os
from functools import cache
from typing import Any

import pytest

import holdfast
from holdfast.backends.conformance.reads import Reads
from holdfast.backends.conformance.rows import step
from holdfast.backends.conformance.suite import ShortConformance, SyncConformance, SyncOnly
from holdfast.backends.conformance.writes import Writes
from holdfast.backends.interface import Create, Put, Scan
from holdfast.backends.object_store.cloud import Bucket, CloudBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.errors import ConfigError, CorruptError, UnavailableError
from holdfast.testing import Stores
from tests import servers

NUMBERS = itertools.count()


@cache
def bucket(server: str) -> tuple[str, dict[str, Any]]:
    """One bucket for all: SeaweedFS has room for few, since each takes volumes of its own."""
    return servers.s3() if server == "s3" else servers.moto()


def place(server: str = "s3") -> tuple[str, dict[str, Any]]:
    """An empty place in a bucket."""
    url, options = bucket(server)
    return f"{url}/{os.getpid()}-{next(NUMBERS)}", options


class TestSeaweedFS(ShortConformance):
    lacks = frozenset({"words", "times"})
    histories = 3  # each takes half a second

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(*place())


@pytest.mark.nightly
class TestSeaweedFSInFull(SyncConformance):
    lacks = TestSeaweedFS.lacks
    stores = TestSeaweedFS.stores


@pytest.mark.nightly
@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestMoto(SyncOnly, Reads, Writes):
    """Another server of the same protocol, for what is about one process."""

    lacks = TestSeaweedFS.lacks

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(*place("moto"))


def opened(url: str, **options: Any) -> CloudBackend:
    return run(CloudBackend.open(url, **options))


# Opening


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://", "not the URL of a bucket"),
        ("s3:///prefix", "not the URL of a bucket"),
        ("s3://key:secret@bucket/prefix", "not the URL of a bucket"),
        ("s3://bucket/prefix?acl=public", "grace"),
        ("s3://bucket/prefix?grace=soon", "'soon'"),
        ("gs://bucket?region=eu", "not the URL of a bucket"),
        ("az://container?access_key_id=1", "not the URL of a bucket"),
        ("az://container", "cannot be set up"),
    ],
)
def test_a_wrong_url_is_explained(url: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError) as caught:
        opened(url)
    assert says in str(caught.value)
    assert "key:secret" not in str(caught.value)


def test_the_environment_says_what_the_url_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = place("moto")
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_access_key"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    with holdfast.open(url) as store:
        store.thread("chat").put({"n": 1})
    with holdfast.open(url, **options) as store:
        assert store.thread("chat").get().state == {"n": 1}


def test_an_address_in_clear_is_used_only_if_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _, options = place("moto")
    store = CloudBackend("s3://b", opened_storage("s3://b", endpoint="https://localhost:1"), 1.0, 60.0)
    assert store.url == "s3://b"
    with pytest.raises(ConfigError, match="the server does not use TLS"):
        opened("s3://bucket/x", **{**options, "endpoint": options["endpoint"].replace("http://", "https://")})


def opened_storage(url: str, **settings: str) -> Any:
    from holdfast.backends.object_store.cloud import _storage

    return _storage("s3", url.partition("://")[2], "", settings, url)


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("s3", {"region": "eu-central-1", "access_key_id": "a", "secret_access_key": "b"}),
        ("gs", {"endpoint": "https://storage.example.com"}),
        ("az", {"account_name": "account", "account_key": "a2V5"}),
    ],
    ids=["s3", "gs", "az"],
)
def test_a_storage_is_set_up_for_every_service(scheme: str, settings: dict[str, str]) -> None:
    from holdfast.backends.object_store.cloud import _storage

    storage: Any = _storage(scheme, "bucket", "some/prefix", settings, f"{scheme}://bucket").objects
    assert storage.prefix == "some/prefix"


def test_a_bucket_that_is_not_there() -> None:
    _, options = place("moto")
    with pytest.raises(ConfigError, match="no such bucket"):
        opened("s3://no-such-bucket/prefix", **options)


def test_a_wrong_key_is_refused() -> None:
    url, options = place()
    with pytest.raises(ConfigError, match="login was refused"):
        opened(url, **{**options, "secret_access_key": "wrong"})


def test_something_else_in_the_place_is_left_alone() -> None:
    url, options = place()
    store = opened(url, **options)
    bucket = Bucket(store._storage, url)

    async def spoil() -> None:
        await bucket.put("format", b"Dear diary")

    run_in(store, spoil)
    run(store.close())
    with pytest.raises(ConfigError, match="contains other data"):
        opened(url, **options)


def run_in(store: CloudBackend, work: Any) -> Any:
    """What a coroutine returns that runs in the store's loop."""
    return run(store._run_in_loop(work))


# Damage and forks


def test_damage_is_found_and_named() -> None:
    url, options = place()
    store = opened(url, **options)
    assert run(store.apply([Put(STEPS, step(0, body=b"body" * 100))])) is None
    bucket = Bucket(store._storage, url)

    async def spoil() -> None:
        (birth,) = [blob.name for blob in await bucket.list_objects("") if blob.name.endswith("/birth")]
        data = await bucket.get(birth)
        assert data is not None
        await bucket.put(birth, data[:-3] + b"xxx")

    run_in(store, spoil)
    run(store.close())
    store = opened(url, **options)
    with pytest.raises(CorruptError, match="line=line/birth"):
        run(store.read([Scan(STEPS, ())]))
    (wrong,) = run(store.check())
    assert "line=line/birth" in wrong
    run(store.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_that_it_cannot() -> None:
    url, options = place()
    store = opened(url, **options)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for ask in (lambda: run(store.read([Scan(STEPS, ())])), lambda: opened(url, **options)):
                try:
                    ask()
                except UnavailableError as error:
                    code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(store.apply([Create(STEPS, step(0))])) == 0
    run(store.close())


def test_requests_are_counted() -> None:
    url, options = place()
    store = opened(url, **options)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    before = run(store.status())
    for seq in range(1, 11):
        assert run(store.apply([Create(STEPS, step(seq))])) is None
    after = run(store.status())
    assert after["requests_create"] == int(before["requests_create"]) + 10
    assert after["requests_get"] == before["requests_get"]
    assert len(run(store.read([Scan(STEPS, ("tenant", "line"))]))[0]) == 11
    assert run(store.status())["requests_get"] == int(before["requests_get"]) + 1
    run(store.close())


def test_pages_of_a_listing_follow_each_other() -> None:
    url, options = place()
    store = opened(url, **options)
    bucket = Bucket(store._storage, url)
    names = [f"folder/{first}/{number:02}" for first in ("a", "b", "c") for number in range(4)]

    async def listed() -> list[list[str]]:
        for name in names:
            await bucket.put(name, b"content")
        await bucket.put("folders", b"of another name")
        after = ["", "folder/a/!", "folder/a/02", "folder/bb/!", "folder/c/03"]
        return [[info.name for info in await bucket.list_page("folder", each)] for each in after]

    every, of_a, following, of_none, none = run_in(store, listed)
    run(store.close())
    assert every == of_a == names
    assert following == names[names.index("folder/a/02") + 1 :]
    assert of_none == names[names.index("folder/c/00") :]
    assert none == []
