"""Erasing the data of one person: the operations, reports and certificates of `store.erasure`."""

from __future__ import annotations

from holdfast.maintenance import ErasureReport, SubjectExportReport
from holdfast.security import Certificate
from holdfast.store import AsyncErasure, Erasure

__all__ = ["AsyncErasure", "Certificate", "Erasure", "ErasureReport", "SubjectExportReport"]
