"""Routes that are made from the signatures of operations."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
import pytest

from holdfast.interfaces.http.app import ROUTES
from holdfast.interfaces.http.forwards import FORWARDS, Forward, make_route
from holdfast.store.catalogue import find_operation
from tests.interfaces.http.kit import ServedStore


def fields(kind: type[msgspec.Struct] | None) -> dict[str, Any]:
    return {} if kind is None else get_type_hints(kind)


def test_requests_have_the_parameters_that_can_be_sent() -> None:
    routes = {route.name: route for route in ROUTES}
    assert fields(routes["get_key_history"].params)["key"] is str  # in the path, though Python has a default
    assert fields(routes["list_agents"].params)["kind"] == str | None  # or a class, in Python
    assert "metadata" not in fields(routes["list_agents"].params)  # a mapping is no part of a query
    assert fields(routes["merge"].body)["resolve"] == dict[str, Any] | None  # or a function
    assert fields(routes["fork"].body)["remove"] == list[str] | None
    assert fields(routes["query_audit"].params)["actor"] == str | None  # or an identity, or a scope
    assert routes["run_job"].body is None  # functions that report and stop are left out
    assert routes["verify"].params.__struct_defaults__[-1] == 1000  # Python reads all


def test_a_parameter_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(ValueError, match=r"list_them cannot take metadata of sessions.list: name it in `without`"):
        make_route(Forward("list_them", "GET /them", "sessions.list"))
    assert "metadata" not in fields(make_route(Forward("a", "GET /a", "sessions.list", without="metadata")).params)


def test_a_type_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_operation("jobs", "pause")
    assert found is not None
    monkeypatch.setitem(found.function.__annotations__, "name", "Nonsense")
    with pytest.raises(NameError, match="Nonsense"):
        make_route(Forward("pause", "PUT /jobs/{name}/pause", "jobs.pause"))


def test_every_row_is_an_operation_that_can_be_called_remotely() -> None:
    for each in FORWARDS:
        found = find_operation(*each.operation.split("."))
        assert found is not None
        assert not found.declaration.not_remote
        assert found.declaration.changes is (each.method != "GET"), each


def test_a_condition_that_would_not_be_checked_is_refused(writable: ServedStore) -> None:
    writable.store.jobs.add("tidy", "tidy")
    answer = writable.change("PUT", "/jobs/tidy/pause", headers={"If-Match": '"1"'})
    assert (answer.status, answer.json["code"]) == (400, "invalid")
    assert not writable.store.jobs.get("tidy").paused
    assert writable.change("PUT", "/jobs/tidy/pause").json["paused"]
