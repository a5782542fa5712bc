"""URL schemes: which backend serves them, and how others plug in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.registry import backend_for, schemes
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import ConfigError

PLUGIN = """
from holdfast.backends.memory import MemoryBackend

class Elsewhere(MemoryBackend):
    schemes = ("elsewhere",)

    @classmethod
    async def open(cls, url, **options):
        return cls()

class NoBackend:
    pass
"""

ENTRIES = """[holdfast.backends]
elsewhere = plugged_in_elsewhere:Elsewhere
wrong = plugged_in_elsewhere:NoBackend
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package, as installed, that brings a backend."""
    (tmp_path / "plugged_in_elsewhere.py").write_text(PLUGIN)
    about = tmp_path / "plugged_in_elsewhere-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-in-elsewhere\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_what_comes_with_the_package() -> None:
    assert backend_for("memory://") is MemoryBackend
    assert backend_for("sqlite:///x.db") is SQLiteBackend
    assert {"memory", "sqlite"} <= set(schemes())


@pytest.mark.usefixtures("plugin")
def test_another_package_brings_a_backend() -> None:
    assert "elsewhere" in schemes()
    with holdfast.open("elsewhere://somewhere") as store:
        store.thread("t").put({"n": 1})
        assert store.thread("t").get().state == {"n": 1}


@pytest.mark.usefixtures("plugin")
def test_a_plug_in_that_is_no_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="plugged_in_elsewhere:NoBackend for wrong: is not a holdfast backend"):
        backend_for("wrong://x")


def test_an_unknown_scheme_says_which_are_known() -> None:
    with pytest.raises(ConfigError, match=r"no backend supports cassandra: URLs.*There are az, .*memory, .*sqlite"):
        backend_for("cassandra://host/x")
    with pytest.raises(ConfigError, match="has no scheme .at agents.db.. Try sqlite:///agents.db"):
        backend_for("agents.db")


@pytest.mark.parametrize(
    ("url", "similar"),
    [
        ("behind:?local=a.db&remote=b.db", "write-behind"),
        ("tiers:?hot=a.db&cold=b.db", "tiered"),
        ("read-only:?store=a.db", "readonly"),
        ("postgress://db/agents", "postgres"),
    ],
)
def test_a_misspelt_scheme_is_suggested(url: str, similar: str) -> None:
    with pytest.raises(ConfigError, match=rf"Did you mean {similar}\?"):
        backend_for(url)


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("psycopg", "pymongo", "redis", "obstore")))
import holdfast
from holdfast.backends.registry import backend_for
from holdfast import snapshots

def told(use):
    try:
        use()
    except holdfast.errors.ConfigError as error:
        print(error.code, error)

for scheme in ("postgresql", "mongodb", "mongodb+srv", "redis", "valkeys", "s3", "gs", "az"):
    told(lambda: holdfast.open(f"{scheme}://host/x"))
def set_up():
    from holdfast.backends.postgres import setup
told(set_up)
told(lambda: holdfast.open("cache:?store=memory:&in=redis://host"))
told(lambda: snapshots.info("s3://bucket/a.hfsnap"))
"""


def test_a_missing_extra_says_which_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=True)
    drivers = {"postgres": "psycopg", "mongodb": "pymongo", "redis": "redis", "objects": "obstore"}
    extras = ["postgres", *["mongodb"] * 2, *["redis"] * 2, *["objects"] * 3, "postgres", "redis", "objects"]
    assert [line.replace("bson", "pymongo") for line in done.stdout.splitlines()] == [
        f"not-installed this needs {drivers[extra]}, which is not installed. "
        f'Install it, in a clone of Holdfast, with: pip install ".[{extra}]"'
        for extra in extras
    ]
