"""The worker process of a sandbox: runs scripts under limits, and sends their calls to the host.

The host starts this file by its path, in a Python without site packages and environment. It imports nothing of the
package, so that it starts quickly and has nothing to reach for. Messages are frames on standard input and output: four
bytes of length, a letter that says what it is, and JSON.

From the host: `S` start, `X` run a script, `I` call a function of the script, `R` the result of a call, `E` its error.
To the host: `S` started, `C` call, `P` print, `D` done with a result, `F` failed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from binascii import a2b_base64, b2a_base64
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_FRAME = 1 << 30
_TEXT_LIMIT = 1 << 16
_MORE_TIME = 2.0
"""Seconds beyond the limit of the host, which ends a script first, unless it is gone."""


class Channel:
    """The connection with the host."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = bytearray()
        self.execute: Callable[[str, str], tuple[str, str]] = _refuse

    def read(self) -> tuple[str, str]:
        """Wait for a message. Ends the process if the host is gone."""
        header = self._exactly(5)
        # Five bytes are there. This process imports nothing of the package.
        data = self._exactly(int.from_bytes(header[:4], "big") - 1)  # type: ignore[stored-bytes]
        return chr(header[4]), data.decode("utf-8", "surrogatepass")  # type: ignore[stored-bytes]

    def write(self, kind: str, text: str) -> None:
        """Send a message."""
        data = kind.encode() + text.encode("utf-8", "surrogatepass")
        left = memoryview(len(data).to_bytes(4, "big") + data)
        while left:
            left = left[os.write(self._writer, left) :]

    def call(self, text: str) -> tuple[str, str]:
        """Send a call, and wait for its answer. The host may call functions of the script meanwhile."""
        self.write("C", text)
        while True:
            kind, answer = self.read()
            if kind in "RE":
                return kind, answer
            self.write(*self.execute(kind, answer))

    def _exactly(self, size: int) -> bytes:
        buffer = self._buffer
        while len(buffer) < size:
            part = os.read(self._reader, max(size - len(buffer), 1 << 16))
            if not part:
                os._exit(0)
            buffer += part
        data = bytes(buffer[:size])
        del buffer[:size]
        return data


def _refuse(*_: str) -> tuple[str, str]:
    return failure("the script is not ready")


def failure(message: str, kind: str = "") -> tuple[str, str]:
    """Return the message that a script failed."""
    return "F", json.dumps({"name": "Error", "message": message[:_TEXT_LIMIT], "kind": kind})


class JavaScript:
    """Scripts in JavaScript, by QuickJS. Calls are promises: they are sent when the script waits for one."""

    def __init__(self, channel: Channel, config: dict[str, Any]) -> None:
        from _quickjs import Context, JSException

        self._channel = channel
        self._error = JSException
        self._calls: deque[tuple[int, str]] = deque()
        self._ends: dict[int, tuple[str, str]] = {}
        self._last = self._depth = 0
        self._problem = ""
        self._context = Context()
        self._context.set_memory_limit(config["memory"])
        self._context.set_max_stack_size(1 << 20)
        self._context.add_callable("__send", self._send)
        self._command = self._context.eval(config["prelude"])
        self._command("start", json.dumps(config["api"]))
        channel.execute = self.execute

    def execute(self, kind: str, text: str) -> tuple[str, str]:
        """Run a script, or call one of its functions, and return how it ended."""
        if kind == "I":
            return self._execute("invoke", text)
        source, _, args = json.loads(text)
        return self._execute("run", json.dumps([source, args]))

    def _execute(self, command: str, text: str) -> tuple[str, str]:
        self._last += 1
        self._depth += 1
        if self._depth == 1:
            self._problem = ""
        id = self._last
        try:
            self._command(command, id, text)
            self._work()
            while id not in self._ends:
                if not self._calls:
                    self._ends[id] = failure("the script waits for a promise that nothing settles")
                    self._command("abandon", id)
                    break
                self._settle()
            end = self._ends.pop(id)
            if self._depth > 1:
                return end
            while self._calls:  # what the script did not wait for
                self._settle(is_end=True)
            problem, self._problem = self._problem, ""
            return ("F", problem) if problem and end[0] == "D" else end
        except self._error as error:
            text = str(error)
            is_memory = text.startswith("null") or "out of memory" in text
            return failure("the script needs more memory than it may have" if is_memory else text, "memory" * is_memory)
        finally:
            self._depth -= 1

    def _work(self) -> None:
        while self._context.execute_pending_job():
            pass

    def _settle(self, *, is_end: bool = False) -> None:
        """Send the oldest call, and go on with what waits for it. An error that nobody handles is the script's."""
        id, call = self._calls.popleft()
        kind, answer = self._channel.call(call)
        if self._command("settle", id, kind, answer, is_end):
            self._problem = self._problem or answer
        self._work()

    def _send(self, kind: str, id: int, text: str) -> str:
        """Take a message of the prelude. An error must not be raised here: the engine would fail for good."""
        if kind == "C":
            self._calls.append((id, text))
        elif kind == "T":
            return "".join(self._channel.call(text))
        elif kind == "P":
            self._channel.write("P", text[:_TEXT_LIMIT])
        else:
            self._ends[id] = kind, text
        return ""


class Lua:
    """Scripts in Lua 5.4. A call waits for its answer."""

    def __init__(self, channel: Channel, config: dict[str, Any]) -> None:
        from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime

        def refuse(*_: Any) -> None:
            raise AttributeError("scripts do not see objects of Python")

        self._channel = channel
        self._errors = LuaError, LuaMemoryError
        runtime = LuaRuntime(
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=True,
            attribute_filter=refuse,
            encoding=None,
            max_memory=config["memory"],
        )
        self._table = runtime.table_from
        commands, self._makers = runtime.execute(config["prelude"].encode(), self._send, self._show)
        self._commands = {name: commands[name.encode()] for name in ("start", "run", "invoke")}
        self._make = {name.decode(): self._makers[name] for name in self._makers}
        self._commands["start"](self._plain(config["api"]))
        channel.execute = self.execute

    def execute(self, kind: str, text: str) -> tuple[str, str]:
        """Run a script, or call one of its functions, and return how it ended."""
        if kind == "I":
            number, values = json.loads(text)
            return self._execute("invoke", number, *map(self._value, values))
        source, name, args = json.loads(text)
        return self._execute(
            "run", source.encode("utf-8", "replace"), name.encode("utf-8", "replace"), self._value(args)
        )

    def _execute(self, command: str, *values: Any) -> tuple[str, str]:
        error, memory_error = self._errors
        try:
            kind, text = self._commands[command](*values)
            return kind.decode(), text.decode()
        except memory_error:
            return failure("the script needs more memory than it may have", "memory")
        except error as problem:
            return failure(str(problem))

    def _send(self, text: bytes) -> tuple[bool, Any]:
        kind, answer = self._channel.call(text.decode("utf-8", "replace"))
        if kind == "R":
            return True, self._value(json.loads(answer))
        return False, self._plain(json.loads(answer))

    def _show(self, kind: bytes, text: bytes) -> bytes | None:
        """Convert a text for the prelude, or print one."""
        if kind == b"base64":
            return b2a_base64(text, newline=False)
        if kind == b"text":
            return json.dumps(text[:_TEXT_LIMIT].decode("utf-8", "replace")).encode()
        self._channel.write("P", text[:_TEXT_LIMIT].decode("utf-8", "replace"))
        return None

    def _plain(self, tree: Any) -> Any:
        """Convert JSON to tables without kinds."""
        if type(tree) is str:
            return tree.encode()
        if type(tree) is list:
            return self._table([self._plain(item) for item in tree])
        if type(tree) is dict:
            return self._table({key.encode(): self._plain(item) for key, item in tree.items()})
        return tree

    def _value(self, tree: Any) -> Any:
        """Convert a value of the host."""
        kind = type(tree)
        if kind is str:
            return tree.encode("utf-8", "surrogatepass")
        if tree is None:
            return self._make["null"]
        if kind is list:
            return self._make["list"](self._items(tree))
        if kind is not dict:
            return tree
        if len(tree) == 1:
            ((mark, content),) = tree.items()
            if mark[:1] == "$":
                return self._marked(mark, content)
        return self._object(tree)

    def _object(self, tree: dict[str, Any]) -> Any:
        made = {key.encode("utf-8", "surrogatepass"): self._value(item) for key, item in tree.items()}
        return self._make["object"](self._table(made), self._table(list(made))) if len(made) > 1 else self._table(made)

    def _items(self, items: list[Any]) -> Any:
        return self._table([self._value(item) for item in items])

    def _marked(self, mark: str, content: Any) -> Any:
        if mark == "$script":
            return self._special(*content)
        if mark == "$object":
            return self._object(content)
        if mark == "$float":
            return float(content)
        if mark == "$bytes":
            return self._make["bytes"](a2b_base64(content))
        if mark in ("$tuple", "$set", "$frozenset"):
            return self._make[mark[1:]](self._items(content))
        if mark == "$dict":
            return self._make["dict"](self._pairs(content))
        if mark == "$int" and -(1 << 63) <= int(content, 0) < 1 << 63:
            return int(content, 0)
        text = json.dumps(content).encode()
        if mark == "$datetime":
            shown = content if type(content) is str else content[0]
            return self._make["datetime"](shown.encode(), text, _timestamp(shown))
        return self._make["opaque"](mark[1:].encode(), text, self._value(content))

    def _pairs(self, pairs: Any) -> Any:
        if type(pairs) is dict:
            return self._object(pairs)
        return self._table({self._value(key): self._value(item) for key, item in pairs})

    def _special(self, kind: str, *rest: Any) -> Any:
        if kind == "absent":
            return None
        if kind == "page":
            items, following, more = rest
            return self._make["page"](self._items(items), self._value(following), self._object(more))
        if kind == "handle":
            return self._make["handle"](rest[0].encode(), rest[1])
        name, fields, *reference = rest
        return self._make["record"](name.encode(), self._object(fields), *reference)


def _timestamp(text: str) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def limit_resources(memory: int) -> None:
    """Give up what a script does not need: memory, files, processes."""
    import resource

    limits = {"CORE": 0, "FSIZE": 0, "NPROC": 0, "NOFILE": 0}
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            used = int(file.read().split()[0]) * resource.getpagesize()
        limits["AS"] = used + 2 * memory + (32 << 20)
    except OSError:  # not on Linux: only the engine limits the memory
        pass
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def limit_time(seconds: float) -> None:
    """Let the system end the process after so many further seconds, if the host cannot: by the clock, and by processor
    time, which no change of the clock affects."""
    import resource

    signal.setitimer(signal.ITIMER_REAL, seconds + _MORE_TIME)
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds + _MORE_TIME) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def unlimit_time() -> None:
    """Let the process wait for the host for as long as it takes."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Serve the host until it goes away."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.close(nothing)
    channel = Channel(reader, writer)
    _, text = channel.read()
    config = json.loads(text)
    sys.path.append(config["path"])
    sys.setrecursionlimit(4000)
    from datetime import datetime as _datetime  # noqa: F401 - no file can be opened later

    engine = make_engine(channel, config)
    limit_resources(config["memory"])
    channel.write("S", "{}")
    while True:
        kind, text = channel.read()
        limit_time(config["timeout"])
        end = execute(engine, kind, text)
        unlimit_time()
        channel.write(*end)


def make_engine(channel: Channel, config: dict[str, Any]) -> Lua | JavaScript:
    """Start the engine of the language."""
    return (Lua if config["language"] == "lua" else JavaScript)(channel, config)


def execute(engine: Lua | JavaScript, kind: str, text: str) -> tuple[str, str]:
    """Execute a command, and return how it ended, also if the engine itself fails."""
    try:
        return engine.execute(kind, text)
    except MemoryError:
        return failure("the script needs more memory than it may have", "memory")
    except (SystemError, ValueError, TypeError, RecursionError) as error:  # of the engine's bindings
        return failure(f"the engine of the script failed: {error}")


if __name__ == "__main__":
    main()
