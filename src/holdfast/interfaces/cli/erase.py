"""`holdfast erase`: erasing the data of one person."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, yes_option
from holdfast.interfaces.cli.formatting import safe

if TYPE_CHECKING:
    from holdfast.maintenance.erasure.certificate import Certificate
    from holdfast.maintenance.erasure.eraser import ErasureReport


@group("erase", invoke_without_command=True)
@click.option("--subject", metavar="NAME", help="The person whose data is erased.")
@dry_run_option
@click.option(
    "--metadata-key", "keys", multiple=True, metavar="KEY", help="The metadata that names the person: subject."
)
@click.option("--out", metavar="FILE", help="Where to write the certificate.")
@yes_option
def erase(session: CliContext, subject: str | None, keys: tuple[str, ...], out: str | None) -> None:
    """Erase everything of one person, and write a signed certificate.

    Threads, agents, scopes, sessions and artifacts of the person are deleted, with their keys. From threads, topics and
    documents that others share, the person's steps are removed. If it is interrupted, start it again: it resumes. A
    legal hold on anything of it refuses it.

    holdfast erase --subject u-1842 --dry-run
    holdfast erase --subject u-1842 --out certificate.json
    holdfast erase set-subject u-1842 chat-1
    holdfast erase verify certificate.json --public-key 5f2a…
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if subject is None:
        raise click.UsageError("Name the person: --subject NAME")
    store = session.open(write=not session.dry_run)
    names = keys or ("subject",)
    if session.dry_run:
        _show_plan(session, store.erasure.erase(subject, dry_run=True, metadata_keys=names))
        return
    session.confirm(f"Erase everything of {safe(subject)}?")
    with session.progress("Erasing") as progress:
        report = store.erasure.erase(subject, progress=progress, metadata_keys=names)
    certificate = report.certificate
    assert certificate is not None  # noqa: S101 - it was no dry run
    if out is not None:
        _write(Path(out), certificate)
    further = ("steps removed", report.steps), ("keys destroyed", report.keys)
    every = *report.erased.items(), *_rewritten(report), *(each for each in further if each[1])
    counts = ", ".join(f"{count} {kind}" for kind, count in every)
    session.tell(f"Erased {counts or 'nothing: there was nothing'}. Certificate {certificate.id}", _plain(certificate))
    for each in certificate.unreachable:
        session.warn(f"copies may still be in {each}")


def _rewritten(report: ErasureReport) -> list[tuple[str, int]]:
    return [(f"{kind} rewritten", count) for kind, count in report.rewritten.items()]


def _show_plan(session: CliContext, report: ErasureReport) -> None:
    held = {name for name in report.names if name.partition(" ")[2] in report.held}
    session.report(
        [safe(name) + (" (held)" if name in held else "") for name in report.names], report, {"dry_run": True}
    )
    session.note("Nothing was erased." if report.names else "There is nothing of this person.")
    session.exit_if(report.held, exit_codes.FINDINGS)


@command("set-subject")
@click.argument("subject", metavar="NAME")
@click.argument("thread", metavar="[THREAD]", required=False)
@click.option("--kind", default="thread", show_default=True, help="The kind of line: agent, scope or session.")
@click.option("--mixed", is_flag=True, help="NAME is a thread that has the data of several persons.")
def set_subject(session: CliContext, subject: str, thread: str | None, kind: str, mixed: bool) -> None:
    """Say whose data a thread contains; without one, whose everything in the tenant is.

    Threads whose metadata names the person, and scopes of the user, belong to that person anyway.

    holdfast erase set-subject u-1842 chat-1
    holdfast erase set-subject --mixed team-chat
    """
    store = session.open(write=True)
    if mixed:
        if thread is not None:
            raise click.UsageError("With --mixed, give the thread alone.")
        store.erasure.mark_mixed(subject, kind=kind)  # type: ignore[arg-type]
        session.tell(f"{safe(subject)} has the data of several persons.", {"name": subject, "mixed": True})
        return
    store.erasure.set_subject(subject, thread, kind=kind)  # type: ignore[arg-type]
    what = "Everything of the tenant" if thread is None else safe(thread)
    session.tell(f"{what} is the data of {safe(subject)}.", {"name": thread, "subject": subject})


@command("list")
def list_(session: CliContext) -> None:
    """List the certificates of all erasures, the oldest first.

    holdfast erase list
    """
    found = session.open().erasure.certificates()
    session.list(
        map(_plain, found) if session.json else found,
        first=("finished",),
        finished=lambda each: each.finished[:19],
        erased=lambda each: str(sum(each.erased.values())),
        rewritten=lambda each: str(sum(each.rewritten.values())),
        unreachable=lambda each: str(len(each.unreachable)),
    )


@command("show")
@click.argument("id", metavar="ID")
def show(session: CliContext, id: str) -> None:
    """Print a certificate, by the beginning of its id.

    holdfast erase show 5b21
    """
    found = [each for each in session.open().erasure.certificates() if each.id.startswith(id)]
    if len(found) != 1 or len(id) < 4:
        raise NotFoundError(f"there is no certificate {id!r}", hint="`holdfast erase list` shows them")
    session.report((found[0].to_json(),), _plain(found[0]))


@command("key")
def key(session: CliContext) -> None:
    """Print the public key that checks the certificates and the exported audits of this store.

    Publish it where others trust it.

    holdfast erase key
    """
    found = session.open(write=True).erasure.public_key()
    session.report(found, {"public_key": found})


@command("verify")
@click.argument("file", metavar="CERTIFICATE")
@click.option("--public-key", metavar="HEX", help="The key that it must be signed with.")
@click.option("--subject", metavar="NAME", help="The person that it must be about.")
def verify(session: CliContext, file: str, public_key: str | None, subject: str | None) -> None:
    """Check a certificate of erasure. No store is needed.

    Without --public-key, only that it was not altered since somebody signed it.

    holdfast erase verify certificate.json --public-key 5f2a… --subject u-1842
    """
    from holdfast.maintenance.erasure.certificate import Certificate

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"the certificate cannot be read: {error}", where=file) from None
    certificate = Certificate.from_json(text)
    certificate.check(public_key)
    if subject is not None and not certificate.is_about(subject):
        raise CorruptError("the certificate is about another person", where=file, code="certificate-invalid")
    session.tell(
        f"The certificate {certificate.id} is as it was signed, on {certificate.finished}.", _plain(certificate)
    )
    if public_key is None:
        session.note(f"It was signed with the key {certificate.public_key}: compare it with that of the store.")


def _write(path: Path, certificate: Certificate) -> None:
    try:
        path.write_text(certificate.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidError(
            f"the certificate cannot be written: {error}", where=str(path), hint="`holdfast erase show` prints it"
        ) from None


def _plain(certificate: Certificate) -> dict[str, object]:
    """Return a certificate as a record that `holdfast erase verify` reads."""
    import json

    plain: dict[str, object] = json.loads(certificate.to_json())
    return plain


erase.add(set_subject, list_, show, key, verify)
