"""Erasing the data of one person: the certificates of `store.erasure`."""

from __future__ import annotations

from holdfast.maintenance.erasure.certificate import Certificate

__all__ = ["Certificate"]
