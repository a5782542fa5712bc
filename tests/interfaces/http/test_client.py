"""The client: made from the table of routes, and raises the errors that a store raises."""

from __future__ import annotations

import pytest

from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, UnavailableError
from holdfast.interfaces.http.client import HttpClient
from tests.interfaces.http.kit import ServedStore
from tools.http_client import FILE, HISTORY_FILE, RECORDS_FILE, client, history_client, record_client


def test_the_client_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == client(), "run: python -m tools.http_client"
    assert RECORDS_FILE.read_text(encoding="utf-8") == record_client(), "run: python -m tools.http_client"
    assert HISTORY_FILE.read_text(encoding="utf-8") == history_client(), "run: python -m tools.http_client"


def test_a_client_reads_and_changes(writable: ServedStore) -> None:
    with HttpClient(writable.url, writable.token) as client:
        assert client.get_service().writable
        assert [each.thread for each in client.list_threads().items] == ["a/b c?#%/ü", "chat"]
        assert client.get_thread("a/b c?#%/ü").thread.steps == 1
        log = client.get_log("chat", all_branches=True, limit=5)
        assert len(log.items) == 5
        assert log.next
        assert client.get_checkpoint("chat", "#3").checkpoint.id == "c3"
        assert client.get_value("chat", "HEAD", path="count").value == 9
        made = client.fork("chat", "mine", at="c3", changes={"count": 1}, key="k1")
        assert client.fork("chat", "mine", at="c3", changes={"count": 1}, key="k1") == made
        client.set_tag("chat", "v2", at="mine")
        assert "v2" in client.get_thread("chat").tags


def test_errors_are_those_of_a_store(writable: ServedStore) -> None:
    with HttpClient(writable.url, writable.token) as client:
        with pytest.raises(NotFoundError, match="no such thread"):
            client.get_thread("none")
        with pytest.raises(InvalidError):
            client.get_log("chat", limit=0)
        with pytest.raises(ConflictError) as stale:
            client.set_tag("chat", "v1", if_match="c2")
        assert stale.value.code == "version-mismatch"
    with HttpClient(writable.url, "wrong") as client, pytest.raises(DeniedError) as denied:
        client.get_service()
    assert denied.value.code == "unauthenticated"


def test_a_server_that_is_gone_is_reported(writable: ServedStore) -> None:
    with HttpClient("http://127.0.0.1:1", "x") as client, pytest.raises(UnavailableError, match="does not answer"):
        client.get_service()


def test_a_connection_that_the_server_closed_is_opened_again(writable: ServedStore) -> None:
    with HttpClient(writable.url, writable.token) as client:
        client.get_service()
        client._connect().sock.close()  # as if it had been idle for too long
        assert client.get_service().version
