"""Subjects: the person whose data a line contains, or a step of a line, by names and metadata.

A line has one subject, or is mixed. It is the subject's as a whole if it is assigned to them, or its tenant is; if its
name has a part `user:…`; or if it is a thread whose checkpoints name them in their metadata, and nobody else, and that
no other identity `user:…` wrote to. Of any other line, the steps are the subject's that name them in the metadata, or
that an identity `user:…` made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from unicodedata import normalize

from msgspec import MsgspecError
from msgspec.json import decode

from holdfast.engine.model.scopes import MARK, check_key, unquoted
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import ORIGIN, Line, StepRef
from holdfast.errors import InvalidError

METADATA_KEY = "subject"
"""The entry of a checkpoint's metadata that names its subject."""

MIXED = f"{MARK}mixed"
"""Stands in place of a subject if a line is marked as mixed."""

_USER, _BY = "user:", "by:"


def check_subject(subject: object) -> str:
    """Return the name of a subject, which is that of a user. `InvalidError` if it cannot be one."""
    name = check_key(subject, "name of the subject")
    if name.startswith(MARK):
        raise InvalidError(f"the name of a subject does not start with {MARK}", where=repr(name)[:80])
    return name


def subject_of_name(name: str) -> str:
    """Return the user in the path of a scope, of an identity, or of something in a scope; empty if there is none."""
    for part in name.removeprefix(MARK).split("/"):
        if part.startswith(_USER):
            return unquoted(part.removeprefix(_USER))
        if part.startswith(_BY):  # the cursor of an identity that subscribed to a topic
            return subject_of_name(unquoted(part.removeprefix(_BY)))
    return ""


def subject_of_line(line: Line) -> str:
    """Return the subject that the name of a line says; empty if it says none. Names of threads say nothing."""
    return "" if is_thread(line.name) else subject_of_name(line.name)


def subjects_in(metadata: object, keys: Iterable[str] = (METADATA_KEY,)) -> tuple[str, ...]:
    """Return the subjects that metadata names, in their normal form: by text or a number, or several by a list."""
    if not isinstance(metadata, Mapping):
        return ()
    for key in keys:
        value = metadata.get(key)
        values = value if isinstance(value, list | tuple) else [value]
        names = [_normal_form(each) for each in values if isinstance(each, str | int) and not isinstance(each, bool)]
        if names := [each for each in names if each]:
            return tuple(names)
    return ()


def _normal_form(name: str | int) -> str:
    text = str(name)
    return text if text.isascii() else normalize("NFC", text)


def subjects_of_step(point: StepRef, keys: Iterable[str] = (METADATA_KEY,)) -> tuple[tuple[str, ...], str]:
    """Return the subjects that the metadata of a step names, and the user that made the step; empty for none."""
    if not point.metadata or point.pruned:
        return (), ""
    try:
        found = decode(point.metadata)
    except (MsgspecError, ValueError, RecursionError):
        return (), ""
    if not isinstance(found, Mapping):
        return (), ""
    named = subjects_in(found, keys)
    origin, actor = found.get(ORIGIN), found.get("actor")
    if isinstance(origin, Sequence) and origin and isinstance(origin[0], str):
        actor = origin[0]
    return named, subject_of_name(actor) if isinstance(actor, str) else ""
