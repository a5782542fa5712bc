"""Build the native core into the package: hatchling's hook, and `python tools/native_build.py`. The hook also writes
the version into it.

Where there is no Rust, or it cannot build the core, the package works without: one line says so. With
`HOLDFAST_BUILD=native` that is a failure, and with `HOLDFAST_BUILD=python` nothing is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
CRATE = ROOT / "native"
VERSION = ROOT / "src" / "holdfast" / "_version.py"
LIBRARY = ROOT / "src" / "holdfast" / ("_native.pyd" if os.name == "nt" else "_native.abi3.so")
_BUILT = {"win32": "_native.dll", "darwin": "lib_native.dylib"}

_PATIENCE = {"CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "15"}
_MINUTES = 10


class NativeBuild(BuildHookInterface[Any]):
    """Puts the version and the native core into wheels and editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        VERSION.write_text(f'__version__ = "{self.metadata.version}"\n', encoding="utf-8")
        build_data["artifacts"].append(VERSION.relative_to(ROOT).as_posix())
        if build_core():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"cp311-abi3-{platform}")
            build_data["artifacts"].append(LIBRARY.relative_to(ROOT).as_posix())


def build_core() -> bool:
    """Build the core, and return whether it is there."""
    wanted = os.environ.get("HOLDFAST_BUILD", "")
    failure = "HOLDFAST_BUILD=python" if wanted == "python" else _build()
    if not failure:
        return True
    LIBRARY.unlink(missing_ok=True)
    if wanted == "native":
        sys.exit(f"the native core was not built: {failure}")
    print(f"holdfast: without the native core: {failure}", file=sys.stderr, flush=True)
    return False


def _build() -> str:
    """Build the core. Returns why it cannot be built, or nothing."""
    cargo = shutil.which("cargo")
    if cargo is None:
        return "cargo (Rust) is not installed"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python does not load the stable ABI"
    command = (cargo, "build", "--release", "--locked", "--quiet", "--features", "extension-module")
    environment = {**_PATIENCE, **os.environ, "CARGO_TARGET_DIR": str(CRATE / "target")}
    try:
        subprocess.run(
            command, cwd=CRATE, env=environment, check=True, stderr=subprocess.PIPE, text=True, timeout=60 * _MINUTES
        )
    except subprocess.TimeoutExpired:
        return f"cargo took more than {_MINUTES} minutes"
    except subprocess.CalledProcessError as error:
        return next((line for line in error.stderr.splitlines() if line.startswith("error")), "cargo failed")
    # A process may have loaded the one that is there.
    new = LIBRARY.with_suffix(".new")
    shutil.copyfile(CRATE / "target" / "release" / _BUILT.get(sys.platform, "lib_native.so"), new)
    new.replace(LIBRARY)
    return ""


if __name__ == "__main__":
    sys.exit(not build_core())
