"""Values that stand for sensitive data: shown as they are stored, and in clear only if the server may and is asked to.

The clear values are not sent otherwise, and the store records in its audit that they were revealed.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from holdfast._structs import convert
from holdfast.errors import HoldfastError
from holdfast.interfaces.http.models import Model, Problem
from holdfast.interfaces.http.problems import to_problem
from holdfast.interfaces.http.service import Call

M = TypeVar("M", bound=Model)
_MARK = re.compile(rb"\[(token|sealed|redacted):")
_REVEALABLE = re.compile(rb"\[(token|sealed):")


class Redaction:
    """The sensitive data of a thread on a page: its stand-ins, or, if `clear` is asked for, the data."""

    def __init__(self, call: Call, thread: str, *, clear: bool) -> None:
        self._call = call
        self._thread = thread
        self.clear = clear
        self.found: bool = False
        """Whether there are stand-ins."""
        self.revealable: bool = False
        """Whether some of them can be revealed at all."""
        self.problem: Problem | None = None
        """Why they are not shown in clear."""

    def apply(self, model: M) -> M:
        """Return a part of a page as it is to be shown."""
        text = msgspec.json.encode(model)
        self.found = self.found or _MARK.search(text) is not None
        if not _REVEALABLE.search(text):
            return model
        self.revealable = True
        if not self.clear or self.problem is not None:
            return model
        try:
            tree = self._call.store.redaction.reveal(msgspec.to_builtins(model), thread=self._thread)
        except HoldfastError as error:
            self.problem = to_problem(error)
            return model
        return convert(tree, type(model))
