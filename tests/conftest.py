"""Settings for the whole test suite."""

import gc
import os
import pkgutil
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.support.kills import take_count
from tests.support.nightly import EVERYDAY_EXAMPLES
from tests.support.temporary_root import temporary_root
from tests.support.time_limit import (  # noqa: F401 - hooks of pytest
    pytest_addoption,
    pytest_configure,
    pytest_runtest_call,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)

# No deadlines: a shared runner may pause for longer than any useful limit. No more examples than a run has time for.
# The everyday examples are the same on every run and for everyone, so that a red run is red again. `make nightly` draws
# new ones, and keeps what it finds in .hypothesis/.
# Where CI is set, Hypothesis by itself draws no new ones and keeps none: each profile says what it wants.
_anywhere = settings(
    settings.get_profile("default"),
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("everyday", _anywhere, max_examples=EVERYDAY_EXAMPLES, derandomize=True)
settings.register_profile("nightly", _anywhere, max_examples=50)
settings.register_profile("torture", _anywhere, max_examples=20_000)
settings.load_profile("everyday")


@pytest.fixture(scope="session", autouse=True)
def _examples_are_the_same_for_everyone() -> Iterator[None]:
    """Hypothesis also tries constants of the modules that a process has loaded, which each process has others of."""
    with pytest.MonkeyPatch.context() as patch:
        if settings().derandomize:
            patch.setattr(providers, "_get_local_constants", Constants)
        yield


# Where `tmp_path` is: the tests of a disk that fails or loses its power have disks of their own.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(temporary_root()))


# A shell starts what runs in the background with interrupts ignored, and every process of a test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _hooks_have_time() -> None:
    """No hook is late because the machine is: a test of late ones tells how long they may take."""
    from holdfast.hooks import api

    api.BEFORE_BUDGET = api.AFTER_BUDGET = 120.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes that others prevent are given up after a few attempts, and not after half a minute."""
    from holdfast.engine import optimistic

    monkeypatch.setattr(optimistic, "PATIENCE", 0.0)


STORES = ("sqlite", "file", "postgres", "pgbouncer", "redis", "mongodb", "s3")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the night what the same test does on SQLite; and do not measure again what it has run on another store.

    A fault of the engine shows on either store, and the store in memory has tests of its own. Measuring more than
    doubles the time that a test takes. Every store has tests of its own, which are measured.
    """
    daily = {item.nodeid for item in items if item.get_closest_marker("nightly") is None}
    for item in items:
        name, _, case = item.nodeid.partition("[")
        if "memory" in case and f"{name}[{case.replace('memory', 'sqlite')}" in daily:
            item.add_marker(pytest.mark.nightly)
            daily.discard(item.nodeid)
    if not config.pluginmanager.hasplugin("_cov"):
        return
    for item in items:
        name, _, case = item.nodeid.partition("[")
        others = (case.replace(store, other) for store in STORES if store in case for other in ("memory", "sqlite"))
        if any(f"{name}[{other}" in daily for other in others if other != case):
            item.add_marker(pytest.mark.no_cover)
    _load_all()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note how many processes a test has killed."""
    if call.when == "call" and (kills := take_count()):
        item.user_properties.append(("kills", kills))


def pytest_collection_finish() -> None:
    """Leave all that is imported out of the collections of garbage to come, which would go through it each time."""
    gc.collect()
    gc.freeze()


LEFT_OUT = {"torture": "make torture", "nightly": "make nightly"}
"""The marks of tests that a run may leave out, and what runs them."""

_left_out: dict[str, int] = {}


@pytest.hookimpl(trylast=True)
def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left out by its mark."""
    for item in items:
        mark = next((mark for mark in LEFT_OUT if item.get_closest_marker(mark)), None)
        if mark is not None:
            _left_out[mark] = _left_out.get(mark, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that directs the tests, where there is one."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take what a process of pytest-xdist has counted: each of them collects all tests."""
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


_ELSEWHERE = ("holdfast.agent_framework", "holdfast.google_adk", "holdfast.pydantic_ai")
"""Adapters whose frameworks are installed in environments of their own: `make adapters` tests them."""


def _load_all() -> None:
    """Load every module: one that is loaded first by a test that is not measured would look as if it never was."""
    import holdfast

    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__") and module.name not in _ELSEWHERE:
            pkgutil.resolve_name(module.name)


def pytest_unconfigure() -> None:
    """Stop the servers that the tests of this process started."""
    servers = sys.modules.get("tests.servers")
    if servers is not None:
        servers.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested: what was left out, and which servers could not be had."""
    for mark, count in sorted(_left_out.items()):
        terminalreporter.line(f"left out: {count} tests marked {mark}; `{LEFT_OUT[mark]}` runs them")
    if not terminalreporter.config.pluginmanager.hasplugin("_cov"):
        terminalreporter.line("left out: coverage; `make nightly` measures it")
    outcomes = terminalreporter.stats.get("skipped", []) + terminalreporter.stats.get("failed", [])
    if not outcomes:
        return
    from tests.servers import MISSING

    texts = [report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr) for report in outcomes]
    missing = sorted({text.partition(MISSING)[2].splitlines()[0] for text in texts if MISSING in text})
    if missing:
        terminalreporter.section("servers that were missing", red=True)
        for each in missing:
            terminalreporter.line(each.removeprefix(": "))
