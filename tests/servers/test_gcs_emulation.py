"""The emulation of Google Cloud Storage keeps its conditions, and does not pretend to more."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError, UnauthenticatedError
from obstore.store import GCSStore

from tests.servers.gcs import write_service_account
from tests.servers.gcs_emulation import GcsEmulation, Objects, Refused

KEY = generate_private_key(65537, 2048)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with GcsEmulation(0, "bucket", tmp_path / "objects.db", public) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def bucket(port: int, folder: Path) -> GCSStore:
    account = folder / "account.json"
    write_service_account(account, KEY)
    return GCSStore(
        "bucket",
        config={"base_url": f"http://127.0.0.1:{port}", "service_account": str(account)},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_conditions(port: int, tmp_path: Path) -> None:
    store = bucket(port, tmp_path)
    first = obstore.put(store, "a", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a", b"2", mode="create")
    second = obstore.put(store, "a", b"3", mode={"version": first["version"]})
    assert second["version"] != first["version"]
    with pytest.raises(PreconditionError):
        obstore.put(store, "a", b"4", mode={"version": first["version"]})
    assert bytes(obstore.get(store, "a").bytes()) == b"3"
    obstore.delete(store, "a")
    third = obstore.put(store, "a", b"5", mode="create")
    assert third["version"] not in (first["version"], second["version"])


def test_of_writers_that_create_one_object_one_wins(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects.db")
    start = threading.Barrier(8)

    def create(writer: int) -> int:
        start.wait()
        try:
            objects.put("a", str(writer).encode(), "0")
        except Refused as refused:
            return refused.status
        return 200

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(8)))
    assert sorted(answers) == [200, *[412] * 7]
    assert objects.get("a")[1] == str(answers.index(200)).encode()


def test_pages(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects.db")
    for name in ("a", "b/1", "b/2", "b/3", "c", "d/1", "é"):
        objects.put(name, b"", None)

    def pages(prefix: str, delimiter: str, limit: int) -> list[list[str]]:
        found, after = [], ""
        while True:
            listed, folders, token = objects.list_page(prefix, delimiter, after, limit)
            found.append(sorted([*(each.name for each in listed), *folders]))
            if token is None:
                return found
            after = token

    assert pages("", "", 3) == [["a", "b/1", "b/2"], ["b/3", "c", "d/1"], ["é"]]
    assert pages("", "/", 2) == [["a", "b/"], ["c", "d/"], ["é"]]
    assert pages("b/", "/", 2) == [["b/1", "b/2"], ["b/3"]]
    assert pages("b/", "", 3) == [["b/1", "b/2", "b/3"]]


def test_what_is_not_emulated_is_refused(port: int, tmp_path: Path) -> None:
    store = bucket(port, tmp_path)
    obstore.put(store, "a", b"1")
    with pytest.raises(GenericError, match="501"):
        obstore.copy(store, "a", "b")
    with pytest.raises(GenericError, match="501"):
        obstore.head(store, "a")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/bucket/a")
    assert connection.getresponse().status == 401, "without a token"
    connection.close()


def test_a_token_of_another_key_is_refused(port: int, tmp_path: Path) -> None:
    store = bucket(port, tmp_path)
    write_service_account(tmp_path / "account.json", generate_private_key(65537, 2048))
    other = GCSStore(
        "bucket",
        config={"base_url": f"http://127.0.0.1:{port}", "service_account": str(tmp_path / "account.json")},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    obstore.put(store, "a", b"1")
    with pytest.raises(UnauthenticatedError):
        obstore.get(other, "a")
