"""`holdfast schema`: a build fails on a breaking change that is not declared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.cli import kit
from tests.support.cases import case

HEAD = """
from typing import NotRequired, TypedDict
from holdfast.schemas import Migration, Schema, SchemaSet, add, convert, remove, rename

"""
FIRST = """
class Chat(TypedDict):
    messages: list[str]
    count: int

schemas = SchemaSet(Schema("chat", "1.0.0", Chat))
"""
numbers = count()


class Project:
    """A project with a module of schemas, which is imported anew whenever it changes."""

    def __init__(self, folder: Path, hf: Callable[..., kit.Result]) -> None:
        self.folder = folder
        self.hf = hf
        self.lock = folder / "holdfast-schemas.lock"

    def write(self, text: str) -> None:
        name = f"cli_schemas_{next(numbers)}"
        (self.folder / f"{name}.py").write_text(HEAD + text)
        (self.folder / "holdfast.toml").write_text(f'[schemas]\nmodule = "{name}"\n')

    def check(self) -> list[dict[str, Any]]:
        result = self.hf("schema", "check", "--json")
        assert result.code == (6 if result.records else 0), result.err
        return result.records


@pytest.fixture
def project(tmp_path: Path, hf: Callable[..., kit.Result], monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Project(tmp_path, hf)


def test_what_is_locked_is_as_it_was(project: Project) -> None:
    project.write(FIRST)
    assert [each["code"] for each in project.check()] == ["not-locked"]
    assert project.hf("schema", "lock").code == 0
    assert project.check() == []
    before = project.lock.read_text()
    project.write(FIRST.replace("messages: list[str]\n    count: int", "count: int\n    messages: list[str]"))
    assert project.check() == []
    assert project.hf("schema", "lock").code == 0
    assert json.loads(project.lock.read_text())["schemas"].keys() == json.loads(before)["schemas"].keys()


def test_an_undeclared_change_fails_the_build(project: Project) -> None:
    project.write(FIRST)
    project.hf("schema", "lock")
    project.write(FIRST.replace("count: int", "count: str"))
    (finding,) = project.check()
    assert finding["code"] == "schema-changed"
    assert "count: int became str" in finding["message"]
    assert "Give it version 2.0.0, with a migration" in finding["hint"]
    refused = project.hf("schema", "lock")
    assert (refused.code, "schema-changed" in refused.err) == (4, True)
    project.write(FIRST.replace("count: int", "count: int\n    more: NotRequired[int]"))
    assert "Give it version 1.1.0, which needs no migration" in project.check()[0]["hint"]


def test_a_new_version_needs_a_migration_and_its_number(project: Project) -> None:
    project.write(FIRST)
    project.hf("schema", "lock")
    second = FIRST.replace("count: int", "count: str").replace("1.0.0", "2.0.0")
    project.write(second)
    findings = {each["code"]: each for each in project.check()}
    assert findings.keys() == {"not-locked", "migration-missing"}
    assert 'convert("count"' in findings["migration-missing"]["hint"]
    declared = second.replace(
        '"2.0.0", Chat)', '"2.0.0", Chat), Migration("chat", "1.0.0", "2.0.0", convert("count", str, int))'
    )
    project.write(declared)
    assert {each["code"] for each in project.check()} == {"not-locked"}
    project.write(declared.replace("2.0.0", "1.1.0"))
    assert {each["code"] for each in project.check()} == {"not-locked", "schema-changed"}
    project.write(declared)
    assert project.hf("schema", "lock").code == 0
    assert project.check() == []
    project.write(declared.replace("str, int)", "repr, int)"))
    assert [each["code"] for each in project.check()] == ["migration-edited"]


def test_show_diff_and_docs(project: Project) -> None:
    project.write(FIRST)
    project.hf("schema", "lock")
    project.write(
        FIRST.replace("count: int", "total: int").replace(
            '"1.0.0", Chat)', '"2.0.0", Chat), Migration("chat", "1.0.0", "2.0.0", rename("count", "total"))'
        )
    )
    listed = project.hf("schema", "show")
    assert [line.split()[:2] for line in listed.lines[1:]] == [["chat", "1.0.0"], ["chat", "2.0.0"]]
    assert "total" in project.hf("schema", "show", "chat").out
    assert "count" in project.hf("schema", "show", "chat@1").out
    assert project.hf("schema", "show", "chat@1.5").code == 3
    compared = project.hf("schema", "diff", "chat@1").out
    assert "breaking" in compared
    assert "migrations: 1.0.0 -> 2.0.0" in compared
    page = project.hf("schema", "docs").out
    for part in ("# Schemas", "## chat", "| total | int | yes |", "| 1.0.0 -> 2.0.0 | rename count, total |"):
        assert part in page
    assert project.hf("schema", "docs", "--format", "html", "-o", "page.html").code == 0
    assert "<td>rename count, total</td>" in (project.folder / "page.html").read_text()


def test_settings_that_are_wrong_are_reported(project: Project) -> None:
    missing = project.hf("schema", "check")
    assert (missing.code, "no module of schemas is named" in missing.err) == (1, True)
    (project.folder / "holdfast.toml").write_text('[schemas]\nmodule = "no_such_module"\n')
    assert "cannot be imported" in project.hf("schema", "check").err
    (project.folder / "empty_schemas.py").write_text("")
    assert "declares no schemas" in project.hf("schema", "check", "--module", "empty_schemas").err
    (project.folder / "holdfast.toml").write_text('[schemas]\nmodul = "x"\n')
    assert "has the keys module and lock" in project.hf("schema", "check").err


BROKEN = {
    "x = (": "raises SyntaxError",
    "import no_such_package_at_all": "raises ModuleNotFoundError",
    "from holdfast.schemas import nothing_like_this": "raises ImportError",
    "1 / 0": "raises ZeroDivisionError",
    "import sys; sys.exit(0)": "raises SystemExit",
    "rename('a', 'a')": "a field is renamed to another name",
}


def test_an_error_in_the_module_is_reported_with_its_line(project: Project, subtests: pytest.Subtests) -> None:
    for text, what in BROKEN.items():
        for arguments in (("schema", "check"), ("migrate", "test")):
            with case(subtests, text, *arguments):
                project.write(text)
                result = project.hf(*arguments, "--json")
                error = json.loads(result.err.splitlines()[-1])["error"]
                assert result.code in (1, 2)
                assert error["code"] in ("config", "invalid")
                assert what in error["message"]
                assert ".py:5" in error["where"]
    odd = project.hf("schema", "check", "--module", ".relative", "--json")
    assert json.loads(odd.err.splitlines()[-1])["error"]["code"] == "config"


def test_a_damaged_lock_file_is_refused(project: Project, subtests: pytest.Subtests) -> None:
    project.write(FIRST)
    project.hf("schema", "lock")
    whole = project.lock.read_text()
    for text, what in (
        ("{", "damaged"),
        ("[]", "damaged"),
        (whole.replace('"int"', '"str"'), "differs from its definition"),
        (whole.replace('"format": 1', '"format": 9'), "format 9"),
    ):
        with subtests.test(what=what, text=text[:10]):
            project.lock.write_text(text)
            result = project.hf("schema", "check")
            assert (result.code, what in result.err) == (1, True), result.err
