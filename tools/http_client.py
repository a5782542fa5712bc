"""Writes `src/holdfast/interfaces/http/client.py`, the client of the HTTP API, from the table of routes.

`python -m tools.http_client`; `tests/interfaces/http/test_client.py` fails while the file says something else.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from holdfast.interfaces.http.admin_routes import ADMIN
from holdfast.interfaces.http.agent_step_routes import AGENT_STEPS
from holdfast.interfaces.http.app import ROUTES
from holdfast.interfaces.http.recording_routes import RECORDINGS
from holdfast.interfaces.http.routes import Route
from holdfast.interfaces.http.state_routes import STATES
from holdfast.interfaces.http.timeline_routes import TIMELINE

_FOLDER = Path(__file__).resolve().parent.parent / "src" / "holdfast" / "interfaces" / "http"
FILE = _FOLDER / "client.py"
RECORDS_FILE = _FOLDER / "record_client.py"
HISTORY_FILE = _FOLDER / "history_client.py"

_RECORDS = (*STATES.routes, *AGENT_STEPS.routes, *ADMIN.routes)
_HISTORY = (*TIMELINE.routes, *RECORDINGS.routes)
"""Routes whose methods are in files of their own."""

_HISTORY_HEAD = '''"""The part of the client for the timeline, calls of hooks, and recorded runs.

Made by `tools/http_client.py` from the table of routes: do not edit it.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.transport import HttpTransport


class HistoryClient(HttpTransport):
    """Operations on the timeline, on calls of hooks, and on recorded runs."""
'''

_RECORDS_HEAD = '''"""The part of the client for states, sessions, artifacts and agents, and for the store's owner.

Made by `tools/http_client.py` from the table of routes: do not edit it.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast.interfaces.http import admin_models, inputs, models
from holdfast.interfaces.http.history_client import HistoryClient


class RecordClient(HistoryClient):
    """Operations on states, sessions, artifacts and agents, and those for the store's owner."""
'''

_HEAD = '''"""The client of the HTTP API. Made by `tools/http_client.py` from the table of routes: do not edit it."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.interfaces.http import inputs, models
from holdfast.interfaces.http.record_client import RecordClient


class HttpClient(RecordClient):
    """The operations of a served store: `HttpClient("http://127.0.0.1:8765", token)`. Errors are those of a store.

    Changes take `if_match`, the id of the checkpoint that the caller has read as HEAD, and `key`, by which a change
    that is sent again is not made again.
    """
'''


def client() -> str:
    """The text of the module, formatted."""
    return _formatted(_HEAD, [route for route in ROUTES if route not in (*_RECORDS, *_HISTORY)])


def record_client() -> str:
    """The text of the module with the other part, formatted."""
    return _formatted(_RECORDS_HEAD, _RECORDS)


def history_client() -> str:
    """The text of the module with what happened and was recorded, formatted."""
    return _formatted(_HISTORY_HEAD, _HISTORY)


def _formatted(head: str, routes: Iterable[Route]) -> str:
    text = head + "".join(f"\n{method}" for route in routes for method in _method(route))
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "120", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _method(route: Route) -> Iterator[str]:
    fields = _fields(route.params, "params")
    if route.body is not None:
        fields += _fields(route.body, "body")
    required = [f"{name}: {kind}" for _, name, kind, default in fields if default is None]
    optional = [f"{name}: {kind} = {default}" for _, name, kind, default in fields if default is not None]
    key = "idempotency_key" if any(name == "key" for _, name, _, _ in fields) else "key"
    optional += ['if_match: str = ""', f'{key}: str = ""'] if route.writes else []
    arguments = ["self", *required, *(["*", *optional] if optional else [])]
    parts = {
        of: ", ".join(f"{name}={_given(name, default)}" for part, name, _, default in fields if part == of)
        for of in ("params", "body")
    }
    body = "None" if route.body is None else f"inputs.{route.body.__name__}({parts['body']})"
    more = f", if_match=if_match, key={key}" if route.writes else ""
    result = _type(route.result)
    yield (
        f"    def {route.name}({', '.join(arguments)}) -> {result}:\n"
        f'        """{route.summary}"""\n'
        f"        params = inputs.{route.params.__name__}({parts['params']})\n"
        f'        found: {result} = self.send("{route.method}", "{route.path}", params, {body}, {result}{more})\n'
        "        return found\n"
    )


def _fields(kind: Any, part: str) -> list[tuple[str, str, str, str | None]]:
    annotations: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        annotations |= inspect.get_annotations(each)
    return [
        (part, each.name, _optional(annotations[each.name], each), _default(each))
        for each in msgspec.structs.fields(kind)
    ]


def _optional(annotation: str, field: Any) -> str:
    annotation = {"Limit": "int"}.get(annotation, annotation)  # the server checks its bounds
    return f"{annotation} | None" if field.default_factory is not msgspec.NODEFAULT else annotation


def _default(field: Any) -> str | None:
    if field.default_factory is not msgspec.NODEFAULT:
        return "None"
    return None if field.default is msgspec.NODEFAULT else repr(field.default)


def _given(name: str, default: str | None) -> str:
    empty = {
        "changes": "{}",
        "remove": "[]",
        "resolve": "{}",
        "metadata": "{}",
        "names": "[]",
        "arguments": "[]",
        "options": "{}",
    }
    return f"{name} or {empty[name]}" if default == "None" and name in empty else name


def _type(kind: Any) -> str:
    if get_origin(kind) is None:
        return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    return f"models.{get_origin(kind).__name__}[{', '.join(map(_type, get_args(kind)))}]"


if __name__ == "__main__":
    FILE.write_text(client(), encoding="utf-8")
    RECORDS_FILE.write_text(record_client(), encoding="utf-8")
    HISTORY_FILE.write_text(history_client(), encoding="utf-8")
