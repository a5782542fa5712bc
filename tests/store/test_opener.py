"""Opening a store on a backend that is open already."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.backends import MemoryBackend, run
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import ConfigError, HoldfastError, UnavailableError


def test_the_store_is_that_of_the_backend_and_closes_it(tmp_path: Path) -> None:
    backend = run(SQLiteBackend.open(f"sqlite:///{tmp_path}/a.db"))
    with holdfast.open(backend, tenant="acme") as store:
        store.thread("chat").put({"n": 1})
        assert store.tenant == "acme"
    with pytest.raises(UnavailableError):
        run(backend.size())
    with holdfast.open(tmp_path / "a.db", tenant="acme") as store:
        assert store.thread("chat").get().state == {"n": 1}


def test_it_is_opened_for_asyncio() -> None:
    async def use() -> None:
        async with holdfast.aopen(MemoryBackend()) as store:
            await store.thread("chat").put({"n": 1})
            assert (await store.thread("chat").get()).state == {"n": 1}

    asyncio.run(use())


def test_it_is_encrypted_by_an_argument_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", generate_key())
    for name in ("argument", "environment"):
        backend = run(SQLiteBackend.open(f"sqlite:///{tmp_path}/{name}.db"))
        if name == "environment":
            monkeypatch.setenv("HOLDFAST_ENCRYPTION", "environment")
        with holdfast.open(backend, encryption=Encryption("environment") if name == "argument" else None) as store:
            store.thread("chat").put({"note": "the merger is on Friday"})
            assert store.thread("chat").get().state == {"note": "the merger is on Friday"}
        assert b"merger" not in b"".join(path.read_bytes() for path in tmp_path.glob(f"{name}.db*"))
    monkeypatch.delenv("HOLDFAST_ENCRYPTION")
    with holdfast.open(tmp_path / "plain.db") as store:  # which shows that it would be found
        store.thread("chat").put({"note": "the merger is on Friday"})
    assert b"merger" in b"".join(path.read_bytes() for path in tmp_path.glob("plain.db*"))


def test_policies_of_the_environment_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_REDACTION", "redact:all")
    with holdfast.open(MemoryBackend()) as store:
        store.thread("chat").put({"note": "write to ada@example.com"})
        assert "ada@example.com" not in store.thread("chat").get().state["note"]


def test_options_are_those_of_opening_and_refused() -> None:
    with pytest.raises(ConfigError, match="takes no option 'read_only'"):
        holdfast.open(MemoryBackend(), read_only=True)


@pytest.mark.parametrize("refused", ["key", "settings"])
def test_a_backend_stays_open_if_it_is_refused(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    first = holdfast.open(backend)
    first.thread("chat").put({"n": 1})
    if refused == "settings":
        monkeypatch.setenv("HOLDFAST_REDACTION", "nonsense")
    with pytest.raises(HoldfastError):
        holdfast.open(backend, encryption=Encryption(LocalKeys(generate_key())) if refused == "key" else None)
    assert first.thread("chat").get().state == {"n": 1}
