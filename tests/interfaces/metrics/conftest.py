"""Served stores, as the tests of HTTP have them."""

from tests.interfaces.http.conftest import filled, filled_file, served, writable  # noqa: F401
