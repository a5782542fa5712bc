"""Stored bytes are read by the one reader: the plugin of mypy reports whoever takes them apart otherwise."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from mypy import api

from tools import stored_bytes

ROOT = Path(__file__).parents[1]
PLUGIN = "tools/stored_bytes.py"

REFUSED = "holdfast.codec.planted"
ALLOWED = (*stored_bytes.READERS, "holdfast.testing.planted", "elsewhere.planted")
MESSAGES = {
    "an index of bytes": "index",
    "ByteReader.number": "number",
    "ByteReader.fields": "fields",
    "ByteReader.packed": "packed",
}

# The lines that are to be reported say so.
PLANTED = """
import struct
from typing import Any
import msgspec
from msgspec.msgpack import Decoder, decode

FORM = struct.Struct(">H")
PLACE = slice(1, 2)

def read(data: bytes, view: memoryview, array: bytearray, either: bytes | memoryview, at: int) -> list[Any]:
    return [
        data[0],  # index
        data[-at],  # index
        view[at],  # index
        array[at],  # index
        either[0],  # index
        int.from_bytes(data, "big"),  # number
        list(map(int.from_bytes, [data])),  # number
        FORM.unpack(data),  # fields
        FORM.unpack_from(data, at),  # fields
        struct.unpack(">H", data),  # fields
        struct.iter_unpack(">H", data),  # fields
        decode(data),  # packed
        msgspec.msgpack.decode(data, type=int),  # packed
        Decoder(int),  # packed
        data[1:2], view[:at], array[at:], data[PLACE], data.decode(), FORM.pack(1), [at][0], "text"[0], {0: at}[0],
    ]
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, int, str]]:
    """Return what the plugin says of the planted lines, in several modules: module, line and what is wrong."""
    folder = tmp_path_factory.mktemp("planted")
    for module in (REFUSED, *ALLOWED):
        path = folder / Path(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PLANTED)
    (folder / "mypy.ini").write_text(f"[mypy]\nplugins = {ROOT / PLUGIN}\nmypy_path = {folder}\n")
    options = [f"--config-file={folder / 'mypy.ini'}", f"--cache-dir={folder / 'cache'}", "--explicit-package-bases"]
    said, errors, _ = api.run([*options, str(folder)])
    assert not errors
    found = set()
    for file, line, message in re.findall(r"(\S+)\.py:(\d+): error: (.*)", said):
        kind = next(kind for part, kind in MESSAGES.items() if part in message)
        found.add((".".join(Path(file).absolute().relative_to(folder).parts), int(line), kind))
    return found


@pytest.mark.nightly
def test_bytes_that_are_taken_apart_are_reported(reports: set[tuple[str, int, str]]) -> None:
    lines = enumerate(PLANTED.splitlines(), 1)
    expected = {(number, line.partition("  # ")[2]) for number, line in lines if "  # " in line}
    assert {(line, kind) for module, line, kind in reports if module == REFUSED} == expected


@pytest.mark.nightly
def test_the_readers_and_other_packages_may(reports: set[tuple[str, int, str]]) -> None:
    assert {module for module, _, _ in reports} == {REFUSED}


def test_the_type_checker_has_the_plugin() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert PLUGIN in settings["tool"]["mypy"]["plugins"]


def test_the_readers_exist() -> None:
    for module in stored_bytes.VALUE_DECODERS:
        path = ROOT / "src" / Path(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module
