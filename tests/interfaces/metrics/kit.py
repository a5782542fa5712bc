"""A parser of Prometheus' text format, as strict as the format is; `promtool` confirms it in `make nightly`."""

from __future__ import annotations

import re

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_LINE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> Values:
    """Parse a text. A family has one head, all its series follow it, and none is there twice."""
    found: Values = {}
    families: list[str] = []
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            families.append(line.split(" ")[2])
            continue
        if line.startswith("# TYPE "):
            assert line.split(" ")[2] == families[-1]
            continue
        matched = _LINE.fullmatch(line)
        assert matched, line
        name, labels, number = matched.groups()
        assert re.fullmatch(f"{families[-1]}(_bucket|_sum|_count)?", name), line
        key = (name, tuple(sorted(_labels(labels or ""))))
        assert key not in found, line
        found[key] = float(number)
    assert len(families) == len(set(families))
    return found


def _labels(text: str) -> list[tuple[str, str]]:
    found, start = [], 0
    while start < len(text):
        matched = _LABEL.match(text, start)
        assert matched, text
        found.append((matched[1], re.sub(r'\\["\\n]', lambda each: _ESCAPES[each[0]], matched[2])))
        start = matched.end()
    return found


def value(found: Values, name: str, **labels: str) -> float:
    """Return the sum of the series of a name that have these labels."""
    wanted = labels.items()
    return sum(each for (known, given), each in found.items() if known == f"holdfast_{name}" and wanted <= set(given))
