"""The worker process of a sandbox, as the host sees it: it is started, exchanges messages, and is ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from holdfast._lazy import missing_extra
from holdfast.errors import InvalidError, ScriptError, UnsupportedError
from holdfast.interfaces.scripting.functions import OPERATORS, first_types
from holdfast.interfaces.scripting.values import dump, error_classes

Language: TypeAlias = Literal["lua", "javascript"]

_ENGINES = {"lua": ("lupa", "prelude.lua"), "javascript": ("_quickjs", "prelude.js")}
_FOLDER = Path(__file__).parent
_START_LIMIT = 30.0
"""Seconds that a process may take to start, on a busy machine."""
_FEW_BYTES = 1 << 16
_TIME_SIGNALS = (getattr(signal, "SIGALRM", None), getattr(signal, "SIGXCPU", None))
"""By which the system ends a process whose time has passed."""
SUFFIXES: dict[str, Language] = {".lua": "lua", ".js": "javascript", ".mjs": "javascript"}


class Limits(NamedTuple):
    """The limits of a sandbox."""

    timeout: float
    """Seconds of a run, or of a call of one of its functions, with everything that it waits for."""
    memory: int
    """Bytes that the values of a script may take."""
    message: int
    """Bytes of one call, or of its result."""


def find_language(name: str) -> Language:
    """Return the language of a file by its name. Raises `InvalidError`."""
    found = SUFFIXES.get(Path(name).suffix)
    if found is None:
        raise InvalidError(
            "the language of the script cannot be told from its name",
            where=name[:80],
            hint="Use a name that ends in .lua, .js or .mjs",
        )
    return found


class WorkerProcess:
    """A process that runs scripts of one sandbox."""

    def __init__(self, language: Language, limits: Limits, root: str) -> None:
        if sys.platform == "win32":
            raise UnsupportedError("scripts need a system that limits the memory of a process", hint="Use Linux")
        module, prelude = _engine(language)
        self._limits = limits
        self._in_use = threading.RLock()
        self._reason: ScriptError | None = None
        command = [sys.executable, "-I", "-S", str(_FOLDER / "worker.py")]
        self._process = subprocess.Popen(  # noqa: S603 - constants
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={},
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._buffer = bytearray()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._output, select.POLLIN)
        self._writable.register(self._input, select.POLLOUT)
        self.pid: int = self._process.pid
        api = {"types": first_types(root), "errors": error_classes(), "operators": OPERATORS, "root": root}
        config = {
            "language": language,
            "path": module,
            "prelude": prelude,
            "api": api,
            "memory": limits.memory,
            "timeout": limits.timeout,
        }
        try:
            deadline = time.monotonic() + _START_LIMIT
            self.write("S", dump(config), deadline)
            self.read(deadline)
        except BaseException:
            self.kill()
            raise

    def write(self, kind: str, data: bytes, deadline: float) -> None:
        """Send a message."""
        left = memoryview((len(data) + 1).to_bytes(4, "big") + kind.encode() + data)
        with self._in_use:
            while left:
                self._check_open()
                try:
                    left = left[os.write(self._input, left) :]
                except BlockingIOError:
                    self._wait(self._writable, deadline)
                except BrokenPipeError:
                    raise self._ended() from None

    def read(self, deadline: float) -> tuple[str, bytes | None]:
        """Wait for a message. One that is too large is skipped: its content is None."""
        with self._in_use:
            header = self._exactly(5, deadline)  # not one byte less
            size, kind = int.from_bytes(header[:4], "big") - 1, chr(header[4])  # type: ignore[stored-bytes]
            if size <= self._limits.message:
                return kind, self._exactly(size, deadline)
            while size > 0:
                size -= len(self._exactly(min(size, _FEW_BYTES), deadline))
            return kind, None

    def kill(self, reason: ScriptError | None = None) -> None:
        """End the process, whatever it does, and wait until it is gone. Whoever waits for it gets the reason."""
        self._reason = self._reason or reason
        self._process.kill()
        self._process.wait()
        with self._in_use:  # another thread may be reading: it notices the end first
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def _exactly(self, size: int, deadline: float) -> bytes:
        buffer = self._buffer
        while len(buffer) < size:
            self._wait(self._readable, deadline)
            part = os.read(self._output, max(size - len(buffer), _FEW_BYTES))
            if not part:
                raise self._ended()
            buffer += part
        data = bytes(buffer[:size])
        del buffer[:size]
        return data

    def _wait(self, poll: select.poll, deadline: float) -> None:
        self._check_open()
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000 + 1):
            error = self._timeout()
            self.kill(error)
            raise error

    def _check_open(self) -> None:
        if self._process.returncode is not None:
            raise self._ended()

    def _timeout(self) -> ScriptError:
        return ScriptError(
            f"the script took longer than {self._limits.timeout:g} s, and was stopped",
            hint="Do less at a time, or raise timeout",
            code="script-timeout",
        )

    def _ended(self) -> ScriptError:
        """Return the error for a process that ended: why it was stopped, or how it ended on its own."""
        self.kill()
        code = self._process.returncode
        if self._reason is None and -code in _TIME_SIGNALS:
            self._reason = self._timeout()
        if self._reason is None:
            self._reason = ScriptError(
                f"the process of the script ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})",
                hint="It used more memory or time than it may have, or was killed",
                code="script-stopped",
            )
        return ScriptError(self._reason.what, hint=self._reason.hint, code=self._reason.code)


def _engine(language: str) -> tuple[str, str]:
    """Return the folder of a language's engine, and the prelude."""
    if language not in _ENGINES:
        raise InvalidError(f"the language must be 'lua' or 'javascript', not {language!r}")
    module, prelude = _ENGINES[language]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise missing_extra("scripts", ImportError(name={"_quickjs": "quickjs-ng"}.get(module, module)))
    folder = Path(spec.origin).parent
    return str(folder.parent if spec.submodule_search_locations else folder), _read(prelude)


def _read(prelude: str) -> str:
    return (_FOLDER / prelude).read_text(encoding="utf-8")
