"""`holdfast schema`: check, lock, show, compare and document the schemas of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, F, command, group
from holdfast.interfaces.cli.formatting import safe

if TYPE_CHECKING:
    from holdfast.schemas.schema_set import SchemaSet
    from holdfast.schemas.settings import SchemaSettings as Settings


def _settings_options(function: F) -> F:
    for name, text in (
        ("--lock", "The lock file, in place of that of holdfast.toml."),
        ("--module", "The module that declares the schemas, in place of that of holdfast.toml."),
    ):
        function = click.option(name, metavar="NAME" if name == "--module" else "FILE", help=text)(function)
    return function


def _load(module: str | None, lock: str | None) -> tuple[Settings, SchemaSet]:
    from holdfast.schemas.settings import find_settings

    settings = find_settings(module, lock)
    return settings, settings.load()


@group("schema")
def schema(session: CliContext) -> None:
    """Check, lock, show, compare and document the schemas of a project.

    The module that declares them is named in holdfast.toml:

    \b
    [schemas]
    module = "app.schemas"

    holdfast schema lock                              write the lock file, to be committed
    holdfast schema check                             fail on a breaking change that is not declared
    holdfast schema show chat                         fields of the newest version
    holdfast schema diff chat@1.0.0                   what changed since
    holdfast schema docs --format html -o schemas.html
    """


@command("check")
@_settings_options
def check(session: CliContext, module: str | None, lock: str | None) -> None:
    """Compare the code with the lock file. Fails on a breaking change that is not declared.

    Ends with exit code 6 if anything differs: a schema that changed without a new version, a version without a
    migration to it, an edited migration, or a lock file that is not up to date.
    """
    settings, declared = _load(module, lock)
    findings = settings.read_lock().check(declared)
    for each in findings:
        lines = [f"{session.out.style(each.code, 'red')} {safe(each.reference)}: {safe(each.message)}"]
        lines += [f"  {line}" for line in safe(each.hint, lines=True).split("\n") if each.hint]
        session.report(lines, each)
    if not findings and not session.json:
        session.out.line(f"{len(list(declared))} schemas and {len(declared.migrations())} migrations are as locked.")
    session.exit_if(findings, exit_codes.FINDINGS)


@command("lock")
@_settings_options
def lock_(session: CliContext, module: str | None, lock: str | None) -> None:
    """Write the lock file from the code. Versions that were locked before stay in it.

    A schema that changed without a new version is refused, unless no other version depends on it yet: then delete the
    lock file first.
    """
    settings, declared = _load(module, lock)
    before = settings.read_lock()
    changed = [each for each in before.check(declared) if each.code == "schema-changed"]
    if changed:
        from holdfast.errors import ConflictError

        raise ConflictError(changed[0].message, where=changed[0].reference, hint=changed[0].hint, code="schema-changed")
    renewed = before.renewed(declared)
    renewed.write(settings.lock)
    count = len(list(renewed.schemas))
    session.tell(
        f"Wrote {settings.lock}: {count} schemas, {len(renewed.fingerprints)} migrations.",
        {"lock": str(settings.lock), "schemas": count, "migrations": len(renewed.fingerprints)},
    )


@command("show")
@_settings_options
def show(session: CliContext, reference: str | None, module: str | None, lock: str | None) -> None:
    """List the schemas, or show the fields of one.

    holdfast schema show            list
    holdfast schema show chat       the newest version
    holdfast schema show chat@1.0.0
    """
    settings, declared = _load(module, lock)
    everything = declared.extended(settings.read_lock().schemas)
    if reference is None:
        listed = ({"name": each.name, "version": str(each.version), "hash": each.hash} for each in everything)
        session.list(listed, hash=lambda each: each["hash"][:12])
        return
    from holdfast.schemas.documentation import describe_fields

    found = everything.get(reference)
    names = ("name", "version", "hash", "definition")
    record = {name: getattr(found, name) for name in names}
    record["migrations"] = [str(each) for each in everything.migrations(found.name)]
    session.report((f"{session.out.style(safe(found.schema_reference), 'yellow')} {found.hash}",), record)
    if not session.json:
        session.out.table(("FIELD", "TYPE", "REQUIRED", "DEFAULT", "DESCRIPTION"), describe_fields(found))


@command("diff")
@_settings_options
def diff(session: CliContext, older: str, newer: str | None, module: str | None, lock: str | None) -> None:
    """Compare two versions, field by field. Without a second one, the newest of the code is taken.

    holdfast schema diff chat@1.0.0 chat@2.0.0
    holdfast schema diff chat@1.0.0
    """
    settings, declared = _load(module, lock)
    everything = declared.extended(settings.read_lock().schemas)
    old = everything.get(older)
    new = everything.get(newer or old.name)
    result = everything.compare(old, new)
    steps = _path(everything, old.name, old.version, new.version)
    sides = {"older": old.schema_reference, "newer": new.schema_reference}
    session.report(
        f"{old.schema_reference} -> {new.schema_reference}: {result.level}",
        {**sides, "level": result.level, "changes": result.changes, "path": steps},
    )
    if not session.json:
        session.list(result.changes, path=lambda each: each.path or "(value)")
        session.out.line(f"migrations: {', '.join(steps) or 'none'}")


def _path(schemas: SchemaSet, name: str, older: Any, newer: Any) -> list[str]:
    from holdfast.errors import HoldfastError

    try:
        return [str(step) for step in schemas.path(name, older, newer)]
    except HoldfastError as error:
        return [f"{error.what}"]


@command("docs")
@click.option("--format", "form", type=click.Choice(("markdown", "html")), default="markdown", show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to a file.")
@_settings_options
def docs(session: CliContext, form: str, output: str | None, module: str | None, lock: str | None) -> None:
    """Write the documentation of the schemas: fields, types, defaults, versions, changes and migrations."""
    from holdfast.schemas.documentation import to_html, to_markdown

    settings, declared = _load(module, lock)
    everything = declared.extended(settings.read_lock().schemas)
    text = to_html(everything) if form == "html" else to_markdown(everything)
    if output is not None:
        from pathlib import Path

        Path(output).write_text(text, encoding="utf-8")
        session.tell(f"Wrote {output}.", {"file": output, "format": form})
    else:
        session.report((safe(text.rstrip("\n"), lines=True),), {"format": form, "text": text})


schema.add(check, lock_, show, diff, docs)
