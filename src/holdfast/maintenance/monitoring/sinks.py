"""Sinks of alerts: where notifications go. They are named by the program and by its settings file, never by the store:
whoever may write to a store must not choose what the runner of its jobs executes or connects to."""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, TransientError

_SECONDS = 10.0
"""How long a notification may take."""

Notification: TypeAlias = dict[str, Any]


class Sink(Protocol):
    """Takes notifications."""

    @property
    def name(self) -> str:
        """Its name in messages; without secrets."""

    @property
    def id(self) -> str:
        """Its id in the store; without secrets."""

    def send(self, notification: Notification) -> None:
        """Send a notification. Raises `TransientError` if that fails."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:  # noqa: ARG002 - the signature of the library
        return None


class WebhookSink:
    """Posts notifications as JSON to a URL. Answers other than 2xx are failures, and redirections are not followed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("a webhook must be a URL of http or https", hint="Such as https://example.org/alerts")
        self._url = url
        self.name: str = f"{parts.scheme}://{parts.hostname}"  # the rest of it is often a secret
        self.id: str = f"webhook {parts.hostname} {hashlib.sha256(url.encode()).hexdigest()[:12]}"
        self._opener = urllib.request.build_opener(_NoRedirects)

    def send(self, notification: Notification) -> None:
        """Post a notification."""
        body = json.dumps(notification, sort_keys=True).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "holdfast",
            "Idempotency-Key": str(notification["id"]),
        }
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310 - checked above
        try:
            with self._opener.open(request, timeout=_SECONDS) as response:
                response.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            raise TransientError(f"the webhook answered {error.code}", where=self.name) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise TransientError(
                f"the webhook cannot be reached: {type(reason).__name__}", where=self.name, hint="It is tried again"
            ) from None


class CommandSink:
    """Runs a command, without a shell, with a notification as JSON on its input."""

    def __init__(self, command: Sequence[str]) -> None:
        if isinstance(command, str) or not command or not all(type(each) is str and bool(each) for each in command):
            raise ConfigError("a command must be a list of strings: the program and its arguments")
        self._command = list(command)
        self.name: str = self._command[0]
        self.id: str = f"command {hashlib.sha256(json.dumps(self._command).encode()).hexdigest()[:12]}"

    def send(self, notification: Notification) -> None:
        """Run the command."""
        body = json.dumps(notification, sort_keys=True).encode()
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self._command,
                input=body,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TransientError(f"the command failed: {type(error).__name__}", where=self.name) from None
        if done.returncode:
            raise TransientError(f"the command ended with status {done.returncode}", where=self.name)


class FunctionSink:
    """Calls a function of the program."""

    id: str
    name: str

    def __init__(self, function: Callable[[Notification], object]) -> None:
        self._function = function
        self.name = self.id = f"function {getattr(function, '__qualname__', type(function).__name__)}"

    def send(self, notification: Notification) -> None:
        """Call the function."""
        try:
            self._function(notification)
        except Exception as error:
            raise TransientError(f"the function failed: {type(error).__name__}", where=self.name) from error


SinkTarget: TypeAlias = "str | Sequence[str] | Callable[[Notification], object]"


def make_sink(target: SinkTarget) -> Sink:
    """Return a sink: a URL for a webhook, a list of texts for a command, or a function."""
    if callable(target):
        return FunctionSink(target)
    return WebhookSink(target) if isinstance(target, str) else CommandSink(target)


def configured_sinks() -> list[Sink]:
    """Return the sinks of the settings file: `webhooks` and `commands` of its table `alerts`."""
    from holdfast.backends.config import alert_settings

    webhooks, commands = alert_settings()
    return [*map(WebhookSink, webhooks), *map(CommandSink, commands)]
