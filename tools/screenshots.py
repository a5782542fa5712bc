"""Makes screenshots of every view of the web interface: `python -m tools.screenshots FOLDER [VIEW]...`.

Each is made at 1440 and 390 pixels, in both themes, of a store that is filled for it. `python -m tools.screenshots
FOLDER --pictures` makes twelve for documents, each once; none of these is committed. `python -m tools.screenshots
docs/assets --readme` makes that of the README, light and dark, which is.
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

PICTURES = {
    "overview": (1440, "light"),
    "threads": (1440, "light"),
    "conversation": (1440, "light"),
    "waiting": (1440, "light"),
    "failed": (1440, "light"),
    "diff": (1440, "dark"),
    "compare": (1440, "light"),
    "timeline": (1440, "light"),
    "agent": (1440, "light"),
    "restore": (1440, "light"),
    "identity": (1440, "dark"),
    "state": (390, "dark"),
}
"""The views of the pictures for documents, each with its width and theme."""


def main(folder: Path, names: list[str]) -> None:
    """Write a file for each view, width and theme; or the pictures."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    known = {**VIEWS, **ACTION_VIEWS}
    if is_readme := names == ["--readme"]:
        names = ["conversation"]
    chosen = PICTURES if names == ["--pictures"] else {name: None for name in known if not names or name in names}
    widths = WIDTHS[:1] if is_readme else WIDTHS
    sizes = {name: [size] if size else [(w, t) for w in widths for t in THEMES] for name, size in chosen.items()}
    made = 0
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
                    for name in (name for name, all_ in sizes.items() if (width, theme) in all_):
                        page.goto(served.url + known[name])
                        file = f"{name}.png" if chosen is PICTURES else f"{name}-{width}-{theme}.png"
                        page.screenshot(path=str(folder / file))
                        made += 1
                    context.close()
            browser.close()
    print(f"{made} screenshots in {folder}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
