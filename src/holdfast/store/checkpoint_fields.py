"""The fields of a checkpoint that `put` and `update` take, and their translation into a request to append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from holdfast.backends.interface import Change, Create, Put, Row
from holdfast.backends.tables import REFS
from holdfast.engine import validation
from holdfast.engine.ids import check_new_name
from holdfast.engine.lines import LABEL, ROOT, TAG, At, OnBranch
from holdfast.engine.row_format import Line, check_name, readable
from holdfast.engine.types import Checkpoint
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.time_parser import Duration

if TYPE_CHECKING:
    from holdfast.history.merge import MergeConflict

OnConflict: TypeAlias = "Literal['raise', 'branch', 'overwrite', 'merge'] | Callable[[MergeConflict], Any]"
"""What to do if another writer saved after the same parent first. See `Thread.put`."""


class CheckpointFields(TypedDict, total=False):
    """Fields of a checkpoint to be saved. See `Thread.put`."""

    parent: str | Checkpoint | None
    branch: str | None
    on_conflict: OnConflict | None
    id: str | None
    metadata: Mapping[str, Any] | None
    tag: str | None
    labels: Iterable[str]
    kind: str
    ttl: Duration | None


def unknown_field_error(call: str, fields: Iterable[str]) -> TypeError | None:
    """Return the error of a call with a field that there is not, as for any function; None if there are all of them."""
    unknown = [name for name in fields if name not in CheckpointFields.__annotations__]
    return TypeError(f"{call}() got an unexpected keyword argument {unknown[0]!r}") if unknown else None


def append_fields(
    handle: StoreHandle,
    line: Line,
    *,
    parent: str | Checkpoint | None = None,
    branch: str | None = None,
    on_conflict: OnConflict | None = None,
    id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tag: str | None = None,
    labels: Iterable[str] = (),
    kind: str = "save",
    ttl: Duration | None = None,
) -> dict[str, Any]:
    """Return the fields of an `AppendRequest` except the state."""
    how = _conflict_mode(on_conflict or ("overwrite" if parent is None else "branch"), parent)
    at: At = parent.id if isinstance(parent, Checkpoint) else validation.optional_name(parent, "id of a parent")
    if at == "":
        if on_conflict != "raise":
            raise InvalidError(
                "a checkpoint without a parent is the first of its thread, or there is a conflict",
                hint='Pass on_conflict="raise", or leave out the parent',
            )
        at = ROOT
    if branch is not None:
        if parent is not None:
            raise InvalidError("a checkpoint follows a parent or the head of a branch: give one of them")
        at = OnBranch(check_name(branch, "name of a branch"))
    if id is not None:
        check_new_name(id, "id of a checkpoint")
    refs = [(TAG, check_new_name(tag, "tag"))] if tag is not None else []
    if labels:
        refs += [(LABEL, label) for label in validation.require_names(labels, "label")]
    fields: dict[str, Any] = {
        "parent": at,
        "on_conflict": how,
        "id": id or "",
        "keeps_head": on_conflict == "merge" or callable(on_conflict),
        "kind": check_name(kind, "kind of a checkpoint"),
    }
    if refs:
        fields["attached_changes"] = partial(_ref_changes, line, refs, handle.now())
    if ttl is not None:
        from holdfast.engine.line_ttl import attach_ttl  # most threads have none

        fields["attached_changes"] = attach_ttl(handle.engine, line, ttl, fields.get("attached_changes"))
    if metadata:
        plain = dict(validation.require_mapping(metadata, "metadata"))
        codec = handle.codec
        fields["metadata"], fields["readable"] = codec.pack(plain), readable(codec, plain)
    return fields


def _conflict_mode(on_conflict: OnConflict, parent: object) -> Any:
    from holdfast.engine import append

    modes = {
        "raise": append.OnConflict.REFUSE,
        "branch": append.OnConflict.BRANCH,
        "overwrite": append.OnConflict.RETRY,
        "merge": append.OnConflict.BRANCH,
    }
    if not callable(on_conflict) and on_conflict not in modes:
        raise InvalidError(f"on_conflict must be {', '.join(map(repr, modes))} or a function, not {on_conflict!r}")
    if on_conflict == "overwrite" and parent is not None:
        raise InvalidError(
            "a checkpoint that follows a given parent cannot overwrite what others saved on it",
            hint="Leave out the parent: the checkpoint then follows the latest",
        )
    if parent is None and (on_conflict == "merge" or callable(on_conflict)):
        raise InvalidError(
            "a checkpoint is merged with what others saved since its parent, and no parent is given",
            hint="Pass the checkpoint that the state was read from: parent=",
        )
    return append.OnConflict.BRANCH if callable(on_conflict) else modes[on_conflict]


def _ref_changes(line: Line, refs: list[tuple[str, str]], now: int, id: str) -> list[Change]:
    """Return the changes that write the tag and labels of a checkpoint with it."""
    changes: list[Change] = []
    for kind, name in refs:
        row = Row((*line, kind, name, "" if kind == TAG else id), (id, now))
        changes.append(Create(REFS, row) if kind == TAG else Put(REFS, row))
    return changes
