"""Makes screenshots of every view of the web interface: `python -m tools.screenshots FOLDER [VIEW]...`.

Each is made at 1440 and 390 pixels, in both themes, of a store that is filled for it. Nothing of it is committed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast.interfaces.web.pages import page_routes
from tests.interfaces.http.kit import ServedStore
from tests.interfaces.web.kit import ACTION_VIEWS, VIEWS, fill_store
from tools import browser as browsers

WIDTHS, THEMES = (1440, 390), ("light", "dark")


def main(folder: Path, names: list[str]) -> None:
    """Write a file for each view, width and theme."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    views = {name: path for name, path in {**VIEWS, **ACTION_VIEWS}.items() if not names or name in names}
    with tempfile.TemporaryDirectory() as place, holdfast.open(Path(place, "agents.db")) as store:
        fill_store(store, Path(place))
        with ServedStore(store, page_routes, write=True) as served, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browsers.find(), args=list(browsers.ARGUMENTS))
            for width in WIDTHS:
                for theme in THEMES:
                    size = {"width": width, "height": 900}
                    context = browser.new_context(viewport=size, color_scheme=theme)
                    page = context.new_page()
                    served.sign_in(page.context)
                    for name, path in views.items():
                        page.goto(served.url + path)
                        page.screenshot(path=str(folder / f"{name}-{width}-{theme}.png"))
                    context.close()
            browser.close()
    print(f"{len(views) * len(WIDTHS) * len(THEMES)} screenshots in {folder}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
