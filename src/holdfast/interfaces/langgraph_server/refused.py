"""What clients can call, and this server does not do: each is refused with the reason."""

from __future__ import annotations

from typing import Any

from holdfast.errors import UnsupportedError
from holdfast.interfaces.http.routes import Route, RouteTable, input_type, names_in
from holdfast.interfaces.langgraph_server.routes import ClientCall

REFUSED = RouteTable()

_CRONS = ("runs by the clock are jobs of the store", "store.jobs.add(name, 'submit', schedule=…), holdfast work --jobs")

_ALL = (
    ("POST", "/runs/crons", *_CRONS),
    ("POST", "/threads/{thread_id}/runs/crons", *_CRONS),
    ("DELETE", "/runs/crons/{cron_id}", *_CRONS),
    ("PATCH", "/runs/crons/{cron_id}", *_CRONS),
    ("POST", "/runs/crons/search", *_CRONS),
    ("POST", "/runs/crons/count", *_CRONS),
)


def _add(method: str, path: str, what: str, hint: str) -> None:
    def refuse(call: ClientCall, **given: Any) -> Any:  # noqa: ARG001
        raise UnsupportedError(what, where=f"{method} {path}", hint=f"In place of it: {hint}")

    params = input_type("refuse", "Params", [(name, str) for name in names_in(path)])
    REFUSED.routes.append(Route(method, path, "refuse", what, refuse, params, None, Any, 200, False))


for _each in _ALL:
    _add(*_each)
