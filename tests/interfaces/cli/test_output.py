"""Where output goes and how it looks, with a terminal that is none."""

from __future__ import annotations

import io
import json
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import click
import pytest

from holdfast._views import encode
from holdfast.codec import default_codec
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, EditText, KeepRun, Set
from holdfast.engine.model.steps import Step, StepHeader
from holdfast.engine.types import Checkpoint
from holdfast.history.step_summary import changed_channels, summarize
from holdfast.interfaces.cli import meta, output
from holdfast.interfaces.cli.base import CliContext
from holdfast.interfaces.cli.formatting import width
from holdfast.interfaces.cli.main import cli
from holdfast.interfaces.cli.output import Output, wants_color


class Screen(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def look(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal of 40 columns, for stdout, stderr and stdin."""
    found = Screen()
    for name in ("stdout", "stderr", "stdin"):
        monkeypatch.setattr(sys, name, found)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    return found


def test_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = look(monkeypatch)
    assert Output().style("a", "red", "bold") == "\x1b[31;1ma\x1b[0m"
    assert Output().style("", "red") == ""
    assert Output("never").style("a", "red") == "a"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color("auto", screen)
    assert wants_color("always", io.StringIO())


def test_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    look(monkeypatch)
    assert Output().columns == 40
    monkeypatch.delenv("COLUMNS")
    assert Output().columns == 80
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert Output().columns is None


def test_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = look(monkeypatch)
    out = Output("never", pager=False)
    rows = [("x" * 60, "12", "a moment ago"), ("short", "3", "y" * 50)]
    widths = out.table(("NAME", "N", "WHEN"), rows, right=("N",))
    out.table(("NAME", "N", "WHEN"), [("later", "4", "now")], right=("N",), widths=widths)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 4
    assert max(map(width, lines)) <= 40
    assert lines[0].split() == ["NAME", "N", "WHEN"]
    assert "…" in lines[1]
    colored = Output("always", pager=False)
    colored.table(("NAME", "STATE"), [("a", "failed")])
    assert "\x1b[33ma" in screen.getvalue()
    assert "\x1b[31mfailed" in screen.getvalue()


def test_what_is_paged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen = look(monkeypatch)
    monkeypatch.setenv("PAGER", f"tee {tmp_path}/paged")
    session = CliContext()
    session.out.page()
    session.out.page()
    assert session.paging
    session.out.line("hello")
    session.close()
    assert (tmp_path / "paged").read_text() == "hello\n"
    assert screen.getvalue() == ""
    session.out.line("after")
    assert screen.getvalue() == "after\n"


@pytest.mark.parametrize(
    ("env", "paged"),
    [
        ({}, True),
        ({"PAGER": "more"}, True),
        ({"PAGER": "cat"}, False),
        ({"PAGER": "more", "HOLDFAST_PAGER": ""}, False),
    ],
)
def test_whether_a_pager_is_used(env: dict[str, str], paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    look(monkeypatch)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(click, "get_pager_file", lambda _: nullcontext(io.StringIO()))
    out = Output()
    out.page()
    assert out.paging is paged
    out.close()


def test_without_a_pager_output_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = look(monkeypatch)
    monkeypatch.setenv("PAGER", "")
    session = CliContext()
    session.out.page()
    session.out.line("hello")
    session.close()
    assert screen.getvalue() == "hello\n"


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = look(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(output, "_BARS_EVERY", 0.0)
    session = CliContext()
    with session.progress("Trying") as progress:
        progress(1, 4, "a thing")
        progress(3, None, "things")
    assert "Trying  [######-" in screen.getvalue()
    assert "\rTrying: 3 things\x1b[K" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K\x1b[?25h")


def test_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with CliContext().progress("Trying") as progress:
        progress(1, 4, "a thing")
    assert capsys.readouterr().err == ""  # short work
    monkeypatch.setattr(output, "_LINES_EVERY", 0.0)
    with CliContext().progress("Trying") as progress:
        progress(1, 4, "a thing")
        progress(2000, None, "things")
    assert capsys.readouterr().err == "Trying: 1 of 4 a thing\nTrying: 2,000 things\n"


def test_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = look(monkeypatch)
    session = CliContext()
    session.out.line("before")
    answers = iter([True, False])
    monkeypatch.setattr(click, "confirm", lambda _, err: next(answers))
    session.confirm("Really?", yes=False)
    with pytest.raises(click.exceptions.Exit):
        session.confirm("Really?", yes=False)
    assert "Nothing was changed." in screen.getvalue()
    session.warn("careful")
    assert "\x1b[1;33mwarning:\x1b[0m careful" in screen.getvalue()


def test_another_store_is_opened_too(url: str) -> None:
    session = CliContext()
    assert session.open_other(url).thread("t1").info().steps == 8
    session.close()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("holdfast log t", ["t1", "t2"]),
        ("holdfast log t1 --branch o", ["other"]),
        ("holdfast show t1 go", ["good"]),
        ("holdfast show t1 c5", ["c5"]),
        ("holdfast log nope --branch ", []),
    ],
)
def test_completions(
    line: str, found: list[str], url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_LINE", line)
    monkeypatch.setenv("HOLDFAST_STORE", url)
    assert meta.complete(cli, "bash_complete") == 0
    assert [line.removeprefix("plain,") for line in capsys.readouterr().out.split()] == found


def test_what_a_step_changed_in_words() -> None:
    def named(name: str) -> bytes:
        return default_codec.pack(name)

    edit = EditMap(
        (named("draft"),),
        (
            (
                named("messages"),
                EditList((KeepRun(0, 2), ChangeItem(3, Set(named("x"))), KeepRun(5, 1), (named("a"), named("b")))),
            ),
            (named("plan"), EditMap((named("k"),), ((named("a"), Set(named("b"))),))),
            (named("text"), EditText((b"new",))),
            (named("list"), Set(default_codec.pack([1, 2, 3]))),
            (named("map"), Set(default_codec.pack({"a": 1}))),
            (named("long"), Set(default_codec.pack("x" * 100))),
            (named("word"), Set(default_codec.pack("hi"))),
        ),
    )
    assert summarize(Step(StepHeader("c"), edit)) == [
        "messages +2 ~1 -2",
        "plan ~1 -1",
        "text",
        "list[3]",
        "map{1}",
        "long",
        'word="hi"',
        "-draft",
    ]
    assert changed_channels(Step(StepHeader("c"), EditMap((b"\xc1",), ()))) == ["c1"]


def test_records_of_all_kinds() -> None:
    class Color(Enum):
        RED = "red"

    made = datetime(2026, 11, 15, 12, tzinfo=UTC)
    checkpoint = Checkpoint("t", "c", None, 0, 0, made, "save", "00", {"a": (1, 2)})
    record = {"color": Color.RED, "path": Path("a/b"), "made": made, "one": checkpoint, "x": KeepRun(1, 2)}
    found = json.loads(encode(record))
    assert found["color"] == "red"
    assert found["path"] == "a/b"
    assert found["made"] == "2026-11-15T12:00:00Z"
    assert found["one"]["metadata"] == {"a": [1, 2]}
    assert found["x"] == {"start": 1, "length": 2}
    assert encode("\x9b\u2028") == '"\\u009b\\u2028"'
