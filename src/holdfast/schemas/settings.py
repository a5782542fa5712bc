"""Where a project declares its schemas: the table `[schemas]` of `holdfast.toml`.

::

    [schemas]
    module = "app.schemas"              # imported from the directory of the file, or installed
    lock = "holdfast-schemas.lock"      # beside the file, unless it says otherwise
"""

from __future__ import annotations

import sys
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from holdfast._lazy import import_declared
from holdfast.backends.config import FILE as CONFIG_FILE
from holdfast.backends.config import find_file
from holdfast.errors import ConfigError, HoldfastError
from holdfast.schemas.lock_file import FILE, SchemaLock
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet


class SchemaSettings(NamedTuple):
    """The module that declares the schemas, and the path of the lock file."""

    module: str
    lock: Path
    folder: Path

    def load(self) -> SchemaSet:
        """Import the module, and return the schemas and migrations that it declares."""
        folder = str(self.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = import_declared(self.module)
        except HoldfastError as error:
            error.where = "; ".join(filter(None, (_find_line(error), error.where)))
            raise
        except (Exception, SystemExit) as error:
            raise self._import_failed(error) from error
        found = declared_in(vars(module))
        if not list(found) and not found.migrations():
            raise ConfigError(
                f"the module {self.module} declares no schemas",
                hint="Assign a SchemaSet(…) to a name in it: schemas = SchemaSet(Schema(…), Migration(…))",
            )
        return found

    def _import_failed(self, error: BaseException) -> ConfigError:
        """Return the error for a module that is not there, or that raises one itself."""
        line = _find_line(error)
        missing = isinstance(error, ModuleNotFoundError) and f"{self.module}.".startswith(f"{error.name}.")
        if missing or not line:
            return ConfigError(
                f"the module of the schemas, {self.module}, cannot be imported: {error}",
                where=str(self.folder),
                hint=f"Correct [schemas] module in {CONFIG_FILE}, or --module",
            )
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        return ConfigError(
            f"the module of the schemas, {self.module}, raises {type(error).__name__} when it is imported: {what}",
            where=line,
            hint=f"Correct that line; python -c 'import {self.module}' shows the whole error",
        )

    def read_lock(self) -> SchemaLock:
        """Read the lock file."""
        return SchemaLock.read(self.lock)


def _find_line(error: BaseException) -> str:
    """Return file and line of the application where an error was raised at import; nothing, if that is not known."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("holdfast", "importlib") and not frame.f_code.co_filename.startswith("<"):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def find_settings(module: str | None = None, lock: str | None = None) -> SchemaSettings:
    """Return the settings of the project in this directory. Arguments go before those of the file."""
    path = find_file()
    folder = Path.cwd() if path is None else path.resolve().parent
    table = {} if path is None else _read_table(path)
    name = module or table.get("module")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            "no module of schemas is named",
            where=str(path or folder),
            hint=f'Write [schemas] with module = "app.schemas" into {CONFIG_FILE}, or give --module app.schemas',
        )
    place = Path(lock) if lock else folder / str(table.get("lock", FILE))
    return SchemaSettings(name, place, folder)


def declared_in(names: dict[str, Any]) -> SchemaSet:
    """Return what a module declares: its sets; or else its schemas and migrations."""
    sets = [each for each in names.values() if isinstance(each, SchemaSet)]
    if sets:
        return SchemaSet(*dict.fromkeys(sets))
    return SchemaSet(*dict.fromkeys(each for each in names.values() if isinstance(each, Schema | Migration)))


def _read_table(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
    table = document.get("schemas", {})
    if not isinstance(table, dict) or not table.keys() <= {"module", "lock"}:
        raise ConfigError("[schemas] has the keys module and lock", where=str(path))
    return table
