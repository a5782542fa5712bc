"""Replay for scripts: the functions of `holdfast.replay`, with code and recordings that the host named."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast.errors import DeniedError, InvalidError, TooLargeError, UnavailableError
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.store.replay.report import ReplayReport
    from holdfast.store.replay.threads import HookReplay

_MAX_CALLS = 1000
"""How many calls of hooks a script replays at a time: as many as one process does, whose time is limited."""


class Replay:
    """The replays that a script has. It names nothing that is imported, and no file: only what the host gave it."""

    def __init__(
        self, code: Mapping[str, str] | None = None, recordings: Mapping[str, str | PathLike[str]] | None = None
    ) -> None:
        self._code = dict(code or {})
        self._recordings = dict(recordings or {})

    def run(self, source: Any, graph: Any, **options: Any) -> ReplayReport:
        """Replay a thread. See `holdfast.replay.run`."""
        found: ReplayReport = _call("run", self._source(source), self._find_code(graph), **options)
        return found

    def run_agent(self, store: Any, agent: Any, kind: Any, **options: Any) -> ReplayReport:
        """Replay the transitions of an agent. See `holdfast.replay.run_agent`."""
        found: ReplayReport = _call("run_agent", _require_store(store), agent, self._find_code(kind), **options)
        return found

    def run_hooks(self, store: Any, register: Any, **options: Any) -> HookReplay:
        """Replay calls of hooks. See `holdfast.replay.run_hooks`."""
        if options.get("limit", 0) > _MAX_CALLS:
            raise TooLargeError(f"a script replays at most {_MAX_CALLS} calls at a time", hint="Select them by since")
        found: HookReplay = _call("run_hooks", _require_store(store), self._find_code(register), **options)
        return found

    def compare(self, a: Any, b: Any, **options: Any) -> ReplayReport:
        """Compare two recordings. See `holdfast.replay.compare`."""
        found: ReplayReport = _call("compare", self._source(a), self._source(b), **options)
        return found

    def _find_code(self, name: Any) -> str:
        return str(_find(self._code, name, "code", "code"))

    def _source(self, source: Any) -> Any:
        """Return a store as it is, and the file of a recording by its name."""
        if isinstance(source, str):
            return _find(self._recordings, source, "recording", "recordings")
        return _require_store(source)


def _call(name: str, *args: Any, **options: Any) -> Any:
    """Call a function of `holdfast.replay`. The script does not see what the process of a failed replay wrote: it shows
    the host's code."""
    from holdfast import replay

    try:
        return getattr(replay, name)(*args, **options)
    except UnavailableError as error:
        if error.code != "replay-stopped":
            raise
        what, _, _ = error.what.partition(":")
        raise UnavailableError(what, hint="The host sees why, as the cause", code=error.code) from error


def _require_store(store: Any) -> Store:
    if not isinstance(store, Store):
        raise InvalidError(
            f"a recording must be in a store or named by the host, not in {type(store).__name__}",
            hint="An identity cannot replay",
        )
    return store


def _find(given: Mapping[str, Any], name: Any, what: str, option: str) -> Any:
    found = given.get(name) if isinstance(name, str) else None
    if found is None:
        raise DeniedError(
            f"the script was given no {what} of this name",
            where=f"{what} {str(name)[:80]!r}",
            hint=f"It has {', '.join(map(repr, given)) or 'none'}; the host names them by `{option}`",
        )
    return found
