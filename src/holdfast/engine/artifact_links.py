"""Links between changes and artifacts: rows that are stored with the change, and found from either end.

The line of the artifacts has one for each change made with an artifact, in order of time; the line of the scope has one
for each artifact that a version of a key was made with, and that of a thread one for each artifact of a checkpoint,
whose id is in place of the key.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Put, Row
from holdfast.backends.tables import LINKS
from holdfast.engine.model.scopes import MARK, Scope, parse_place, place_of_line
from holdfast.engine.row_format import Line

LINE = MARK + "artifacts"
"""The name of the system line that holds the records of artifacts."""

CHANGE, ARTIFACT = "change", "artifact"
"""Kinds of links: from an artifact to changes made with it, and from a key to artifacts."""

_DIGITS = 16


class LinkRow(NamedTuple):
    """The content of a link: a change of a key, and an artifact that it was made with."""

    artifact: str
    scope: Scope
    key: str
    version: int
    id: str
    """The id of the step of the change."""
    time: int


def link_rows(
    line: Line, id: str, version: int, time: int, keys: Iterable[str], artifacts: Iterable[str]
) -> list[Change]:
    """Return the rows that link a step of a line, and the keys that it changes, with artifacts."""
    book, scope = (line.tenant, LINE), place_of_line(line.name)
    made: list[Change] = []
    for artifact in artifacts:
        for place, key in enumerate(keys):
            number = f"{version:0{_DIGITS}d}"
            made += [
                Put(LINKS, Row((*line, ARTIFACT, key, f"{number} {artifact}"), (time, id))),
                Put(
                    LINKS,
                    Row((*book, CHANGE, artifact, f"{id} {place:06d}"), (time, f"{number} {len(scope)} {scope}{key}")),
                ),
            ]
    return made


def parse_change_link(row: Row) -> LinkRow:
    """Parse a link that was found from an artifact."""
    number, length, rest = str(row.columns[1]).split(" ", 2)
    scope, key = rest[: int(length)], rest[int(length) :]
    id = str(row.key[4]).rpartition(" ")[0]
    return LinkRow(str(row.key[3]), parse_place(scope), key, int(number), id, int(row.columns[0]))


def parse_key_link(scope: Scope, row: Row) -> LinkRow:
    """Parse a link that was found from a key."""
    number, artifact = str(row.key[4]).split(" ", 1)
    return LinkRow(artifact, scope, str(row.key[3]), int(number), str(row.columns[1]), int(row.columns[0]))


def version_prefix(version: int) -> str:
    """Return the text that the links of a version start with."""
    return f"{version:0{_DIGITS}d}"
