"""Every code that a user can meet is explained, here and in the documentation."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.engine.integrity.findings import FindingCode
from holdfast.errors import FINER_CODES, HoldfastError, NotFoundError
from holdfast.interfaces.cli.exit_codes import EXIT_CODES, exit_code
from holdfast.maintenance.explain.explanations import explain, explanations
from tools import code_reference

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
CHECKS = {each.code for each in explanations().values() if each.kind == "check"}
KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")


def tree_of_errors(top: type[HoldfastError] = HoldfastError) -> Iterator[type[HoldfastError]]:
    yield top
    for each in top.__subclasses__():
        yield from tree_of_errors(each)


CLASSES = [each for each in dict.fromkeys(tree_of_errors()) if each.__module__.startswith("holdfast.")]


def codes_given(names: Collection[str], *packages: str) -> set[str]:
    """The constants that are given as one of these keywords, or as the first argument of one of these functions."""
    found = set()
    mentioned = re.compile(rf"\b({'|'.join(names)})\s*[=(]")  # parsing what has none of them takes seconds
    for path in (path for package in packages or ("",) for path in (SOURCE / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not mentioned.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            given = [each.value for each in node.keywords if each.arg in names]
            if isinstance(node.func, ast.Name) and node.func.id in names:
                given = node.args[:1]
            found |= {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


def test_every_class_of_errors_has_a_code_of_its_own_that_is_explained() -> None:
    own = [each for each in CLASSES if each.__module__ == "holdfast.errors"]
    assert len(own) == len({each.code for each in own}) == 28
    for each in CLASSES:
        assert KEBAB.fullmatch(each.code)
        assert explain(each.code).kind == "error"


def test_every_finer_code_is_known_explained_and_used() -> None:
    given = codes_given(["code"])
    assert given - {"internal"} <= FINER_CODES.keys() | {each.code for each in CLASSES}
    assert FINER_CODES.keys() <= given
    for code in FINER_CODES:
        assert explain(code).kind == "error"


def test_a_finer_code_ends_a_command_as_it_says(subtests: pytest.Subtests) -> None:
    for code in FINER_CODES:
        with subtests.test(code=code):
            error = FINER_CODES[code]("what", code=code)
            assert error.code == code
            assert exit_code(error) == explain(code).exit_code


def test_an_error_ends_a_command_as_its_explanation_says(subtests: pytest.Subtests) -> None:
    for error in CLASSES:
        with subtests.test(error=error):
            assert exit_code(error("what")) == explain(error.code).exit_code
            assert explain(error.code).exit_code in EXIT_CODES


def test_every_finding_is_explained() -> None:
    assert {each.code for each in explanations().values() if each.kind == "finding"} == set(FindingCode)


def test_every_check_of_the_doctor_is_explained() -> None:
    levels = ("ok", "note", "warning", "problem", "_failed", "_found")
    used = codes_given(levels, "maintenance/doctor", "store")
    assert used - CHECKS == {"store-check"}
    assert used >= CHECKS
    for code in used:
        assert explain(code).kind in ("check", "finding")


def test_no_code_means_two_things() -> None:
    folder = SOURCE / "maintenance" / "explain"
    known = [code for file in folder.glob("*.toml") for code in tomllib.loads(file.read_text(encoding="utf-8"))]
    assert len(known) == len(set(known)) == len(explanations())


def test_entries_have_no_other_keys() -> None:
    for file in (SOURCE / "maintenance" / "explain").glob("*.toml"):
        for entry in tomllib.loads(file.read_text(encoding="utf-8")).values():
            assert {"meaning", "remedy"} <= entry.keys() <= {"meaning", "remedy", "causes", "exit_code"}


def test_explanations_say_something() -> None:
    for each in explanations().values():
        assert KEBAB.fullmatch(each.code)
        for text in (each.meaning, each.remedy, *each.causes):
            assert len(text) > 10
            assert text.endswith(".")


def test_the_guide_has_the_tables_of_codes() -> None:
    page = code_reference.PAGE.read_text(encoding="utf-8")
    assert page == code_reference.reference(page), "run: python tools/code_reference.py"
    assert [code for code in explanations() if f"| `{code}` |" not in page] == []


def test_codes_are_found_however_they_are_written_and_near_ones_suggested() -> None:
    assert explain("Not_Found ").code == "not-found"
    with pytest.raises(NotFoundError) as caught:
        explain("nt-found")
    assert "Did you mean not-found" in caught.value.hint
    with pytest.raises(NotFoundError) as caught:
        explain("vacuum")
    assert "sqlite-vacuum" in caught.value.hint
    with pytest.raises(NotFoundError, match="no code 'zzzz'") as caught:
        explain("zzzz")
    assert "lists all" in caught.value.hint


def test_an_error_carries_its_code() -> None:
    assert errors.ConflictError("x").code == "conflict"
    assert errors.ConflictError("x", code="under-way").code == "under-way"
    assert errors.ConflictError.code == "conflict"
