"""Views of records: a field that a record gets is in every interface."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest

from holdfast._fields import Bytes, Hidden, Internal, Label, Local, computed, sent_as_text
from holdfast._views import columns_of, fields_of, html_listing, is_record, plain

ADDED = '    colour: str = "teal"\n    """The colour that a test added."""\n'

SCRIPT = """
import importlib.abc, importlib.machinery, json, linecache, sys

MODULE, CLASS, ADDED, URL = sys.argv[1:5]


class Loader(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        data = super().get_data(path)
        if not path.endswith("types.py"):
            return data
        text = data.decode()
        start = text.index(f"class {CLASS}(")
        end = text.index("    @property", start)
        text = text[:end] + ADDED + text[end:]
        linecache.cache[path] = (len(text), None, text.splitlines(True), path)  # for the docstring of the field
        return text.encode()

    def path_stats(self, path):
        raise OSError  # so that no byte code is read or written


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        found.loader = Loader(name, found.origin)
        return found


sys.meta_path.insert(0, Finder())

import contextlib, io
import holdfast
from holdfast.interfaces.cli.main import main
from holdfast.interfaces.http.openapi import encode_body
from holdfast.interfaces.http.openapi import openapi_document
from holdfast.interfaces.http.app import ROUTES
from holdfast.interfaces.web.page_renderer import render
from holdfast.engine.pages import Page
from holdfast.engine.types import ThreadInfo


def output(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([*words, "--store", URL])
    return out.getvalue()


with holdfast.open(URL) as store:
    store.thread("chat").put({"n": 1})
    threads = store.threads()
    found = {
        "notebook": threads._repr_html_(),
        "http": encode_body(threads, Page[ThreadInfo]).decode(),
        "web": render("parts/thread_table.html", items=threads),
    }
found |= {"table": output("threads"), "json": output("threads", "--json")}
found["openapi"] = openapi_document(ROUTES)["components"]["schemas"]["ThreadInfo"]["properties"]["colour"]
print(json.dumps(found))
"""


class Coin(NamedTuple):
    """A coin."""

    name: Annotated[str, Label("coin")]
    weight: Bytes
    mint: Hidden[str] = "Segovia"
    box: Local[str] = "left"
    maker: Internal[str] = "nobody"
    struck: datetime = datetime(1733, 1, 2, tzinfo=UTC)

    @property
    @computed
    def heavy(self) -> bool:
        """Whether it is heavy."""
        return self.weight > 1000


@sent_as_text
class Place(NamedTuple):
    """A place, which is written as text."""

    street: str

    def __str__(self) -> str:
        return f"in {self.street}"


def test_fields_are_as_they_are_declared() -> None:
    found = {each.name: each for each in fields_of(Coin)}
    assert list(found) == ["name", "weight", "mint", "box", "struck", "heavy"]
    assert [name for name, each in found.items() if not each.shown] == ["mint"]
    assert [name for name, each in found.items() if not each.sent] == ["box"]
    assert (found["name"].label, found["weight"].label) == ("coin", "weight")
    assert [name for name, each in found.items() if each.has(int)] == ["weight"]


def test_a_table_has_what_is_declared_and_what_an_interface_adds() -> None:
    coin = Coin("real", 27_000)
    extra = {"box": lambda coin: coin.box.upper(), "worth": lambda _: "8"}
    columns = columns_of(coin, lambda time: str(time.year), extra, first=("struck",), hidden=("heavy",))
    assert [each.label for each in columns] == ["struck", "coin", "weight", "box", "worth"]
    assert [each.text(coin) for each in columns] == ["1733", "real", "27.0 kB", "LEFT", "8"]
    assert [each.label for each in columns_of({"a_b": 1}, str)] == ["a b"]


def test_a_notebook_leaves_out_what_is_empty() -> None:
    html = html_listing([Coin("real", 1, mint=""), Coin("<b>", 2, mint="")])
    assert "<th>coin</th>" in html
    assert "<td>&lt;b&gt;</td>" in html
    assert "<th>mint</th>" not in html
    assert "<th>mint</th>" in html_listing([Coin("real", 1)])


def test_what_is_text_is_no_record() -> None:
    assert is_record(Coin)
    assert not is_record(Place)
    assert plain([Place("Toledo")]) == ["in Toledo"]


@pytest.mark.time_limit(120)
def test_a_field_that_a_record_gets_is_everywhere(tmp_path: Path) -> None:
    arguments = ["holdfast.engine.types", "ThreadInfo", ADDED, f"sqlite:///{tmp_path}/a.db"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "<th>colour</th>" in found["notebook"]
    assert "COLOUR" in found["table"]
    assert json.loads(found["json"])["colour"] == "teal"
    assert json.loads(found["http"])["items"][0]["colour"] == "teal"
    assert ">Colour</th>" in found["web"]
    assert found["openapi"] == {"type": "string", "description": "The colour that a test added."}
    for name in ("notebook", "table", "web"):
        assert "teal" in found[name], name
