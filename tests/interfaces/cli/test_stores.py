"""Stores that cannot be read, or only be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.config import to_url
from holdfast.backends.urls import url_to_path
from tests.interfaces.cli import kit
from tests.interfaces.cli.conftest import fill
from tests.support.nightly import mostly_nightly

PATHS: list[tuple[str, str]] = [
    ("agents.db", "sqlite:///agents.db"),
    ("./agents.db", "sqlite:///agents.db"),
    ("/var/lib/agents.db", "sqlite:////var/lib/agents.db"),
    ("a b?.db", "sqlite:///a%20b%3F.db"),
    ("dir/", "file:dir"),
    ("/var/lib/a b/", "file:///var/lib/a%20b"),
    ("postgresql://db/agents", "postgresql://db/agents"),
    ("memory://", "memory://"),
]


def test_paths_as_urls(subtests: pytest.Subtests) -> None:
    for text, url in PATHS:
        with subtests.test(text=text):
            assert to_url(text) == url


def test_urls_as_paths() -> None:
    assert url_to_path("sqlite:///a%20b.db?busy_timeout=3") == Path("a b.db")
    assert url_to_path("file:///var/lib/x") == url_to_path("file:////var/lib/x") == Path("/var/lib/x")
    assert url_to_path("file://localhost/x%20y") == Path("/x y")
    assert url_to_path("file:dir/x?grace=30") == Path("dir/x")
    assert [url_to_path(f"file:{rest}") for rest in ("", "//", "///", "//host/x")] == [None] * 4
    assert url_to_path("postgresql:///x") is None


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to look like one " * 20)
    found = kit.run("threads", store="text.db")
    assert (found.code, found.out) == (1, "")
    assert "the file is a text file, not a store" in found.err


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"root:x:0:0:root:/root:/bin/bash\n" * 40, "a text file"),
        (b"one line", "a text file"),
        ("Größe: 日本語\n".encode() * 99, "a text file"),
        (b"\x1f\x8b" + bytes(600), "a gzip archive"),
        (b"PK\x03\x04" + bytes(600), "a zip archive"),
    ],
)
def test_a_file_that_was_never_a_store_is_not_called_damaged(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "file").write_bytes(content)
    for words in (("status",), ("state", "set", "agent:a", "x", "1", "--create")):
        found = kit.run(*words, store=f"sqlite:///{tmp_path}/file")
        assert found.code == 1
        assert f"error[config]: the file is {kind}, not a store" in found.err
        assert "repair" not in found.err
    assert (tmp_path / "file").read_bytes() == content
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4)
    assert kit.run("status", store=f"sqlite:///{tmp_path}/file").code == 5, "the control: this may have been one"


def test_what_is_another_applications_database(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    found = kit.run("threads", store="other.db")
    assert found.code == 1
    assert "another application" in found.err


def test_init_makes_a_store_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kit.run("init").out.startswith(f"Created the store sqlite:///{tmp_path}/agents.db, and holdfast.toml")
    below = tmp_path / "src"
    below.mkdir()
    monkeypatch.chdir(below)
    with holdfast.open() as store:  # the same store, from anywhere below
        store.thread("t1").put({"a": 1})
    assert kit.run("threads", "--names").lines == ["t1"]
    monkeypatch.chdir(tmp_path)
    again = kit.run("init", "other.db")
    assert (again.code, "there is a holdfast.toml already" in again.err) == (2, True)
    assert not (tmp_path / "other.db").exists()
    monkeypatch.chdir(below)
    monkeypatch.setenv("PASSWORD", "sesame")
    refused = kit.run("init", "postgresql://agents:sesame@127.0.0.1:1/agents")
    assert (refused.code, "sesame" in refused.err, "${PASSWORD}" in refused.err) == (2, False, True)
    nowhere = kit.run("init", "postgresql://agents:${PASSWORD}@127.0.0.1:1/agents?connect_timeout=1")
    assert (nowhere.code, "sesame" in nowhere.err) == (1, False)
    assert list(below.iterdir()) == [], "without the store there is no file"
    made = kit.run("init", "--json").records
    assert made == [{"store": f"sqlite:///{below}/agents.db", "file": f"{below}/holdfast.toml"}]


def test_an_empty_file_is_no_store_and_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    assert kit.run("threads", store="empty.db").code == 10
    assert (tmp_path / "empty.db").stat().st_size == 0
    (tmp_path / "folder").mkdir()
    assert kit.run("threads", store="./folder").code == 10
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_damaged_database(url: str, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    data = bytearray(path.read_bytes())
    for place in range(4096, len(data), 512):
        data[place] ^= 0xFF
    path.write_bytes(data)
    for arguments in (("threads",), ("log", "t1"), ("show", "t1"), ("status",)):
        found = kit.run(*arguments, store=url)
        assert found.code == 5, arguments
        assert "error[corrupt]" in found.err
    assert path.read_bytes() == data


def test_looking_leaves_no_trace(url: str, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (("threads",), ("log", "t1", "--all"), ("show", "t1"), ("status",), ("log", "nope")):
        kit.run(*arguments, store=url)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_looking_while_others_write(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("t1").put({"count": 6}, id="c6")
        assert kit.run("log", "t1", "-1", "--oneline", store=url).out.startswith("#6 c6 (HEAD -> main)")
        store.thread("t1").put({"count": 7}, id="c7")
    with holdfast.open(url) as store:
        assert store.thread("t1").get().id == "c7"


# A user who may read, or not even that ----------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody gets to."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-cli-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# Once as root, so that all modules are loaded: another user need not get to this Python's files.
_AS_NOBODY = """
import contextlib, io, os, sys
from holdfast.interfaces.cli.main import main

with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main(sys.argv[1:])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


def as_nobody(*arguments: str) -> kit.Result:
    """Run a command as a user who owns nothing."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else, and nobody hinders root")
    words = [sys.executable, "-c", _AS_NOBODY, *arguments]
    done = subprocess.run(words, env=kit.environment(), capture_output=True, text=True, check=False)
    return kit.Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("scheme", mostly_nightly(["sqlite", "file"], daily=["sqlite"]))
def test_a_store_that_may_only_be_read(place: Path, scheme: str) -> None:
    url = f"{scheme}:///{place}/store"
    with holdfast.open(url, file_mode=0o644) as store:
        fill(store)
    before = sorted(path for path in place.rglob("*"))
    found = as_nobody("log", "t1", "--oneline", "--store", url)
    assert (found.code, found.err) == (0, "")
    assert len(found.lines) == 6
    assert as_nobody("show", "t1", "c3", "--store", url).code == 0
    assert as_nobody("threads", "--store", url).code == 0
    assert as_nobody("status", "--store", url).code == 0
    assert sorted(path for path in place.rglob("*")) == before


def test_a_store_that_may_only_be_read_while_its_owner_writes(place: Path) -> None:
    url = f"sqlite:///{place}/store"
    with holdfast.open(url, file_mode=0o644) as store:
        fill(store)
        store.thread("t1").put({"count": 6}, id="c6")
        found = as_nobody("log", "t1", "-1", "--oneline", "--store", url)
        assert (found.code, found.err) == (0, "")
        assert found.out.startswith("#6 c6 ")


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_store_that_may_not_be_read(place: Path, scheme: str) -> None:
    url = f"{scheme}:///{place}/store"
    with holdfast.open(url) as store:
        fill(store)
    (place / "store").chmod(0)
    found = as_nobody("threads", "--store", url)
    assert found.code in (1, 10)
    assert found.out == ""
    assert found.err.startswith("error[")
    assert "Traceback" not in found.err
