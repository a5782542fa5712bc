"""The conformance suites on encrypted stores: that of backends, through sealed rows, and that of LangGraph's savers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.validate import validate

from holdfast.backends.conformance.suite import ShortConformance
from holdfast.backends.interface import Backend, Batch, Changes, Create, Ensure, Put, Query, Row
from holdfast.backends.wrappers import Wrapper
from holdfast.codec.envelope import unwrap, wrap
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.checked_rows import UNPROTECTED, CheckedBackend
from holdfast.langgraph import HoldfastSaver
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.testing import Stores
from tests.interfaces.langgraph.test_conformance import TESTS
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly

_KINDS = tuple(kind for kind in KINDS if kind != "memory")


class RecordBackend(Wrapper):
    """Has bodies that are records, as the engine's are; the suite writes any bytes."""

    async def apply(self, batch: Batch) -> int | None:
        return await self.inner.apply([self._with_record(change) for change in batch])

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = await self.inner.read(queries)
        return [
            [row._replace(body=self._content(query, row)) for row in rows]
            for query, rows in zip(queries, found, strict=True)
        ]

    async def changes(self, since: str | None = None) -> Changes:
        """Leave out the line of a tenant's keys, which are created with its first row: object stores name it."""
        found = await self.inner.changes(since)
        return found._replace(lines=[line for line in found.lines if not line[0] or line[1]])

    def _with_record(self, change: Any) -> Any:
        if isinstance(change, Create | Ensure | Put) and change.space.name not in UNPROTECTED:
            return type(change)(change.space, change.row._replace(body=wrap(change.row.body)))
        return change

    def _content(self, query: Query, row: Row) -> bytes:
        return unwrap(row.body).content if row.body and query.space.name not in UNPROTECTED else row.body


def encrypted(backend: Backend) -> Backend:
    return RecordBackend(CheckedBackend(backend, EncryptedRows(Encryption(LocalKeys(b"k" * 32)))))


@pytest.mark.nightly
class TestRows(ShortConformance):
    """Without tests that compare all tables, since there are keys as well; and those of other processes, which open the
    store by its URL alone, or of the order in which a backend takes batches, which the engine above does not know."""

    test_a_backend_answers_as_the_model_does = None  # type: ignore[assignment]
    test_every_handle_answers_as_the_model_does = None  # type: ignore[assignment]
    test_every_space_keeps_its_rows = None  # type: ignore[assignment]
    test_a_cancelled_task_leaves_a_whole_batch_or_nothing = None  # type: ignore[assignment]
    test_an_empty_batch_comes_after_what_was_submitted = None  # type: ignore[assignment]
    test_what_a_killed_process_was_acknowledged_is_there_and_whole = None  # type: ignore[assignment]

    @pytest.fixture(params=_KINDS)
    def stores(self, request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
        return Stores(place(request.param, tmp_path), wrap=encrypted)


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=["memory"]))
def test_a_saver_on_an_encrypted_store(kind: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    async def fresh() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        keys = Encryption(LocalKeys(b"k" * 32))
        async with HoldfastSaver.from_conn_string(place(kind, folder), encryption=keys) as saver:
            yield saver

    results = asyncio.run(validate(RegisteredCheckpointer(name=kind, factory=fresh))).results
    assert [failure for result in results.values() for failure in result.failures] == []
    assert {name: result.tests_passed for name, result in results.items()} == TESTS
