"""`holdfast snapshot`: agents frozen into files, and what can be done with the files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, yes_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.formatting import ago, local, plural, safe, size
from holdfast.interfaces.cli.scope_args import acting, as_option

if TYPE_CHECKING:
    from holdfast.snapshots import SnapshotInfo, SnapshotListing

_PAGE = 200
_HEADS = ("SNAPSHOT", "KIND", "NAME", "MADE", "SIZE", "DESCRIPTION")


def _record(info: SnapshotInfo) -> dict[str, Any]:
    return info._asdict()


@group("snapshot")
def snapshot(session: CliContext) -> None:
    """Freeze agents into files, look at these, and thaw them elsewhere.

    A file is a path that ends in .hfsnap, or a URL: s3://bucket/agent.hfsnap, gs://…, az://…

    \b
    holdfast snapshot create greeter-1 greeter.hfsnap -m 'before the move'
    holdfast snapshot verify greeter.hfsnap
    holdfast snapshot restore greeter.hfsnap --store sqlite:///other.db
    """


@command("create")
@click.argument("agent", type=AGENT)
@click.argument("file")
@click.option("--version", type=click.IntRange(1), metavar="N", help="That version of the agent; else the newest.")
@click.option("-m", "--description", default="", metavar="TEXT", help="What is to be said of it.")
@click.option("--not-secret", multiple=True, metavar="NAME", help="A setting that only looks like a secret.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@as_option
def create(
    session: CliContext,
    agent: str,
    file: str,
    version: int | None,
    description: str,
    not_secret: tuple[str, ...],
    overwrite: bool,
    identity: str | None,
) -> None:
    """Freeze an agent of the store into a file, as it was saved last.

    \b
    holdfast snapshot create greeter-1 greeter.hfsnap -m 'before the move'
    holdfast snapshot create greeter-1 s3://backups/greeter.hfsnap --version 12
    """
    from holdfast import snapshots

    saved = snapshots.StoredAgent(acting(session, identity), agent, version)
    info = snapshots.snapshot(saved, file, description=description, not_secret=not_secret, overwrite=overwrite)
    session.tell(f"{agent} is in {info.source} ({size(info.size)}).", _record(info))


@command("restore")
@click.argument("file")
@click.option("--id", "id", metavar="ID", help="The id that the agent gets; else the one that it had.")
@click.option("--create", is_flag=True, help="Make the store, if it is not there.")
@as_option
def restore(session: CliContext, file: str, id: str | None, create: bool, identity: str | None) -> None:
    """Thaw an agent of Holdfast's into the store, under an id that is free there.

    Agents and chains of LangChain's are thawed by programs, which have their tools and secrets: snapshots.restore().

    \b
    holdfast snapshot restore greeter.hfsnap
    holdfast snapshot restore greeter.hfsnap --id greeter-2 --store sqlite:///other.db --create
    """
    from holdfast import snapshots
    from holdfast.errors import SnapshotUnsupportedError

    info = snapshots.info(file)
    if info.kind != "persistent":
        raise SnapshotUnsupportedError(
            f"this is a {info.type} of LangChain's, and no agent that a store keeps",
            where=info.source,
            hint="A program thaws it: snapshots.restore(…)",
        )
    there = acting(session, identity, write=True, create=create)
    record = snapshots.restore(file, store=there, agent_id=id, live=False)
    session.tell(f"{record.id} is in the store, {record.status}.", {"id": record.id, "status": record.status})


@command("show")
@click.argument("file")
def show(session: CliContext, file: str) -> None:
    """Show what a snapshot says of itself. Its content is not read; `zcat` shows that.

    \b
    holdfast snapshot show greeter.hfsnap
    """
    from holdfast import snapshots

    info = snapshots.info(file)
    if session.json:
        session.emit(_record(info))
        return
    out = session.out
    out.line(out.style(f"snapshot {info.id}", "yellow"))
    told = (
        ("Kind", f"{info.kind}, of a {info.type}"),
        ("Name", info.name),
        ("Made", f"{local(info.time)} ({ago(info.time)})"),
        ("With", ", ".join(f"{name} {version}" for name, version in info.versions.items())),
        ("Size", f"{size(info.size)}, {size(info.content_size)} unpacked"),
        ("SHA-256", info.sha256),
        ("Secrets", ", ".join(info.secrets)),
        ("Classes", ", ".join(info.classes)),
        ("Tools", ", ".join(info.tools)),
        ("Middleware", ", ".join(info.middleware)),
        ("About", info.description),
    )
    for name, text in told:
        if text:
            out.line(f"{name + ':':<12}{safe(text)}")


@command("verify")
@click.argument("files", nargs=-1, required=True)
def verify(session: CliContext, files: tuple[str, ...]) -> None:
    """Check that every byte of snapshots is what was written.

    \b
    holdfast snapshot verify *.hfsnap
    """
    from holdfast import snapshots
    from holdfast.errors import HoldfastError

    bad = 0
    with session.progress("Verifying") as tell:
        for number, file in enumerate(files):
            tell(number, len(files), file)
            problem = ""
            try:
                snapshots.verify(file)
            except HoldfastError as error:
                if len(files) == 1:
                    raise
                problem, bad = str(error), bad + 1
            tell.clear()
            _tell_verified(session, file, problem)
    if bad:
        session.note(f"{plural(bad, 'snapshot')} of {len(files)} cannot be relied on.")
        raise click.exceptions.Exit(exit_codes.INTEGRITY)


def _tell_verified(session: CliContext, file: str, problem: str) -> None:
    if session.json:
        session.emit({"file": file, "sound": not problem, "problem": problem})
        return
    out = session.out
    word = out.style("sound", "green") if not problem else out.style("DAMAGED", "red")
    out.line(f"{word} {safe(file)}{f': {safe(problem)}' if problem else ''}")


@command("list")
@click.argument("place", default=".")
@click.option("--after", default="", metavar="NAME", help="Go on after this name.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show so many at most.")
def list_(session: CliContext, place: str, after: str, limit: int | None) -> None:
    """List the snapshots in a directory, or under a prefix in a bucket.

    \b
    holdfast snapshot list backups/
    holdfast snapshot list s3://backups/agents --json
    """
    from holdfast import snapshots

    def pages() -> Iterator[SnapshotListing]:
        last, many = after, min(limit or _PAGE, _PAGE)
        while page := snapshots.list(place, after=last, limit=many):
            yield from page
            last = page[-1].name

    found = islice(pages(), limit)
    if session.json:
        session.emit_all(found)
        return
    session.out.page()
    widths = list[int]()
    while page := list(islice(found, _PAGE)):
        widths = session.out.table(
            _HEADS, [_row(each) for each in page], shrink="DESCRIPTION", styles={"SNAPSHOT": "yellow"}, widths=widths
        )
    if not widths:
        session.note("There are no snapshots.")


def _row(listed: SnapshotListing) -> tuple[str, ...]:
    info = listed.info
    if info is None:
        return listed.name, "?", "", ago(listed.modified), size(listed.size), f"cannot be read: {listed.problem}"
    return listed.name, info.kind, info.name, ago(info.time), size(listed.size), info.description


@command("delete")
@click.argument("files", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also what is damaged, or may be no snapshot.")
@dry_run_option
@yes_option
def delete(session: CliContext, files: tuple[str, ...], force: bool, dry_run: bool, yes: bool) -> None:
    """Delete snapshots. What is no snapshot, by its name or its start, is left alone.

    \b
    holdfast snapshot delete old.hfsnap --dry-run
    holdfast snapshot delete old.hfsnap older.hfsnap --yes
    """
    from holdfast import snapshots
    from holdfast.errors import SnapshotNotFoundError

    for file in files:
        if not force:
            snapshots.info(file)
        elif not snapshots.exists(file):
            raise SnapshotNotFoundError("there is no snapshot", where=file)
    if not dry_run:
        session.confirm(f"Delete {plural(len(files), 'snapshot')}: {', '.join(files)}?", yes=yes)
    for file in files:
        if not dry_run:
            snapshots.delete(file, force=force)
        session.tell(f"{file} {'would be' if dry_run else 'is'} deleted.", {"file": file, "deleted": not dry_run})


for _each in (create, restore, show, verify, list_, delete):
    snapshot.add_command(_each)
