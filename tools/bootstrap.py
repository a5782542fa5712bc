"""Make the development environment: `python tools/bootstrap.py .venv requirements/dev.txt`.

Uses nothing but the standard library. The environment is always made from scratch, so that it
holds what the lock says and nothing else.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MINIMUM = (3, 11)


def venv_package() -> str:
    """The Debian package that completes this interpreter's `venv` module."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}-venv"


def ensure_venv_module() -> None:
    """Install what `python -m venv` lacks on Debian and Ubuntu, or say what to do and stop."""
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return
    package = venv_package()
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and shutil.which("apt-get"):
        print(f"{sys.executable} has no ensurepip: installing {package}", file=sys.stderr)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(install, env=quiet, check=False, stdout=sys.stderr).returncode == 0:
            return
    sys.exit(
        f"{sys.executable} cannot make virtual environments: its ensurepip module is missing.\n"
        f"On Debian and Ubuntu, run:  sudo apt-get install {package}\n"
        "or name another Python:      make PYTHON=/path/to/python"
    )


def main(arguments: Sequence[str]) -> None:
    """Make the environment named first from the lock named second."""
    environment, lock = map(Path, arguments)
    if sys.version_info < MINIMUM:
        sys.exit(f"Holdfast needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
    ensure_venv_module()
    print(f"setting up {environment} with Python {sys.version.split()[0]}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
    scripts = "Scripts" if os.name == "nt" else "bin"
    pip = [str(environment / scripts / "python"), "-m", "pip", "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-input", "--require-hashes", "--requirement", str(lock)]
    subprocess.run([*pip, *install], check=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as failure:
        sys.exit(f"failed ({failure.returncode}): {' '.join(failure.cmd)}")
