"""The process of a replay, as the host sees it: it gets the recording, and no credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidError, UnavailableError

_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")
"""The environment of the process; nothing else of the host's is passed on."""

_MAX_ERROR = 4000


class ReplayProcess:
    """Runs a module of this package in a process of its own, with the recording on its standard input."""

    def __init__(self, module: str, *, env: Mapping[str, str] | None = None, timeout: float = 600.0) -> None:
        self._module = module
        self._timeout = timeout
        further = dict(env or {})
        if any(name.startswith("HOLDFAST_") for name in further):
            raise InvalidError("a replay gets no settings of stores", hint="Leave out names that start with HOLDFAST_")
        self._environment = {name: os.environ[name] for name in _PASSED if name in os.environ} | further
        # The code that is replayed is found where the host finds it, or else in the working directory.
        self._environment["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), str(Path.cwd())])
        self._environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self._environment["PYTHONHASHSEED"] = "0"

    def run(self, order: Mapping[str, Any], recording: bytes) -> dict[str, Any]:
        """Run it to the end, and return its answer. `UnavailableError` if it gave none."""
        header = json.dumps(order).encode()
        data = len(header).to_bytes(8, "big") + header + recording
        try:
            done = subprocess.run(  # noqa: S603 - a module of this package
                [sys.executable, "-P", "-m", self._module],
                input=data,
                capture_output=True,
                env=self._environment,
                timeout=self._timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"the replay took longer than {self._timeout:g} s, and was stopped",
                hint="Raise timeout",
                code="replay-stopped",
            ) from None
        try:
            answer = json.loads(done.stdout.rpartition(b"\n")[2] or b"null")
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UnavailableError(
                f"the process of the replay ended with exit code {done.returncode}: "
                f"{done.stderr.decode(errors='replace')[-_MAX_ERROR:].strip()}",
                hint="See its error",
                code="replay-stopped",
            )
        return answer


def read_order() -> tuple[dict[str, Any], bytes]:
    """Return the order and the recording, in the process of the replay."""
    data = sys.stdin.buffer.read()
    size = int.from_bytes(data[:8], "big")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def answer_host(descriptor: int, found: Mapping[str, Any]) -> None:
    """Send the answer to the host, in the process of the replay."""
    left = memoryview(json.dumps(found, default=repr).encode())
    while left:
        left = left[os.write(descriptor, left) :]
