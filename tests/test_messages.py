"""The list of messages has those of errors, hints and explanations."""

from __future__ import annotations

from pathlib import Path

from tools.messages import SOURCE, Message, messages


def test_the_messages_of_a_package_are_listed(tmp_path: Path) -> None:
    source = tmp_path / "holdfast"
    source.mkdir()
    (source / "a.py").write_text(
        "def check(value):\n"
        "    raise InvalidError(f'expected a list, got {type(value).__name__}', hint='Pass a list')\n"
        "log.warning('the store is slow')\n"
        "print('this is none')\n"
        "raise KeyError('word')\n"
    )
    (source / "codes.toml").write_text('[late]\nmeaning = "It came too late."\ncauses = ["The disk is slow."]\n')
    assert list(messages(source)) == [
        Message("holdfast/a.py:3", "the store is slow"),
        Message("holdfast/a.py:2", "expected a list, got {type(value).__name__}"),
        Message("holdfast/a.py:2", "Pass a list"),
        Message("holdfast/codes.toml:late", "It came too late."),
        Message("holdfast/codes.toml:late", "The disk is slow."),
    ]


def test_those_of_the_library_are_listed() -> None:
    found = list(messages(SOURCE / "engine"))
    assert len(found) > 200
    assert any(each.text == "the value at this path is not a list" for each in found)
