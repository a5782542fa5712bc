"""Addresses that runs call when they are over: public ones only, unless the server allows others.

A name is resolved when it is called, and the connection goes to an address that was checked: a name that leads
elsewhere meanwhile does not lead into the network of the server. Redirections are not followed, and no proxy is used.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.request
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import InvalidError
from holdfast.maintenance.monitoring.alerts import NoRedirects, WebhookSink

WEBHOOK = "temporary-webhook"
"""The workflow that calls the webhook of a run, and the start of the name of its thread."""

_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for the IPv4 address at their end."""

_MAX_URL = 2000


def is_public(text: str) -> bool:
    """Return whether an address is one of the public network."""
    address = ip_address(text.partition("%")[0])
    inner: IPv4Address | None = None
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(str(inner))
    return address.is_global and not (address.is_multicast or address.is_reserved)


def check_webhook(url: str, *, private: bool) -> None:
    """Refuse an address that cannot be called, or may not: one that is not public, unless those are allowed. A name
    that leads nowhere now may do so later."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host or scheme not in ("http", "https") or len(url) > _MAX_URL:
        raise InvalidError("a webhook is a URL of http or https", where=repr(url)[:80])
    if private:
        return
    try:
        _resolve(host, port or 443)
    except OSError:
        return


def _resolve(host: str, port: int) -> list[Any]:
    found = [each[4][:2] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not all(is_public(str(address)) for address, _ in found):
        raise InvalidError(
            "the webhook leads to an address of this machine or of a private network",
            where=host[:100],
            hint="Start the server with --private-webhooks to allow these",
        )
    return found


class _Connection(http.client.HTTPConnection):
    """Connects to an address that was checked."""

    def connect(self) -> None:
        problem: OSError | None = None
        for address in _resolve(self.host, self.port):
            try:
                self.sock = socket.create_connection(address, self.timeout)
            except OSError as error:
                problem = error
            else:
                return
        raise problem or OSError("the name has no address")


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """Connects likewise, with TLS for the name."""


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Connection, request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_SecureConnection, request, context=ssl.create_default_context())


def post(url: str, body: bytes, key: str, *, private: bool) -> None:
    """Post JSON to a webhook. `TransientError` if it does not take it, `InvalidError` if it may not be called."""
    handlers = [NoRedirects(), urllib.request.ProxyHandler({}), *([] if private else [_Handler()])]
    WebhookSink(url, urllib.request.build_opener(*handlers)).post(body, key)
