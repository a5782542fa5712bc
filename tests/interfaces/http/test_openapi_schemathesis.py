"""The document against the server: requests that it allows, and some that it does not, made up by schemathesis.

Whatever is sent, the answer is one that the document describes, and never a fault of the server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import holdfast
from tests.interfaces.http.kit import DOCUMENT, SECONDS, ServedStore
from tests.support.nightly import by_day, by_night

SCHEMA = schemathesis.openapi.from_dict(
    {**DOCUMENT, "paths": {path: each for path, each in DOCUMENT["paths"].items() if not path.endswith("/events")}}
)
"""All operations but the stream of events, which does not end."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def changing(filled_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """A filled store that is served for changes, all of which may happen to it."""
    file = tmp_path_factory.mktemp("changing") / "agents.db"
    shutil.copyfile(filled_file, file)
    with holdfast.open(file) as store, ServedStore(store, write=True) as served:
        store.jobs.add("tidy", "tidy")
        yield served


def send(case: Any, served: ServedStore) -> None:
    """Send a request, and check the answer."""
    headers = {"Authorization": f"Bearer {served.token}"}
    response = case.call(base_url=served.url, headers=headers, timeout=SECONDS)
    case.validate_response(response, checks=CHECKS)


DAILY = [
    *("list_threads", "get_value", "save_update", "thread.log", "state.set"),
]
"""Some of each kind. All of them take longer than the ordinary run can, and longer to collect."""


@(SCHEMA if by_night() else SCHEMA.include(operation_id=DAILY)).parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=by_day(100, 2), suppress_health_check=list(HealthCheck))
def test_answers_are_as_the_document_says(case: Any, changing: ServedStore) -> None:
    send(case, changing)


def test_the_daily_operations_are_there() -> None:
    names = {each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()}
    assert names > set(DAILY)
