"""Payloads of deserialization attacks: values and bytes that run code in a program that revives what it reads.

Each would create the directory of a `Canary`. They are data: nothing here runs any of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.msgpack import Ext, encode

from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.tags import Tag
from holdfast.errors import HoldfastError

_CALLABLES = ("os:mkdir", "os:makedirs", "pathlib:Path.mkdir", "builtins:eval", "builtins:exec", "subprocess:Popen")


class Canary:
    """A directory that the payloads create: if it exists, one of them ran."""

    def __init__(self, folder: Path) -> None:
        self.path: Path = folder / "canary"

    def check(self, what: str) -> None:
        """Raise `AssertionError` if a payload ran."""
        assert not self.path.exists(), f"code of a payload ran: {what}"


def constructor_payload(canary: Canary) -> dict[str, Any]:
    """Return what LangGraph's JSON form revived by a call of any function (CVE-2025-64439)."""
    return {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [str(canary.path)]}


def method_payload(canary: Canary) -> dict[str, Any]:
    """Return what its later form revived by any method of a known class: one that unpickles (CVE-2026-48775)."""
    return {
        "lc": 2,
        "type": "constructor",
        "id": ["langchain_core", "messages", "human", "HumanMessage"],
        "method": "parse_raw",
        "args": [pickle_payload(canary).decode("ascii")],
        "kwargs": {"proto": "pickle", "allow_pickle": True},
    }


def pickle_payload(canary: Canary) -> bytes:
    """Return a pickle that calls a function when it is read (CVE-2026-27794). The path must be ASCII."""
    return b"cos\nmkdir\n(V" + str(canary.path).encode("ascii") + b"\ntR."


def msgpack_payload(canary: Canary) -> bytes:
    """Return msgpack whose extension type calls a function when LangGraph reads it (CVE-2026-28277)."""
    return encode(Ext(0, encode(["os", "mkdir", str(canary.path)])))


def hostile_values(canary: Canary) -> dict[str, Any]:
    """Return values that are code, or secrets, to some reader. A store returns them as they are."""
    path, pickled = str(canary.path), pickle_payload(canary)
    return {
        "a constructor in JSON": constructor_payload(canary),
        "beside half a character": {"text": "\ud800", "value": constructor_payload(canary)},
        "a method in JSON": method_payload(canary),
        "a constructor of LangChain": {**constructor_payload(canary), "lc": 1, "kwargs": {"path": path}},
        "a secret of LangChain": {"lc": 1, "type": "secret", "id": ["PATH"]},
        "jsonpickle": {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [path]}]},
        "a type of .NET": {"$type": "System.Diagnostics.Process, System", "StartInfo": path},
        "YAML": f"!!python/object/apply:os.mkdir [{path!r}]",
        "a template": f"{{{{ cycler.__init__.__globals__.os.mkdir({path!r}) }}}}",
        "a format": "{0.__class__.__init__.__globals__}",
        "a pickle": pickled,
        "a pickle in text": pickled.decode("ascii"),
        "msgpack": msgpack_payload(canary),
        "operators": {"$where": f"mkdir({path!r})", "$ne": None, "$gt": ""},
        "attributes": {"__class__": "os.mkdir", "__reduce__": [path], "__proto__": {"polluted": True}},
    }


def forged_values(canary: Canary) -> dict[str, OpaqueValue]:
    """Return values whose stored bytes name functions and classes: the bytes that somebody who can write to a database
    would store. They may be read as anything that runs no code."""
    path = str(canary.path)
    forms: dict[str, Any] = {
        "alone": lambda name: [name],
        "with arguments": lambda name: [name, [path]],
        "with fields": lambda name: [name, {"path": path, "name": path, "args": [path]}],
        "with a state": lambda name: [name, [path], {"args": [path], "__dict__": {"x": path}}],
    }
    tags = [tag for tag in Tag if tag >= Tag.DATACLASS]
    found = {
        f"{Tag(tag).name.lower()} of {name} {form}": OpaqueValue(tag, encode(parts(name)))
        for tag in tags
        for name in _CALLABLES
        for form, parts in forms.items()
    }
    found["LangGraph's constructor"] = OpaqueValue(0, encode(["os", "mkdir", path]))
    found["LangGraph's method"] = OpaqueValue(3, encode(["os", "path", path, "mkdir"]))
    found["a timestamp"] = OpaqueValue(127, pickle_payload(canary))
    return found


def hostile_bodies(canary: Canary) -> dict[str, bytes]:
    """Return contents to put in the place of those of stored rows."""
    return {
        "a pickle": pickle_payload(canary),
        "msgpack": msgpack_payload(canary),
        "JSON": json.dumps(constructor_payload(canary)).encode(),
        "a method": json.dumps(method_payload(canary)).encode(),
        "nothing": b"",
        "brackets": b"\x91" * 5000,
        "a map without an end": b"\xdf\xff\xff\xff\xff",
        "an array without an end": b"\xdd\xff\xff\xff\xff",
    }


def is_refused(use: Callable[[], Any], what: str) -> bool:
    """Return whether a call raises an error of Holdfast. `AssertionError` for any other error."""
    try:
        use()
    except HoldfastError:
        return True
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of an error of Holdfast, {what}: {error}") from error
    return False
