"""The browser that the pages are tested in: one of this machine, or one that `make test` installs.

`python -m tools.browser` finds one or installs it, and says which. Playwright downloads its own where its server can be
reached; with CI=true, root gets the package of Debian or Ubuntu. Otherwise the command to install one is printed.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

MISSING = "no browser was found to test the pages in"

SILENCE = 10.0
"""How many seconds a download may say nothing."""

_LAUNCH = f"""
from playwright.sync_api import sync_playwright
from tools.browser import find
with sync_playwright() as playwright:
    playwright.chromium.launch(executable_path=find(), args={list(ARGUMENTS)!r}).close()
"""


def find() -> str | None:
    """Return the path of a Chromium or Chrome of this machine, or None: Playwright may have its own."""
    return os.environ.get("HOLDFAST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


def command_to_install() -> str:
    """Return the one command that installs a browser here."""
    if shutil.which("apt-get"):
        return f"{'' if _is_root() else 'sudo '}apt-get install chromium"
    return f"{Path(sys.executable).parent / 'playwright'} install --with-deps --only-shell chromium"


def ensure() -> bool:
    """Find a browser or install one. Returns whether there is one that starts."""
    if starts():
        return True
    if find() is None and download() and starts():
        return True
    if os.environ.get("CI") and _is_root() and shutil.which("apt-get"):
        install_package()
        return starts()
    return False


def starts() -> bool:
    """Return whether a browser starts: Playwright's own may lack libraries of the system."""
    return subprocess.run((sys.executable, "-c", _LAUNCH), capture_output=True, check=False).returncode == 0


def download() -> bool:
    """Have Playwright download its browser. Given up at its first error, or when nothing has come for a while."""
    print("set-up: trying to download a browser to test the pages in", file=sys.stderr, flush=True)
    command = (sys.executable, "-m", "playwright", "install", "--only-shell", "chromium")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        output = process.stdout

        def read() -> None:
            for line in output:
                lines.put(line)
            lines.put("")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while (line := lines.get(timeout=SILENCE)) and "Error: " not in line:
                pass
        except queue.Empty:
            line = "Error: nothing came"
        if line:
            os.killpg(process.pid, signal.SIGKILL)  # it would try its mirrors, one after the other
        reader.join()
    return not line and process.returncode == 0


def install_package() -> None:
    """Install the package of Debian or Ubuntu."""
    print("set-up: installing chromium with apt-get, to test the pages in", file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", *command], env=quiet, check=False, stdout=subprocess.DEVNULL)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


if __name__ == "__main__":
    there = ensure()
    print("a browser is there" if there else f"{MISSING}; install one: {command_to_install()}")
    sys.exit(0 if there else 1)
