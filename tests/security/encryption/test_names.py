"""Names that are hidden, of threads, scopes, agents, tags and keys; and metadata that is found by digests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Create, Delete, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, LINES, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.codec.envelope import wrap
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.checked_rows import CheckedBackend, select_rows
from holdfast.engine.namespaces import thread_name
from holdfast.errors import ConfigError, DeniedError, InvalidError, NotFoundError, UnsupportedError
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.hidden_names import HIDDEN, NamedBackend
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.security.encryption.planted import contents_of, find_planted, rows_of
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

KEY = LocalKeys(b"n" * 32)
HIDING = Encryption(KEY, hide_names=True)


def plant_names(store: Store, names: dict[str, list[str]]) -> None:
    """Use every name where a user can give one."""
    for name in names["thread"]:
        store.thread(name).put({"n": 1})
    first = names["thread"][0]
    for number, name in enumerate(names["namespace"]):
        store.thread(thread_name(first, name)).put({"n": number})
    for name in names["tag"]:
        store.thread(first).tag(name)
    for name in names["label"]:
        store.thread(first).label(name)
    for user, session, key in zip(names["user"], names["session"], names["key"], strict=True):
        store.state(user=user, session=session)[key] = 1
        store.state(user=user)[key] = 2
    for name, key in zip(names["artifact"], names["key"], strict=True):
        store.artifacts.register(b"content" * 10, id=name)
        with store.artifacts.using(name):
            store.state(agent=name)[key] = 1
    for name in names["topic"]:
        store.sharing.topic(name).publish("hello")


KINDS = ("thread", "namespace", "tag", "label", "user", "session", "key", "artifact", "topic")


def planted_names(count: int) -> dict[str, list[str]]:
    return {kind: [f"planted{kind}x{number:03}q" for number in range(count)] for kind in KINDS}


@pytest.mark.parametrize(
    "kind", mostly_nightly(["sqlite", "postgres", "mongodb", "redis", "file", "s3"], daily=["sqlite"])
)
def test_hidden_names_cannot_be_found(kind: str, tmp_path: Path) -> None:
    names = planted_names(3)
    every = {each for some in names.values() for each in some}
    url = place(kind, tmp_path)
    with holdfast.open(url, encryption=HIDING) as store:
        plant_names(store, names)
    with holdfast.open(url, encryption=HIDING) as store:
        spaces = [thread_name(names["thread"][0], each) for each in names["namespace"]]
        assert [each.thread for each in store.threads(limit=2).all()] == sorted([*names["thread"], *spaces])
        assert sorted(store.thread(names["thread"][0]).tags()) == names["tag"]
        assert store.thread(names["thread"][0]).get(names["tag"][0]).state == {"n": 1}
        assert [str(each.scope) for each in store.scopes(f"user:{names['user'][1]}/")] == [
            f"user:{names['user'][1]}/session:{names['session'][1]}"
        ]
        assert [each.id for each in store.artifacts.list()] == names["artifact"]
        assert [each.artifact for each in store.artifacts.of(f"agent:{names['artifact'][1]}", version=1)] == [
            names["artifact"][1]
        ]
        store.thread(names["thread"][0]).delete()  # with its namespaces
        assert store.maintenance.verify(level="decode").findings == []
        store.encryption_keys.rotate()
        assert store.encryption_keys.reencrypt().rows
        assert store.encryption_keys.check().ok
        assert [each.thread for each in store.threads().all()] == names["thread"][1:]
    raw = run(backend_for(url).open(url))
    assert find_planted(names, (*rows_of(raw), *contents_of(tmp_path))) == set()
    lines = run(raw.read([Scan(LINES, ())]))[0]
    scopes = {str(row.key[1]) for row in lines if str(row.key[1]).startswith("␞user:")}
    assert len({name.partition("/")[0] for name in scopes}) == 3  # a scope is below that of its user
    run(raw.close())
    if kind == "sqlite":  # the control
        with holdfast.open(tmp_path / "clear.db", encryption=Encryption(KEY)) as store:
            plant_names(store, names)
        raw = run(backend_for(f"sqlite:///{tmp_path}/clear.db").open(f"sqlite:///{tmp_path}/clear.db"))
        assert every - find_planted(names, rows_of(raw)) <= {*names["label"], *names["tag"], *names["key"]}
        run(raw.close())


@pytest.mark.parametrize("hide_names", [False, True], ids=["names", "hidden"])
def test_what_looks_like_a_digest_is_refused_and_not_stored_as_it_is(hide_names: bool, tmp_path: Path) -> None:
    word = f"{HIDDEN}plantedmarker"
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(KEY, hide_names=hide_names)) as store:
        thread = store.thread("t")
        thread.put({"n": 1})
        calls: list[Callable[[], object]] = [lambda: thread.pin(reason=word), lambda: thread.hold(reason=word)]
        if hide_names:
            calls += [
                lambda: thread.tag(word),
                lambda: thread.label(word),
                lambda: store.artifacts.register(b"x", id=word),
            ]
        for call in calls:
            with pytest.raises(InvalidError, match="FDD0"):
                call()
        assert not thread.pins()
        thread.pin(reason=word[1:] + HIDDEN)
        assert [each.reason for each in thread.pins()] == [word[1:] + HIDDEN]
        store.thread(word).put({"n": 1})
        assert word in [each.thread for each in store.threads()]
        if hide_names:
            assert not find_planted({"marker": [word[1:]]}, contents_of(tmp_path))


def test_prefixes_are_refused_and_settings_have_to_match(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=HIDING) as store:
        store.thread("chat-1").put({"n": 1})
        for search in (
            lambda: store.threads(prefix="chat"),
            lambda: store.scopes("user:al"),
            lambda: store.agents.list(prefix="a"),
            lambda: store.maintenance.prune(prefix="chat", keep_last=1),
        ):
            with pytest.raises(UnsupportedError) as refused:
                search()
            assert refused.value.code == "prefix-refused"
        assert [each.thread for each in store.threads(where="thread:chat*")] == ["chat-1"]
    with holdfast.open(tmp_path / "b.db", encryption=Encryption(KEY)) as store:
        store.thread("chat-1").put({"n": 1})
        assert len(store.threads(prefix="chat")) == 1  # the control
    for name, settings in (("a.db", Encryption(KEY)), ("b.db", HIDING)):
        with pytest.raises(ConfigError) as other:
            holdfast.open(tmp_path / name, encryption=settings)
        assert other.value.code == "names-hidden"
    for wrong in ({"mode": "turning-on"}, {"clear": ("readable",)}):
        with pytest.raises(ConfigError, match="hide_names"):
            Encryption(KEY, hide_names=True, **wrong)


def test_a_line_whose_key_is_gone_has_a_digest_for_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, encryption=HIDING) as store:
        for name in ("a", "b"):
            store.thread(name).put({"n": name})
    raw = run(backend_for(f"sqlite:///{path}").open(f"sqlite:///{path}"))
    stored = [str(row.key[1]) for row in run(raw.read([Scan(LINES, ("",))]))[0]]
    run(raw.apply([Delete(KEYS, ("", stored[0]))]))
    run(raw.close())
    with holdfast.open(path, encryption=HIDING) as store:
        listed = [each.thread for each in store.threads()]
        (lost,) = [name for name in listed if name.startswith(HIDDEN)]
        assert lost == stored[0]
        (other,) = [name for name in listed if name != lost]
        assert store.thread(other).get().state == {"n": other}
        with pytest.raises(DeniedError) as missing:
            store.thread(lost).get()
        assert missing.value.code == "key-missing"
        with pytest.raises(NotFoundError):
            store.thread(next(name for name in stored if name != lost)).get()  # a digest is no second name
        assert store.thread(other).get().state == {"n": other}


_NAMES = st.one_of(
    st.builds(thread_name, st.sampled_from(["a", "b␟", "日本", "a\0", "ab"]), st.sampled_from(["", "x", "x|y"])),
    st.sampled_from(["␞global", "␞user:a", "␞user:a/session:b", "␞agents:a/b:c", "␞audit", "␞topic:a/segment:00", ""]),
)


@given(
    st.sets(_NAMES.filter(bool), max_size=8),
    st.one_of(st.just(()), _NAMES.map(lambda name: (name,)), _NAMES.map(lambda name: (name + "\0",))),
    st.one_of(st.just(()), _NAMES.map(lambda name: (name + "0",)), st.just(("␟",)), st.just(("␞user;",))),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 4)),
)
def test_scans_over_lines_are_those_of_a_store_with_names(
    names: set[str], start: tuple[str, ...], stop: tuple[str, ...], reverse: bool, limit: int | None
) -> None:
    """Whatever the bounds, a scan returns the rows that it would return if names were stored as they are."""
    backend = CheckedBackend(MemoryBackend(), EncryptedRows(HIDING))
    run(backend.rows.check_store(backend.inner, ""))
    for name in names:
        put_line(backend, name)
    for table in (LINES, STEPS):
        query = Scan(table, ("",), start, stop, reverse, limit, bodies=False)
        (found,) = run(backend.read([query]))
        (everything,) = run(backend.read([Scan(table, ("",), bodies=False)]))
        assert {str(row.key[1]) for row in everything} == names
        assert found == select_rows(query, everything)


def put_line(backend: CheckedBackend, name: str) -> None:
    """Create a line with a step, without the rules for names of the API."""
    columns = ("id", 1, 0, b"h" * 32, 1, "save", "", 0, 0, -1)
    line, step = Row(("", name), (1, 1, 1, 0, ""), wrap(b"x")), Row(("", name, 0, 0), columns, wrap(b"x"))
    assert run(backend.apply([Create(LINES, line), Create(STEPS, step)])) is None


# Metadata ---------------------------------------------------------------------------------------------------------


def fill_metadata(store: Store) -> None:
    for number in range(30):
        metadata = {"user": f"planteduser{number % 5}", "n": number % 3, "run": {"id": f"r{number}"}, "free": "x"}
        store.thread(f"t{number % 4}").put({"n": number}, metadata=metadata)


def test_indexed_metadata_is_found_without_decrypting_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, encryption=Encryption(KEY, indexed=("user", "run.id", "n"))) as store:
        fill_metadata(store)
    with holdfast.open(tmp_path / "plain.db", encryption=False) as plain:
        fill_metadata(plain)
        with holdfast.open(path, encryption=Encryption(KEY)) as store:  # it knows what it has declared
            opened = _count_opened(store)
            for query in (
                "meta.user=planteduser1",
                "meta.n=1",
                "meta.n=1.0",
                "meta.run.id=r7",
                "meta.user=planteduser1 meta.n=2",
                "meta.user=nobody",
                "meta.free=x meta.user=planteduser2",
                "meta.user!=planteduser1",
                "meta.user:PLANTED*",
                "meta.n>1",
                "meta.user=planteduser1 OR meta.n=1",
            ):
                found = [(each.thread, each.step) for each in store.search(query).all()]
                expected = [(each.thread, each.step) for each in plain.search(query).all()]
                assert sorted(found) == sorted(expected), query
                assert [each.thread for each in store.threads(where=query)] == [
                    each.thread for each in plain.threads(where=query)
                ]
            for wanted in ({"user": "planteduser3"}, {"n": 1}, {"n": True}, {"n": 1.0}, {"free": "x"}, {"user": None}):
                for name in ("t0", "t1"):
                    every = [
                        [each.id for each in Checkpointer(one).list(name, metadata=wanted)] for one in (store, plain)
                    ]
                    assert len(every[0]) == len(every[1])
            opened.clear()
            assert len(store.search("meta.run.id=r7")) == 1
            assert opened.count("steps") < 15, opened  # of 30: heads of threads, and the one
            opened.clear()
            assert len(list(store.search("meta.free=x").all())) == 30
            assert opened.count("steps") >= 30  # the control
            store.encryption_keys.rotate()
            assert store.encryption_keys.check().ok
            store.encryption_keys.reencrypt()
            assert len(store.search("meta.run.id=r7")) == 1
    with pytest.raises(ConfigError) as declared:
        holdfast.open(path, encryption=Encryption(KEY, indexed=("user",)))
    assert declared.value.code == "index-declared"
    assert find_planted({"user": [f"planteduser{n}" for n in range(5)]}, [path.read_bytes()]) == set()


def _count_opened(store: Store) -> list[str]:
    rows, opened = store._engine.context.rows, list[str]()
    decode = type(rows).decode

    def counted(table, row):  # type: ignore[no-untyped-def]
        opened.append(table.name)
        return decode(rows, table, row)

    rows.decode = counted  # type: ignore[method-assign]
    store._engine.context.cache.clear()
    return opened


def test_digests_of_fields_do_not_tell_which_fields_are_equal(tmp_path: Path) -> None:
    """Equal values of one field look alike in a tenant, as the guide says; those of two fields, or two tenants, not."""
    path = tmp_path / "a.db"
    for tenant in ("", "other"):
        with holdfast.open(path, tenant=tenant, encryption=Encryption(KEY, indexed=("a", "b"))) as store:
            store.thread("one").put({"n": 1}, metadata={"a": "same"})
            store.thread("two").put({"n": 1}, metadata={"b": "same"})
            store.thread("three").put({"n": 1}, metadata={"a": "same", "x": 1})
    raw = run(backend_for(f"sqlite:///{path}").open(f"sqlite:///{path}"))
    place_of = list(STEPS.columns).index("metadata")
    rows = run(raw.read([Scan(STEPS, ())]))[0]
    tokens = {row.key[:2]: str(row.columns[place_of])[20:] for row in rows}
    run(raw.close())
    assert tokens["", "one"] == tokens["", "three"] != ""
    assert len({tokens["", "one"], tokens["", "two"], tokens["other", "one"], tokens["other", "two"]}) == 4


@pytest.mark.parametrize(
    "kind", mostly_nightly(["sqlite", "memory", "postgres", "mongodb", "redis", "file", "s3"], daily=["sqlite"])
)
def test_a_list_follows_what_others_do_and_a_page_reads_a_page(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, expected, read = Random(7), set[str](), [0]

    class Counting(Wrapper):
        """Counts the rows of lines that are read."""

        async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
            found = await super().read(queries)
            read[0] += sum(len(rows) for query, rows in zip(queries, found, strict=True) if query.space is LINES)
            return found

    create = NamedBackend.__init__
    monkeypatch.setattr(NamedBackend, "__init__", lambda self, inner: create(self, Counting(inner)))
    url = place(kind, tmp_path)
    with ExitStack() as stack:
        store = stack.enter_context(holdfast.open(url, encryption=HIDING))
        other = store if kind == "memory" else stack.enter_context(holdfast.open(url, encryption=HIDING))
        for number in range(150):
            expected.add(name := f"thread {rng.randrange(10**6)} {number}")
            other.thread(name).put({"n": number})
        store.state(user="u1")["n"] = 1
        assert [each.thread for each in store.threads().all()] == sorted(expected)
        for _ in range(30):
            if rng.random() < 0.4:
                expected.discard(name := rng.choice(sorted(expected)))
                other.thread(name).delete()
            else:
                expected.add(name := f"thread {rng.randrange(10**6)}")
                rng.choice([store, other]).thread(name).put({"n": 1})
            if rng.random() < 0.3:  # deleted and created again
                other.thread(name).delete()
                other.thread(name).put({"n": 2})
                expected.add(name)
            start = rng.choice(sorted(expected))
            read[0] = 0
            page = store.threads(limit=10, cursor=start)
            assert [each.thread for each in page] == sorted(each for each in expected if each > start)[:10]
            assert read[0] < 60, "a page, and what has changed"
        assert [each.thread for each in store.threads().all()] == sorted(expected)
