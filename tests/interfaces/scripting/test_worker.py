"""The worker, in the process of the test: its messages, its engines, and how it reports what goes wrong."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.interfaces.scripting import process, worker
from holdfast.interfaces.scripting.functions import OPERATORS, type_names
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES
from holdfast.interfaces.scripting.values import error_classes


class Host:
    """The other end of a worker's pipes."""

    def __init__(self, language: str) -> None:
        (reader, self._to), (from_worker, writer) = os.pipe(), os.pipe()
        api = {
            "types": {name: type_names(name) for name in OBJECT_TYPES},
            "errors": error_classes(),
            "operators": OPERATORS,
            "root": "Store",
        }
        _, prelude = process._engine(language)
        config = json.loads(json.dumps({"language": language, "prelude": prelude, "api": api, "memory": 32 << 20}))
        self._file = os.fdopen(from_worker, "rb")
        self.problem: BaseException | None = None
        channel = worker.Channel(reader, writer)

        def serve() -> None:  # an engine stays in the thread that made it
            try:
                engine = worker.make_engine(channel, config)
                while (command := channel.read())[0] != "Q":
                    channel.write(*worker.execute(engine, *command))
            except BaseException as error:
                self.problem = error
            finally:
                os.close(writer)

        self._reader = reader
        self._thread = threading.Thread(target=serve)
        self._thread.start()

    def write(self, kind: str, text: str) -> None:
        worker.Channel(-1, self._to).write(kind, text)

    def read(self) -> tuple[str, str]:
        size = int.from_bytes(self._file.read(4), "big")
        assert size, self.problem
        data = self._file.read(size).decode()
        return data[0], data[1:]

    def run(self, source: str, *answers: tuple[str, Any]) -> tuple[list[str], tuple[str, Any]]:
        """Run a script, give these answers to its calls, and return the calls and how it ended."""
        self.write("X", json.dumps([source, "script", {"a": [1, None, {"$tuple": [2.5]}]}]))
        calls: list[str] = []
        left = list(answers)
        while True:
            kind, text = self.read()
            if kind not in "CP":
                return calls, (kind, json.loads(text))
            calls.append(text)
            if kind == "C":
                answer, value = left.pop(0)
                self.write(answer, json.dumps(value))
                if answer == "I":
                    calls.append(str(self.read()))
                    answer, value = left.pop(0)
                    self.write(answer, json.dumps(value))

    def close(self) -> None:
        self.write("Q", "")
        self._thread.join()
        self._file.close()
        for descriptor in (self._to, self._reader):
            os.close(descriptor)


@pytest.fixture(params=["lua", "javascript"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(request.param)
    yield made
    made.close()


def test_messages(host: Host, request: pytest.FixtureRequest) -> None:
    is_lua = request.node.callspec.params["host"] == "lua"
    assert host.run("return args.a") == ([], ("D", [1, None, {"$tuple": [2.5]}]))
    source = "return store:thread('x'):get()" if is_lua else "return await store.thread('x').get()"
    every = {
        "date": {"$datetime": "2026-01-02T03:04:05"},
        "zone": {"$datetime": ["2026-01-02T03:04:05", {"$zoneinfo": "UTC"}, 0]},
        "bytes": {"$bytes": "AAE="},
        "big": {"$int": str(10**30)},
        "pairs": {"$dict": [[1, 2]]},
        "other": {"$decimal": "1.5"},
        "object": {"$object": {"$x": 1}},
        "set": {"$set": [1]},
    }
    calls, end = host.run(source, ("R", every))
    assert calls == ['[[0,[["thread",["x"]]]],"get",[]]']
    expected = {**every, "big": 10**30} if not is_lua else every
    assert end == ("D", expected)
    error = {"name": "NotFoundError", "code": "not-found", "what": "no", "where": "x", "hint": "", "message": "no"}
    _, (kind, form) = host.run(source, ("E", error))
    assert (kind, form["code"], form["what"]) == ("F", "not-found", "no")
    page = {"$script": ["page", [{"$script": ["record", "Checkpoint", {"id": "c1"}]}], None, {"stopped": False}]}
    taken = "return store:thread('x'):log()[1].id" if is_lua else "return (await store.thread('x').log())[0].id"
    assert host.run(taken, ("R", page))[1] == ("D", "c1")
    handle = {"$script": ["handle", "Watch", 7]}
    polled = (
        "return store:state('a'):watch():poll()" if is_lua else "return await (await store.state('a').watch()).poll()"
    )
    assert host.run(polled, ("R", handle), ("R", []))[0][1] == '[[7,[]],"poll",[]]'


def test_functions_are_called_while_a_script_waits(host: Host, request: pytest.FixtureRequest) -> None:
    is_lua = request.node.callspec.params["host"] == "lua"
    source = (
        "return store:transaction(function(n) return n + 1 end)"
        if is_lua
        else "return await store.transaction((n) => n + 1)"
    )
    calls, end = host.run(source, ("I", [1, [4]]), ("R", 5))
    assert calls[1] == "('D', '5')"
    assert end == ("D", 5)
    calls, _ = host.run(source, ("I", [99, []]), ("R", None))
    assert "not-found" in calls[1]


def test_what_goes_wrong_is_reported(host: Host, request: pytest.FixtureRequest) -> None:
    is_lua = request.node.callspec.params["host"] == "lua"
    assert host.run("return 1 +")[1][1]["kind"] == "syntax"
    printed, end = host.run("print('a') error('b')" if is_lua else "print('a'); throw new Error('b')")
    assert printed == ["a"]
    assert "b" in end[1]["message"]
    memory = (
        "local t = {} while true do t[#t + 1] = {} end" if is_lua else "const a = []; for (;;) a.push('x' + a.length)"
    )
    assert host.run(memory)[1][1]["kind"] == "memory"
    if not is_lua:
        assert "nothing settles" in host.run("await new Promise(() => {})")[1][1]["message"]
        assert host.run("store.thread('x').get()", ("E", {"name": "X", "code": "x", "what": "w"}))[1][1]["code"] == "x"


def test_an_engine_that_fails_is_reported() -> None:
    class Broken:
        def __init__(self, error: Exception) -> None:
            self._error = error

        def execute(self, *_: str) -> tuple[str, str]:
            raise self._error

    for error, kind in ((MemoryError(), "memory"), (SystemError("x"), "")):
        end, text = worker.execute(Broken(error), "X", "")  # type: ignore[arg-type]
        assert (end, json.loads(text)["kind"]) == ("F", kind)
    assert worker._refuse("X")[0] == "F"
