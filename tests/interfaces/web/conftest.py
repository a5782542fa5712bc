"""A served store, and a real browser to look at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.kit import fill_store
from tools import browser as browsers


@pytest.fixture(scope="module")  # it keeps an event loop running in this thread, which other tests must not find
def browser() -> Iterator[Any]:
    """A Chromium. Without one, the tests fail where CI is set, and are skipped loudly elsewhere."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=browsers.find(), args=list(browsers.ARGUMENTS))
        except Error as error:
            what = f"{browsers.MISSING}; install one: {browsers.command_to_install()}\n{error}"
            if os.environ.get("CI"):
                pytest.fail(what)
            pytest.skip(what)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has a conversation of 120 steps, odd threads, and something for every view."""
    folder = tmp_path_factory.mktemp("web")
    with holdfast.open(folder / "agents.db") as store:
        fill_store(store, folder)
    return folder


def copy_filled(factory: pytest.TempPathFactory, folder: Path) -> Path:
    """The file of a copy of that store."""
    return Path(shutil.copytree(folder, factory.mktemp("copy") / "filled"), "agents.db")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, filled_folder: Path) -> Iterator[holdfast.Store]:
    """A copy of that store."""
    with holdfast.open(copy_filled(tmp_path_factory, filled_folder)) as store:
        yield store


@pytest.fixture(scope="session")
def served(filled: holdfast.Store) -> Iterator[ServedStore]:
    """That store, served with its pages."""
    with ServedStore(filled, page_routes) as served:
        yield served


@pytest.fixture
def context(browser: Any, served: ServedStore) -> Iterator[Any]:
    """A signed-in context of the browser."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    served.sign_in(context)
    yield context
    context.close()


@pytest.fixture
def page(context: Any) -> Iterator[Any]:
    """A page that reports every error and every refused load as a failure."""
    page, problems = context.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.problems = problems
    yield page
    assert problems == []


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where screenshots go: a folder that `HOLDFAST_SCREENSHOTS` names, or one of the test's own."""
    folder = Path(os.environ.get("HOLDFAST_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
