"""The sandbox of a script: a process under limits, whose calls are executed here, on a store, with its rights."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import HoldfastError, InvalidError, NotFoundError, ScriptError, TooLargeError, UnavailableError
from holdfast.interfaces.scripting.calls import Calls
from holdfast.interfaces.scripting.functions import ABSENT, type_name_of
from holdfast.interfaces.scripting.process import Language, Limits, WorkerProcess, find_language
from holdfast.interfaces.scripting.replay import Replay
from holdfast.interfaces.scripting.values import dump, error_form, error_of, load
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from holdfast.time_parser import Duration, parse_seconds

if TYPE_CHECKING:
    from holdfast.store.backups import Backups

log: logging.Logger = logging.getLogger("holdfast.scripts")

MAX_NESTING = 16
"""How often a script may be called while it waits for a call of its own."""

_LAST_ERRORS = 16
_HOOK_TIMEOUT = 1.0
_TRIES = 16


class Sandbox:
    """Runs scripts in Lua or JavaScript, in a process of their own under limits.

    ::

        with Sandbox("lua", store) as sandbox:
            sandbox.run("return store:state('agent:a'):increment('runs')")

    `store` is what the scripts see as `store`: a `Store`, or the view of an identity, with its rights. `timeout` limits
    each run, and each call of a function that a script returned, with all that it waits for; `memory` the bytes of its
    values; `max_message` the bytes of one call or result, and of all that a run prints. A script that exceeds a limit
    is stopped with `ScriptError`, and then the sandbox is closed. `output` is called with each line that a script
    prints; they are logged otherwise.

    `backups` are the repositories that scripts have, by the names under which `store.backups(name)` finds them. `code`
    is what they may replay with, as `{"shop": "shop.graphs:refund"}`: `holdfast.replay.run(store, "shop", …)` imports
    that, in another process; and `recordings` are files that `holdfast.replay.record` wrote, by name.

    A sandbox can be used by several threads; it does one thing at a time.
    """

    def __init__(
        self,
        language: Language,
        store: Store | IdentityView,
        *,
        timeout: Duration = 10.0,
        memory: int = 64 << 20,
        max_message: int = 16 << 20,
        output: Callable[[str], object] | None = None,
        backups: Mapping[str, Backups[Store]] | None = None,
        code: Mapping[str, str] | None = None,
        recordings: Mapping[str, str | PathLike[str]] | None = None,
    ) -> None:
        if type_name_of(type(store)) not in ("Store", "IdentityView"):
            raise InvalidError(
                f"a script works on a Store or the view of an identity, not on {type(store).__name__}",
                hint="From asyncio, open a Store, and call the sandbox in a thread: asyncio.to_thread(sandbox.run, …)",
            )
        for what, size in (("memory", memory), ("max_message", max_message)):
            if type(size) is not int or size < 1 << 20:
                raise InvalidError(f"{what} must be at least a megabyte, in bytes, not {size!r}")
        limits = Limits(parse_seconds(timeout, "timeout", positive=True), memory, max_message)
        self.language = language
        self._limits = limits
        self._output = output
        self._calls = Calls(store, self._function, dict(backups or {}), Replay(code, recordings))
        self._errors: list[HoldfastError] = []
        self._turns = _Turns()
        self._closed = False
        self._owner = os.getpid()
        self._name = "script"
        self._process = WorkerProcess(language, limits, self._calls.root)

    def __repr__(self) -> str:
        return f"<Sandbox {self.language}, {'closed' if self._closed else f'process {self._process.pid}'}>"

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Whether it was closed, or stopped by a limit."""
        return self._closed

    def run(self, source: str, *, name: str = "script", args: Mapping[str, Any] | None = None) -> Any:
        """Run a script, and return its result. The script finds `args` under that name.

        Functions in the result, itself or an entry of it, can be called until the sandbox is closed. An error of a call
        that the script does not handle is raised as it is in Python; any other is a `ScriptError`.
        """
        if not isinstance(source, str):
            raise InvalidError(f"a script must be a string, not {type(source).__name__}")
        values = self._calls.encode(dict(args or {}))
        self._name = str(name)
        return self._exchange("X", dump([source, self._name, values]))

    def run_file(self, path: str | PathLike[str], *, args: Mapping[str, Any] | None = None) -> Any:
        """Run the script in a file. See `run`."""
        return self.run(_read_source(path), name=Path(path).name, args=args)

    def close(self) -> None:
        """End the process, and remove the hooks that its scripts registered. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._process.kill()
        for hooks, function in self._calls.registered:
            with suppress(NotFoundError):
                hooks.remove(function)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside -------------------------------------------------------------------------------------------------------

    def _function(self, number: int, name: str) -> ReturnedFunction:
        return ReturnedFunction(self, number, name)

    def _invoke(self, number: int, values: tuple[Any, ...]) -> Any:
        try:
            return self._exchange("I", dump([number, [self._calls.encode(value) for value in values]]))
        finally:
            for value in values:
                self._calls.forget(value)

    def _exchange(self, kind: str, data: bytes) -> Any:
        """Send a command, execute the calls that it makes, and return its result."""
        if len(data) > self._limits.message:
            raise self._too_large("what the script is to get")
        # What a call leads to ends with what made the call.
        deadline = min([time.monotonic() + self._limits.timeout, *(each for _, each in _INSIDE.get())])
        printed = 0
        with self._turns.turn(deadline) as turn:
            if os.getpid() != self._owner:
                raise UnavailableError(
                    "the sandbox can only be used in the process that created it",
                    hint="Create another one after a fork",
                    code="closed",
                )
            if self._closed:
                raise SandboxClosedError("the sandbox is closed", hint="Make a new one", code="closed")
            try:
                self._process.write(kind, data, deadline)
                while True:
                    kind, answer = self._process.read(deadline)
                    if kind == "C":
                        with turn.released(deadline):
                            reply = self._execute(answer, deadline - time.monotonic())
                        self._process.write(*reply, deadline)
                    elif kind != "P":
                        break
                    elif answer is not None:
                        printed += len(answer)
                        if printed > self._limits.message:
                            raise self._too_large("what the script prints")
                        self._print(answer)
            except BaseException:
                self.close()
                raise
        if answer is None:
            raise self._too_large("the result of the script")
        if kind == "D":
            result = self._calls.decode(load(answer))
            return None if result is ABSENT else result
        raise self._failure(load(answer))

    def _execute(self, data: bytes | None, seconds: float) -> tuple[str, bytes]:
        try:
            if data is None:
                raise self._too_large("a call of the script")
            result = dump(self._calls.execute(load(data), seconds))
            if len(result) > self._limits.message:
                raise self._too_large("the result of a call")
        except Exception as error:  # noqa: BLE001 - it is the script's
            if isinstance(error, HoldfastError):
                self._errors = [*self._errors[-_LAST_ERRORS:], error]
            return "E", dump(error_form(error))
        return "R", result

    def _too_large(self, what: str) -> TooLargeError:
        return TooLargeError(
            f"{what} has more than {self._limits.message} bytes",
            hint="Use pages, parts of states, and less output; or raise max_message",
        )

    def _print(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if self._output is None:
            log.info("%s", text)
        else:
            self._output(text)

    def _failure(self, form: Any) -> HoldfastError:
        """Return the error that ended a script: that of a call, or one that it raised itself."""
        if type(form) is not dict:
            return ScriptError("the script failed")
        trace = _shorten(str(form.get("trace") or ""), self._name)
        error = self._original(form) or error_of(form)
        if error is None:
            found = _POSITION.search(trace) if self.language == "javascript" else None  # in Lua, the message has it
            error = _script_error(form, f"{self._name}:{found[1]}" if found else "")
            error.trace = trace
            if error.code == "script-memory":
                self.close()
        elif trace:
            error.add_note(f"In the script:\n{trace}")
        return error

    def _original(self, form: Mapping[str, Any]) -> HoldfastError | None:
        """Return the error of a call that a script did not handle, as it was raised."""
        for error in reversed(self._errors):
            if (error.code, error.what, error.where) == tuple(form.get(name) for name in ("code", "what", "where")):
                return error
        return None


class SandboxClosedError(UnavailableError):
    """A sandbox was closed before it began what it was asked for."""


class ReturnedFunction:
    """A function of a script, for Python: of a hook, of a result. It can be called until its sandbox is closed."""

    __name__: str

    def __init__(self, sandbox: Sandbox, number: int, name: str) -> None:
        self._sandbox = sandbox
        self._number = number
        self.__name__ = self.__qualname__ = name or f"function-{number}"
        self.is_named: bool = bool(name)

    def __repr__(self) -> str:
        return f"<function {self.__name__} of {self._sandbox!r}>"

    def __call__(self, *values: Any) -> Any:
        return self._sandbox._invoke(self._number, values)


class ScriptHook:
    """A hook in Lua or JavaScript: a script that returns the function.

    ::

        store.hooks.before("state.set", name="limit")(ScriptHook("limit.lua", store))

    It has a sandbox of its own, with the options of `Sandbox`; `timeout` is a second by default, as the budget of a
    hook is. If a call exceeds a limit, the process is stopped, and the next call runs the script again in a new one.
    """

    def __init__(self, path: str | PathLike[str], store: Store | IdentityView, **options: Any) -> None:
        self._source, self._name = _read_source(path), Path(path).name
        self._language = find_language(self._name)
        self._store, self._options = store, {"timeout": _HOOK_TIMEOUT, **options}
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._closed = False
        self._called: Any = None
        self.__qualname__ = Path(path).stem
        self._function()

    def __call__(self, call: Any) -> Any:
        for _ in range(_TRIES):
            with suppress(SandboxClosedError):  # another call was stopped while this one waited for its turn
                return self._function()(call)
        return self._function()(call)

    def close(self) -> None:
        """End its process. It cannot be called any more."""
        with self._lock:
            self._closed = True
            if self._sandbox is not None:
                self._sandbox.close()

    def _function(self) -> Callable[[Any], Any]:
        with self._lock:
            if self._closed:
                raise UnavailableError("the hook is closed", where=self._name, code="closed")
            if self._sandbox is None or self._sandbox.closed:
                self._sandbox = Sandbox(self._language, self._store, **self._options)
                self._called = self._sandbox.run(self._source, name=self._name)
                if not isinstance(self._called, ReturnedFunction):
                    self._sandbox.close()
                    raise InvalidError("the script of a hook returns a function", where=self._name)
            found: Callable[[Any], Any] = self._called
            return found


def _read_source(path: str | PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError("there is no such script", where=fspath(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"the script cannot be read: {error}", where=fspath(path)) from None


_POSITION = re.compile(r":(\d+):\d+\)?$", re.MULTILINE)
"""The line of a function in a trace of JavaScript."""


def _script_error(form: Mapping[str, Any], where: str) -> ScriptError:
    name, message = str(form.get("name", "Error")), str(form.get("message", ""))
    if form.get("kind") == "memory":
        return ScriptError(
            "the script needs more memory than it may have", hint="Use less, or raise memory", code="script-memory"
        )
    if form.get("kind") == "syntax":
        return ScriptError(f"the script cannot be read: {message}", code="script-syntax")
    return ScriptError(message if name == "Error" else f"{name}: {message}", where=where)


def _shorten(trace: str, name: str) -> str:
    """Return the part of a trace that is the script's."""
    lines = [line.replace("<input>", name) for line in trace.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if " at script (" in line or "[C]: in function 'xpcall'" in line:
            return "\n".join(lines[: number + (" at script (" in line)])
    return "\n".join(lines[:20])


_INSIDE: ContextVar[tuple[tuple[_Turns, float], ...]] = ContextVar("holdfast_scripts", default=())
"""The sandboxes whose calls are being executed, with their deadlines. Hooks that a call leads to know them, too."""


class _Turns:
    """Who may talk to the process. It does one thing at a time; while it waits for a call, what that call leads to can
    call functions of the script."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open: list[_Turn] = []

    def turn(self, deadline: float) -> _Turn:
        """Wait for a turn: until the process is idle; or, inside of one of its calls, until it waits for that."""
        depth = sum(each is self for each, _ in _INSIDE.get())
        if depth >= MAX_NESTING:
            raise ScriptError(f"a script is called within its own calls, {MAX_NESTING} times")
        with self._condition:
            while self._open and not (depth and self._open[-1].is_released):
                left = deadline - time.monotonic()
                if left <= 0 or not self._condition.wait(left):
                    raise ScriptError("the sandbox was busy until the time limit", code="script-timeout")
            made = _Turn(self)
            self._open.append(made)
            return made

    def end(self, turn: _Turn) -> None:
        """End a turn."""
        with self._condition:
            self._open.remove(turn)
            self._condition.notify_all()

    def release(self, turn: _Turn) -> None:
        """Let a call be executed."""
        with self._condition:
            turn.is_released = True
            self._condition.notify_all()

    def resume(self, turn: _Turn) -> None:
        """Wait until what began meanwhile has ended."""
        with self._condition:
            while self._open[-1] is not turn:
                self._condition.wait()
            turn.is_released = False


class _Turn:
    def __init__(self, turns: _Turns) -> None:
        self._turns = turns
        self.is_released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._turns.end(self)

    @contextmanager
    def released(self, deadline: float) -> Iterator[None]:
        """Execute a call, which may call functions of the script."""
        token = _INSIDE.set((*_INSIDE.get(), (self._turns, deadline)))
        self._turns.release(self)
        try:
            yield
        finally:
            self._turns.resume(self)
            _INSIDE.reset(token)
