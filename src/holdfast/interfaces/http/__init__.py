"""The HTTP API: a store, served to programs and to browsers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.interfaces.http.app import build_app as build_app
    from holdfast.interfaces.http.openapi import openapi_document as openapi_document
    from holdfast.interfaces.http.service import Service as Service
    from holdfast.interfaces.http.service import ServiceOptions as ServiceOptions

_MODULES = {
    "holdfast.interfaces.http.app": ("build_app",),
    "holdfast.interfaces.http.openapi": ("openapi_document",),
    "holdfast.interfaces.http.service": ("Service", "ServiceOptions"),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
