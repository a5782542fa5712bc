"""The files of a user by which browsers and programs sign in. No argument, address, log or environment has a secret:
other users of the machine could read it there."""

from __future__ import annotations

import hashlib
import html
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.interfaces.http.protection import SIGN_IN

_DOWNLOADS = re.compile(r'^XDG_DOWNLOAD_DIR="(.+)"$', re.MULTILINE)
_RELATIVE = re.compile(r":///(?!/)")
_NAME = re.compile(r"[0-9a-f]{24}\.localhost")
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Holdfast</title>
<form method="post" action="{address}">
<input type="hidden" name="code" value="{code}"><button>Open Holdfast</button>
</form>
<script>document.forms[0].submit();</script>
</html>
"""


def state_folder() -> Path:
    """Return the folder in which Holdfast keeps what is this user's, and create it for this user alone."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "holdfast")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def token_file(port: int, token: str) -> Iterator[Path]:
    """Write the token of a server to a file, for programs of this user, as long as the server runs."""
    try:
        path = state_folder() / f"{port}.token"
        path.unlink(missing_ok=True)  # of a server that was killed
        _write(path, token)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"the token of the start cannot be written: {error}",
            hint="Let XDG_STATE_HOME name a folder of this user, or accept only issued tokens: --no-start-token",
        ) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def loopback_name(store: object) -> str:
    """Return the name under which this user's browsers reach a store, the same every time, so that bookmarks last.

    Nobody else knows it, so no other program of this machine gets its cookies.
    """
    fresh = f"{secrets.token_hex(12)}.localhost"
    place = repr(store)
    if _RELATIVE.search(place):
        place = f"{place} in {Path.cwd()}"
    try:
        folder = state_folder() / "names"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / hashlib.sha256(place.encode()).hexdigest()[:32]
        found = path.read_text() if path.exists() else ""
        if _NAME.fullmatch(found) and path.stat().st_mode & 0o077 == 0:
            return found
        path.unlink(missing_ok=True)
        _write(path, fresh)
    except (OSError, RuntimeError, UnicodeDecodeError):
        return fresh  # for this time
    return fresh


class SignInFile:
    """A page in a file that sends a code to the server: a browser is told to open the file, and not the code."""

    def __init__(self, url: str, code: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-sign-in-", dir=visible_folder()))
        self.path: Path = self._folder / "open.html"
        _write(self.path, _PAGE.format(address=html.escape(f"{url.rstrip('/')}{SIGN_IN}"), code=code))

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self._folder, ignore_errors=True)


def visible_folder() -> Path:
    """Return the folder for files that a browser opens. On Linux a browser may be confined: one of snap sees neither
    /tmp nor hidden folders, and one of flatpak only the downloads."""
    if sys.platform != "linux":
        return Path(tempfile.gettempdir())
    home = Path.home()
    try:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "user-dirs.dirs").read_text()
    except (OSError, UnicodeDecodeError):
        config = ""
    found = _DOWNLOADS.search(config)
    downloads = Path(found[1].replace("$HOME", str(home))) if found else home / "Downloads"
    return downloads if downloads.is_dir() and os.access(downloads, os.W_OK) else home


def _write(path: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
