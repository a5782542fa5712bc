"""Where a project declares its schemas: the table `[schemas]` of `holdfast.toml`.

::

    [schemas]
    module = "app.schemas"              # imported from the directory of the file, or installed
    lock = "holdfast-schemas.lock"      # beside the file, unless it says otherwise
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from holdfast._lazy import import_declared
from holdfast.backends.config import FILE as CONFIG_FILE
from holdfast.backends.config import find_file
from holdfast.errors import ConfigError, ConflictError, HoldfastError
from holdfast.schemas.compatibility import SchemaChange
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet, schema_changed
from holdfast.schemas.version import Version

# Lock file ------------------------------------------------------------------------------------------------------------
#
# The lock file: the schemas and migrations as they were last released, committed beside the code.
#
# It is JSON, so that a review shows what changed. It has the definition of every version that was ever locked, so that
# the code needs only the newest classes.

FORMAT = 1
FILE = "holdfast-schemas.lock"


class SchemaFinding(NamedTuple):
    """A finding of a check: an error that a user would meet later."""

    code: str
    reference: str
    message: str
    hint: str = ""


class SchemaLock:
    """The content of a lock file: schemas by reference, and the fingerprints of migrations."""

    def __init__(self, schemas: SchemaSet | None = None, fingerprints: dict[str, str] | None = None) -> None:
        self.schemas: SchemaSet = SchemaSet() if schemas is None else schemas
        self.fingerprints: dict[str, str] = dict(fingerprints or {})

    @classmethod
    def read(cls, path: Path) -> SchemaLock:
        """Read a lock file; an empty one, if there is none."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the lock file of the schemas cannot be read: {error}", where=str(path)) from error
        try:
            document = json.loads(text)
            version = document["format"]
            if version != FORMAT:
                raise ConfigError(
                    f"the lock file of the schemas has format {version}, and this release reads {FORMAT}",
                    where=str(path),
                    hint="Use a newer release of Holdfast",
                )
            schemas = [_read_schema(reference, each) for reference, each in document["schemas"].items()]
            fingerprints = {str(name): str(value) for name, value in document["migrations"].items()}
            return cls(SchemaSet(*schemas), fingerprints)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, HoldfastError):
                raise
            raise ConfigError(
                f"the lock file of the schemas is damaged: {type(error).__name__}: {error}",
                where=str(path),
                hint="Restore it from version control, or delete it and run: holdfast schema lock",
            ) from error

    def write(self, path: Path) -> None:
        """Write the lock file, whole or not at all."""
        schemas = {each.schema_reference: {"hash": each.hash, "definition": each.definition} for each in self.schemas}
        document = {"format": FORMAT, "schemas": schemas, "migrations": dict(sorted(self.fingerprints.items()))}
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)

    def renewed(self, declared: SchemaSet) -> SchemaLock:
        """Return the lock of what is declared. Versions that were locked before stay."""
        fingerprints = self.fingerprints | {str(each): each.fingerprint for each in declared.migrations()}
        return SchemaLock(declared.extended(self.schemas), fingerprints)

    def check(self, declared: SchemaSet) -> list[SchemaFinding]:
        """Compare what is declared with the lock. Each finding would break a reader of stored states, or a build."""
        findings = []
        locked = {each.schema_reference: each for each in self.schemas}
        for schema in declared:
            known = locked.get(schema.schema_reference)
            if known is None:
                findings += self._check_new(schema, declared)
            elif known.hash != schema.hash:
                findings.append(_finding(schema_changed(known, schema), schema.schema_reference, _next(known, schema)))
        for migration in declared.migrations():
            fingerprint = self.fingerprints.get(str(migration))
            if fingerprint is None:
                findings.append(_not_locked(str(migration)))
            elif fingerprint != migration.fingerprint:
                findings.append(_finding(migration_edited(str(migration)), str(migration)))
        return findings

    def _check_new(self, schema: Schema, declared: SchemaSet) -> list[SchemaFinding]:
        everything = declared.extended(self.schemas)
        findings = [_not_locked(schema.schema_reference)]
        for older in self.schemas:
            if older.name != schema.name or older.version > schema.version:
                continue
            try:
                everything.path(schema.name, older.version, schema.version)
            except HoldfastError as error:
                findings.append(_finding(error, schema.schema_reference))
            result = everything.compare(older, schema)
            newest = max(each.version for each in self.schemas if each.name == schema.name)
            if older.version == newest and not result.backward and not _is_major(older.version, schema.version):
                findings.append(_undeclared(older, schema, [each for each in result.changes if not each.backward]))
        return findings


def migration_edited(migration: str) -> ConflictError:
    """Return the error for a migration that is not what was locked or applied."""
    return ConflictError(
        f"the migration {migration} was edited after it was locked or applied",
        where=migration,
        hint="Restore it, and write a further migration; or, if it was never applied, run: holdfast schema lock",
        code="migration-edited",
    )


def _read_schema(reference: str, document: dict[str, Any]) -> Schema:
    name, _, version = reference.partition("@")
    schema = Schema.from_definition(name, version, document["definition"])
    if schema.hash != document["hash"]:
        raise ValueError(f"the hash of {reference} differs from its definition")
    return schema


def _finding(error: HoldfastError, reference: str, hint: str = "") -> SchemaFinding:
    return SchemaFinding(error.code, reference, error.what, hint or error.hint)


def _not_locked(reference: str) -> SchemaFinding:
    return SchemaFinding(
        "not-locked",
        reference,
        f"{reference} is not in the lock file",
        "Run: holdfast schema lock, and commit the file",
    )


def _undeclared(older: Schema, newer: Schema, changes: list[SchemaChange]) -> SchemaFinding:
    reasons = "; ".join(f"{each.path or 'the value'}: {each.reason}" for each in changes[:3])
    return SchemaFinding(
        "schema-changed",
        newer.schema_reference,
        f"{newer.schema_reference} breaks {older.schema_reference}, and is not a new major version: {reasons}",
        f"Call it {Version(older.version.major + 1)}",
    )


def _is_major(older: Version, newer: Version) -> bool:
    if older.major == newer.major == 0:
        return newer.minor > older.minor  # before 1.0, as semantic versions have it
    return newer.major > older.major


def _next(known: Schema, changed: Schema) -> str:
    """Return what to do about a schema that changed: which version to give it."""
    result = known.compare(changed)
    version = known.version
    if not result.backward:
        new = Version(version.major + 1) if version.major else Version(0, version.minor + 1)
    elif not result.forward or any(each.kind in ("added", "removed") for each in result.changes):
        new = Version(version.major, version.minor + 1)
    else:
        new = Version(version.major, version.minor, version.patch + 1)
    how = "with a migration from it" if not result.backward else "which needs no migration"
    return f"Give it version {new}, {how}: the change is {result.level}"


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
