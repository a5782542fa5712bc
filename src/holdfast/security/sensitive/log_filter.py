"""A filter that redacts records of the log."""

from __future__ import annotations

import logging
import traceback
from typing import Final

from holdfast.engine.protection import Protection

LOGGERS: Final = (
    "agents", "backends", "copies", "hooks", "http", "jobs", "mongodb", "schemas", "scripts", "search", "sensitive",
    "tiered", "web",
)  # fmt: skip
"""Holdfast's own loggers, below `holdfast`."""


class LogFilter(logging.Filter):
    """Replaces sensitive data in the message of a record, and in the text of its exception."""

    def __init__(self, protection: Protection) -> None:
        super().__init__()
        self._protection = protection

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record. It is always let through."""
        message = record.getMessage()
        redacted = self._protection.redact_text(message)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if record.exc_text:
            record.exc_text = self._protection.redact_text(record.exc_text)
        return True


def add_filter(protection: Protection) -> None:
    """Redact what Holdfast itself logs."""
    for name in LOGGERS:
        logger = logging.getLogger(f"holdfast.{name}")
        if not any(isinstance(each, LogFilter) and each._protection is protection for each in logger.filters):
            logger.addFilter(LogFilter(protection))
