"""Finding a browser to test the pages in, and giving up on a download."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import browser

ROOT = Path(__file__).resolve().parents[1]


def test_a_browser_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CHROMIUM", "/opt/chromium")
    assert browser.find() == "/opt/chromium"
    monkeypatch.delenv("HOLDFAST_CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.find() is None
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert browser.find() == str(program)


@pytest.mark.nightly
@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_a_download_is_given_up_quickly(silent: bool, tmp_path: Path) -> None:
    """Nothing listens at the address, or something that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"http://127.0.0.1:{server.getsockname()[1]}"
        if not silent:
            server.close()
        variables = {**os.environ, "PLAYWRIGHT_DOWNLOAD_HOST": host, "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
        command = (sys.executable, "-c", "import sys; from tools import browser; sys.exit(browser.download())")
        start = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=variables, check=False, timeout=300)
    assert done.returncode == 0, "it says that there is a browser now"
    assert time.monotonic() - start < 6 * browser.SILENCE
