"""`holdfast run`: scripts in Lua and JavaScript."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from holdfast._views import encode
from holdfast.interfaces.cli.base import CliContext, command, pairs
from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.prune import SizeType
from holdfast.interfaces.cli.scope_args import SPAN, as_option


@command("run", script=click.Path(dir_okay=False))
@click.argument("args", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--read-only", is_flag=True, help="Open the store for reading only.")
@click.option("--timeout", type=SPAN, default="1m", show_default=True, metavar="SPAN", help="The longest duration.")
@click.option("--memory", type=SizeType(), default="64MiB", show_default=True, help="The most memory of its values.")
@click.option(
    "--backups",
    "repositories",
    multiple=True,
    metavar="NAME=REPOSITORY",
    help="A repository of backups that the script may use, as store.backups(NAME). Can be given several times.",
)
@click.option(
    "--code",
    "code",
    multiple=True,
    metavar="NAME=MODULE:NAME",
    help="Code that the script may replay with, as holdfast.replay.run(store, NAME). Can be given several times.",
)
@click.option(
    "--recording",
    "recordings",
    multiple=True,
    metavar="NAME=FILE",
    help="A recording that the script may replay, as holdfast.replay.run(NAME, …). Can be given several times.",
)
@as_option
def run(
    session: CliContext,
    script: str,
    args: tuple[str, ...],
    read_only: bool,
    timeout: timedelta,
    memory: int,
    repositories: tuple[str, ...],
    code: tuple[str, ...],
    recordings: tuple[str, ...],
) -> None:
    """Run a script in Lua (.lua) or JavaScript (.js) on the store.

    The script has the API as `store`, and the NAME=VALUEs, whose values are JSON or else text, as `args`. What it
    prints is the output, and so is its result, as JSON unless it is text. It runs in a process of its own under limits,
    and cannot reach files or the network.

    holdfast run count.lua
    holdfast run archive.js prefix=chat- days=30
    holdfast run report.js --as agent:writer --timeout 5m
    holdfast run drill.lua --backups main=s3://bucket/backups
    holdfast run check.js --code refund=shop.graphs:refund
    """
    from holdfast.interfaces.scripting.process import find_language
    from holdfast.interfaces.scripting.sandbox import Sandbox

    values: dict[str, Any] = pairs(args, "SCRIPT")
    language = find_language(script)
    store = session.open_as(write=not read_only)

    def show(text: str) -> None:
        session.report(safe(text, lines=True).split("\n"), {"text": text}, page=False)

    urls = _named(repositories, "--backups", "NAME=REPOSITORY")
    if urls and session.identity is not None:
        raise click.UsageError("--backups gives a script the whole store, and --as only what an identity may do")
    with Sandbox(
        language,
        store,
        timeout=timeout,
        memory=memory,
        output=show,
        backups={name: session.open(write=not read_only).backups(url) for name, url in urls.items()},
        code=_named(code, "--code", "NAME=MODULE:NAME"),
        recordings=_named(recordings, "--recording", "NAME=FILE"),
    ) as sandbox:
        result = sandbox.run_file(script, args=values)
    text = safe(result, lines=True) if isinstance(result, str) else encode(result)
    session.report(() if result is None else (text,), {"value": result}, page=False)


def _named(given: tuple[str, ...], option: str, form: str) -> dict[str, str]:
    """Return what the script may use, by name."""
    found = {}
    for each in given:
        name, _, value = each.partition("=")
        if not (name and value):
            raise click.BadParameter(f"{each!r} is not {form}", param_hint=option)
        found[name] = value
    return found
