"""`holdfast snapshot`: agents in files."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast._views import size
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, limit_option, yes_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.formatting import ago, plural, safe
from holdfast.interfaces.cli.scope_args import as_option

if TYPE_CHECKING:
    pass


@group("snapshot")
def snapshot(session: CliContext) -> None:
    """Save agents to files, show and verify the files, and restore agents from them.

    A file is a path that ends in .hfsnap, or a URL: s3://bucket/agent.hfsnap, gs://…, az://…

    holdfast snapshot create greeter-1 greeter.hfsnap -m 'before the move'
    holdfast snapshot verify greeter.hfsnap
    holdfast snapshot restore greeter.hfsnap --store sqlite:///other.db
    """


@command("create", agent=AGENT)
@click.option("--version", type=click.IntRange(1), metavar="N", help="This version of the agent; by default the last.")
@click.option("-m", "--description", default="", metavar="TEXT", help="A description.")
@click.option(
    "--not-secret",
    multiple=True,
    metavar="NAME",
    help="A setting that only looks like a secret.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option(
    "--compression",
    type=click.Choice(("gzip", "zstd", "none")),
    default="gzip",
    show_default=True,
    help="How the content is compressed; zcat shows it if it is gzip.",
)
@as_option
def create(session: CliContext, agent: str, file: str, version: int | None, **options: Any) -> None:
    """Save an agent of the store to a file.

    holdfast snapshot create greeter-1 greeter.hfsnap -m 'before the move'
    holdfast snapshot create greeter-1 s3://backups/greeter.hfsnap --version 12
    """
    from holdfast import snapshots

    saved = snapshots.StoredAgent(session.open_as(), agent, version)
    info = snapshots.snapshot(saved, file, **options)
    session.tell(f"Saved {agent} to {info.source} ({size(info.size)}).", info)


@command("restore")
@click.option("--id", "id", metavar="ID", help="The id of the agent in the store; by default that in the file.")
@click.option("--create", is_flag=True, help="Create the store if there is none.")
@as_option
def restore(session: CliContext, file: str, id: str | None, create: bool) -> None:
    """Restore a Holdfast agent to the store, as a new one.

    LangChain agents and chains are restored by programs, which have their tools and secrets: snapshots.restore().

    holdfast snapshot restore greeter.hfsnap
    holdfast snapshot restore greeter.hfsnap --id greeter-2 --store sqlite:///other.db --create
    """
    from holdfast import snapshots
    from holdfast.errors import SnapshotUnsupportedError

    info = snapshots.info(file)
    if info.kind != "persistent":
        raise SnapshotUnsupportedError(
            f"this is a {info.type} of LangChain, not an agent of Holdfast",
            where=info.source,
            hint="Restore it in a program: snapshots.restore(…)",
        )
    store = session.open_as(write=True, create=create)
    record = snapshots.restore(file, store=store, agent_id=id, live=False)
    session.tell(f"Restored {record.id}, {record.status}.", {"id": record.id, "status": record.status})


@command("show")
def show(session: CliContext, file: str) -> None:
    """Show the header of a snapshot. Its content is not read; `zcat` shows it.

    holdfast snapshot show greeter.hfsnap
    """
    from holdfast import snapshots

    info = snapshots.info(file)
    said = {
        "type": f"a {info.type}" if info.type else "",
        "versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "size": f"{size(info.size)}, {size(info.content_size)} unpacked ({info.compression})",
    }
    hidden = ("id", "source", "format", "content_size", "compression")
    session.report(session.describe(info, f"snapshot {info.id}", hidden=hidden, **said), info)


@command("verify")
@click.argument("files", nargs=-1, required=True)
def verify(session: CliContext, files: tuple[str, ...]) -> None:
    """Verify every byte of snapshots.

    holdfast snapshot verify *.hfsnap
    """
    from holdfast import snapshots
    from holdfast.errors import HoldfastError

    bad = 0
    with session.progress("Verifying") as progress:
        for number, file in enumerate(files):
            progress(number, len(files), file)
            problem = ""
            try:
                snapshots.verify(file)
            except HoldfastError as error:
                if len(files) == 1:
                    raise
                problem, bad = str(error), bad + 1
            progress.clear()
            result = session.out.style("DAMAGED", "red") if problem else session.out.style("OK", "green")
            text = f"{result} {safe(file)}{f': {safe(problem)}' if problem else ''}"
            session.report((text,), {"file": file, "ok": not problem, "problem": problem}, page=False)
    if bad:
        session.note(f"{bad} of {plural(len(files), 'snapshot')} are damaged.")
        raise click.exceptions.Exit(exit_codes.INTEGRITY)


@command("list")
@click.argument("location", default=".")
@click.option("--after", default="", metavar="NAME", help="Start after this name.")
@limit_option()
def list_(session: CliContext, location: str, after: str, limit: int | None) -> None:
    """List the snapshots in a directory, or under a prefix in a bucket.

    holdfast snapshot list backups/
    holdfast snapshot list s3://backups/agents --json
    """
    from holdfast import snapshots

    session.list(
        islice(snapshots.list(location, cursor=after).all(), limit),
        none="There are no snapshots.",
        hidden=("problem",),
        kind=lambda each: each.info.kind if each.info else "?",
        agent=lambda each: each.info.name if each.info else "",
        created=lambda each: ago(each.info.time if each.info else each.modified),
        description=lambda each: each.info.description if each.info else f"cannot be read: {each.problem}",
    )


@command("delete")
@click.argument("files", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also damaged files, and those that may not be snapshots.")
@dry_run_option
@yes_option
def delete(session: CliContext, files: tuple[str, ...], force: bool) -> None:
    """Delete snapshots. Other files are refused.

    holdfast snapshot delete old.hfsnap --dry-run
    holdfast snapshot delete old.hfsnap older.hfsnap --yes
    """
    from holdfast import snapshots
    from holdfast.errors import SnapshotNotFoundError

    for file in files:
        if not force:
            snapshots.info(file)
        elif not snapshots.exists(file):
            raise SnapshotNotFoundError("there is no snapshot at this path", where=file)
    if not session.dry_run:
        session.confirm(f"Delete {plural(len(files), 'snapshot')}: {', '.join(files)}?")
    for file in files:
        if not session.dry_run:
            snapshots.delete(file, force=force)
        session.tell(
            f"{'Would delete' if session.dry_run else 'Deleted'} {file}.",
            {"file": file, "deleted": not session.dry_run},
        )


snapshot.add(create, restore, show, verify, list_, delete)
