"""Random and mutated texts, files and requests into every reader of what comes from outside: a result, or a typed
error, and nothing else. `test_fuzz` has the decoders of stored bytes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import io
import json
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import snapshots
from holdfast.agents.snapshots import container
from holdfast.backends.registry import backend_for
from holdfast.backends.urls import check_address, is_url, redacted_url, split_options, store_parts, url_to_path
from holdfast.codec import json_codec
from holdfast.codec.envelope import RecordContext, seal, unseal
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.model.scopes import Scope, parse_place
from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.patterns import matcher
from holdfast.errors import HoldfastError
from holdfast.history.query import parse as parse_query
from holdfast.interfaces.http.app import ROUTES, build_app, parse_range
from holdfast.interfaces.http.authentication import Authenticator, cookie_value
from holdfast.interfaces.http.service import Caller, Service, ServiceOptions
from holdfast.maintenance.backup import format as backup_format
from holdfast.maintenance.jobs.job import parse_schedule
from holdfast.schemas.json_schema import from_json_schema
from holdfast.security.access.identity import parse_holder, parse_identity
from holdfast.security.audit.export import check_audit
from holdfast.security.encryption.cipher import Cipher
from holdfast.store.store import Store
from holdfast.testing.security.archives import Frozen
from holdfast.testing.security.filters import HOSTILE_QUERIES
from holdfast.testing.security.names import HOSTILE_KEYS
from holdfast.time_parser import parse_duration, parse_time
from tests.maintenance.test_backup_golden import GOLDEN as BACKUP
from tests.support.nightly import by_day
from tests.test_fuzz import BY_DAY, BY_NIGHT, DOCUMENTS, SECONDS, Target, codec, mutate

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)

_SIGNS = "()[]{}\"'\\*?:;=<>.,~^@#%&|-+/ \t\n\0"

# Texts -----------------------------------------------------------------------------------------------------------


def texts(*seeds: str) -> st.SearchStrategy[str]:
    """Texts of a language with parts cut out, doubled, and put in from others; and any text."""
    known = [*seeds, *HOSTILE_KEYS.values(), *HOSTILE_QUERIES]
    signs = st.sampled_from(
        [*"()[]{}\"'\\*?:;=<>.,~^@#%&|-+/ \t\n\0", "OR", "AND", "NOT", "..", "1e9", "9" * 5000, "٣"]
    )
    parts = st.lists(st.one_of(st.sampled_from(seeds), signs, st.text(max_size=5)), max_size=8).map("".join)

    def cut(text: str, one: float, other: float, new: str) -> str:
        at, to = sorted((int(one * len(text)), int(other * len(text))))
        return text[:at] + new + text[to:]

    changed = st.builds(cut, st.sampled_from(known), st.floats(0, 1), st.floats(0, 1), signs)
    return st.one_of(parts, changed, st.sampled_from(known), st.text(max_size=60))


QUERIES = ("refund -role:human", '(a OR b*) "on its way"', "meta.user.plan:pro", "step:10..20", "time>2h", "size>1mb")


def fuzz_query(text: str) -> None:
    query = parse_query(text, NOW)
    assert str(parse_query(str(query), NOW)) == str(query)


def fuzz_search(text: str) -> None:
    store().search(text, limit=2)
    store().threads(where=text)
    store().thread("chat").log(where=text)


def fuzz_revision(text: str) -> None:
    assert store().thread("chat").get(text).thread == "chat"


def fuzz_path(text: str) -> None:
    path = parse_path(text)
    assert parse_path(path_text(path)) == path


def fuzz_pattern(text: str) -> None:
    match = matcher(text)
    match("a" * 200)
    match(text)


def fuzz_time(text: str) -> None:
    for read in (parse_duration, lambda each: parse_time(each, NOW), parse_schedule):
        with contextlib.suppress(HoldfastError):
            read(text)


def fuzz_url(text: str) -> None:
    secret = "hunter2secret"
    shown = redacted_url(f"postgresql://user:{secret}@host/{quote(text[:20], errors='replace')}")
    assert secret not in shown
    is_url(text)
    redacted_url(text)
    for read in (url_to_path, check_address, backend_for, lambda each: list(store_parts(each))):
        with contextlib.suppress(HoldfastError):
            read(text)
    split_options(text, {"a": 1}, {})


def fuzz_identity(text: str) -> None:
    for read in (parse_identity, parse_holder, Scope.parse, parse_place):
        with contextlib.suppress(HoldfastError):
            read(text)
    store().state(text)


def fuzz_token(text: str) -> None:
    for read in (authenticator().by_token, authenticator().by_cookie, authenticator().sign_in):
        with contextlib.suppress(HoldfastError):
            read(text)
            pytest.fail(f"a token that was guessed: {text!r}")
    cookie_value(text, "127.0.0.1")
    with contextlib.suppress(HoldfastError):
        authenticator().check_csrf(Caller(session="a session"), text)
    parse_range(text, 100)
    parse_range(f"bytes={text}", 100)


# Documents and files -----------------------------------------------------------------------------------------------


def fuzz_json(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    value = codec.from_json(document)
    assert codec.pack(codec.from_json(codec.to_json(value))) == codec.pack(value)


def fuzz_sealed(data: bytes) -> None:
    """Nothing that was not sealed by the key opens."""
    opened = unseal(data, b"here", {CIPHER.key_id: CIPHER}, HERE)
    assert data in SEALED
    assert opened == b"content"


def fuzz_row(data: bytes) -> None:
    """Bodies of rows of an encrypted store, as the database returns them."""
    from holdfast.backends.interface import Row
    from holdfast.backends.tables import STEPS

    context = encrypted()._engine.context
    row = Row(("", "t", 0, 0), ("1", 0, 0, b"h" * 32, 0, "", "", 0, 0, -1), data)
    for rows in (context.rows, CHECKSUMS):
        with contextlib.suppress(HoldfastError):
            rows.decode(STEPS, row)


def fuzz_export(data: bytes) -> None:
    with holdfast.open("memory://") as target:
        with contextlib.suppress(HoldfastError):
            target.maintenance.import_(io.BytesIO(data))
            assert target.maintenance.verify().ok
            return
        assert target.threads() == []


def fuzz_snapshot(data: bytes) -> None:
    container.read_header(data, "file")
    container.open_file(data, 1 << 20, "file")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.hfsnap").write_bytes(data)
        snapshots.verify(Path(folder) / "a.hfsnap")


def fuzz_backup(data: bytes) -> None:
    for kind in {data[4:5], *(each[4:5] for each in backups())}:
        for type in (backup_format.Manifest, backup_format.ChunkIndex, backup_format.RepositoryInfo):
            with contextlib.suppress(HoldfastError):
                content = backup_format.decompress_block(backup_format.open_object(kind, data, "object"), "object")
                backup_format.decode_value(content, type, "object")
    with contextlib.suppress(HoldfastError):
        backup_format.decompress_block(data, "object")
    with contextlib.suppress(HoldfastError):
        backup_format.decode_value(data, backup_format.Manifest, "object")


def fuzz_audit(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "audit.jsonl").write_bytes(data)
        check_audit(Path(folder) / "audit.jsonl")


def fuzz_json_schema(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    from_json_schema(document, "state")


def fuzz_http(data: bytes) -> None:
    """A query to each reading operation: an answer that is no fault of the server."""
    path, _, query = data.partition(b"?")
    for route in ROUTES:
        if not route.writes:
            filled = route.path
            for name in route.path_names:
                filled = filled.replace(f"{{{name}}}", quote(path[:50], safe=""))
            status = asyncio.run(_ask("/api/v1" + filled, query))
            assert status < 500, (route.name, status)


async def _ask(path: str, query: bytes) -> int:
    """Call the application, and return the status of its answer."""
    found: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {authenticator().start_token}".encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await application()(scope, receive, send)
    return found[0]


# What they are called on ---------------------------------------------------------------------------------------------

CIPHER = Cipher(b"k" * 32)
HERE = RecordContext("steps", ("", "t", 0, 0))
SEALED = [seal(b"content", b"here", CIPHER) for _ in range(2)]


@cache
def store() -> Store:
    opened = holdfast.open("memory://")
    for number in range(5):
        opened.thread("chat").put(
            {"n": number, "messages": [{"role": "user", "content": "a refund"}]}, metadata={"n": number}
        )
    return opened


@cache
def encrypted() -> Store:
    return holdfast.open("memory://", encryption=Encryption(LocalKeys(b"k" * 32)))


@cache
def authenticator() -> Authenticator:
    return Authenticator(store())


@cache
def application() -> Any:
    return build_app(Service(store(), ServiceOptions(rate=1e9, burst=10**9)), authenticator())


@cache
def exported() -> bytes:
    file = io.BytesIO()
    store().maintenance.export(file)
    return file.getvalue()


@cache
def snapshot() -> bytes:
    with tempfile.TemporaryDirectory() as folder, holdfast.open("memory://") as opened:
        agent = Frozen(note="a").attach(opened, "frozen")
        agent.save()
        snapshots.snapshot(agent, Path(folder) / "a.hfsnap")
        return (Path(folder) / "a.hfsnap").read_bytes()


@cache
def audit() -> bytes:
    with tempfile.TemporaryDirectory() as folder, holdfast.open("memory://") as opened:
        opened.as_identity(agent="a").state(agent="a")["k"] = 1
        opened.audit.export(Path(folder) / "audit.jsonl")
        return (Path(folder) / "audit.jsonl").read_bytes()


@cache
def backups() -> list[bytes]:
    return [base64.b64decode(data) for data in json.loads(BACKUP.read_text(encoding="utf-8")).values()]


SCHEMAS = [
    msgspec.json.encode(each)
    for each in (
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}},
        {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": [1, "a", None]}, {"const": {}}], "default": 1},
        {"type": "array", "items": {"$ref": "#"}, "prefixItems": [True, False], "maxItems": 3},
        {"type": ["string", "null"], "format": "date-time", "pattern": "^(a+)+$"},
    )
]
JSONS = [json.dumps(json_codec.to_json(each)).encode() for each in DOCUMENTS]

TEXTS: dict[str, tuple[Callable[[str], None], st.SearchStrategy[str]]] = {
    "query": (fuzz_query, texts(*QUERIES)),
    "search": (fuzz_search, texts(*QUERIES)),
    "revision": (fuzz_revision, texts("HEAD", "HEAD~2", "main^2", "@{1h}", "#3", "v1", "chat@{2026-01-01}", "0f3a")),
    "path": (fuzz_path, texts("plan.done", "messages[-1].content", 'a["b.c"]', "a[1:2]")),
    "pattern": (fuzz_pattern, texts("a/**/b", "*a*a*a*a*b", "[a-z]", "?")),
    "time": (fuzz_time, texts("2h", "1d12h", "2026-01-01T10:00:00Z", "monday", "every 1h", "0 3 * * *", "PT1H")),
    "url": (fuzz_url, texts("sqlite:///a.db", "postgresql://u:p@h:1/d?a=1", "mirror:a=b;c=d", "s3://b/p", "file:x/")),
    "identity": (fuzz_identity, texts("agent:a", "user:b/agent:c", "group:g", "custom:%2F")),
    "token": (fuzz_token, texts("hf_0123456789abcdef_secret", "Bearer x", "bytes=0-", "-5", "1-2")),
}

BYTES = {
    "json": Target(fuzz_json, lambda: JSONS),
    "sealed body": Target(fuzz_sealed, lambda: SEALED),
    "row of an encrypted store": Target(fuzz_row, lambda: SEALED),
    "export": Target(fuzz_export, lambda: [exported()]),
    "snapshot": Target(fuzz_snapshot, lambda: [snapshot()]),
    "backup": Target(
        fuzz_backup,
        backups,
        lambda seeds: mutate(seeds) | st.binary(max_size=20).map(lambda data: b"HFbk" + data),
    ),
    "audit": Target(fuzz_audit, lambda: [audit()]),
    "JSON Schema": Target(fuzz_json_schema, lambda: SCHEMAS),
    "HTTP": Target(fuzz_http, lambda: [b"chat?at=HEAD~1&limit=5", b"agent:a?cursor=x", b"a?q=b&path=a.b[0]"]),
}
TARGETS = (*TEXTS, *BYTES)


def attack(name: str) -> Callable[[], None]:
    if name in BYTES:
        return BYTES[name].attack()
    read_text, texts_of = TEXTS[name]
    return given(texts_of)(_guarded(read_text))


def _guarded(read: Callable[[str], None]) -> Callable[[str], None]:
    def one(text: str) -> None:
        with contextlib.suppress(HoldfastError):
            read(text)

    return one


def _examples(name: str, count: int) -> int:
    return count // 5 if name in ("HTTP", "search") else count


@pytest.mark.parametrize("name", TARGETS)
def test_what_comes_from_outside_gives_a_result_or_a_typed_error(name: str) -> None:
    settings(BY_DAY, max_examples=_examples(name, by_day(25, 15)))(attack(name))()


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_what_is_new_from_outside_gives_a_result_or_a_typed_error(name: str) -> None:
    settings(BY_NIGHT, max_examples=_examples(name, 200))(attack(name))()


@pytest.mark.torture
@pytest.mark.parametrize("name", TARGETS)
def test_what_comes_from_outside_gives_a_result_or_a_typed_error_for_long(name: str) -> None:
    end = time.monotonic() + SECONDS / len(TARGETS)
    while time.monotonic() < end:
        settings(BY_NIGHT, max_examples=300, database=None)(attack(name))()


def test_the_fuzzer_finds_what_it_is_for() -> None:
    """A reader that raises anything else fails: the control."""

    def broken(text: str) -> None:
        int(text)

    with pytest.raises(ValueError, match="invalid literal"):
        settings(BY_DAY, max_examples=20)(given(texts("1"))(_guarded(broken)))()
    with pytest.raises(IndexError):
        settings(BY_DAY, max_examples=20)(Target(lambda data: print(data[0]), lambda: [b""]).attack())()
