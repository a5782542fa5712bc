"""The process of a replay, and the protocol between it and its host.

It gets the recording on its standard input, and no credentials. Messages go both ways: a header in JSON, and data. The
host sends orders. The process answers each with what its replayer found, with `error`, or first with `needs`, which
names data that the host sends it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from holdfast.byte_reader import ByteReader
from holdfast.errors import ERRORS_BY_CODE, FINER_CODES, HoldfastError, InvalidError, UnavailableError

_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")
"""The environment of the process; nothing else of the host's is passed on."""

TIMEOUT = 600.0
"""Seconds that a process may take, unless the caller says otherwise."""

_WORKER = "holdfast.store.replay.worker"
_MAX_ERROR = 4000
_MAX_MESSAGE = 4 << 30


class ReplayProcess:
    """Replays what is recorded of a subject ("threads", "agents", "hooks") in a process of its own, from `with` to the
    end of the block."""

    def __init__(self, subject: str, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT) -> None:
        self._subject = subject
        self._timeout = timeout
        further = dict(env or {})
        if any(name.startswith("HOLDFAST_") for name in further):
            raise InvalidError(
                "a replay cannot be given the settings of a store", hint="Leave out names that start with HOLDFAST_"
            )
        self._environment = {name: os.environ[name] for name in _PASSED if name in os.environ} | further
        # The code that is replayed is found where the host finds it, or else in the working directory.
        self._environment["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), str(Path.cwd())])
        self._environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self._environment["PYTHONHASHSEED"] = "0"
        self._is_late = False
        self._errors = b""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - a module of this package
            [sys.executable, "-P", "-m", _WORKER, self._subject],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        )
        self._reader = threading.Thread(target=self._read_errors, name="holdfast-replay-errors", daemon=True)
        self._reader.start()
        self._watch = threading.Timer(self._timeout, self._stop_late)
        self._watch.daemon = True
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self._process.kill()
        self._end()

    def ask(
        self, order: Mapping[str, Any], data: bytes, provide: Callable[[str], bytes] | None = None
    ) -> dict[str, Any]:
        """Send an order, and return its answer, or raise its error. `provide` returns further data that the process
        asks for meanwhile. `UnavailableError` if the process ended without an answer."""
        answer = self._exchange(order, data)
        while provide is not None and "needs" in answer:
            answer = self._exchange({}, provide(answer["needs"]))
        if "error" not in answer:
            return answer
        error = answer["error"]
        kind = ERRORS_BY_CODE.get(error["code"]) or FINER_CODES.get(error["code"], HoldfastError)
        raise kind(error["what"], where=error["where"], hint=error["hint"], code=error["code"])

    def _exchange(self, order: Mapping[str, Any], data: bytes) -> dict[str, Any]:
        process, answer = self._process, None
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - for the type checker
        with suppress(BrokenPipeError):
            _send(process.stdin, order, data)
        with suppress(ValueError):
            answer = _receive(process.stdout)
        if answer is not None:
            return answer[0]
        process.kill()
        self._end()
        if self._is_late:
            raise UnavailableError(
                f"the replay took longer than {self._timeout:g} s, and was stopped",
                hint="Raise timeout",
                code="replay-stopped",
            )
        raise UnavailableError(
            f"the process of the replay ended with exit code {process.returncode}: "
            f"{self._errors.decode(errors='replace').strip()}",
            hint="See its error",
            code="replay-stopped",
        )

    def _stop_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _read_errors(self) -> None:
        errors: Any = self._process.stderr
        while found := errors.read1(1 << 16):
            self._errors = (self._errors + found)[-_MAX_ERROR:]

    def _end(self) -> None:
        """Wait until it has ended, and its errors are read."""
        process = self._process
        process.wait()
        self._reader.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _send(stream: BinaryIO | Any, header: Mapping[str, Any], data: bytes) -> None:
    described = json.dumps(header, default=repr).encode()
    stream.write(len(described).to_bytes(8, "big") + len(data).to_bytes(8, "big") + described)
    stream.write(data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> tuple[dict[str, Any], bytes] | None:
    """Return a message; None if there is no further one."""
    sizes = stream.read(16)
    if len(sizes) < 16:
        return None
    reader = ByteReader(sizes, "a message of a replay")
    lengths = reader.number(8), reader.number(8)
    if max(lengths) > _MAX_MESSAGE:
        raise reader.error(f"claims {max(lengths)} bytes")
    header, data = map(stream.read, lengths)
    try:
        return json.loads(header), data
    except (ValueError, RecursionError) as error:
        raise reader.error(f"is not JSON: {error}") from None


class Host:
    """The host, as the process of a replay sees it."""

    def __init__(self) -> None:
        self._orders = os.fdopen(os.dup(0), "rb")
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what the code prints is not an answer
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        self._lock = threading.Lock()

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next order; None if there is no further one."""
        return _receive(self._orders)

    def send(self, found: Mapping[str, Any]) -> None:
        """Answer an order."""
        _send(self._answers, found, b"")

    def request(self, what: str) -> bytes:
        """Ask the host for data while an order is executed."""
        with self._lock:
            self.send({"needs": what})
            found = self.receive()
        return b"" if found is None else found[1]
