"""Previews of artifacts. Whatever their content is, it never has our origin: texts are escaped, images are only such
whose bytes are those of an image, and a document is in a frame of no origin."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from holdfast.errors import HoldfastError, NotFoundError
from holdfast.interfaces.http.models import Problem
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.download import SAFE_HEADERS
from holdfast.state.artifacts.records import Artifact

_MAX_TEXT = 64 << 10
_MAX_SHOWN = 8 << 20
"""Larger content is only downloaded."""

_ROWS, _COLUMNS = 100, 30
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""How images start. SVG is none of them: it is text, and is shown as such."""

FRAMES = "frame-src data:"
"""What the page of a document allows in addition: a frame of no origin, which has it."""


class Preview(NamedTuple):
    """What a page shows of the content of an artifact."""

    kind: str = ""
    """`text`, `json`, `table`, `image` or `document`; empty if it cannot be shown."""
    text: str = ""
    rows: Sequence[Sequence[str]] = ()
    source: str = ""
    complete: bool = True
    problem: Problem | None = None


class Image(NamedTuple):
    """An image, as it is sent."""

    data: bytes
    media: str

    def response(self) -> Response:
        """Return the response that sends it: it is no page, whatever it has."""
        return Response(self.data, headers={**SAFE_HEADERS, "content-disposition": "inline"}, media_type=self.media)


def image_type(data: bytes) -> str:
    """Return the type of an image by its first bytes; empty if it is none that is shown."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media for start, media in _IMAGES if data.startswith(start)), "")


def preview(call: Call, artifact: Artifact, address: str) -> Preview:
    """Return what can be shown of an artifact whose page has an address."""
    if not artifact.stored or artifact.size > _MAX_SHOWN:
        return Preview()
    try:
        data = call.store.artifacts.read(artifact.id)
    except HoldfastError as error:
        return Preview(problem=to_problem(error))
    if image_type(data):
        return Preview("image", source=f"{address}/image")
    if data.startswith(b"%PDF-"):
        return Preview("document", source="data:application/pdf;base64," + base64.b64encode(data).decode())
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Preview()
    if any(character < " " and character not in "\t\n\r\f\x1b" for character in text[:4096]):
        return Preview()
    complete = len(text) <= _MAX_TEXT
    if complete and text.lstrip()[:1] in ("{", "["):
        try:
            return Preview("json", json.dumps(json.loads(text), ensure_ascii=False, indent=2))
        except (ValueError, RecursionError):
            pass
    if artifact.name.lower().endswith((".csv", ".tsv")):
        return _table(text, "\t" if artifact.name.lower().endswith(".tsv") else ",")
    return Preview("text", text[:_MAX_TEXT], complete=complete)


def _table(text: str, delimiter: str) -> Preview:
    try:
        reader = csv.reader(io.StringIO(text[:_MAX_TEXT], newline=""), delimiter=delimiter)
        rows = [row for row, _ in zip(reader, range(_ROWS + 1), strict=False)]
    except csv.Error:
        return Preview("text", text[:_MAX_TEXT], complete=len(text) <= _MAX_TEXT)
    complete = len(text) <= _MAX_TEXT and len(rows) <= _ROWS and all(len(row) <= _COLUMNS for row in rows)
    if len(text) > _MAX_TEXT:
        rows = rows[:-1]  # the last may be cut
    return Preview("table", rows=[row[:_COLUMNS] for row in rows[:_ROWS]], complete=complete)


def read_image(call: Call, id: str) -> Image:
    """Return the content of an artifact that is an image. Raises `NotFoundError`."""
    data = call.store.artifacts.read(id)
    media = image_type(data)
    if not media:
        raise NotFoundError("this is no image that pages show", hint="Download it")
    return Image(data, media)
