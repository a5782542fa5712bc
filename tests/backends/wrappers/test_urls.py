"""Compositions as URLs and in `holdfast.toml`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.backends.config import store_url
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create, Get
from holdfast.backends.registry import backend_for, schemes
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.backends.urls import COMPOSITIONS, compose, parse_duration, redacted_url
from holdfast.errors import ConfigError

PLAIN = {"store": "memory://", "local": "memory://", "remote": "memory://", "hot": "memory://", "cold": "memory://"}


def parts(kind: str) -> dict[str, object]:
    return {part: PLAIN[part] for part in COMPOSITIONS[kind] if part in PLAIN}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize("kind", COMPOSITIONS)
def test_every_kind_is_opened_by_its_url(kind: str) -> None:
    url = compose(kind, **parts(kind))
    assert kind in schemes()
    store = run(backend_for(url).open(url))
    assert store.url.startswith(f"{kind}:?")
    again = parse_qs(urlsplit(store.url).query)
    for part, inner in parts(kind).items():
        assert again[part] == [inner]
    assert run(store.read([Get(STEPS, [step().key])])) == [[]]
    run(store.close())


@pytest.mark.parametrize("kind", COMPOSITIONS)
def test_parts_may_be_given_as_options(kind: str) -> None:
    store = run(backend_for(f"{kind}:").open(f"{kind}:", **parts(kind)))
    assert run(store.status()) is not None
    run(store.close())


def test_compositions_of_compositions(tmp_path: Path) -> None:
    plain = f"sqlite:///{tmp_path}/a%26b%3F.db?synchronous=normal&busy_timeout=7"
    url = compose("retry", store=compose("cache", store=compose("retry", store=plain, attempts=2), max_age=1))
    store = run(backend_for(url).open(url))
    assert run(store.apply([Create(STEPS, step())])) is None
    run(store.close())
    assert (tmp_path / "a&b?.db").exists()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("retry:", "needs 'store'"),
        ("write-behind:?local=memory://", "needs 'remote'"),
        ("retry:?store=memory://&nonsense=1", "does not accept the option 'nonsense'"),
        ("retry:?store=memory://&attempts=none", "attempts cannot be 'none'"),
        ("retry://host?store=memory://", "not the URL of a retry store"),
        ("cache:?store=memory://&in=sqlite:///a.db", "in memory or in Redis"),
        ("cache:?store=memory://&in=redis://localhost&size=9", "size applies only to a cache in memory"),
        ("tiered:?hot=memory://&cold=memory://&after=soon", "after cannot be 'soon'"),
        ("mirror:?local=memory://&remote=memory://&strict=perhaps", "strict cannot be 'perhaps'"),
        ("readonly:?store=nonsense://", "no backend supports nonsense: URLs"),
    ],
)
def test_what_is_wrong_is_said(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what.replace("?", r"\?")):
        run(backend_for(url).open(url))


def test_only_known_kinds_are_composed() -> None:
    with pytest.raises(ConfigError, match="no wrapper store of kind 'sharded'"):
        compose("sharded", store="memory://")


def test_no_password_is_shown() -> None:
    inner = "postgresql://me:hunter2@db/agents?sslpassword=hunter2&schema=a"
    url = compose("retry", store=compose("mirror", local="sqlite:///a.db", remote=inner))
    assert "hunter2" not in redacted_url(url)
    assert "me%40" in redacted_url(url) or "me@" in redacted_url(url)
    with pytest.raises(ConfigError) as caught:
        run(backend_for(url).open(url, nonsense=1))
    assert "hunter2" not in str(caught.value)


def test_a_part_that_cannot_be_opened_leaves_none_open(tmp_path: Path) -> None:
    hot = f"sqlite:///{tmp_path}/hot.db"
    with pytest.raises(ConfigError):
        run(backend_for("tiered:").open(compose("tiered", hot=hot, cold="sqlite:////no/such/folder/cold.db")))
    assert not (tmp_path / "hot.db-wal").exists()


@pytest.mark.parametrize(
    ("text", "number"), [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("30d", 2592000), (7, 7)]
)
def test_durations(text: object, number: float) -> None:
    assert parse_duration("tiered:", "after", text) == number


# holdfast.toml


def test_stores_have_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "holdfast.toml").write_text(
        """
        [stores.main]
        kind = "write-behind"
        local = "sqlite:///agents.db"
        remote = "stores.archive"
        drain = 2
        [stores.archive]
        url = "sqlite:///${NAME}.db"
        synchronous = "normal"
        [stores.default]
        kind = "readonly"
        store = "stores.main"
        """
    )
    monkeypatch.setenv("NAME", "arch/a b")
    archive = "sqlite:///arch/a%20b.db?synchronous=normal"
    assert store_url("stores.archive") == archive
    assert store_url("stores.main") == compose("write-behind", local="sqlite:///agents.db", remote=archive, drain=2)
    assert store_url() == compose("readonly", store=store_url("stores.main"))
    below = folder / "below" / "it"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert store_url("stores.archive") == archive
    assert store_url("memory://") == "memory://"
    (folder / "arch").mkdir()
    monkeypatch.chdir(folder)
    store = run(backend_for(store_url("stores.main")).open(store_url("stores.main")))
    assert run(store.apply([Create(STEPS, step())])) is None
    run(store.close())
    assert (folder / "arch" / "a b.db").exists()


def test_a_password_may_have_any_character(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "holdfast.toml").write_text(
        '[stores.a]\nurl = "postgresql://me:${SECRET}@db/x"\n[stores.b]\nurl="${ALL}"'
    )
    monkeypatch.setenv("SECRET", "p@ss/w:rd%")
    monkeypatch.setenv("ALL", "postgresql://me:p%40@db")
    assert urlsplit(store_url("stores.a")).hostname == "db"
    assert urlsplit(store_url("stores.a")).password == "p%40ss%2Fw%3Ard%25"
    assert store_url("stores.b") == "postgresql://me:p%40@db"


def test_the_environment_names_the_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "memory://")
    assert store_url() == "memory://"
    other = folder / "other.toml"
    other.write_text('[stores.main]\nurl = "sqlite:///other.db"')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(other))
    monkeypatch.setenv("HOLDFAST_STORE", "stores.main")
    assert store_url() == "sqlite:///other.db"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", r"there is no \[stores.main\]"),
        ("[stores", "cannot be read"),
        ("stores = 1", "stores must be a table"),
        ("[stores.other]\nurl='memory://'", "There are: stores.other"),
        ("[stores.main]\nschema='a'", "neither a url nor a kind"),
        ("[stores.main]\nkind='sharded'", "cannot be of the kind 'sharded'"),
        ("[stores.main]\nkind='retry'\nstore='stores.main'", "contains itself"),
        ("[stores.main]\nurl='stores.other'", "is a URL, not the name"),
        ("[stores.main]\nurl='memory://'\noptions=[1]", "stores.main.options must be a string"),
        ("[stores.main]\nurl='memory://${NOT_SET_ANYWHERE}'", "environment variable NOT_SET_ANYWHERE"),
    ],
    ids=str,
)
def test_what_is_wrong_with_the_file_is_said(folder: Path, text: str, what: str) -> None:
    (folder / "holdfast.toml").write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        store_url("stores.main")
    assert "holdfast.toml" in caught.value.where


def test_nothing_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backends.config.FILE", "no-such-file.toml")
    with pytest.raises(ConfigError, match="set HOLDFAST_STORE"):
        store_url()
    with pytest.raises(ConfigError, match="no such file was found"):
        store_url("stores.main")
