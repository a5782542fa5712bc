"""Records of backups, as `store.backups` returns them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from holdfast._fields import Bytes, Hidden, Label, Local


class BackupInfo(msgspec.Struct, frozen=True):
    """A backup: its id; the store; its number among those of the store; the moment of it; the number of lines; the
    bytes that it added to the repository, and those that it needs there; how long it took; why it was made; and the
    names of damaged lines, of which it has the last readable state, if any."""

    id: Annotated[str, Label("backup")]
    store: Local[Hidden[str]]
    number: Hidden[int]
    time: datetime
    lines: int
    added: Bytes
    bytes: int
    seconds: Hidden[float]
    reason: str
    url: Local[Annotated[str, Label("store")]]
    damaged: Hidden[tuple[str, ...]]


class BackupLine(msgspec.Struct, frozen=True):
    """A thread or another line in a backup: its tenant, kind and name, the number of its steps, and the bytes of its
    rows."""

    tenant: str
    kind: str
    name: str
    steps: int
    bytes: int


class BackupChange(msgspec.Struct, frozen=True):
    """A difference between two backups: `added`, `removed` or `changed`, and the numbers of steps of both."""

    change: str
    tenant: Hidden[str]
    kind: str
    name: str
    before: int
    after: int
