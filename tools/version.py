"""The version of the distribution, from git: `python tools/version.py`.

A commit with the tag `v1.2.3` is 1.2.3. One after it is 1.2.4.dev5+g0123abc, with the number of commits since; before
the first tag, those of all count toward 0.1.0. An sdist has its version in PKG-INFO. Elsewhere it is 0.0.0.
"""

from __future__ import annotations

import re
import subprocess
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?-(\d+)-(g[0-9a-f]+)")


def version(root: Path = ROOT) -> str:
    """Return the version of a checkout, or of an unpacked sdist."""
    info = root / "PKG-INFO"
    if info.exists():
        return str(HeaderParser().parsestr(info.read_text(encoding="utf-8"))["Version"])
    if not (root / ".git").exists():  # not that of a folder above
        return "0.0.0"
    described = _git(root, "describe", "--tags", "--match", "v[0-9]*", "--long", "--abbrev=12")
    if found := _DESCRIBED.fullmatch(described):
        major, minor, patch, pre, since, commit = found.groups()
        if since == "0":
            return f"{major}.{minor}.{patch}{pre or ''}"
        following = f"{patch}{pre}.post0" if pre else f"{int(patch) + 1}"
        return f"{major}.{minor}.{following}.dev{since}+{commit}"
    commit, count = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "rev-list", "--count", "HEAD")
    return f"0.1.0.dev{count}+g{commit}" if commit else "0.0.0"


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(("git", *arguments), cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # git is not installed
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    print(version())
