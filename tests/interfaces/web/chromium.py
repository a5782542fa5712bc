"""The browser that pages are tested in: one of the machine, or one that is installed for the tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INSTALL = "apt-get install chromium (Debian, Ubuntu), or python -m playwright install chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 600
ARGUMENTS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find_browser() -> str | None:
    """Return a Chromium or Chrome of this machine, or install one; None for the one that Playwright has, if any.

    Where a program may install packages (Debian's, as root), that is done; elsewhere Playwright downloads its own. Only
    CI installs anything unasked.
    """
    found = _find()
    if found is not None or not os.environ.get("CI"):
        return found
    with Path(tempfile.gettempdir(), "holdfast-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of one run install it once
        found = _find()
        if found is None and shutil.which("apt-get") and os.geteuid() == 0:
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
                subprocess.run(["apt-get", *command], env=quiet, check=False, timeout=_SECONDS, stdout=sys.stderr)
            found = _find()
        if found is None:
            command = [sys.executable, "-m", "playwright", "install", "chromium"]
            subprocess.run(command, check=False, timeout=_SECONDS, stdout=sys.stderr)
    return found


def _find() -> str | None:
    return os.environ.get("HOLDFAST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
