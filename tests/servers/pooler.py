"""PgBouncer in transaction mode.

It is in no package index for Python. One on the PATH is used; else Debian's package is unpacked under `build/`, for
which nobody needs to be root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import psycopg

from tests.servers.postgresql import PostgresServer
from tests.servers.processes import HOST, Missing, Server, usable

_CACHE = Path(__file__).resolve().parents[2] / "build" / "pgbouncer"


class PgBouncerServer(Server):
    """A PgBouncer in front of a PostgreSQL server: all its databases, and all its users without a password."""

    name = "PgBouncer"

    def __init__(self, behind: PostgresServer) -> None:
        self._program, self._libraries = _find()
        self.behind = behind
        super().__init__()

    @property
    def url(self) -> str:
        """The first database behind it."""
        return self.through(self.behind.url)

    def fresh(self) -> str:
        """The URL of a new, empty database behind it."""
        return self.through(self.behind.fresh())

    def through(self, url: str) -> str:
        """The URL of a database behind it, through it."""
        return url.replace(f":{self.behind.port}/", f":{self.port}/")

    def command(self) -> list[str | Path]:
        (self.directory / "users.txt").write_text('"app" ""\n')
        (self.directory / "pgbouncer.ini").write_text(
            "\n".join(
                [
                    "[databases]",
                    f"* = host={HOST} port={self.behind.port} auth_user=app",
                    "[pgbouncer]",
                    f"listen_addr = {HOST}",
                    f"listen_port = {self.port}",
                    "unix_socket_dir =",
                    "auth_type = trust",
                    f"auth_file = {self.directory / 'users.txt'}",
                    "admin_users = app",
                    "pool_mode = transaction",
                    "server_login_retry = 1",
                ]
            )
        )
        return [self._program, self.directory / "pgbouncer.ini"]

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": self._libraries} if self._libraries else {}

    def answers(self) -> None:
        psycopg.connect(self.url, connect_timeout=2, prepare_threshold=None).close()


def _find() -> tuple[Path, str]:
    """The program, and where its libraries are unless the system has them."""
    installed = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return usable(Path(installed)), ""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes look for it at the same time
        program = _CACHE / "root/usr/sbin/pgbouncer"
        if not (_CACHE / "complete").exists():
            _unpack(program)
            (_CACHE / "complete").touch()
    return usable(program), _libraries()


def _unpack(program: Path) -> None:
    for tool in ("apt-get", "apt-cache", "dpkg", "ldd"):
        if shutil.which(tool) is None:
            raise Missing("there is no pgbouncer on the PATH, and no apt to get one; install it")
    _download("pgbouncer")
    if "not found" in _output("ldd", str(program)):
        lines = _output("apt-cache", "depends", "--important", "pgbouncer").splitlines()
        names = [line.split(": ")[1] for line in lines if "Depends: lib" in line]
        _download(*(name for name in names if not _installed(name)))


def _installed(package: str) -> bool:
    asked = ("dpkg-query", "--show", "--showformat=${Status}", package)
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.endswith(" installed")


def _download(*packages: str) -> None:
    got = _CACHE / "packages"
    got.mkdir(exist_ok=True)
    _output("apt-get", "download", *packages, cwd=got)
    for package in got.glob("*.deb"):
        _output("dpkg", "-x", str(package), str(_CACHE / "root"))


def _libraries() -> str:
    found = {str(each.parent) for each in (_CACHE / "root").rglob("*.so*")}
    return ":".join(sorted(found))


def _output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise Missing(f"there is no pgbouncer on the PATH, and {' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
