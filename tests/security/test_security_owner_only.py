"""Whatever takes a store takes an identity's view safely, or refuses it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi
from holdfast.errors import DeniedError, HoldfastError
from holdfast.jobs import JobRunner
from holdfast.maintenance.jobs.api import AsyncJobs, Jobs
from holdfast.state.scope_state import AsyncState, State
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store
from tests.test_api import MODULES

VIEWS = {
    *("AsyncAgents", "AsyncArtifacts", "AsyncCheckpointer", "AsyncIdentityErasure", "AsyncIdentityRedaction"),
    *(
        "AsyncIdentityRuns",
        "AsyncIdentityView",
        "AsyncSession",
        "AsyncSessions",
        "AsyncSharing",
        "AsyncState",
        "AsyncThread",
    ),
    *("AsyncTimeline", "AsyncWatch", "Agents", "Artifacts", "CheckpointStore", "Checkpointer", "HoldfastSaver"),
    *(
        "IdentityErasure",
        "IdentityRedaction",
        "IdentityRuns",
        "IdentityView",
        "Sandbox",
        "ScriptHook",
        "Session",
        "Sessions",
    ),
    *("Sharing", "State", "Thread", "Timeline", "Watch"),
    *("HoldfastCache", "HoldfastChatHistory", "HoldfastSession", "HoldfastStore", "export_threads", "import_threads"),
}
"""The classes that views use themselves, or are given: their calls ask the guard (see `test_probe`)."""


def public_names() -> dict[str, Any]:
    """Return everything public that takes a store, or its handle, by name: what is imported, and parts of a store."""
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        found |= {each: getattr(module, each) for each in module.__all__}
    for layer in ("agents", "hooks", "maintenance.jobs", "state", "store"):
        folder = importlib.import_module(f"holdfast.{layer}")
        for each in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            for name, value in vars(importlib.import_module(each.name)).items():
                if isinstance(value, type) and issubclass(value, SyncApi | AsyncApi) and not name.startswith("_"):
                    found[name] = value
    del found["SyncApi"], found["AsyncApi"]
    return {name: value for name, value in found.items() if callable(value) and store_parameters(value)}


_STORE = re.compile(r"\b(Async)?Store(Operations)?\b")


def store_parameters(value: Callable[..., Any]) -> dict[str, bool]:
    """Return the names of the parameters that are stores, and whether they are handles."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return {}
    kinds = {each.name: str(each.annotation) for each in parameters}
    return {
        name: "StoreHandle" in kind
        for name, kind in kinds.items()
        if "StoreHandle" in kind or "JobHost" in kind or _STORE.search(kind)
    }


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as opened:
        opened.thread("t").put({"word": "secret"})
        opened.jobs.add("tidy", "tidy")
        yield opened


def build(value: Any, store: Store | IdentityView, folder: Path) -> Any:
    """Call something public with a store, and whatever else it needs."""
    given = {name: store._handle if handle else store for name, handle in store_parameters(value).items()}
    needed: dict[str, Any] = {
        "notes": None,
        "recorder": None,
        "target": folder / "repository",
        "options": {},
        "file": folder / "file",
        "thread": "t",
        "graph": "tests.security.test_security_owner_only:graph",
        "agent": "a",
        "kind": "tests.security.test_security_owner_only:graph",
        "register": "tests.security.test_security_owner_only:register",
        "state": dict,
        "make": type(store),
        "keys": None,
    }
    parameters = inspect.signature(value).parameters.values()
    rest = [each for each in parameters if each.default is each.empty and each.name not in given]
    positional = [given.pop("stores")] if "stores" in given else []
    named = {each.name: needed.get(each.name) for each in rest if each.kind not in _VARIADIC}
    result = value(*positional, **given, **named)
    return list(result) if inspect.isgenerator(result) else result


def test_what_is_the_owners_refuses_a_view(store: Store, tmp_path: Path) -> None:
    view = store.as_identity(agent="a")
    names = public_names()
    assert names.keys() > {"Jobs", "JobRunner", "Maintenance", "Erasure", "Backups", "Audit", "EncryptionKeys"}, (
        "are these all?"
    )
    assert names.keys() >= VIEWS, f"not there: {VIEWS - names.keys()}"
    for name in sorted(names.keys() - VIEWS):
        with pytest.raises(HoldfastError) as caught:
            build(names[name], view, tmp_path)
        assert caught.value.code in ("owner-only", "invalid"), name
        if isinstance(names[name], type) and not name.startswith("Async"):
            built = build(names[name], store, tmp_path)
            getattr(built, "close", bool)()
    assert State in names.values()
    assert AsyncState in names.values()


def test_the_jobs_of_the_owner_stay(store: Store) -> None:
    view: Any = store.as_identity(agent="a")
    for kind in (Jobs, AsyncJobs, JobRunner):
        with pytest.raises(DeniedError, match="only the owner of the store"):
            kind(view)
    Jobs(store).add("own", "tidy")
    assert [each.name for each in Jobs(store).list()] == ["own", "tidy"]
    assert Jobs(store).remove("own")
