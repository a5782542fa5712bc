"""Erasing the data of one person: the operations, reports and certificates of `store.erasure`."""

from __future__ import annotations

from holdfast.maintenance import ErasureReport, SubjectExportReport
from holdfast.maintenance.erasure.certificate import Certificate
from holdfast.store import AsyncErasure, Erasure

__all__ = ["AsyncErasure", "Certificate", "Erasure", "ErasureReport", "SubjectExportReport"]
