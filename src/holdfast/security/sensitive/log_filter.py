"""A filter that redacts records of the log."""

from __future__ import annotations

import logging
import traceback
from typing import Final
from weakref import ref

from holdfast.engine.protection import Protection

LOGGERS: Final = (
    "agents", "backends", "backups", "copies", "hooks", "http", "jobs", "leases", "metrics", "mongodb", "readable",
    "redaction", "runs", "schemas", "scripts", "search", "steps", "tiered", "timers", "web",
)  # fmt: skip
"""Holdfast's own loggers, below `holdfast`."""


class LogFilter(logging.Filter):
    """Replaces sensitive data in the message of a record, and in the text of its exception."""

    def __init__(self, protection: Protection) -> None:
        super().__init__()
        self.protection = ref(protection)
        """Not kept: the filter stays with a logger for longer than its store is open."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record. It is always let through."""
        protection = self.protection()
        if protection is None:
            return True
        message = record.getMessage()
        redacted = protection.redact_text(message)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if record.exc_text:
            record.exc_text = protection.redact_text(record.exc_text)
        return True


def add_filter(protection: Protection) -> None:
    """Redact what Holdfast itself logs."""
    for name in LOGGERS:
        logger = logging.getLogger(f"holdfast.{name}")
        filters = [each for each in logger.filters if isinstance(each, LogFilter)]
        for each in filters:
            if each.protection() is None:
                logger.removeFilter(each)
        if not any(each.protection() is protection for each in filters):
            logger.addFilter(LogFilter(protection))
